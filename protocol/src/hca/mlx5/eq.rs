//! Event queue contexts and the commands that create and query EQs.
//!
//! # Spec
//! mlx5 interface, sections 5.3 and 8.1.

use super::eqe::EventMask;
use crate::describe::{Field, Visitor, show_flags};
use crate::ids::UarIndex;
use crate::layout;

layout! {
    /// Context of an EQ.
    pub struct EqContext[64] big_endian {
        /// Status of the EQ; 0 means that no error has occurred.
        @0x00[31:28]  status: u8,
        /// Whether overruns are ignored instead of reported.
        @0x00[17]     ignore_overrun: bool,
        @0x00[11:8]   state: u8,
        /// Offset of the first entry in its page; see [`super::page_offset`].
        @0x08[11:6]   page_offset: u8,
        /// Log2 of the number of entries.
        @0x0c[28:24]  log_entries: u8,
        /// UAR page that contains the EQ's doorbells.
        @0x0c[23:0]   uar: UarIndex,
        @0x14[11:0]   vector: u16,
        /// Page size of the ring, `4096 << log_page_size` bytes.
        @0x18[28:24]  log_page_size: u8,
        /// Number of entries that the driver has consumed, modulo 2^24. Reported by QUERY_EQ.
        @0x28[23:0]   consumer: u32,
        /// Number of entries that the device has written, modulo 2^24. Reported by QUERY_EQ.
        @0x2c[23:0]   producer: u32,
    }
}

layout! {
    /// Fixed part of the CREATE_EQ input. The page addresses of the ring follow.
    pub struct CreateEq[0x110] big_endian {
        @0x10  context: EqContext,
        /// Event mask. If bit n of word 0 is set, the EQ receives events of type n.
        @0x58  events: [u64; 4] => events,
    }
}

fn events(mask: [u64; 4]) -> EventMask {
    EventMask::from_bits_retain(mask[0])
}

impl CreateEq {
    /// Returns the event types that the EQ receives. Completions go to their CQ's EQ, regardless of the mask.
    pub fn mask(&self) -> EventMask {
        events(self.events)
    }
}

impl Field for EventMask {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        show_flags(self, name, to);
    }
}

layout! {
    /// Output of the QUERY_EQ command.
    pub struct QueriedEq[272] big_endian {
        @0x10  context: EqContext,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// Contexts of the asynchronous EQ in golden trace ib-1 and of the completion EQ in golden trace ib-2.
    #[test]
    fn eq_contexts_match_traces() {
        let input = words::<{ CreateEq::LEN }>(&[(0x1c, 0x0d00_0010), (0x5c, 0x001f_02be)]);
        let create = CreateEq::parse(&input);
        assert_eq!(create.context.log_entries, 13);
        assert_eq!(create.context.uar, UarIndex::new(0x10));
        assert_eq!(create.mask().bits(), 0x1f_02be);
        assert_eq!(create.emit(), input);
        let context = EqContext::parse(&words(&[(0x0c, 0x0b00_0010), (0x14, 1)]));
        assert_eq!((context.log_entries, context.vector), (11, 1));
    }

    #[test]
    fn eq_context_fields_are_at_specified_offsets() {
        let context = EqContext {
            status: 9,
            ignore_overrun: true,
            state: 10,
            page_offset: 33,
            log_entries: 8,
            uar: UarIndex::new(0x11),
            vector: 0x123,
            log_page_size: 4,
            consumer: 0x12_3456,
            producer: 0x65_4321,
        };
        let expected = words(&[
            (0x00, 0x9002_0a00),
            (0x08, 33 << 6),
            (0x0c, 0x0800_0011),
            (0x14, 0x123),
            (0x18, 0x0400_0000),
            (0x28, 0x12_3456),
            (0x2c, 0x65_4321),
        ]);
        assert_eq!(context.emit(), expected);
        assert_eq!(EqContext::parse(&expected), context);
    }
}
