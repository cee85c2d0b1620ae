//! Stateless NIC offloads, independent of any device interface.
//!
//! A front-end translates its descriptors into requests to this module and translates the results into descriptor
//! write-backs. Frames are byte slices. Their headers are defined in `protocol::net`.

pub mod flow_hash;
pub mod offload;
pub mod receive;
pub mod segmentation;
pub mod vlan;

/// Minimum frame length without the frame check sequence: IEEE 802.3-2022, clause 3.2.8.
const MIN_FRAME_LEN: usize = 60;

/// Pads the frame that starts at `start` to the Ethernet minimum.
pub fn pad(out: &mut Vec<u8>, start: usize) {
    out.resize(out.len().max(start + MIN_FRAME_LEN), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_frames_are_padded() {
        for (len, padded) in [(0, 60), (59, 60), (60, 60), (61, 61)] {
            let mut out = vec![0xee; 3 + len];
            pad(&mut out, 3);
            assert_eq!(out.len(), 3 + padded);
            assert!(out[3 + len..].iter().all(|byte| *byte == 0));
        }
    }
}
