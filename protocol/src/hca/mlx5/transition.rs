//! QP state changes: the allowed transitions, and the attributes that each transition copies from the new context.
//!
//! Every command carries a complete context, but fields that the application did not set are 0. A command therefore
//! copies only the attributes of its transition and those selected by the mask.
//!
//! # Spec
//! mlx5 interface, section 10.2.

use bitflags::bitflags;
use thiserror::Error;

use super::path::Path;
use super::qp::{QpContext, QpState, Service};
use super::status::Status;
use crate::Psn;
use crate::describe::{Field, Visitor, show_flags};
use crate::ids::{Cqn, Iova, Pdn, Srqn};

bitflags! {
    /// QP attributes that can be selected in a command's mask.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct QpAttributes: u32 {
        /// Alternate path for path migration.
        const ALTERNATE_PATH = 1 << 0;
        /// Whether peers can execute RDMA READ.
        const REMOTE_READ = 1 << 1;
        /// Whether peers can execute atomic operations.
        const REMOTE_ATOMIC = 1 << 2;
        /// Whether peers can execute RDMA WRITE.
        const REMOTE_WRITE = 1 << 3;
        /// Index into the port's P_Key table.
        const PKEY_INDEX = 1 << 4;
        /// Q_Key of a UD QP.
        const QKEY = 1 << 5;
        /// Minimum RNR NAK timer.
        const RNR_TIMER = 1 << 6;
        /// Primary path, except for its P_Key index, port and ACK timeout.
        const PRIMARY_PATH = 1 << 7;
        /// Maximum number of outstanding READs and atomics as the requester.
        const REQUESTER_DEPTH = 1 << 8;
        /// Maximum number of outstanding READs and atomics as the responder.
        const RESPONDER_DEPTH = 1 << 9;
        /// Path migration state of the QP.
        const MIGRATION = 1 << 10;
        /// Maximum number of retries after timeouts.
        const RETRY_COUNT = 1 << 12;
        /// Maximum number of retries after RNR NAKs.
        const RNR_RETRY = 1 << 13;
        /// Local ACK timeout code.
        const ACK_TIMEOUT = 1 << 14;
        /// LAG port. Not used.
        const LAG_PORT = 1 << 15;
        /// Physical port of the primary path.
        const PORT = 1 << 16;
        /// SRQ that replaces the receive queue.
        const SRQN = 1 << 18;
        /// CQ of the receive queue.
        const RECV_CQN = 1 << 19;
        /// `DC_HS` in the kernel driver. Not used.
        const DC_HALF = 1 << 20;
        /// DC key. Not used.
        const DC_KEY = 1 << 21;
        /// Rate index. Not used.
        const RATE_INDEX = 1 << 22;
        /// Q counter set of the QP.
        const COUNTER_SET = 1 << 25;
        const _ = !0;
    }
}

impl QpAttributes {
    /// All remote access rights.
    pub const RIGHTS: Self = Self::from_bits_retain(0xe);
}

impl From<u32> for QpAttributes {
    fn from(bits: u32) -> Self {
        Self::from_bits_retain(bits)
    }
}

impl From<QpAttributes> for u32 {
    fn from(attributes: QpAttributes) -> Self {
        attributes.bits()
    }
}

impl Field for QpAttributes {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        show_flags(self, name, to);
    }
}

bitflags! {
    /// Attributes that have no bit in the mask. The transition alone determines whether they are copied.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FixedAttributes: u32 {
        /// Protection domain, CQs and doorbell record. A number or record address of 0 is not copied.
        const OBJECTS = 1 << 0;
        /// Path MTU and maximum message length.
        const MTU = 1 << 1;
        /// QP number of the peer.
        const REMOTE_QPN = 1 << 2;
        /// PSN of the next expected packet.
        const RECV_PSN = 1 << 3;
        /// Next PSN to send.
        const SEND_PSN = 1 << 4;
        /// All counters and PSNs. They are set to 0 instead of being copied.
        const CLEAR_COUNTERS = 1 << 5;
    }
}

/// A QP state transition requested by a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Transition {
    /// Transition from RESET to INIT.
    Rst2Init,
    Init2Init,
    Init2Rtr,
    Rtr2Rts,
    Rts2Rts,
    /// Transition from the send queue error state to RTS.
    SqErr2Rts,
    /// Transition from any state to ERR.
    ToErr,
    /// Transition from any state to RESET.
    ToRst,
}

/// The command is not allowed in the current state of the QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{transition:?} is not allowed in QP state {state}", state = state.map_or("unknown", QpState::name))]
#[allow(missing_docs)]
pub struct TransitionError {
    pub transition: Transition,
    /// Current state of the QP, or `None` if its code is unknown.
    pub state: Option<QpState>,
}

impl TransitionError {
    /// Status that the command returns for the error.
    pub const STATUS: Status = Status::BadQpState;
}

impl Transition {
    /// All transitions, in declaration order.
    pub const ALL: [Self; 8] = [
        Self::Rst2Init,
        Self::Init2Init,
        Self::Init2Rtr,
        Self::Rtr2Rts,
        Self::Rts2Rts,
        Self::SqErr2Rts,
        Self::ToErr,
        Self::ToRst,
    ];

    /// Returns the only state that allows the command, or `None` if every state does.
    pub const fn source(self) -> Option<QpState> {
        match self {
            Self::Rst2Init => Some(QpState::Reset),
            Self::Init2Init | Self::Init2Rtr => Some(QpState::Init),
            Self::Rtr2Rts => Some(QpState::Rtr),
            Self::Rts2Rts => Some(QpState::Rts),
            Self::SqErr2Rts => Some(QpState::SqError),
            Self::ToErr | Self::ToRst => None,
        }
    }

    /// Returns the QP state after the command.
    pub const fn target(self) -> QpState {
        match self {
            Self::ToRst => QpState::Reset,
            Self::Rst2Init | Self::Init2Init => QpState::Init,
            Self::Init2Rtr => QpState::Rtr,
            Self::Rtr2Rts | Self::Rts2Rts | Self::SqErr2Rts => QpState::Rts,
            Self::ToErr => QpState::Error,
        }
    }

    /// Returns the attributes that the command always copies. For a datagram QP, which has no peer, INIT2RTR copies
    /// neither the path nor the PSN.
    pub const fn required(self, is_datagram: bool) -> (FixedAttributes, QpAttributes) {
        use {FixedAttributes as F, QpAttributes as A};
        match self {
            Self::Rst2Init => (
                F::OBJECTS.union(F::CLEAR_COUNTERS),
                A::RIGHTS
                    .union(A::QKEY)
                    .union(A::PKEY_INDEX)
                    .union(A::PORT)
                    .union(A::COUNTER_SET)
                    .union(A::SRQN)
                    .union(A::MIGRATION),
            ),
            Self::Init2Rtr if is_datagram => (F::MTU, A::empty()),
            Self::Init2Rtr => (
                F::MTU.union(F::REMOTE_QPN).union(F::RECV_PSN),
                A::PRIMARY_PATH.union(A::RESPONDER_DEPTH).union(A::RNR_TIMER),
            ),
            Self::Rtr2Rts => (
                F::SEND_PSN,
                A::ACK_TIMEOUT.union(A::RETRY_COUNT).union(A::RNR_RETRY).union(A::REQUESTER_DEPTH),
            ),
            // The driver selects each attribute that software changes. All others are 0 in the new context.
            Self::Init2Init | Self::Rts2Rts | Self::SqErr2Rts | Self::ToErr | Self::ToRst => {
                (F::empty(), A::empty())
            }
        }
    }

    /// Returns the attributes that can be selected in the command's mask.
    pub const fn optional(self) -> QpAttributes {
        match self {
            Self::ToErr | Self::ToRst => QpAttributes::empty(),
            _ => QpAttributes::all(),
        }
    }
}

impl QpContext {
    /// Returns the context after a command. The queue geometry, the pages and the service keep their values from
    /// CREATE_QP.
    ///
    /// # Errors
    /// Fails if the command is not allowed in the current state.
    pub fn modified(
        &self,
        transition: Transition,
        optional: QpAttributes,
        new: &Self,
    ) -> Result<Self, TransitionError> {
        let state = self.state();
        if transition.source().is_some_and(|source| state != Some(source)) {
            return Err(TransitionError { transition, state });
        }
        let is_datagram = self.service().is_some_and(Service::is_datagram);
        let (fixed, named) = transition.required(is_datagram);
        let mut next = *self;
        next.take_fixed(fixed, new);
        next.take_named(named | optional & transition.optional(), new);
        if transition == Transition::ToRst {
            next.clear_counters();
        }
        next.state = transition.target().code();
        Ok(next)
    }

    fn take_fixed(&mut self, fixed: FixedAttributes, new: &Self) {
        let has = |bit| fixed.contains(bit);
        if has(FixedAttributes::OBJECTS) {
            // Section 10.2: RST2INIT must set the UMR QP's PD, which CREATE_QP leaves unset. For this QP, the driver
            // passes 0 as the receive CQ and the doorbell record, and both keep their values from CREATE_QP. DevX
            // programs pass 0 in all of these fields, and every field keeps its value.
            if new.pd != Pdn::default() {
                self.pd = new.pd;
            }
            if new.send_cqn != Cqn::default() {
                self.send_cqn = new.send_cqn;
            }
            if new.recv_cqn != Cqn::default() {
                self.recv_cqn = new.recv_cqn;
            }
            if new.record != Iova::default() {
                self.record = new.record;
            }
        }
        if has(FixedAttributes::MTU) {
            self.mtu = new.mtu;
            self.log_max_message = new.log_max_message;
        }
        if has(FixedAttributes::REMOTE_QPN) {
            self.remote_qpn = new.remote_qpn;
        }
        if has(FixedAttributes::CLEAR_COUNTERS) {
            self.clear_counters();
        }
        if has(FixedAttributes::RECV_PSN) {
            self.recv_psn = new.recv_psn;
        }
        if has(FixedAttributes::SEND_PSN) {
            self.next_send_psn = new.next_send_psn;
            self.last_acked_psn = new.next_send_psn;
        }
    }

    fn take_named(&mut self, named: QpAttributes, new: &Self) {
        let has = |bit| named.contains(bit);
        if has(QpAttributes::ALTERNATE_PATH) {
            self.alternate = new.alternate;
        }
        if has(QpAttributes::REMOTE_READ) {
            self.remote_read = new.remote_read;
        }
        if has(QpAttributes::REMOTE_ATOMIC) {
            self.remote_atomic = new.remote_atomic;
            self.atomic_mode = new.atomic_mode;
        }
        if has(QpAttributes::REMOTE_WRITE) {
            self.remote_write = new.remote_write;
        }
        if has(QpAttributes::PRIMARY_PATH) {
            let old = self.primary;
            self.primary = Path {
                pkey_index: old.pkey_index,
                port: old.port,
                ack_timeout: old.ack_timeout,
                ..new.primary
            };
        }
        if has(QpAttributes::PKEY_INDEX) {
            self.primary.pkey_index = new.primary.pkey_index;
        }
        if has(QpAttributes::PORT) {
            self.primary.port = new.primary.port;
        }
        if has(QpAttributes::ACK_TIMEOUT) {
            self.primary.ack_timeout = new.primary.ack_timeout;
        }
        if has(QpAttributes::QKEY) {
            self.qkey = new.qkey;
        }
        if has(QpAttributes::RNR_TIMER) {
            self.min_rnr_timer = new.min_rnr_timer;
        }
        if has(QpAttributes::REQUESTER_DEPTH) {
            self.log_requester_depth = new.log_requester_depth;
        }
        if has(QpAttributes::RESPONDER_DEPTH) {
            self.log_responder_depth = new.log_responder_depth;
        }
        if has(QpAttributes::MIGRATION) {
            self.migration = new.migration;
        }
        if has(QpAttributes::RETRY_COUNT) {
            self.retry_count = new.retry_count;
        }
        if has(QpAttributes::RNR_RETRY) {
            self.rnr_retry = new.rnr_retry;
        }
        if has(QpAttributes::SRQN) && new.srqn != Srqn::default() {
            self.srqn = new.srqn;
        }
        if has(QpAttributes::RECV_CQN) {
            self.recv_cqn = new.recv_cqn;
        }
        if has(QpAttributes::COUNTER_SET) {
            self.counter_set = new.counter_set;
        }
        if has(QpAttributes::DC_KEY) {
            self.dc_key = new.dc_key;
        }
    }

    fn clear_counters(&mut self) {
        let none = Psn::new(0);
        (self.next_send_psn, self.last_acked_psn, self.recv_psn) = (none, none, none);
        (self.sq_counters, self.rq_hw_counter, self.rq_sw_counter) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Lid, Pdn, Qkey, Qpn, UserIndex};

    fn created(service: Service) -> QpContext {
        QpContext {
            service: service.code(),
            log_rq_entries: 9,
            log_sq_blocks: 2,
            user_index: UserIndex::NONE,
            send_cqn: Cqn::new(0x43),
            recv_cqn: Cqn::new(0x43),
            record: Iova::new(0x35b9_d200),
            srqn: Srqn::new(0x11),
            latency_sensitive: true,
            ..QpContext::default()
        }
    }

    fn run(qp: &QpContext, transition: Transition, new: &QpContext) -> QpContext {
        qp.modified(transition, QpAttributes::empty(), new).unwrap()
    }

    /// In golden trace ib-3, most context fields in the commands for the UMR QP are zero.
    #[test]
    fn umr_qp_transitions_copy_only_pd() {
        let new = QpContext { pd: Pdn::new(3), send_cqn: Cqn::new(0x43), ..QpContext::default() };
        let init = run(&created(Service::Umr), Transition::Rst2Init, &new);
        assert_eq!(init, QpContext { pd: Pdn::new(3), state: 1, ..created(Service::Umr) });
        let rtr = run(&init, Transition::Init2Rtr, &new);
        let rts = run(&rtr, Transition::Rtr2Rts, &new);
        assert_eq!(rts, QpContext { state: 3, ..init });
    }

    #[test]
    fn init2rtr_copies_rc_connection_attributes() {
        let path = Path { pkey_index: 7, lid: Lid::new(0x11), port: 9, ack_timeout: 3, ..Path::default() };
        let init =
            QpContext { state: 1, primary: Path { port: 1, ..Path::default() }, ..created(Service::Rc) };
        let new = QpContext {
            mtu: 3,
            log_max_message: 30,
            remote_qpn: Qpn::new(0x84),
            primary: path,
            recv_psn: Psn::new(5),
            next_send_psn: Psn::new(6),
            min_rnr_timer: 12,
            log_responder_depth: 4,
            remote_write: true,
            ..QpContext::default()
        };
        let rtr = run(&init, Transition::Init2Rtr, &new);
        let expected = QpContext {
            state: 2,
            primary: Path { pkey_index: 0, port: 1, ack_timeout: 0, ..path },
            mtu: 3,
            log_max_message: 30,
            remote_qpn: Qpn::new(0x84),
            recv_psn: Psn::new(5),
            min_rnr_timer: 12,
            log_responder_depth: 4,
            ..init
        };
        assert_eq!(rtr, expected);
        let with_rights = init.modified(Transition::Init2Rtr, QpAttributes::RIGHTS, &new).unwrap();
        assert_eq!(with_rights, QpContext { remote_write: true, ..expected });
    }

    #[test]
    fn datagram_qp_ignores_connection_attributes() {
        let init = QpContext { state: 1, qkey: Qkey::new(0xb1b), ..created(Service::Ud) };
        let new = QpContext {
            mtu: 5,
            remote_qpn: Qpn::new(1),
            recv_psn: Psn::new(2),
            next_send_psn: Psn::new(3),
            ..QpContext::default()
        };
        let rtr = run(&init, Transition::Init2Rtr, &new);
        assert_eq!(rtr, QpContext { state: 2, mtu: 5, ..init });
        let rts = run(&rtr, Transition::Rtr2Rts, &new);
        assert_eq!((rts.next_send_psn, rts.recv_psn), (Psn::new(3), Psn::new(0)));
    }

    /// A program can change a single attribute of a QP in INIT, for example its P_Key index.
    #[test]
    fn init2init_copies_only_attributes_selected_by_mask() {
        let primary = Path { port: 1, pkey_index: 3, ..Path::default() };
        let init = QpContext { state: 1, remote_write: true, primary, ..created(Service::Rc) };
        let new = QpContext { primary: Path { pkey_index: 5, ..Path::default() }, ..QpContext::default() };
        assert_eq!(run(&init, Transition::Init2Init, &new), init);
        let next = init.modified(Transition::Init2Init, QpAttributes::PKEY_INDEX, &new).unwrap();
        assert_eq!(next, QpContext { primary: Path { pkey_index: 5, ..primary }, ..init });
    }

    #[test]
    fn rts2rts_copies_only_attributes_selected_by_mask() {
        let rts = QpContext { state: 3, ..created(Service::Rc) };
        let new = QpContext { qkey: Qkey::new(1), min_rnr_timer: 9, retry_count: 7, ..QpContext::default() };
        assert_eq!(run(&rts, Transition::Rts2Rts, &new), rts);
        let next = rts.modified(Transition::Rts2Rts, QpAttributes::QKEY, &new).unwrap();
        assert_eq!(next, QpContext { qkey: Qkey::new(1), ..rts });
    }

    #[test]
    fn transition_from_wrong_state_is_rejected() {
        for transition in Transition::ALL {
            for state in 0..16 {
                let qp = QpContext { state, ..created(Service::Rc) };
                let result = qp.modified(transition, QpAttributes::all(), &QpContext::default());
                let allowed = transition.source().is_none_or(|source| source.code() == state);
                assert_eq!(result.is_ok(), allowed, "{transition:?} in {state}");
                if let Ok(next) = result {
                    assert_eq!(next.state(), Some(transition.target()));
                }
            }
        }
        assert_eq!(TransitionError::STATUS.code(), 0x10);
    }

    #[test]
    fn reset_clears_counters() {
        let rts =
            QpContext { state: 3, next_send_psn: Psn::new(9), rq_hw_counter: 4, ..created(Service::Rc) };
        let reset = run(&rts, Transition::ToRst, &QpContext::default());
        assert_eq!(reset, created(Service::Rc));
        let error = run(&rts, Transition::ToErr, &QpContext::default());
        assert_eq!(error, QpContext { state: 6, ..rts });
    }
}
