use std::num::NonZeroU32;

use super::*;
use crate::fabric::macs::MAX_LEARNED;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const C: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

fn addr(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn peer(port: u16) -> UdpPeer {
    UdpPeer::at(addr(port))
}

fn switch() -> Switch {
    Switch::new(true, &[UdpPeer { mac: Some(A), ..peer(1) }, peer(2)]).unwrap()
}

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn admit(switch: &mut Switch, src: MacAddr, from: u16) -> Result<usize, AdmitError> {
    switch.admit(at(0), src, addr(from))
}

fn route(switch: &Switch, dst: MacAddr) -> Route {
    switch.route(at(0), dst)
}

#[test]
fn frames_to_unknown_and_group_addresses_are_flooded() {
    let switch = switch();
    assert_eq!(route(&switch, B), Route::Flood);
    assert_eq!(route(&switch, MacAddr::BROADCAST), Route::Flood);
    assert_eq!(route(&switch, A), Route::Peer(0));
}

#[test]
fn learned_mac_moves_after_hold_time() {
    let mut switch = switch();
    // The frames at 100 and 400 ms do not refresh the entry of B, but the frame at 900 ms does.
    for millis in [0, 100, 400, 900] {
        assert_eq!(switch.admit(at(millis), B, addr(2)), Ok(1));
    }
    assert_eq!(route(&switch, B), Route::Peer(1));
    for millis in [901, 2300] {
        assert_eq!(switch.admit(at(millis), B, addr(1)), Err(AdmitError::ForeignMac), "{millis}");
        assert_eq!(route(&switch, B), Route::Peer(1));
    }
    assert_eq!((switch.rows()[0].rx_frames, switch.rows()[0].rx_foreign_mac), (0, 2));
    assert_eq!(switch.admit(at(2900), B, addr(1)), Ok(0));
    assert_eq!(route(&switch, B), Route::Peer(0));
    assert_eq!(switch.admit(at(2900), B, addr(2)), Err(AdmitError::ForeignMac));
}

#[test]
fn learned_mac_ages_out() {
    let mut switch = switch();
    switch.admit(at(0), B, addr(2)).unwrap();
    switch.admit(at(1000), B, addr(2)).unwrap();
    assert_eq!(switch.route(at(300_999), B), Route::Peer(1));
    assert_eq!(switch.route(at(301_000), B), Route::Flood);
    assert_eq!(switch.route(at(301_000), A), Route::Peer(0), "configured MACs do not age out");
    switch.admit(at(400_000), B, addr(2)).unwrap();
    assert_eq!(switch.route(at(400_000), B), Route::Peer(1));
}

#[test]
fn unknown_senders_are_not_learned() {
    let mut switch = switch();
    assert_eq!(admit(&mut switch, B, 9), Err(AdmitError::Stranger));
    assert_eq!(route(&switch, B), Route::Flood);
}

#[test]
fn configured_mac_cannot_be_taken_over() {
    let mut switch = switch();
    for millis in [0, 1_000_000] {
        assert_eq!(switch.admit(at(millis), A, addr(2)), Err(AdmitError::ForeignMac));
        assert_eq!(switch.route(at(millis), A), Route::Peer(0));
    }
    assert_eq!(admit(&mut switch, A, 1), Ok(0));
    assert_eq!(switch.rows()[1].rx_foreign_mac, 2);
}

#[test]
fn sender_of_random_macs_evicts_only_its_own_entries() {
    let mut switch = switch();
    admit(&mut switch, B, 1).unwrap();
    let invented = |n: u16| {
        let [hi, lo] = n.to_be_bytes();
        MacAddr([6, 0, 0, 0, hi, lo])
    };
    for n in 0..10_000 {
        admit(&mut switch, invented(n), 2).unwrap();
        assert_eq!(route(&switch, invented(n)), Route::Peer(1), "the newest MAC is always in the table");
    }
    assert_eq!((switch.macs.len(), switch.macs.learned(Owner::Peer(1))), (MAX_LEARNED + 2, MAX_LEARNED));
    assert_eq!(route(&switch, invented(9_487)), Route::Flood, "the oldest entry was evicted");
    assert_eq!(route(&switch, B), Route::Peer(0), "the MAC of another peer is kept");
}

#[test]
fn removed_peer_loses_its_macs() {
    let mut switch = Switch::new(true, &[peer(1), peer(2), peer(3)]).unwrap();
    admit(&mut switch, A, 1).unwrap();
    admit(&mut switch, B, 3).unwrap();
    switch.remove(addr(1)).unwrap();
    assert_eq!(switch.remove(addr(1)), Err(PeerError::Unknown(addr(1))));
    assert_eq!((route(&switch, A), route(&switch, B)), (Route::Flood, Route::Peer(1)));
    assert_eq!(admit(&mut switch, A, 1), Err(AdmitError::Stranger));
    assert_eq!(admit(&mut switch, B, 3), Ok(1));
    switch.add(peer(1)).unwrap();
    assert_eq!(admit(&mut switch, A, 1), Ok(2));
    assert_eq!(switch.addr(2), Some(addr(1)));
}

#[test]
fn invalid_peers_are_rejected() {
    let mut switch = switch();
    let v6: SocketAddr = "[::1]:5".parse().unwrap();
    assert_eq!(switch.add(peer(2)), Err(PeerError::Known(addr(2))));
    assert_eq!(switch.add(UdpPeer::at(v6)), Err(PeerError::IpVersion(v6)));
    let duplicate = UdpPeer { mac: Some(A), ..peer(3) };
    assert_eq!(switch.add(duplicate), Err(PeerError::KnownMac(A, addr(1))));
    assert_eq!((switch.peer_count(), route(&switch, A)), (2, Route::Peer(0)));
    while switch.peer_count() < MAX_PEERS {
        switch.add(peer(1000 + u16::try_from(switch.peer_count()).unwrap())).unwrap();
    }
    assert_eq!(switch.add(peer(9)), Err(PeerError::TooMany));
}

#[test]
fn configured_mac_replaces_learned_one() {
    let mut switch = switch();
    admit(&mut switch, B, 1).unwrap();
    switch.add(UdpPeer { mac: Some(B), ..peer(3) }).unwrap();
    assert_eq!(route(&switch, B), Route::Peer(2));
    assert_eq!(switch.macs.learned(Owner::Peer(0)), 0);
}

#[test]
fn rate_limit_drops_excess_frames() {
    let limit = NonZeroU32::new(100);
    let mut switch =
        Switch::new(true, &[UdpPeer { max_frames_per_second: limit, ..peer(1) }, peer(2)]).unwrap();
    let admitted = (0..50).filter(|_| admit(&mut switch, A, 1).is_ok()).count();
    assert_eq!(admitted, 10);
    assert_eq!(admit(&mut switch, A, 1), Err(AdmitError::OverRate));
    assert!((0..50).all(|_| admit(&mut switch, B, 2).is_ok()));
    let rows = switch.rows();
    assert_eq!((rows[0].rx_frames, rows[0].rx_over_rate), (10, 41));
    assert_eq!((rows[1].rx_frames, rows[1].macs.clone()), (50, vec![B.to_string()]));
}

#[test]
fn frames_are_forwarded_only_from_or_to_leaves() {
    let leaf = |port| UdpPeer { leaf: true, ..peer(port) };
    let switch = Switch::new(true, &[peer(1), peer(2), leaf(3), leaf(4)]).unwrap();
    for (from, to, passes) in
        [(0, 1, false), (0, 2, true), (2, 0, true), (2, 3, true), (2, 2, false), (1, 0, false)]
    {
        assert_eq!(switch.passes(from, to), passes, "{from} to {to}");
    }
    assert!(switch.may_pass(0) && switch.may_pass(2));
    let mesh = Switch::new(true, &[peer(1), peer(2)]).unwrap();
    assert!(!mesh.may_pass(0));
    let one_nic = Switch::new(true, &[leaf(1)]).unwrap();
    assert!(!one_nic.may_pass(0));
}

fn found(port: u16, mac: Option<MacAddr>, name: &str) -> ResolvedPeer {
    ResolvedPeer { peer: UdpPeer { mac, ..peer(port) }, name: name.into() }
}

#[test]
fn unchanged_resolved_peers_keep_macs_and_counters() {
    let mut switch = switch();
    assert_eq!(switch.set_resolved(&[found(3, None, "lab"), found(4, None, "lab")]), []);
    admit(&mut switch, B, 4).unwrap();
    assert_eq!(switch.set_resolved(&[found(4, None, "lab"), found(5, None, "lab")]), []);
    assert_eq!(route(&switch, B), Route::Peer(2));
    let rows: Vec<_> =
        switch.rows().into_iter().map(|row| (row.addr.port(), row.name, row.rx_frames)).collect();
    let lab = || Some("lab".to_owned());
    assert_eq!(rows, [(1, None, 0), (2, None, 0), (4, lab(), 1), (5, lab(), 0)]);
    assert_eq!(admit(&mut switch, C, 3), Err(AdmitError::Stranger));

    assert_eq!(switch.set_resolved(&[]), []);
    assert_eq!(switch.peer_count(), 2);
    assert_eq!(route(&switch, B), Route::Flood);
}

#[test]
fn configured_peer_takes_precedence_over_resolved_one() {
    let mut switch = switch();
    assert_eq!(
        switch.set_resolved(&[found(1, None, "lab"), found(3, Some(A), "lab")]),
        [PeerError::KnownMac(A, addr(1))]
    );
    assert_eq!((switch.rows()[0].name.as_deref(), switch.peer_count()), (None, 2));
    switch.set_resolved(&[found(1, None, "lab")]);
    switch.remove(addr(1)).unwrap();
    assert_eq!(switch.set_resolved(&[found(1, None, "lab")]), []);
    assert_eq!(switch.remove(addr(1)), Err(PeerError::Resolved(addr(1))));
    let many: Vec<_> = (10..300).map(|port| found(port, None, "lab")).collect();
    assert_eq!(switch.set_resolved(&many).len(), 290 - (MAX_PEERS - 1));
}

#[test]
fn mac_of_absent_named_peer_stays_reserved() {
    let mut switch = Switch::new(true, &[peer(2)]).unwrap();
    admit(&mut switch, C, 2).unwrap();
    switch.reserve(C).unwrap();
    for millis in [0, 1_000_000] {
        assert_eq!(switch.admit(at(millis), C, addr(2)), Err(AdmitError::ForeignMac));
        assert!(!switch.admit_own(at(millis), C));
        assert_eq!(switch.route(at(millis), C), Route::Absent, "the only peer must not receive the frames");
    }
    assert_eq!(switch.add(UdpPeer { mac: Some(C), ..peer(3) }), Err(PeerError::NamedMac(C)));

    switch.set_resolved(&[found(4, Some(C), "lab")]);
    assert_eq!((admit(&mut switch, C, 4), route(&switch, C)), (Ok(1), Route::Peer(1)));
    switch.set_resolved(&[found(5, Some(C), "lab")]);
    assert_eq!((admit(&mut switch, C, 4), admit(&mut switch, C, 5)), (Err(AdmitError::Stranger), Ok(1)));
    switch.set_resolved(&[]);
    assert_eq!(route(&switch, C), Route::Absent);
    assert_eq!(switch.reserve(C), Ok(()));
    assert_eq!(
        Switch::new(true, &[UdpPeer { mac: Some(A), ..peer(1) }]).unwrap().reserve(A),
        Err(PeerError::KnownMac(A, addr(1)))
    );
}

#[test]
fn own_address_is_rejected_as_peer() {
    let own = |bound: &str| Switch::new(true, &[]).unwrap().with_bound(bound.parse().unwrap()).add(peer(7));
    for bound in ["127.0.0.1:7", "0.0.0.0:7"] {
        assert_eq!(own(bound), Err(PeerError::Own(addr(7))), "{bound}");
    }
    for bound in ["127.0.0.1:8", "127.0.0.2:7", "0.0.0.0:8"] {
        assert_eq!(own(bound), Ok(()), "{bound}");
    }
}
