//! Tests the netdev's data path: SQs, RQs, and the objects that connect queues to the flow tables.

mod bench;
mod golden;
mod hostile;
mod loopback;
mod moderation;
mod objects;
mod receive;
pub(super) mod strict;
mod tables;
mod trace;
mod transmit;

use std::num::NonZeroU16;

use protocol::hca::mlx5::counter::{QCounters, QueryQCounter};
use protocol::hca::mlx5::cqe::{Cqe, INITIAL_OWNER_BYTE};
use protocol::hca::mlx5::flow_entry::{
    Destination, FlowActions, FlowContext, FlowDestination, FlowTag, SetFlowTableEntry,
};
use protocol::hca::mlx5::flow_group::{CreateFlowGroup, FlowGroupNumber};
use protocol::hca::mlx5::flow_table::{CreateFlowTable, FlowTableContext, FlowTableNumber, SetFlowTableRoot};
use protocol::hca::mlx5::frame_cqe::{FrameFields, FrameReceipt};
use protocol::hca::mlx5::input::Bytes;
use protocol::hca::mlx5::match_parameters::{MatchParameters, OuterHeaders};
use protocol::hca::mlx5::mkey::{ANY_QP, CreateMkey, MkeyContext};
use protocol::hca::mlx5::resource::{
    CounterSetNumber, MkeyNumber, RqNumber, RqtNumber, SqNumber, TirNumber, TisNumber, TransportDomainNumber,
};
use protocol::hca::mlx5::rq::{CreateRq, ModifyRq, RqContext};
use protocol::hca::mlx5::rqt::{CreateRqt, RqNumbers, RqtContext};
use protocol::hca::mlx5::sq::{CreateSq, ModifySq, SqContext, WorkQueueState};
use protocol::hca::mlx5::srq::WorkQueue;
use protocol::hca::mlx5::tir::{CreateTir, TirContext};
use protocol::hca::mlx5::tis::{CreateTis, TisContext};
use protocol::hca::mlx5::wqe::{
    BLOCK, ControlSegment, DataItem, DataSegment, EthernetSegment, FrameOperation, FrameWqe, Opcode, RecvWqe,
};
use protocol::ids::{CounterSet, FlowTableId, Lkey, Qpn, Rqn, Rqtn, Sqn, Tirn, Tisn, TransportDomain, Va};

use self::bench::Bench;
use super::*;

const SEND_CQ: u64 = 0x50_0000;
const RECV_CQ: u64 = 0x51_0000;
const SQ: u64 = 0x60_0000;
const RQ: u64 = 0x70_0000;
const SQ_RECORD: u64 = 0x31_0000;
const RQ_RECORD: u64 = 0x31_0040;
/// Memory for frames to send.
const DATA: u64 = 0x200_0000;
/// First receive buffer. Buffers are 64 KiB apart.
const BUFFERS: u64 = 0x300_0000;
const LOG_ENTRIES: u8 = 6;

/// A device with one SQ and one RQ, both ready.
struct Net {
    driver: driver::Driver<Bench>,
    uar: UarIndex,
    pd: Pdn,
    domain: TransportDomain,
    key: Lkey,
    tisn: Tisn,
    cqs: [Cqn; 2],
    set: CounterSet,
    sqn: Sqn,
    rqn: Rqn,
    sent: u16,
    received: u16,
    reaped: [u32; 2],
}

fn work_queue(pd: Pdn, uar: UarIndex, record: u64, log_stride: u8) -> WorkQueue {
    let record = Iova::new(record);
    WorkQueue { kind: 1, pd, uar, record, log_stride, log_entries: LOG_ENTRIES, ..WorkQueue::default() }
}

/// Returns the address of a CQ's doorbell record. `number` is 0 for the send CQ and 1 for the receive CQ.
const fn cq_record(number: u64) -> Iova {
    Iova::new(RECORD.get() + 8 * number)
}

impl Net {
    fn new() -> Self {
        Self::with_data_segments(1)
    }

    /// Creates a device whose receive WQEs have `count` data segments. `count` must be a power of two.
    fn with_data_segments(count: u8) -> Self {
        Self::of(Bench::new(), count)
    }

    /// Creates a device from `bench`. Its receive WQEs have `count` data segments. The SQ and the EQ use different UAR
    /// pages.
    fn of(bench: Bench, count: u8) -> Self {
        let mut driver = driver::Driver::new(bench, driver::Layout::LARGE);
        driver.enable();
        driver.start();
        driver.ok(&Command::EnableHca(Function { function: 0 }));
        driver.ok(&Command::InitHca(InitHca::default()));
        let (eq_uar, pd) = (driver.alloc_uar(), driver.alloc_pd());
        let eqn = driver.create_eq(eq_uar, 0, EventMask::default(), 0x40_0000);
        let uar = driver.alloc_uar();
        let cqs = [(SEND_CQ, 0), (RECV_CQ, 1)].map(|(ring, number)| {
            for entry in 0..64 {
                driver.poke(ring + entry * 64 + 63, &[INITIAL_OWNER_BYTE]);
            }
            let list = pages(ring, 1);
            let context = CqContext { record: cq_record(number), ..cq_context(uar, eqn) };
            let create = Command::CreateCq(CreateCq { context, ..CreateCq::default() }, Pages::parse(&list));
            CqNumber::parse(&output(&driver.ok(&create))).cqn
        });
        let domain =
            TransportDomainNumber::parse(&output(&driver.ok(&Command::AllocTransportDomain(BARE)))).domain;
        let set = CounterSetNumber::parse(&output(&driver.ok(&Command::AllocQCounter(BARE)))).set;
        let context =
            MkeyContext { qpn: ANY_QP, local_read: true, local_write: true, ..MkeyContext::default() };
        let context = MkeyContext { length64: true, pd, ..context };
        let create = Command::CreateMkey(CreateMkey { context, ..CreateMkey::default() }, Bytes::default());
        let MkeyNumber { index } = MkeyNumber::parse(&output(&driver.ok(&create)));
        let tis = CreateTis { context: TisContext { domain, ..TisContext::default() } };
        let TisNumber { tisn } = TisNumber::parse(&output(&driver.ok(&Command::CreateTis(tis))));
        let mut net = Self {
            driver,
            uar,
            pd,
            domain,
            key: Lkey::new(index.key(0)),
            tisn,
            cqs,
            set,
            sqn: Sqn::default(),
            rqn: Rqn::default(),
            sent: 0,
            received: 0,
            reaped: [0; 2],
        };
        net.sqn = net.create_sq(net.sq_context());
        net.rqn = net.create_rq(net.rq_context(4 + u8::try_from(count.ilog2()).unwrap()));
        net.modify_sq(WorkQueueState::Ready);
        net.modify_rq(WorkQueueState::Ready);
        net
    }

    fn sq_context(&self) -> SqContext {
        SqContext {
            flush_in_error: true,
            cqn: self.cqs[0],
            tis_count: 1,
            tisn: self.tisn,
            queue: work_queue(self.pd, self.uar, SQ_RECORD, 6),
            ..SqContext::default()
        }
    }

    fn rq_context(&self, log_stride: u8) -> RqContext {
        let queue = work_queue(self.pd, UarIndex::default(), RQ_RECORD, log_stride);
        RqContext { cqn: self.cqs[1], counter_set: self.set, queue, ..RqContext::default() }
    }

    fn create_sq(&mut self, context: SqContext) -> Sqn {
        let list = pages(SQ, 1);
        let command = Command::CreateSq(CreateSq { context }, Pages::parse(&list));
        SqNumber::parse(&output(&self.driver.ok(&command))).sqn
    }

    fn create_rq(&mut self, context: RqContext) -> Rqn {
        let list = pages(RQ, 4);
        let command = Command::CreateRq(CreateRq { context }, Pages::parse(&list));
        RqNumber::parse(&output(&self.driver.ok(&command))).rqn
    }

    fn modify_sq(&mut self, state: WorkQueueState) {
        let context = SqContext { state: state.code(), ..SqContext::default() };
        self.driver.ok(&Command::ModifySq(ModifySq { sqn: self.sqn, context, ..ModifySq::default() }));
    }

    fn modify_rq(&mut self, state: WorkQueueState) {
        let context = RqContext { state: state.code(), ..RqContext::default() };
        self.driver.ok(&Command::ModifyRq(ModifyRq { rqn: self.rqn, context, ..ModifyRq::default() }));
    }

    /// Creates a TIR and adds it to the TIRs that receive every frame.
    fn create_tir(&mut self, context: TirContext) -> Tirn {
        let context = TirContext { domain: self.domain, ..context };
        let command = Command::CreateTir(CreateTir { context });
        let TirNumber { tirn } = TirNumber::parse(&output(&self.driver.ok(&command)));
        self.driver.tirs.push(tirn);
        tirn
    }

    /// Creates a TIR for the RQ.
    fn create_direct_tir(&mut self) -> Tirn {
        self.create_tir(TirContext { rqn: self.rqn, ..TirContext::default() })
    }

    fn create_rqt(&mut self, queues: &[Rqn]) -> Rqtn {
        let list: Vec<u8> = queues.iter().flat_map(|rqn| rqn.get().to_be_bytes()).collect();
        let entries = u16::try_from(queues.len()).unwrap();
        let context = RqtContext { max_entries: 256, entries };
        let command = Command::CreateRqt(CreateRqt { context }, RqNumbers::parse(&list));
        RqtNumber::parse(&output(&self.driver.ok(&command))).rqtn
    }

    fn data(&self, at: u64, len: usize) -> DataItem<'static> {
        let byte_count = u32::try_from(len).unwrap();
        DataItem::Pointer(DataSegment { byte_count, lkey: self.key, va: Va::new(at) })
    }

    /// Returns a WQE that sends an inline header followed by `len` bytes at [`DATA`].
    fn wqe<'a>(&self, segment: EthernetSegment, header: &'a [u8], len: usize) -> FrameWqe<'a> {
        let mss = NonZeroU16::new(segment.mss);
        let opcode = if mss.is_some() { Opcode::Lso } else { Opcode::Send };
        FrameWqe {
            control: self.control(opcode),
            operation: FrameOperation::Send {
                segment,
                mss,
                header,
                data: (len != 0).then(|| self.data(DATA, len)).into_iter().collect(),
            },
        }
    }

    /// Returns a control segment that requests a CQE.
    fn control(&self, opcode: Opcode) -> ControlSegment {
        let qpn = Qpn::new(self.sqn.get());
        ControlSegment { opcode: opcode.code(), qpn, completion: 2, ..ControlSegment::default() }
    }

    fn post(&mut self, wqe: &FrameWqe<'_>) {
        let control = ControlSegment { index: self.sent, ..wqe.control };
        self.post_bytes(&FrameWqe { control, operation: wqe.operation.clone() }.emit());
    }

    /// Writes a WQE to the SQ and rings the doorbell.
    fn post_bytes(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(BLOCK) {
            let block = u64::from(self.sent) % (1 << LOG_ENTRIES);
            self.driver.poke(SQ + block * BLOCK as u64, part);
            self.sent = self.sent.wrapping_add(1);
        }
        self.driver.poke(SQ_RECORD + 6, &self.sent.to_be_bytes());
        self.ring();
    }

    fn ring(&mut self) {
        let doorbell = u64::from(self.sqn.get()) << 8;
        self.driver.ring(self.uar, driver::SEND, &doorbell.to_be_bytes());
    }

    /// Creates a flow table at level `level` and makes it the root. Its only entry forwards all frames with
    /// `ether_type` to `to`.
    fn create_flow_table(&mut self, level: u8, ether_type: u16, to: Destination) -> FlowTableId {
        let context = FlowTableContext { level, log_size: 4, ..FlowTableContext::default() };
        let create = Command::CreateFlowTable(CreateFlowTable { table_type: 0, context });
        let table = FlowTableNumber::parse(&output(&self.driver.ok(&create))).table;
        let outer = OuterHeaders { ether_type: 0xffff, ..OuterHeaders::default() };
        let mask = MatchParameters { outer, ..MatchParameters::default() };
        let create = CreateFlowGroup { table, first: 2, last: 5, criteria: 1, mask, ..<_>::default() };
        let created = self.driver.ok(&Command::CreateFlowGroup(create));
        let group = FlowGroupNumber::parse(&output(&created)).group;
        let outer = OuterHeaders { ether_type, ..OuterHeaders::default() };
        let context = FlowContext {
            group,
            tag: FlowTag::new(7),
            actions: FlowActions::FORWARD,
            destination_count: 1,
            value: MatchParameters { outer, ..MatchParameters::default() },
            ..FlowContext::default()
        };
        let set = SetFlowTableEntry { table, index: 3, context, ..SetFlowTableEntry::default() };
        let list = FlowDestination::from(to).emit();
        self.driver.ok(&Command::SetFlowTableEntry(set, Bytes::parse(&list)));
        self.driver.ok(&Command::SetFlowTableRoot(SetFlowTableRoot { table, ..SetFlowTableRoot::default() }));
        self.driver.uses_flow_tables = true;
        table
    }

    fn restart_sq(&mut self) {
        self.modify_sq(WorkQueueState::Reset);
        self.driver.poke(SQ_RECORD, &[0; 8]);
        self.sent = 0;
        self.modify_sq(WorkQueueState::Ready);
    }

    /// Posts a receive with buffers of the given lengths. Returns their addresses.
    fn post_receive(&mut self, lens: &[u32]) -> Vec<u64> {
        let stride = 16 * lens.len().next_power_of_two();
        let number = u64::from(self.received);
        let at = |n: usize| BUFFERS + number * 0x10_0000 + n as u64 * 0x1_0000;
        let places: Vec<u64> = (0..lens.len()).map(at).collect();
        let segment =
            |(len, va): (&u32, &u64)| DataSegment { byte_count: *len, lkey: self.key, va: Va::new(*va) };
        let scatter = lens.iter().zip(&places).map(segment).collect();
        let mut entry = RecvWqe { scatter }.emit(stride);
        // Section 20, M-24: the driver sets bit 31 of each byte count.
        entry.chunks_mut(16).take(lens.len()).for_each(|segment| segment[0] |= 0x80);
        let slot = number % (1 << LOG_ENTRIES);
        self.driver.poke(RQ + slot * stride as u64, &entry);
        self.received = self.received.wrapping_add(1);
        self.driver.poke(RQ_RECORD + 2, &self.received.to_be_bytes());
        places
    }

    fn reap(&mut self, queue: usize) -> Option<[u8; 64]> {
        let ring = [SEND_CQ, RECV_CQ][queue];
        let index = self.reaped[queue];
        let entry: [u8; 64] = output(&self.driver.peek(ring + u64::from(index % 64) * 64, 64));
        if entry[63] == INITIAL_OWNER_BYTE || u32::from(entry[63] & 1) != index / 64 % 2 {
            return None;
        }
        self.reaped[queue] += 1;
        self.driver.poke(cq_record(queue as u64).get(), &self.reaped[queue].to_be_bytes());
        Some(entry)
    }

    /// Returns the SQ's new CQEs.
    fn send_cqes(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.reap(0)).map(|entry| Cqe::parse(&entry).unwrap().0).collect()
    }

    /// Returns the fields of the new CQEs for received frames.
    fn received(&mut self) -> Vec<FrameFields> {
        std::iter::from_fn(|| self.reap(1)).map(|entry| FrameReceipt::parse(&entry).unwrap()).collect()
    }

    /// Returns the RQ's new error CQEs, as pairs of WQE counter and syndrome.
    fn receive_errors(&mut self) -> Vec<(u16, u8)> {
        let failure = |entry: [u8; 64]| match Cqe::parse(&entry).unwrap().0 {
            Cqe::Failed(failure) => (failure.wqe_counter, failure.syndrome),
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| self.reap(1)).map(failure).collect()
    }

    fn out_of_buffer(&mut self) -> u32 {
        let query = Command::QueryQCounter(QueryQCounter { clear: false, set: self.set });
        QCounters::parse(&output(&self.driver.ok(&query))).out_of_buffer
    }

    fn sq_state(&mut self) -> Option<WorkQueueState> {
        let sqn = self.sqn;
        self.driver.resources().netdev.sq(sqn).map(|sq| sq.state())
    }

    fn rq_state(&mut self) -> Option<WorkQueueState> {
        let rqn = self.rqn;
        self.driver.resources().netdev.rq(rqn).map(|rq| rq.state())
    }
}

/// Returns the indices and results of completed WQEs. A result is a syndrome, or 0 for success.
fn results(entries: &[Cqe]) -> Vec<(u16, u8)> {
    let of = |entry: &Cqe| match entry {
        Cqe::Sent(sent) => (sent.wqe_counter, 0),
        Cqe::Failed(failure) => (failure.wqe_counter, failure.syndrome),
        other => panic!("{other:?}"),
    };
    entries.iter().map(of).collect()
}

/// Returns an Ethernet frame of `len` bytes with an unknown EtherType.
fn plain(first: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![first, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    frame.extend((0_u8..=255).cycle().take(len - frame.len()));
    frame
}
