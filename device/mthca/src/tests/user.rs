//! A user program that has its own queues and accesses the device as `libmthca` does.

use std::ops::{Deref, DerefMut};

use drivers::mthca::{Cq, UAR, WorkQueue};
use protocol::hca::mthca::doorbell::SendDoorbell;
use protocol::hca::mthca::qpc::{Geometry, Qpc};
use protocol::hca::mthca::wqe::{DataSegment, NextSegment, Operation, RecvWqe, SendWqe, WqeData};
use protocol::hca::operation::RemoteAddress;
use protocol::ids::{Cqn, Lkey, Pdn, Qkey, Rkey, Srqn, Va};
use smallvec::smallvec;

use super::*;

/// QPN as used by software: index 14h with a generation.
pub(super) const QPN: u32 = 0x1_0014;
pub(super) const CQN: u32 = 0x1_0011;
pub(super) const SRQN: u32 = 0x11;
pub(super) const QKEY: u32 = 0x1111_1111;
/// Service types of a QPC.
pub(super) const RC: u8 = 0;
pub(super) const UC: u8 = 1;
pub(super) const UD: u8 = 3;
pub(super) const SEND: u8 = 0x0a;

const PD: u32 = 1;
/// ICM addresses of the two pages that contain the doorbell records (section 14.3).
const RECORDS: u64 = 0x8_0000;
const LAST_RECORDS: u64 = 0xb_f000;
const ARM_RECORD: u32 = 0;
pub(super) const SQ_RECORD: u32 = 1;
const CQ_RECORD: u32 = 32767;
pub(super) const RQ_RECORD: u32 = 32766;
const SRQ_RECORD: u32 = 32765;

pub(super) const CQ_BUFFER: u64 = 0x400_0000;
pub(super) const CQ_ENTRIES: u32 = 16;
pub(super) const QP_BUFFER: u64 = 0x401_0000;
pub(super) const SRQ_BUFFER: u64 = 0x402_0000;
const SLOTS: u16 = 8;
const SQ_BASE: u32 = 0x200;
const SQ: WorkQueue = WorkQueue {
    bus: QP_BUFFER + SQ_BASE as u64,
    offset: SQ_BASE,
    slot: 128,
    slots: SLOTS,
    record: record(SQ_RECORD),
};
const RQ: WorkQueue =
    WorkQueue { bus: QP_BUFFER, offset: 0, slot: 64, slots: SLOTS, record: record(RQ_RECORD) };
/// Key of the data region, whose four pages are in descending order on the bus. The region starts inside the first
/// page.
const DATA_KEY: u32 = 0x22;
pub(super) const DATA_VA: u64 = 0x7f00_0000_0800;
const DATA_LEN: u64 = 0x3000;

/// A program with a CQ, an SRQ, a data region, and buffers for a QP.
pub(super) struct User {
    driver: Driver,
    shared: u16,
    reaped: u32,
    /// Sequence number for arming: the number of CQ events received, plus one.
    sequence: u8,
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

pub(super) fn send(offset: u64, len: u32) -> SendWqe {
    request(Operation::Send { imm: None }, offset, len)
}

/// Returns a signalled request with one element in the data region.
pub(super) fn request(operation: Operation, offset: u64, len: u32) -> SendWqe {
    let next = NextSegment { signalled: true, ..NextSegment::default() };
    SendWqe { next, operation, data: WqeData::Segments(smallvec![data(offset, len)]) }
}

/// Returns the address and the key for remote access to the peer's data region.
pub(super) fn remote(offset: u64) -> RemoteAddress {
    RemoteAddress { va: Va::new(DATA_VA + offset), rkey: Rkey::new(DATA_KEY.rotate_left(8)) }
}

/// Returns a context for a QP connected to the QP with the same number at LID `dlid`.
pub(super) fn qpc(kind: u8, dlid: u16) -> Qpc {
    let base = driver::qpc(kind, QPN, dlid);
    Qpc {
        rq: Geometry { log_slots: 3, log_slot: 6 },
        sq: Geometry { log_slots: 3, log_slot: 7 },
        pd: Pdn::new(PD),
        wqe_lkey: lkey(0x21),
        send_cqn: Cqn::new(CQN),
        sq_base: SQ_BASE,
        sq_record: SQ_RECORD,
        responder: base.responder.with_signal_all(true),
        recv_cqn: Cqn::new(CQN),
        rq_record: RQ_RECORD,
        qkey: Qkey::new(QKEY),
        srqn: Srqn::new(SRQN),
        ..base
    }
}

pub(super) const fn record(index: u32) -> u64 {
    ICM + RECORDS + index as u64 * 8
}

impl User {
    /// Creates a [`User`] on an HCA with LID `lid`. Its QP is in RESET.
    pub(super) fn new(lid: u16) -> Self {
        Self::of(powered_on_with(lid, Options::default()))
    }

    /// Creates a [`User`] on a device that has just been powered on.
    pub(super) fn of(mut driver: Driver) -> Self {
        replay(&mut driver, probe::BRING_UP);
        open_port(&mut driver);
        for icm in [RECORDS, LAST_RECORDS] {
            driver.ok(0xffa, &block(icm, ICM + icm, 0), 1);
        }
        let mut user = Self { driver, shared: 0, reaped: 0, sequence: 1 };
        user.create_objects();
        user
    }

    /// Creates the regions, the CQ and the SRQ.
    pub(super) fn create_objects(&mut self) {
        for (slot, mtt, bus, flags) in [
            (0x20, 0x4000, CQ_BUFFER, Mpt::LOCAL),
            (0x21, 0x4040, QP_BUFFER, Mpt::READ_ONLY),
            (0x23, 0x4080, SRQ_BUFFER, Mpt::READ_ONLY),
        ] {
            self.write_mtt(MTT_BUS + mtt, [bus]);
            let buffer = Mpt { flags, ..Mpt::buffer(slot, 0x1000, MTT + mtt) };
            self.ok(0x00d, &buffer.bytes(), slot);
        }
        let pages: Vec<u64> = (0..4).map(|page| 0x500_3000 - page * 0x1000).collect();
        self.write_mtt(MTT_BUS + 0x40c0, pages);
        let data = Mpt {
            flags: Mpt::REMOTE,
            log_pages: 0,
            key: DATA_KEY,
            pd: PD,
            start: DATA_VA,
            len: DATA_LEN,
            mtt: MTT + 0x40c0,
        };
        self.ok(0x00d, &data.bytes(), DATA_KEY);
        self.poke(CQ_BUFFER, &[0x80; 32 * CQ_ENTRIES as usize]);
        self.ok(0x016, &cq_context(), CQN);
        self.ok(0x035, &srq_context(), SRQN);
    }

    /// Destroys the objects created by [`User::create_objects`].
    pub(super) fn destroy_objects(&mut self) {
        self.ok(0x017, &[], CQN);
        self.ok(0x036, &[], SRQN);
        for slot in 0x20..=0x23 {
            self.ok(0x100f, &[], slot);
        }
    }

    pub(super) fn pair(kind: u8) -> (Self, Self) {
        let (mut a, mut b) = (Self::new(1), Self::new(2));
        a.connect(&qpc(kind, 2));
        b.connect(&qpc(kind, 1));
        (a, b)
    }

    /// Writes a WQE to the next slot of the send queue, links to it from the preceding slot, and updates the doorbell
    /// record. Returns the doorbell.
    pub(super) fn post_without_doorbell(&mut self, wqe: &SendWqe) -> SendDoorbell {
        let bytes = wqe.emit();
        self.post_bytes(wqe.operation.opcode().code(), &bytes)
    }

    /// Like [`User::post_without_doorbell`], but with arbitrary bytes.
    pub(super) fn post_bytes(&mut self, opcode: u8, bytes: &[u8]) -> SendDoorbell {
        self.post_send(&SQ, QPN, opcode, bytes, false)
    }

    pub(super) fn post(&mut self, wqe: &SendWqe) {
        let doorbell = self.post_without_doorbell(wqe);
        self.ring_doorbell(&doorbell);
    }

    pub(super) fn post_recv(&mut self, offset: u64, len: u32) {
        self.driver.post_recv(&RQ, data(offset, len));
    }

    /// Posts a receive to the SRQ. The chain of requests starts at slot 0 and continues backwards from the last slot.
    pub(super) fn post_shared(&mut self, offset: u64, len: u32) {
        let slot = |count: u16| u32::from(SLOTS - count % SLOTS) % u32::from(SLOTS) * 64;
        let wqe = RecvWqe { successor: slot(self.shared + 1), data: smallvec![data(offset, len)] };
        let at = SRQ_BUFFER + u64::from(slot(self.shared));
        self.poke(at, &wqe.emit(64));
        self.shared += 1;
        self.driver.set_record(record(SRQ_RECORD), self.shared.into());
    }

    /// Arms the CQ at the current consumer index. `command` is 2 for any entry, or 1 for a solicited one.
    pub(super) fn arm(&mut self, command: u8) {
        self.arm_with(command, self.sequence, self.reaped);
    }

    /// Like [`User::arm`], but with any sequence number and consumer index.
    pub(super) fn arm_with(&mut self, command: u8, sequence: u8, consumer: u32) {
        let sequence = sequence & 3;
        let tag = (CQN << 8 | 2 << 5) | u32::from(sequence << 3 | command);
        self.poke(record(ARM_RECORD), &[consumer.to_be_bytes(), tag.to_be_bytes()].concat());
        self.ring_arm(command, sequence, consumer);
    }

    /// Stores the arm doorbell without updating the doorbell record.
    pub(super) fn ring_arm(&mut self, command: u8, sequence: u8, consumer: u32) {
        let doorbell =
            [&[sequence << 4 | command], &CQN.to_be_bytes()[1..], &consumer.to_be_bytes()].concat();
        self.driver.store(Bar::Bar2, u64::from(UAR) * 4096 + 0x20, &doorbell);
    }

    /// Consumes a CQ event. `count` is the number of events consumed from the completion EQ, including this one.
    pub(super) fn receive_event(&mut self, count: u32) {
        self.poke(EQ_BUFFERS[1] + 32 * u64::from(count - 1) + 31, &[0x80]);
        self.driver.write(EQ_SET_CI + 8, count);
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Writes the queue's type and number to each doorbell record, as software does after creating the queues.
    pub(super) fn tag_records(&mut self) {
        for (index, kind, number) in
            [(CQ_RECORD, 1, CQN), (SQ_RECORD, 3, QPN), (RQ_RECORD, 4, QPN), (SRQ_RECORD, 5, SRQN)]
        {
            self.poke(record(index) + 4, &(number << 8 | kind << 5).to_be_bytes());
        }
    }

    pub(super) fn clear_records(&mut self) {
        for index in [SQ_RECORD, RQ_RECORD] {
            self.driver.set_record(record(index), 0);
        }
    }

    pub(super) fn set_posted(&mut self, count: u32) {
        self.driver.set_record(record(SQ_RECORD), count);
    }

    pub(super) fn untag(&mut self) {
        self.poke(record(SQ_RECORD) + 4, &[0; 4]);
    }

    /// Returns the unread CQ entries without consuming them.
    pub(super) fn unread(&mut self) -> Vec<Vec<u8>> {
        (self.reaped..)
            .map(|count| self.driver.peek(CQ_BUFFER + u64::from(count % CQ_ENTRIES) * 32, 32))
            .take_while(|entry| entry[31] == 0)
            .take(CQ_ENTRIES as usize)
            .collect()
    }

    /// Consumes and returns all unread entries in the CQ.
    pub(super) fn reap(&mut self) -> Vec<Vec<u8>> {
        let entries = self.unread();
        for _ in &entries {
            let at = CQ_BUFFER + u64::from(self.reaped % CQ_ENTRIES) * 32 + 31;
            self.poke(at, &[0x80]);
            self.reaped += 1;
        }
        self.driver.set_record(record(CQ_RECORD), self.reaped);
        entries
    }

    pub(super) fn put(&mut self, offset: u64, bytes: &[u8]) {
        for (offset, byte) in (offset..).zip(bytes) {
            self.poke(data_bus(offset), &[*byte]);
        }
    }

    pub(super) fn get(&mut self, offset: u64, len: u64) -> Vec<u8> {
        (offset..offset + len).map(|offset| self.driver.peek(data_bus(offset), 1)[0]).collect()
    }

    pub(super) fn query(&mut self) -> Qpc {
        self.ok(0x022, &[], QPN);
        let outbox = self.driver.peek(OUTBOX, 0x108);
        Qpc::parse(outbox[8..].try_into().unwrap())
    }

    /// Returns all entries in the async EQ, each as an event type and an object number.
    pub(super) fn events(&mut self) -> Vec<(u8, u32)> {
        (0..)
            .map(|number| self.eqe(2, number))
            .take_while(|entry| entry[1] != 0)
            .map(|entry| (entry[1], u32::from_be_bytes(entry[4..8].try_into().unwrap())))
            .collect()
    }
}

/// Returns a 16-entry CQ that shares the buffer and doorbell records of the existing CQ.
pub(super) fn cq(cqn: u32) -> Cq {
    let (record, arm_record) = (CQ_RECORD, ARM_RECORD);
    Cq { cqn, log_entries: 4, pd: PD, lkey: lkey(0x20).get(), record, arm_record }
}

pub(super) fn cq_context() -> Vec<u8> {
    cq(CQN).bytes()
}

/// Returns the context of an SRQ with eight 64-byte slots.
pub(super) fn srq_context() -> Vec<u8> {
    driver::srq_context(SRQN, [3, 2], PD, lkey(0x23).get(), SRQ_RECORD)
}

fn data_bus(offset: u64) -> u64 {
    let linear = 0x800 + offset;
    0x500_3000 - (linear >> 12 << 12) + (linear & 0xfff)
}

/// Returns the syndrome of each entry, which is 0 for success.
pub(super) fn syndromes(entries: &[Vec<u8>]) -> Vec<u8> {
    entries.iter().map(|entry| drivers::syndrome(entry)).collect()
}
