//! The QP state machine as software sees it: which command leads from which state to which, and the attributes it
//! takes.
//!
//! # Spec
//! JingZhao interface, sections 10.2 and 10.4.

use bitflags::bitflags;

use super::cmd::Op;
#[cfg(test)]
use super::qpc::QpState;
use super::qpc::ServiceType;
use crate::describe::{Field, Visitor, show_flags};
pub use crate::hca::qp::Transition;

bitflags! {
    /// Attributes of a QP, as bits of opt_param_mask in the numbering of the document. The public driver sets bits 6
    /// and 11 with another meaning, so a device does not gate fields by the mask.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Attributes: u32 {
        /// Target state.
        const STATE = 1;
        /// State software believes in.
        const CUR_STATE = 1 << 1;
        /// Event when SQD has drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// Remote access rights.
        const ACCESS_FLAGS = 1 << 3;
        /// P_Key index.
        const PKEY_INDEX = 1 << 4;
        /// Port.
        const PORT = 1 << 5;
        /// Q_Key. (Driver: RNR timer.)
        const QKEY = 1 << 6;
        /// Address vector.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Retry count.
        const RETRY_CNT = 1 << 10;
        /// RNR retry count. (Driver: port.)
        const RNR_RETRY = 1 << 11;
        /// Expected PSN.
        const RQ_PSN = 1 << 12;
        /// READs and atomics as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// RNR timer.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN to send.
        const SQ_PSN = 1 << 16;
        /// READs and atomics as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// Queue sizes.
        const CAP = 1 << 19;
        /// Connected QP.
        const DEST_QPN = 1 << 20;
    }
}

impl Field for Attributes {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        show_flags(self, name, to);
    }
}

impl Transition {
    /// The transition a command asks for, if it is one.
    pub const fn from_op(op: Op) -> Option<Self> {
        Some(match op {
            Op::Rst2Init => Self::Rst2Init,
            Op::Init2Init => Self::Init2Init,
            Op::Init2Rtr => Self::Init2Rtr,
            Op::Rtr2Rts => Self::Rtr2Rts,
            Op::Rts2Rts => Self::Rts2Rts,
            Op::SqErr2Rts => Self::SqErr2Rts,
            Op::ToErr => Self::ToErr,
            Op::Rts2Sqd => Self::Rts2Sqd,
            Op::Sqd2Sqd => Self::Sqd2Sqd,
            Op::Sqd2Rts => Self::Sqd2Rts,
            Op::ToRst => Self::ToRst,
            _ => return None,
        })
    }

    /// The command that asks for it.
    pub const fn op(self) -> Op {
        match self {
            Self::Rst2Init => Op::Rst2Init,
            Self::Init2Init => Op::Init2Init,
            Self::Init2Rtr => Op::Init2Rtr,
            Self::Rtr2Rts => Op::Rtr2Rts,
            Self::Rts2Rts => Op::Rts2Rts,
            Self::SqErr2Rts => Op::SqErr2Rts,
            Self::ToErr => Op::ToErr,
            Self::Rts2Sqd => Op::Rts2Sqd,
            Self::Sqd2Sqd => Op::Sqd2Sqd,
            Self::Sqd2Rts => Op::Sqd2Rts,
            Self::ToRst => Op::ToRst,
        }
    }

    /// Attributes software must give. A device cannot tell whether it did.
    pub const fn required(self, service: ServiceType) -> Attributes {
        use Attributes as A;
        let connected = A::AV.union(A::PATH_MTU).union(A::DEST_QPN).union(A::RQ_PSN);
        match (self, service) {
            (Self::Rst2Init | Self::Init2Init, ServiceType::Ud) => {
                A::PKEY_INDEX.union(A::PORT).union(A::QKEY)
            }
            (Self::Rst2Init | Self::Init2Init, _) => A::PKEY_INDEX.union(A::PORT).union(A::ACCESS_FLAGS),
            (Self::Init2Rtr, ServiceType::Uc) => connected,
            (Self::Init2Rtr, ServiceType::Rc) => connected.union(A::MIN_RNR_TIMER),
            (Self::Rtr2Rts, ServiceType::Uc | ServiceType::Ud) => A::SQ_PSN,
            (Self::Rtr2Rts, ServiceType::Rc) => {
                A::TIMEOUT.union(A::RETRY_CNT).union(A::RNR_RETRY).union(A::SQ_PSN)
            }
            _ => A::empty(),
        }
    }

    /// Attributes software may give. For SQD to RTS, what the state machine notes add is among them.
    pub const fn optional(self, service: ServiceType) -> Attributes {
        use Attributes as A;
        let path = A::ALT_PATH.union(A::ACCESS_FLAGS);
        let migrating = path.union(A::PATH_MIG_STATE);
        match (self, service) {
            (Self::Init2Rtr, ServiceType::Ud) => A::PKEY_INDEX.union(A::QKEY),
            (Self::Init2Rtr, _) => path.union(A::PKEY_INDEX),
            (Self::Rtr2Rts | Self::Rts2Rts | Self::Sqd2Rts | Self::SqErr2Rts, ServiceType::Ud) => {
                A::CUR_STATE.union(A::QKEY)
            }
            (Self::Rtr2Rts | Self::Rts2Rts, ServiceType::Uc) => migrating.union(A::CUR_STATE),
            (Self::Rtr2Rts | Self::Rts2Rts, ServiceType::Rc) => {
                migrating.union(A::CUR_STATE).union(A::MIN_RNR_TIMER)
            }
            (Self::Sqd2Rts, ServiceType::Uc) => migrating.union(A::CUR_STATE).union(A::AV),
            (Self::Sqd2Rts, ServiceType::Rc) => migrating
                .union(A::CUR_STATE)
                .union(A::MIN_RNR_TIMER)
                .union(A::AV)
                .union(A::RETRY_CNT)
                .union(A::RNR_RETRY)
                .union(A::TIMEOUT)
                .union(A::PORT),
            (Self::SqErr2Rts, ServiceType::Uc) => A::CUR_STATE.union(A::ACCESS_FLAGS),
            (Self::Rts2Sqd, _) => A::EN_SQD_ASYNC_NOTIFY,
            (Self::Sqd2Sqd, ServiceType::Ud) => A::PKEY_INDEX.union(A::QKEY),
            (Self::Sqd2Sqd, ServiceType::Uc) => migrating.union(A::AV).union(A::PKEY_INDEX),
            (Self::Sqd2Sqd, ServiceType::Rc) => migrating
                .union(A::PORT)
                .union(A::AV)
                .union(A::TIMEOUT)
                .union(A::RETRY_CNT)
                .union(A::RNR_RETRY)
                .union(A::PKEY_INDEX)
                .union(A::MIN_RNR_TIMER),
            _ => A::empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqe, QpState::Sqd, QpState::Err];

    #[test]
    fn commands_and_transitions_name_each_other() {
        for transition in Transition::ALL {
            assert_eq!(Transition::from_op(transition.op()), Some(transition));
        }
        assert_eq!(Transition::from_op(Op::QueryQp), None);
    }

    #[test]
    fn exactly_the_listed_transitions_are_allowed() {
        for service in [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud] {
            for (state, expected) in STATES.into_iter().zip([
                &[0x19, 0x1e, 0x21][..],
                &[0x2d, 0x1a, 0x1e, 0x21],
                &[0x1b, 0x1e, 0x21],
                &[0x1c, 0x1e, 0x1f, 0x21],
                if service == ServiceType::Rc { &[0x1e, 0x21] } else { &[0x1d, 0x1e, 0x21] },
                &[0x1e, 0x38, 0x20, 0x21],
                &[0x1e, 0x21],
            ]) {
                let allowed: Vec<_> = Transition::ALL
                    .into_iter()
                    .filter(|transition| transition.allowed(state, service))
                    .map(|transition| transition.op().spec().code)
                    .collect();
                assert_eq!(allowed, expected, "{state:?} {service:?}");
            }
        }
    }

    #[test]
    fn no_attribute_is_both_required_and_optional() {
        for transition in Transition::ALL {
            for service in [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud] {
                let required = transition.required(service);
                assert!(!required.intersects(transition.optional(service)), "{transition:?} {service:?}");
            }
        }
    }
}
