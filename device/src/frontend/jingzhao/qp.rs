//! A queue pair as the device keeps it: context, work queues, and what they mean to the engine.
//!
//! # Spec
//! JingZhao interface, sections 4.3, 10.3 and 10.6.

use engine::{Fetch, Modify, Mtu, QpAttrs, QpSnapshot, RnrRetry, RnrTimer, SendRequest, Service};
use protocol::hca::jingzhao::icm::IcmTable;
use protocol::hca::jingzhao::modify::StoredQpc;
use protocol::hca::jingzhao::qpc::{self, QpState, Qpc, ServiceType, WRITE_BACK};
use protocol::hca::jingzhao::transition::{Attributes, Transition};
use protocol::ids::{IcmAddr, Pkey, Qpn};
use protocol::roce::Shell;

use super::address::connected;
use super::icm::Icm;
use super::options::Options;
use super::recv_queue::RecvQueue;
use super::send_queue::{SendQueue, TakenWqe};
use crate::frontend::address::Addresses;
use crate::frontend::icm::IcmError;
use crate::frontend::verbs::{engine_state, state_of};
use crate::limited;
use crate::memory::GuestMemory;
use crate::memory::queue::QueueMemory;

/// READs and atomics outstanding, either way; no field of the context says.
const MAX_RD_ATOMIC: u8 = 16;

/// A QP that left RESET.
#[derive(Debug)]
pub struct QueuePair {
    /// With the high bits software knows it by.
    pub qpn: Qpn,
    /// State and PSNs in it are as of the last [`QueuePair::observe`].
    pub context: StoredQpc,
    /// Send queue.
    pub send: SendQueue,
    /// Receive queue.
    pub recv: RecvQueue,
}

impl QueuePair {
    /// A QP with empty queues.
    pub fn new(qpn: Qpn, context: StoredQpc, options: &Options) -> Self {
        let queues = options.queues;
        Self { qpn, context, send: SendQueue::new(queues), recv: RecvQueue::new(queues) }
    }

    /// The context as commands left it, with the values of now.
    pub fn image(&self) -> &Qpc {
        &self.context.image
    }

    /// Lets the work queues follow the context.
    pub fn configure_queues(&mut self, mem: &impl QueueMemory) {
        self.send.configure(&self.context.image, mem);
        self.recv.configure(&self.context.image, mem);
    }

    /// Takes the next request of the send queue.
    pub fn next_send(
        &mut self,
        mem: &impl QueueMemory,
        addresses: &Addresses,
        watch: impl FnOnce(&TakenWqe<'_>),
    ) -> Fetch<SendRequest> {
        self.send.next(self.qpn, &self.context.image, mem, addresses, watch)
    }

    /// Takes the live values into the context.
    pub fn observe(&mut self, live: &QpSnapshot) {
        let image = &mut self.context.image;
        image.state = state_of(live).code();
        image.next_send_psn = live.send_psn;
        image.unacked_psn = live.unacked_psn;
        image.recv_psn = live.recv_psn;
    }

    /// Writes the whole entry to ICM.
    pub fn write_entry(&self, icm: &Icm, dma: &GuestMemory, entry: IcmAddr) -> Result<(), IcmError> {
        icm.write(dma, IcmTable::Context, entry, &icm_image(self.image()))
    }

    /// Writes state and PSNs to ICM, and nothing else of the entry. An entry that is not mapped is left alone.
    pub fn write_back(&self, icm: &Icm, dma: &GuestMemory, entry: IcmAddr) {
        let image = icm_image(self.image());
        for field in WRITE_BACK {
            let at = IcmAddr::new(entry.get().wrapping_add(field.start as u64));
            if icm.write(dma, IcmTable::Context, at, &image[field]).is_err() {
                return;
            }
        }
    }
}

/// What ICM shows: state 7 is for QUERY_QP only.
fn icm_image(image: &Qpc) -> [u8; qpc::LEN] {
    let draining = image.state() == Some(QpState::Draining);
    let state = if draining { QpState::Sqd.code() } else { image.state };
    Qpc { state, ..*image }.emit()
}

/// The engine's part of a command that led to `context`.
pub fn modification(transition: Transition, context: &StoredQpc, attrs: QpAttrs, mailbox: &Qpc) -> Modify {
    use Transition::{Init2Init, Init2Rtr, Rst2Init, Rtr2Rts, Rts2Sqd};
    let image = &context.image;
    let early = matches!(transition, Rst2Init | Init2Init | Init2Rtr);
    let asked = Attributes::from_bits_retain(mailbox.opt_param_mask);
    Modify {
        to: engine_state(transition.target()),
        attrs,
        send_psn: (early || transition == Rtr2Rts).then_some(image.next_send_psn),
        recv_psn: early.then_some(image.recv_psn),
        notify_drained: transition == Rts2Sqd && asked.contains(Attributes::EN_SQD_ASYNC_NOTIFY),
    }
}

/// What the engine has to know of a context.
pub fn attributes(qpn: Qpn, context: &StoredQpc, addresses: &Addresses, options: &Options) -> QpAttrs {
    let image = &context.image;
    let rnr_timer = match context.min_rnr_timer() {
        0 => options.rnr_timer_zero.get(),
        code => code,
    };
    QpAttrs {
        service: match image.service() {
            // A QP that went from RESET to ERR has no valid service, and never uses it.
            Some(ServiceType::Rc) | None => Service::Rc,
            Some(ServiceType::Uc) => Service::Uc,
            Some(ServiceType::Ud) => Service::Ud,
        },
        pd: image.pd,
        // RC and UC cannot enter RTR without a valid code; a UD message is one packet of any size.
        mtu: Mtu::from_code(image.mtu).unwrap_or(Mtu::Mtu4096),
        max_message_len: 1 << (image.log_max_msg & 0x1f),
        remote_qpn: image.remote_qpn,
        path: path(qpn, image, addresses),
        pkey: Pkey::DEFAULT,
        qkey: image.qkey,
        ack_timeout: context.ack_timeout(),
        retry_count: context.retry_count(),
        rnr_retry: match context.rnr_retry() {
            7.. => RnrRetry::Infinite,
            count => RnrRetry::Limited(count),
        },
        min_rnr_timer: RnrTimer::new(rnr_timer),
        max_rd_atomic: MAX_RD_ATOMIC,
        max_dest_rd_atomic: MAX_RD_ATOMIC,
        ud_grh: options.ud_grh,
    }
}

/// The way to the connected peer. Without one the QP sends to an address nobody has, and its requests time out, as
/// they do on a wire where the peer is gone.
fn path(qpn: Qpn, image: &Qpc, addresses: &Addresses) -> Shell {
    connected(addresses, image, qpn).unwrap_or_else(|| {
        let connected = image.service() != Some(ServiceType::Ud);
        if connected && matches!(image.state(), Some(QpState::Rtr | QpState::Rts)) {
            limited!(warn, %qpn, "QP context names no known peer, and no default peer is configured");
        }
        addresses.nowhere()
    })
}
