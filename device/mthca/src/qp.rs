//! A queue pair: its context, its work queues, and their conversion to engine types.
//!
//! # Spec
//! mthca interface, sections 6.5, 7.3 and 8.3.

use std::time::Duration;

use card::frontend::snapshot::{Peer, QpCounters, QpRow, remote_rights};
use card::memory::translate::{AccessTarget, RegionAccess};
use card::net::address::Addresses;
use engine::{
    AckTimeout, Fence, Fetch, Flush, GrhArea, Initiator, Modify, Mtu, Payload, QpAttrs, QpSnapshot,
    ReadyHeader, RemoteAccess, RnrRetry, RnrTimer, SendOp, SendRequest, Service, Status, UdDestination,
};
use hcr::mtt::Mtt;
use hcr::verbs::{engine_state, send_op, state_of};
use protocol::hca::mthca::qpc::{QpKind, Qpc};
use protocol::hca::mthca::wqe::{MlxWqe, Operation, PackedHeaders, SendWqe, WqeData};
use protocol::hca::qp::{ServiceType, Transition};
use protocol::ids::Qpn;
use protocol::roce::Encap;
use smallvec::SmallVec;

use super::address;
use super::recv_queue::{RecvQueue, sge};
use super::send_queue::{SendQueue, Work};
use super::work_queue::WorkQueue;

/// Maximum payload of a management datagram, in bytes. The datagram must fit in a single packet.
const MAX_MANAGEMENT_LEN: usize = 2048;

/// A QP that is not in RESET.
#[derive(Debug)]
pub struct QueuePair {
    /// QPN, including its generation.
    pub qpn: Qpn,
    /// Transport service, which never changes.
    pub service: Service,
    pub qpc: Qpc,
    pub send: SendQueue,
    /// Receive queue; unused if the QP has an SRQ.
    pub recv: RecvQueue,
    pub counters: QpCounters,
    /// Producer counter from the latest doorbell, accepted or not, modulo 2^16.
    pub announced: u16,
}

impl QueuePair {
    /// Creates a QP with empty queues from the context passed in RST2INIT.
    pub fn new(qpn: Qpn, service: Service, kind: QpKind, qpc: Qpc) -> Self {
        let queue = |base, geometry| WorkQueue { pd: qpc.pd, lkey: qpc.wqe_lkey, base, geometry };
        Self {
            qpn,
            service,
            qpc,
            send: SendQueue::new(queue(qpc.sq_base, qpc.sq), kind, qpc.requester.signal_all()),
            recv: RecvQueue::new(queue(qpc.rq_base, qpc.rq)),
            counters: QpCounters::default(),
            announced: 0,
        }
    }

    /// Copies the current state and PSNs from the engine to the context.
    pub fn observe(&mut self, live: &QpSnapshot) {
        self.qpc.update_live_state(state_of(live), live.send_psn, live.unacked_psn, live.recv_psn);
        self.qpc.rmsn = live.msn.get();
        (self.qpc.sq_counter, self.qpc.rq_counter) = (self.send.taken(), self.recv.taken());
    }

    /// Fetches the next request from the send queue. The request's `wr_id` is a [`WorkTag`](hcr::verbs::WorkTag).
    pub fn next_send(
        &mut self,
        memory: &RegionAccess<'_, &Mtt>,
        addresses: &Addresses,
    ) -> Fetch<SendRequest> {
        let taken = match self.send.take(memory) {
            Fetch::Ready(taken) => taken,
            Fetch::Empty => return Fetch::Empty,
            Fetch::Refused { wr_id, status } => return Fetch::Refused { wr_id, status },
            Fetch::Broken => return Fetch::Broken,
        };
        let wr_id = taken.tag.into_bits();
        let request = match taken.work {
            Work::Ordinary(wqe) => self.ordinary(wr_id, wqe, taken.fence, addresses),
            Work::Management(wqe) => self.management(wr_id, &wqe, memory, addresses),
        };
        request.map_or_else(|status| Fetch::Refused { wr_id, status }, Fetch::Ready)
    }

    fn ordinary(
        &self,
        wr_id: u64,
        wqe: SendWqe,
        fence: bool,
        addresses: &Addresses,
    ) -> Result<SendRequest, Status> {
        let enabled = match wqe.operation {
            Operation::Read { .. } => self.qpc.requester.reads(),
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => self.qpc.requester.atomics(),
            _ => true,
        };
        if !enabled {
            return Err(Status::LocalQpOperation);
        }
        let mut ud = None;
        if let Operation::Datagram { to, .. } = &wqe.operation {
            // Section 6.8: the address vector must be in the QP's PD.
            if to.vector.pd != self.qpc.pd {
                return Err(Status::LocalQpOperation);
            }
            let path = address::path(addresses, &to.vector.address, self.qpn, to.dqpn);
            ud = Some(UdDestination { path, qpn: to.dqpn, qkey: to.qkey, header: None });
        }
        let payload = match wqe.data {
            WqeData::Segments(list) => Payload::Sges(list.iter().map(sge).collect()),
            WqeData::Inline(bytes) => Payload::Inline(bytes),
        };
        let op = send_op(&wqe.operation);
        Ok(SendRequest {
            wr_id,
            op,
            payload,
            fence: Fence::reads(fence),
            solicited: wqe.next.solicited,
            ud,
            remote_srq: None,
        })
    }

    /// Converts the WQE of a management datagram. The datagram keeps the headers built by software.
    fn management(
        &self,
        wr_id: u64,
        wqe: &MlxWqe,
        memory: &RegionAccess<'_, &Mtt>,
        addresses: &Addresses,
    ) -> Result<SendRequest, Status> {
        let mut bytes: SmallVec<[u8; 512]> = SmallVec::new();
        for data in &wqe.data {
            let (start, len) = (bytes.len(), data.len as usize);
            if len > PackedHeaders::MAX_LEN + MAX_MANAGEMENT_LEN - start {
                return Err(Status::LocalLength);
            }
            bytes.resize(start + len, 0);
            let who = Initiator { pd: self.qpc.pd, qpn: self.qpn, reserved_lkey: false };
            let place = AccessTarget::address(who, data.lkey, data.va);
            let (_, part) = bytes.split_at_mut(start);
            memory.read(place, part, engine::Access::LocalRead).map_err(Status::LocalProtection)?;
        }
        let (headers, payload) = PackedHeaders::parse(&bytes).map_err(|_| Status::LocalQpOperation)?;
        let PackedHeaders { bth, deth, imm, .. } = headers;
        let path = address::management(addresses, wqe, &headers, self.qpn);
        let header = Some(ReadyHeader { pkey: bth.pkey, psn: bth.psn, src_qp: deth.src_qp });
        Ok(SendRequest {
            wr_id,
            op: SendOp::Send { imm },
            payload: Payload::Inline(SmallVec::from_slice(payload)),
            fence: Fence::None,
            solicited: bth.solicited,
            ud: Some(UdDestination { path, qpn: bth.dest_qp, qkey: deth.qkey, header }),
            remote_srq: None,
        })
    }

    pub fn attributes(&self, addresses: &Addresses) -> QpAttrs {
        let Qpc { primary, .. } = &self.qpc;
        QpAttrs {
            service: self.service,
            pd: self.qpc.pd,
            // Only UD QPs can have an invalid MTU code, because RC and UC QPs cannot enter RTR with one. The default is
            // 2048, which is always the MTU of UD QPs (section 12, T46).
            mtu: Mtu::from_code(self.qpc.mtu).unwrap_or(Mtu::Mtu2048),
            alias: None,
            max_message_len: 1 << (self.qpc.log_max_msg & 0x1f),
            remote_qpn: self.qpc.remote_qpn,
            path: self.peer_path(addresses),
            own_address: false,
            pkey_index: primary.pkey_index.into(),
            qkey: self.qpc.qkey,
            any_qkey: false,
            ack_timeout: ack_timeout(primary.ack_timeout).map(AckTimeout::constant),
            retry_count: self.qpc.requester.retry_count(),
            rnr_retry: match primary.rnr_retry {
                7.. => RnrRetry::Infinite,
                count => RnrRetry::Limited(count),
            },
            min_rnr_timer: RnrTimer::new(self.qpc.min_rnr_timer),
            max_rnr_timer: RnrTimer::new(self.qpc.min_rnr_timer),
            max_rd_atomic: self.qpc.requester_depth(),
            max_dest_rd_atomic: self.qpc.responder_depth(),
            remote: RemoteAccess {
                read: self.qpc.responder.reads(),
                write: self.qpc.responder.writes(),
                atomic: self.qpc.responder.atomics(),
                invalidate: false,
            },
            grh_area: GrhArea::InfiniBand,
            srq: self.qpc.responder.srq(),
            reserved_lkey: false,
            flush: Flush::Each,
        }
    }

    /// Returns the modification that a transition makes to the engine's QP. The context must already reflect the
    /// transition.
    pub fn modification(
        &self,
        transition: Transition,
        addresses: &Addresses,
        notify_drained: bool,
    ) -> Modify {
        use Transition::{Init2Rtr, Rst2Init, Rtr2Rts, Rts2Sqd};
        let starts = transition == Rst2Init;
        Modify {
            to: engine_state(transition.target()),
            attrs: self.attributes(addresses),
            send_psn: (starts || transition == Rtr2Rts).then_some(self.qpc.next_send_psn),
            recv_psn: (starts || transition == Init2Rtr).then_some(self.qpc.recv_psn),
            notify_drained: transition == Rts2Sqd && notify_drained,
        }
    }

    pub fn row(&self, live: &QpSnapshot, addresses: &Addresses) -> QpRow {
        let QpAttrs { remote, max_rd_atomic, max_dest_rd_atomic, .. } = self.attributes(addresses);
        QpRow {
            qpn: self.qpn.get(),
            state: live.into(),
            service: self.service.into(),
            pd: self.qpc.pd.get(),
            send_psn: live.send_psn.get(),
            unacked_psn: live.unacked_psn.get(),
            expected_psn: live.recv_psn.get(),
            peer: self.peer(live, addresses),
            send_cqn: self.qpc.send_cqn.get(),
            recv_cqn: self.qpc.recv_cqn.get(),
            send_slots: self.send.slots().into(),
            send_waiting: self.send.waiting().into(),
            recv_slots: if self.qpc.responder.srq() { 0 } else { self.recv.slots().into() },
            remote_rights: remote_rights(remote),
            max_rd_atomic,
            max_dest_rd_atomic,
            counters: self.counters,

            ignored: None,
        }
    }

    fn peer(&self, live: &QpSnapshot, addresses: &Addresses) -> Option<Peer> {
        if self.service.is_datagram() || matches!(live.state, engine::State::Reset | engine::State::Init) {
            return None;
        }
        let path = self.peer_path(addresses);
        Some(Peer::new(self.qpc.remote_qpn, &path))
    }

    fn peer_path(&self, addresses: &Addresses) -> Encap {
        address::path(addresses, &self.qpc.primary.address, self.qpn, self.qpc.remote_qpn)
    }
}

/// Returns the transport service of a QP, or `None` for a management QP that has not been declared as QP0 or QP1.
pub fn service(kind: QpKind, qpn: Qpn, smi: Option<Qpn>, gsi: Option<Qpn>) -> Option<Service> {
    Some(match kind {
        QpKind::Service(ServiceType::Rc) => Service::Rc,
        QpKind::Service(ServiceType::Uc) => Service::Uc,
        QpKind::Service(ServiceType::Ud) => Service::Ud,
        QpKind::Mlx if smi == Some(qpn) => Service::Smi,
        QpKind::Mlx if gsi == Some(qpn) => Service::Gsi,
        QpKind::Mlx => return None,
    })
}

/// Returns the timeout for an ACK timeout code, or `None` for code 0, an infinite timeout.
fn ack_timeout(code: u8) -> Option<Duration> {
    match code & 0x1f {
        0 => None,
        code => Some(Duration::from_nanos(4096 << code)),
    }
}
