//! Tests that the device keeps working if one byte or word of an inbox or a WQE has an extreme value. Each session
//! creates valid objects and uses them. The QPs are connected to themselves.

use card::frontend::testing::Session;
use drivers::jingzhao::{self as driver, Queues, cqc, data_unit, eqc, remote_unit, signalled};
use protocol::Psn;
use protocol::hca::jingzhao::cqc::{CqFlags, Cqc, ResizeCq};
use protocol::hca::jingzhao::eqc::{EqFlags, Eqc};
use protocol::hca::jingzhao::mpt::{Mpt, MptFlags};
use protocol::hca::jingzhao::qpc::{Qpc, ServiceType};
use protocol::hca::jingzhao::transition::Attributes;
use protocol::ids::{Eqn, Lid, Lkey, Qpn};

use super::*;

const QPN: u32 = 5;
/// Bus addresses of buffers, one page each.
const CQ: u64 = 0x20_0000;
const SQ: u64 = 0x20_1000;
const RQ: u64 = 0x20_2000;
const EQ: u64 = 0x20_3000;
const DATA: u64 = 0x20_4000;
const QUEUES: Queues = Queues { qpn: QPN, page: 1, sq: SQ, rq: RQ };
const DATA_KEY: u32 = 5;
/// Key of the region that contains all memory (J-26).
const ALL_KEY: u32 = 6;

/// Creates a machine that is its own peer.
fn looped() -> Machine {
    let own = Identity::from_lid(Lid::new(1));
    powered_on_with(
        setup(1, Options::default()),
        Addresses { own, peers: Vec::new(), default_peer: Some(own) },
    )
}

/// Creates a machine after INIT_HCA, with one page per table.
fn opened() -> Machine {
    let mut machine = looped();
    machine.interface.exact = true;
    machine.initialise(1);
    machine
}

/// Like [`opened`], but with regions, an EQ and a CQ.
fn with_queues() -> Machine {
    let mut machine = opened();
    register(&mut machine);
    create_queues(&mut machine);
    machine
}

/// Like [`with_queues`], but with an RC QP in RTS.
fn connected() -> Machine {
    let mut machine = with_queues();
    machine.connect(QPN, &qpc());
    machine
}

fn register(machine: &mut Machine) {
    machine.write_mtt(0, [CQ, SQ, RQ, EQ, DATA, DATA + 0x1000]);
    let (none, write) = (MptFlags::empty(), MptFlags::LOCAL_WRITE);
    let remote = write | MptFlags::REMOTE_WRITE | MptFlags::REMOTE_READ | MptFlags::REMOTE_ATOMIC;
    for (key, mtt, length, flags) in
        [(1, 0, 0x1000, write), (2, 1, 0x1000, none), (3, 2, 0x1000, none), (4, 3, 0x1000, write)]
    {
        machine.register(&region(key, mtt, 0, length, flags));
    }
    machine.register(&region(DATA_KEY, 4, 0x800, 0x1000, remote));
    machine.register(&Mpt { length: u64::MAX, ..region(ALL_KEY, 0, 0, 0, write) });
}

fn create_queues(machine: &mut Machine) {
    machine.poke(CQ, &[0x80; 0x1000]);
    machine.poke(EQ, &[0x80; 0x1000]);
    let flags = EqFlags::new().with_owner(true).with_armed(true);
    machine.ok(Op::Sw2HwEq, 0, 1, &Eqc { flags, ..eqc(1, 4, 5) }.emit());
    assert_eq!(machine.command_at(1 << 4 | 1 << 9 | 1 << 0xa | 1, Op::MapEq, 0, 1), 0);
    let flags = CqFlags::new().with_state(1);
    machine.create_cq(&Cqc { comp_eqn: Eqn::new(1), flags, ..cqc(1, 1, 5) });
    // The region of this ring has no bounds.
    machine.create_cq(&cqc(2, ALL_KEY, 5));
}

fn qpc() -> Qpc {
    let (qpn, psn) = (Qpn::new(QPN), Psn::new(0xff_fffe));
    let image = driver::qpc(1, [2, 3], 0x1000);
    Qpc { local_qpn: qpn, remote_qpn: qpn, next_send_psn: psn, recv_psn: psn, ..image }
}

/// A QP without a receive queue.
fn send_only() -> Qpc {
    Qpc { rq_len: 0, rq_lkey: Lkey::new(0), ..qpc() }
}

fn ud() -> Qpc {
    Qpc { service: ServiceType::Ud.code(), ..qpc() }
}

fn send_datagram(machine: &mut Machine) {
    let mut address = [0; 48];
    address[6] = 1;
    address[0x20] = 5;
    machine.post_recv(&QUEUES, 0, &data_unit(DATA_KEY, 0x800, 64));
    let wqe = signalled(&[&address[..], &data_unit(DATA_KEY, 0x900, 8)].concat());
    machine.post_send(&QUEUES, 0, 0x0a, &wqe);
    transfer(machine);
}

/// Delivers the device's frames to itself, and lets a few timers expire.
fn transfer(machine: &mut Machine) {
    for round in 0..12 {
        let frames = machine.settle();
        frames.iter().take(16).for_each(|frame| machine.hca.handle_frame(frame));
        if !frames.is_empty() {
            continue;
        }
        match machine.hca.next_deadline() {
            Some(deadline) if round < 10 => machine.advance(deadline),
            _ => return,
        }
    }
}

fn send(machine: &mut Machine, slot: u32, opcode: u8, units: &[Vec<u8>]) {
    machine.post_send(&QUEUES, slot, opcode, &signalled(&units.concat()));
}

/// Transfers a message and then moves the QP to ERR and RESET.
fn use_qp(machine: &mut Machine) {
    machine.post_recv(&QUEUES, 0, &data_unit(DATA_KEY, 0x800, 64));
    machine.post_recv(&QUEUES, 1, &data_unit(DATA_KEY, 0x800, 64));
    send(machine, 0, 0x0a, &[data_unit(DATA_KEY, 0x900, 8)]);
    transfer(machine);
    assert_eq!(machine.peek(CQ + 31, 1), [0], "the CQ has an entry");
    machine.ok(Op::QueryQp, 0, QPN, &[]);
    machine.ok(Op::ToErr, 2, QPN, &[]);
    machine.settle();
    machine.ok(Op::ToRst, 3, QPN, &[]);
}

fn close(machine: &mut Machine) {
    machine.ok(Op::Hw2SwCq, 0, 1, &[]);
    machine.ok(Op::Hw2SwCq, 0, 2, &[]);
    machine.ok(Op::Hw2SwEq, 0, 1, &[]);
    (1..=ALL_KEY).for_each(|key| machine.ok(Op::Hw2SwMpt, 0, key, &[]));
    machine.ok(Op::CloseHca, 0, 0, &[]);
}

#[track_caller]
fn repeat(open: fn() -> Machine, act: fn(&mut Machine), step: usize) {
    let check = |machine: &mut Machine| {
        machine.ok(Op::Nop, 0, 0, &[]);
        machine.ok(Op::QueryDevLim, 0, 0, &[]);
    };
    let count = Session { open, guest: |machine| &mut machine.bus, act, check, step }.repeat();
    assert!(count > 500, "only {count} sessions");
}

/// Sections 3.3 and 3.5: INIT_HCA sets the location and size of the tables, and MAP_ICM maps them.
#[test]
fn init_hca_with_extreme_value_leaves_device_working() {
    let act = |machine: &mut Machine| {
        machine.initialise(1);
        register(machine);
        machine.connect(QPN, &qpc());
        machine.ok(Op::CloseHca, 0, 0, &[]);
    };
    repeat(looped, act, 13);
}

#[test]
fn context_with_extreme_value_leaves_device_working() {
    let act = |machine: &mut Machine| {
        register(machine);
        create_queues(machine);
        machine.ok(Op::ResizeCq, 0, 1, &ResizeCq { log_entries: 6, lkey: Lkey::new(1) }.emit());
        machine.connect(QPN, &qpc());
        use_qp(machine);
        close(machine);
    };
    repeat(opened, act, 5);
}

#[test]
fn rc_qp_context_with_extreme_value_leaves_device_working() {
    let act = |machine: &mut Machine| {
        machine.connect(QPN, &qpc());
        use_qp(machine);
    };
    repeat(with_queues, act, 7);
}

#[test]
fn modified_qp_with_extreme_value_leaves_device_working() {
    let act = |machine: &mut Machine| {
        let opt_param_mask = Attributes::all().bits();
        let qpc = Qpc { opt_param_mask, ..qpc() };
        machine.ok(Op::Rts2Rts, 0, QPN, &qpc.emit());
        machine.ok(Op::Rts2Sqd, 0, QPN, &qpc.emit());
        machine.ok(Op::Sqd2Sqd, 0, QPN, &qpc.emit());
        machine.ok(Op::Sqd2Rts, 0, QPN, &qpc.emit());
        use_qp(machine);
    };
    repeat(connected, act, 11);
}

/// Section 6.8: a QP may have no receive queue.
#[test]
fn send_only_qp_with_extreme_value_leaves_device_working() {
    let act = |machine: &mut Machine| {
        machine.connect(QPN, &send_only());
        send(machine, 0, 0x08, &[remote_unit(DATA_KEY, 0x1000), data_unit(DATA_KEY, 0x900, 8)]);
        transfer(machine);
        use_qp(machine);
    };
    repeat(with_queues, act, 3);
}

#[test]
fn ud_qp_with_extreme_value_leaves_device_working() {
    let act = |machine: &mut Machine| {
        machine.connect(QPN, &ud());
        send_datagram(machine);
        use_qp(machine);
    };
    repeat(with_queues, act, 11);
}

#[test]
fn wqe_with_extreme_value_leaves_device_working() {
    let act = |machine: &mut Machine| {
        let (data, remote) = (data_unit(DATA_KEY, 0x900, 8), remote_unit(DATA_KEY, 0x1000));
        machine.post_recv(&QUEUES, 0, &data_unit(DATA_KEY, 0x800, 64));
        machine.post_recv(&QUEUES, 1, &data_unit(DATA_KEY, 0x800, 64));
        let inline = [&(1_u32 << 31 | 12).to_le_bytes()[..], &[7; 12]].concat();
        send(machine, 0, 0x0a, &[data.clone(), data.clone()]);
        send(machine, 1, 0x0b, &[inline]);
        transfer(machine);
        send(machine, 2, 0x08, &[remote.clone(), data.clone()]);
        send(machine, 3, 0x10, &[remote.clone(), data.clone()]);
        transfer(machine);
        send(machine, 4, 0x11, &[remote.clone(), vec![1; 16], data.clone()]);
        send(machine, 5, 0x12, &[remote, vec![1; 16], data]);
        transfer(machine);
        use_qp(machine);
    };
    repeat(connected, act, 5);
}
