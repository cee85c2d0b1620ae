//! Tests of how failures are reported: asynchronous events, QP states and flush completions (E810 interface, sections
//! 14.1 and 14.2).

use drivers::e810::queue_pair::{gather, inline};
use protocol::hca::e810::rdma::queue_pair::{DestroyQp, FlushQp, SuspendQp};

use super::*;

/// Moves the queue pair to the error state and flushes both queues with major code 1, as a driver does. Returns the
/// minor code in the flush operation's completion.
fn flush(driver: &mut Driver, sq_minor: u16, rq_minor: u16) -> u16 {
    assert_eq!(driver.modify_qp(QPN, QpKind::Rc, QpState::Error, &context(1)).error, None);
    request_flush(driver, sq_minor, rq_minor)
}

/// Flushes both queues without changing the state of the queue pair.
fn request_flush(driver: &mut Driver, sq_minor: u16, rq_minor: u16) -> u16 {
    let command = FlushQp {
        rq_minor,
        rq_major: 1,
        sq_minor,
        sq_major: 1,
        qpn: QPN,
        codes_valid: true,
        sq: true,
        rq: true,
        ..FlushQp::default()
    };
    let performed = driver.perform(&Operation::FlushQp(command));
    assert_eq!(performed.error, None);
    performed.completion.unwrap().codes.minor
}

/// Returns the error flag and the major and minor codes of each completion in a CQ.
fn codes(driver: &mut Driver, cqn: Cqn) -> Vec<(bool, u16, u16)> {
    std::iter::from_fn(|| driver.poll_cq(cqn))
        .map(|Polled { cqe, .. }| (cqe.error, cqe.major, cqe.minor))
        .collect()
}

#[test]
fn invalid_lkey_raises_event_without_completion() {
    let mut pair = Pair::connected();
    let bad = pair.a.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0x1234_5600, 64)]));
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1]));
    pair.settle();
    assert_eq!(failure(&mut pair.a, 1), (0x102, 5, bad));
    assert_eq!(pair.a.poll_cq(SEND_CQ), None, "the error itself must not produce a CQE");
    nothing(&mut pair.b);
    flush(&mut pair.a, 2, 1);
    assert_eq!(codes(&mut pair.a, SEND_CQ), [(true, 1, 2)], "one CQE must flush the whole queue");
    assert_eq!(codes(&mut pair.a, RECV_CQ), [], "an empty receive queue must not produce a CQE");
}

#[test]
fn flush_reports_which_queues_had_requests() {
    for (sends, receives, code) in [(0, 0, 0), (0, 1, 2), (1, 0, 3), (2, 3, 4)] {
        let mut pair = Pair::connected();
        assert_eq!(flush(&mut pair.a, 1, 1), 0);
        for _ in 0..sends {
            pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1]));
        }
        for _ in 0..receives {
            pair.a.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
        }
        assert_eq!(flush(&mut pair.a, 1, 1), code);
        assert_eq!(flush(&mut pair.a, 1, 1), 0, "a second flush must find no requests");
    }
}

#[test]
fn flushing_empty_queues_does_not_write_cqe() {
    let mut pair = Pair::connected();
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1]));
    pair.settle();
    pair.sent();
    pair.received();
    for driver in [&mut pair.a, &mut pair.b] {
        flush(driver, 1, 1);
        nothing(driver);
    }
    // If software itself moved the queue pair to the error state, it flushes again after each post.
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1]));
    pair.a.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    pair.settle();
    nothing(&mut pair.a);
    flush(&mut pair.a, 1, 1);
    assert_eq!(codes(&mut pair.a, SEND_CQ), [(true, 1, 1)]);
    assert_eq!(codes(&mut pair.a, RECV_CQ), [(true, 1, 1)]);
    flush(&mut pair.a, 1, 1);
    nothing(&mut pair.a);
}

/// Polling interval of queue pairs in the error state.
const PERIOD_US: u64 = 10_000;

/// The kernel itself completes WQEs that it posts to a flushed queue pair, and may destroy the queue pair at any time.
/// The device therefore must not complete such WQEs. Kernel queue pairs, such as this one, are privileged.
#[test]
fn late_requests_on_kernel_qp_are_not_flushed() {
    let mut pair = Pair::connected();
    flush(&mut pair.a, 1, 1);
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1]));
    pair.a.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    wait_us(&mut pair, PERIOD_US);
    nothing(&mut pair.a);
}

/// IBTA volume 1, section 10.3.1.8: requests posted in the error state complete as flushed, even if software does not
/// request another flush. The device completes such requests only on unprivileged queue pairs.
#[test]
fn requests_posted_in_error_state_are_flushed() {
    let mut pair = Pair::new(QpKind::Rc, |context| context.privileged = false);
    pair.a.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0x1234_5600, 64)]));
    pair.settle();
    assert_eq!(failure(&mut pair.a, 1).0, 0x102);
    // The driver has not flushed yet. The device waits for the driver to flush, since the first flush CQE must report
    // the cause.
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1]));
    wait_us(&mut pair, PERIOD_US);
    nothing(&mut pair.a);
    flush(&mut pair.a, 2, 1);
    assert_eq!(codes(&mut pair.a, SEND_CQ), [(true, 1, 2)], "one CQE must flush both requests");
    for posted in [1, 3, 5] {
        for _ in 0..posted {
            pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1; 100]));
            pair.a.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
        }
        wait_us(&mut pair, PERIOD_US);
        assert_eq!(codes(&mut pair.a, SEND_CQ), [(true, 1, 1)], "one CQE must flush {posted} sends");
        assert_eq!(codes(&mut pair.a, RECV_CQ), [(true, 1, 1)], "one CQE must flush {posted} receives");
        wait_us(&mut pair, PERIOD_US);
        nothing(&mut pair.a);
    }
    // No WQE is left, so another flush does not write a CQE.
    flush(&mut pair.a, 1, 1);
    nothing(&mut pair.a);
    pair.a.perform_well(&Operation::DestroyQp(DestroyQp { qpn: QPN, ..DestroyQp::default() }));
    wait_us(&mut pair, PERIOD_US);
    nothing(&mut pair.a);
}

/// Key of a region for the receives of an unprivileged queue pair.
const RECEIVES: u32 = 0x6cdb_0e07;

/// Returns a pair whose queue pair at `b` is unprivileged, has one receive, and is moved to SQD and flushed as irdma
/// does it.
fn flushed_in_sqd() -> Pair {
    let mut pair = Pair::new(QpKind::Rc, |context| context.privileged = false);
    register(&mut pair.b, RECEIVES, TARGET, 0x1000, StagRights::all());
    pair.b.post_receive(QPN, &[fragment(TARGET, RECEIVES, 64)]);
    move_b(&mut pair, QpState::Sqd);
    assert_eq!(pair.b.next_async_event().map(|event| u16::from(event.code)), Some(0x900));
    assert_eq!(request_flush(&mut pair.b, 1, 1), 0, "no request is flushed");
    pair
}

fn move_b(pair: &mut Pair, state: QpState) {
    let unprivileged = QpContext { privileged: false, ..context(2) };
    assert_eq!(pair.b.modify_qp(QPN, QpKind::Rc, state, &unprivileged).error, None);
}

/// IBTA volume 1, section 10.3.1: in SQD, receives are processed as in RTS, and posted sends wait for RTS.
#[test]
fn flush_in_sqd_keeps_requests() {
    let mut pair = flushed_in_sqd();
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1; 8]));
    pair.b.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1; 8]));
    assert_eq!(request_flush(&mut pair.b, 1, 1), 0);
    pair.settle();
    assert_eq!((pair.sent().error, pair.received().cqe.len), (false, 8));
    move_b(&mut pair, QpState::Rts);
    register(&mut pair.a, RECEIVES, TARGET, 0x1000, StagRights::all());
    pair.a.post_receive(QPN, &[fragment(TARGET, RECEIVES, 64)]);
    wait_us(&mut pair, PERIOD_US);
    pair.settle();
    assert_eq!((only(&mut pair.b, SEND_CQ).cqe.error, only(&mut pair.a, RECV_CQ).cqe.len), (false, 8));
    nothing(&mut pair.b);
}

/// Section 14.2: irdma itself completes the requests of a privileged queue pair after a flush, even in SQD. The device
/// must neither execute nor complete them later.
#[test]
fn kernel_qp_flush_in_sqd_discards_requests() {
    let mut pair = Pair::connected();
    let sqd = pair.b.modify_qp(QPN, QpKind::Rc, QpState::Sqd, &context(2));
    assert_eq!(sqd.error, None);
    assert_eq!(pair.b.next_async_event().map(|event| u16::from(event.code)), Some(0x900));
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    pair.b.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1; 8]));
    assert_eq!(request_flush(&mut pair.b, 1, 1), 4, "both queues had requests");
    assert_eq!(codes(&mut pair.b, SEND_CQ), [(true, 1, 1)]);
    assert_eq!(codes(&mut pair.b, RECV_CQ), [(true, 1, 1)]);

    pair.a.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    assert_eq!(pair.b.modify_qp(QPN, QpKind::Rc, QpState::Rts, &context(2)).error, None);
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1; 8]));
    pair.settle();
    nothing(&mut pair.a);
    nothing(&mut pair.b);
    assert_eq!(pair.b.modify_qp(QPN, QpKind::Rc, QpState::Error, &context(2)).error, None);
    wait_us(&mut pair, PERIOD_US);
    nothing(&mut pair.b);
}

/// Section 14.2: irdma does not flush a queue pair again that it has flushed in SQD.
#[test]
fn qp_flushed_in_sqd_is_flushed_on_error() {
    let fail: [fn(&mut Pair); 3] = [
        |pair| move_b(pair, QpState::Error),
        |pair| {
            move_b(pair, QpState::Rts);
            move_b(pair, QpState::Error);
        },
        |pair| {
            move_b(pair, QpState::Rts);
            pair.b.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0x1234_5600, 64)]));
            pair.settle();
            assert_eq!(failure(&mut pair.b, 2).0, 0x102);
        },
    ];
    for (sends, fail) in [0, 0, 1].into_iter().zip(fail) {
        let mut pair = flushed_in_sqd();
        fail(&mut pair);
        wait_us(&mut pair, PERIOD_US);
        assert_eq!(codes(&mut pair.b, RECV_CQ), [(true, 1, 1)]);
        assert_eq!(codes(&mut pair.b, SEND_CQ), vec![(true, 1, 1); sends]);
    }
}

/// The failed receive still counts as posted. It completes when software flushes the queue.
#[test]
fn oversized_message_fails_both_sides() {
    let mut pair = Pair::connected();
    let receive = pair.b.post_receive(QPN, &[fragment(TARGET, 0, 16)]);
    let send = pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1; 64]));
    pair.settle();
    assert_eq!(failure(&mut pair.b, 2), (0x303, 1, receive));
    assert_eq!(failure(&mut pair.a, 1), (0x208, 5, send));
    flush(&mut pair.b, 1, 6);
    assert_eq!(codes(&mut pair.b, RECV_CQ), [(true, 1, 6)]);
    flush(&mut pair.a, 10, 1);
    assert_eq!(codes(&mut pair.a, SEND_CQ), [(true, 1, 10)]);
}

#[test]
fn invalid_receive_lkey_fails_both_sides() {
    let mut pair = Pair::connected();
    let receive = pair.b.post_receive(QPN, &[fragment(TARGET, 0x1234_5600, 64)]);
    let send = pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1; 64]));
    pair.settle();
    assert_eq!(failure(&mut pair.b, 2), (0x102, 1, receive));
    assert_eq!(failure(&mut pair.a, 1), (0x20e, 5, send));
}

#[test]
fn invalid_rkey_fails_both_sides() {
    for operation in [WRITE, READ] {
        let mut pair = Pair::connected();
        let bad = 0x9999_9900;
        let wqe = gather(SIGNALED | operation | bad, TARGET, None, &[fragment(SOURCE, 0, 64)]);
        let request = pair.a.post_send(QPN, &wqe);
        pair.settle();
        assert_eq!(failure(&mut pair.b, 2), (0x102, 9, 0));
        assert_eq!(failure(&mut pair.a, 1), (0x20d, 5, request));
    }
}

#[test]
fn unknown_and_disabled_operations_fail_qp() {
    for (control, change, code) in [
        (SIGNALED | 0x02 << 32, None, 0x20a),
        (SIGNALED | 0x0f << 32, None, 0x20a),
        (SIGNALED | READ, Some(0), 0x205),
    ] {
        let mut pair = Pair::new(QpKind::Rc, |context| context.ord = change.unwrap_or(4));
        let request = pair.a.post_send(QPN, &gather(control, TARGET, None, &[fragment(SOURCE, 0, 64)]));
        pair.settle();
        assert_eq!(failure(&mut pair.a, 1), (code, 5, request));
    }
}

#[test]
fn earlier_failure_is_reported_before_rejected_request() {
    let mut pair = Pair::connected();
    let wqe = |control| gather(SIGNALED | control, TARGET, None, &[fragment(SOURCE, 0, 64)]);
    let first = pair.a.post_send(QPN, &wqe(WRITE | 0x9999_9900));
    pair.a.post_send(QPN, &wqe(0x02 << 32));
    pair.settle();
    assert_eq!(failure(&mut pair.b, 2), (0x102, 9, 0));
    assert_eq!(failure(&mut pair.a, 1), (0x20d, 5, first));
}

/// Section 14.1, code 0x316: the peer sends a response that belongs to another request.
#[test]
fn wrong_response_length_fails_qp() {
    const KEY: u32 = 0x6cdb_0e07;
    let read = |len| gather(SIGNALED | READ | u64::from(KEY), TARGET, None, &[fragment(SOURCE, 0, len)]);
    let [mut pair, mut other] = [Pair::connected(), Pair::connected()];
    register(&mut other.b, KEY, TARGET, 0x1000, StagRights::all());
    let request = pair.a.post_send(QPN, &read(64));
    assert_eq!(pair.a.bus.settle().len(), 1);
    other.a.post_send(QPN, &read(32));
    other.a.bus.settle().iter().for_each(|frame| other.b.bus.hca.handle_frame(frame));
    let answer = other.b.bus.settle();
    assert_eq!(answer.len(), 1);
    answer.iter().for_each(|frame| pair.a.bus.hca.handle_frame(frame));
    assert_eq!(pair.a.bus.settle().len(), 0);
    assert_eq!(failure(&mut pair.a, 1), (0x316, 5, request));
    assert_eq!(pair.a.poll_cq(SEND_CQ), None, "the error itself must not produce a CQE");
}

/// Section 13.2: the timeout is initially 16.8 ms and doubles with each of seven retries.
#[test]
fn unanswered_send_fails_after_eight_timeouts() {
    let mut pair = Pair::connected();
    let send = pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1]));
    let mut silence = std::time::Duration::from_nanos(4096 << 12);
    for _ in 0..8 {
        assert_eq!(pair.a.bus.settle().len(), 1, "one packet must be sent before the {silence:?} timeout");
        nothing(&mut pair.a);
        let later = pair.a.bus.now + silence;
        pair.a.bus.advance(later);
        silence *= 2;
    }
    assert_eq!(pair.a.bus.settle().len(), 0);
    assert_eq!(failure(&mut pair.a, 1), (0x50a, 5, send));
}

#[test]
fn rnr_retries_stop_at_limit() {
    let mut pair = Pair::new(QpKind::Rc, |context| context.rnr_retry = 2);
    let send = pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1]));
    for wait in [640, 2560] {
        pair.settle();
        nothing(&mut pair.a);
        wait_us(&mut pair, wait);
    }
    pair.settle();
    assert_eq!(failure(&mut pair.a, 1), (0x50f, 5, send));
    nothing(&mut pair.b);
}

fn wait_us(pair: &mut Pair, us: u64) {
    let later = pair.a.bus.now + std::time::Duration::from_micros(us);
    pair.a.bus.advance(later);
    pair.b.bus.advance(later);
}

/// Section 13.2: `rdma_cm` connections set an RNR timer of 655 ms, but the context has no field for it. Instead, the
/// device sends a timer that grows with each RNR NAK, so that five retries cover more than 200 ms.
#[test]
fn receive_posted_200_ms_late_succeeds() {
    let mut pair = Pair::new(QpKind::Rc, |context| context.rnr_retry = 5);
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1; 8]));
    for wait in [640, 2560, 10_240, 40_960] {
        pair.settle();
        wait_us(&mut pair, wait);
    }
    pair.settle();
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    wait_us(&mut pair, 163_840);
    pair.settle();
    assert_eq!((pair.sent().error, pair.received().cqe.len), (false, 8));
}

#[test]
fn invalid_datagram_fails_locally() {
    let to = u64::from(QPN.get()) << 32 | 0x1111_1111;
    for (change, len, code) in [
        (None, 64, 0x406),
        (Some(handle(1)), 1025, 0x132),
        (Some(AddressHandleCommand { pd_low: 7, ..handle(1) }), 64, 0x133),
    ] {
        let mut pair = Pair::new(QpKind::Ud, |_| {});
        if let Some(command) = change {
            pair.a.perform_well(&Operation::CreateAddressHandle(command));
        }
        let send = pair.a.post_send(QPN, &gather(SIGNALED | SEND | 1, to, None, &[fragment(SOURCE, 0, len)]));
        pair.settle();
        assert_eq!(failure(&mut pair.a, 1), (code, 5, send));
        nothing(&mut pair.b);
    }
}

fn suspend(driver: &mut Driver) {
    driver.perform_well(&Operation::SuspendQp(SuspendQp { qpn: QPN, ..SuspendQp::default() }));
}

/// Sections 10.3 (operations 29 and 2A) and 13.3 define suspend and resume.
#[test]
fn suspended_qp_reports_event_and_can_resume() {
    let mut pair = Pair::connected();
    suspend(&mut pair.a);
    let event = pair.a.next_async_event().unwrap();
    assert_eq!((u16::from(event.code), event.state), (0x900, QpState::Rts));
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1; 8]));
    pair.settle();
    nothing(&mut pair.b);
    pair.a.perform_well(&Operation::ResumeQp(SuspendQp { qpn: QPN, ..SuspendQp::default() }));
    pair.settle();
    assert_eq!((pair.sent().error, pair.received().cqe.len), (false, 8));
}

/// Section 14.4: irdma expects the event of each suspended QP, even if an outstanding request fails later.
#[test]
fn suspended_event_precedes_failure_of_outstanding_send() {
    let mut pair = Pair::connected();
    let send = pair
        .a
        .post_send(QPN, &gather(SIGNALED | WRITE | 0x9999_9900, TARGET, None, &[fragment(SOURCE, 0, 64)]));
    assert_eq!(pair.a.bus.settle().len(), 1);
    suspend(&mut pair.a);
    let event = pair.a.next_async_event().unwrap();
    assert_eq!((u16::from(event.code), event.state), (0x900, QpState::Rts));
    let later = pair.a.bus.now + std::time::Duration::from_secs(1);
    pair.a.bus.advance(later);
    pair.settle();
    assert_eq!(failure(&mut pair.a, 1), (0x20d, 5, send));
}

/// Section 13.3: a move to SQD raises an event when the send queue has drained, even if the QP is suspended.
#[test]
fn suspended_qp_reports_drained_send_queue() {
    for is_outstanding in [false, true] {
        let mut pair = Pair::connected();
        pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
        if is_outstanding {
            pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1; 8]));
            assert_eq!(pair.a.bus.settle().len(), 1);
        }
        suspend(&mut pair.a);
        assert_eq!(pair.a.next_async_event().map(|event| u16::from(event.code)), Some(0x900));
        assert_eq!(pair.a.modify_qp(QPN, QpKind::Rc, QpState::Sqd, &context(1)).error, None);
        assert_eq!(pair.a.next_async_event().is_none(), is_outstanding, "the send queue must have drained");
        if is_outstanding {
            let later = pair.a.bus.now + std::time::Duration::from_secs(1);
            pair.a.bus.advance(later);
            pair.settle();
            let event = pair.a.next_async_event().unwrap();
            assert_eq!((u16::from(event.code), event.state), (0x900, QpState::Sqd));
            assert!(!pair.sent().error);
        }
    }
}

#[test]
fn rejects_invalid_state_transitions() {
    let mut pair = Pair::connected();
    for state in [QpState::Rtr, QpState::Idle, QpState::Other(7)] {
        let refused = pair.a.modify_qp(QPN, QpKind::Rc, state, &context(1)).error;
        assert_eq!(refused.map(|codes| (codes.major, codes.minor)), Some((0xffff, 0x8002)), "{state:?}");
    }
}

/// Section 14.1: the event code specifies why the peer's request was rejected.
#[test]
fn denied_access_fails_both_sides() {
    const KEY: u32 = 0x6cdb_0e07;
    let readable = StagRights::LOCAL_READ | StagRights::REMOTE_READ;
    for (rights, at, wrong_domain, code) in [
        (readable, TARGET, false, 0x109),
        (StagRights::all(), TARGET + 0x1000 - 63, false, 0x108),
        (StagRights::all(), TARGET, true, 0x105),
    ] {
        let mut pair = Pair::new(QpKind::Rc, |context| context.pd_low = if wrong_domain { 7 } else { 6 });
        register(&mut pair.b, KEY, TARGET, 0x1000, rights);
        let wqe = gather(SIGNALED | WRITE | u64::from(KEY), at, None, &[fragment(SOURCE, 0, 64)]);
        let request = pair.a.post_send(QPN, &wqe);
        pair.settle();
        assert_eq!(failure(&mut pair.b, 2), (code, 9, 0));
        assert_eq!(failure(&mut pair.a, 1), (0x20d, 5, request));
        assert_eq!(pair.b.peek(TARGET, 64), [0; 64]);
    }
}

/// Section 13.2: in addition to the key's rights, a WRITE requires bit 20 of the context and a READ requires bit 21.
#[test]
fn qp_access_flags_restrict_key_rights() {
    const KEY: u32 = 0x6cdb_0e07;
    for operation in [WRITE, READ] {
        let mut pair = Pair::new(QpKind::Rc, |context| {
            (context.remote_write, context.remote_read) = (false, false);
        });
        register(&mut pair.b, KEY, TARGET, 0x1000, StagRights::all());
        let wqe = gather(SIGNALED | operation | u64::from(KEY), TARGET, None, &[fragment(SOURCE, 0, 64)]);
        let request = pair.a.post_send(QPN, &wqe);
        pair.settle();
        assert_eq!(failure(&mut pair.b, 2), (0x312, 9, 0));
        assert_eq!(failure(&mut pair.a, 1), (0x208, 5, request));
    }
}

#[test]
fn undeliverable_datagram_is_dropped() {
    let mut pair = Pair::new(QpKind::Ud, |_| {});
    pair.a.perform_well(&Operation::CreateAddressHandle(handle(1)));
    let to = |qkey: u64| u64::from(QPN.get()) << 32 | qkey;
    let datagram = |qkey| gather(SIGNALED | SEND | 1, to(qkey), None, &[fragment(SOURCE, 0, 64)]);
    pair.a.post_send(QPN, &datagram(0x1111_1111));
    pair.settle();
    assert!(!pair.sent().error);
    nothing(&mut pair.b);
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 200)]);
    pair.a.post_send(QPN, &datagram(0x2222_2222));
    pair.settle();
    assert!(!pair.sent().error);
    nothing(&mut pair.b);
    // If the top bit of the WQE's Q_Key is set, the QP context's Q_Key is sent instead.
    pair.a.post_send(QPN, &datagram(0x8222_2222));
    pair.settle();
    assert!(!pair.sent().error);
    assert_eq!(pair.received().cqe.len, 104);
}
