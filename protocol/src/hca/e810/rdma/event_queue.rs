//! Completion event queues (CEQ) and the asynchronous event queue (AEQ).
//!
//! # Spec
//! E810 interface, sections 10.3, 12.4, 12.6 and 14.1.

use super::index::PbleIndex;
use super::queue_pair::QpState;
use crate::describe::{Code, Field, Visitor};
use crate::ids::Iova;
use crate::layout;

layout! {
    /// CQP WQE of "Create CEQ".
    pub struct CreateCeq[64] {
        /// Number of entries in the ring.
        @16[21:0]  entries: u32,
        @24[9:0]   ceq: u16,
        /// Whether interrupt moderation applies to the CEQ.
        @24[46]    moderated: bool,
        /// Whether a page list describes the ring.
        @24[47]    in_pages: bool,
        /// Address of the ring, if it is contiguous.
        @32        ring: Iova,
        /// First PBLE of the page list.
        @48[27:0]  first_page: PbleIndex,
        @56[23:8]  vsi: u16,
    }
}

layout! {
    /// CQP WQE of "Destroy CEQ".
    pub struct DestroyCeq[64] {
        @24[9:0]  ceq: u16,
    }
}

layout! {
    /// CQP WQE of "Create AEQ".
    pub struct CreateAeq[64] {
        /// Number of entries in the ring.
        @16[18:0]  entries: u32,
        /// Whether a page list describes the ring.
        @24[47]    in_pages: bool,
        /// Address of the ring, if it is contiguous.
        @32        ring: Iova,
        /// First PBLE of the page list.
        @48[27:0]  first_page: PbleIndex,
    }
}

layout! {
    /// An entry of a CEQ.
    pub struct CompletionEvent[8] {
        /// Cookie from "Create CQ", without its highest bit.
        [62:0]  cookie: u64 => Hex,
        /// Polarity, which toggles on each pass through the ring.
        [63]    valid: bool,
    }
}

layout! {
    /// An entry of the AEQ.
    pub struct AsyncEvent[16] {
        /// Completion context of the QP or CQ.
        @0         context: u64 => Hex,
        /// Bits 17:0 of the QP or CQ number.
        @8[17:0]   number_low: u32,
        /// Index of the WQE in quanta.
        @8[32:18]  wqe: u16,
        /// Whether events were lost. Drivers respond with a function reset.
        @8[33]     overflow: bool,
        @8[45:34]  code: EventCode as u16,
        /// Bit 18 of the QP or CQ number.
        @8[46]     number_high: u8,
        @8[53:50]  source: EventSource as u8,
        /// New state of the QP.
        @8[56:54]  state: QpState as u8,
        /// Polarity, which toggles on each pass through the ring.
        @8[63]     valid: bool,
    }
}

macro_rules! codes {
    ($(#[$meta:meta])* $type:ident($raw:ty) { $($(#[$doc:meta])* $name:ident = $code:literal $word:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[$doc])* #[allow(missing_docs)] $name,)*
            /// A code that the interface does not define.
            Other($raw),
        }

        impl From<$raw> for $type {
            fn from(code: $raw) -> Self {
                match code {
                    $($code => Self::$name,)*
                    other => Self::Other(other),
                }
            }
        }

        impl From<$type> for $raw {
            fn from(code: $type) -> Self {
                match code {
                    $($type::$name => $code,)*
                    $type::Other(code) => code,
                }
            }
        }

        impl $type {
            /// Returns the name used in traces.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($word),)*
                    Self::Other(_) => None,
                }
            }
        }

        impl Field for $type {
            fn show(&self, name: &str, to: &mut dyn Visitor) {
                Code(<$raw>::from(*self).into(), self.name()).show(name, to);
            }
        }
    };
}

codes! {
    /// Type of an asynchronous event.
    EventCode(u16) {
        /// The key is not allocated.
        KeyUnallocated = 0x102 "key_unallocated";
        /// The key's region is invalid.
        KeyInvalid = 0x103 "key_invalid";
        /// The window is associated with another QP.
        KeyQp = 0x104 "key_qp";
        /// The key belongs to another protection domain.
        KeyDomain = 0x105 "key_domain";
        /// The access exceeds the region.
        Bounds = 0x108 "bounds";
        /// The region does not permit the access.
        Rights = 0x109 "rights";
        /// A fast registration names a region that is already valid.
        FastRegisterValid = 0x10c "fast_register_valid";
        /// A fast registration names the key of a memory window.
        FastRegisterWindow = 0x10d "fast_register_window";
        /// A fast registration grants rights not permitted by the region.
        FastRegisterRights = 0x10e "fast_register_rights";
        /// A fast registration is longer than the region or has invalid pages.
        FastRegisterLength = 0x110 "fast_register_length";
        /// The peer is not allowed to invalidate the key.
        InvalidateRights = 0x112 "invalidate_rights";
        /// The region to invalidate has bound windows.
        InvalidateBound = 0x113 "invalidate_bound";
        /// The window is already bound.
        BindValid = 0x114 "bind_valid";
        /// The key to bind does not belong to a window.
        BindRegion = 0x115 "bind_region";
        /// The window grants rights not permitted by its region.
        BindRights = 0x118 "bind_rights";
        /// The window exceeds its region.
        BindBounds = 0x119 "bind_bounds";
        /// The window's region does not exist or is invalid.
        BindParent = 0x11a "bind_parent";
        /// The QP is not allowed to bind windows.
        BindDisabled = 0x11b "bind_disabled";
        /// The operation requires a privileged QP.
        NotPrivileged = 0x11c "not_privileged";
        /// The datagram exceeds the path MTU.
        DatagramTooLong = 0x132 "datagram_too_long";
        /// The address handle belongs to another protection domain.
        HandleDomain = 0x133 "handle_domain";
        CqOverflow = 0x203 "cq_overflow";
        /// A READ was posted to a QP that does not allow outstanding READs.
        ReadNotAllowed = 0x205 "read_not_allowed";
        /// The peer returned an "invalid request" NAK.
        RemoteInvalidRequest = 0x208 "remote_invalid_request";
        /// A send WQE has an unknown opcode.
        BadOperation = 0x20a "bad_operation";
        /// The peer returned a "remote access error" NAK.
        RemoteAccess = 0x20d "remote_access";
        /// The peer returned a "remote operational error" NAK.
        RemoteOperation = 0x20e "remote_operation";
        /// The message is longer than the receive WQE.
        MessageTooLong = 0x303 "message_too_long";
        /// The peer sent an unexpected request.
        UnexpectedRequest = 0x312 "unexpected_request";
        /// The peer sent an invalid response.
        BadResponse = 0x316 "bad_response";
        /// The address handle does not exist.
        NoHandle = 0x406 "no_handle";
        /// The transport retry count was exceeded.
        RetriesExceeded = 0x50a "retries_exceeded";
        /// The RNR retry count was exceeded.
        RnrRetriesExceeded = 0x50f "rnr_retries_exceeded";
        /// The queue can no longer be used.
        Catastrophic = 0x700 "catastrophic";
        /// The send queue is suspended or drained.
        Suspended = 0x900 "suspended";
    }
}

codes! {
    /// Object that an asynchronous event refers to.
    EventSource(u8) {
        ReceiveQueue = 1 "receive_queue";
        CompletionQueue = 2 "completion_queue";
        SendQueue = 5 "send_queue";
        /// A request from the peer.
        Inbound = 9 "inbound";
        /// An outbound READ response.
        OutboundResponse = 0xd "outbound_response";
    }
}

impl AsyncEvent {
    /// Creates an event for the QP or CQ with the given number.
    pub fn of(number: u32) -> Self {
        Self {
            number_low: number & 0x3_ffff,
            number_high: u8::from(number >> 18 & 1 != 0),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected layout is from section 12.6.
    #[test]
    fn async_event_matches_specified_layout() {
        let event = AsyncEvent {
            context: 0x1234,
            wqe: 3,
            code: EventCode::RetriesExceeded,
            source: EventSource::SendQueue,
            state: QpState::Error,
            valid: true,
            ..AsyncEvent::of(1 << 18 | 5)
        };
        let word = 1_u64 << 63 | 6 << 54 | 5 << 50 | 1 << 46 | 0x50a << 34 | 3 << 18 | 5;
        assert_eq!(event.emit(), *[0x1234_u64.to_le_bytes(), word.to_le_bytes()].as_flattened());
    }
}
