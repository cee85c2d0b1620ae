//! Tests both sides of each limit. The last object within a limit works, and the next one is rejected with the right
//! status and one log line (sections 3.1 and 3.3). For limits that the device does not enforce (J-09), the next object
//! works too.

use card::frontend::testing::{logged, pattern};
use card::sparse::{Capacity, SparseTable};
use drivers::jingzhao::{self as driver, cqc, eqc, signalled};
use protocol::hca::jingzhao::mpt::{Mpt, MptFlags};
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::{Pdn, Qpn};

use super::traffic::{QUEUES, cqe, data_unit, get_data, peer, post_recv, put_data, send};
use super::*;

const QPN: u32 = 5;
const SEND: u8 = 0x0a;

/// Checks that a command is rejected and that the rejection logs a single line that contains `line`.
#[track_caller]
fn refused(machine: &mut Machine, op: Op, in_modifier: u32, inbox: &[u8], line: &str) {
    let bad = CmdStatus::BadParam.code();
    let text = logged(|| assert_eq!(machine.command(op, 0, in_modifier, inbox), bad));
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(line), "{text}");
}

fn options(limits: &str) -> Options {
    Options { limits: serde_json::from_str(limits).unwrap(), ..Options::default() }
}

/// Returns the context of an RC QP whose queues have four slots each.
fn qpc() -> Qpc {
    driver::qpc(1, [2, 3], 4 * driver::SLOT)
}

/// Moves a QP to RTS and connects it to a QP with the same number.
fn connect(machine: &mut Machine, qpn: u32, qpc: Qpc) {
    let number = Qpn::new(qpn);
    machine.connect(qpn, &Qpc { local_qpn: number, remote_qpn: number, ..qpc });
}

/// Returns data units for `count` four-byte elements, starting at `offset` in the data region.
fn list(offset: u64, count: u64) -> Vec<u8> {
    (0..count).flat_map(|n| data_unit(offset + 4 * n, 4)).collect()
}

#[test]
fn init_hca_rejects_tables_beyond_limits() {
    let mut machine = powered_on(1, Options::default());
    for (offset, most, line) in [
        (0x0f, 24, "log2 of the QP count 0x19"),
        (0x17, 24, "log2 of the CQ count 0x19"),
        (0x1f, 8, "log2 of the EQ count 0x9"),
        (0x37, 32, "log2 of the MPT count 0x21"),
    ] {
        let mut inbox = dump(INIT, 0x40);
        inbox[offset] = most;
        machine.ok(Op::InitHca, 0, 0, &inbox);
        inbox[offset] = most + 1;
        refused(&mut machine, Op::InitHca, 0, &inbox, line);
    }
}

/// The public driver has constant table sizes, so it may use object numbers beyond the reported counts (J-09).
#[test]
fn object_numbers_beyond_reported_counts_are_accepted() {
    let limits = r#"{"max_qps": 64, "max_cqs": 64, "max_eqs": 8, "max_mpts": 64}"#;
    let mut machine = initialised(options(limits));
    for number in [63, 64] {
        connect(&mut machine, number, qpc());
        machine.create_cq(&cqc(number, 1, 5));
        machine.register(&region(number, 0, 0, 0x1000, MptFlags::empty()));
    }
    for eqn in [7, 8] {
        machine.ok(Op::Sw2HwEq, 0, eqn, &eqc(0, 4, 5).emit());
    }
}

#[test]
fn last_event_queue_works_and_next_is_rejected() {
    let mut machine = initialised(Options::default());
    let context = eqc(0, 4, 5).emit();
    machine.ok(Op::Sw2HwEq, 0, 31, &context);
    refused(&mut machine, Op::Sw2HwEq, 32, &context, "EQ number 0x20");
}

#[test]
fn longest_event_queue_works_and_longer_one_is_rejected() {
    let mut machine = initialised(Options::default());
    machine.ok(Op::Sw2HwEq, 0, 1, &eqc(0, 4, 20).emit());
    refused(&mut machine, Op::Sw2HwEq, 2, &eqc(0, 4, 21).emit(), "log2 of the EQ size 0x15");
}

/// The device's own capacity is reduced to a single object, as creating 2^17 objects takes seconds.
#[test]
fn object_beyond_device_capacity_is_rejected() {
    let one = Capacity { entries: 1, leaves: 1 };
    let mut machine = initialised(Options::default());
    let resources = machine.hca.frontend_and_memory().0.resources_mut().unwrap();
    resources.qps = SparseTable::new(one);
    resources.cqs = SparseTable::new(one);
    machine.ok(Op::Rst2Init, 0, 0x20, &qpc().emit());
    refused(&mut machine, Op::Rst2Init, 0x21, &qpc().emit(), "limit of QPs reached at index 0x21");
    machine.ok(Op::Sw2HwCq, 0, 0x20, &cqc(0x20, 1, 5).emit());
    refused(&mut machine, Op::Sw2HwCq, 0x21, &cqc(0x21, 1, 5).emit(), "limit of CQs reached at index 0x21");
}

/// The device stores nothing per protection domain. It only compares domain numbers, using all 32 bits.
#[test]
fn pd_number_beyond_reported_count_is_accepted() {
    let mut machine = initialised(options(r#"{"max_pds": 4}"#));
    for number in [3, 4] {
        let pd = Pdn::new(number);
        let mpt = region(number, 0, 0, 0x1000, MptFlags::empty());
        machine.register(&Mpt { pd, ..mpt });
        connect(&mut machine, number, Qpc { pd, ..qpc() });
    }
}

/// The driver enforces the reported limit, but the device accepts a longer queue.
#[test]
fn work_queue_longer_than_reported_limit_works() {
    let mut machine = initialised(options(r#"{"max_wqes": 4}"#));
    for (qpn, slots) in [(QPN, 4), (QPN + 1, 8)] {
        connect(&mut machine, qpn, driver::qpc(1, [2, 3], slots * driver::SLOT));
    }
}

#[test]
fn reserved_qp_number_is_usable() {
    let mut machine = initialised(options(r#"{"reserved_qps": 8}"#));
    for qpn in [0, 7, 8] {
        connect(&mut machine, qpn, qpc());
    }
}

#[test]
fn context_memory_larger_than_reported_is_accepted() {
    let mut machine = powered_on(1, options(r#"{"max_icm_len": 8192}"#));
    machine.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
    // Each of these pages holds 16 contexts.
    for (virt, qpn) in [(0x1000, 31), (0x2000, 32)] {
        machine.map(IcmTable::Context, QPC + virt, ICM_CONTEXT + virt, 1);
        connect(&mut machine, qpn, qpc());
    }
}

/// The device does not use the source GID index, since the source address of a packet comes from the port.
#[test]
fn source_gid_index_is_not_checked() {
    let mut machine = initialised(Options::default());
    for mgid_index in [0, 1] {
        connect(&mut machine, QPN + u32::from(mgid_index), Qpc { mgid_index, ..qpc() });
    }
}

#[test]
fn qp_attribute_beyond_limit_is_rejected() {
    type With = fn(u8) -> Qpc;
    let cases: [(Op, With, u8, &str); 5] = [
        (Op::Rst2Init, |pkey_index| Qpc { pkey_index, ..qpc() }, 0, "P_Key index 0x1"),
        (Op::Rst2Init, |port| Qpc { port, ..qpc() }, 1, "port 0x2"),
        (Op::Init2Rtr, |mtu| Qpc { mtu, ..qpc() }, 5, "path MTU code 0x6"),
        (
            Op::Init2Rtr,
            |log_rq_slot| Qpc { log_rq_slot, rq_len: 0x4000, ..qpc() },
            12,
            "log2 of the WQE slot size 0xd",
        ),
        (
            Op::Rtr2Rts,
            |log_sq_slot| Qpc { log_sq_slot, sq_len: 0x4000, ..qpc() },
            12,
            "log2 of the WQE slot size 0xd",
        ),
    ];
    for (op, with, last, line) in cases {
        let mut machine = initialised(Options::default());
        let earlier = [Op::Rst2Init, Op::Init2Rtr].into_iter().take_while(|earlier| *earlier != op);
        for earlier in earlier {
            machine.ok(earlier, 0, QPN, &qpc().emit());
        }
        refused(&mut machine, op, QPN, &with(last + 1).emit(), line);
        machine.ok(op, 0, QPN, &with(last).emit());
    }
}

/// The driver enforces the reported limits, but the device accepts WQEs of up to sixty-four 16-byte units.
#[test]
fn send_wqe_longer_than_1024_bytes_fails() {
    let mut a = peer(1, options(r#"{"max_send_sges": 2, "max_send_wqe_len": 96}"#));
    let mut b = peer(2, Options::default());
    let message = pattern(252, 3);
    put_data(&mut a, 0, &message);
    post_recv(&mut b, 0, 0, 0x400);
    let longest = signalled(&list(0, 63));
    assert_eq!(longest.len(), 1024);
    a.post_send(&QUEUES, 0, SEND, &longest);
    exchange(&mut a, &mut b);
    assert_eq!((cqe(&mut a, 0)[0x1c], get_data(&mut b, 0, 252)), (SEND, message));
    // The first WQE occupies eight slots.
    send(&mut a, 8, SEND, &[list(0, 64)]);
    exchange(&mut a, &mut b);
    let failed = cqe(&mut a, 1);
    assert_eq!((failed[0x10], failed[0x1c]), (0x02, 0xff), "local QP operation error");
}

/// The driver enforces the reported limits, but the device reads all elements in a slot.
#[test]
fn scatter_list_beyond_reported_limits_is_accepted() {
    let mut a = peer(1, Options::default());
    let mut b = peer(2, options(r#"{"max_recv_sges": 2, "max_recv_wqe_len": 48}"#));
    let message = pattern(12, 5);
    put_data(&mut a, 0, &message);
    // The first unit has the valid bit, and a unit of zeros ends the list.
    let mut wqe = vec![0; 16];
    wqe[0] = 0x20;
    wqe.extend(list(0x100, 3));
    wqe.resize(driver::SLOT as usize, 0);
    b.poke(QUEUES.rq, &wqe);
    send(&mut a, 0, SEND, &[data_unit(0, 12)]);
    exchange(&mut a, &mut b);
    assert_eq!((cqe(&mut a, 0)[0x1c], get_data(&mut b, 0x100, 12)), (SEND, message));
}

#[test]
fn longest_completion_queue_works_and_longer_one_is_rejected() {
    let mut machine = initialised(options(r#"{"max_cqes": 16}"#));
    machine.ok(Op::Sw2HwCq, 0, 1, &cqc(1, 1, 4).emit());
    refused(&mut machine, Op::Sw2HwCq, 2, &cqc(2, 1, 5).emit(), "log2 of the CQ size 0x5");
}
