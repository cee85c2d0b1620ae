//! Tests `hcad` processes that find each other through DNS, in the default sandbox. The tests provide the name server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use crate::common::dns::NameServer;
use crate::common::machine::{Machine, exchange, write_message};
use crate::common::{PORT, loopback, until};
use serde_json::{Value, json};

fn at(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, PORT)
}

/// Starts a daemon with the device `id` at `ip`.
fn start(id: u16, ip: IpAddr, peers: &Value, server: &NameServer) -> Machine {
    let fabric = json!({ "udp": { "bind": at(ip), "peers": peers } });
    Machine::start(id, &fabric, &[("dns", json!({ "servers": [server.addr] }))])
}

fn peers(machine: &Machine) -> BTreeSet<(SocketAddr, String)> {
    let rows = machine.ask(&["peer", "list"]);
    let row = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
        (text("addr").parse().unwrap(), text("name"))
    };
    rows.as_array().unwrap().iter().map(row).collect()
}

fn wait_for_peers(machine: &Machine, wanted: &[(IpAddr, &str)]) {
    let wanted = wanted.iter().map(|(ip, name)| (at(*ip), (*name).to_owned())).collect();
    until("peers found in DNS", || (peers(machine) == wanted).then_some(()));
}

/// The transfers between two devices. Changes to a third device must not disturb them.
struct Traffic<'a> {
    from: &'a mut Machine,
    to: &'a mut Machine,
    messages: u32,
}

impl Traffic<'_> {
    /// Transfers and verifies messages until `is_done` returns true.
    fn run_until(&mut self, what: &str, mut is_done: impl FnMut(&mut Machine) -> bool) {
        until(what, || {
            write_message(self.from, self.to, 0, self.messages);
            self.messages += 1;
            is_done(self.from).then_some(())
        });
    }

    /// Returns the number of frames that the sender has received from a peer.
    fn frames_from(&self, ip: IpAddr) -> u64 {
        let rows = self.from.ask(&["peer", "list"]);
        let row = rows.as_array().unwrap().iter().find(|row| row["addr"] == json!(at(ip))).unwrap();
        row["rx_frames"].as_u64().unwrap()
    }
}

#[test]
fn other_traffic_continues_while_dns_changes() {
    const SERVICE: &str = "_hcad._udp.lab.test";
    let [a_ip, b_ip, c_ip, new_ip] = [1, 2, 3, 4].map(|host| loopback(1, host));
    let names @ [a_name, b_name, c_name] = ["a.lab.test.", "b.lab.test.", "c.lab.test."];
    let server = NameServer::start();
    server.set_targets(SERVICE, &names.map(|name| (name, PORT)));
    for (name, ip) in [(a_name, a_ip), (b_name, b_ip), (c_name, c_ip)] {
        server.set_hosts(name.trim_end_matches('.'), &[ip]);
    }
    let entries = json!([{ "addr": SERVICE }]);
    let mut a = start(1, a_ip, &entries, &server);
    let mut b = start(2, b_ip, &entries, &server);
    let c = start(3, c_ip, &entries, &server);
    wait_for_peers(&a, &[(b_ip, b_name), (c_ip, c_name)]);
    wait_for_peers(&b, &[(a_ip, a_name), (c_ip, c_name)]);
    a.connect(0, 2);
    b.connect(0, 1);
    let mut traffic = Traffic { from: &mut a, to: &mut b, messages: 0 };
    traffic.run_until("frames from the peer", |a| a.fabric("rx_frames") > 0);
    let before = traffic.frames_from(b_ip);

    // Kill the third daemon and remove its name. The name is later added again with a different address.
    c.signal(libc::SIGKILL);
    drop(c);
    server.set_hosts("c.lab.test", &[]);
    let without = BTreeSet::from([(at(b_ip), b_name.to_owned())]);
    traffic.run_until("departure of the third peer", |a| peers(a) == without);
    let stranger = UdpSocket::bind(at(c_ip)).unwrap();
    stranger.send_to(&[0; 64], at(a_ip)).unwrap();
    traffic.run_until("a dropped frame from the old address", |a| a.fabric("rx_stranger") == 1);
    server.set_hosts("c.lab.test", &[new_ip]);
    let with = BTreeSet::from([(at(b_ip), b_name.to_owned()), (at(new_ip), c_name.to_owned())]);
    traffic.run_until("return of the third peer", |a| peers(a) == with);
    let mut c = start(3, new_ip, &entries, &server);
    wait_for_peers(&c, &[(a_ip, a_name), (b_ip, b_name)]);
    traffic.from.connect(1, 3);
    c.connect(1, 1);
    exchange(traffic.from, &mut c, 1);

    // The name server fails for a while. The devices keep using its last answers.
    server.set_failing(true);
    traffic.run_until("failed lookups", |_| server.failed() > 20);
    assert_eq!(peers(traffic.from), with);
    server.set_failing(false);
    let old = BTreeSet::from([(at(b_ip), b_name.to_owned())]);
    server.set_targets(SERVICE, &[(a_name, PORT), (b_name, PORT)]);
    traffic.run_until("a new answer after the failures", |a| peers(a) == old);
    assert!(traffic.frames_from(b_ip) > before, "the counters of the remaining peer must not be reset");

    let log = &mut traffic.from.daemon;
    let found = log.wait_for_line("peers found in DNS");
    assert!(found.contains("hca1"), "{found}");
    for text in [
        format!(
            "peers left: DNS no longer has their addresses device=\"hca1\" count=1 peers=\"{} ({c_name})\"",
            at(c_ip)
        ),
        format!("peers found in DNS device=\"hca1\" count=1 peers=\"{} ({c_name})\"", at(new_ip)),
        format!(
            "cannot look up a peer in DNS; keeping its last known addresses device=\"hca1\" name=\"{SERVICE}\""
        ),
    ] {
        log.wait_for_line(&text);
    }
    let mut until_recovered = String::new();
    while !until_recovered
        .contains(&format!("DNS lookup of a peer works again device=\"hca1\" name=\"{SERVICE}\""))
    {
        until_recovered += &log.wait_for_line("");
    }
    let again = format!(
        "cannot look up a peer in DNS; keeping its last known addresses device=\"hca1\" name=\"{SERVICE}\""
    );
    assert!(!until_recovered.contains(&again), "the failure must be logged only once:\n{until_recovered}");
}

/// Returns a broadcast frame from device `from`.
fn broadcast_from(from: u8) -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, from], &[0x88; 48]].concat()
}

#[test]
fn peer_identity_follows_its_dns_name() {
    let [own, other, first, second] = [1, 2, 3, 4].map(|host| loopback(2, host));
    let server = NameServer::start();
    let entries = json!([{ "addr": format!("b.lab.test:{PORT}"), "id": 2 }, { "addr": at(other) }]);
    let machine = start(1, own, &entries, &server);
    let rejected = |count| {
        until("frames with another peer's MAC", || (machine.fabric("rx_foreign_mac") == count).then_some(()));
    };
    let received = |from: IpAddr, count: u64| {
        until("frames from the named peer", || {
            let rows = machine.ask(&["peer", "list"]);
            let row = rows.as_array().unwrap().iter().find(|row| row["addr"] == json!(at(from)))?;
            (row["rx_frames"] == count).then_some(())
        });
    };
    let [other, first_socket, second_socket] =
        [other, first, second].map(|ip| UdpSocket::bind(at(ip)).unwrap());
    let send = |socket: &UdpSocket| socket.send_to(&broadcast_from(2), at(own)).unwrap();

    // The MAC of device 2 is reserved even before its name has an address.
    send(&other);
    rejected(1);
    server.set_hosts("b.lab.test", &[first]);
    until("the named peer", || (peers(&machine).len() == 2).then_some(()));
    send(&first_socket);
    received(first, 1);
    send(&other);
    rejected(2);
    // The identity moves with the name.
    server.set_hosts("b.lab.test", &[second]);
    until("the moved peer", || peers(&machine).contains(&(at(second), "b.lab.test".into())).then_some(()));
    send(&second_socket);
    received(second, 1);
    send(&first_socket);
    until("a dropped frame from the old address", || (machine.fabric("rx_stranger") == 1).then_some(()));
}

#[test]
fn long_dns_answer_is_received_over_tcp_in_sandbox() {
    let own = loopback(3, 1);
    let server = NameServer::start();
    let all: Vec<_> =
        (1..=100).map(|host| IpAddr::from(Ipv4Addr::new(192, 0, 2, host))).chain([own]).collect();
    server.set_hosts("all.lab.test", &all);
    let machine = start(1, own, &json!([{ "addr": format!("all.lab.test:{PORT}") }]), &server);
    let wanted: Vec<_> = all.iter().filter(|ip| **ip != own).map(|ip| (*ip, "all.lab.test")).collect();
    wait_for_peers(&machine, &wanted);
    assert!(server.over_tcp() > 0);
}
