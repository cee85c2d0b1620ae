//! Tests each limit from both sides. The largest permitted value works, and the next one is rejected with the right
//! status and logged in one line (section 3.3.6). If the device does not enforce a limit, the next value works too.

use card::frontend::testing::{exchange, logged, pattern};
use card::sparse::{Capacity, SparseTable};
use drivers::mthca::{Cq, WorkQueue, srq_context, words};
use protocol::hca::mthca::init::InitHca;
use protocol::hca::mthca::modify::QpAttributes;
use protocol::hca::mthca::path::{Address, Path};
use protocol::hca::mthca::qpc::{Geometry, Qpc};
use protocol::hca::mthca::wqe::{Operation, SendWqe, WqeData};
use protocol::hca::table::Table;
use protocol::ids::Pdn;

use super::port::{GUID_INFO, MAD_IFC, PKEY_TABLE, get};
use super::user::{
    QP_BUFFER, QPN, RC, SEND, SQ_RECORD, User, data, qpc, record, remote, request, send, syndromes,
};
use super::*;

const RST2INIT: u32 = 0x019;
const INIT2RTR: u32 = 0x01a;
const RTS2SQD: u32 = 0x01f;
/// QP number that no other test object uses.
const OTHER: u32 = 0x30;

/// Asserts that a command is rejected with status `status` and that the rejection logs a single line containing `line`.
#[track_caller]
fn refused(driver: &mut Driver, op: u32, inbox: &[u8], in_modifier: u32, status: CmdStatus, line: &str) {
    let text = logged(|| assert_eq!(driver.with_inbox(op, inbox, in_modifier), status.code()));
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(line), "{text}");
}

/// Parses limits in the format of a configuration file.
fn options(limits: &str) -> Options {
    Options { limits: serde_json::from_str(limits).unwrap(), ..Options::default() }
}

/// Creates a driver that has completed INIT_HCA, for a device with the given limits.
fn initialised_with(limits: &str) -> Driver {
    let mut driver = powered_on_with(1, options(limits));
    replay(&mut driver, probe::BRING_UP);
    driver
}

/// Creates a [`User`] on an HCA with LID 1 and the given limits. Its QP is in RESET.
fn user_with(limits: &str) -> User {
    User::of(powered_on_with(1, options(limits)))
}

fn cq(cqn: u32, log_entries: u8) -> Vec<u8> {
    Cq { cqn, log_entries, pd: 1, lkey: 0x1100, record: 0, arm_record: 1 }.bytes()
}

fn all_of(qpc: &Qpc) -> Vec<u8> {
    modify(QpAttributes::all(), qpc)
}

/// Returns a SEND that gathers `count` four-byte elements.
fn gather(count: u32) -> SendWqe {
    let list = (0..count).map(|n| data(u64::from(4 * n), 4)).collect();
    SendWqe { data: WqeData::Segments(list), ..send(0, 4) }
}

#[test]
fn cq_size_limit_is_enforced() {
    let mut driver = initialised();
    driver.ok(0x016, &cq(0x20, 17), 0x20);
    refused(&mut driver, 0x016, &cq(0x21, 18), 0x21, CmdStatus::ExceedLim, "log2 of the CQ size 0x12");
    let resized = |log_entries: u32| words(&[0, 0, 0, log_entries << 24], 0x40);
    driver.ok(0x102c, &resized(17), 0x20);
    refused(&mut driver, 0x102c, &resized(18), 0x20, CmdStatus::ExceedLim, "log2 of the CQ size 0x12");
}

#[test]
fn srq_size_limit_is_enforced() {
    let mut driver = initialised_with(r#"{"max_srq_wqes": 1024}"#);
    // A ring needs one more slot than there are requests, and the number of slots is rounded up to a power of two.
    driver.ok(0x035, &srq_context(0x50, [11, 2], 1, 0x1100, 2), 0x50);
    let next = srq_context(0x51, [12, 2], 1, 0x1100, 2);
    refused(&mut driver, 0x035, &next, 0x51, CmdStatus::ExceedLim, "SRQ");
}

#[test]
fn eq_size_limit_is_enforced() {
    let mut driver = initialised();
    driver.ok(0x013, &eq_context(20, 0, 0x1100), 4);
    let next = eq_context(21, 0, 0x1100);
    refused(&mut driver, 0x013, &next, 5, CmdStatus::ExceedLim, "log2 of the EQ size 0x15");
}

/// INIT_HCA determines the number of EQs. The driver's profile requests 32 EQs, and iPXE requests 64.
#[test]
fn eqn_limit_is_enforced() {
    let context = eq_context(8, 0, 0x1100);
    let mut driver = initialised();
    driver.ok(0x013, &context, 31);
    refused(&mut driver, 0x013, &context, 32, CmdStatus::BadIndex, "EQ number 0x20");

    let eqc = Table { log_entries: 6, ..InitHca::DRIVER_DEFAULT.eqc };
    driver.ok(0x007, &InitHca { eqc, ..InitHca::DRIVER_DEFAULT }.emit(), 0);
    driver.ok(0x013, &context, 63);
    refused(&mut driver, 0x013, &context, 64, CmdStatus::BadIndex, "EQ number 0x40");
}

#[test]
fn mpt_index_limit_is_enforced() {
    let mut driver = initialised();
    let region = |slot| Mpt::buffer(slot, 4096, MTT + 0x1000).bytes();
    driver.ok(0x00d, &region(0x1_ffff), 0x1_ffff);
    refused(&mut driver, 0x00d, &region(0x2_0000), 0x2_0000, CmdStatus::BadIndex, "0x20000");
}

#[test]
fn srqn_limit_is_enforced() {
    let mut driver = initialised();
    let srq = |srqn| srq_context(srqn, [3, 2], 1, 0x1100, 2);
    driver.ok(0x035, &srq(0xfff), 0xfff);
    refused(&mut driver, 0x035, &srq(0x1000), 0x1000, CmdStatus::BadIndex, "SRQ number 0x1000");
}

#[test]
fn multicast_index_limit_is_enforced() {
    let mut driver = initialised();
    let mut entry = [0; 0x100];
    entry[0x10] = 0xff;
    driver.ok(0x026, &entry, 8191);
    driver.ok(0x025, &[], 8191);
    assert_eq!(driver.peek(OUTBOX, 0x100), entry);
    for op in [0x025, 0x026] {
        refused(&mut driver, op, &entry, 8192, CmdStatus::BadIndex, "multicast table index 0x2000");
    }
}

#[test]
fn init_hca_enforces_table_size_limits() {
    type Resize = fn(&mut InitHca, u8);
    let cases: [(Resize, u8, &str); 6] = [
        (|init, log| init.qpc.log_entries = log, 24, "log2 of the QP count 0x19"),
        (|init, log| init.cqc.log_entries = log, 24, "log2 of the CQ count 0x19"),
        (|init, log| init.srqc.log_entries = log, 24, "log2 of the SRQ count 0x19"),
        (|init, log| init.mpt.log_entries = log, 24, "log2 of the MPT count 0x19"),
        (|init, log| init.eqc.log_entries = log, 6, "log2 of the EQ count 0x7"),
        (|init, log| init.log_groups = log, 16, "log2 of the multicast group count 0x11"),
    ];
    let mut driver = initialised();
    for (resize, most, line) in cases {
        let mut init = InitHca::DRIVER_DEFAULT;
        resize(&mut init, most);
        driver.ok(0x007, &init.emit(), 0);
        resize(&mut init, most + 1);
        refused(&mut driver, 0x007, &init.emit(), 0, CmdStatus::ExceedLim, line);
    }
}

/// The driver ignores the reported maxima. Its module parameters determine the sizes of the QP, CQ and memory
/// protection tables (section 12, T17).
#[test]
fn reported_object_counts_are_not_enforced() {
    let mut driver = initialised_with(r#"{"max_qps": 256, "max_cqs": 256, "max_mpts": 256}"#);
    for number in [0xff, 0x100] {
        driver.ok(RST2INIT, &all_of(&driver::qpc(RC, number, 2)), number);
        driver.ok(0x016, &cq(number, 4), number);
        driver.ok(0x00d, &Mpt::buffer(number, 4096, MTT + 0x1000).bytes(), number);
    }
}

/// Creating 2^17 objects takes seconds. The test reduces the device's capacity to a single object of each kind instead.
#[test]
fn object_beyond_device_capacity_is_rejected() {
    let one = Capacity { entries: 1, leaves: 1 };
    let mut driver = initialised();
    let resources = driver.hca.frontend_and_memory().0.resources_mut().unwrap();
    resources.qps = SparseTable::new(one);
    resources.cqs = SparseTable::new(one);
    resources.srqs = SparseTable::new(one);
    let qp = |qpn| all_of(&driver::qpc(RC, qpn, 2));
    let srq = |srqn| srq_context(srqn, [3, 2], 1, 0x1100, 2);
    for (op, last, next, line) in [
        (RST2INIT, qp(0x20), qp(0x21), "limit of QPs reached at index 0x21"),
        (0x016, cq(0x20, 4), cq(0x21, 4), "limit of CQs reached at index 0x21"),
        (0x035, srq(0x20), srq(0x21), "limit of SRQs reached at index 0x21"),
    ] {
        driver.ok(op, &last, 0x20);
        refused(&mut driver, op, &next, 0x21, CmdStatus::ExceedLim, line);
    }
}

/// The driver rejects queues beyond the reported limit. The device accepts as many slots as its 16-bit counters
/// support.
#[test]
fn work_queue_slot_limit_is_enforced() {
    let mut driver = initialised_with(r#"{"max_wqes": 8}"#);
    let line = "log2 of the number of work queue slots 0x10";
    for (n, log_slots) in (0..).zip([3, 4, 15]) {
        let ring = Geometry { log_slots, log_slot: 6 };
        driver.ok(RST2INIT, &all_of(&Qpc { sq: ring, rq: ring, ..driver::qpc(RC, OTHER + n, 2) }), OTHER + n);
    }
    let ring = Geometry { log_slots: 16, log_slot: 6 };
    for long in
        [Qpc { sq: ring, ..driver::qpc(RC, OTHER + 3, 2) }, Qpc { rq: ring, ..driver::qpc(RC, OTHER + 3, 2) }]
    {
        refused(&mut driver, RST2INIT, &all_of(&long), OTHER + 3, CmdStatus::BadParam, line);
    }
}

#[test]
fn doorbell_exceeding_send_queue_is_ignored() {
    let mut user = User::new(1);
    user.connect(&qpc(RC, 2));
    // In SQD, requests stay in the queue.
    user.ok(RTS2SQD, &[], QPN);
    let text = logged(|| (0..8).for_each(|_| user.post(&send(0, 8))));
    assert_eq!(text, "");
    let text = logged(|| user.post(&send(0, 8)));
    assert!(text.lines().count() == 1 && text.contains("overflow"), "{text}");
    assert_eq!(user.hca.monitor().ignored_counts().collect::<Vec<_>>(), [("overflow", 1)]);
}

/// The driver enforces the reported depth limit. The device uses the depth in each QP's context.
#[test]
fn reads_beyond_requester_depth_wait_for_responses() {
    for (log_depth, in_flight) in [(0, 1), (1, 2), (2, 4)] {
        let mut user = user_with(r#"{"max_rd_atomic": 2}"#);
        let mut context = qpc(RC, 2);
        context.requester.set_log_depth(log_depth);
        user.connect(&context);
        (0..5).for_each(|_| user.post(&request(Operation::Read { remote: remote(0) }, 0, 8)));
        assert_eq!(user.settle().len(), in_flight, "log2 of the depth {log_depth}");
    }
}

/// The reported limit is 4, but the driver does not use it.
#[test]
fn reported_responder_depth_is_not_enforced() {
    let (mut a, mut b) = (User::new(1), User::new(2));
    let (mut requester, mut responder) = (qpc(RC, 2), qpc(RC, 1));
    requester.requester.set_log_depth(3);
    responder.responder.set_log_depth(3);
    a.connect(&requester);
    b.connect(&responder);
    (0..8).for_each(|_| a.post(&request(Operation::Read { remote: remote(0) }, 0, 8)));
    exchange(&mut a, &mut b);
    assert_eq!(syndromes(&a.reap()), [0; 8]);
}

/// Issues a Get for one block of a table and returns the status of the response.
fn block_status(driver: &mut Driver, attribute: u16, block: u32) -> u16 {
    driver.ok(MAD_IFC | 0x3000, &get(1, attribute, block), 1);
    u16::from_be_bytes(driver.peek(OUTBOX + 4, 2).try_into().unwrap())
}

#[test]
fn gid_and_pkey_block_limits_are_enforced() {
    /// IBTA volume 1, section 13.4.7: invalid value in an attribute or its modifier.
    const BAD_VALUE: u16 = 7 << 2;
    for (limits, attribute, blocks) in [
        (r#"{"max_gids": 8}"#, GUID_INFO, 1),
        (r#"{"max_gids": 32}"#, GUID_INFO, 4),
        (r#"{"max_pkeys": 32}"#, PKEY_TABLE, 1),
        (r#"{"max_pkeys": 64}"#, PKEY_TABLE, 2),
    ] {
        let mut driver = initialised_with(limits);
        assert_eq!(block_status(&mut driver, attribute, blocks - 1), 0, "{limits}");
        assert_eq!(block_status(&mut driver, attribute, blocks), BAD_VALUE, "{limits}");
    }
}

#[test]
fn pkey_index_limit_is_enforced() {
    let mut driver = initialised_with(r#"{"max_pkeys": 32}"#);
    let with = |pkey_index| {
        let qpc = driver::qpc(RC, OTHER, 2);
        all_of(&Qpc { primary: Path { pkey_index, ..qpc.primary }, ..qpc })
    };
    refused(&mut driver, RST2INIT, &with(32), OTHER, CmdStatus::BadIndex, "P_Key index 0x20");
    driver.ok(RST2INIT, &with(31), OTHER);
    refused(&mut driver, INIT2RTR, &with(32), OTHER, CmdStatus::BadIndex, "P_Key index 0x20");
    driver.ok(INIT2RTR, &with(31), OTHER);
}

/// The driver checks this index. The device does not use it, since the source address of a packet comes from the
/// port.
#[test]
fn source_gid_index_is_not_checked() {
    let mut driver = initialised_with(r#"{"max_gids": 8}"#);
    for sgid_index in [7, 8] {
        let qpn = OTHER + u32::from(sgid_index);
        let qpc = driver::qpc(RC, qpn, 2);
        let address = Address { sgid_index, grh: true, ..qpc.primary.address };
        driver.connect(&Qpc { primary: Path { address, ..qpc.primary }, ..qpc });
    }
}

#[test]
fn last_uar_page_accepts_doorbells() {
    let mut user = user_with(r#"{"uar_mib": 1}"#);
    user.connect(&Qpc { page: 255, ..qpc(RC, 2) });
    let doorbell = user.post_without_doorbell(&send(0, 8)).emit();
    user.store(Bar::Bar2, 255 * 0x1000 + 0x10, &doorbell);
    assert_eq!(user.settle().len(), 1);

    // Page 256 is outside the BAR. The driver never uses such a page, and strict mode reports QPs that do.
    assert_eq!(user.hca.region_len(Region::Bar(Bar::Bar2)), 256 * 0x1000);
    user.hca.set_strict(true);
    let next = Qpc { page: 256, ..driver::qpc(RC, OTHER, 2) };
    user.ok(RST2INIT, &all_of(&next), OTHER);
    assert!(user.hca.monitor().violations().any(|(rule, _)| rule == "uar_reserved"));
}

#[test]
fn send_wqe_is_limited_by_slot_size() {
    let (mut a, mut b) = (user_with(r#"{"max_send_sges": 4}"#), User::new(2));
    a.connect(&qpc(RC, 2));
    b.connect(&qpc(RC, 1));
    (0..2).for_each(|_| b.post_recv(0, 64));
    let message = pattern(28, 3);
    a.put(0, &message);
    // A 128-byte slot has room for seven elements, more than the reported limit.
    a.post(&gather(7));
    exchange(&mut a, &mut b);
    assert_eq!((syndromes(&a.reap()), b.get(0, 28)), (vec![0], message));
    a.post(&gather(8));
    exchange(&mut a, &mut b);
    assert_eq!(syndromes(&a.reap()), [0x02], "local QP operation error");
}

/// The size field of a doorbell or link is six bits wide, enough for 63 granules of 16 bytes each.
#[test]
fn longest_send_wqe_is_1008_bytes_long() {
    const LARGE: WorkQueue =
        WorkQueue { bus: QP_BUFFER + 0x400, offset: 0x400, slot: 1024, slots: 2, record: record(SQ_RECORD) };
    let (mut a, mut b) = (User::new(1), User::new(2));
    a.connect(&Qpc { sq: Geometry { log_slots: 1, log_slot: 10 }, sq_base: LARGE.offset, ..qpc(RC, 2) });
    b.connect(&qpc(RC, 1));
    b.post_recv(0, 256);
    let message = pattern(248, 5);
    a.put(0, &message);
    let wqe = gather(62).emit();
    assert_eq!(wqe.len(), 1008);
    let doorbell = a.post_send(&LARGE, QPN, SEND, &wqe, false);
    a.ring_doorbell(&doorbell);
    exchange(&mut a, &mut b);
    assert_eq!((syndromes(&a.reap()), b.get(0, 248)), (vec![0], message));
}

/// PD numbers are 24 bits wide, and the device does not keep state for protection domains.
#[test]
fn reported_max_pd_count_is_not_enforced() {
    let mut driver = initialised();
    for (n, pd) in (0..).zip([0x7fff, 0x8000]) {
        let slot = 0x20 + n;
        driver.ok(0x00d, &Mpt { pd, ..Mpt::buffer(slot, 4096, MTT + 0x1000) }.bytes(), slot);
        let qpc = Qpc { pd: Pdn::new(pd), ..driver::qpc(RC, OTHER + n, 2) };
        driver.ok(RST2INIT, &all_of(&qpc), OTHER + n);
    }
}

#[test]
fn reported_max_region_length_is_not_enforced() {
    let mut driver = initialised();
    for (slot, len) in [(0x20, 1 << 30), (0x21, 1 << 31)] {
        // Each region consists of a single 2 GiB page.
        let region = Mpt { log_pages: 19, ..Mpt::buffer(slot, len, MTT + 0x1000) };
        driver.ok(0x00d, &region.bytes(), slot);
    }
    // The device's own limit is 2^24 pages.
    let region = Mpt::buffer(0x22, (1 << 36) + 1, MTT).bytes();
    refused(&mut driver, 0x00d, &region, 0x22, CmdStatus::ExceedLim, "memory region length");
}

/// An MTT segment is 64 bytes long. The device reads a region's MTT entries at any mapped ICM address.
#[test]
fn reported_max_mtt_segment_count_is_not_enforced() {
    const END: u64 = MTT + (64 << 20);
    let mut driver = initialised();
    let last_page = END - 0x1000;
    driver.ok(0xffa, &block(last_page, ICM + last_page, 0), 1);
    for (slot, mtt) in [(0x20, END - 64), (0x21, END)] {
        driver.ok(0x00d, &Mpt::buffer(slot, 4096, mtt).bytes(), slot);
    }
}

#[test]
fn icm_size_limit_is_enforced() {
    let mut driver = powered_on();
    assert_eq!(driver.command(0xffd, 1 << 35, 0).0, 0);
    let text = logged(|| {
        assert_eq!(driver.command(0xffd, (1 << 35) + 0x1000, 0).0, CmdStatus::ExceedLim.code());
    });
    assert!(text.lines().count() == 1 && text.contains("ICM size 0x800001000"), "{text}");
}

#[test]
fn path_mtu_limit_is_enforced() {
    let mut driver = initialised();
    let with = |mtu| all_of(&Qpc { mtu, ..driver::qpc(RC, OTHER, 2) });
    driver.ok(RST2INIT, &with(4), OTHER);
    refused(&mut driver, INIT2RTR, &with(5), OTHER, CmdStatus::BadParam, "path MTU code");
    driver.ok(INIT2RTR, &with(4), OTHER);
}

#[test]
fn init_ib_accepts_only_port_1() {
    let mut driver = initialised();
    driver.ok(0x009, &[0; 56], 1);
    refused(&mut driver, 0x009, &[0; 56], 2, CmdStatus::BadParam, "port");
}

/// QUERY_FW reports a limit of 32 outstanding commands. The device does not need a limit, as a command is complete when
/// the store that started it returns.
#[test]
fn reported_command_limit_is_not_enforced() {
    const NOP_WITH_EVENT: u32 = 0x00c0_0031;
    let mut driver = initialised();
    driver.ok(0x004, &[], 0);
    assert_eq!(driver.peek(OUTBOX + 0x0f, 1), [5]);
    for token in 0..33 {
        assert_eq!(driver.raw(0, 0x1f, 0, token, NOP_WITH_EVENT), 0);
    }
    for token in 0..33u16 {
        let entry = driver.eqe(3, token.into());
        assert_eq!((entry[1], &entry[6..8], entry[0x0f]), (0x0a, &token.to_be_bytes()[..], 0));
    }
}
