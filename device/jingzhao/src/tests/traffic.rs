//! Tests two devices connected back to back, from doorbells to completions.

mod addresses;
mod network;
mod options;

use card::frontend::testing::pattern;
use drivers::jingzhao::{self as driver, Queues, cqc, doorbell, remote_unit, signalled};
use protocol::Psn;
use protocol::hca::jingzhao::eqe::Eqe;
use protocol::hca::jingzhao::mpt::MptFlags;
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::Qpn;

use super::*;

/// QPN with its high bits, as software uses it. The table index is 5.
pub(super) const QPN: u32 = 0x1_0005;
pub(super) const ENTRY: u64 = ICM_CONTEXT + QPC + 5 * 256;
/// Bus addresses of buffers, one page each.
const CQ: u64 = 0x20_0000;
const SQ: u64 = 0x20_1000;
const RQ: u64 = 0x20_2000;
const EQ: u64 = 0x20_3000;
pub(super) const QUEUES: Queues = Queues { qpn: QPN, page: 1, sq: SQ, rq: RQ };
/// Key of the data region, whose pages have descending bus addresses.
pub(super) const DATA_KEY: u32 = 0x4_0005;
const DATA_VA: u64 = 0x7f00_0000_0800;
const DATA_LEN: u64 = 0x3000;
const CQ_ENTRIES_LOG: u8 = 5;

/// Creates a machine with regions, a CQ, and QP [`QPN`] in RTS. Its peer's QP has the same number.
pub(super) fn peer(lid: u16, options: Options) -> Machine {
    connected(initialised_as(lid, options), &qpc())
}

/// Adds regions, a CQ, and QP [`QPN`] in RTS.
fn connected(mut machine: Machine, image: &Qpc) -> Machine {
    let mut pages = vec![CQ, SQ, RQ, EQ];
    pages.extend((0..4).map(|n| 0x30_3000 - n * 0x1000));
    machine.write_mtt(0, pages);
    let (none, write) = (MptFlags::empty(), MptFlags::LOCAL_WRITE);
    for (key, mtt, flags) in [(1, 0, write), (2, 1, none), (3, 2, none), (4, 3, write)] {
        machine.register(&region(key, mtt, 0, 0x1000, flags));
    }
    let data = MptFlags::LOCAL_WRITE | MptFlags::REMOTE_WRITE | MptFlags::REMOTE_READ;
    machine.register(&region(DATA_KEY, 4, DATA_VA, DATA_LEN, data));
    create_cq(&mut machine, CQ_ENTRIES_LOG);
    machine.connect(QPN, image);
    machine
}

fn create_cq(machine: &mut Machine, log_entries: u8) {
    machine.poke(CQ, &[0x80; 0x1000]);
    machine.create_cq(&cqc(1, 1, log_entries));
}

pub(super) fn qpc() -> Qpc {
    let (qpn, psn) = (Qpn::new(5), Psn::new(0xff_fffe));
    let image = driver::qpc(1, [2, 3], 0x1000);
    Qpc { local_qpn: qpn, remote_qpn: qpn, next_send_psn: psn, recv_psn: psn, ..image }
}

fn data_bus(offset: u64) -> u64 {
    let linear = 0x800 + offset;
    0x30_3000 - (linear >> 12 << 12) + (linear & 0xfff)
}

pub(super) fn put_data(machine: &mut Machine, offset: u64, data: &[u8]) {
    for (offset, byte) in (offset..).zip(data) {
        machine.poke(data_bus(offset), &[*byte]);
    }
}

pub(super) fn get_data(machine: &mut Machine, offset: u64, len: u64) -> Vec<u8> {
    (offset..offset + len).map(|offset| machine.peek(data_bus(offset), 1)[0]).collect()
}

pub(super) fn data_unit(offset: u64, len: u32) -> Vec<u8> {
    driver::data_unit(DATA_KEY, DATA_VA + offset, len)
}

pub(super) fn remote(offset: u64, rkey: u32) -> Vec<u8> {
    remote_unit(rkey, DATA_VA + offset)
}

pub(super) fn post_recv(machine: &mut Machine, slot: u32, offset: u64, len: u32) {
    machine.post_recv(&QUEUES, slot, &data_unit(offset, len));
}

pub(super) fn send(machine: &mut Machine, slot: u32, opcode: u8, units: &[Vec<u8>]) {
    machine.post_send(&QUEUES, slot, opcode, &signalled(&units.concat()));
}

pub(super) fn cqe(machine: &mut Machine, slot: u64) -> Vec<u8> {
    machine.peek(CQ + slot * 32, 32)
}

pub(super) fn state(machine: &mut Machine) -> u8 {
    machine.peek(ENTRY + 8, 1)[0] >> 4
}

pub(super) fn pair() -> (Machine, Machine) {
    (peer(1, Options::default()), peer(2, Options::default()))
}

#[test]
fn send_completes_on_both_sides() {
    let (mut a, mut b) = pair();
    let data = pattern(0x1900, 7);
    put_data(&mut a, 0x10, &data);
    post_recv(&mut b, 0, 0x701, 0x2000);
    send(&mut a, 1, 0x0a, &[data_unit(0x10, 0x1900)]);
    exchange(&mut a, &mut b);
    assert_eq!(get_data(&mut b, 0x701, 0x1900), data);
    assert_eq!(get_data(&mut b, 0x701 + 0x1900, 0x100), [0; 0x100]);
    // As in section 14.9, except for QPN, LID and length.
    let sent = dump(
        "00: 05 00 01 00 00 00 00 00 05 00 00 00 00 00 00 00
         10: 00 00 00 00 00 19 00 00 80 00 00 00 0A 01 00 00",
        32,
    );
    assert_eq!(cqe(&mut a, 0), sent);
    let received = dump(
        "00: 05 00 01 00 00 00 00 00 05 00 00 00 00 00 01 00
         10: 00 00 00 00 00 19 00 00 00 00 00 00 02 00 00 00",
        32,
    );
    assert_eq!(cqe(&mut b, 0), received);
    assert_eq!(cqe(&mut a, 1), [0x80; 32]);
    assert_eq!(cqe(&mut b, 1), [0x80; 32]);
}

/// With the public driver, the QPN in the context lacks the high bits. A peer may send to that QPN or to the full QPN.
/// A packet to an earlier QP with the same index is not accepted (section 4.3).
#[test]
fn connection_accepts_full_and_truncated_qpn() {
    let successor = QPN + 0x1_0000;
    for (number, reached) in [(successor, true), (5, true), (QPN, false), (0xff_0005, false)] {
        let to_b = Qpc { remote_qpn: Qpn::new(number), ..qpc() };
        let mut a = connected(initialised_as(1, Options::default()), &to_b);
        let mut b = peer(2, Options::default());
        b.ok(Op::ToRst, 0, QPN, &[0; 0xc0]);
        b.connect(successor, &qpc());
        post_recv(&mut b, 0, 0x701, 64);
        put_data(&mut a, 0, b"hello");
        send(&mut a, 0, 0x0a, &[data_unit(0, 5)]);
        exchange(&mut a, &mut b);
        let expected = if reached { b"hello" } else { &[0; 5] };
        assert_eq!(get_data(&mut b, 0x701, 5), expected, "{number:x}");
        assert_eq!(cqe(&mut b, 0)[0x1f] == 0, reached, "{number:x}");
    }
}

#[test]
fn qp_context_in_icm_shows_advanced_psns() {
    let (mut a, mut b) = pair();
    send(&mut a, 0, 0x08, &[remote(0, DATA_KEY), data_unit(0, 0x400)]);
    exchange(&mut a, &mut b);
    // The WRITE has four packets, starting at PSN FFFFFEh.
    assert_eq!(a.peek(ENTRY + 0x6c, 4), [0, 0, 0, 2]);
    assert_eq!(a.peek(ENTRY + 0x7c, 4), [0, 0, 0, 2]);
    assert_eq!(b.peek(ENTRY + 0x84, 4), [0, 0, 0, 2]);
    assert_eq!(state(&mut a), 3);
}

#[test]
fn write_and_read_do_not_involve_peer_software() {
    let (mut a, mut b) = pair();
    let data = pattern(0x2800, 3);
    put_data(&mut a, 0x100, &data);
    send(&mut a, 0, 0x08, &[remote(0x7ff, DATA_KEY), data_unit(0x100, 0x2800)]);
    exchange(&mut a, &mut b);
    assert_eq!(get_data(&mut b, 0x7ff, 0x2800), data);
    assert_eq!((cqe(&mut a, 0)[0x1c], cqe(&mut b, 0)), (8, vec![0x80; 32]));
    put_data(&mut a, 0, &[0; 0x3000]);
    send(&mut a, 1, 0x10, &[remote(0x7ff, DATA_KEY), data_unit(3, 0x2800)]);
    exchange(&mut a, &mut b);
    assert_eq!(get_data(&mut a, 3, 0x2800), data);
    assert_eq!(cqe(&mut a, 1)[0x14..0x1e], [0, 0x28, 0, 0, 0x80, 0, 0, 0, 0x10, 1]);
}

#[test]
fn wrong_key_causes_remote_access_error() {
    let (mut a, mut b) = pair();
    for (slot, (offset, key)) in [(0, 5), (DATA_LEN - 1, DATA_KEY)].into_iter().enumerate() {
        let slot = u32::try_from(slot).unwrap();
        put_data(&mut a, 0, &[0xff; 2]);
        send(&mut a, slot, 0x08, &[remote(offset, key), data_unit(0, 2)]);
        exchange(&mut a, &mut b);
        let mut error = dump("10: 13 00 00 00 00 00 00 00 00 00 00 00 FF 00 00 00", 32);
        error[..4].copy_from_slice(&QPN.to_le_bytes());
        error[0x18] = u8::try_from(slot * 128).unwrap();
        assert_eq!(cqe(&mut a, slot.into()), error);
        assert_eq!(get_data(&mut b, 0, DATA_LEN), vec![0; 0x3000]);
        assert_eq!((state(&mut a), state(&mut b)), (6, 6));
        for machine in [&mut a, &mut b] {
            machine.ok(Op::ToRst, 0, QPN, &[0; 0xc0]);
            machine.connect(QPN, &qpc());
        }
    }
}

#[test]
fn lkey_from_other_pd_moves_qp_to_error() {
    let (mut a, mut b) = pair();
    a.ok(Op::Hw2SwMpt, 0, 5, &[]);
    let mut foreign = region(DATA_KEY, 4, DATA_VA, DATA_LEN, MptFlags::LOCAL_WRITE).emit();
    foreign[0x0f] = 9;
    a.ok(Op::Sw2HwMpt, 0, 5, &foreign);
    send(&mut a, 0, 0x0a, &[data_unit(0, 4)]);
    exchange(&mut a, &mut b);
    send(&mut a, 1, 0x0a, &[data_unit(0, 4)]);
    exchange(&mut a, &mut b);
    assert_eq!((cqe(&mut a, 0)[0x10], cqe(&mut a, 0)[0x1c]), (0x04, 0xff));
    assert_eq!((cqe(&mut a, 1)[0x10], cqe(&mut a, 1)[0x18]), (0x05, 0x80));
    assert_eq!(state(&mut a), 6);
    assert_eq!(state(&mut b), 3);
}

#[test]
fn error_state_flushes_posted_receives() {
    let (mut a, _) = pair();
    post_recv(&mut a, 0, 0, 64);
    post_recv(&mut a, 1, 64, 64);
    a.ok(Op::ToErr, 2, QPN, &[]);
    for slot in 0..2 {
        // These fields match the RQ flush example in section 14.9.
        let entry = cqe(&mut a, slot);
        assert_eq!(entry[0x10], 5);
        assert_eq!(entry[0x18..0x1d], [u8::try_from(slot * 128).unwrap(), 0, 0, 0, 0xfe]);
    }
    assert_eq!(cqe(&mut a, 2), [0x80; 32]);
}

#[test]
fn doorbell_in_wrong_state_or_page_is_discarded() {
    let (mut a, mut b) = pair();
    a.ok(Op::ToRst, 3, QPN, &[]);
    send(&mut a, 0, 0x0a, &[]);
    for op in [Op::Rst2Init, Op::Init2Rtr] {
        a.ok(op, 0, QPN, &qpc().emit());
        send(&mut a, 0, 0x0a, &[]);
    }
    a.ok(Op::Rtr2Rts, 0, QPN, &qpc().emit());
    exchange(&mut a, &mut b);
    assert_eq!(cqe(&mut a, 0), [0x80; 32]);

    let mut checked = peer(1, Options { uar_check: true, ..Options::default() });
    let in_page = |checked: &mut Machine, usr_page| {
        checked.ok(Op::ToRst, 3, QPN, &[]);
        checked.connect(QPN, &Qpc { usr_page, ..qpc() });
        send(checked, 0, 0x00, &[]);
    };
    in_page(&mut checked, 2);
    checked.settle();
    assert_eq!(cqe(&mut checked, 0), [0x80; 32]);
    in_page(&mut checked, 1);
    checked.settle();
    assert_eq!(cqe(&mut checked, 0)[0x1c..], [0, 1, 0, 0]);
}

#[test]
fn full_cq_raises_event_and_fails_qp() {
    let (mut a, mut b) = pair();
    a.ok(Op::Hw2SwCq, 0, 1, &[]);
    create_cq(&mut a, 1);
    a.poke(EQ, &[0x80; 0x1000]);
    let eqc = dump(
        "00: 01 04 01 00 00 00 00 00 00 00 00 00 05 00 00 00
         10: 00 00 00 00 00 00 00 02 00 00 00 03 00 00 00 04",
        0x40,
    );
    a.ok(Op::Sw2HwEq, 0, 0, &eqc);
    // Select CQ_ERROR. The mask for MAP_EQ is in the command itself, not in a mailbox.
    assert_eq!(a.command_at(1 << 4, Op::MapEq, 0, 0), 0);
    for slot in 0..4 {
        send(&mut a, slot, 0x08, &[remote(0, DATA_KEY), data_unit(0, 4)]);
        exchange(&mut a, &mut b);
    }
    assert_eq!(cqe(&mut a, 0)[0x1c..], [8, 1, 0, 0]);
    assert_eq!(cqe(&mut a, 1)[0x1c..], [8, 1, 0, 0]);
    assert_eq!(cqe(&mut a, 2), [0x80; 32]);
    assert_eq!(state(&mut a), 6);
    assert_eq!(a.peek(ICM_CONTEXT + CQC + 0x40, 1)[0] >> 4, 9, "CQC status is overflow");
    let event = dump("00: 00 04 00 00 01 00 00 00 01 00 00 00 00 00 00 00", 32);
    assert_eq!(a.peek(EQ, 32), event);
    assert_eq!(a.peek(EQ + 32, 32), [0x80; 32], "only one event is raised");
}

#[test]
fn completions_for_destroyed_cq_are_lost() {
    let (mut a, mut b) = pair();
    a.ok(Op::Hw2SwCq, 0, 1, &[]);
    send(&mut a, 0, 0x08, &[remote(0, DATA_KEY), data_unit(0, 4)]);
    exchange(&mut a, &mut b);
    create_cq(&mut a, CQ_ENTRIES_LOG);
    send(&mut a, 1, 0x08, &[remote(0, DATA_KEY), data_unit(0, 4)]);
    exchange(&mut a, &mut b);
    assert_eq!(cqe(&mut a, 0)[0x18..], [0x80, 0, 0, 0, 8, 1, 0, 0]);
    assert_eq!(cqe(&mut a, 1), [0x80; 32]);
}

#[test]
fn write_to_region_with_unmapped_mtt_fails() {
    let (mut a, mut b) = pair();
    assert_eq!(b.command_at(MTT, Op::UnmapIcm, 2, 1), 0);
    put_data(&mut a, 0, &[0xff; 4]);
    send(&mut a, 0, 0x08, &[remote(0, DATA_KEY), data_unit(0, 4)]);
    exchange(&mut a, &mut b);
    assert_eq!(cqe(&mut a, 0)[0x10], 0x13);
    assert_eq!(get_data(&mut b, 0, 4), [0; 4]);
}

#[test]
fn command_event_contains_command_token() {
    let mut a = peer(1, Options::default());
    a.poke(EQ, &[0x80; 0x1000]);
    let eqc = dump(
        "00: 01 04 00 00 00 00 00 00 00 00 00 00 05 00 00 00
         10: 00 00 00 00 00 00 00 02 00 00 00 03 00 00 00 04",
        0x40,
    );
    a.ok(Op::Sw2HwEq, 0, 0, &eqc);
    assert_eq!(a.command_at(1 << 0xa, Op::MapEq, 0, 0), 0);
    assert_eq!(a.raw_command(0, 0, 0x1234, 1 << 23 | 1 << 22 | 0x055), 2);
    let event = dump("00: 00 0A 00 00 FF FF 00 00 00 00 00 02 34 12 00 00", 32);
    assert_eq!(a.peek(EQ, 32), event);
}

#[test]
fn unwritable_eq_raises_catastrophic_event_on_another_eq() {
    let mut a = peer(1, Options::default());
    a.poke(EQ, &[0x80; 0x1000]);
    // The buffer with key 2 is not writable.
    for (eqn, key) in [(0, "02"), (1, "04")] {
        let eqc = format!(
            "00: 01 04 00 00 00 00 00 00 00 00 00 00 05 00 00 00
             10: 00 00 00 00 00 00 00 02 00 00 00 03 00 00 00 {key}"
        );
        a.ok(Op::Sw2HwEq, 0, eqn, &dump(&eqc, 0x40));
    }
    assert_eq!(a.command_at(1 << 0xa, Op::MapEq, 0, 0), 0);
    assert_eq!(a.command_at(1 << 0x8, Op::MapEq, 0, 1), 0);
    assert_eq!(a.raw_command(0, 0, 0, 1 << 23 | 1 << 22 | 0x031), 0);
    assert_eq!(a.peek(EQ, 32), dump("00: 00 08 00 00 00 00 00 00 00 00 00 00 00 00 00 00", 32));
    // The catastrophic event is now mapped to the unwritable EQ and is lost too.
    assert_eq!(a.command_at(1 << 0x8, Op::MapEq, 0, 0), 0);
    assert_eq!(a.raw_command(0, 0, 0, 1 << 23 | 1 << 22 | 0x031), 0);
    assert_eq!(a.peek(EQ + 32, 32), [0x80; 32]);
}

#[test]
fn link_changes_raise_events() {
    let mut a = peer(1, Options::default());
    a.poke(EQ, &[0x80; 0x1000]);
    let eqc = dump(
        "00: 01 04 00 00 00 00 00 00 00 00 00 00 05 00 00 00
         10: 00 00 00 00 00 00 00 02 00 00 00 03 00 00 00 04",
        0x40,
    );
    a.ok(Op::Sw2HwEq, 0, 0, &eqc);
    a.hca.set_link(false);
    assert_eq!(a.peek(EQ, 32), [0x80; 32], "no EQ receives port events yet");
    a.hca.set_link(true);
    assert_eq!(a.command_at(1 << 9, Op::MapEq, 0, 0), 0);
    a.hca.set_link(false);
    a.hca.set_link(true);
    let entries = [a.peek(EQ, 32), a.peek(EQ + 32, 32)].map(|entry| Eqe::parse(&entry.try_into().unwrap()));
    let event = |active| Some(Eqe::PortChange { port: 1, active });
    assert_eq!(entries, [event(false), event(true)]);
    // Section 8.3: a port change has type 9. Its subtype is 1 for down and 4 for active.
    assert_eq!([a.peek(EQ, 4), a.peek(EQ + 32, 4)], [[0, 9, 0, 1], [0, 9, 0, 4]]);
}

#[test]
fn unreachable_peer_exhausts_retries() {
    let mut a = peer(1, Options::default());
    send(&mut a, 0, 0x0a, &[data_unit(0, 4)]);
    a.settle();
    for _ in 0..100 {
        let Some(deadline) = a.hca.next_deadline() else { break };
        a.advance(deadline);
        a.settle();
        if cqe(&mut a, 0)[31] == 0 {
            break;
        }
    }
    assert_eq!((cqe(&mut a, 0)[0x10], cqe(&mut a, 0)[0x1c]), (0x15, 0xff));
    assert_eq!(state(&mut a), 6);
    // Software has set neither the timeout nor the retry count. The defaults give eight timeouts of 67.1 ms.
    assert!(a.now.as_nanos() >= 8 * (4096 << 14), "{:?}", a.now);
}

#[test]
fn trace_shows_doorbells_wqes_and_cqes() {
    use card::telemetry::testing::Written;
    use card::telemetry::trace::TraceFormat;

    let (mut a, mut b) = (peer(1, Options::default()), peer(2, Options::default()));
    let (at_a, at_b) = (Written::default(), Written::default());
    post_recv(&mut b, 0, 0, 64);
    a.hca.set_trace(Some(at_a.trace(TraceFormat::Text)));
    b.hca.set_trace(Some(at_b.trace(TraceFormat::Text)));
    send(&mut a, 0, 0x0a, &[data_unit(0x100, 5)]);
    exchange(&mut a, &mut b);
    send(&mut a, 1, 0x17, &[]);
    exchange(&mut a, &mut b);
    a.hca.flush();
    b.hca.flush();
    assert_eq!(
        at_a.text(),
        "1.500000 hca1 write UAR[1].sq_doorbell at=bar2+0x1000 width=8 value=0x10005020000000a qpn=0x10005 \
         opcode=SEND size=2 head=0 fence=false\n\
         1.500000 hca1 wqe send qpn=0x10005 wr=0 at=0x0 opcode=SEND size=2 fence=false next.signalled=true \
         sge=[{len=5 lkey=0x40005 va=0x7f0000000900}]\n\
         1.500000 hca1 cqe send cqn=0x1 slot=0 wr=0 qpn=0x10005 queue=send wqe=0x0 opcode=SEND byte_len=5 \
         remote_qpn=0x5 remote_lid=0x0 grh=false imm=00000000\n\
         1.500000 hca1 write UAR[1].sq_doorbell at=bar2+0x1000 width=8 value=0x100050100000817 qpn=0x10005 \
         opcode=0x17 size=1 head=8 fence=false\n\
         1.500000 hca1 wqe send qpn=0x10005 wr=128 at=0x80 opcode=0x17 size=1 fence=false \
         refused=\"unsupported opcode 0x17\" bytes=00000000000000000800000000000000\n\
         1.500000 hca1 cqe send cqn=0x1 slot=1 wr=128 qpn=0x10005 queue=send wqe=0x80 syndrome=LOCAL_QP_OP_ERR vendor=0\n"
    );
    assert_eq!(
        at_b.text(),
        "1.500000 hca1 wqe recv qpn=0x10005 wr=0 at=0x0 refused=false sge=[{len=64 lkey=0x40005 va=0x7f0000000800}]\n\
         1.500000 hca1 cqe recv cqn=0x1 slot=0 wr=0 qpn=0x10005 queue=recv wqe=0x0 opcode=\"RC SEND Only\" byte_len=5 \
         remote_qpn=0x5 remote_lid=0x1 grh=false imm=00000000\n"
    );
}
