//! Queue pairs: their contexts and the conversion of contexts to engine attributes.
//!
//! # Spec
//! mlx5 interface, section 10.

use std::time::Duration;

use card::frontend::snapshot::{Peer, QpCounters, QpRow, remote_rights};
use card::memory::GuestMemory;
use engine::{
    AccessError, AckTimeout, Completion, Fetch, Flush, GrhArea, Modify, Mtu, QpAttrs, QpSnapshot, Queue,
    RecvRequest, RemoteAccess, RnrRetry, RnrTimer, SendRequest, State,
};
use protocol::hca::mlx5::doorbell::QueueRecord;
use protocol::hca::mlx5::qp::{QpContext, QpState, ReceiveKind, Service};
use protocol::hca::mlx5::transition::Transition;
use protocol::ids::{Cqn, Qpn, Srqn};
use protocol::roce::Encap;

use super::address::Resolver;
use super::buffer::QueueBuffer;
use super::recv_queue::RecvQueue;
use super::send_queue::{PostedBlocks, SendQueue, SendTag, WqeBytes};
use super::umem::Umems;
use super::uses::{Object, Used};
use super::work;
use super::work_queue::{Advance, TooMany};

/// Log2 of the maximum message length in bytes. A larger value in a QP context is clamped.
const LOG_MAX_MESSAGE: u8 = 30;
/// Log2 of a QP's maximum number of outstanding READs and atomics in one direction.
const LOG_MAX_DEPTH: u8 = 4;

/// Number of send queue blocks to copy at once, which is enough for the longest WQE. Reading ahead pays off because the
/// engine fetches a QP's WQEs in batches.
const READ_AHEAD: u16 = 16;

#[derive(Debug)]
pub struct QueuePair {
    pub qpn: Qpn,
    /// Context as the driver sees it. [`QueuePair::observe`] updates the state and the PSNs.
    pub context: QpContext,
    /// Memory of the receive queue, followed by that of the send queue.
    pub buffer: QueueBuffer,
    pub counters: QpCounters,
    pub umems: Umems,
    send: SendQueue,
    recv: RecvQueue,
    service: Service,
}

impl QueuePair {
    /// Creates a QP in RESET.
    pub fn new(qpn: Qpn, service: Service, context: QpContext, buffer: QueueBuffer) -> Self {
        let context = QpContext { state: QpState::Reset.code(), ..context };
        let blocks = if context.no_sq { 0 } else { 1 << context.log_sq_blocks };
        let entries = match context.receive_kind() {
            Some(ReceiveKind::Own) => 1 << context.log_rq_entries,
            _ => 0,
        };
        Self {
            qpn,
            context,
            buffer,
            counters: QpCounters::default(),
            umems: Umems::default(),
            send: SendQueue::new(context.rq_len() as u64, blocks),
            recv: RecvQueue::new(entries, context.log_rq_stride + 4),
            service,
        }
    }

    /// Drops the requests in both queues and resets the counters. Must be called when the QP moves to RESET.
    pub fn clear(&mut self) {
        self.counters = QpCounters::default();
        self.send.clear();
        self.recv.clear();
    }

    /// Returns the doorbell record, or `None` if it is not accessible.
    pub fn record(&self, dma: &GuestMemory) -> Option<QueueRecord> {
        record(&self.context, dma)
    }

    /// Returns the send queue, whose entries are in [`QueuePair::buffer`].
    pub const fn send_queue(&self) -> &SendQueue {
        &self.send
    }

    /// Returns the QP's own receive queue, whose entries are in [`QueuePair::buffer`].
    pub const fn recv_queue(&self) -> &RecvQueue {
        &self.recv
    }

    /// Reads the send counter from the doorbell record.
    ///
    /// # Errors
    /// Fails if the record's counter covers more blocks than the send queue has.
    pub fn learn(&mut self, dma: &GuestMemory) -> Result<(), TooMany> {
        match record(&self.context, dma) {
            Some(record) => self.send.learn(record.sent),
            None => Ok(()),
        }
    }

    /// Updates the send counter from a polled doorbell record.
    pub fn poll(&mut self, record: QueueRecord) -> Advance {
        self.send.poll(record.sent)
    }

    /// Fetches the next request from the send queue. The request's `wr_id` is a [`SendTag`].
    pub fn next_send(
        &mut self,
        dma: &GuestMemory,
        posted: &mut PostedBlocks,
        resolver: Resolver<'_>,
    ) -> Fetch<SendRequest> {
        if self.send.waiting() == 0 {
            // Section 7: the record can be ahead of the doorbell and may already cover more requests. An implausible
            // counter is ignored.
            let _ = self.learn(dma);
        }
        let taken = match self.send.take(&self.buffer, dma, posted, READ_AHEAD) {
            Fetch::Ready(taken) => taken,
            Fetch::Refused { wr_id, status } => {
                self.counters.sends += 1;
                return Fetch::Refused { wr_id, status };
            }
            Fetch::Empty => return Fetch::Empty,
            Fetch::Broken => return Fetch::Broken,
        };
        self.counters.sends += 1;
        work::request(&taken, self.service, self.qpn, resolver)
    }

    /// Copies a send WQE that has been fetched but has not completed.
    ///
    /// # Errors
    /// Fails if the queue's memory is not accessible.
    pub fn reread(&self, index: u16, dma: &GuestMemory) -> Result<WqeBytes, AccessError> {
        self.send.reread(index, &self.buffer, dma)
    }

    /// Returns whether a receive is posted to the QP's own queue.
    pub fn is_posted(&mut self, dma: &GuestMemory) -> bool {
        let Self { context, recv, .. } = self;
        recv.is_posted(|| Some(record(context, dma)?.received))
    }

    /// Fetches the next request from the QP's own receive queue. Without such a queue, returns [`Fetch::Empty`].
    pub fn next_recv(&mut self, dma: &GuestMemory) -> Fetch<RecvRequest> {
        let Self { context, recv, buffer, counters, .. } = self;
        if context.receive_kind() != Some(ReceiveKind::Own) {
            return Fetch::Empty;
        }
        let fetch = recv.take(buffer, dma, || Some(record(context, dma)?.received));
        if matches!(fetch, Fetch::Ready(_)) {
            counters.receives += 1;
        }
        fetch
    }

    pub fn count(&mut self, completion: &Completion) {
        match completion.queue {
            Queue::Send => {
                self.counters.sends_completed += 1;
                self.send.complete(SendTag::from_bits(completion.wr_id));
            }
            Queue::Recv => self.counters.receives_completed += 1,
        }
        if completion.result.is_err() {
            self.counters.failed += 1;
        }
    }

    /// Returns the transport service that the engine uses for the QP. A UMR QP does not send or receive packets. The
    /// engine treats it as an XRC initiator, the only kind of reliable QP that does not receive requests.
    pub const fn engine_service(&self) -> Option<engine::Service> {
        Some(match self.service {
            Service::Rc => engine::Service::Rc,
            Service::Uc => engine::Service::Uc,
            Service::Ud => engine::Service::Ud,
            Service::Qp0 => engine::Service::Smi,
            Service::Qp1 => engine::Service::Gsi,
            Service::Xrc if self.context.no_sq => engine::Service::XrcTgt,
            Service::Xrc | Service::Umr => engine::Service::XrcIni,
            _ => return None,
        })
    }

    /// Returns the SRQ that the QP receives from, or `None` if it has none.
    pub fn srqn(&self) -> Option<Srqn> {
        (self.context.receive_kind() == Some(ReceiveKind::Srq)).then_some(self.context.srqn)
    }

    pub const fn service(&self) -> Service {
        self.service
    }

    /// Returns the objects used by a QP with the given context.
    pub fn uses(context: &QpContext) -> Used {
        let mut used = Used::new();
        let mut add = |number: u32, object: Object| {
            if number != 0 {
                used.push(object);
            }
        };
        // The number 0 means no object. The UMR QP has PD 0 until RST2INIT (section 20, M-33), and an XRC target has
        // UAR page 0.
        add(context.pd.get(), Object::Pd(context.pd.get()));
        add(context.uar.get(), Object::Uar(context.uar.get()));
        add(context.send_cqn.get(), Object::Cq(context.send_cqn.get()));
        add(context.recv_cqn.get(), Object::Cq(context.recv_cqn.get()));
        if context.receive_kind() == Some(ReceiveKind::Srq) {
            add(context.srqn.get(), Object::Srq(context.srqn.get()));
        }
        if context.service() == Some(Service::Xrc) && context.no_sq {
            add(context.xrcd.get(), Object::Xrcd(context.xrcd.get()));
        }
        used
    }

    /// Returns the send CQ and the receive CQ in a context. The number 0 means no CQ.
    pub const fn cqs(context: &QpContext) -> [Cqn; 2] {
        [context.send_cqn, context.recv_cqn]
    }

    /// Copies the current state and PSNs from the engine to the context.
    pub fn observe(&mut self, live: &QpSnapshot) {
        self.context.state = state_of(live.state).code();
        self.context.next_send_psn = live.send_psn;
        self.context.last_acked_psn = live.unacked_psn;
        self.context.recv_psn = live.recv_psn;
    }

    /// Returns the attributes for the engine, or `None` if the engine does not support the QP's service.
    pub fn attributes(&self, resolver: Resolver<'_>) -> Option<QpAttrs> {
        let QpContext { primary, .. } = &self.context;
        let timer = RnrTimer::new(self.context.min_rnr_timer);
        Some(QpAttrs {
            service: self.engine_service()?,
            pd: self.context.pd,
            alias: None,
            // The MTU code is not valid before INIT2RTR. Until then, the QP does not send packets, and any value will
            // do.
            mtu: Mtu::from_code(self.context.mtu).unwrap_or(Mtu::Mtu4096),
            max_message_len: 1 << self.context.log_max_message.min(LOG_MAX_MESSAGE),
            remote_qpn: self.context.remote_qpn,
            path: self.peer_path(resolver),
            // On Ethernet, the source address comes from the GID table. The peer sends to this address, so packets to
            // other addresses are dropped.
            own_address: resolver.is_ethernet(),
            pkey_index: primary.pkey_index,
            qkey: self.context.qkey,
            any_qkey: false,
            ack_timeout: ack_timeout(primary.ack_timeout).map(AckTimeout::constant),
            retry_count: self.context.retry_count,
            rnr_retry: match self.context.rnr_retry {
                7.. => RnrRetry::Infinite,
                count => RnrRetry::Limited(count),
            },
            min_rnr_timer: timer,
            max_rnr_timer: timer,
            max_rd_atomic: depth(self.context.log_requester_depth),
            max_dest_rd_atomic: depth(self.context.log_responder_depth),
            remote: RemoteAccess {
                read: self.context.remote_read,
                write: self.context.remote_write,
                atomic: self.context.remote_atomic,
                // Section 13.3: the QP always permits invalidation. The key itself determines whether a peer may
                // invalidate it.
                invalidate: true,
            },
            grh_area: if resolver.is_ethernet() { GrhArea::Roce } else { GrhArea::InfiniBand },
            srq: self.context.receive_kind() == Some(ReceiveKind::Srq),
            reserved_lkey: self.context.reserved_lkey,
            flush: Flush::Each,
        })
    }

    /// Returns the [`Modify`] that makes the engine follow a transition already applied to `context`. Returns `None` if
    /// the engine does not support the QP's service.
    pub fn modification(&self, transition: Transition, resolver: Resolver<'_>) -> Option<Modify> {
        let starts = matches!(transition, Transition::Rst2Init | Transition::ToRst);
        let is_connected = !self.service.is_datagram();
        Some(Modify {
            to: engine_state(transition.target()),
            attrs: self.attributes(resolver)?,
            send_psn: (starts || transition == Transition::Rtr2Rts).then_some(self.context.next_send_psn),
            recv_psn: (starts || (transition == Transition::Init2Rtr && is_connected))
                .then_some(self.context.recv_psn),
            notify_drained: false,
        })
    }

    /// Returns the row that describes the QP in snapshots, or `None` for a UMR QP, which has no transport service.
    pub fn row(&self, live: &QpSnapshot, resolver: Resolver<'_>) -> Option<QpRow> {
        if self.service == Service::Umr {
            return None;
        }
        let attributes = self.attributes(resolver)?;
        Some(QpRow {
            qpn: self.qpn.get(),
            state: live.into(),
            service: attributes.service.into(),
            pd: self.context.pd.get(),
            send_psn: live.send_psn.get(),
            unacked_psn: live.unacked_psn.get(),
            expected_psn: live.recv_psn.get(),
            peer: self.peer(live, resolver),
            send_cqn: self.context.send_cqn.get(),
            recv_cqn: self.context.recv_cqn.get(),
            send_slots: if self.context.no_sq { 0 } else { 1 << self.context.log_sq_blocks },
            send_waiting: self.send.waiting().into(),
            recv_slots: match self.context.receive_kind() {
                Some(ReceiveKind::Own) => 1 << self.context.log_rq_entries,
                _ => 0,
            },
            remote_rights: remote_rights(attributes.remote),
            max_rd_atomic: attributes.max_rd_atomic,
            max_dest_rd_atomic: attributes.max_dest_rd_atomic,
            counters: self.counters,
            ignored: None,
        })
    }

    fn peer(&self, live: &QpSnapshot, resolver: Resolver<'_>) -> Option<Peer> {
        if self.service.is_datagram() || matches!(live.state, State::Reset | State::Init) {
            return None;
        }
        Some(Peer::new(self.context.remote_qpn, &self.peer_path(resolver)))
    }

    fn peer_path(&self, resolver: Resolver<'_>) -> Encap {
        resolver.path(&self.context.primary, self.qpn, self.context.remote_qpn)
    }
}

fn record(context: &QpContext, dma: &GuestMemory) -> Option<QueueRecord> {
    let mut record = [0; QueueRecord::LEN];
    dma.read(context.record, &mut record).ok()?;
    Some(QueueRecord::parse(&record))
}

/// Returns the timeout for an ACK timeout code, or `None` for code 0, which disables the timeout.
fn ack_timeout(code: u8) -> Option<Duration> {
    match code & 0x1f {
        0 => None,
        code => Some(Duration::from_nanos(4096 << code)),
    }
}

const fn depth(log: u8) -> u8 {
    1 << if log < LOG_MAX_DEPTH { log } else { LOG_MAX_DEPTH }
}

const fn state_of(state: State) -> QpState {
    match state {
        State::Reset => QpState::Reset,
        State::Init => QpState::Init,
        State::Rtr => QpState::Rtr,
        State::Rts => QpState::Rts,
        State::Sqe => QpState::SqError,
        State::Sqd => QpState::SqDrain,
        State::Err => QpState::Error,
    }
}

const fn engine_state(state: QpState) -> State {
    match state {
        QpState::Reset => State::Reset,
        QpState::Init => State::Init,
        QpState::Rtr => State::Rtr,
        QpState::Rts => State::Rts,
        QpState::SqError => State::Sqe,
        QpState::SqDrain => State::Sqd,
        QpState::Error | QpState::Suspended => State::Err,
    }
}
