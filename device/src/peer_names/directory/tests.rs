use protocol::ids::MacAddr;

use super::*;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn named(name: PeerName) -> NamedPeer {
    NamedPeer { name, mac: None, leaf: false, max_frames_per_second: None }
}

fn host(name: &str) -> NamedPeer {
    named(PeerName::Host { host: name.into(), port: 7 })
}

fn service() -> NamedPeer {
    named(PeerName::Service("_hcad._udp.lab".into()))
}

fn addresses(last_bytes: &[u8], ttl: u64) -> Option<Answer<IpAddr>> {
    let records = last_bytes.iter().map(|byte| [192, 0, 2, *byte].into()).collect();
    Some(Answer { records, ttl: Some(Duration::from_secs(ttl)) })
}

fn targets(hosts: &[&str], ttl: u64) -> Option<Answer<Target>> {
    let records = hosts.iter().map(|host| Target { host: (*host).into(), port: 9 }).collect();
    Some(Answer { records, ttl: Some(Duration::from_secs(ttl)) })
}

fn questions(directory: &mut Directory, now: Instant) -> Vec<Question> {
    std::iter::from_fn(|| directory.poll_question(now)).collect()
}

/// Returns the last bytes of the addresses that joined and left.
fn change(directory: &mut Directory) -> (Vec<u8>, Vec<u8>) {
    let last_byte = |found: &ResolvedPeer| match found.peer.addr.ip() {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(ip) => ip.octets()[15],
    };
    let Change { joined, left } = directory.refresh(|_| false).unwrap_or_default();
    (joined.iter().map(last_byte).collect(), left.iter().map(last_byte).collect())
}

#[test]
fn name_is_looked_up_again_after_ttl() {
    let mut directory = Directory::new(&[host("a")], at(0));
    assert_eq!(directory.next_lookup(), Some(at(0)));
    assert_eq!(questions(&mut directory, at(0)), [Question::Host("a".into())]);
    assert_eq!(
        (questions(&mut directory, at(9)), directory.next_lookup()),
        (vec![], None),
        "the lookup is in progress"
    );

    directory.handle_addresses(at(1), "a", addresses(&[2, 1], 60));
    assert_eq!(change(&mut directory), (vec![1, 2], vec![]));
    assert_eq!(directory.next_lookup(), Some(at(61)));
    assert_eq!(questions(&mut directory, at(60)), []);
    assert_eq!(questions(&mut directory, at(61)).len(), 1);
    directory.handle_addresses(at(61), "a", addresses(&[1, 2], 60));
    assert_eq!(directory.refresh(|_| false), None, "a different order is no change");
    directory.handle_addresses(at(121), "a", addresses(&[3, 2, 2], 60));
    assert_eq!(change(&mut directory), (vec![3], vec![1]));
}

#[test]
fn ttl_is_bounded() {
    let mut directory = Directory::new(&[host("a")], at(0));
    let mut next = |answer| {
        directory.handle_addresses(at(0), "a", answer);
        directory.next_lookup().unwrap()
    };
    assert_eq!(next(addresses(&[1], 0)), at(1));
    assert_eq!(next(addresses(&[1], 100_000)), at(3600));
    assert_eq!(next(addresses(&[], 0)), at(1));
    assert_eq!(next(addresses(&[], 3600)), at(30));
    assert_eq!(next(Some(Answer { records: vec![], ttl: None })), at(30));
}

#[test]
fn failed_lookup_keeps_last_answer() {
    let mut directory = Directory::new(&[host("a")], at(0));
    directory.handle_addresses(at(0), "a", addresses(&[1], 60));
    assert_eq!(change(&mut directory), (vec![1], vec![]));
    let mut now = at(60);
    let mut pauses = Vec::new();
    for failure in 0..8 {
        let outcome = directory.handle_addresses(now, "a", None);
        assert_eq!(outcome, Outcome::Failed { is_first: failure == 0 });
        assert_eq!(directory.refresh(|_| false), None);
        let next = directory.next_lookup().unwrap();
        pauses.push(next.saturating_since(now).as_secs());
        now = next;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32, 32]);
    assert_eq!(
        directory.handle_addresses(now, "a", addresses(&[1], 60)),
        Outcome::Answered { recovered: true, ignored: 0 }
    );
    assert_eq!(directory.refresh(|_| false), None);
    assert_eq!(directory.handle_addresses(now, "a", None), Outcome::Failed { is_first: true });
}

#[test]
fn name_without_records_has_no_peers() {
    let mut directory = Directory::new(&[host("a")], at(0));
    directory.handle_addresses(at(0), "a", addresses(&[1], 60));
    change(&mut directory);
    directory.handle_addresses(at(60), "a", addresses(&[], 5));
    assert_eq!(change(&mut directory), (vec![], vec![1]));
}

#[test]
fn service_targets_are_looked_up_while_listed() {
    let mut directory = Directory::new(&[service(), host("b")], at(0));
    assert_eq!(questions(&mut directory, at(0)).len(), 2);
    directory.handle_addresses(at(0), "b", addresses(&[2], 1000));
    directory.handle_targets(at(0), "_hcad._udp.lab", targets(&["a", "b"], 10));
    assert_eq!(
        questions(&mut directory, at(0)),
        [Question::Host("a".into())],
        "b has been looked up already"
    );
    directory.handle_addresses(at(0), "a", addresses(&[1], 1000));
    let joined = directory.refresh(|_| false).unwrap().joined;
    let joined: Vec<_> = joined.iter().map(|found| (found.peer.addr.to_string(), &*found.name)).collect();
    assert_eq!(
        joined,
        [("192.0.2.1:9".into(), "a"), ("192.0.2.2:7".into(), "b"), ("192.0.2.2:9".into(), "b")]
    );

    assert_eq!(questions(&mut directory, at(10)), [Question::Service("_hcad._udp.lab".into())]);
    directory.handle_targets(at(10), "_hcad._udp.lab", targets(&["c"], 10));
    assert_eq!(change(&mut directory), (vec![], vec![1, 2]));
    assert_eq!(directory.handle_addresses(at(10), "a", addresses(&[4], 1)), Outcome::Obsolete);
    assert_eq!(directory.refresh(|_| false), None);
}

#[test]
fn failed_target_does_not_delay_other_targets() {
    let mut directory = Directory::new(&[service()], at(0));
    directory.handle_targets(at(0), "_hcad._udp.lab", targets(&["a", "b"], 10));
    directory.handle_addresses(at(0), "a", None);
    directory.handle_addresses(at(0), "b", addresses(&[2], 10));
    assert_eq!(change(&mut directory), (vec![2], vec![]));
}

#[test]
fn answer_size_is_bounded() {
    let mut directory = Directory::new(&[service()], at(0));
    let hosts: Vec<_> = (0..1000).map(|number| format!("h{number}")).collect();
    let hosts: Vec<_> = hosts.iter().map(String::as_str).collect();
    let handle = |directory: &mut Directory, count: usize| {
        directory.handle_targets(at(0), "_hcad._udp.lab", targets(&hosts[..count], 10))
    };
    let answered = |ignored| Outcome::Answered { recovered: false, ignored };
    assert_eq!(handle(&mut directory, 1000), answered(1000 - MAX_RECORDS));
    assert_eq!(questions(&mut directory, at(0)).len(), MAX_RECORDS);
    assert_eq!(handle(&mut directory, 1000), answered(0), "excess records are reported once");
    assert_eq!(handle(&mut directory, MAX_RECORDS), answered(0));
    assert_eq!(handle(&mut directory, 1000), answered(1000 - MAX_RECORDS));
}

#[test]
fn unusable_and_local_addresses_are_excluded() {
    let mut directory = Directory::new(&[host("a")], at(0));
    let records = ["0.0.0.0", "239.1.1.1", "255.255.255.255", "192.0.2.1", "192.0.2.2"];
    let records = records.iter().map(|ip| ip.parse().unwrap()).collect();
    directory.handle_addresses(at(0), "a", Some(Answer { records, ttl: None }));
    let joined = directory.refresh(|addr| addr == ([192, 0, 2, 1], 7).into()).unwrap().joined;
    assert_eq!(joined.iter().map(|found| found.peer.addr).collect::<Vec<_>>(), [([192, 0, 2, 2], 7).into()]);
}

#[test]
fn configured_mac_belongs_to_one_address() {
    let own = NamedPeer { mac: Some(MAC), ..host("a") };
    let mut directory = Directory::new(&[host("all"), own], at(0));
    directory.handle_addresses(at(0), "all", addresses(&[1, 2, 3], 10));
    directory.handle_addresses(at(0), "a", addresses(&[3, 2], 10));
    let macs = |directory: &mut Directory| {
        directory.refresh(|_| false);
        directory.peers().iter().map(|found| found.peer.mac).collect::<Vec<_>>()
    };
    assert_eq!(macs(&mut directory), [None, Some(MAC), None]);
    directory.handle_addresses(at(10), "a", addresses(&[3], 10));
    assert_eq!(macs(&mut directory), [None, None, Some(MAC)], "the MAC moves with the name");
}
