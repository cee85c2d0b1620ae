//! Records sessions and then replays them without a driver.

use card::frontend::Interface as _;
use card::frontend::testing::{pattern, wait};
use card::hca::Hca;
use card::identity::Identity;
use card::net::address::Addresses;
use card::replay::testing::{assert_same, recorded};
use drivers::e810::queue_pair::{fragment, gather};
use protocol::ids::{Lid, MacAddr};

use super::super::options::Options;
use super::super::{E810, Setup};
use super::rdma::{Pair, QPN, RECV_CQ, SEND, SEND_CQ, SIGNALED, SOURCE, TARGET, mac};

/// Creates a device like those in [`Pair`], in its power-on state.
fn device(mac: MacAddr) -> Hca<E810> {
    let own = Identity { mac, ..Identity::from_lid(Lid::new(1)) };
    let addresses = Addresses { own, peers: Vec::new(), default_peer: None };
    let options = Options { rdma: true, ..Options::default() };
    Hca::new(E810::new(Setup { options, mac, engine: engine::Config::default() }), addresses, None)
}

/// Sends messages over a connection with packet loss and delay.
fn session() {
    let mut pair = Pair::connected();
    for (side, seed) in [(&mut pair.a, 1), (&mut pair.b, 2)] {
        side.bus.impair(&format!(
            r#"{{"direction": "tx", "action": "drop", "probability": 0.2, "seed": {seed}}}"#
        ));
        side.bus.impair(&format!(
            r#"{{"direction": "rx", "action": {{"delay": {{"us": 5, "jitter_us": 100}}}}, "probability": 0.2, "seed": {seed}}}"#
        ));
    }
    for round in 0..30 {
        let data = pattern(4000, round);
        pair.a.poke(SOURCE, &data);
        pair.b.post_receive(QPN, &[fragment(TARGET, 0, 8192)]);
        pair.a.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0, 4000)]));
        wait(&mut pair.a.bus, &mut pair.b.bus);
        assert_eq!(pair.b.peek(TARGET, 4000), data);
        assert!(pair.a.poll_cq(SEND_CQ).is_some() && pair.b.poll_cq(RECV_CQ).is_some());
    }
    assert!(
        pair.a.bus.hca.engine_stats().recovery.retransmitted_packets > 0,
        "packets must have been lost and retransmitted"
    );
}

#[test]
fn replay_of_lossy_session_is_exact() {
    for (id, record) in (1..).zip(&recorded(session)) {
        let counts = assert_same(&mut device(mac(id)), record);
        assert!(counts.reads > 50 && counts.writes > 50 && counts.frames > 20, "{counts:?}");
    }
}
