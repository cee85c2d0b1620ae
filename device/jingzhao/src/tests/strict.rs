//! Tests that each violation triggers exactly one strict rule and that correct software triggers none.

use card::telemetry::monitor::Rule;
use drivers::jingzhao as driver;
use protocol::Psn;
use protocol::hca::jingzhao::cqc::{CqFlags, Cqc, ResizeCq};
use protocol::hca::jingzhao::doorbell::SendDoorbell;
use protocol::hca::jingzhao::eqc::{EqFlags, Eqc};
use protocol::hca::jingzhao::mpt::{Mpt, MptFlags};
use protocol::hca::jingzhao::mtt::WriteMtt;
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::hca::jingzhao::transition::Attributes;
use protocol::ids::{Cqn, Eqn, Lid, Lkey, Pdn, Qpn};

use super::*;
use crate::strict::rules::{self, *};

const CQ: u32 = 1;
const EQ: u32 = 1;
const QP: u32 = 5;
/// UAR page of the QP.
const PAGE: u32 = 2;
/// Bus addresses of one-page buffers. Their MTT entries and keys are in the same order. The keys start at 1.
const CQ_BUFFER: u64 = 0x20_0000;
const SQ_BUFFER: u64 = 0x20_1000;
const RQ_BUFFER: u64 = 0x20_2000;
const EQ_BUFFER: u64 = 0x20_3000;
const CQ_KEY: u32 = 1;
const SQ_KEY: u32 = 2;
const RQ_KEY: u32 = 3;
const EQ_KEY: u32 = 4;
const DATA_KEY: u32 = 5;
/// MTT entry of the data region. [`FREE_MTT`] is the first unused entry.
const DATA_MTT: u64 = 4;
const FREE_MTT: u64 = 5;

fn unmap(machine: &mut Machine, table: IcmTable, virt: u64, pages: u32) {
    assert_eq!(machine.command_at(virt, Op::UnmapIcm, table.op_modifier(), pages), CmdStatus::Ok.code());
}

fn mpt(key: u32, mtt: u64, flags: MptFlags) -> Mpt {
    region(key, mtt, 0, 0x1000, flags)
}

fn cqc() -> Cqc {
    Cqc { comp_eqn: Eqn::new(EQ), ..driver::cqc(CQ, CQ_KEY, 7) }
}

fn eqc() -> Eqc {
    Eqc { flags: EqFlags::new().with_owner(true).with_armed(true), ..driver::eqc(1, EQ_KEY, 7) }
}

fn qpc() -> Qpc {
    let (qpn, psn) = (Qpn::new(QP), Psn::new(7));
    let image = driver::qpc(CQ, [SQ_KEY, RQ_KEY], 0x1000);
    Qpc { usr_page: PAGE, local_qpn: qpn, remote_qpn: qpn, next_send_psn: psn, ..image }
}

/// Creates a machine in strict mode with a QP brought to RTS by a correct driver.
fn machine() -> Machine {
    let mut machine = powered_on(1, Options::default());
    machine.interface.exact = true;
    machine.hca.set_strict(true);
    machine.initialise(1);
    machine.write_mtt(0, [CQ_BUFFER, SQ_BUFFER, RQ_BUFFER, EQ_BUFFER, 0x30_0000]);
    for (key, mtt) in (1..).zip(0..5) {
        let access = if matches!(key, SQ_KEY | RQ_KEY) { MptFlags::empty() } else { MptFlags::LOCAL_WRITE };
        machine.register(&mpt(key, mtt, access));
    }
    machine.poke(CQ_BUFFER, &[0x80; 0x1000]);
    machine.poke(EQ_BUFFER, &[0x80; 0x1000]);
    machine.ok(Op::Sw2HwEq, 0, EQ, &eqc().emit());
    map_eq(&mut machine, 1 << 9 | 1 << 0x0a);
    machine.create_cq(&cqc());
    machine.connect(QP, &qpc());
    machine
}

fn map_eq(machine: &mut Machine, events: u64) {
    assert_eq!(machine.command_at(events, Op::MapEq, 0, EQ), CmdStatus::Ok.code());
}

fn ring_doorbell(machine: &mut Machine, page: u32, doorbell: SendDoorbell) {
    machine.ring_doorbell(page.into(), doorbell.emit());
}

/// Returns the doorbell for an empty SEND in a slot.
fn doorbell(slot: u32) -> SendDoorbell {
    SendDoorbell { head: slot * 8, fence: false, opcode: 0x0a, qpn: Qpn::new(QP), size: 1 }
}

/// Returns an empty RDMA WRITE whose raddr unit ends with the given four bytes.
fn write_wqe(reserved: [u8; 4]) -> Vec<u8> {
    let mut wqe = vec![0; 32];
    wqe[28..].copy_from_slice(&reserved);
    wqe
}

fn reset_qp(machine: &mut Machine) {
    machine.ok(Op::ToRst, 3, QP, &[]);
}

/// A rule and a function that violates it.
type Case = (&'static Rule, fn(&mut Machine));

/// At least one case per rule.
const CASES: &[Case] = &[
    (&NARROW_WRITE, |m| m.hca.region_write(Region::Bar(Bar::Bar0), 8, &[1, 0])),
    (&NO_REGISTER, |m| m.write32(2, 0x18, 0)),
    (&READ_ONLY_WRITE, |m| m.write32(0, 0xf20, 0)),
    (&NO_EFFECT, |m| m.write32(0, 0xf10, 2)),
    (&HCR_RESERVED, |m| m.write32(0, 0x14, 0xffff_0001)),
    (&HCR_NOT_POLLED, |m| {
        m.write32(0, 0x04, 0);
        m.write32(0, 0x18, 1 << 23 | 0x031);
        m.write32(0, 0x00, 0);
        m.read32(0, 0x18);
    }),
    (&DOORBELL_READ, |m| {
        m.read32(2, 0);
    }),
    (&DOORBELL_HALF, |m| {
        m.write32(2, u64::from(PAGE) * 0x1000, doorbell(0).emit()[0]);
        m.write32(2, u64::from(PAGE) * 0x1000 + 4, doorbell(0).emit()[1]);
        m.write32(2, u64::from(PAGE) * 0x1000 + 4, doorbell(0).emit()[1]);
    }),
    (&DOORBELL_RESERVED, |m| m.write32(2, 0, 0x4a)),
    (&DOORBELL_NO_QP, |m| ring_doorbell(m, PAGE, SendDoorbell { qpn: Qpn::new(9), ..doorbell(0) })),
    (&DOORBELL_STATE, |m| {
        reset_qp(m);
        m.ok(Op::Rst2Init, 0, QP, &qpc().emit());
        ring_doorbell(m, PAGE, doorbell(0));
    }),
    (&DOORBELL_PAGE, |m| ring_doorbell(m, 0, doorbell(0))),
    (&DOORBELL_NUMBER, |m| ring_doorbell(m, PAGE, SendDoorbell { qpn: Qpn::new(0x1_0005), ..doorbell(0) })),
    // The requests never complete, as the machine has no peer.
    (&SQ_OVERRUN, |m| (0..33).for_each(|slot| ring_doorbell(m, PAGE, doorbell(slot)))),
    (&ARM_NOTHING, |m| m.write32(2, 0x10, 7)),
    (&ARM_NOTHING, |m| m.write32(2, 0x20, 7)),
    (&WQE_RESERVED, |m| {
        m.poke(SQ_BUFFER, &write_wqe([0, 0, 1, 0]));
        ring_doorbell(m, PAGE, SendDoorbell { opcode: 0x08, size: 2, ..doorbell(0) });
    }),
    (&WQE_SLOT, |m| ring_doorbell(m, PAGE, SendDoorbell { size: 9, ..doorbell(0) })),
    (&WQE_SLOT, |m| ring_doorbell(m, PAGE, SendDoorbell { head: 1, ..doorbell(0) })),
    (&RECV_UNMARKED, |m| {
        let unit = driver::data_unit(DATA_KEY, 0, 8);
        m.poke(RQ_BUFFER, &[&[0, 0, 0, 0, 1, 0, 0, 0][..], &[0; 8], &unit].concat());
        m.ok(Op::ToErr, 2, QP, &[]);
    }),
    (&UNUSED_PARAMETER, |m| {
        m.raw_command(0, 0, OUTBOX, 1 << 23 | 0x031);
    }),
    (&UNUSED_PARAMETER, |m| {
        m.raw_command(0, 1, OUTBOX, 1 << 23 | 0x003);
    }),
    (&UNDOCUMENTED_MODIFIER, |m| m.ok(Op::ToRst, 2, QP, &[])),
    (&UNDOCUMENTED_MODIFIER, |m| {
        m.ok(Op::ResizeCq, 1, CQ, &ResizeCq { log_entries: 7, lkey: Lkey::new(CQ_KEY) }.emit());
    }),
    (&MAILBOX_ALIGNMENT, |m| {
        m.raw_command(0, 0, OUTBOX + 8, 1 << 23 | 0x003);
    }),
    (&MAILBOX_IGNORED, |m| {
        let mut inbox = mpt(6, DATA_MTT, MptFlags::empty()).emit();
        inbox[0x3f] = 1;
        m.ok(Op::Sw2HwMpt, 0, 6, &inbox);
    }),
    (&EVENT_DROPPED, |m| {
        let word = 1 << 23 | u32::from(Op::MapEq.spec().code);
        m.raw_command(1 << 0x0a, 1 << 31 | EQ, 0, word);
        m.raw_command(0, 0x1f, 0, 1 << 23 | 1 << 22 | 0x031);
    }),
    (&INIT_TWICE, |m| m.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40))),
    (&INIT_COUNTS, |m| {
        teardown(m);
        m.ok(Op::InitHca, 0, 0, &InitHca { mtt_base: IcmAddr::new(0x300_0000), ..layout(16, 16, 18) }.emit());
    }),
    (&INIT_OVERLAP, |m| {
        teardown(m);
        let mut init = layout(16, 16, 17);
        init.cqc.base = IcmAddr::new(QPC + 0x1000);
        m.ok(Op::InitHca, 0, 0, &init.emit());
    }),
    (&INIT_OVERLAP, |m| {
        teardown(m);
        m.ok(
            Op::InitHca,
            0,
            0,
            &InitHca { mtt_base: IcmAddr::new(MPT + 0x100), ..layout(16, 16, 17) }.emit(),
        );
    }),
    (&CLOSE_IN_USE, |m| m.ok(Op::CloseHca, 0, 0, &[])),
    (&CLOSE_TWICE, |m| {
        teardown(m);
        m.ok(Op::CloseHca, 0, 0, &[]);
    }),
    (&MAP_OVER_MAPPED, |m| m.map(IcmTable::Context, QPC, 0x40_0000, 1)),
    (&MAP_SAME_PAGE, |m| m.map(IcmTable::Context, QPC + 0x1000, ICM_TPT + MPT, 1)),
    (&MAP_COUNT, |m| {
        let at = |page: u64| MapEntry {
            virt: IcmAddr::new(0x1000_0000 + page * 0x1000),
            bus: Iova::new(0x3000_0000 + page * 0x1000),
            pages: 1,
        };
        let entries: Vec<_> = (0..65).map(at).collect();
        m.ok(Op::MapIcm, IcmTable::Context.op_modifier(), 64, &icm::emit(&entries[..64]));
        unmap(m, IcmTable::Context, 0x1000_0000, 64);
        m.ok(Op::MapIcm, IcmTable::Context.op_modifier(), 65, &icm::emit(&entries));
    }),
    (&UNMAP_IN_USE, |m| unmap(m, IcmTable::Context, CQC, 64)),
    (&UNMAP_IN_USE, |m| unmap(m, IcmTable::Tpt, MTT, 64)),
    (&UNMAP_NOTHING, |m| unmap(m, IcmTable::Context, QPC + 0x8000, 64)),
    (&KEY_REUSE, |m| {
        m.ok(Op::Hw2SwMpt, 0, DATA_KEY, &[]);
        m.ok(Op::Sw2HwMpt, 0, DATA_KEY, &mpt(DATA_KEY, DATA_MTT, MptFlags::empty()).emit());
    }),
    (&MPT_IN_USE, |m| m.ok(Op::Hw2SwMpt, 0, RQ_KEY, &[])),
    (&MPT_PAGES, |m| m.ok(Op::Sw2HwMpt, 0, 6, &mpt(6, FREE_MTT, MptFlags::empty()).emit())),
    (&MTT_IN_USE, |m| {
        m.ok(Op::WriteMtt, 0, 1, &WriteMtt { start: DATA_MTT, pages: vec![Iova::new(0x40_0000)] }.emit());
    }),
    (&MTT_COUNT, |m| {
        m.map(IcmTable::Tpt, MTT + 0x1000, ICM_TPT + MTT + 0x1000, 1);
        let pages = (0..508).map(|n| Iova::new(0x40_0000 + n * 0x1000)).collect();
        m.ok(Op::WriteMtt, 0, 512, &WriteMtt { start: FREE_MTT, pages }.emit());
    }),
    (&CQ_BUFFER_RULE, |m| {
        m.ok(Op::Sw2HwCq, 0, 2, &Cqc { cqn: Cqn::new(2), pd: Pdn::new(4), ..cqc() }.emit())
    }),
    (&CQ_BUFFER_RULE, |m| m.ok(Op::Sw2HwCq, 0, 2, &Cqc { cqn: Cqn::new(2), log_entries: 8, ..cqc() }.emit())),
    (&CQ_BUFFER_RULE, |m| {
        m.ok(Op::ResizeCq, 0, CQ, &ResizeCq { log_entries: 7, lkey: Lkey::new(99) }.emit())
    }),
    (&CQ_OWNER, |m| {
        m.poke(CQ_BUFFER + 31, &[0]);
        m.ok(Op::Sw2HwCq, 0, 2, &Cqc { cqn: Cqn::new(2), ..cqc() }.emit());
    }),
    (&CQ_NUMBER, |m| m.ok(Op::Sw2HwCq, 0, 2, &cqc().emit())),
    (&CQ_EQ, |m| {
        let (flags, comp_eqn) = (CqFlags::new().with_state(1), Eqn::new(9));
        m.ok(Op::Sw2HwCq, 0, 2, &Cqc { cqn: Cqn::new(2), flags, comp_eqn, ..cqc() }.emit());
    }),
    (&CQ_IN_USE, |m| m.ok(Op::Hw2SwCq, 0, CQ, &[])),
    (&CQ_OVERRUN_RISK, |m| {
        // The existing QP and two more QPs have 64 slots each, but the CQ has only 128 entries.
        for qpn in [6, 7] {
            let qpc = Qpc { local_qpn: Qpn::new(qpn), ..qpc() };
            m.connect(qpn, &qpc);
        }
    }),
    (&EQ_BUFFER_RULE, |m| m.ok(Op::Sw2HwEq, 0, 2, &Eqc { lkey: Lkey::new(RQ_KEY), ..eqc() }.emit())),
    (&EQ_OWNER, |m| {
        m.poke(EQ_BUFFER + 63, &[0x7f]);
        m.ok(Op::Sw2HwEq, 0, 2, &eqc().emit());
    }),
    (&EQ_VECTOR, |m| m.ok(Op::Sw2HwEq, 0, 2, &Eqc { msix_vector: 64, ..eqc() }.emit())),
    (&EQ_EVENTS, |m| map_eq(m, 1)),
    (&EQ_EVENTS, |m| map_eq(m, 1 << 32)),
    (&EQ_IN_USE, |m| {
        m.write32(2, 0x10, CQ);
        m.ok(Op::Hw2SwEq, 0, EQ, &[]);
    }),
    (&QP_NUMBER, |m| m.ok(Op::Rst2Init, 0, 6, &qpc().emit())),
    (&QP_CQ, |m| {
        reset_qp(m);
        let qpc = Qpc { recv_cqn: Cqn::new(9), ..qpc() };
        m.ok(Op::Rst2Init, 0, QP, &qpc.emit());
        m.ok(Op::Init2Rtr, 0, QP, &qpc.emit());
    }),
    (&QP_BUFFER, |m| {
        reset_qp(m);
        let qpc = Qpc { sq_len: 0x2000, ..qpc() };
        m.connect(QP, &qpc);
    }),
    (&QP_ATTRIBUTES, |m| {
        let opt_param_mask = (Attributes::AV | Attributes::ALT_PATH).bits();
        m.ok(Op::Rts2Rts, 0, QP, &Qpc { opt_param_mask, ..qpc() }.emit());
    }),
    (&QP_UNNAMED, |m| m.ok(Op::Rts2Rts, 0, QP, &Qpc { rq_len: 0x800, ..qpc() }.emit())),
    (&QP_UNNAMED, |m| {
        let opt_param_mask = Attributes::ALT_PATH.bits();
        m.ok(Op::Rts2Rts, 0, QP, &Qpc { opt_param_mask, min_rnr_timer: 5, ..Qpc::default() }.emit());
    }),
    (&QP_SOURCE, |m| recreate_qp(m, &Qpc { source_ip: 0x0a4d_0009, ..qpc() })),
    (&QP_SOURCE, |m| recreate_qp(m, &Qpc { smac_high: 0x0200_0000, slid: Lid::new(9), ..qpc() })),
    (&QP_SOURCE, |m| recreate_qp(m, &Qpc { slid: Lid::new(9), ..qpc() })),
    (&QUERY_RESET, |m| m.ok(Op::QueryQp, 0, 9, &[])),
];

fn recreate_qp(machine: &mut Machine, qpc: &Qpc) {
    reset_qp(machine);
    machine.connect(QP, qpc);
}

use rules::{CQ_BUFFER as CQ_BUFFER_RULE, EQ_BUFFER as EQ_BUFFER_RULE};

/// Releases all objects as the driver does when it is unloaded (section 13).
fn teardown(machine: &mut Machine) {
    reset_qp(machine);
    machine.ok(Op::Hw2SwCq, 0, CQ, &[]);
    machine.ok(Op::Hw2SwEq, 0, EQ, &[]);
    for key in CQ_KEY..=DATA_KEY {
        machine.ok(Op::Hw2SwMpt, 0, key, &[]);
    }
    for (table, base) in
        [(IcmTable::Tpt, MPT), (IcmTable::Tpt, MTT), (IcmTable::Context, CQC), (IcmTable::Context, QPC)]
    {
        unmap(machine, table, base, 64);
    }
    unmap(machine, IcmTable::Context, EQC, 1);
    machine.ok(Op::CloseHca, 0, 0, &[]);
}

fn violations(machine: &Machine) -> Vec<(&'static str, u64)> {
    machine.hca.monitor().violations().collect()
}

#[test]
fn conforming_driver_has_no_violations() {
    let mut machine = machine();
    let unit = driver::data_unit(DATA_KEY, 0, 8);
    machine.poke(RQ_BUFFER, &[&[0x20][..], &[0; 15], &unit].concat());
    machine.poke(SQ_BUFFER + 0x80, &write_wqe([0; 4]));
    (0..32).for_each(|slot| ring_doorbell(&mut machine, PAGE, doorbell(slot)));
    machine.write32(2, 0x10, CQ);
    machine.ok(Op::QueryQp, 0, QP, &[]);
    machine.ok(Op::ToErr, 2, QP, &[]);
    machine.settle();
    teardown(&mut machine);
    machine.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
    assert_eq!(violations(&machine), []);
}

#[test]
fn each_violation_is_reported_by_one_rule() {
    let reported = |(rule, software): &Case| {
        let mut machine = machine();
        software(&mut machine);
        machine.settle();
        (rule.name, violations(&machine))
    };
    let wrong: Vec<_> = CASES.iter().map(reported).filter(|(rule, found)| *found != [(*rule, 1)]).collect();
    assert!(wrong.is_empty(), "expected rules, each with the reported violations: {wrong:#?}");
}

#[test]
fn every_rule_has_a_case() {
    for rule in rules::ALL {
        assert!(CASES.iter().any(|(broken, _)| broken == rule), "{}", rule.name);
    }
}

#[test]
fn violations_are_reported_only_in_strict_mode() {
    for (rule, software) in CASES {
        let mut machine = machine();
        machine.hca.set_strict(false);
        software(&mut machine);
        assert_eq!(violations(&machine), [], "{}", rule.name);
    }
}

#[test]
fn source_addresses_of_own_port_are_not_reported() {
    let own = Identity::from_lid(Lid::new(1));
    let mut machine = machine();
    let [a, b, c, d, e, f] = own.mac.0;
    let source = Qpc {
        source_ip: own.ipv4.to_bits(),
        smac_high: u32::from_be_bytes([a, b, c, d]),
        slid: Lid::new(u16::from_be_bytes([e, f])),
        ..qpc()
    };
    recreate_qp(&mut machine, &source);
    recreate_qp(&mut machine, &Qpc { slid: own.lid, ..qpc() });
    assert_eq!(violations(&machine), []);
}

#[test]
fn rejected_command_is_not_reported() {
    let mut machine = machine();
    // The CQ is already valid, so the command is rejected.
    let cqc = Cqc { pd: Pdn::new(4), ..cqc() };
    assert_eq!(machine.command(Op::Sw2HwCq, 0, CQ, &cqc.emit()), CmdStatus::BadParam.code());
    assert_eq!(violations(&machine), []);
}

/// Section 9.3: values 1 to 19 of page_size are codes, which the device does not ignore (J-20).
#[test]
fn page_size_code_is_not_reported() {
    let mut machine = machine();
    let mut inbox = mpt(6, DATA_MTT, MptFlags::empty()).emit();
    inbox[4..8].copy_from_slice(&19_u32.to_be_bytes());
    machine.ok(Op::Sw2HwMpt, 0, 6, &inbox);
    assert_eq!(violations(&machine), []);
}

/// Section 3.11: a CQ with more entries than QUERY_DEV_LIM reports is rejected. The size field is a whole byte, and the
/// driver's region of all memory (J-26) contains a buffer of any size.
#[test]
fn oversized_cq_is_rejected_in_strict_mode() {
    let mut machine = machine();
    let memory = Mpt { length: u64::MAX, ..mpt(6, 0, MptFlags::LOCAL_WRITE) };
    machine.ok(Op::Sw2HwMpt, 0, 6, &memory.emit());
    for log_entries in [21, 63, 64, 255] {
        let cqc = Cqc { cqn: Cqn::new(2), lkey: Lkey::new(6), log_entries, ..cqc() };
        assert_eq!(machine.command(Op::Sw2HwCq, 0, 2, &cqc.emit()), CmdStatus::BadParam.code());
    }
    assert_eq!(violations(&machine), []);
}

#[test]
fn report_identifies_violation_and_object() {
    use card::telemetry::testing::Written;
    use card::telemetry::trace::TraceFormat;

    let written = Written::default();
    let mut machine = machine();
    machine.hca.set_trace(Some(written.trace(TraceFormat::Text)));
    machine.ok(Op::Hw2SwMpt, 0, RQ_KEY, &[]);
    machine.hca.flush();
    let text = written.text();
    let report = text.lines().find(|line| line.contains(" violation ")).unwrap();
    assert_eq!(
        report,
        "1.500000 hca1 violation mpt_in_use section=\"3.7, 7\" what=\"the memory region with key 0x3 is the buffer of QP \
         0x5\""
    );
}
