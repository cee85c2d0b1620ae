//! Q counters that QPs increment (mlx5 interface, section 17.2).

use card::frontend::testing::{exchange, wait};
use protocol::hca::mlx5::capability::GeneralCaps;
use protocol::hca::mlx5::counter::{QCounters, QueryQCounter};
use protocol::hca::mlx5::qp::{ModifyQp, QpContext, Service};
use protocol::hca::mlx5::resource::CounterSetNumber;
use protocol::hca::mlx5::syndrome::Syndrome;
use protocol::hca::mlx5::transition::QpAttributes;
use protocol::hca::mlx5::wqe::{AtomicSegment, Opcode, Operation};
use protocol::ids::CounterSet;

use super::user::{User, request, syndromes};
use super::*;

fn alloc(user: &mut User) -> CounterSet {
    CounterSetNumber::parse(&output(&user.ok(&Command::AllocQCounter(BARE)))).set
}

/// Creates two connected QPs, each with its own counter set.
fn pair(service: Service) -> ([User; 2], [CounterSet; 2]) {
    let mut users = [User::new(1), User::new(2)];
    let sets = users.each_mut().map(alloc);
    for (user, (counter_set, lid)) in users.iter_mut().zip(sets.into_iter().zip([2, 1])) {
        user.connect(&QpContext { counter_set, ..user.context(service) }, lid);
    }
    (users, sets)
}

fn counters(user: &mut User, set: CounterSet) -> QCounters {
    let query = Command::QueryQCounter(QueryQCounter { clear: true, set });
    QCounters::parse(&output(&user.ok(&query)))
}

#[test]
fn rnr_nak_is_counted_on_both_sides() {
    let ([mut a, mut b], [set_a, set_b]) = pair(Service::Rc);
    a.post(&a.send(0, 8));
    exchange(&mut *a, &mut *b);
    assert_eq!(counters(&mut b, set_b), QCounters { out_of_buffer: 1, ..QCounters::default() });
    assert_eq!(counters(&mut a, set_a), QCounters::default(), "the retry is not due yet");
    b.post_recv(0, 64);
    wait(&mut a, &mut b);
    assert_eq!((syndromes(&a.reap()), syndromes(&b.reap())), (vec![0], vec![0]));
    assert_eq!(counters(&mut a, set_a), QCounters { rnr_nak_retry_err: 1, ..QCounters::default() });
    assert_eq!(counters(&mut b, set_b), QCounters::default());
}

/// The third timeout exceeds the limit of two retries and is not counted.
#[test]
fn timeouts_are_counted_while_retries_remain() {
    let ([mut a, mut b], [set_a, _]) = pair(Service::Rc);
    b.reset();
    a.post(&a.send(0, 8));
    wait(&mut a, &mut b);
    assert_eq!(syndromes(&a.reap()), [Syndrome::RetryExceeded.code()]);
    let expected = QCounters {
        local_ack_timeout_err: 2,
        req_transport_retries_exceeded: 1,
        req_cqe_error: 1,
        ..QCounters::default()
    };
    assert_eq!(counters(&mut a, set_a), expected);
}

#[test]
fn lost_packet_is_counted_on_both_sides() {
    let ([mut a, mut b], [set_a, set_b]) = pair(Service::Rc);
    for _ in 0..3 {
        b.post_recv(0, 64);
    }
    a.impair(r#"{"direction": "tx", "action": "drop", "nth": 1}"#);
    for _ in 0..3 {
        a.post(&a.send(0, 8));
    }
    wait(&mut a, &mut b);
    assert_eq!(syndromes(&a.reap()), [0; 3]);
    let received = counters(&mut b, set_b);
    assert_eq!(received, QCounters { out_of_sequence: received.out_of_sequence, ..QCounters::default() });
    assert_ne!(received.out_of_sequence, 0);
    assert_eq!(counters(&mut a, set_a), QCounters { packet_seq_err: 1, ..QCounters::default() });
}

#[test]
fn executed_requests_are_counted_by_operation() {
    let ([mut a, mut b], [set_a, set_b]) = pair(Service::Rc);
    let remote = a.remote(0x40);
    let write = request(Opcode::Write, Operation::Write(remote), a.data(0, 5000));
    let read = request(Opcode::Read, Operation::Read(remote), a.data(0, 64));
    let operands = AtomicSegment { swap_or_add: 1, compare: 0 };
    let atomic = request(Opcode::FetchAdd, Operation::Atomic(remote, operands), a.data(0, 8));
    b.post_recv(0x1000, 64);
    for wqe in [&write, &read, &write, &atomic, &a.send(0, 8), &write] {
        a.post(wqe);
    }
    exchange(&mut *a, &mut *b);
    assert_eq!(syndromes(&a.reap()), [0; 6]);
    let expected = QCounters {
        rx_write_requests: 3,
        rx_read_requests: 1,
        rx_atomic_requests: 1,
        ..QCounters::default()
    };
    assert_eq!(counters(&mut b, set_b), expected);
    assert_eq!(counters(&mut a, set_a), QCounters::default());
}

/// The acknowledgement is lost, and the requester retransmits the request.
#[test]
fn duplicate_request_is_counted() {
    let ([mut a, mut b], [_, set_b]) = pair(Service::Rc);
    b.impair(r#"{"direction": "tx", "action": "drop", "nth": 1}"#);
    let write = request(Opcode::Write, Operation::Write(a.remote(0x40)), a.data(0, 8));
    a.post(&write);
    wait(&mut a, &mut b);
    assert_eq!(syndromes(&a.reap()), [0]);
    let expected = QCounters { rx_write_requests: 1, duplicate_request: 1, ..QCounters::default() };
    assert_eq!(counters(&mut b, set_b), expected);
}

#[test]
fn error_completions_are_counted_by_status() {
    let ([mut a, mut b], [set_a, set_b]) = pair(Service::Rc);
    b.post_recv(0, 4);
    b.post_recv(0, 4);
    a.post(&a.send(0, 8));
    a.post(&a.send(0, 8));
    exchange(&mut *a, &mut *b);
    assert_eq!((a.reap().len(), b.reap().len()), (2, 2));
    let requester = QCounters {
        req_cqe_error: 2,
        req_remote_invalid_request: 1,
        req_cqe_flush_error: 1,
        ..QCounters::default()
    };
    assert_eq!(counters(&mut a, set_a), requester);
    let responder = QCounters {
        resp_cqe_error: 2,
        resp_local_length_error: 1,
        resp_cqe_flush_error: 1,
        ..QCounters::default()
    };
    assert_eq!(counters(&mut b, set_b), responder);
}

#[test]
fn uc_send_without_receive_is_counted() {
    let ([mut a, mut b], [_, set_b]) = pair(Service::Uc);
    a.post(&a.send(0, 8));
    exchange(&mut *a, &mut *b);
    assert_eq!(counters(&mut b, set_b).out_of_buffer, 1);
}

/// `rdma statistic qp bind` gives a QP that is in use a counter set of its own.
#[test]
fn rts2rts_changes_counter_set() {
    assert!(GeneralCaps::infiniband().rts2rts_counter_set);
    let ([mut a, mut b], [_, old]) = pair(Service::Rc);
    let counter_set = alloc(&mut b);
    let (optional, qpn) = (QpAttributes::COUNTER_SET, b.qpn);
    let context = QpContext { counter_set, ..QpContext::default() };
    b.ok(&Command::Rts2RtsQp(ModifyQp { qpn, optional, context }));
    a.post(&request(Opcode::Write, Operation::Write(a.remote(0x40)), a.data(0, 8)));
    exchange(&mut *a, &mut *b);
    assert_eq!(syndromes(&a.reap()), [0]);
    let expected = QCounters { rx_write_requests: 1, ..QCounters::default() };
    assert_eq!((counters(&mut b, counter_set), counters(&mut b, old)), (expected, QCounters::default()));
}
