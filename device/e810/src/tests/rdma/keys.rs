//! Tests of operations on keys: fast registration, windows and invalidation (E810 interface, section 13.7). Failures
//! raise the events of section 14.1.

use drivers::e810::queue_pair::{gather, inline};
use protocol::hca::e810::rdma::region::{AllocateStag, DeallocateStag};

use super::*;

const SEND_INVALIDATE: u64 = 0x04 << 32;
const BIND: u64 = 0x08 << 32;
const FAST_REGISTER: u64 = 0x09 << 32;
const LOCAL_INVALIDATE: u64 = 0x0a << 32;
const READ_INVALIDATE: u64 = 0x0b << 32;
/// Control word bits of local operations: addressing mode, window type, and fence.
const VA_BASED: u64 = 1 << 53;
const TYPE_1: u64 = 1 << 54;
const FENCE: u64 = 1 << 61;

/// Key of a region that `b` allocates for fast registration. The key byte is 0.
const REGION: u32 = 0x6cdb_0e00;
/// Key of a type 1 window that `b` allocates. The key byte is 0.
const WINDOW: u32 = 0x513b_af00;
/// Key of a type 2 window that `b` allocates. The key byte is 0.
const WINDOW_2: u32 = 0x0318_d000;
/// Key of a region that `b` registers with all rights, using "register MR".
const PARENT: u32 = 0x011e_be03;
const LEN: u64 = 0x2000;

const fn rights(rights: StagRights) -> u64 {
    (rights.bits() as u64) << 48
}

const ALL: u64 = rights(StagRights::all());

fn quantum(words: [u64; 4]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Builds a fast-register WQE for one contiguous range at `TARGET`.
fn fast_register(key: u32, len: u64, granted: u64) -> Vec<u8> {
    let control = SIGNALED | FENCE | FAST_REGISTER | VA_BASED | granted | u64::from(key);
    quantum([TARGET, TARGET, len, control])
}

/// Builds a WQE that binds a type 1 window.
fn bind(window: u32, parent: u32, at: u64, len: u64, granted: StagRights) -> Vec<u8> {
    bind_of(TYPE_1, window, parent, at, len, granted)
}

fn bind_of(kind: u64, window: u32, parent: u32, at: u64, len: u64, granted: StagRights) -> Vec<u8> {
    let control = SIGNALED | FENCE | BIND | VA_BASED | kind | rights(granted);
    quantum([at, u64::from(parent) << 32 | u64::from(window), len, control])
}

fn invalidate(key: u32) -> Vec<u8> {
    quantum([0, key.into(), 0, SIGNALED | FENCE | LOCAL_INVALIDATE])
}

fn allocate(driver: &mut Driver, key: u32, region: bool) {
    let len = if region { LEN } else { 0 };
    let command =
        AllocateStag { len, pd: PD, index: key >> 8, region, wide: !region, ..AllocateStag::default() };
    driver.perform_well(&Operation::AllocateStag(command));
}

fn allocate_type_2(driver: &mut Driver) {
    let command = AllocateStag { pd: PD, index: WINDOW_2 >> 8, ..AllocateStag::default() };
    driver.perform_well(&Operation::AllocateStag(command));
}

/// Allocates [`REGION`] and [`WINDOW`] on `b` and registers [`PARENT`]. Only [`PARENT`] is valid.
fn with_keys(change: impl Fn(&mut QpContext)) -> Pair {
    let mut pair = Pair::new(QpKind::Rc, change);
    allocate(&mut pair.b, REGION, true);
    allocate(&mut pair.b, WINDOW, false);
    register(&mut pair.b, PARENT, TARGET, LEN, StagRights::all());
    pair
}

impl Pair {
    /// Executes a WQE on `b` and asserts that it completes.
    #[track_caller]
    fn execute_at_b(&mut self, wqe: &[u8]) {
        let index = self.b.post_send(QPN, wqe);
        self.settle();
        let done = only(&mut self.b, SEND_CQ).cqe;
        assert_eq!((done.error, done.wqe_index, self.b.next_async_event()), (false, index, None));
    }

    /// Writes 64 bytes from `a` to `b`, using one of `b`'s keys.
    fn write_by(&mut self, key: u32, at: u64) -> u16 {
        let wqe = gather(SIGNALED | WRITE | u64::from(key), at, None, &[fragment(SOURCE, 0, 64)]);
        let request = self.a.post_send(QPN, &wqe);
        self.settle();
        request
    }

    /// Asserts that a write from `a` with one of `b`'s keys fails on both sides.
    #[track_caller]
    fn assert_refused(&mut self, key: u32, at: u64, code: u16) {
        let request = self.write_by(key, at);
        assert_eq!(failure(&mut self.b, 2), (code, 9, 0));
        assert_eq!(failure(&mut self.a, 1), (0x20d, 5, request));
    }
}

#[test]
fn fast_registration_lasts_until_invalidation() {
    let key = REGION | 0x69;
    let mut pair = with_keys(|_| {});
    pair.a.poke(SOURCE, &[7; 64]);
    pair.execute_at_b(&fast_register(key, LEN, ALL));
    pair.write_by(key, TARGET + LEN - 64);
    assert!(!pair.sent().error);
    assert_eq!(pair.b.peek(TARGET + LEN - 64, 64), [7; 64]);
    pair.execute_at_b(&invalidate(key));
    pair.assert_refused(key, TARGET, 0x103);
    assert_eq!(pair.b.peek(TARGET, 64), [0; 64]);
}

/// Like a driver, the test uses a different key byte for the second registration. The length differs too.
#[test]
fn invalidated_region_can_be_registered_again() {
    let mut pair = with_keys(|_| {});
    pair.execute_at_b(&fast_register(REGION | 1, LEN, ALL));
    pair.execute_at_b(&invalidate(REGION | 1));
    pair.execute_at_b(&fast_register(REGION | 2, LEN / 2, ALL));
    pair.write_by(REGION | 2, TARGET);
    assert!(!pair.sent().error);
    pair.assert_refused(REGION | 1, TARGET, 0x102);
}

/// Section 16.2, E-32: the device invalidates the key, so the receiving software does not have to.
#[test]
fn send_with_invalidate_reports_key() {
    let key = REGION | 0x69;
    let mut pair = with_keys(|_| {});
    pair.execute_at_b(&fast_register(key, LEN, ALL));
    pair.b.post_receive(QPN, &[fragment(SOURCE, 0, 64)]);
    pair.a.post_send(QPN, &inline(SIGNALED | SEND_INVALIDATE | u64::from(key), 0, None, &[1; 8]));
    pair.settle();
    assert!(!pair.sent().error);
    let received = pair.received().cqe;
    assert_eq!((received.source, received.invalidated_or_ipv4, received.len), (key, true, 8));
    pair.assert_refused(key, TARGET, 0x103);
}

/// IBTA volume 1, section 9.9.3: the receive fails, and the peer receives a remote access error. E810 interface,
/// section 14.1, defines a single code for all causes.
#[test]
fn send_with_invalidate_of_unusable_key_fails() {
    let unknown = 0x1234_5600;
    let private = rights(StagRights::LOCAL_READ);
    for (wqe, key) in [
        (None, unknown),
        (None, REGION),
        (None, PARENT),
        (Some(fast_register(REGION | 1, LEN, ALL)), REGION | 2),
        (Some(fast_register(REGION | 1, LEN, private)), REGION | 1),
        (Some(bind(WINDOW | 1, PARENT, TARGET, LEN, StagRights::REMOTE_READ)), WINDOW | 1),
    ] {
        let mut pair = with_keys(|_| {});
        if let Some(wqe) = wqe {
            pair.execute_at_b(&wqe);
        }
        let receive = pair.b.post_receive(QPN, &[fragment(SOURCE, 0, 64)]);
        let wqe = inline(SIGNALED | SEND_INVALIDATE | u64::from(key), 0, None, &[1; 8]);
        let request = pair.a.post_send(QPN, &wqe);
        pair.settle();
        assert_eq!(failure(&mut pair.b, 2), (0x112, 1, receive), "{key:#x}");
        assert_eq!(failure(&mut pair.a, 1), (0x20d, 5, request));
        nothing(&mut pair.b);
    }
}

#[test]
fn read_with_invalidate_invalidates_target() {
    let key = REGION | 1;
    let mut pair = with_keys(|_| {});
    pair.a.poke(SOURCE, &[5; 64]);
    register(&mut pair.a, PARENT, SOURCE, LEN, StagRights::all());
    pair.execute_at_b(&fast_register(key, LEN, ALL));
    let wqe =
        gather(SIGNALED | READ_INVALIDATE | u64::from(PARENT), SOURCE, None, &[fragment(TARGET, key, 64)]);
    pair.execute_at_b(&wqe);
    assert_eq!(pair.b.peek(TARGET, 64), [5; 64]);
    pair.assert_refused(key, TARGET, 0x103);
}

/// Requests complete if they arrive before the invalidation. All later requests fail.
#[test]
fn access_after_invalidation_is_rejected() {
    let key = REGION | 1;
    let mut pair = with_keys(|_| {});
    pair.a.poke(SOURCE, &[7; 64]);
    pair.execute_at_b(&fast_register(key, LEN, ALL));
    let write = |at| gather(SIGNALED | WRITE | u64::from(key), at, None, &[fragment(SOURCE, 0, 64)]);
    let requests: Vec<u16> = (0..20).map(|n| pair.a.put_send(QPN, &write(TARGET + n * 64))).collect();
    pair.a.ring_send(QPN);
    let frames = pair.a.bus.settle();
    let (before, behind) = frames.split_at(7);
    for frame in before {
        pair.b.bus.hca.handle_frame(frame);
    }
    pair.b.post_send(QPN, &invalidate(key));
    let answers = pair.b.bus.settle();
    answers.iter().for_each(|frame| pair.a.bus.hca.handle_frame(frame));
    for frame in behind {
        pair.b.bus.hca.handle_frame(frame);
    }
    pair.settle();
    assert_eq!(pair.b.peek(TARGET, 7 * 64), [7; 7 * 64]);
    assert_eq!(pair.b.peek(TARGET + 7 * 64, 64), [0; 64]);
    assert_eq!(failure(&mut pair.b, 2), (0x103, 9, 0));
    assert_eq!(failure(&mut pair.a, 1), (0x20d, 5, requests[7]));
    let done = std::iter::from_fn(|| pair.a.poll_cq(SEND_CQ)).count();
    assert_eq!(done, 7, "the requests before the invalidation must complete");
}

#[test]
fn window_grants_access_only_to_its_range() {
    let mut pair = with_keys(|_| {});
    pair.a.poke(SOURCE, &[7; 64]);
    pair.execute_at_b(&bind(WINDOW | 1, PARENT, TARGET + 0x1000, 64, StagRights::REMOTE_WRITE));
    pair.write_by(WINDOW | 1, TARGET + 0x1000);
    assert!(!pair.sent().error);
    assert_eq!(pair.b.peek(TARGET + 0x1000, 64), [7; 64]);
    pair.assert_refused(WINDOW | 1, TARGET + 0x1001, 0x108);
}

/// Section 13.4: a bind of length 0 unbinds the window.
#[test]
fn unbound_window_denies_access() {
    let mut pair = with_keys(|_| {});
    pair.execute_at_b(&bind(WINDOW | 1, PARENT, TARGET, LEN, StagRights::REMOTE_WRITE));
    pair.execute_at_b(&bind(WINDOW | 2, PARENT, TARGET, 0, StagRights::empty()));
    pair.assert_refused(WINDOW | 2, TARGET, 0x103);
}

#[test]
fn region_with_bound_windows_cannot_be_deallocated() {
    let mut pair = with_keys(|_| {});
    pair.execute_at_b(&bind(WINDOW | 1, PARENT, TARGET, LEN, StagRights::REMOTE_WRITE));
    let parent = DeallocateStag { pd: PD, index: PARENT >> 8, region: true };
    let refused = pair.b.perform(&Operation::DeallocateStag(parent)).error;
    assert_eq!(refused.map(|codes| codes.major), Some(0xffff));
    pair.execute_at_b(&bind(WINDOW | 2, PARENT, TARGET, 0, StagRights::empty()));
    pair.b.perform_well(&Operation::DeallocateStag(parent));
    pair.assert_refused(PARENT, TARGET, 0x102);
}

/// Name of the error, context change, WQE to execute first (if any), failing WQE, and expected event code.
type Case<'a> = (&'a str, &'a dyn Fn(&mut QpContext), Option<Vec<u8>>, Vec<u8>, u16);

/// Each case uses a new queue pair. The request after the failing WQE is not executed.
#[test]
fn invalid_local_operations_report_cause() {
    const UNKNOWN: u32 = 0x1234_5600;
    let no = |_: &mut QpContext| {};
    let no_bind = |context: &mut QpContext| context.bind = false;
    let no_registration = |context: &mut QpContext| context.fast_register = false;
    let domain = |context: &mut QpContext| context.pd_low = 7;
    let first = Some(fast_register(REGION, LEN, ALL));
    let write = StagRights::REMOTE_WRITE;
    let level_2 = {
        let control = SIGNALED | FAST_REGISTER | 2 << 44 | u64::from(REGION);
        quantum([TARGET, TARGET, LEN, control])
    };
    let cases: [Case<'_>; 19] = [
        ("registering a valid region", &no, first.clone(), fast_register(REGION, LEN, ALL), 0x10c),
        ("registering a window", &no, None, fast_register(WINDOW, LEN, ALL), 0x10d),
        ("remote write without local write", &no, None, fast_register(REGION, LEN, rights(write)), 0x10e),
        ("registering more than the allocated length", &no, None, fast_register(REGION, LEN + 1, ALL), 0x110),
        ("registering 0 bytes", &no, None, fast_register(REGION, 0, ALL), 0x110),
        ("registering an unknown key", &no, None, fast_register(UNKNOWN, LEN, ALL), 0x102),
        (
            "registering in a different protection domain",
            &domain,
            None,
            fast_register(REGION, LEN, ALL),
            0x105,
        ),
        (
            "fast registration not enabled in the QP context",
            &no_registration,
            None,
            fast_register(REGION, LEN, ALL),
            0x11c,
        ),
        ("an invalid page list level", &no, None, level_2, 0x20a),
        ("invalidating an unknown key", &no, None, invalidate(UNKNOWN), 0x102),
        ("invalidating an invalid region", &no, None, invalidate(REGION), 0x103),
        ("invalidating a region that a command registered", &no, None, invalidate(PARENT), 0x103),
        ("invalidating with the wrong key byte", &no, first.clone(), invalidate(REGION | 1), 0x102),
        (
            "binding not enabled in the QP context",
            &no_bind,
            None,
            bind(WINDOW, PARENT, TARGET, LEN, write),
            0x11b,
        ),
        ("binding a region", &no, None, bind(REGION, PARENT, TARGET, LEN, write), 0x115),
        ("binding to an unknown region", &no, None, bind(WINDOW, UNKNOWN, TARGET, LEN, write), 0x11a),
        ("binding to an invalid region", &no, None, bind(WINDOW, REGION, TARGET, LEN, write), 0x11a),
        (
            "binding past the end of the region",
            &no,
            None,
            bind(WINDOW, PARENT, TARGET, LEN + 1, write),
            0x119,
        ),
        (
            "binding to a region without the bind right",
            &no,
            Some(fast_register(REGION, LEN, rights(StagRights::LOCAL_WRITE | write))),
            bind(WINDOW, REGION, TARGET, LEN, write),
            0x118,
        ),
    ];
    for (what, change, first, wqe, code) in cases {
        let mut pair = with_keys(change);
        if let Some(first) = first {
            pair.execute_at_b(&first);
        }
        let request = pair.b.post_send(QPN, &wqe);
        pair.b.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1]));
        pair.settle();
        assert_eq!(failure(&mut pair.b, 2), (code, 5, request), "{what}");
        nothing(&mut pair.a);
        assert_eq!(pair.b.poll_cq(SEND_CQ), None, "the error itself must not produce a CQE");
    }
}

/// Section 14.1, code 0x113: a region cannot be invalidated while windows are bound to it.
#[test]
fn region_with_bound_windows_cannot_be_invalidated() {
    let region = REGION | 1;
    let mut pair = with_keys(|_| {});
    pair.execute_at_b(&fast_register(region, LEN, ALL));
    pair.execute_at_b(&bind(WINDOW | 1, region, TARGET, 64, StagRights::REMOTE_WRITE));
    let request = pair.b.post_send(QPN, &invalidate(region));
    pair.settle();
    assert_eq!(failure(&mut pair.b, 2), (0x113, 5, request));
}

/// Section 14.1, code 0x114: unlike a type 1 window, a type 2 window must be invalidated before it is bound
/// again.
#[test]
fn bound_type_2_window_cannot_be_rebound() {
    let mut pair = with_keys(|_| {});
    allocate_type_2(&mut pair.b);
    let bound = |key| bind_of(0, WINDOW_2 | key, PARENT, TARGET, 64, StagRights::REMOTE_WRITE);
    pair.execute_at_b(&bound(1));
    pair.execute_at_b(&invalidate(WINDOW_2 | 1));
    pair.execute_at_b(&bound(2));
    let request = pair.b.post_send(QPN, &bound(3));
    pair.settle();
    assert_eq!(failure(&mut pair.b, 2), (0x114, 5, request));
}

/// Section 14.1, code 0x104: only the queue pair that bound a type 2 window may use it. This applies to requests
/// from the peer and to WQEs posted on the window's own device.
#[test]
fn type_2_window_is_restricted_to_binding_qp() {
    const OTHER: Qpn = Qpn::new(7);
    let key = WINDOW_2 | 1;
    let pair = || {
        let mut pair = with_keys(|_| {});
        allocate_type_2(&mut pair.b);
        for (driver, id) in [(&mut pair.a, 1), (&mut pair.b, 2)] {
            start(driver, OTHER, QpKind::Rc, &QpContext { remote_qpn: OTHER, ..context(id) });
        }
        pair.execute_at_b(&bind_of(0, key, PARENT, TARGET, 64, StagRights::REMOTE_WRITE));
        pair.write_by(key, TARGET);
        assert!(!pair.sent().error);
        pair
    };

    let mut by_peer = pair();
    let write = gather(SIGNALED | WRITE | u64::from(key), TARGET, None, &[fragment(SOURCE, 0, 64)]);
    let request = by_peer.a.post_send(OTHER, &write);
    by_peer.settle();
    assert_eq!(failure_of(&mut by_peer.b, OTHER, 2), (0x104, 9, 0));
    assert_eq!(failure_of(&mut by_peer.a, OTHER, 1), (0x20d, 5, request));

    let mut by_owner = pair();
    let request = by_owner.b.post_send(OTHER, &invalidate(key));
    by_owner.settle();
    assert_eq!(failure_of(&mut by_owner.b, OTHER, 2), (0x104, 5, request));
    by_owner.write_by(key, TARGET);
    assert!(!by_owner.sent().error, "the rejected invalidation must leave the window bound");
}
