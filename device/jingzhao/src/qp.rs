//! A queue pair: its context, its work queues, and their conversion to the engine's types.
//!
//! # Spec
//! JingZhao interface, sections 4.3, 10.3 and 10.6.

use card::frontend::snapshot::QpCounters;
use card::limited;
use card::memory::queue::QueueMemory;
use card::net::address::Addresses;
use card::sparse::SparseTable;
use engine::{
    AckTimeout, Fetch, Flush, GrhArea, Modify, Mtu, QpAttrs, RemoteAccess, RnrRetry, RnrTimer, SendRequest,
    Service,
};
use hcr::verbs::engine_state;
use protocol::hca::jingzhao::modify::StoredQpc;
use protocol::hca::jingzhao::qpc::{QpState, Qpc, ServiceType};
use protocol::hca::jingzhao::transition::{Attributes, Transition};
use protocol::ids::{Qkey, Qpn};
use protocol::roce::Encap;

use super::address::connected;
use super::ctxmgt::CtxMgt;
use super::ctxmgt::key_qpc_data::{KeyData, KeyQpc};
use super::ctxmgt::message::{RdCqCst, RdEncap, RdQpNpst, RdQpRst, RdQpSst};
use super::options::Options;
use super::recv_queue::RecvQueue;
use super::send_queue::{FetchedWqe, SendQueue, Sender};

/// Maximum message length in bytes. The maximum in bits 4:0 of mtu_msgmax (CtxMgt document, table 2.2) is not enforced,
/// because the public driver sets it to 2048 bytes for UD QPs, whose messages can be 4096 bytes long (J-48).
const MAX_MESSAGE: u32 = 1 << 31;

/// A QP that is not in RESET.
#[derive(Debug)]
pub struct QueuePair {
    /// QPN, including the high bits that software uses.
    pub qpn: Qpn,
    pub key: KeyQpc,
    pub send: SendQueue,
    pub recv: RecvQueue,
    /// Counters since the QP left RESET.
    pub counters: QpCounters,
    pub limits: QpLimits,
}

/// Limits on a QP that come from the device's options. The QPC has no fields for them (J-47).
#[derive(Clone, Copy, Debug)]
pub struct QpLimits {
    pub remote: RemoteAccess,
    /// Maximum number of outstanding READs and atomics as the requester.
    pub max_rd_atomic: u8,
    /// Maximum number of outstanding READs and atomics as the responder.
    pub max_dest_rd_atomic: u8,
}

impl From<&Options> for QpLimits {
    fn from(options: &Options) -> Self {
        Self {
            remote: options.qp_access.into(),
            max_rd_atomic: options.max_rd_atomic.get(),
            max_dest_rd_atomic: options.max_dest_rd_atomic.get(),
        }
    }
}

impl QueuePair {
    pub fn new(qpn: Qpn, context: StoredQpc, options: &Options) -> Self {
        let queues = options.queues;
        Self {
            qpn,
            key: KeyQpc::new(context),
            send: SendQueue::new(queues),
            recv: RecvQueue::new(queues),
            counters: QpCounters::default(),
            limits: options.into(),
        }
    }

    /// Configures the work queues as the context specifies.
    pub fn configure_queues(&mut self, mem: &impl QueueMemory) {
        self.send.configure(&self.key.read(), mem);
        self.recv.configure(&self.key.read(), mem);
    }

    pub fn next_send(
        &mut self,
        ctx: &mut CtxMgt,
        mem: &impl QueueMemory,
        addresses: &Addresses,
        watch: impl FnOnce(&FetchedWqe<'_>),
    ) -> Fetch<SendRequest> {
        if !self.send.has_work() {
            return Fetch::Empty;
        }
        let RdQpNpst { rlid, .. } = ctx.read_of(&self.key);
        let sender = Sender { qpn: self.qpn, sst: ctx.read_of(&self.key), rlid };
        self.send.next(&sender, || ctx.read_of(&self.key), mem, addresses, watch)
    }
}

impl KeyData for SparseTable<Box<QueuePair>> {
    fn key(&mut self, index: u32) -> Option<&mut KeyQpc> {
        self.get_mut(index).map(|qp| &mut qp.key)
    }
}

/// Returns the modification that a command makes to the engine's QP. `key` contains the context after the command.
pub fn modification(transition: Transition, key: &KeyQpc, attrs: QpAttrs, mailbox: &Qpc) -> Modify {
    use Transition::{Init2Init, Init2Rtr, Rst2Init, Rtr2Rts, Rts2Sqd};
    let (RdQpNpst { next_psn, .. }, RdQpRst { expected_psn, .. }) = (key.read(), key.read());
    let early = matches!(transition, Rst2Init | Init2Init | Init2Rtr);
    let asked = Attributes::from_bits_retain(mailbox.opt_param_mask);
    Modify {
        to: engine_state(transition.target()),
        attrs,
        send_psn: (early || transition == Rtr2Rts).then_some(next_psn),
        recv_psn: early.then_some(expected_psn),
        notify_drained: transition == Rts2Sqd && asked.contains(Attributes::EN_SQD_ASYNC_NOTIFY),
    }
}

/// Returns the attributes that the engine needs from the context. They are passed with each command rather than with
/// each packet, since only commands change them.
pub fn attributes(qpn: Qpn, key: &KeyQpc, addresses: &Addresses, options: &Options) -> QpAttrs {
    let (sst, cst, rst): (RdQpSst, RdCqCst, RdQpRst) = (key.read(), key.read(), key.read());
    let rnr_timer = match rst.rnr_timer {
        0 => options.rnr_timer_zero.get(),
        code => options.rnr_timer_table.on_the_wire(code),
    };
    let QpLimits { remote, max_rd_atomic, max_dest_rd_atomic } = options.into();
    QpAttrs {
        service: match sst.service {
            // A QP that went from RESET to ERR may have an invalid service type, but never uses it.
            Some(ServiceType::Rc) | None => Service::Rc,
            Some(ServiceType::Uc) => Service::Uc,
            Some(ServiceType::Ud) => Service::Ud,
        },
        pd: sst.pd,
        // Only UD QPs can have an invalid MTU code, because RC and UC QPs cannot enter RTR with one. The default is
        // 4096, because a UD message is a single packet of at most 4096 bytes.
        mtu: Mtu::from_code(sst.mtu).unwrap_or(Mtu::Mtu4096),
        // The public driver omits the high bits of the local and remote QPNs that it writes to contexts. Peers
        // therefore address this QP by the local QPN in its context.
        alias: is_connected(&sst).then_some(key.context().image.local_qpn),
        max_message_len: MAX_MESSAGE,
        remote_qpn: sst.remote_qpn,
        path: path(qpn, &sst, &rst, &key.read(), addresses),
        own_address: false,
        pkey_index: sst.pkey_index.into(),
        qkey: rst.qkey,
        any_qkey: rst.qkey == Qkey::default(),
        ack_timeout: cst.ack_timeout.map(AckTimeout::constant),
        retry_count: cst.retry_count,
        rnr_retry: match cst.rnr_retry {
            7.. => RnrRetry::Infinite,
            count => RnrRetry::Limited(count),
        },
        min_rnr_timer: RnrTimer::new(rnr_timer),
        max_rnr_timer: RnrTimer::new(rnr_timer),
        max_rd_atomic,
        max_dest_rd_atomic,
        remote,
        grh_area: if options.ud_grh { GrhArea::Roce } else { GrhArea::None },
        srq: false,
        reserved_lkey: false,
        flush: Flush::Each,
    }
}

/// Returns the context image for QUERY_QP. It contains the effective values, including defaults chosen by the device.
pub fn query(context: &StoredQpc, options: &Options) -> Qpc {
    let image = context.query();
    let responds = !matches!(image.state(), Some(QpState::Reset | QpState::Init | QpState::Err));
    if image.service() == Some(ServiceType::Rc) && responds && context.min_rnr_timer() == 0 {
        let min_rnr_timer = options.rnr_timer_table.in_a_context(options.rnr_timer_zero.get());
        return Qpc { min_rnr_timer, ..image };
    }
    image
}

/// Returns the path to the connected peer. If the peer is unknown, packets go to an unused address, and requests time
/// out as on a real network.
fn path(qpn: Qpn, sst: &RdQpSst, rst: &RdQpRst, encap: &RdEncap, addresses: &Addresses) -> Encap {
    connected(addresses, encap, qpn, sst.remote_qpn).unwrap_or_else(|| {
        if is_connected(sst) && matches!(rst.state, Some(QpState::Rtr | QpState::Rts)) {
            limited!(warn, %qpn, "QP context does not specify a known destination; set `default_peer` in the configuration");
        }
        addresses.nowhere()
    })
}

fn is_connected(sst: &RdQpSst) -> bool {
    sst.service != Some(ServiceType::Ud)
}
