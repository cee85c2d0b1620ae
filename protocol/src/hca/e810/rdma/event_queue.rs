//! Event queues: of completion queues (CEQ), and of everything else that happens by itself (AEQ).
//!
//! # Spec
//! E810 interface, sections 10.3, 12.4, 12.6 and 14.1.

use super::index::PbleIndex;
use super::queue_pair::QpState;
use crate::describe::{Code, Field, Visitor};
use crate::ids::Iova;
use crate::layout;

layout! {
    /// "Create CEQ".
    pub struct CreateCeq[64] {
        /// Entries of its ring.
        @16[21:0]  entries: u32,
        /// Which one.
        @24[9:0]   ceq: u16,
        /// Its interrupts are moderated.
        @24[46]    moderated: bool,
        /// The ring lies in pages.
        @24[47]    in_pages: bool,
        /// The ring, if it is contiguous.
        @32        ring: Iova,
        /// The first PBLE of its pages.
        @48[27:0]  first_page: PbleIndex,
        /// Its VSI.
        @56[23:8]  vsi: u16,
    }
}

layout! {
    /// "Destroy CEQ".
    pub struct DestroyCeq[64] {
        /// Which one.
        @24[9:0]  ceq: u16,
    }
}

layout! {
    /// "Create AEQ".
    pub struct CreateAeq[64] {
        /// Entries of its ring.
        @16[18:0]  entries: u32,
        /// The ring lies in pages.
        @24[47]    in_pages: bool,
        /// The ring, if it is contiguous.
        @32        ring: Iova,
        /// The first PBLE of its pages.
        @48[27:0]  first_page: PbleIndex,
    }
}

layout! {
    /// Entry of a CEQ.
    pub struct CompletionEvent[8] {
        /// That of "create CQ", without its highest bit.
        [62:0]  cookie: u64 => Hex,
        /// The polarity of the ring's current round.
        [63]    valid: bool,
    }
}

layout! {
    /// Entry of the AEQ.
    pub struct AsyncEvent[16] {
        /// Context of the queue pair or completion queue that it is about.
        @0         context: u64 => Hex,
        /// Bits 17 to 0 of its number.
        @8[17:0]   number_low: u32,
        /// The WQE, in quanta.
        @8[32:18]  wqe: u16,
        /// Events were lost. Drivers reset the function then.
        @8[33]     overflow: bool,
        /// What happened.
        @8[45:34]  code: EventCode as u16,
        /// Bit 18 of the number.
        @8[46]     number_high: u8,
        /// What it happened to.
        @8[53:50]  source: EventSource as u8,
        /// State of the queue pair from now on.
        @8[56:54]  state: QpState as u8,
        /// The polarity of the ring's current round.
        @8[63]     valid: bool,
    }
}

macro_rules! codes {
    ($(#[$meta:meta])* $type:ident($raw:ty) { $($(#[$doc:meta])* $name:ident = $code:literal $word:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[$doc])* $name,)*
            /// None of them.
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
            /// The word for it.
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
    /// What an asynchronous event tells.
    EventCode(u16) {
        /// A key is of no region.
        KeyUnallocated = 0x102 "key_unallocated";
        /// A key is of a region that is invalid for now.
        KeyInvalid = 0x103 "key_invalid";
        /// A window is another queue pair's.
        KeyQp = 0x104 "key_qp";
        /// A key is of another protection domain.
        KeyDomain = 0x105 "key_domain";
        /// An access leaves its region.
        Bounds = 0x108 "bounds";
        /// A region does not permit an access.
        Rights = 0x109 "rights";
        /// A fast registration is of a region that is valid.
        FastRegisterValid = 0x10c "fast_register_valid";
        /// A fast registration is of a window.
        FastRegisterWindow = 0x10d "fast_register_window";
        /// A fast registration grants what the region does not permit.
        FastRegisterRights = 0x10e "fast_register_rights";
        /// A fast registration is longer than its region can be, or its pages make no sense.
        FastRegisterLength = 0x110 "fast_register_length";
        /// A peer invalidates what it may not.
        InvalidateRights = 0x112 "invalidate_rights";
        /// What is invalidated has windows.
        InvalidateBound = 0x113 "invalidate_bound";
        /// A window is bound that is bound already.
        BindValid = 0x114 "bind_valid";
        /// What is bound is no window.
        BindRegion = 0x115 "bind_region";
        /// A window grants what its region does not permit.
        BindRights = 0x118 "bind_rights";
        /// A window leaves its region.
        BindBounds = 0x119 "bind_bounds";
        /// The region of a window is none, or is invalid.
        BindParent = 0x11a "bind_parent";
        /// The queue pair may not bind windows.
        BindDisabled = 0x11b "bind_disabled";
        /// The queue pair may not do this.
        NotPrivileged = 0x11c "not_privileged";
        /// A datagram is longer than the path's packets.
        DatagramTooLong = 0x132 "datagram_too_long";
        /// An address handle is of another protection domain.
        HandleDomain = 0x133 "handle_domain";
        /// A completion queue is full.
        CqOverflow = 0x203 "cq_overflow";
        /// A read, of a queue pair that may have none outstanding.
        ReadNotAllowed = 0x205 "read_not_allowed";
        /// A peer answered "invalid request".
        RemoteInvalidRequest = 0x208 "remote_invalid_request";
        /// A send request has an unknown operation.
        BadOperation = 0x20a "bad_operation";
        /// A peer answered "remote access error".
        RemoteAccess = 0x20d "remote_access";
        /// A peer answered "remote operational error".
        RemoteOperation = 0x20e "remote_operation";
        /// A message is longer than the receive it comes into.
        MessageTooLong = 0x303 "message_too_long";
        /// A request of a peer makes no sense here.
        UnexpectedRequest = 0x312 "unexpected_request";
        /// A response makes no sense.
        BadResponse = 0x316 "bad_response";
        /// There is no such address handle.
        NoHandle = 0x406 "no_handle";
        /// A peer does not answer.
        RetriesExceeded = 0x50a "retries_exceeded";
        /// A peer has no receive.
        RnrRetriesExceeded = 0x50f "rnr_retries_exceeded";
        /// The queue has failed as a whole.
        Catastrophic = 0x700 "catastrophic";
        /// The send queue is suspended, or drained.
        Suspended = 0x900 "suspended";
    }
}

codes! {
    /// What an asynchronous event happened to.
    EventSource(u8) {
        /// The receive queue.
        ReceiveQueue = 1 "receive_queue";
        /// A completion queue.
        CompletionQueue = 2 "completion_queue";
        /// The send queue.
        SendQueue = 5 "send_queue";
        /// A request of the peer's.
        Inbound = 9 "inbound";
        /// A response to a read of the peer's.
        OutboundResponse = 0xd "outbound_response";
    }
}

impl AsyncEvent {
    /// An event of a queue pair or completion queue.
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

    /// The words of section 12.6.
    #[test]
    fn an_event_has_its_fields_in_their_places() {
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
