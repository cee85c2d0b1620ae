//! Receive queues (RQ) for Ethernet frames.
//!
//! # Spec
//! mlx5 interface, sections 9.3, 16.2 and 16.5.

use card::memory::GuestMemory;
use card::memory::translate::{AccessTarget, RegionAccess};
use card::nic::receive::{self, ChecksumStatus};
use card::nic::vlan;
use engine::{Access, AccessError, Initiator, Status};
use protocol::hca::mlx5::doorbell::QueueRecord;
use protocol::hca::mlx5::frame_cqe::{FrameFields, FrameReceipt, L3Type, L4Type};
use protocol::hca::mlx5::rq::{RqContext, rq_fields};
use protocol::hca::mlx5::sq::WorkQueueState;
use protocol::hca::mlx5::wqe::RecvWqe;
use protocol::ids::{CounterSet, Cqn, Qpn, Rqn, UserIndex, Va};
use protocol::net::checksum::Checksum;
use protocol::net::layers::{Addresses, Layers, TagKind, Transport};

use super::hash::Hashed;
use super::status::{FailedAt, QueueCounters, QueueStatus};
use crate::buffer::QueueBuffer;
use crate::failure;
use crate::mkey::Mkeys;
use crate::recv_queue::RecvQueue;
use crate::umem::Umems;
use crate::uses::{Object, Used};

/// TCP's ACK flag (RFC 9293, section 3.1).
const ACK: u8 = 0x10;

/// Why an RQ does not receive a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxError {
    /// The RQ is not in the ready state.
    NotReady,
    /// No receive is posted.
    NoBuffer,
    /// The frame is longer than the posted receive, which stays posted.
    TooLong,
    /// The RQ's memory is not accessible.
    Broken,
    /// The buffers of the receive with the given counter are not accessible.
    Protection(u16, AccessError),
}

/// A frame and its steering results.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    pub frame: &'a [u8],
    pub layers: &'a Layers,
    pub hashed: Hashed,
    /// Tag that the flow tables gave the frame.
    pub tag: u32,
    pub timestamp: u64,
}

#[derive(Debug)]
pub struct Rq {
    rqn: Rqn,
    context: RqContext,
    state: WorkQueueState,
    buffer: QueueBuffer,
    queue: RecvQueue,
    pub(super) is_scheduled: bool,
    pub counters: QueueCounters,
    failure: Option<FailedAt>,
    /// Whether the last frame was dropped for lack of a posted receive.
    is_starved: bool,
    pub umems: Umems,
}

impl Rq {
    pub fn new(rqn: Rqn, context: RqContext, buffer: QueueBuffer) -> Self {
        Self {
            rqn,
            context,
            state: WorkQueueState::Reset,
            buffer,
            queue: RecvQueue::new(1 << context.queue.log_entries, context.queue.log_stride),
            is_scheduled: false,
            counters: QueueCounters::default(),
            failure: None,
            is_starved: false,
            umems: Umems::default(),
        }
    }

    pub fn status(&self) -> QueueStatus {
        let ready = if self.is_starved { QueueStatus::NoReceive } else { QueueStatus::Idle };
        QueueStatus::unless_ready(self.state, self.context.flush_in_error).unwrap_or(ready)
    }

    /// Returns the receive that moved the RQ to the error state, if any.
    pub const fn failure(&self) -> Option<FailedAt> {
        self.failure
    }

    /// Counts a frame that the RQ received or dropped.
    pub fn count(&mut self, len: usize, result: Result<&FrameReceipt, &RxError>) {
        self.is_starved = matches!(result, Err(RxError::NoBuffer));
        match result {
            Ok(_) => self.counters.count(len),
            Err(error) => {
                self.counters.dropped += 1;
                if let RxError::Protection(index, cause) = *error {
                    let syndrome = failure::syndrome(Status::LocalProtection(cause));
                    self.failure = Some(FailedAt { index, syndrome });
                }
            }
        }
    }

    /// Returns the context with the current state.
    pub const fn context(&self) -> RqContext {
        RqContext { state: self.state.code(), ..self.context }
    }

    pub const fn state(&self) -> WorkQueueState {
        self.state
    }

    pub const fn cqn(&self) -> Cqn {
        self.context.cqn
    }

    pub const fn user_index(&self) -> UserIndex {
        self.context.user_index
    }

    pub const fn counter_set(&self) -> CounterSet {
        self.context.counter_set
    }

    pub fn pages(&self) -> usize {
        self.buffer.pages()
    }

    /// Returns the objects used by an RQ with the given context. The context of an RQ that drops all frames contains
    /// PD 0, which does not exist.
    pub fn uses(context: &RqContext) -> Used {
        let pd = context.queue.pd.get();
        let mut used = Used::from_slice(&[Object::Cq(context.cqn.get())]);
        used.extend((pd != 0).then_some(Object::Pd(pd)));
        used
    }

    /// Changes the state. In the reset state, the RQ has no posted receives and its counter is 0.
    pub fn set_state(&mut self, state: WorkQueueState) {
        self.state = state;
        if state == WorkQueueState::Reset {
            self.queue.clear();
            (self.failure, self.is_starved) = (None, false);
        }
    }

    /// Changes the selected fields.
    pub const fn modify(&mut self, fields: u64, new: &RqContext) {
        if fields & rq_fields::VLAN_STRIP != 0 {
            self.context.keep_vlan = new.keep_vlan;
        }
        if fields & rq_fields::COUNTER_SET != 0 {
            self.context.counter_set = new.counter_set;
        }
    }

    pub const fn rqn(&self) -> Rqn {
        self.rqn
    }

    pub const fn queue(&self) -> &RecvQueue {
        &self.queue
    }

    pub const fn buffer(&self) -> &QueueBuffer {
        &self.buffer
    }

    /// Returns the doorbell record, or `None` if it is not accessible.
    pub fn record(&self, dma: &GuestMemory) -> Option<QueueRecord> {
        record(&self.context, dma)
    }

    fn is_posted(&mut self, dma: &GuestMemory) -> bool {
        let Self { queue, context, .. } = self;
        queue.is_posted(|| Some(record(context, dma)?.received))
    }

    /// Returns whether posted receives complete with an error.
    pub fn flushes(&self) -> bool {
        self.state == WorkQueueState::Error && self.context.flush_in_error
    }

    /// Removes the next posted receive from a failed RQ. Returns its counter, or `None` if there are no more receives
    /// to flush.
    pub fn flush(&mut self, dma: &GuestMemory) -> Option<u16> {
        if !self.flushes() || !self.is_posted(dma) {
            return None;
        }
        let number = self.queue.taken();
        self.queue.consume();
        Some(number)
    }

    /// Writes a frame to the next posted receive and returns the fields of its CQE. If the receive is consumed,
    /// `observe` is called with its counter and buffers.
    ///
    /// # Errors
    /// See [`RxError`]. If the RQ cannot continue, it moves to the error state.
    pub fn deliver(
        &mut self,
        memory: &RegionAccess<'_, &Mkeys>,
        dma: &GuestMemory,
        received: &Received<'_>,
        observe: impl FnOnce(u16, &RecvWqe),
    ) -> Result<FrameReceipt, RxError> {
        if self.state != WorkQueueState::Ready {
            return Err(RxError::NotReady);
        }
        if !self.is_posted(dma) {
            return Err(RxError::NoBuffer);
        }
        let number = self.queue.taken();
        let Ok(wqe) = self.queue.read(number, &self.buffer, dma) else {
            self.set_state(WorkQueueState::Error);
            return Err(RxError::Broken);
        };
        let Received { frame, layers, .. } = *received;
        let tag = layers.outer_tag.filter(|tag| tag.kind == TagKind::Customer && !self.context.keep_vlan);
        let stripped = tag.and_then(|tag| Some((vlan::strip(frame)?, tag)));
        let (parts, tag) = match stripped {
            Some((parts, tag)) => (parts, Some(tag.tci.into_bits())),
            None => ([frame, &[]], None),
        };
        let len: usize = parts.iter().map(|part| part.len()).sum();
        // Drop an overlong frame without consuming the receive (section 16.2). An error CQE would make the driver
        // reset the RQ, so a peer with a larger MTU could stall the RQ by sending such frames.
        if wqe.capacity() < len as u64 {
            return Err(RxError::TooLong);
        }
        self.queue.consume();
        observe(number, &wqe);
        if let Err(error) = scatter(&wqe, self.initiator(), memory, parts) {
            self.set_state(WorkQueueState::Error);
            return Err(RxError::Protection(number, error));
        }
        let hashed = received.hashed;
        let byte_count = u32::try_from(len).unwrap_or(u32::MAX);
        Ok(FrameReceipt::new(FrameFields {
            rss_hash: hashed.value,
            hashed_ports: hashed.ports.code(),
            hashed_addresses: hashed.addresses.code(),
            vlan_stripped: tag.is_some(),
            vlan_tag: tag.unwrap_or(0),
            user_index: self.context.user_index,
            byte_count,
            timestamp: received.timestamp,
            flow_tag: received.tag & 0xff_ffff,
            wqe_counter: number,
            ..headers(frame, layers)
        }))
    }

    /// Returns the initiator of the RQ's accesses to receive buffers.
    pub const fn initiator(&self) -> Initiator {
        Initiator {
            pd: self.context.queue.pd,
            qpn: Qpn::new(self.rqn.get()),
            reserved_lkey: self.context.reserved_lkey,
        }
    }
}

fn record(context: &RqContext, dma: &GuestMemory) -> Option<QueueRecord> {
    let mut bytes = [0; QueueRecord::LEN];
    dma.read(context.queue.record, &mut bytes).ok()?;
    Some(QueueRecord::parse(&bytes))
}

/// Writes the parts of a frame to the buffers of a receive. The buffers must be large enough.
fn scatter(
    wqe: &RecvWqe,
    initiator: Initiator,
    memory: &RegionAccess<'_, &Mkeys>,
    parts: [&[u8]; 2],
) -> Result<(), AccessError> {
    let mut parts = parts.into_iter();
    let mut part = parts.next().unwrap_or_default();
    for segment in &wqe.scatter {
        let mut offset = 0_u32;
        while offset < segment.byte_count {
            if part.is_empty() {
                match parts.next() {
                    Some(next) => part = next,
                    None => return Ok(()),
                }
            }
            let room = (segment.byte_count - offset) as usize;
            let (now, rest) = part.split_at(part.len().min(room));
            let va = Va::new(segment.va.get().wrapping_add(offset.into()));
            memory.write(AccessTarget::address(initiator, segment.lkey, va), now, Access::LocalWrite)?;
            offset += u32::try_from(now.len()).unwrap_or(u32::MAX);
            part = rest;
        }
    }
    Ok(())
}

/// Returns the CQE fields that describe a frame's headers and their checksums.
fn headers(frame: &[u8], layers: &Layers) -> FrameFields {
    let packet = match layers.ip {
        Some(ip) => frame.get(layers.network_at..ip.end),
        None => frame.get(layers.network_at..),
    };
    // Section 16.5: the network stack uses this sum, which is not inverted, to verify other checksums.
    let checksum = !Checksum::new().with(packet.unwrap_or_default()).value();
    let l2 = FrameFields { l2_ok: true, checksum, ..FrameFields::default() };
    let Some(ip) = &layers.ip else { return l2 };
    let checksums = receive::verify(frame, layers);
    let (l4_type, has_l4) = match ip.transport {
        Transport::Tcp(_) => (tcp_type(ip.payload(frame).unwrap_or_default()), true),
        Transport::Udp(_) => (L4Type::Udp, true),
        Transport::Sctp(_) | Transport::Icmp | Transport::Other => (L4Type::None, false),
    };
    let l3_type = match ip.addresses {
        Addresses::V4 { .. } => L3Type::Ipv4,
        Addresses::V6 { .. } => L3Type::Ipv6,
    };
    FrameFields {
        l3_ok: checksums.ip == ChecksumStatus::Valid,
        l4_ok: has_l4 && checksums.l4 == ChecksumStatus::Valid,
        l4_type: l4_type.code(),
        l3_type: l3_type.code(),
        ..l2
    }
}

fn tcp_type(segment: &[u8]) -> L4Type {
    let (Some(length), Some(flags)) = (segment.get(12), segment.get(13)) else {
        return L4Type::TcpWithoutAck;
    };
    let has_data = segment.len() > usize::from(length >> 4) * 4;
    match (flags & ACK != 0, has_data) {
        (false, _) => L4Type::TcpWithoutAck,
        (true, false) => L4Type::TcpEmptyAck,
        (true, true) => L4Type::TcpAckWithData,
    }
}
