//! QP state machine: the transition for each command, and the attributes that each transition accepts.
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
    /// QP attributes. Their bits are those of opt_param_mask in the specification's numbering. The public driver uses a
    /// [different numbering](Numbering::Driver).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Attributes: u32 {
        /// State after the transition.
        const STATE = 1;
        /// Current state, as assumed by the driver.
        const CUR_STATE = 1 << 1;
        /// Whether to generate an event when the send queue has drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// Access rights of the peer.
        const ACCESS_FLAGS = 1 << 3;
        /// Index into the port's P_Key table.
        const PKEY_INDEX = 1 << 4;
        /// Physical port of the QP.
        const PORT = 1 << 5;
        /// Q_Key. In the public driver's numbering, this bit selects the RNR NAK timer.
        const QKEY = 1 << 6;
        /// Address vector of the peer.
        const AV = 1 << 7;
        /// Path MTU of the connection.
        const PATH_MTU = 1 << 8;
        /// Local ACK timeout code.
        const TIMEOUT = 1 << 9;
        /// Maximum number of retries after timeouts.
        const RETRY_CNT = 1 << 10;
        /// RNR retry count. In the public driver's numbering, this bit selects the port number.
        const RNR_RETRY = 1 << 11;
        /// PSN of the next expected packet.
        const RQ_PSN = 1 << 12;
        /// Maximum number of outstanding READs and atomics as the requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path to the peer.
        const ALT_PATH = 1 << 14;
        /// Minimum RNR NAK timer.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN to send.
        const SQ_PSN = 1 << 16;
        /// Maximum number of outstanding READs and atomics as the responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// State of path migration.
        const PATH_MIG_STATE = 1 << 18;
        /// Sizes of the work queues.
        const CAP = 1 << 19;
        /// QP number of the peer.
        const DEST_QPN = 1 << 20;
    }
}

/// Numbering of the bits in opt_param_mask. It depends on the driver that created the QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Numbering {
    /// The numbering in the specification, which [`Attributes`] uses.
    #[default]
    Document,
    /// The numbering of older HCAs, inherited by the public driver. In practice, the driver sets only bits 6 and 11.
    Driver,
}

impl Numbering {
    /// Detects the numbering from the mask of RST2INIT, which requires the port for every service type. The port is bit
    /// 5 in the specification's numbering and bit 11 in the driver's. In the specification's numbering, RST2INIT does
    /// not use bit 11.
    pub const fn of_rst2init(mask: u32) -> Self {
        const DRIVERS_PORT: u32 = 1 << 11;
        if mask & DRIVERS_PORT != 0 && mask & Attributes::PORT.bits() == 0 {
            Self::Driver
        } else {
            Self::Document
        }
    }

    /// Returns the attributes selected by a mask.
    pub fn named(self, mask: u32) -> Attributes {
        use Attributes as A;
        /// Bits in the driver's numbering. Bits 13 (a second RNR retry count) and 16 are omitted because the QPC has no
        /// field for them.
        const DRIVER: [(u32, Attributes); 15] = [
            (0, A::ALT_PATH),
            (1, A::ACCESS_FLAGS),
            (2, A::ACCESS_FLAGS),
            (3, A::ACCESS_FLAGS),
            (4, A::PKEY_INDEX),
            (5, A::QKEY),
            (6, A::MIN_RNR_TIMER),
            (7, A::AV),
            (8, A::MAX_QP_RD_ATOMIC),
            (9, A::MAX_DEST_RD_ATOMIC),
            (10, A::PATH_MIG_STATE),
            (11, A::PORT),
            (12, A::RETRY_CNT),
            (14, A::TIMEOUT),
            (15, A::RNR_RETRY),
        ];
        match self {
            Self::Document => A::from_bits_truncate(mask),
            Self::Driver => DRIVER
                .into_iter()
                .filter(|(bit, _)| mask >> bit & 1 != 0)
                .fold(A::empty(), |all, (_, attribute)| all | attribute),
        }
    }
}

impl Attributes {
    /// Returns the attributes that apply to QPs with the given service type.
    pub fn of(service: ServiceType) -> Self {
        let accepted = |transition: Transition| transition.required(service) | transition.optional(service);
        Transition::ALL.into_iter().fold(Self::empty(), |all, transition| all | accepted(transition))
    }
}

impl Field for Attributes {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        show_flags(self, name, to);
    }
}

impl Transition {
    /// Returns the transition that a command requests, if any.
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

    /// Returns the command that requests the transition.
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

    /// Returns the attributes that the driver must provide. The device cannot check that they are provided, because the
    /// public driver does not set their mask bits.
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

    /// Returns the attributes that the driver may provide. For SQD2RTS, these include the additions in the
    /// specification's notes on the QP state machine.
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
    fn commands_and_transitions_round_trip() {
        for transition in Transition::ALL {
            assert_eq!(Transition::from_op(transition.op()), Some(transition));
        }
        assert_eq!(Transition::from_op(Op::QueryQp), None);
    }

    #[test]
    fn only_specified_transitions_are_allowed() {
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
    fn rst2init_port_bit_selects_numbering() {
        use Attributes as A;
        let documents = A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS;
        for (mask, numbering) in [
            (0, Numbering::Document),
            (documents.bits(), Numbering::Document),
            (A::all().bits(), Numbering::Document),
            (!0, Numbering::Document),
            (1 << 11, Numbering::Driver),
            (1 << 11 | 1 << 4, Numbering::Driver),
        ] {
            assert_eq!(Numbering::of_rst2init(mask), numbering, "{mask:#x}");
        }
    }

    #[test]
    fn mask_bits_depend_on_numbering() {
        use Attributes as A;
        let mask = 1 << 6 | 1 << 11 | 1 << 14 | 1 << 31;
        assert_eq!(Numbering::Document.named(mask), A::QKEY | A::RNR_RETRY | A::ALT_PATH);
        assert_eq!(Numbering::Driver.named(mask), A::MIN_RNR_TIMER | A::PORT | A::TIMEOUT);
    }

    #[test]
    fn attributes_depend_on_service_type() {
        use Attributes as A;
        for service in [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud] {
            let has = A::of(service);
            assert_eq!(has.contains(A::QKEY), service == ServiceType::Ud);
            assert_eq!(has.intersects(A::RNR_RETRY | A::RETRY_CNT | A::TIMEOUT), service == ServiceType::Rc);
            assert_eq!(has.intersects(A::AV | A::PATH_MTU | A::DEST_QPN), service != ServiceType::Ud);
            assert!(has.contains(A::PORT | A::PKEY_INDEX | A::SQ_PSN));
        }
    }

    #[test]
    fn required_and_optional_attributes_are_disjoint() {
        for transition in Transition::ALL {
            for service in [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud] {
                let required = transition.required(service);
                assert!(!required.intersects(transition.optional(service)), "{transition:?} {service:?}");
            }
        }
    }
}
