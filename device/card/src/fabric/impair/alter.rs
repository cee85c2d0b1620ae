//! Corrupts frames like a faulty wire, or marks them like a congested switch.

use protocol::net::checksum::Checksum;
use rand::{Rng, RngExt};

use super::summary::FrameSummary;

/// The ECN codepoint "Congestion Experienced" (RFC 3168, section 5).
const CE: u8 = 3;

/// Flips a random bit and returns the index of its byte, or `None` if the frame is too short. In a RoCE packet, the bit
/// belongs to the ICRC or is covered by it.
pub(super) fn corrupt(frame: &mut [u8], summary: &FrameSummary, rng: &mut impl Rng) -> Option<usize> {
    let len = frame.len().checked_sub(summary.body).filter(|len| *len > 0)?;
    let mut byte = summary.body + rng.random_range(0..len);
    // The ICRC does not cover byte 4 of the BTH, which holds FECN, BECN and reserved bits.
    if summary.bth.is_some() && byte == summary.body + 4 {
        byte -= 1;
    }
    *frame.get_mut(byte)? ^= 1 << rng.random_range(0..8_u32);
    Some(byte)
}

/// Sets the ECN field of an IP header to CE. The ICRC does not cover this field, but the IPv4 checksum does.
pub(super) fn mark_ce(frame: &mut [u8], summary: &FrameSummary) {
    let Some(ip) = &summary.ip else { return };
    let Some(header) = frame.get_mut(summary.ip_at..) else { return };
    if ip.src.is_ipv6() {
        // Traffic class: bits 27:20 of the first word, with ECN in 21:20.
        if let Some(byte) = header.get_mut(1) {
            *byte |= CE << 4;
        }
    } else if let Some(header) = header.first_chunk_mut::<20>() {
        header[1] |= CE;
        header[10..12].fill(0);
        let sum = Checksum::new().with(header).value();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}
