//! A queue pair: its context, its work queues, and their conversion to engine attributes.
//!
//! # Spec
//! E810 interface, section 13.

use std::time::Duration;

use card::frontend::snapshot::QpCounters;
use card::net::UNRESOLVED;
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
use super::send_queue::{NextWqe, SendQueue, SendTag, Work};
use super::work::{fence, request};
use super::work_ring::WorkRing;
use crate::limits::MAX_MESSAGE;

/// Retransmission timeout at the maximum retry count. The QP context has no field for the timeout (section 13.2).
const ACK_TIMEOUT: Duration = Duration::from_nanos(4096 << 12);

const MAX_RETRIES: u8 = 7;

/// RNR timer sent in NAKs: 0.64 ms at first, quadrupled with each further NAK, up to 164 ms. The QP context has no
/// field for the timer. The first timer is short, since the device is not notified of posted receives. Later timers are
/// longer, because applications that set a long timer may set few retries. rdma_cm connections, for example, set a
/// timer of 655 ms, but this value does not reach the device.
const FIRST_RNR_TIMER: RnrTimer = RnrTimer::new(12);
const LAST_RNR_TIMER: RnrTimer = RnrTimer::new(28);

#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) qpn: Qpn,
    /// Service of the QP: connected or datagram.
    pub(super) service: send_wqe::Service,
    /// Context from the last create or modify operation.
    pub(super) context: QpContext,
    /// ARP entry and MAC address of the peer, from the last successful lookup.
    peer: Option<(ArpIndex, MacAddr)>,
    /// State visible to software.
    pub(super) state: QpState,
    pub(super) flushed: Flushed,
    pub(super) suspended: bool,
    pub(super) send: SendQueue,
    pub(super) receive: ReceiveQueue,
    /// The request that was rejected when it was fetched, and its event code, which is more specific than the engine's
    /// status. An earlier request can still fail before it.
    pub(super) rejected: Option<(SendTag, EventCode)>,
    pub(super) counters: QpCounters,
}

/// Whether software has flushed the send and receive queues of a QP.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flushed {
    pub(super) sends: bool,
    pub(super) receives: bool,
}

impl QueuePair {
    /// Creates a QP in the idle state with empty queues.
    ///
    /// # Errors
    /// Fails if the QP type or a queue size is invalid.
    pub(super) fn new(command: &QpCommand, context: QpContext) -> Result<Self, CqpError> {
        let service = match command.kind {
            QpKind::Rc => send_wqe::Service::Connection,
            QpKind::Ud => send_wqe::Service::Datagram,
            QpKind::Other(code) => return Err(CqpError::invalid("queue pair type", code.into())),
        };
        let location = |ring| Location::from_qp_context(command.in_pages, ring);
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
            rejected: None,
            counters: QpCounters::default(),
        })
    }

    /// Moves the QP to state `to`. If `context` is given, it replaces the QP's context. The queues do not change.
    /// Returns the modification that the engine must make.
    ///
    /// # Errors
    /// Fails if the state transition is not permitted.
    pub(super) fn modify(
        &mut self,
        to: QpState,
        context: Option<QpContext>,
        path_context: PathContext<'_>,
    ) -> Result<Modify, CqpError> {
        let from = self.state;
        let to = match to {
            QpState::Same => from,
            // In iWARP, this transition sends a TERMINATE message. RoCE has no such message, so the QP simply enters
            // the error state.
            QpState::Terminate => QpState::Error,
            to => to,
        };
        if !is_valid_transition(from, to) {
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
            ..self.current(path_context)
        })
    }

    /// Returns the engine's state and attributes for the current context.
    pub(super) fn current(&mut self, path_context: PathContext<'_>) -> Modify {
        // irdma frees ARP entries that the kernel's neighbour cache ages out, so a connection keeps the last MAC
        // address until the entry is reused.
        let index = self.context.arp_index;
        match path_context.paths.neighbour(index) {
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
        let attrs = self.attributes(path_context);
        Modify { to, attrs, send_psn: None, recv_psn: None, notify_drained: false }
    }

    /// Returns whether this is a connection whose peer's MAC address is unknown.
    pub(super) fn lacks_peer(&self) -> bool {
        self.service == send_wqe::Service::Connection && self.peer.is_none()
    }

    pub(super) fn attributes(&self, path_context: PathContext<'_>) -> QpAttrs {
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
            path: self.path(path_context),
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

    /// Fetches the next send request. Its `wr_id` is a [`SendTag`].
    pub(super) fn next_send(
        &mut self,
        pages: Pages<'_>,
        path_context: PathContext<'_>,
    ) -> Fetch<SendRequest> {
        let (tag, wrong) = match self.send.fetch(pages) {
            NextWqe::Empty => return Fetch::Empty,
            NextWqe::Broken => return Fetch::Broken,
            NextWqe::Invalid(tag, _) => (tag, EventCode::BadOperation),
            NextWqe::Work(work) => match self.request(work, path_context) {
                Ok(request) => return Fetch::Ready(request),
                Err((tag, code)) => (tag, code),
            },
        };
        self.rejected = Some((tag, wrong));
        Fetch::Refused { wr_id: tag.into_bits(), status: Status::LocalQpOperation }
    }

    /// Fetches the next receive request. Its `wr_id` is the index of the WQE's first quantum.
    pub(super) fn next_receive(&mut self, pages: Pages<'_>) -> Fetch<RecvRequest> {
        match self.receive.fetch(pages) {
            Ok(Some(slot)) => Fetch::Ready(RecvRequest {
                wr_id: slot.index.into(),
                sges: slot.fragments.iter().map(sge).collect(),
            }),
            Ok(None) => Fetch::Empty,
            Err(_) => Fetch::Broken,
        }
    }

    fn request(
        &self,
        work: Work,
        path_context: PathContext<'_>,
    ) -> Result<SendRequest, (SendTag, EventCode)> {
        let Work { tag, control, operation } = work;
        let refused = |code| (tag, code);
        let ud = match &operation {
            send_wqe::Operation::Datagram { to, .. } => {
                Some(self.datagram(to, path_context).map_err(refused)?)
            }
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
        Ok(SendRequest {
            wr_id: tag.into_bits(),
            op,
            payload,
            fence: fence(&control),
            solicited,
            ud,
            remote_srq: None,
        })
    }

    /// Resolves a datagram's destination.
    fn datagram(
        &self,
        to: &send_wqe::Destination,
        path_context: PathContext<'_>,
    ) -> Result<UdDestination, EventCode> {
        let handle = path_context.paths.handle(to.handle).ok_or(EventCode::NoHandle)?;
        if handle.pd != self.context.pd() {
            return Err(EventCode::HandleDomain);
        }
        let path = Encap {
            src_mac: path_context.mac,
            dst_mac: path_context.paths.destination(handle).unwrap_or(UNRESOLVED),
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

    /// Returns the encapsulation of packets to a connection's peer.
    fn path(&self, path_context: PathContext<'_>) -> Encap {
        let context = &self.context;
        let ip = context.addresses();
        Encap {
            src_mac: path_context.mac,
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

/// Address resolution for the paths of queue pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathContext<'a> {
    pub(super) paths: &'a Paths,
    /// MAC address of the function. It replaces the source MAC address in contexts and address handles, so a
    /// guest cannot spoof another guest.
    pub(super) mac: MacAddr,
}

pub(super) fn sge(fragment: &Fragment) -> Sge {
    Sge { va: fragment.va, lkey: fragment.key, len: fragment.len }
}

/// Returns whether section 13.3 permits the state transition.
fn is_valid_transition(from: QpState, to: QpState) -> bool {
    use QpState::{Error, Idle, Rtr, Rts, Sqd};
    to == Error
        || matches!((from, to), (Idle, Idle | Rtr) | (Rtr, Rtr | Rts) | (Rts, Rts | Sqd) | (Sqd, Sqd | Rts))
}

/// Returns the ACK timeout. A lower retry count gives a longer timeout, so that every QP survives at least two seconds
/// of packet loss. RDS, for example, sets a retry count of one.
const fn ack_timeout(retries: u8) -> AckTimeout {
    let factor = 1 << MAX_RETRIES.saturating_sub(retries);
    AckTimeout::doubling(ACK_TIMEOUT.saturating_mul(factor))
}

/// Returns the largest path MTU that does not exceed `bytes`, but at least 256 bytes.
fn mtu(bytes: u16) -> Mtu {
    let all = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512];
    all.into_iter().find(|mtu| mtu.bytes() <= bytes.into()).unwrap_or(Mtu::Mtu256)
}

/// Returns the flow label for a path: `label` for IPv6, and 0 for IPv4, which has no flow label.
fn label(ip: &IpAddrs, label: FlowLabel) -> FlowLabel {
    match ip {
        IpAddrs::V4 { .. } => FlowLabel::default(),
        IpAddrs::V6 { .. } => label,
    }
}

/// Derives the UDP source port from the flow label. Switches use the port as ECMP entropy.
///
/// # Spec
/// IBTA annex A17, section A17.4.3: the port is in the dynamic range and is derived from the flow label.
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
    fn retries_take_between_two_and_five_seconds() {
        for retries in 0..=MAX_RETRIES {
            let timeout = ack_timeout(retries);
            let silence: Duration = (0..=retries).map(|retry| timeout.after(retry)).sum();
            assert!((2..5).contains(&silence.as_secs()), "{retries} retries: {silence:?}");
        }
        assert_eq!(ack_timeout(MAX_RETRIES).after(0), ACK_TIMEOUT);
        assert_eq!(
            ack_timeout(63),
            ack_timeout(MAX_RETRIES),
            "a retry count above the maximum counts as the maximum"
        );
    }
}
