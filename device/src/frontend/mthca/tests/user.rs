//! A program with queues of its own, which does what `libmthca` does.

use std::ops::{Deref, DerefMut};

use protocol::Psn;
use protocol::hca::mthca::doorbell::SendDoorbell;
use protocol::hca::mthca::modify::Named;
use protocol::hca::mthca::path::{Address, Path};
use protocol::hca::mthca::qpc::{Geometry, Qpc, Requester, Responder};
use protocol::hca::mthca::wqe::{
    DataSegment, GRANULE, Link, NextSegment, Operation, RecvWqe, SendWqe, WqeData,
};
use protocol::hca::operation::RemoteAddress;
use protocol::ids::{Cqn, Lid, Lkey, Pdn, Qkey, Qpn, Rkey, Srqn, Va};
use smallvec::smallvec;

use super::*;

/// As software knows it: index 14h, with a generation.
pub(super) const QPN: u32 = 0x1_0014;
pub(super) const CQN: u32 = 0x1_0011;
pub(super) const SRQN: u32 = 0x11;
pub(super) const QKEY: u32 = 0x1111_1111;
/// Service types of a QPC.
pub(super) const RC: u8 = 0;
pub(super) const UC: u8 = 1;
pub(super) const UD: u8 = 3;
/// Opcodes of WQEs.
pub(super) const SEND: u8 = 0x0a;

const PD: u32 = 1;
const UAR: u32 = 2;
/// Doorbell records of the UAR page: ICM pages 80000h and BF000h of the published trace.
const RECORDS: u64 = 0x8_0000;
const LAST_RECORDS: u64 = 0xb_f000;
const SQ_RECORD: u32 = 1;
const CQ_RECORD: u32 = 32767;
const RQ_RECORD: u32 = 32766;
const SRQ_RECORD: u32 = 32765;

const CQ_BUFFER: u64 = 0x400_0000;
pub(super) const CQ_ENTRIES: u32 = 16;
const QP_BUFFER: u64 = 0x401_0000;
const SRQ_BUFFER: u64 = 0x402_0000;
const SLOTS: u16 = 8;
const SQ_BASE: u32 = 0x200;
/// The data region: four pages in descending order on the bus, and a start inside the first.
const DATA_KEY: u32 = 0x22;
pub(super) const DATA_VA: u64 = 0x7f00_0000_0800;
const DATA_LEN: u64 = 0x3000;

/// A program with a CQ, an SRQ, a region for data, and memory for a QP.
pub(super) struct User {
    driver: Driver,
    /// Requests posted, and entries of the CQ read.
    sends: u16,
    pub(super) receives: u16,
    shared: u16,
    reaped: u32,
}

impl Deref for User {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.driver
    }
}

impl DerefMut for User {
    fn deref_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }
}

fn lkey(key: u32) -> Lkey {
    Lkey::new(key.rotate_left(8))
}

pub(super) fn data(offset: u64, len: u32) -> DataSegment {
    DataSegment { len, lkey: lkey(DATA_KEY), va: Va::new(DATA_VA + offset) }
}

/// A SEND of bytes of the data region.
pub(super) fn send(offset: u64, len: u32) -> SendWqe {
    request(Operation::Send { imm: None }, offset, len)
}

/// A signalled request for bytes of the data region.
pub(super) fn request(operation: Operation, offset: u64, len: u32) -> SendWqe {
    let next = NextSegment { signalled: true, ..NextSegment::default() };
    SendWqe { next, operation, data: WqeData::Segments(smallvec![data(offset, len)]) }
}

/// Bytes of the peer's data region.
pub(super) fn remote(offset: u64) -> RemoteAddress {
    RemoteAddress { va: Va::new(DATA_VA + offset), rkey: Rkey::new(DATA_KEY.rotate_left(8)) }
}

/// A context towards the QP of the same number of another LID.
pub(super) fn qpc(kind: u8, dlid: u16) -> Qpc {
    let address = Address { dlid: Lid::new(dlid), ..Address::default() };
    Qpc {
        kind,
        mtu: if kind == UD { 4 } else { 1 },
        log_max_msg: if kind == UD { 11 } else { 31 },
        rq: Geometry { log_slots: 3, log_slot: 6 },
        sq: Geometry { log_slots: 3, log_slot: 7 },
        page: UAR,
        local_qpn: Qpn::new(QPN),
        remote_qpn: Qpn::new(QPN),
        primary: Path { port: 1, rnr_retry: 7, ack_timeout: 14, address, ..Path::default() },
        pd: Pdn::new(PD),
        wqe_lkey: lkey(0x21),
        requester: Requester::new().with_reads(true).with_atomics(true).with_retry_count(7).with_log_depth(2),
        next_send_psn: Psn::new(0xff_fffe),
        send_cqn: Cqn::new(CQN),
        sq_base: SQ_BASE,
        sq_record: SQ_RECORD,
        responder: Responder::new()
            .with_reads(true)
            .with_writes(true)
            .with_atomics(true)
            .with_log_depth(2)
            .with_signal_all(true),
        min_rnr_timer: 1,
        recv_psn: Psn::new(0xff_fffe),
        recv_cqn: Cqn::new(CQN),
        rq_record: RQ_RECORD,
        qkey: Qkey::new(QKEY),
        srqn: Srqn::new(SRQN),
        ..Qpc::default()
    }
}

/// The inbox of a QP command.
pub(super) fn modify(named: Named, qpc: &Qpc) -> Vec<u8> {
    [&named.bits().to_be_bytes()[..], &[0; 4], &qpc.emit()].concat()
}

impl User {
    /// Of an HCA with this LID. Its QP is in RESET.
    pub(super) fn new(lid: u16) -> Self {
        let mut driver = Driver::of_lid(lid, Options::default());
        driver.replay(probe::BRING_UP);
        driver.open_port();
        for icm in [RECORDS, LAST_RECORDS] {
            driver.ok(0xffa, &block(icm, ICM + icm, 0), 1);
        }
        let mut user = Self { driver, sends: 0, receives: 0, shared: 0, reaped: 0 };
        for (slot, mtt, bus, flags) in [
            (0x20, 0x4000, CQ_BUFFER, 0xf002_0d00),
            // Local reads only.
            (0x21, 0x4040, QP_BUFFER, 0xf002_0500),
            (0x23, 0x4080, SRQ_BUFFER, 0xf002_0500),
        ] {
            user.write_mtt(mtt, &[bus]);
            let buffer = Mpt { flags, ..Mpt::buffer(slot, 0x1000, MTT + mtt) };
            user.ok(0x00d, &buffer.bytes(), slot);
        }
        let pages: Vec<u64> = (0..4).map(|page| 0x500_3000 - page * 0x1000).collect();
        user.write_mtt(0x40c0, &pages);
        let data = Mpt {
            flags: 0xf002_7d00,
            log_pages: 0,
            key: DATA_KEY,
            pd: PD,
            start: DATA_VA,
            len: DATA_LEN,
            mtt: MTT + 0x40c0,
        };
        user.ok(0x00d, &data.bytes(), DATA_KEY);
        user.poke(CQ_BUFFER, &[0x80; 32 * CQ_ENTRIES as usize]);
        user.ok(0x016, &cq_context(), CQN);
        user.ok(0x035, &srq_context(), SRQN);
        user
    }

    /// Two of them whose QPs are in RTS towards each other.
    pub(super) fn pair(kind: u8) -> (Self, Self) {
        let (mut a, mut b) = (Self::new(1), Self::new(2));
        a.connect(&qpc(kind, 2));
        b.connect(&qpc(kind, 1));
        (a, b)
    }

    /// Brings the QP to RTS.
    pub(super) fn connect(&mut self, qpc: &Qpc) {
        for op in [0x019, 0x01a, 0x01b] {
            self.ok(op, &modify(Named::all(), qpc), QPN);
        }
    }

    /// Stores to memory.
    pub(super) fn poke(&mut self, at: u64, bytes: &[u8]) {
        self.driver.guest.poke(at, bytes);
    }

    fn record(index: u32) -> u64 {
        let bytes = u64::from(index) * 8;
        ICM + RECORDS + bytes
    }

    fn set_record(&mut self, index: u32, value: u32) {
        self.poke(Self::record(index), &value.to_be_bytes());
    }

    /// Puts a WQE into the next slot of the send queue, and says so in the slot before and in the doorbell record.
    pub(super) fn post_unrung(&mut self, wqe: &SendWqe) -> SendDoorbell {
        let bytes = wqe.emit();
        self.post_bytes(wqe.operation.opcode().code(), &bytes)
    }

    /// Likewise of any bytes.
    pub(super) fn post_bytes(&mut self, opcode: u8, bytes: &[u8]) -> SendDoorbell {
        let slot = |count: u16| SQ_BASE + u32::from(count % SLOTS) * 128;
        let (first, size) = (self.sends, u8::try_from(bytes.len() / GRANULE).unwrap());
        let link = Link { address: slot(first), opcode, size, fence: false };
        let link = NextSegment { link, ..NextSegment::default() };
        self.poke(QP_BUFFER + u64::from(slot(first)) + 8, &bytes[8..]);
        self.poke(QP_BUFFER + u64::from(slot(first.wrapping_sub(1))), &link.emit()[..8]);
        self.sends = first.wrapping_add(1);
        self.set_record(SQ_RECORD, self.sends.into());
        SendDoorbell { count: 1, first, fence: false, opcode, qpn: Qpn::new(QPN), size }
    }

    /// Stores a send doorbell.
    pub(super) fn ring(&mut self, doorbell: &SendDoorbell) {
        let at = u64::from(UAR) * 4096 + 0x10;
        self.driver.guest.store(Bar::Bar2, at, &doorbell.emit());
    }

    /// Posts a WQE and rings for it.
    pub(super) fn post(&mut self, wqe: &SendWqe) {
        let doorbell = self.post_unrung(wqe);
        self.ring(&doorbell);
    }

    /// Posts a receive request for bytes of the data region.
    pub(super) fn post_recv(&mut self, offset: u64, len: u32) {
        let slot = RecvWqe { successor: 0, data: smallvec![data(offset, len)] }.emit(64);
        self.poke(QP_BUFFER + u64::from(self.receives % SLOTS) * 64, &slot);
        self.receives = self.receives.wrapping_add(1);
        self.set_record(RQ_RECORD, self.receives.into());
    }

    /// Posts a receive request to the SRQ, whose chain runs backwards from slot 0.
    pub(super) fn post_shared(&mut self, offset: u64, len: u32) {
        let slot = |count: u16| u32::from(SLOTS - count % SLOTS) % u32::from(SLOTS) * 64;
        let wqe = RecvWqe { successor: slot(self.shared + 1), data: smallvec![data(offset, len)] };
        self.poke(SRQ_BUFFER + u64::from(slot(self.shared)), &wqe.emit(64));
        self.shared += 1;
        self.set_record(SRQ_RECORD, self.shared.into());
    }

    /// Arms the CQ for any entry, as having read what was reaped.
    pub(super) fn arm(&mut self, command: u8) {
        let doorbell = [&[0x10 | command], &CQN.to_be_bytes()[1..], &self.reaped.to_be_bytes()].concat();
        self.driver.guest.store(Bar::Bar2, u64::from(UAR) * 4096 + 0x20, &doorbell);
    }

    /// The entries software has not read, without reading them.
    pub(super) fn unread(&mut self) -> Vec<Vec<u8>> {
        (self.reaped..)
            .map(|count| self.driver.guest.peek(CQ_BUFFER + u64::from(count % CQ_ENTRIES) * 32, 32))
            .take_while(|entry| entry[31] == 0)
            .take(CQ_ENTRIES as usize)
            .collect()
    }

    /// Reads all entries of the CQ.
    pub(super) fn reap(&mut self) -> Vec<Vec<u8>> {
        let entries = self.unread();
        for _ in &entries {
            let at = CQ_BUFFER + u64::from(self.reaped % CQ_ENTRIES) * 32 + 31;
            self.poke(at, &[0x80]);
            self.reaped += 1;
        }
        self.set_record(CQ_RECORD, self.reaped);
        entries
    }

    pub(super) fn put(&mut self, offset: u64, bytes: &[u8]) {
        for (offset, byte) in (offset..).zip(bytes) {
            self.poke(data_bus(offset), &[*byte]);
        }
    }

    pub(super) fn get(&mut self, offset: u64, len: u64) -> Vec<u8> {
        (offset..offset + len).map(|offset| self.driver.guest.peek(data_bus(offset), 1)[0]).collect()
    }

    /// What QUERY_QP says.
    pub(super) fn query(&mut self) -> Qpc {
        self.ok(0x022, &[], QPN);
        let outbox = self.driver.guest.peek(OUTBOX, 0x108);
        Qpc::parse(outbox[8..].try_into().unwrap())
    }

    /// Entries of the async EQ, from its start: type and number of the object.
    pub(super) fn events(&mut self) -> Vec<(u8, u32)> {
        (0..)
            .map(|number| self.eqe(2, number))
            .take_while(|entry| entry[1] != 0)
            .map(|entry| (entry[1], u32::from_be_bytes(entry[4..8].try_into().unwrap())))
            .collect()
    }
}

/// 16 entries, completion EQ 1 (section 6.4).
pub(super) fn cq_context() -> Vec<u8> {
    let lkey = lkey(0x20).get();
    let mut bytes = [0x0004_0000, 0, 0, 4 << 24 | UAR].map(u32::to_be_bytes).concat();
    bytes.extend([2, 1, PD, lkey, 0, 0, 0, 0, CQN, CQ_RECORD, 0, 0].map(u32::to_be_bytes).concat());
    bytes
}

/// 8 slots of 64 bytes (section 6.6).
pub(super) fn srq_context() -> Vec<u8> {
    let lkey = lkey(0x23).get();
    [3 << 24 | SRQN, lkey, SRQ_RECORD, 2 << 29 | UAR, 0, 0, 1 << 24 | PD, 0, 0, 0, 0, 0]
        .map(u32::to_be_bytes)
        .concat()
}

/// Bus address of a byte of the data region.
fn data_bus(offset: u64) -> u64 {
    let linear = 0x800 + offset;
    0x500_3000 - (linear >> 12 << 12) + (linear & 0xfff)
}

/// Syndrome of each entry: 0 of one that succeeded.
pub(super) fn syndromes(entries: &[Vec<u8>]) -> Vec<u8> {
    entries.iter().map(|entry| if entry[0x1c] >= 0xfe { entry[0x10] } else { 0 }).collect()
}
