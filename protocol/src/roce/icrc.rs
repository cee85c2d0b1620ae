//! Invariant CRC (ICRC) of RoCEv2.
//!
//! The ICRC is the Ethernet CRC-32 over eight bytes of ones (in place of InfiniBand's LRH), the IP header, the UDP
//! header, the BTH, and everything after the BTH up to the ICRC. Fields that change in transit are replaced with ones:
//!
//! - in IPv4: TOS, TTL and checksum,
//! - in IPv6: traffic class, flow label and hop limit,
//! - in UDP: the checksum,
//! - in the BTH: byte 4 (FECN, BECN, reserved).
//!
//! The ICRC is sent with its least significant byte first.
//!
//! # Spec
//! IBTA volume 1, section 7.8.1 (ICRC) and annex A17 (RoCEv2).

use zerocopy::FromBytes;

use super::bth::RawBth;
use crate::net::ipv4::RawIpv4;
use crate::net::ipv6::RawIpv6;
use crate::net::udp::RawUdp;

/// Length of the ICRC field in bytes.
pub const ICRC_LEN: usize = 4;

const BTH_LEN: usize = size_of::<RawBth>();

/// Block size of the CRC implementation in bytes. A partial block at the end is processed byte by byte.
const BLOCK: usize = 16;

/// Size in bytes of the buffer in which fields are masked. A short packet is copied to it in full. For a longer packet,
/// only the headers and a few payload bytes are copied, which leaves a whole number of payload blocks.
const COPIED: usize = 8 * BLOCK;
const _: () = assert!(size_of::<RawIpv6>() + size_of::<RawUdp>() + BTH_LEN + BLOCK <= COPIED);

/// CRC register after eight bytes of ones.
const REGISTER: u32 = !0x2144_df1c;

/// Computes the ICRC of a packet. `ip_and_udp` contains the headers as sent, and `transport` contains everything from
/// the BTH up to the ICRC. If a slice is too short for its headers, the result is unspecified.
pub fn icrc(ip_and_udp: &[u8], transport: &[u8]) -> u32 {
    let head_len = match ip_and_udp.len() + transport.len() {
        ..=COPIED => transport.len(),
        _ => BTH_LEN + transport.len().saturating_sub(BTH_LEN) % BLOCK,
    };
    let mut copy = [0; COPIED];
    let start = COPIED.checked_sub(ip_and_udp.len() + head_len);
    let (Some(start), Some((head, rest))) = (start, transport.split_at_checked(head_len)) else { return 0 };
    let (_, masked) = copy.split_at_mut(start);
    let (to_ip_and_udp, to_head) = masked.split_at_mut(ip_and_udp.len());
    to_ip_and_udp.copy_from_slice(ip_and_udp);
    to_head.copy_from_slice(head);

    let udp = if ip_and_udp.len() == size_of::<RawIpv4>() + size_of::<RawUdp>() {
        RawIpv4::mut_from_prefix(to_ip_and_udp).ok().map(|(ip, udp)| {
            ip.tos = 0xff;
            ip.ttl = 0xff;
            ip.checksum = 0xffff.into();
            udp
        })
    } else {
        RawIpv6::mut_from_prefix(to_ip_and_udp).ok().map(|(ip, udp)| {
            ip.flow = ip.flow.with_traffic_class(0xff).with_label(0xf_ffff);
            ip.hop_limit = 0xff;
            udp
        })
    };
    if let Some(Ok((udp, _))) = udp.map(RawUdp::mut_from_prefix) {
        udp.checksum = 0xffff.into();
    }
    if let Some(congestion_bits) = to_head.get_mut(4) {
        *congestion_bits = 0xff;
    }

    // If the register starts at 0, leading zeros do not change the CRC and can pad the first block. crc32fast takes the
    // complement of the register, so `!0` below means 0. Because a CRC is linear, XORing `REGISTER` into the first four
    // bytes has the same effect as starting with it.
    masked.iter_mut().zip(REGISTER.to_le_bytes()).for_each(|(byte, of_register)| *byte ^= of_register);
    let mut hasher = crc32fast::Hasher::new_with_initial(!0);
    hasher.update(copy.get(start / BLOCK * BLOCK..).unwrap_or_default());
    if !rest.is_empty() {
        hasher.update(rest);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_register_matches_eight_bytes_of_ones() {
        let mut ones = crc32fast::Hasher::new();
        ones.update(&[0xff; 8]);
        assert_eq!(REGISTER, !ones.finalize());
    }

    /// Reference implementation, which replaces the variant fields with ones and computes the CRC bit by bit.
    fn by_definition(ip_and_udp: &[u8], transport: &[u8]) -> u32 {
        let masked: &[(usize, u8)] = match ip_and_udp.len() {
            28 => &[(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff), (26, 0xff), (27, 0xff), (32, 0xff)],
            _ => &[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff), (46, 0xff), (47, 0xff), (52, 0xff)],
        };
        let mut bytes = [ip_and_udp, transport].concat();
        masked.iter().for_each(|&(at, ones)| bytes[at] |= ones);
        let crc = [&[0xff; 8], &bytes[..]].concat().iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0xedb8_8320))
        });
        !crc
    }

    #[test]
    fn icrc_matches_definition_for_all_lengths() {
        for headers in [28, 48] {
            for len in (12..300).chain([1036, 4108, 4124, 4125]) {
                let bytes: Vec<u8> =
                    (0u32..).map(|n| n.wrapping_mul(0x9e37).to_be_bytes()[2]).take(headers + len).collect();
                let (ip_and_udp, transport) = bytes.split_at(headers);
                assert_eq!(
                    icrc(ip_and_udp, transport),
                    by_definition(ip_and_udp, transport),
                    "{headers}, {len}"
                );
            }
        }
    }

    #[test]
    fn short_slices_do_not_panic() {
        for (headers, len) in [(0, 0), (0, 11), (28, 3), (129, 2), (200, 0), (60, 4000)] {
            icrc(&vec![0; headers], &vec![0; len]);
        }
    }
}
