//! Event queue entries (EQE).
//!
//! # Spec
//! mlx5 interface, section 8.

use bitflags::bitflags;
use thiserror::Error;

use super::code::codes;
use crate::describe::{Describe, Field as _, Hex, Visitor};
pub use crate::hca::event::CqFault;
use crate::ids::{Cqn, Srqn};
use crate::layout;

/// Length of an EQE in bytes.
pub const LEN: usize = 64;
/// Offset, within an entry, of the byte that contains the owner bit. The device writes this byte last.
pub const OWNER_BYTE: usize = 0x3f;

bitflags! {
    /// Set of event types that an EQ receives. Bit n selects type n.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct EventMask: u64 {
        /// A path has migrated.
        const PATH_MIGRATED = 1 << 0x01;
        /// A QP in RTR has received a packet.
        const COMMUNICATION_ESTABLISHED = 1 << 0x02;
        /// A send queue has drained.
        const SQ_DRAINED = 1 << 0x03;
        /// A CQ has failed.
        const CQ_ERROR = 1 << 0x04;
        /// A work queue could not be read.
        const WQ_CATASTROPHIC = 1 << 0x05;
        /// A path migration has failed.
        const PATH_MIGRATION_FAILED = 1 << 0x07;
        /// The device has an internal error.
        const INTERNAL_ERROR = 1 << 0x08;
        /// The state of a port has changed.
        const PORT_CHANGE = 1 << 0x09;
        /// A command has completed.
        const COMMAND = 1 << 0x0a;
        /// The device requests or returns pages.
        const PAGE_REQUEST = 1 << 0x0b;
        /// A page fault has occurred.
        const PAGE_FAULT = 1 << 0x0c;
        /// The virtual port has changed.
        const VPORT_CHANGE = 1 << 0x0d;
        /// The peer has sent an invalid request.
        const INVALID_REQUEST = 1 << 0x10;
        /// A request has violated access rights.
        const ACCESS_VIOLATION = 1 << 0x11;
        /// An SRQ could not be read.
        const SRQ_CATASTROPHIC = 1 << 0x12;
        /// A QP in the error state has consumed its last WQE.
        const LAST_WQE_REACHED = 1 << 0x13;
        /// An SRQ has fallen below its limit.
        const SRQ_LIMIT = 1 << 0x14;
        /// A port module was plugged or unplugged.
        const PORT_MODULE = 1 << 0x16;
        const _ = !0;
    }
}

codes! {
    /// Type of a work queue event.
    pub enum QueueEvent(u8) {
        /// The alternate path is in use.
        PathMigrated = 0x01 "path_migrated",
        /// The first packet arrived while the QP was in RTR.
        CommunicationEstablished = 0x02 "communication_established",
        /// The send queue is drained.
        SqDrained = 0x03 "sq_drained",
        /// The work queue could not be read.
        Catastrophic = 0x05 "wq_catastrophic",
        /// The path could not migrate.
        PathMigrationFailed = 0x07 "path_migration_failed",
        /// The device rejected an invalid request from the peer.
        InvalidRequest = 0x10 "invalid_request",
        /// The device rejected a peer's request that lacked access rights.
        AccessViolation = 0x11 "access_violation",
        /// The QP will not consume any more receive WQEs from its SRQ.
        LastWqeReached = 0x13 "last_wqe_reached",
    }
}

codes! {
    /// Kind of queue that an event refers to.
    pub enum QueueKind(u8) {
        Qp = 0 "qp",
        /// A receive queue object.
        Rq = 1 "rq",
        /// A send queue object.
        Sq = 2 "sq",
    }
}

codes! {
    /// Kind of port change, given by the event subtype.
    pub enum PortChange(u8) {
        /// The port is down.
        Down = 1 "down",
        /// The port is active.
        Up = 4 "up",
        /// The port is initialised.
        Initialized = 5 "initialized",
        /// The port's LID has changed.
        Lid = 6 "lid",
        /// The P_Key table has changed.
        Pkey = 7 "pkey",
        /// The GUID table has changed.
        Guid = 8 "guid",
        /// The subnet manager requests reregistration.
        ClientReregister = 9 "client_reregister",
    }
}

/// An event queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Eqe {
    /// 00h: a CQ has a new CQE.
    Completion(Cqn),
    /// A work queue event, with one of the type codes in [`QueueEvent`].
    Queue {
        event: QueueEvent,
        kind: QueueKind,
        /// Queue number, 24 bits.
        number: u32,
    },
    /// 04h: a CQ has failed.
    CqError(Cqn, CqFault),
    /// 08h: the device has failed.
    InternalError,
    /// 09h: a port has changed.
    Port {
        /// Port number, four bits, starting at 1.
        port: u8,
        change: PortChange,
    },
    /// 0Ah: commands have completed. Bit i is set if the command in slot i has completed.
    Command(u32),
    /// 0Bh: the device requests pages or, if the number is negative, offers to return pages.
    PageRequest {
        /// Function that requires the pages, always 0.
        function: u16,
        pages: i32,
    },
    /// 12h: an SRQ could not be read.
    SrqCatastrophic(Srqn),
    /// 14h: the number of entries in an SRQ has fallen below its limit.
    SrqLimit(Srqn),
}

/// Reason why an EQE cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EqeError {
    /// This device does not send events of this type.
    #[error("unknown event type {0:#04x}")]
    Type(u8),
    /// A field of the event data has an unknown code.
    #[error("unknown {what} {code:#x} in an event")]
    Code {
        /// Name of the field.
        what: &'static str,
        /// Unknown code in the field.
        code: u8,
    },
}

layout! {
    struct Raw[64] big_endian {
        @0x00[23:16]  kind: u8,
        @0x00[7:0]    subtype: u8,
        @0x20         word_20: u32,
        @0x24         word_24: u32,
        @0x28[31:24]  byte_28: u8,
        @0x28[7:0]    byte_2b: u8,
        @0x34[31:24]  queue_kind: u8,
        @0x38[23:0]   number: u32,
        @0x3c[0]      owner: bool,
    }
}

impl Eqe {
    /// Returns the code of the event type, which is also its bit number in [`EventMask`].
    pub const fn event_type(&self) -> u8 {
        match self {
            Self::Completion(_) => 0x00,
            Self::Queue { event, .. } => event.code(),
            Self::CqError(..) => 0x04,
            Self::InternalError => 0x08,
            Self::Port { .. } => 0x09,
            Self::Command(_) => 0x0a,
            Self::PageRequest { .. } => 0x0b,
            Self::SrqCatastrophic(_) => 0x12,
            Self::SrqLimit(_) => 0x14,
        }
    }

    /// Returns the name that appears in traces.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Completion(_) => "completion",
            Self::Queue { event, .. } => event.name(),
            Self::CqError(..) => "cq_error",
            Self::InternalError => "internal_error",
            Self::Port { .. } => "port_change",
            Self::Command(_) => "command",
            Self::PageRequest { .. } => "page_request",
            Self::SrqCatastrophic(_) => "srq_catastrophic",
            Self::SrqLimit(_) => "srq_limit",
        }
    }

    /// Returns the event's bit in [`EventMask`]. An EQ receives the event only if its mask contains this bit.
    /// Completions have no bit; they go to their CQ's EQ.
    pub const fn mask(&self) -> EventMask {
        match self {
            Self::Completion(_) => EventMask::empty(),
            _ => EventMask::from_bits_retain(1 << self.event_type()),
        }
    }

    /// Returns the EQE in wire format, with the given owner bit.
    pub fn emit(&self, owner: bool) -> [u8; LEN] {
        let mut raw = Raw { kind: self.event_type(), owner, ..Raw::default() };
        match *self {
            Self::Completion(cqn) => raw.number = cqn.get(),
            Self::Queue { kind, number, .. } => {
                raw.queue_kind = kind.code();
                raw.number = number;
            }
            Self::CqError(cqn, fault) => {
                raw.word_20 = cqn.get();
                raw.byte_2b = fault.code();
            }
            Self::InternalError => {}
            Self::Port { port, change } => {
                raw.subtype = change.code();
                raw.byte_28 = port << 4;
            }
            Self::Command(slots) => raw.word_20 = slots,
            Self::PageRequest { function, pages } => {
                raw.word_20 = function.into();
                raw.word_24 = pages.cast_unsigned();
            }
            Self::SrqCatastrophic(srqn) | Self::SrqLimit(srqn) => raw.number = srqn.get(),
        }
        raw.emit()
    }

    /// Parses an entry. Returns the event and the owner bit.
    ///
    /// # Errors
    /// Fails if the event type or a code is one that this device never writes.
    pub fn parse(entry: &[u8; LEN]) -> Result<(Self, bool), EqeError> {
        let raw = Raw::parse(entry);
        let unknown = |what, code| EqeError::Code { what, code };
        let [_, _, high, low] = raw.word_20.to_be_bytes();
        let eqe = match raw.kind {
            0x00 => Self::Completion(Cqn::new(raw.number)),
            0x04 => Self::CqError(
                Cqn::new(raw.word_20),
                CqFault::from_code(raw.byte_2b).ok_or_else(|| unknown("CQ fault", raw.byte_2b))?,
            ),
            0x08 => Self::InternalError,
            0x09 => Self::Port {
                port: raw.byte_28 >> 4,
                change: PortChange::from_code(raw.subtype)
                    .ok_or_else(|| unknown("port change", raw.subtype))?,
            },
            0x0a => Self::Command(raw.word_20),
            0x0b => Self::PageRequest {
                function: u16::from_be_bytes([high, low]),
                pages: raw.word_24.cast_signed(),
            },
            0x12 => Self::SrqCatastrophic(Srqn::new(raw.number)),
            0x14 => Self::SrqLimit(Srqn::new(raw.number)),
            code => Self::Queue {
                event: QueueEvent::from_code(code).ok_or(EqeError::Type(code))?,
                kind: QueueKind::from_code(raw.queue_kind)
                    .ok_or_else(|| unknown("queue kind", raw.queue_kind))?,
                number: raw.number,
            },
        };
        Ok((eqe, raw.owner))
    }
}

impl Describe for Eqe {
    fn describe(&self, to: &mut dyn Visitor) {
        match *self {
            Self::Completion(cqn) => cqn.show("cqn", to),
            Self::Queue { kind, number, .. } => {
                kind.show("kind", to);
                Hex(number).show("number", to);
            }
            Self::CqError(cqn, fault) => {
                cqn.show("cqn", to);
                fault.show("fault", to);
            }
            Self::InternalError => {}
            Self::Port { port, change } => {
                port.show("port", to);
                change.show("change", to);
            }
            Self::Command(slots) => Hex(slots).show("slots", to),
            Self::PageRequest { function, pages } => {
                function.show("function", to);
                format_args!("{pages}").show("pages", to);
            }
            Self::SrqCatastrophic(srqn) | Self::SrqLimit(srqn) => srqn.show("srqn", to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    fn check(eqe: Eqe, expected: &[(usize, u32)]) {
        let expected = words(expected);
        assert_eq!(eqe.emit(false), expected, "{eqe:?}");
        assert_eq!(Eqe::parse(&expected), Ok((eqe, false)));
        let mut owned = expected;
        owned[OWNER_BYTE] = 1;
        assert_eq!(eqe.emit(true), owned);
        assert_eq!(Eqe::parse(&owned), Ok((eqe, true)));
    }

    #[test]
    fn eqe_fields_are_at_specified_offsets() {
        // Example from section 22, for the CQ of the UMR QP.
        check(Eqe::Completion(Cqn::new(0x43)), &[(0x38, 0x43)]);
        check(Eqe::CqError(Cqn::new(0x43), CqFault::Access), &[(0, 0x4_0000), (0x20, 0x43), (0x28, 2)]);
        check(Eqe::InternalError, &[(0, 0x8_0000)]);
        let up = Eqe::Port { port: 1, change: PortChange::Up };
        check(up, &[(0, 0x9_0004), (0x28, 0x1000_0000)]);
        check(Eqe::Command(0x8000_0001), &[(0, 0xa_0000), (0x20, 0x8000_0001)]);
        let offer = Eqe::PageRequest { function: 3, pages: -16 };
        check(offer, &[(0, 0xb_0000), (0x20, 3), (0x24, 0xffff_fff0)]);
        check(Eqe::SrqCatastrophic(Srqn::new(0x11)), &[(0, 0x12_0000), (0x38, 0x11)]);
        check(Eqe::SrqLimit(Srqn::new(0x11)), &[(0, 0x14_0000), (0x38, 0x11)]);
        for event in QueueEvent::ALL.iter().copied() {
            let eqe = Eqe::Queue { event, kind: QueueKind::Sq, number: 0x4002 };
            check(eqe, &[(0, u32::from(event.code()) << 16), (0x34, 0x0200_0000), (0x38, 0x4002)]);
        }
    }

    /// Mask of the asynchronous EQ in golden trace ib-1.
    #[test]
    fn eq_mask_selects_event_types() {
        let mask = EventMask::from_bits_retain(0x1f_02be);
        assert!(mask.contains(Eqe::SrqLimit(Srqn::new(1)).mask()));
        assert!(mask.contains(Eqe::Port { port: 1, change: PortChange::Down }.mask()));
        assert!(!mask.contains(Eqe::Command(1).mask()));
        assert_eq!(Eqe::Completion(Cqn::new(1)).mask(), EventMask::empty());
    }

    #[test]
    fn unknown_events_are_rejected() {
        assert_eq!(Eqe::parse(&words(&[(0, 0x0c_0000)])), Err(EqeError::Type(0x0c)));
        let change = EqeError::Code { what: "port change", code: 2 };
        assert_eq!(Eqe::parse(&words(&[(0, 0x09_0002)])), Err(change));
        assert!(matches!(Eqe::parse(&words(&[(0, 0x04_0000)])), Err(EqeError::Code { .. })));
        assert!(Eqe::parse(&words(&[(0, 0x13_0000), (0x34, 0x0300_0000)])).is_err());
    }
}
