//! Counters of Q counter sets that QPs increment (mlx5 interface, section 17.2).

use card::frontend::testing::{exchange, wait};
use protocol::hca::mlx5::counter::{QCounters, QueryQCounter};
use protocol::hca::mlx5::qp::{QpContext, Service};
use protocol::hca::mlx5::resource::CounterSetNumber;
use protocol::hca::mlx5::syndrome::Syndrome;
use protocol::ids::CounterSet;

use super::user::{User, syndromes};
use super::*;

/// Creates two connected QPs that name a counter set each.
fn pair(service: Service) -> ([User; 2], [CounterSet; 2]) {
    let mut users = [User::new(1), User::new(2)];
    let sets = users
        .each_mut()
        .map(|user| CounterSetNumber::parse(&output(&user.ok(&Command::AllocQCounter(BARE)))).set);
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
fn rnr_naks_count_as_retries_and_missing_buffers() {
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

/// The third timeout exceeds the limit of two retries, and so does not count.
#[test]
fn timeouts_count_while_retries_are_left() {
    let ([mut a, mut b], [set_a, _]) = pair(Service::Rc);
    b.reset();
    a.post(&a.send(0, 8));
    wait(&mut a, &mut b);
    assert_eq!(syndromes(&a.reap()), [Syndrome::RetryExceeded.code()]);
    assert_eq!(counters(&mut a, set_a), QCounters { local_ack_timeout_err: 2, ..QCounters::default() });
}

#[test]
fn lost_packet_counts_on_both_sides() {
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
fn datagrams_without_receive_are_counted() {
    let ([mut a, mut b], [_, set_b]) = pair(Service::Uc);
    a.post(&a.send(0, 8));
    exchange(&mut *a, &mut *b);
    assert_eq!(counters(&mut b, set_b).out_of_buffer, 1);
}
