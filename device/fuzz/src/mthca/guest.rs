//! A guest with one device: memory, a driver's way to queue pairs that work, and mailboxes to start from.

use device::frontend::Interface as _;
use device::frontend::address::Addresses;
use device::frontend::mthca::{Mthca, Options, Setup};
use device::identity::Identity;
use device::vfio::Bar;
use device::vfio::server::{Device as _, Region};
use protocol::Psn;
use protocol::hca::mthca::cmd::Op;
use protocol::hca::mthca::doorbell::SendDoorbell;
use protocol::hca::mthca::icm::Block;
use protocol::hca::mthca::init::InitHca;
use protocol::hca::mthca::mgm;
use protocol::hca::mthca::modify::Named;
use protocol::hca::mthca::path::{Address, AddressVector, Path};
use protocol::hca::mthca::qpc::{Geometry, Qpc, Requester, Responder};
use protocol::hca::mthca::wqe::{
    DataSegment, GRANULE, Link, NextSegment, Operation, RecvWqe, SendWqe, UdSegment, WqeData,
};
use protocol::hca::operation::RemoteAddress;
use protocol::hca::qp::Transition;
use protocol::hca::table::Table;
use protocol::ids::{Cqn, IcmAddr, Iova, Lid, Lkey, Pdn, Qkey, Qpn, Rkey, Srqn, Va};
use protocol::roce::Imm;

use super::super::machine::{Aim, Machine, PSN};

const INBOX: u64 = 0x1000;
const OUTBOX: u64 = 0x2000;
const HCR: u64 = 0x8_0680;

/// ICM: a page of doorbell records for each UAR page, and behind them a page of the MTT.
const UAR: u32 = 2;
const RECORDS: u64 = 0xa000;
const MTT: u64 = 0x10_0000;
const MTT_BUS: u64 = 0x8000;

/// Buffers, one page each, by bus address. All QPs share the memory of their queues.
pub(crate) const CQ: u64 = 0x2_0000;
const SQ: u64 = 0x2_1000;
const RQ: u64 = 0x2_2000;
const SRQ: u64 = 0x2_3000;
const EQS: [u64; 3] = [0x2_4000, 0x2_5000, 0x2_6000];
pub(crate) const DATA: u64 = 0x3_0000;
const DATA_PAGES: u64 = 4;
/// Pages in the order of their MTT entries.
const PAGES: [u64; 8] = [CQ, RQ, SQ, SRQ, EQS[0], EQS[1], EQS[2], DATA];

/// Indices of keys.
const CQ_KEY: u32 = 2;
const WQE_KEY: u32 = 3;
const SRQ_KEY: u32 = 4;
const DATA_KEY: u32 = 5;
const EQ_KEYS: u32 = 6;
/// First address of the data region, which is the first of a page.
pub(crate) const VA: u64 = 0x7f00_0000_0000;
pub(crate) const PD: u32 = 3;
const QKEY: u32 = 0x1111;

/// RC to the peer, RC to itself, UD, RC of a shared receive queue to itself, QP0 and QP1.
pub(crate) const CONNECTED: u32 = 20;
pub(crate) const LOOPED: u32 = 21;
const DATAGRAM: u32 = 22;
const SHARED: u32 = 23;
const SMI: u32 = 16;
const GSI: u32 = 18;
const QPNS: [u32; 6] = [CONNECTED, LOOPED, DATAGRAM, SHARED, SMI, GSI];
const AIM: Aim = Aim { qpns: &QPNS, key: key(DATA_KEY), va: VA };

const SLOTS: u16 = 16;
const SQ_SLOT: u32 = 256;
const RQ_SLOT: u32 = 128;

/// Opcodes of all commands, and two of none.
pub(crate) const COMMANDS: [u16; 50] = [
    0x003, 0x004, 0x006, 0x007, 0x008, 0x009, 0x00a, 0x00c, 0x00d, 0x00f, 0x012, 0x013, 0x014, 0x016, 0x017,
    0x019, 0x01a, 0x01b, 0x01c, 0x01d, 0x01e, 0x01f, 0x020, 0x021, 0x022, 0x023, 0x024, 0x025, 0x026, 0x027,
    0x02c, 0x02d, 0x031, 0x035, 0x036, 0x037, 0x038, 0x040, 0xff6, 0xff7, 0xff8, 0xff9, 0xffa, 0xffb, 0xffc,
    0xffd, 0xffe, 0xfff, 0x000, 0x011,
];

const LAYOUT: InitHca = InitHca {
    qpc: Table { base: IcmAddr::new(0), log_entries: 5 },
    srqc: Table { base: IcmAddr::new(0), log_entries: 4 },
    cqc: Table { base: IcmAddr::new(0), log_entries: 4 },
    eqc: Table { base: IcmAddr::new(0), log_entries: 3 },
    mpt: Table { base: IcmAddr::new(0), log_entries: 6 },
    group_buckets: 8,
    log_groups: 4,
    log_uarc: 12,
    uarc_base: IcmAddr::new(0),
};

pub(crate) type Guest = Machine<Mthca>;

const fn key(index: u32) -> u32 {
    index.rotate_left(8)
}

fn lkey(index: u32) -> Lkey {
    Lkey::new(key(index))
}

/// Doorbell records of a queue, by its number.
fn records(qpn: u32) -> (u32, u32) {
    (2 * (qpn % 32), 2 * (qpn % 32) + 1)
}
const CQ_RECORD: u32 = 100;
const SRQ_RECORD: u32 = 101;

impl Guest {
    /// A guest whose queue pairs are in RTS, on a device that somebody looks at or not.
    pub(crate) fn new(watched: u8) -> Self {
        let [own, peer] = [1, 2].map(|lid| Identity::from_lid(Lid::new(lid)));
        let addresses = Addresses { own, peers: Vec::new(), default_peer: Some(peer) };
        let setup = Setup { options: Options::default(), addresses, engine: engine::Config::default() };
        let mut guest = Self::of(Mthca::new(setup), watched, AIM);
        guest.bring_up();
        guest
    }

    /// What a driver does from the bus scan on. Outcomes are not looked at: memory may be gone.
    pub(crate) fn bring_up(&mut self) {
        self.hca.region_write(Region::Config, 4, &[6, 0]);
        self.store(Bar::Bar0, 0xf_0010, &[0, 0, 0, 1]);
        for (op, in_modifier) in [(Op::MapIcm, 2), (Op::InitHca, 0)] {
            self.command(op, 0, in_modifier);
        }
        for buffer in [CQ, EQS[0], EQS[1], EQS[2]] {
            self.poke(buffer, &[0x80; 0x1000]);
        }
        self.poke(RECORDS, &[0; 0x1000]);
        let pages = PAGES.into_iter().chain((1..DATA_PAGES).map(|page| DATA + page * 0x1000));
        let entries: Vec<u8> = pages.flat_map(|page| (page | 1).to_be_bytes()).collect();
        self.poke(MTT_BUS, &entries);
        let regions = (CQ_KEY..EQ_KEYS + 3).map(|key| (Op::Sw2HwMpt, key));
        let queues =
            [(Op::Sw2HwEq, 1), (Op::Sw2HwEq, 2), (Op::Sw2HwEq, 3), (Op::Sw2HwCq, 1), (Op::Sw2HwSrq, 1)];
        for (op, number) in regions.chain(queues) {
            self.command(op, 0, number);
        }
        self.immediate(0x1f_43fe, Op::MapEq, 0, 2);
        self.immediate(0x400, Op::MapEq, 0, 3);
        self.command(Op::ConfSpecialQp, 0, SMI);
        self.command(Op::ConfSpecialQp, 1, GSI);
        self.command(Op::InitIb, 0, 1);
        for qpn in QPNS {
            for transition in [Transition::Rst2Init, Transition::Init2Rtr, Transition::Rtr2Rts] {
                self.command(Op::Modify(transition), 0, qpn);
            }
        }
    }

    /// Issues a command with the inbox of a well-behaved guest.
    fn command(&mut self, op: Op, op_modifier: u8, in_modifier: u32) {
        let code = COMMANDS.into_iter().find(|code| Op::from_code(*code) == Some(op)).unwrap_or(0);
        self.with_inbox(code, op_modifier, in_modifier, &mailbox(op, in_modifier), false);
    }

    fn immediate(&mut self, in_param: u64, op: Op, op_modifier: u8, in_modifier: u32) {
        let code = COMMANDS.into_iter().find(|code| Op::from_code(*code) == Some(op)).unwrap_or(0);
        self.execute(in_param, code, op_modifier, in_modifier, false);
    }

    pub(crate) fn with_inbox(
        &mut self,
        code: u16,
        op_modifier: u8,
        in_modifier: u32,
        inbox: &[u8],
        event: bool,
    ) {
        self.poke(INBOX, inbox);
        self.execute(INBOX, code, op_modifier, in_modifier, event);
    }

    /// Issues a command, in event mode or polled.
    pub(crate) fn execute(
        &mut self,
        in_param: u64,
        code: u16,
        op_modifier: u8,
        in_modifier: u32,
        event: bool,
    ) {
        let word = 1 << 23 | u32::from(event) << 22 | u32::from(op_modifier) << 12 | u32::from(code);
        self.command_words(HCR, in_param, OUTBOX, [in_modifier, 0xffff_0000, word], true);
    }

    /// A doorbell record: how many requests were posted.
    fn record(&mut self, index: u32) -> u16 {
        let mut bytes = [0; 4];
        let _ = self.hca.memory().read(Iova::new(RECORDS + u64::from(index) * 8), &mut bytes);
        let [_, _, high, low] = bytes;
        u16::from_be_bytes([high, low])
    }

    pub(crate) fn set_record(&mut self, index: u32, value: u32) {
        self.poke(RECORDS + u64::from(index % 512) * 8, &value.to_be_bytes());
    }

    /// Posts a receive request for bytes of the data region, to a QP or to the shared queue.
    pub(crate) fn post_receive(&mut self, qpn: u32, len: u32) {
        let data = smallvec::smallvec![data(len)];
        let (buffer, record) = if qpn == SHARED { (SRQ, SRQ_RECORD) } else { (RQ, records(qpn).1) };
        let posted = self.record(record);
        let slot = |count: u16| u32::from(count % SLOTS) * RQ_SLOT;
        let wqe = RecvWqe { successor: slot(posted.wrapping_add(1)), data };
        self.poke(buffer + u64::from(slot(posted)), &wqe.emit(RQ_SLOT as usize));
        self.set_record(record, posted.wrapping_add(1).into());
    }

    /// Posts a WQE: puts it into the next slot, names it in the slot before, counts it in the record. What rings for it.
    pub(crate) fn post_send(&mut self, qpn: u32, opcode: u8, wqe: &[u8], fence: bool) -> [u8; 8] {
        let record = records(qpn).0;
        let first = self.record(record);
        let slot = |count: u16| u32::from(count % SLOTS) * SQ_SLOT;
        let size = u8::try_from(wqe.len() / GRANULE).unwrap_or(u8::MAX);
        let link = Link { address: 0x1000 + slot(first), opcode, size, fence };
        let next = NextSegment { link, ..NextSegment::default() }.emit();
        self.poke(SQ + u64::from(slot(first)) + 8, wqe.get(8..).unwrap_or_default());
        self.poke(SQ + u64::from(slot(first.wrapping_sub(1))), &next[..8]);
        self.set_record(record, first.wrapping_add(1).into());
        SendDoorbell { count: 1, first, fence, opcode, qpn: Qpn::new(qpn), size }.emit()
    }

    /// Stores a send doorbell, at once or in halves.
    pub(crate) fn ring(&mut self, page: u64, doorbell: [u8; 8], halves: bool) {
        let at = page * 0x1000 + 0x10;
        if halves {
            self.store(Bar::Bar2, at, &doorbell[..4]);
            self.store(Bar::Bar2, at + 4, &doorbell[4..]);
        } else {
            self.store(Bar::Bar2, at, &doorbell);
        }
    }
}

fn data(len: u32) -> DataSegment {
    DataSegment { len, lkey: lkey(DATA_KEY), va: Va::new(VA) }
}

/// A WQE that is well-formed but for what `flags` damages: an operation on the data region.
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

/// A management datagram whose headers and payload are in the data region.
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

/// Headers of a management datagram to QP0 or QP1, as software packs them, for the beginning of the data region; and
/// the MAD behind them.
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

/// The inbox a well-behaved guest gives with a command.
pub(crate) fn mailbox(op: Op, in_modifier: u32) -> Vec<u8> {
    match op {
        Op::InitHca => LAYOUT.emit().to_vec(),
        Op::MapIcm | Op::MapIcmAux | Op::MapFa => {
            let block = |start, bus| Block { start: IcmAddr::new(start), bus: Iova::new(bus), length: 4096 };
            let blocks = [block(MTT, MTT_BUS), block(u64::from(UAR) * 4096, RECORDS)];
            blocks.iter().flat_map(Block::emit).collect()
        }
        Op::Sw2HwMpt => region(in_modifier),
        Op::Sw2HwEq => {
            let (key, vector) = (key(EQ_KEYS + in_modifier.wrapping_sub(1) % 3), 0x80 | (in_modifier & 3));
            words(&[0x0104_0900, 0, 0, 7 << 24, 0, vector, PD, key], 0x40)
        }
        Op::Sw2HwCq => {
            let head = [0x0004_0000, 0, 0, 5 << 24 | UAR, 2, 1, PD, key(CQ_KEY), 0, 0, 0, 0];
            words(&[&head[..], &[in_modifier, CQ_RECORD]].concat(), 0x40)
        }
        Op::ResizeCq => words(&[0, 0, 0, 4 << 24, 0, 0, 0, key(CQ_KEY)], 0x40),
        Op::Sw2HwSrq => words(
            &[4 << 24 | in_modifier & 0xff_ffff, key(SRQ_KEY), SRQ_RECORD, 3 << 29 | UAR, 0, 0, PD],
            0x30,
        ),
        Op::Modify(_) => {
            let named = Named::all().difference(Named::ALTERNATE_PATH).bits();
            [&named.to_be_bytes()[..], &[0; 4], &qpc(in_modifier).emit()].concat()
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

/// What in_modifier says for a command that works, more often than not.
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

fn words(words: &[u32], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    bytes.resize(len, 0);
    bytes
}

/// Each key has the pages of its queue, or those of the data region.
fn region(index: u32) -> Vec<u8> {
    const BUFFER: u32 = 0xf002_0d00;
    let (flags, start, len, entry) = match index {
        CQ_KEY => (BUFFER, 0, 0x1000, 0),
        WQE_KEY => (0xf002_0500, 0, 0x2000, 1),
        SRQ_KEY => (0xf002_0500, 0, 0x1000, 3),
        6..9 => (BUFFER, 0, 0x1000, u64::from(index) - 2),
        _ => (0xf002_7d00, VA, DATA_PAGES * 0x1000, 7),
    };
    let mut bytes = words(&[flags, 0, index, PD], 0x10);
    bytes.extend([start, len].map(u64::to_be_bytes).concat());
    bytes.resize(0x2c, 0);
    bytes.extend((MTT + 8 * entry).to_be_bytes());
    bytes.resize(0x40, 0);
    bytes
}

fn qpc(qpn: u32) -> Qpc {
    let (sq_record, rq_record) = records(qpn);
    let dlid = if qpn == CONNECTED { 2 } else { 1 };
    let address = Address { dlid: Lid::new(dlid), ..Address::default() };
    let kind = match qpn {
        DATAGRAM => 3,
        SMI | GSI => 7,
        _ => 0,
    };
    Qpc {
        kind,
        mtu: if kind == 0 { 1 } else { 4 },
        log_max_msg: if kind == 0 { 31 } else { 11 },
        rq: Geometry { log_slots: 4, log_slot: 7 },
        sq: Geometry { log_slots: 4, log_slot: 8 },
        page: UAR,
        local_qpn: Qpn::new(qpn),
        remote_qpn: Qpn::new(qpn),
        primary: Path { port: 1, rnr_retry: 7, ack_timeout: 14, address, ..Path::default() },
        pd: Pdn::new(PD),
        wqe_lkey: lkey(WQE_KEY),
        requester: Requester::new()
            .with_signal_all(qpn == LOOPED)
            .with_reads(true)
            .with_atomics(true)
            .with_retry_count(7)
            .with_log_depth(2),
        next_send_psn: Psn::new(PSN),
        send_cqn: Cqn::new(1),
        sq_base: 0x1000,
        sq_record,
        responder: Responder::new()
            .with_reads(true)
            .with_writes(true)
            .with_atomics(true)
            .with_srq(qpn == SHARED)
            .with_log_depth(2),
        min_rnr_timer: 1,
        recv_psn: Psn::new(PSN),
        recv_cqn: Cqn::new(1),
        rq_record,
        qkey: Qkey::new(if qpn == GSI { 0x8001_0000 } else { QKEY }),
        srqn: Srqn::new(1),
        ..Qpc::default()
    }
}
