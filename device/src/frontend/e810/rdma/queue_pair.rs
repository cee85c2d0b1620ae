//! A queue pair: its context, its work queues, and what they mean to the engine.
//!
//! # Spec
//! E810 interface, section 13.

use std::time::Duration;

use engine::{
    AckTimeout, Fetch, Flush, GrhArea, Modify, Mtu, QpAttrs, RecvRequest, RemoteAccess, RnrRetry, RnrTimer,
    SendRequest, Service, Sge, State, Status, UdDestination,
};
use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::event_queue::EventCode;
use protocol::hca::e810::rdma::fragment::Fragment;
use protocol::hca::e810::rdma::index::ArpIndex;
use protocol::hca::e810::rdma::qp_context::QpContext;
use protocol::hca::e810::rdma::queue_pair::{QpCommand, QpKind, QpState};
use protocol::hca::e810::rdma::send_wqe;
use protocol::ids::{FlowLabel, MacAddr, Qpn};
use protocol::net::ipv4::Fragmentation;
use protocol::net::layers::Tci;
use protocol::roce::{Encap, IpAddrs};

use super::hmc::Pages;
use super::paths::Paths;
use super::receive_queue::ReceiveQueue;
use super::ring::Location;
use super::send_queue::{SendQueue, SendTag, Taken, Work};
use super::work::{fence, request};
use super::work_ring::WorkRing;
use crate::frontend::e810::limits::MAX_MESSAGE;
use crate::frontend::snapshot::QpCounters;
use crate::net::UNRESOLVED;

/// Without an answer for so long a packet is taken for lost, where software permits as many retries as it can. The interface
/// has no field for it (section 13.2).
const ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 12);

/// Most retries there are.
const MAX_RETRIES: u8 = 7;

/// What peers are asked to wait for a receive: 0.64 ms at first, up to 164 ms. Nothing tells the device that one is posted,
/// and the interface has no field for the time, though software counts on one: connections of `rdma_cm` have an RNR timer
/// of 655 ms, and retries that are few.
const FIRST_RNR_TIMER: RnrTimer = RnrTimer::new(12);
const LAST_RNR_TIMER: RnrTimer = RnrTimer::new(28);

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    /// Its number.
    pub(super) qpn: Qpn,
    /// Connection or datagrams.
    pub(super) service: send_wqe::Service,
    /// What software has said last.
    pub(super) context: QpContext,
    /// The way to the peer of a connection leads there, by this entry of the ARP table, since it was looked up last.
    peer: Option<(ArpIndex, MacAddr)>,
    /// As software knows it.
    pub(super) state: QpState,
    /// What software has had flushed.
    pub(super) flushed: Flushed,
    /// Its send queue is stopped for a while.
    pub(super) suspended: bool,
    /// Send queue.
    pub(super) send: SendQueue,
    /// Receive queue.
    pub(super) receive: ReceiveQueue,
    /// Why the request that fails next cannot be executed, where the engine's word for it says less.
    pub(super) refusal: Option<EventCode>,
    /// What it did.
    pub(super) counters: QpCounters,
}

/// Queues of a QP that software has had flushed: it knows of the failure, and the code of what failed is told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flushed {
    /// Send queue.
    pub(super) sends: bool,
    /// Receive queue.
    pub(super) receives: bool,
}

impl QueuePair {
    /// A QP with empty queues, in which nothing is sent or received.
    ///
    /// # Errors
    /// There is no such kind, or no queue is like that.
    pub(super) fn new(command: &QpCommand, context: QpContext) -> Result<Self, CqpError> {
        let service = match command.kind {
            QpKind::Rc => send_wqe::Service::Connection,
            QpKind::Ud => send_wqe::Service::Datagram,
            QpKind::Other(code) => return Err(CqpError::invalid("queue pair type", code.into())),
        };
        let location = |ring| Location::of_work(command.in_pages, ring);
        let wrong = |quanta: u32| CqpError::invalid("queue size in quanta", quanta.into());
        let (sends, receives) = (context.send_quanta(), context.receive_quanta());
        let send = WorkRing::new(location(context.send_ring)?, sends).ok_or(wrong(sends))?;
        let receive = WorkRing::new(location(context.receive_ring)?, receives)
            .and_then(|ring| ReceiveQueue::new(ring, context.quanta_per_receive()));
        Ok(Self {
            qpn: command.qpn,
            service,
            context,
            peer: None,
            state: QpState::Idle,
            flushed: Flushed::default(),
            suspended: false,
            send: SendQueue::new(send, service, command.shadow),
            receive: receive.ok_or(wrong(receives))?,
            refusal: None,
            counters: QpCounters::default(),
        })
    }

    /// Takes a new context; the queues stay as they are. The engine's part of it.
    ///
    /// # Errors
    /// There is no such way.
    pub(super) fn modify(
        &mut self,
        to: QpState,
        context: Option<QpContext>,
        around: Around<'_>,
    ) -> Result<Modify, CqpError> {
        let from = self.state;
        let to = match to {
            QpState::Same => from,
            // The connection of iWARP ends with a message; there is none here.
            QpState::Terminate => QpState::Error,
            to => to,
        };
        if !may_move(from, to) {
            return Err(CqpError::new(
                CqpErrorCode::State,
                "cannot enter queue pair state",
                u8::from(to).into(),
            ));
        }
        self.state = to;
        if let Some(context) = context {
            self.context = context;
        }
        Ok(Modify {
            send_psn: (from == QpState::Rtr && to == QpState::Rts).then_some(self.context.send_psn),
            recv_psn: (from == QpState::Idle && to == QpState::Rtr).then_some(self.context.recv_psn),
            notify_drained: from == QpState::Rts && to == QpState::Sqd,
            ..self.current(around)
        })
    }

    /// What the engine has to know as things are.
    pub(super) fn current(&mut self, around: Around<'_>) -> Modify {
        // Software frees entries that its neighbour cache gives up. Connections through them go on, as they do through a
        // switch that has forgotten, until the entry is another one.
        let index = self.context.arp_index;
        match around.paths.neighbour(index) {
            Some(mac) => self.peer = Some((index, mac)),
            None => self.peer = self.peer.filter(|(known, _)| *known == index),
        }
        let to = match self.state {
            QpState::Rtr => State::Rtr,
            QpState::Rts if self.suspended => State::Sqd,
            QpState::Rts => State::Rts,
            QpState::Sqd => State::Sqd,
            QpState::Error => State::Err,
            _ => State::Init,
        };
        let attrs = self.attributes(around);
        Modify { to, attrs, send_psn: None, recv_psn: None, notify_drained: false }
    }

    /// Whether a connection has no neighbour to send to.
    pub(super) fn lacks_peer(&self) -> bool {
        self.service == send_wqe::Service::Connection && self.peer.is_none()
    }

    /// What the engine has to know of the context.
    pub(super) fn attributes(&self, around: Around<'_>) -> QpAttrs {
        let QpContext { remote_qpn, qkey, retry_count, rnr_retry, ord, remote_read, remote_write, .. } =
            self.context;
        let mtu = mtu(self.context.mtu);
        QpAttrs {
            service: match self.service {
                send_wqe::Service::Connection => Service::Rc,
                send_wqe::Service::Datagram => Service::Ud,
            },
            pd: self.context.pd(),
            alias: None,
            mtu,
            max_message_len: match self.service {
                send_wqe::Service::Connection => MAX_MESSAGE,
                send_wqe::Service::Datagram => u32::try_from(mtu.bytes()).unwrap_or(u32::MAX),
            },
            remote_qpn,
            path: self.path(around),
            own_address: true,
            pkey_index: 0,
            qkey,
            any_qkey: false,
            ack_timeout: Some(ack_timeout(retry_count)),
            retry_count: retry_count.min(MAX_RETRIES),
            rnr_retry: match rnr_retry {
                7.. => RnrRetry::Infinite,
                count => RnrRetry::Limited(count),
            },
            min_rnr_timer: FIRST_RNR_TIMER,
            max_rnr_timer: LAST_RNR_TIMER,
            max_rd_atomic: ord,
            max_dest_rd_atomic: u8::try_from(self.context.ird()).unwrap_or(u8::MAX),
            remote: RemoteAccess { read: remote_read, write: remote_write, atomic: false, invalidate: true },
            grh_area: GrhArea::Roce,
            srq: false,
            reserved_lkey: self.context.privileged,
            flush: Flush::Owner,
        }
    }

    /// Takes the next request of the send queue. `wr_id` is a [`SendTag`].
    pub(super) fn next_send(&mut self, pages: Pages<'_>, around: Around<'_>) -> Fetch<SendRequest> {
        let (tag, wrong) = match self.send.take(pages) {
            Taken::Empty => return Fetch::Empty,
            Taken::Broken => return Fetch::Broken,
            Taken::Wrong(tag, _) => (tag, EventCode::BadOperation),
            Taken::Work(work) => match self.request(work, around) {
                Ok(request) => return Fetch::Ready(request),
                Err((tag, code)) => (tag, code),
            },
        };
        self.refusal = Some(wrong);
        Fetch::Refused { wr_id: tag.into_bits(), status: Status::LocalQpOperation }
    }

    /// Takes the next request of the receive queue. `wr_id` is the index of its first quantum.
    pub(super) fn next_receive(&mut self, pages: Pages<'_>) -> Fetch<RecvRequest> {
        match self.receive.take(pages) {
            Ok(Some(slot)) => Fetch::Ready(RecvRequest {
                wr_id: slot.index.into(),
                sges: slot.fragments.iter().map(sge).collect(),
            }),
            Ok(None) => Fetch::Empty,
            Err(_) => Fetch::Broken,
        }
    }

    fn request(&self, work: Work, around: Around<'_>) -> Result<SendRequest, (SendTag, EventCode)> {
        let Work { tag, control, operation } = work;
        let refused = |code| (tag, code);
        let ud = match &operation {
            send_wqe::Operation::Datagram { to, .. } => Some(self.datagram(to, around).map_err(refused)?),
            send_wqe::Operation::Read { .. } if self.context.ord == 0 => {
                return Err(refused(EventCode::ReadNotAllowed));
            }
            send_wqe::Operation::Bind(_) if !self.context.bind => {
                return Err(refused(EventCode::BindDisabled));
            }
            send_wqe::Operation::FastRegister(_) if !self.context.fast_register => {
                return Err(refused(EventCode::NotPrivileged));
            }
            _ => None,
        };
        let (op, payload, solicited) = request(operation).map_err(refused)?;
        Ok(SendRequest { wr_id: tag.into_bits(), op, payload, fence: fence(&control), solicited, ud })
    }

    /// Where a datagram goes.
    fn datagram(&self, to: &send_wqe::Destination, around: Around<'_>) -> Result<UdDestination, EventCode> {
        let handle = around.paths.handle(to.handle).ok_or(EventCode::NoHandle)?;
        if handle.pd != self.context.pd() {
            return Err(EventCode::HandleDomain);
        }
        let path = Encap {
            src_mac: around.mac,
            dst_mac: around.neighbour(handle.arp),
            tag: handle.tag,
            ip: handle.addresses,
            traffic_class: handle.traffic_class,
            flow_label: label(&handle.addresses, handle.flow_label),
            hop_limit: handle.hop_limit,
            fragment: Fragmentation::default(),
            src_port: source_port(handle.flow_label),
        };
        Ok(UdDestination { path, qpn: to.qpn, qkey: to.qkey, header: None })
    }

    /// The way to the peer of a connection.
    fn path(&self, around: Around<'_>) -> Encap {
        let context = &self.context;
        let ip = context.addresses();
        Encap {
            src_mac: around.mac,
            dst_mac: self.peer.map_or(UNRESOLVED, |(_, mac)| mac),
            tag: context.insert_tag.then(|| Tci::from_bits(context.tag)),
            ip,
            traffic_class: context.traffic_class,
            flow_label: label(&ip, context.flow_label),
            hop_limit: context.hop_limit,
            fragment: Fragmentation::default(),
            src_port: context.source_port,
        }
    }
}

/// What a queue pair's paths lead through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
    /// Neighbours and address handles.
    pub(super) paths: &'a Paths,
    /// The function's own MAC: a guest does not speak in another's name, whatever its contexts say.
    pub(super) mac: MacAddr,
}

impl Around<'_> {
    /// MAC of a neighbour, as of now.
    fn neighbour(&self, index: ArpIndex) -> MacAddr {
        self.paths.neighbour(index).unwrap_or(UNRESOLVED)
    }
}

/// A fragment in the words of the engine.
pub(super) fn sge(fragment: &Fragment) -> Sge {
    Sge { va: fragment.va, lkey: fragment.key, len: fragment.len }
}

/// Whether software may move a queue pair like this.
fn may_move(from: QpState, to: QpState) -> bool {
    use QpState::{Error, Idle, Rtr, Rts, Sqd};
    to == Error
        || matches!((from, to), (Idle, Idle | Rtr) | (Rtr, Rtr | Rts) | (Rts, Rts | Sqd) | (Sqd, Sqd | Rts))
}

/// How long a connection with so many retries waits for an answer. Whatever their number, it outlives seconds of silence:
/// RDS permits one retry, and takes for granted that it is late.
const fn ack_timeout(retries: u8) -> AckTimeout {
    let factor = 1 << MAX_RETRIES.saturating_sub(retries);
    AckTimeout::doubling(ACK_TIMEOUT.saturating_mul(factor))
}

/// The largest path MTU that is not more than so many bytes, or the smallest there is.
fn mtu(bytes: u16) -> Mtu {
    let all = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512];
    all.into_iter().find(|mtu| mtu.bytes() <= bytes.into()).unwrap_or(Mtu::Mtu256)
}

/// IPv4 has no flow label.
fn label(ip: &IpAddrs, label: FlowLabel) -> FlowLabel {
    match ip {
        IpAddrs::V4 { .. } => FlowLabel::default(),
        IpAddrs::V6 { .. } => label,
    }
}

/// UDP source port of a flow, which networks spread flows over paths by.
///
/// # Spec
/// IBTA annex A17, section A17.4.3: a port of the dynamic range, by the flow label.
fn source_port(label: FlowLabel) -> u16 {
    const DYNAMIC: u32 = 0xc000;
    let label = label.get();
    let port = DYNAMIC | (label & 0x3fff) ^ (label >> 14);
    u16::try_from(port).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_outlives_seconds_of_silence_with_any_number_of_retries() {
        for retries in 0..=MAX_RETRIES {
            let timeout = ack_timeout(retries);
            let silence: Duration = (0..=retries).map(|retry| timeout.after(retry)).sum();
            assert!((2..5).contains(&silence.as_secs()), "{retries} retries: {silence:?}");
        }
        assert_eq!(ack_timeout(MAX_RETRIES).after(0), ACK_TIMEOUT);
        assert_eq!(ack_timeout(63), ack_timeout(MAX_RETRIES), "a field of six bits");
    }
}
