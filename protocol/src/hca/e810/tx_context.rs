//! Transmit queue context: part of the command that adds the queue.
//!
//! # Spec
//! E810 interface, section 8.1.

use super::ring_address::RingAddress;
use crate::layout;

layout! {
    /// Context of a transmit queue.
    pub struct TxContext[22] {
        [56:0]     ring: RingAddress as u64,
        /// Port that sends the frames.
        [59:57]    port: u8,
        /// Type of the function; 2 is a physical function.
        [79:78]    function_kind: u8,
        /// Source VSI of the frames.
        [89:80]    vsi: u16,
        /// Whether frames can request a transmit timestamp.
        [90]       timestamps: bool,
        /// Queue number within the function.
        [127:114]  queue_in_function: u16,
        /// Number of descriptors in the ring.
        [147:135]  ring_len: u16,
        /// Whether segmentation offload (TSO) is enabled.
        [152]      segmentation: bool,
        /// Queue number among the queues with segmentation offload.
        [163:153]  segmentation_queue: u16,
        /// Whether the device marks descriptors as done rather than writing to a completion queue.
        [164]      legacy: bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Iova;

    fn ring(first: u64) -> RingAddress {
        RingAddress::new(Iova::new(first))
    }

    fn context(hex: &str) -> TxContext {
        let mut bytes = [0; TxContext::LEN];
        for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
        }
        TxContext::parse(&bytes)
    }

    /// Example from section 16.3, recorded from a driver.
    #[test]
    fn parses_queue_context_example() {
        let sent = context("a0928e00000000000080010400000000008000011000");
        let expected = TxContext {
            ring: ring(0x4749_5000),
            port: 0,
            function_kind: 2,
            vsi: 1,
            timestamps: true,
            queue_in_function: 0,
            ring_len: 256,
            segmentation: true,
            segmentation_queue: 0,
            legacy: true,
        };
        assert_eq!(sent, expected);
    }

    /// Two more contexts recorded from drivers, one for a queue of a second VSI and one from a different kernel
    /// version.
    #[test]
    fn parses_more_recorded_contexts() {
        let second = context("00908e00000000000080020000000000008000031000");
        assert_eq!((second.ring, second.vsi, second.ring_len), (ring(0x4748_0000), 2, 256));
        assert_eq!((second.segmentation_queue, second.timestamps), (1, false));
        let other = context("a0680800000000000080010400000000008000011000");
        assert_eq!((other.ring, other.vsi, other.ring_len), (ring(0x0434_5000), 1, 256));
    }
}
