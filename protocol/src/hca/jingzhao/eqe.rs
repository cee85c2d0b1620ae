//! Event queue entries (EQE). The JingZhao documents do not define an EQE format; hcad defines one in section 8.4 of
//! the JingZhao interface.
//!
//! # Spec
//! JingZhao interface, sections 8.2 to 8.4.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::cmd::CmdStatus;
use super::cqe::HARDWARE_OWNED;
use crate::describe::{Describe, Field, Hex, Visitor};
pub use crate::hca::event::CqFault;
use crate::ids::{Cqn, Qpn};

/// Length of an EQE in bytes.
pub const LEN: usize = 32;
/// Offset of the owner byte, the last byte of an EQE. Ownership works as for CQEs.
pub const OWNER: usize = 31;

/// Type of an event. Its code is also its bit number in MAP_EQ event masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// 00h: completion. It is always delivered to the CQ's EQ; event masks do not apply.
    Completion,
    /// 02h: communication established. The first valid packet arrived while the QP was in RTR.
    CommunicationEstablished,
    /// 03h: send queue drained.
    SqDrained,
    /// 04h: CQ overrun or write error.
    CqError,
    /// 05h: work queue catastrophic error. A work queue could not be read.
    WqCatastrophic,
    /// 08h: local catastrophic error. The device failed internally.
    LocalCatastrophic,
    /// 09h: port state change.
    PortChange,
    /// 0Ah: a command has completed.
    Command,
    /// 0Fh: EQ overflow. Events were lost.
    EqOverflow,
    /// 10h: the responder rejected an invalid request.
    WqInvalidRequest,
    /// 11h: the responder rejected a request without the required access rights.
    WqAccess,
}

impl EventType {
    /// Decodes an event type. Returns `None` if the code is unknown.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Completion,
            0x02 => Self::CommunicationEstablished,
            0x03 => Self::SqDrained,
            0x04 => Self::CqError,
            0x05 => Self::WqCatastrophic,
            0x08 => Self::LocalCatastrophic,
            0x09 => Self::PortChange,
            0x0a => Self::Command,
            0x0f => Self::EqOverflow,
            0x10 => Self::WqInvalidRequest,
            0x11 => Self::WqAccess,
            _ => return None,
        })
    }

    /// Returns the code of the event type.
    pub const fn code(self) -> u8 {
        match self {
            Self::Completion => 0x00,
            Self::CommunicationEstablished => 0x02,
            Self::SqDrained => 0x03,
            Self::CqError => 0x04,
            Self::WqCatastrophic => 0x05,
            Self::LocalCatastrophic => 0x08,
            Self::PortChange => 0x09,
            Self::Command => 0x0a,
            Self::EqOverflow => 0x0f,
            Self::WqInvalidRequest => 0x10,
            Self::WqAccess => 0x11,
        }
    }

    /// Returns the name of the event type in the specification.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completion => "COMP",
            Self::CommunicationEstablished => "COMM_EST",
            Self::SqDrained => "SQ_DRAINED",
            Self::CqError => "CQ_ERROR",
            Self::WqCatastrophic => "WQ_CATAS_ERROR",
            Self::LocalCatastrophic => "LOCAL_CATAS_ERROR",
            Self::PortChange => "PORT_CHANGE",
            Self::Command => "CMD",
            Self::EqOverflow => "EQ_OVERFLOW",
            Self::WqInvalidRequest => "WQ_INVAL_REQ_ERROR",
            Self::WqAccess => "WQ_ACCESS_ERROR",
        }
    }

    /// Returns the event type's bit in an event mask.
    pub const fn mask(self) -> u64 {
        1 << self.code()
    }
}

/// An asynchronous QP event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum QpEvent {
    CommunicationEstablished,
    SqDrained,
    WqCatastrophic,
    WqInvalidRequest,
    WqAccess,
}

/// An event queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Eqe {
    /// A new CQE was written to the CQ.
    Completion {
        /// CQ number, including the high bits that drivers use as a generation counter.
        cqn: Cqn,
    },
    /// The CQ has entered the error state.
    CqError {
        /// CQN of the failed CQ.
        cqn: Cqn,
        /// Reason why the CQ failed.
        fault: CqFault,
    },
    /// A QP has reported an event.
    Qp {
        /// QP number, including the high bits that drivers use as a generation counter.
        qpn: Qpn,
        /// Event that the QP reported.
        event: QpEvent,
    },
    /// A command that requested an event has completed.
    Command {
        /// Token of the command.
        token: u16,
        /// Status code of the command.
        status: u8,
        /// Immediate result of the command.
        out_param: u64,
    },
    /// The link state of the port changed.
    PortChange {
        port: u8,
        /// Whether the port has become active.
        active: bool,
    },
    /// The device detected an internal error.
    LocalCatastrophic,
    /// The EQ overflowed and lost events.
    EqOverflow,
}

impl Eqe {
    /// Returns the type of the event.
    pub const fn event_type(&self) -> EventType {
        match self {
            Self::Completion { .. } => EventType::Completion,
            Self::CqError { .. } => EventType::CqError,
            Self::Qp { event, .. } => match event {
                QpEvent::CommunicationEstablished => EventType::CommunicationEstablished,
                QpEvent::SqDrained => EventType::SqDrained,
                QpEvent::WqCatastrophic => EventType::WqCatastrophic,
                QpEvent::WqInvalidRequest => EventType::WqInvalidRequest,
                QpEvent::WqAccess => EventType::WqAccess,
            },
            Self::Command { .. } => EventType::Command,
            Self::PortChange { .. } => EventType::PortChange,
            Self::LocalCatastrophic => EventType::LocalCatastrophic,
            Self::EqOverflow => EventType::EqOverflow,
        }
    }

    /// Parses an EQE as a driver does. Returns `None` if the device owns the entry or if the entry has a type or value
    /// that this device never writes.
    pub fn parse(entry: &[u8; LEN]) -> Option<Self> {
        if entry[OWNER] & HARDWARE_OWNED != 0 {
            return None;
        }
        let raw: Raw = transmute!(*entry);
        let qp = |event| Self::Qp { qpn: Qpn::new(raw.number.get()), event };
        Some(match EventType::from_code(raw.event_type)? {
            EventType::Completion => Self::Completion { cqn: Cqn::new(raw.number.get()) },
            EventType::CommunicationEstablished => qp(QpEvent::CommunicationEstablished),
            EventType::SqDrained => qp(QpEvent::SqDrained),
            EventType::CqError => {
                let [code, ..] = raw.detail.to_bytes();
                Self::CqError { cqn: Cqn::new(raw.number.get()), fault: CqFault::from_code(code)? }
            }
            EventType::WqCatastrophic => qp(QpEvent::WqCatastrophic),
            EventType::LocalCatastrophic => Self::LocalCatastrophic,
            EventType::PortChange => {
                let active = match raw.subtype {
                    PORT_DOWN => false,
                    PORT_ACTIVE => true,
                    _ => return None,
                };
                let [port, ..] = raw.number.to_bytes();
                Self::PortChange { port, active }
            }
            EventType::Command => {
                let ([low, high, ..], [.., status]) = (raw.number.to_bytes(), raw.detail.to_bytes());
                Self::Command {
                    token: u16::from_le_bytes([low, high]),
                    status,
                    out_param: raw.out_param.get(),
                }
            }
            EventType::EqOverflow => Self::EqOverflow,
            EventType::WqInvalidRequest => qp(QpEvent::WqInvalidRequest),
            EventType::WqAccess => qp(QpEvent::WqAccess),
        })
    }

    /// Returns the EQE in wire format, with the owner bit cleared so that the driver owns it.
    pub fn emit(&self) -> [u8; LEN] {
        let (subtype, number, detail, out_param) = match *self {
            Self::Completion { cqn } => (0, cqn.get(), 0, 0),
            Self::CqError { cqn, fault } => (0, cqn.get(), fault.code().into(), 0),
            Self::Qp { qpn, .. } => (0, qpn.get(), 0, 0),
            Self::Command { token, status, out_param } => {
                (0, token.into(), u32::from(status) << 24, out_param)
            }
            Self::PortChange { port, active: false } => (PORT_DOWN, port.into(), 0, 0),
            Self::PortChange { port, active: true } => (PORT_ACTIVE, port.into(), 0, 0),
            Self::LocalCatastrophic | Self::EqOverflow => (0, 0, 0, 0),
        };
        transmute!(Raw {
            reserved_00: 0,
            event_type: self.event_type().code(),
            reserved_02: 0,
            subtype,
            number: number.into(),
            detail: detail.into(),
            out_param: out_param.into(),
            reserved_14: [0; 11],
            owner: 0,
        })
    }
}

const PORT_DOWN: u8 = 1;
const PORT_ACTIVE: u8 = 4;

impl Describe for Eqe {
    fn describe(&self, to: &mut dyn Visitor) {
        self.event_type().name().show("type", to);
        match *self {
            Self::Completion { cqn } => cqn.show("cqn", to),
            Self::CqError { cqn, fault } => {
                cqn.show("cqn", to);
                fault.show("fault", to);
            }
            Self::Qp { qpn, .. } => qpn.show("qpn", to),
            Self::Command { token, status, out_param } => {
                Hex(token).show("token", to);
                CmdStatus::word(status).show("status", to);
                Hex(out_param).show("out_param", to);
            }
            Self::PortChange { port, active } => {
                port.show("port", to);
                if active { "active" } else { "down" }.show("state", to);
            }
            Self::LocalCatastrophic | Self::EqOverflow => {}
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    reserved_00: u8,
    event_type: u8,
    reserved_02: u8,
    subtype: u8,
    number: U32,
    detail: U32,
    out_param: U64,
    reserved_14: [u8; 11],
    owner: u8,
}

const _: () = assert!(std::mem::offset_of!(Raw, owner) == OWNER);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Builds an EQE from its type, its subtype, and the words at 04h, 08h and 0Ch, as defined in section 8.4.
    fn entry(event_type: u8, subtype: u8, number: [u8; 4], detail: [u8; 4], out_param: [u8; 8]) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[1] = event_type;
        bytes[3] = subtype;
        bytes[4..8].copy_from_slice(&number);
        bytes[8..12].copy_from_slice(&detail);
        bytes[12..20].copy_from_slice(&out_param);
        bytes
    }

    #[test]
    fn eqes_match_specified_layout() {
        let (cqn, qpn) = (Cqn::new(0x01_0203), Qpn::new(0x0a_0b0c));
        let (cq, qp) = ([3, 2, 1, 0], [0x0c, 0x0b, 0x0a, 0]);
        let qp_event = |event| Eqe::Qp { qpn, event };
        let command = Eqe::Command { token: 0xffee, status: 3, out_param: 0x1122_3344_5566_7788 };
        let out_param = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11];
        for (eqe, bytes) in [
            (Eqe::Completion { cqn }, entry(0x00, 0, cq, [0; 4], [0; 8])),
            (qp_event(QpEvent::CommunicationEstablished), entry(0x02, 0, qp, [0; 4], [0; 8])),
            (qp_event(QpEvent::SqDrained), entry(0x03, 0, qp, [0; 4], [0; 8])),
            (Eqe::CqError { cqn, fault: CqFault::Overrun }, entry(0x04, 0, cq, [1, 0, 0, 0], [0; 8])),
            (Eqe::CqError { cqn, fault: CqFault::Access }, entry(0x04, 0, cq, [2, 0, 0, 0], [0; 8])),
            (qp_event(QpEvent::WqCatastrophic), entry(0x05, 0, qp, [0; 4], [0; 8])),
            (Eqe::LocalCatastrophic, entry(0x08, 0, [0; 4], [0; 4], [0; 8])),
            (Eqe::PortChange { port: 1, active: false }, entry(0x09, 1, [1, 0, 0, 0], [0; 4], [0; 8])),
            (Eqe::PortChange { port: 1, active: true }, entry(0x09, 4, [1, 0, 0, 0], [0; 4], [0; 8])),
            (command, entry(0x0a, 0, [0xee, 0xff, 0, 0], [0, 0, 0, 3], out_param)),
            (Eqe::EqOverflow, entry(0x0f, 0, [0; 4], [0; 4], [0; 8])),
            (qp_event(QpEvent::WqInvalidRequest), entry(0x10, 0, qp, [0; 4], [0; 8])),
            (qp_event(QpEvent::WqAccess), entry(0x11, 0, qp, [0; 4], [0; 8])),
        ] {
            assert_eq!(eqe.emit(), bytes, "{eqe:?}");
            assert_eq!(Eqe::parse(&bytes), Some(eqe));
        }
    }

    #[test]
    fn mask_bit_position_equals_event_type_code() {
        assert_eq!(EventType::WqAccess.mask(), 1 << 0x11);
        for code in 0..=255 {
            if let Some(event) = EventType::from_code(code) {
                assert_eq!(event.code(), code);
            }
        }
    }

    proptest! {
        #[test]
        fn any_parsed_eqe_round_trips(mut entry in prop::array::uniform32(any::<u8>()), code in 0u8..0x14) {
            let _ = Eqe::parse(&entry);
            entry[1] = code;
            entry[OWNER] = 0;
            if let Some(eqe) = Eqe::parse(&entry) {
                prop_assert_eq!(Eqe::parse(&eqe.emit()), Some(eqe));
            }
        }
    }
}
