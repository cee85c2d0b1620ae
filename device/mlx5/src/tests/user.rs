//! A program that has its own queues and acts like `libmlx5`.

use std::ops::{Deref, DerefMut};

use protocol::Psn;
use protocol::hca::mlx5::cqe::{Cqe, INITIAL_OWNER_BYTE};
use protocol::hca::mlx5::doorbell::{ArmCq, EqDoorbell};
use protocol::hca::mlx5::eqe::Eqe;
use protocol::hca::mlx5::input::Bytes;
use protocol::hca::mlx5::mkey::{ANY_QP, AccessMode, CreateMkey, MkeyContext};
use protocol::hca::mlx5::path::Path;
use protocol::hca::mlx5::qp::{CreateQp, ModifyQp, QpContext, Service};
use protocol::hca::mlx5::resource::{MkeyNumber, QpNumber, SrqNumber};
use protocol::hca::mlx5::srq::{CreateRmp, RmpContext, WorkQueue, WorkQueueKind};
use protocol::hca::mlx5::transition::QpAttributes;
use protocol::hca::mlx5::wqe::{
    ControlSegment, DataItem, DataSegment, Opcode, Operation, RecvWqe, RemoteSegment, SendWqe, SrqEntry,
};
use protocol::ids::{Lkey, Qkey, Qpn, Rkey, Srqn, UserIndex, Va};
use smallvec::smallvec;

use super::*;

const EVENTS: u64 = 0x40_0000;
const COMPLETIONS: u64 = 0x40_8000;
pub(super) const CQ: u64 = 0x41_0000;
/// The EQ for completions, which is the second EQ created.
pub(super) const COMPLETION_EQ: Eqn = Eqn::new(2);
const CQ_ENTRIES: u32 = 64;
/// Address of a QP's queues: sixteen 64-byte receive entries, followed by 32 send queue blocks.
pub(super) const QP: u64 = 0x42_0000;
pub(super) const BLOCKS: u16 = 32;
pub(super) const RECEIVES: u16 = 16;
/// Address of an SRQ with eight 64-byte entries.
pub(super) const SRQ: u64 = 0x43_0000;
pub(super) const QP_RECORD: Iova = Iova::new(RECORD.get() + 0x40);
pub(super) const SRQ_RECORD: Iova = Iova::new(RECORD.get() + 0x80);
/// Start address of the data region, inside the first of four pages. The pages have descending bus addresses.
pub(super) const DATA_VA: u64 = 0x7f00_0000_0800;
pub(super) const DATA_LEN: u64 = 0x3000;
pub(super) const LAST_PAGE: u64 = 0x50_3000;
pub(super) const QKEY: Qkey = Qkey::new(0x1111);
pub(super) const USER_INDEX: UserIndex = UserIndex::new(0x77);

/// A program with a CQ, a data region, and one QP.
pub(super) struct User {
    driver: Driver,
    /// UAR page with the EQ doorbells.
    pub(super) eq_uar: UarIndex,
    /// UAR page with the program's doorbells.
    pub(super) uar: UarIndex,
    pub(super) pd: Pdn,
    pub(super) cqn: Cqn,
    pub(super) qpn: Qpn,
    /// Bus address of the send queue, which follows the receive queue.
    pub(super) send_queue: u64,
    pub(super) key: u32,
    /// Number of send queue blocks posted.
    sent: u16,
    /// Number of receives posted to the QP's own queue.
    received: u16,
    /// Number of receives posted to the SRQ.
    pub(super) shared: u16,
    /// Number of CQEs read.
    reaped: u32,
    /// Number of completion events received, modulo 4.
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

/// Returns a request with one data segment. The request is signalled: the device writes a CQE even on success.
pub(super) fn request<'data>(
    opcode: Opcode,
    operation: Operation<'data>,
    data: DataSegment,
) -> SendWqe<'data> {
    let control = ControlSegment { completion: 2, ..ControlSegment::default() };
    SendWqe { control, opcode, xrc_srqn: None, operation, data: smallvec![DataItem::Pointer(data)] }
}

fn data_bus(offset: u64) -> u64 {
    let linear = 0x800 + offset;
    LAST_PAGE - (linear >> 12 << 12) + (linear & 0xfff)
}

impl User {
    /// Creates a [`User`] without a QP, on an HCA with LID `lid`.
    pub(super) fn new(lid: u16) -> Self {
        Self::with(lid, infiniband())
    }

    pub(super) fn with(lid: u16, options: Options) -> Self {
        Self::of(powered_on_with(lid, options), |_, eq_uar| eq_uar)
    }

    /// Creates a [`User`] with a mapped UAR page, where doorbells do not trap.
    pub(super) fn mapped(lid: u16) -> Self {
        let mut driver = powered_on_with(lid, infiniband());
        driver.map_doorbells();
        Self::of(driver, |driver, _| driver.alloc_uar())
    }

    /// Creates a [`User`] on a device that has been powered on. `uar` receives the EQs' UAR page and returns the
    /// program's.
    fn of(mut driver: Driver, uar: impl FnOnce(&mut Driver, UarIndex) -> UarIndex) -> Self {
        driver.ok(&Command::EnableHca(Function { function: 0 }));
        driver.ok(&Command::InitHca(InitHca::default()));
        let eq_uar = driver.alloc_uar();
        let all = EventMask::from_bits_retain(0x1f_00be);
        driver.create_eq(eq_uar, 0, all, EVENTS);
        let eqn = driver.create_eq(eq_uar, 1, EventMask::empty(), COMPLETIONS);
        let uar = uar(&mut driver, eq_uar);
        let cqn = driver.create_cq(uar, eqn, CQ);
        for entry in 0..u64::from(CQ_ENTRIES) {
            driver.poke(CQ + entry * 64 + 63, &[INITIAL_OWNER_BYTE]);
        }
        let pd = driver.alloc_pd();
        let qpn = Qpn::new(0);
        let mut user = Self {
            driver,
            eq_uar,
            uar,
            pd,
            cqn,
            qpn,
            send_queue: 0,
            key: 0,
            sent: 0,
            received: 0,
            shared: 0,
            reaped: 0,
            sequence: 0,
        };
        let list: Vec<u8> = (0..4).flat_map(|page| ((LAST_PAGE - page * 0x1000) | 3).to_be_bytes()).collect();
        let context = MkeyContext {
            start: Va::new(DATA_VA),
            length: DATA_LEN,
            log_page: 12,
            atomic: true,
            remote_write: true,
            remote_read: true,
            local_write: true,
            ..user.mkey(AccessMode::Pages)
        };
        user.key = user.create_mkey(context, &list);
        user
    }

    pub(super) fn pair(service: Service) -> (Self, Self) {
        let (mut a, mut b) = (Self::new(1), Self::new(2));
        a.connect(&a.context(service), 2);
        b.connect(&b.context(service), 1);
        (a, b)
    }

    /// Returns the context of a key in the program's protection domain. The key permits only local reads.
    pub(super) fn mkey(&self, mode: AccessMode) -> MkeyContext {
        let context =
            MkeyContext { qpn: ANY_QP, key: 1, pd: self.pd, local_read: true, ..Default::default() };
        context.with_access_mode(mode)
    }

    pub(super) fn create_mkey(&mut self, context: MkeyContext, list: &[u8]) -> u32 {
        let translation_units = u32::try_from(list.len() / 16).unwrap();
        let create = CreateMkey { context, translation_units, ..CreateMkey::default() };
        let created = self.ok(&Command::CreateMkey(create, Bytes::parse(list)));
        MkeyNumber::parse(&output(&created)).index.key(context.key)
    }

    pub(super) fn context(&self, service: Service) -> QpContext {
        QpContext {
            service: service.code(),
            pd: self.pd,
            log_rq_entries: 4,
            log_rq_stride: 2,
            log_sq_blocks: 5,
            uar: self.uar,
            user_index: USER_INDEX,
            send_cqn: self.cqn,
            recv_cqn: self.cqn,
            record: QP_RECORD,
            fast_registration: true,
            qkey: QKEY,
            ..QpContext::default()
        }
    }

    /// Creates the QP and connects it to the first QP of another device.
    pub(super) fn connect(&mut self, context: &QpContext, lid: u16) {
        let list = pages(QP, 1);
        let create = CreateQp { context: *context, ..CreateQp::default() };
        let created = self.ok(&Command::CreateQp(create, Pages::parse(&list)));
        self.qpn = QpNumber::parse(&output(&created)).qpn;
        self.send_queue = QP + context.rq_len() as u64;
        self.start(context, lid);
    }

    pub(super) fn start(&mut self, context: &QpContext, lid: u16) {
        let qpn = self.qpn;
        self.poke(QP_RECORD.get(), &[0; 8]);
        (self.sent, self.received) = (0, 0);
        let modify = |context| ModifyQp { qpn, optional: QpAttributes::RIGHTS, context };
        let primary = Path { port: 1, ..Path::default() };
        self.ok(&Command::Rst2InitQp(modify(QpContext { primary, ..*context })));
        let primary = Path { lid: Lid::new(lid), ..context.primary };
        let rtr = QpContext {
            mtu: 3,
            log_max_message: 30,
            remote_qpn: Qpn::new(0x80),
            recv_psn: Psn::new(5),
            min_rnr_timer: 12,
            log_responder_depth: context.log_responder_depth.max(2),
            remote_write: true,
            remote_read: true,
            remote_atomic: true,
            primary,
            ..QpContext::default()
        };
        self.ok(&Command::Init2RtrQp(modify(rtr)));
        let rts = QpContext {
            next_send_psn: Psn::new(5),
            retry_count: 2,
            rnr_retry: 7,
            log_requester_depth: context.log_requester_depth.max(2),
            primary: Path { ack_timeout: 14, ..Path::default() },
            ..QpContext::default()
        };
        self.ok(&Command::Rtr2RtsQp(ModifyQp { optional: QpAttributes::empty(), ..modify(rts) }));
    }

    pub(super) fn reset(&mut self) {
        let qpn = self.qpn;
        self.ok(&Command::ToRstQp(QpNumber { qpn }));
    }

    /// Creates an RMP with eight 64-byte entries.
    pub(super) fn create_rmp(&mut self, kind: WorkQueueKind) -> Srqn {
        let list = pages(SRQ, 1);
        let queue = WorkQueue {
            kind: kind.code(),
            pd: self.pd,
            record: SRQ_RECORD,
            log_stride: 6,
            log_entries: 3,
            ..WorkQueue::default()
        };
        let create = CreateRmp { context: RmpContext { queue, ..RmpContext::default() } };
        let created = self.ok(&Command::CreateRmp(create, Pages::parse(&list)));
        SrqNumber::parse(&output(&created)).srqn
    }

    pub(super) fn data(&self, offset: u64, len: u32) -> DataSegment {
        DataSegment { byte_count: len, lkey: Lkey::new(self.key), va: Va::new(DATA_VA + offset) }
    }

    /// Returns the address and key for remote access to the peer's data region. Both devices use the same key.
    pub(super) fn remote(&self, offset: u64) -> RemoteSegment {
        RemoteSegment { va: Va::new(DATA_VA + offset), rkey: Rkey::new(self.key) }
    }

    pub(super) fn send<'data>(&self, offset: u64, len: u32) -> SendWqe<'data> {
        request(Opcode::Send, Operation::Send, self.data(offset, len))
    }

    /// Writes a WQE to the send queue and updates the doorbell record. Returns the doorbell.
    pub(super) fn post_without_doorbell(&mut self, wqe: &SendWqe<'_>) -> [u8; 8] {
        let mut wqe = wqe.clone();
        (wqe.control.qpn, wqe.control.index) = (self.qpn, self.sent);
        self.post_bytes(&wqe.emit())
    }

    /// Like [`User::post_without_doorbell`], but with arbitrary bytes.
    pub(super) fn post_bytes(&mut self, bytes: &[u8]) -> [u8; 8] {
        for block in bytes.chunks(64) {
            let at = self.send_queue + u64::from(self.sent % BLOCKS) * 64;
            self.poke(at, block);
            self.sent = self.sent.wrapping_add(1);
        }
        let sent = self.sent;
        self.poke(QP_RECORD.get() + 6, &sent.to_be_bytes());
        output(bytes)
    }

    pub(super) fn post(&mut self, wqe: &SendWqe<'_>) {
        let doorbell = self.post_without_doorbell(wqe);
        self.ring_send(&doorbell);
    }

    pub(super) fn ring_send(&mut self, doorbell: &[u8]) {
        let uar = self.uar;
        self.ring(uar, driver::SEND, doorbell);
    }

    /// Posts a receive into the data region. Receives have no doorbell.
    pub(super) fn post_recv(&mut self, offset: u64, len: u32) {
        let wqe = RecvWqe { scatter: smallvec![self.data(offset, len)] };
        let at = QP + u64::from(self.received % RECEIVES) * 64;
        self.poke(at, &wqe.emit(64));
        self.received = self.received.wrapping_add(1);
        let received = self.received;
        self.poke(QP_RECORD.get() + 2, &received.to_be_bytes());
    }

    /// Posts a receive to the SRQ. The list of entries starts at entry 0 and runs backwards.
    pub(super) fn post_shared(&mut self, offset: u64, len: u32) {
        let number = |count: u16| (800 - count) & 7;
        let [entry, next] = [self.shared, self.shared + 1].map(number);
        self.post_shared_entry(entry, next, offset, len);
    }

    /// Posts SRQ entry `number`, linked to entry `next`.
    pub(super) fn post_shared_entry(&mut self, number: u16, next: u16, offset: u64, len: u32) {
        let wqe = RecvWqe { scatter: smallvec![self.data(offset, len)] };
        let at = SRQ + u64::from(number) * 64;
        self.poke(at, &SrqEntry { next, wqe }.emit(64));
        self.shared += 1;
        let shared = self.shared;
        self.poke(SRQ_RECORD.get() + 2, &shared.to_be_bytes());
    }

    pub(super) fn reap(&mut self) -> Vec<Cqe> {
        let mut entries = Vec::new();
        loop {
            let at = CQ + u64::from(self.reaped % CQ_ENTRIES) * 64;
            let bytes = self.peek(at, 64);
            match Cqe::parse(&output(&bytes)) {
                Ok((entry, owner)) if owner == (self.reaped / CQ_ENTRIES % 2 == 1) => entries.push(entry),
                _ => break,
            }
            self.reaped += 1;
        }
        let reaped = self.reaped;
        self.poke(RECORD.get(), &reaped.to_be_bytes());
        entries
    }

    /// Arms the CQ at the current consumer index.
    pub(super) fn arm(&mut self, solicited_only: bool) {
        let arm = ArmCq { solicited_only, ..self.next_arm() };
        self.record_arm(&arm);
        self.ring_arm(&arm);
    }

    /// Returns the CQ's next arm request. It covers all completions, whether solicited or not.
    pub(super) fn next_arm(&self) -> ArmCq {
        let Self { sequence, cqn, reaped, .. } = *self;
        ArmCq { sequence, solicited_only: false, consumer: reaped, cqn }
    }

    pub(super) fn record_arm(&mut self, arm: &ArmCq) {
        self.poke(RECORD.get() + 4, &arm.emit()[..4]);
    }

    pub(super) fn ring_arm(&mut self, arm: &ArmCq) {
        let uar = self.uar;
        self.ring(uar, driver::ARM_CQ, &arm.emit());
    }

    /// Reads all completion events and updates the EQ's consumer index.
    pub(super) fn receive_events(&mut self) {
        let (uar, events) = (self.eq_uar, u32::try_from(self.completion_events()).unwrap());
        self.sequence = u8::try_from(events & 3).unwrap();
        self.ring(uar, driver::UPDATE_EQ, &EqDoorbell { eqn: COMPLETION_EQ, consumer: events }.emit());
    }

    pub(super) fn events(&mut self) -> Vec<Eqe> {
        self.eqes(EVENTS)
    }

    pub(super) fn completion_events(&mut self) -> usize {
        self.eqes(COMPLETIONS).len()
    }

    fn eqes(&mut self, ring: u64) -> Vec<Eqe> {
        let entries: Vec<Vec<u8>> = (0..256).map(|entry| self.peek(ring + entry * 64, 64)).collect();
        let written = entries.iter().take_while(|bytes| bytes[..] != [0; 64]);
        written.map(|bytes| Eqe::parse(&output(bytes)).unwrap().0).collect()
    }

    pub(super) fn put(&mut self, offset: u64, bytes: &[u8]) {
        for (offset, byte) in (offset..).zip(bytes) {
            self.poke(data_bus(offset), &[*byte]);
        }
    }

    pub(super) fn get(&mut self, offset: u64, len: u64) -> Vec<u8> {
        (offset..offset + len).map(|offset| self.peek(data_bus(offset), 1)[0]).collect()
    }
}

/// Returns the syndrome of each CQE, or 0 for success.
pub(super) fn syndromes(entries: &[Cqe]) -> Vec<u8> {
    let of = |entry: &Cqe| match entry {
        Cqe::Failed(failure) => failure.syndrome,
        _ => 0,
    };
    entries.iter().map(of).collect()
}
