//! Tests the packet counters per opcode, the number of QPs in each state, and the latencies of requests.

use crate::common::*;

#[test]
fn counts_opcodes_and_request_latency() {
    let mut pair = Pair::new();
    pair.post(A, write(1, 0x8000, 700));
    pair.lose(A, 2);
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1]));
    let (a, b) = (*pair.a.engine.stats(), *pair.b.engine.stats());
    let named = |counts: &engine::ByOpcode| counts.iter().collect::<Vec<_>>();
    let owned = |counts: &[(&str, u64)]| -> Vec<_> {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    };
    let sent: u64 = a.sent_opcodes.iter().map(|(_, count)| count).sum();
    assert_eq!(sent, a.sent_packets);
    // The last of three packets was lost and none has been acknowledged, so the timeout retransmits the message.
    assert_eq!(
        named(&a.sent_opcodes),
        owned(&[("RC RDMA WRITE First", 2), ("RC RDMA WRITE Middle", 2), ("RC RDMA WRITE Last", 2)])
    );
    assert_eq!(named(&a.received_opcodes), owned(&[("RC Acknowledge", a.received_packets)]));
    assert_eq!(named(&b.sent_opcodes), owned(&[("RC Acknowledge", b.sent_packets)]));
    assert_eq!(a.request_time.count, 1);
    assert_eq!(u128::from(a.request_time.sum_ns), TIMEOUT.as_nanos());
    assert_eq!(b.request_time.count, 0, "B has sent no requests");
}

#[test]
fn counts_queue_pairs_by_state() {
    let mut pair = Pair::new();
    let states = |pair: &Pair| *pair.a.engine.states();
    assert_eq!(states(&pair), engine::QpStates { rts: 1, ..Default::default() });
    pair.modify(A, engine::State::Sqd);
    assert_eq!(states(&pair), engine::QpStates { sqd: 1, ..Default::default() });
    pair.modify(A, engine::State::Rts);
    // A message that is longer than the receive buffer moves the sender's QP to ERR.
    pair.post_recv(B, 1, 0, 8);
    pair.post(A, send(1, 16));
    pair.flow();
    assert_eq!(states(&pair), engine::QpStates { err: 1, ..Default::default() });
    pair.a.engine.destroy_qp(A.qpn());
    assert_eq!(states(&pair), engine::QpStates::default());
    pair.a.engine.destroy_qp(A.qpn());
    pair.a.engine.create_qp(A.qpn(), attrs(A)).unwrap();
    pair.a.engine.create_qp(A.qpn(), attrs(A)).unwrap_err();
    assert_eq!(states(&pair), engine::QpStates { reset: 1, ..Default::default() });
}
