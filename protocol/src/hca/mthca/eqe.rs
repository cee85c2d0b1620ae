//! Event queue entries (EQE).
//!
//! # Spec
//! mthca interface, section 7.7.

use crate::describe::{Describe, Field as _, Hex, Visitor};
pub use crate::hca::event::CqFault;
use crate::ids::{Cqn, Qpn, Srqn};

/// Length of an EQE in bytes.
pub const LEN: usize = 32;

/// An asynchronous event of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpEvent {
    /// 02h: communication established. The first packet arrived while the QP was in RTR.
    CommunicationEstablished,
    /// 03h: send queue drained.
    SqDrained,
    /// 05h: local work queue catastrophic error. A work queue could not be read.
    Catastrophic,
    /// 10h: the device rejected an invalid request from the peer.
    InvalidRequest,
    /// 11h: the device rejected a request that the peer has no access rights for.
    AccessViolation,
    /// 13h: last WQE reached. The QP will not consume any more receive WQEs from the SRQ.
    LastWqeReached,
}

/// An event queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eqe {
    /// 00h: a CQ has a new CQE.
    Completion(Cqn),
    /// A QP event, with one of the type codes listed in [`QpEvent`].
    Qp(Qpn, QpEvent),
    /// 04h: a CQ has failed.
    CqError(Cqn, CqFault),
    /// 09h: the port state has changed.
    PortChange {
        /// Port number, starting at 1.
        port: u8,
        /// Whether the port has become active.
        active: bool,
    },
    /// 0Ah: a command has completed.
    Command {
        /// Token of the command.
        token: u16,
        /// Status code of the command.
        status: u8,
        /// Immediate result of the command.
        out_param: u64,
    },
    /// 0Fh: the EQ overflowed and lost events.
    EqOverflow,
    /// 12h: an SRQ could not be read.
    SrqCatastrophic(Srqn),
    /// 14h: an SRQ has fewer WQEs than its limit.
    SrqLimit(Srqn),
}

impl Describe for Eqe {
    fn describe(&self, to: &mut dyn Visitor) {
        match *self {
            Self::Completion(cqn) => cqn.show("cqn", to),
            Self::Qp(qpn, _) => qpn.show("qpn", to),
            Self::CqError(cqn, fault) => {
                cqn.show("cqn", to);
                fault.show("fault", to);
            }
            Self::PortChange { port, active } => {
                port.show("port", to);
                active.show("active", to);
            }
            Self::Command { token, status, out_param } => {
                Hex(token).show("token", to);
                Hex(status).show("status", to);
                Hex(out_param).show("out_param", to);
            }
            Self::EqOverflow => {}
            Self::SrqCatastrophic(srqn) | Self::SrqLimit(srqn) => srqn.show("srqn", to),
        }
    }
}

impl Eqe {
    /// Returns the event type code, which is also the bit number in MAP_EQ event masks. Completions are delivered to
    /// their CQ's EQ, regardless of the masks.
    pub const fn event_type(&self) -> u8 {
        match self {
            Self::Completion(_) => 0x00,
            Self::Qp(_, event) => match event {
                QpEvent::CommunicationEstablished => 0x02,
                QpEvent::SqDrained => 0x03,
                QpEvent::Catastrophic => 0x05,
                QpEvent::InvalidRequest => 0x10,
                QpEvent::AccessViolation => 0x11,
                QpEvent::LastWqeReached => 0x13,
            },
            Self::CqError(..) => 0x04,
            Self::PortChange { .. } => 0x09,
            Self::Command { .. } => 0x0a,
            Self::EqOverflow => 0x0f,
            Self::SrqCatastrophic(_) => 0x12,
            Self::SrqLimit(_) => 0x14,
        }
    }

    /// Returns the name that appears in traces.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Completion(_) => "completion",
            Self::Qp(_, event) => match event {
                QpEvent::CommunicationEstablished => "communication_established",
                QpEvent::SqDrained => "sq_drained",
                QpEvent::Catastrophic => "qp_catastrophic",
                QpEvent::InvalidRequest => "invalid_request",
                QpEvent::AccessViolation => "access_violation",
                QpEvent::LastWqeReached => "last_wqe_reached",
            },
            Self::CqError(..) => "cq_error",
            Self::PortChange { .. } => "port_change",
            Self::Command { .. } => "command",
            Self::EqOverflow => "eq_overflow",
            Self::SrqCatastrophic(_) => "srq_catastrophic",
            Self::SrqLimit(_) => "srq_limit",
        }
    }

    /// Returns the EQE in wire format, with the owner bit cleared so that the driver owns it.
    pub fn emit(&self) -> [u8; LEN] {
        const ACTIVE: u8 = 4;
        const DOWN: u8 = 1;
        let mut entry = [0; LEN];
        entry[0x01] = self.event_type();
        let mut number = |number: u32| entry[0x04..0x08].copy_from_slice(&number.to_be_bytes());
        match *self {
            Self::Completion(cqn) => number(cqn.get()),
            Self::Qp(qpn, _) => number(qpn.get()),
            Self::SrqCatastrophic(srqn) | Self::SrqLimit(srqn) => number(srqn.get()),
            Self::CqError(cqn, fault) => {
                number(cqn.get());
                entry[0x0f] = fault.code();
            }
            Self::PortChange { port, active } => {
                entry[0x03] = if active { ACTIVE } else { DOWN };
                entry[0x0c] = port << 4;
            }
            Self::Command { token, status, out_param } => {
                entry[0x06..0x08].copy_from_slice(&token.to_be_bytes());
                entry[0x0f] = status;
                entry[0x10..0x18].copy_from_slice(&out_param.to_be_bytes());
            }
            Self::EqOverflow => {}
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(event: Eqe, bytes: &[(usize, u8)]) {
        let mut expected = [0; LEN];
        for (at, byte) in bytes {
            expected[*at] = *byte;
        }
        assert_eq!(event.emit(), expected, "{event:?}");
    }

    /// Examples from section 13.3: the completion of the first NOP and the port becoming active.
    #[test]
    fn emitted_eqes_match_published_bytes() {
        check(Eqe::Command { token: 0x20, status: 0, out_param: 0 }, &[(1, 0x0a), (7, 0x20)]);
        check(Eqe::PortChange { port: 1, active: true }, &[(1, 0x09), (3, 0x04), (0x0c, 0x10)]);
    }

    #[test]
    fn eqe_fields_are_at_specified_offsets() {
        check(Eqe::Completion(Cqn::new(0x11)), &[(7, 0x11)]);
        check(Eqe::PortChange { port: 1, active: false }, &[(1, 0x09), (3, 0x01), (0x0c, 0x10)]);
        let command = Eqe::Command { token: 0x1234, status: 0x10, out_param: 0x0102_0304_0506_0708 };
        check(
            command,
            &[
                (1, 0x0a),
                (6, 0x12),
                (7, 0x34),
                (0x0f, 0x10),
                (0x10, 1),
                (0x11, 2),
                (0x12, 3),
                (0x13, 4),
                (0x14, 5),
                (0x15, 6),
                (0x16, 7),
                (0x17, 8),
            ],
        );
        check(Eqe::CqError(Cqn::new(0x11), CqFault::Overrun), &[(1, 0x04), (7, 0x11), (0x0f, 1)]);
        check(Eqe::CqError(Cqn::new(0x11), CqFault::Access), &[(1, 0x04), (7, 0x11), (0x0f, 2)]);
        check(Eqe::EqOverflow, &[(1, 0x0f)]);
        check(Eqe::SrqLimit(Srqn::new(0x12)), &[(1, 0x14), (7, 0x12)]);
        for (event, code) in [
            (QpEvent::CommunicationEstablished, 0x02),
            (QpEvent::SqDrained, 0x03),
            (QpEvent::Catastrophic, 0x05),
            (QpEvent::InvalidRequest, 0x10),
            (QpEvent::AccessViolation, 0x11),
            (QpEvent::LastWqeReached, 0x13),
        ] {
            check(Eqe::Qp(Qpn::new(0x2_0015), event), &[(1, code), (5, 2), (7, 0x15)]);
        }
    }
}
