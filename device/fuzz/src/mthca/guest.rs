//! A guest with one device: its memory, the initialisation of its queue pairs, and valid mailboxes.

use card::frontend::Interface as _;
use card::identity::Identity;
use card::net::address::Addresses;
use drivers::mthca::{
    Cq, Driver, INBOX, Mpt, OUTBOX, RESET, SMALL_LAYOUT, UAR, WorkQueue, eq_context, modify, srq_context,
    words,
};
use drivers::{Bus as _, hcr};
use mthca::{Mthca, Options, Setup};
use protocol::hca::mthca::cmd::Op;
use protocol::hca::mthca::icm::Block;
use protocol::hca::mthca::mgm;
use protocol::hca::mthca::modify::QpAttributes;
use protocol::hca::mthca::path::{Address, AddressVector};
use protocol::hca::mthca::qpc::{Geometry, Qpc};
use protocol::hca::mthca::wqe::{DataSegment, GRANULE, NextSegment, Operation, SendWqe, UdSegment, WqeData};
use protocol::hca::operation::RemoteAddress;
use protocol::ids::{Cqn, IcmAddr, Iova, Lid, Lkey, Pdn, Qkey, Qpn, Rkey, Srqn, Va};
use protocol::roce::Imm;

use super::super::machine::{Aim, LIDS, Machine};

/// Memory mapped to ICM: the bus address of the doorbell records, and the ICM and bus addresses of the MTT. The
/// doorbell records and the MTT occupy one page each.
const RECORDS: u64 = 0xa000;
const MTT: u64 = 0x10_0000;
const MTT_BUS: u64 = 0x8000;

/// Bus addresses of the buffers, one page each except for the data. All QPs use the same memory for their queues.
pub(crate) const CQ: u64 = 0x2_0000;
const SQ: u64 = 0x2_1000;
const RQ: u64 = 0x2_2000;
const SRQ: u64 = 0x2_3000;
const EQS: [u64; 3] = [0x2_4000, 0x2_5000, 0x2_6000];
pub(crate) const DATA: u64 = 0x3_0000;
const DATA_PAGES: u64 = 4;
/// Pages in the order of their MTT entries.
const PAGES: [u64; 8] = [CQ, RQ, SQ, SRQ, EQS[0], EQS[1], EQS[2], DATA];

/// Indices of the keys in the MPT.
const CQ_KEY: u32 = 2;
const WQE_KEY: u32 = 3;
const SRQ_KEY: u32 = 4;
const DATA_KEY: u32 = 5;
const EQ_KEYS: u32 = 6;
/// First address of the data region, which is page-aligned.
pub(crate) const VA: u64 = 0x7f00_0000_0000;
pub(crate) const PD: u32 = 3;
const QKEY: u32 = 0x1111;

/// Numbers of an RC QP connected to the peer, an RC QP connected to itself, a UD QP, an RC QP that uses an SRQ and is
/// connected to itself, QP0 and QP1.
pub(crate) const CONNECTED: u32 = 20;
pub(crate) const LOOPED: u32 = 21;
const DATAGRAM: u32 = 22;
const SHARED: u32 = 23;
const SMI: u32 = 16;
const GSI: u32 = 18;
const QPNS: [u32; 6] = [CONNECTED, LOOPED, DATAGRAM, SHARED, SMI, GSI];
const AIM: Aim = Aim { qpns: &QPNS, key: key(DATA_KEY), va: VA, ends: LIDS };

const SLOTS: u16 = 16;

/// Returns a QP's send queue. The QP number determines the doorbell record.
pub(crate) fn sq(qpn: u32) -> WorkQueue {
    WorkQueue { bus: SQ, offset: 0x1000, slot: 256, slots: SLOTS, record: record(sq_record(qpn)) }
}

/// Returns a QP's receive queue: its own, or the shared one.
pub(crate) fn rq(qpn: u32) -> WorkQueue {
    let (bus, index) = if qpn == SHARED { (SRQ, SRQ_RECORD) } else { (RQ, sq_record(qpn) + 1) };
    WorkQueue { bus, offset: 0, slot: 128, slots: SLOTS, record: record(index) }
}

/// Indices of doorbell records.
const CQ_RECORD: u32 = 100;
const SRQ_RECORD: u32 = 101;

/// Returns the index of a send queue's doorbell record. The receive queue's record follows it.
const fn sq_record(qpn: u32) -> u32 {
    2 * (qpn % 32)
}

pub(crate) fn record(index: u32) -> u64 {
    RECORDS + u64::from(index % 512) * 8
}

/// Opcodes of all commands and two undefined ones.
pub(crate) const COMMANDS: [u16; 50] = [
    0x003, 0x004, 0x006, 0x007, 0x008, 0x009, 0x00a, 0x00c, 0x00d, 0x00f, 0x012, 0x013, 0x014, 0x016, 0x017,
    0x019, 0x01a, 0x01b, 0x01c, 0x01d, 0x01e, 0x01f, 0x020, 0x021, 0x022, 0x023, 0x024, 0x025, 0x026, 0x027,
    0x02c, 0x02d, 0x031, 0x035, 0x036, 0x037, 0x038, 0x040, 0xff6, 0xff7, 0xff8, 0xff9, 0xffa, 0xffb, 0xffc,
    0xffd, 0xffe, 0xfff, 0x000, 0x011,
];

pub(crate) type Guest = Driver<Machine<Mthca>>;

const fn key(index: u32) -> u32 {
    index.rotate_left(8)
}

fn lkey(index: u32) -> Lkey {
    Lkey::new(key(index))
}

/// Starts a guest whose queue pairs are in RTS. For `watched`, see [`Machine::of`].
pub(crate) fn start(watched: u8) -> Guest {
    let [own, peer] = [1, 2].map(|lid| Identity::from_lid(Lid::new(lid)));
    let addresses = Addresses { own, peers: Vec::new(), default_peer: Some(peer) };
    let engine = engine::Config::default();
    let setup = Setup { options: Options::default(), mac: own.mac, engine };
    let mut guest = Driver::new(Machine::of(Mthca::new(setup), addresses, watched, AIM));
    bring_up(&mut guest);
    guest
}

/// Initialises the device as a driver does. Memory may be unmapped, so results are ignored.
pub(crate) fn bring_up(guest: &mut Guest) {
    guest.enable();
    guest.write(RESET, 1);
    // MAP_ICM, INIT_HCA.
    usual(guest, [(0xffa, 2), (0x007, 0)]);
    for buffer in [CQ, EQS[0], EQS[1], EQS[2]] {
        guest.poke(buffer, &[0x80; 0x1000]);
    }
    guest.poke(RECORDS, &[0; 0x1000]);
    let pages = PAGES.into_iter().chain((1..DATA_PAGES).map(|page| DATA + page * 0x1000));
    guest.write_mtt(MTT_BUS, pages);
    // SW2HW_MPT, SW2HW_EQ, SW2HW_CQ, SW2HW_SRQ.
    usual(guest, (CQ_KEY..EQ_KEYS + 3).map(|key| (0x00d, key)));
    usual(guest, [(0x013, 1), (0x013, 2), (0x013, 3), (0x016, 1), (0x035, 1)]);
    // MAP_EQ.
    execute(guest, 0x1f_43fe, 0x012, 2);
    execute(guest, 0x400, 0x012, 3);
    // CONF_SPECIAL_QP, INIT_IB.
    usual(guest, [(0x0023, SMI), (0x1023, GSI), (0x009, 1)]);
    // RESET to RTS.
    QPNS.into_iter().for_each(|qpn| usual(guest, [0x019, 0x01a, 0x01b].map(|op| (op, qpn))));
}

/// Issues commands with a well-behaved guest's input mailboxes.
fn usual(guest: &mut Guest, commands: impl IntoIterator<Item = (u32, u32)>) {
    for (op, in_modifier) in commands {
        let known = u16::try_from(op & 0xfff).ok().and_then(Op::from_code);
        with_inbox(guest, op, in_modifier, &mailbox(known.unwrap_or(Op::Nop), in_modifier));
    }
}

/// Issues a command whose op_modifier and event bit are in `op`.
pub(crate) fn with_inbox(guest: &mut Guest, op: u32, in_modifier: u32, inbox: &[u8]) {
    guest.poke(INBOX, inbox);
    execute(guest, INBOX, op, in_modifier);
}

pub(crate) fn execute(guest: &mut Guest, in_param: u64, op: u32, in_modifier: u32) {
    guest.issue(in_param, in_modifier, OUTBOX, 0xffff, hcr::GO | op);
}

/// Writes a send doorbell, in one store or in two halves.
pub(crate) fn ring(guest: &mut Guest, page: u64, doorbell: [u8; 8], halves: bool) {
    let at = page * 0x1000 + 0x10;
    if halves {
        guest.store(2, at, &doorbell[..4]);
        guest.store(2, at + 4, &doorbell[4..]);
    } else {
        guest.store(2, at, &doorbell);
    }
}

pub(crate) fn data(len: u32) -> DataSegment {
    DataSegment { len, lkey: lkey(DATA_KEY), va: Va::new(VA) }
}

/// Returns a WQE with an operation on the data region. It is well-formed except for the defects selected by `flags`.
pub(crate) fn wqe(opcode: u8, qpn: u32, len: u32, flags: u8) -> Vec<u8> {
    if matches!(qpn, SMI | GSI) {
        return management_wqe(len, flags);
    }
    let bad_key = if flags & 0x10 == 0 { 0 } else { 0x100 };
    let remote = RemoteAddress { va: Va::new(VA), rkey: Rkey::new(key(DATA_KEY) ^ bad_key) };
    let imm = matches!(opcode, 0x09 | 0x0b).then_some(Imm([1, 2, 3, 4]));
    let operation = match opcode {
        _ if qpn == DATAGRAM => {
            let dlid = [2, 1, 0xc000, 0xbfff][usize::from(flags & 3)];
            let dgid = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
            let address = Address { dlid: Lid::new(dlid), grh: dlid == 0xc000, dgid, ..Address::default() };
            let vector = AddressVector { port: 1, pd: Pdn::new(PD), address };
            let dqpn = Qpn::new(if dlid == 0xc000 { 0xff_ffff } else { DATAGRAM });
            Operation::Datagram { to: UdSegment { vector, dqpn, qkey: Qkey::new(QKEY) }, imm }
        }
        0x08 | 0x09 => Operation::Write { remote, imm },
        0x10 => Operation::Read { remote },
        0x11 => Operation::CompareSwap { remote, compare: 0, swap: 1 },
        0x12 => Operation::FetchAdd { remote, add: 1 },
        _ => Operation::Send { imm },
    };
    let next = NextSegment { signalled: flags & 8 != 0, solicited: flags & 4 != 0, ..NextSegment::default() };
    let data = if flags & 0x20 == 0 {
        let len = if matches!(opcode, 0x11 | 0x12) { 8 } else { len };
        WqeData::Segments(smallvec::smallvec![data(len)])
    } else {
        WqeData::Inline(smallvec::SmallVec::from_elem(flags, (len % 64) as usize))
    };
    SendWqe { next, operation, data }.emit()
}

/// Returns the WQE of a management datagram whose headers and payload are in the data region.
fn management_wqe(len: u32, flags: u8) -> Vec<u8> {
    let dlid: u16 = [2, 1, 0xffff, 0xbfff][usize::from(flags & 3)];
    let bits = if flags & 0x10 == 0 { 8 } else { 0x2_0008_u32 };
    let mut wqe = [&[0; 8][..], &bits.to_be_bytes(), &dlid.to_be_bytes(), &[0; 2]].concat();
    let payload =
        DataSegment { len: if flags & 0x20 == 0 { 256 } else { len }, va: Va::new(VA + 0x100), ..data(0) };
    for segment in [data(28), payload] {
        wqe.extend(segment.emit_be());
    }
    wqe.extend([0x80, 0, 0, 4]);
    wqe.resize(wqe.len().next_multiple_of(GRANULE), 0);
    wqe
}

/// Returns data for the start of the data region: the headers of a management datagram to QP0 or QP1 in the format that
/// software uses, followed by the MAD.
pub(crate) fn management(dlid: u16, qpn: u8, mad: &[u8]) -> Vec<u8> {
    let [high, low] = dlid.to_be_bytes();
    let mut bytes = vec![0xf0, 2, high, low, 0, 72, 0, 0];
    bytes.extend([0x64, 0, 0xff, 0xff, 0, 0, 0, qpn, 0, 0, 0, 0]);
    bytes.extend([0x80, 1, 0, 0, 0, 0, 0, qpn]);
    bytes.resize(0x100, 0);
    bytes.extend(mad);
    bytes.resize(0x200, 0);
    bytes
}

/// Returns a well-behaved guest's input mailbox for a command.
pub(crate) fn mailbox(op: Op, in_modifier: u32) -> Vec<u8> {
    match op {
        Op::InitHca => SMALL_LAYOUT.emit().to_vec(),
        Op::MapIcm | Op::MapIcmAux | Op::MapFa => {
            let block = |start, bus| Block { start: IcmAddr::new(start), bus: Iova::new(bus), length: 4096 };
            let blocks = [block(MTT, MTT_BUS), block(u64::from(UAR) * 4096, RECORDS)];
            blocks.iter().flat_map(Block::emit).collect()
        }
        Op::Sw2HwMpt => region(in_modifier),
        Op::Sw2HwEq => {
            let key = key(EQ_KEYS + in_modifier.wrapping_sub(1) % 3);
            eq_context(7, in_modifier.to_le_bytes()[0] & 3, PD, key)
        }
        Op::Sw2HwCq => Cq {
            cqn: in_modifier,
            log_entries: 5,
            pd: PD,
            lkey: key(CQ_KEY),
            record: CQ_RECORD,
            arm_record: 0,
        }
        .bytes(),
        Op::ResizeCq => words(&[0, 0, 0, 4 << 24, 0, 0, 0, key(CQ_KEY)], 0x40),
        Op::Sw2HwSrq => srq_context(in_modifier, [4, 3], PD, key(SRQ_KEY), SRQ_RECORD),
        Op::Modify(_) => {
            modify(QpAttributes::all().difference(QpAttributes::ALTERNATE_PATH), &qpc(in_modifier))
        }
        Op::WriteMgm => {
            let gid = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
            let mut entry = [&[0; 16][..], &gid, &(1 << 31 | DATAGRAM).to_be_bytes()].concat();
            entry.resize(mgm::Mgm::LEN, 0);
            entry
        }
        Op::SetIb => words(&[0, 0x0251_0a68], 0x40),
        Op::MadIfc => {
            let mut mad = vec![1, 1, 1, 1];
            mad.resize(16, 0);
            mad.extend([0, 0x15, 0, 0, 0, 0, 0, 1]);
            mad.resize(256, 0);
            mad
        }
        _ => vec![0; 256],
    }
}

/// Returns an in_modifier that the command usually accepts.
pub(crate) fn number(op: Op, choice: u8) -> u32 {
    match op {
        Op::Sw2HwMpt | Op::Hw2SwMpt => CQ_KEY + u32::from(choice) % 8,
        Op::Sw2HwEq | Op::Hw2SwEq | Op::MapEq => 1 + u32::from(choice) % 3,
        Op::MapIcm | Op::MapIcmAux | Op::MapFa => 2,
        Op::Modify(_) | Op::QueryQp => QPNS[usize::from(choice) % QPNS.len()],
        Op::ConfSpecialQp => [0, SMI, GSI][usize::from(choice) % 3],
        _ => 1,
    }
}

/// Returns the MPT entry for a key. The entry covers the pages of a queue or of the data region.
fn region(index: u32) -> Vec<u8> {
    let (flags, start, len, entry) = match index {
        CQ_KEY => (Mpt::LOCAL, 0, 0x1000, 0),
        WQE_KEY => (Mpt::READ_ONLY, 0, 0x2000, 1),
        SRQ_KEY => (Mpt::READ_ONLY, 0, 0x1000, 3),
        6..9 => (Mpt::LOCAL, 0, 0x1000, u64::from(index) - 2),
        _ => (Mpt::REMOTE, VA, DATA_PAGES * 0x1000, 7),
    };
    Mpt { flags, log_pages: 0, key: index, pd: PD, start, len, mtt: MTT + 8 * entry }.bytes()
}

fn qpc(qpn: u32) -> Qpc {
    let kind = match qpn {
        DATAGRAM => 3,
        SMI | GSI => 7,
        _ => 0,
    };
    let base = drivers::mthca::qpc(kind, qpn, if qpn == CONNECTED { 2 } else { 1 });
    Qpc {
        rq: Geometry { log_slots: 4, log_slot: 7 },
        sq: Geometry { log_slots: 4, log_slot: 8 },
        pd: Pdn::new(PD),
        wqe_lkey: lkey(WQE_KEY),
        requester: base.requester.with_signal_all(qpn == LOOPED),
        send_cqn: Cqn::new(1),
        sq_base: 0x1000,
        sq_record: sq_record(qpn),
        responder: base.responder.with_srq(qpn == SHARED),
        recv_cqn: Cqn::new(1),
        rq_record: sq_record(qpn) + 1,
        qkey: Qkey::new(if qpn == GSI { 0x8001_0000 } else { QKEY }),
        srqn: Srqn::new(1),
        ..base
    }
}
