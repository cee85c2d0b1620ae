//! Builds the 40-byte header area in front of a received datagram.

use protocol::roce::{Encap, IpAddrs};

use crate::limits::GRH_BYTES;

const UDP: u8 = 17;

/// Next header value for InfiniBand transport in a GRH (IBTA volume 1, section 8.3.3).
const IBA: u8 = 0x1b;
const UDP_HEADER: u16 = 8;

/// Returns the GRH of a datagram received over IPv6, or `None` for a datagram received over IPv4. The GRH is the IPv6
/// header, rewritten as InfiniBand requires. `udp_len` is the length of the UDP datagram.
///
/// # Spec
/// IBTA volume 1, section 8.3; annex A17, section A17.3.2 (the IP header replaces the GRH).
pub(super) fn infiniband(encap: &Encap, udp_len: u16) -> Option<[u8; GRH_BYTES]> {
    let IpAddrs::V6 { .. } = encap.ip else { return None };
    let mut area = roce(encap, udp_len.saturating_sub(UDP_HEADER));
    area[6] = IBA;
    Some(area)
}

/// Returns the RoCEv2 content of the GRH area: the IPv6 header, or the IPv4 header in the last 20 bytes. `udp_len` is
/// the length of the UDP datagram.
///
/// # Spec
/// IBTA annex A17, section A17.4.5.1 (placement of the IP header in the receive buffer).
pub(super) fn roce(encap: &Encap, udp_len: u16) -> [u8; GRH_BYTES] {
    let mut area = [0; GRH_BYTES];
    match encap.ip {
        IpAddrs::V4 { src, dst } => {
            let header = &mut area[20..];
            header[0] = 0x45;
            header[1] = encap.traffic_class;
            header[2..4].copy_from_slice(&udp_len.saturating_add(20).to_be_bytes());
            header[4..6].copy_from_slice(&encap.fragment.id.to_be_bytes());
            header[6..8].copy_from_slice(&encap.fragment.flags.to_be_bytes());
            header[8] = encap.hop_limit;
            header[9] = UDP;
            header[12..16].copy_from_slice(&src.octets());
            header[16..20].copy_from_slice(&dst.octets());
            let sum = checksum(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        IpAddrs::V6 { src, dst } => {
            let word = 6 << 28 | u32::from(encap.traffic_class) << 20 | encap.flow_label.get();
            area[..4].copy_from_slice(&word.to_be_bytes());
            area[4..6].copy_from_slice(&udp_len.to_be_bytes());
            area[6] = UDP;
            area[7] = encap.hop_limit;
            area[8..24].copy_from_slice(&src.octets());
            area[24..40].copy_from_slice(&dst.octets());
        }
    }
    area
}

/// Returns the internet checksum (RFC 1071) of a header of even length.
fn checksum(header: &[u8]) -> u16 {
    let sum =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).expect("a sum of 20 words, folded twice, has 16 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_header_checksum_matches_known_example() {
        let header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(checksum(&header), 0xb861);
    }
}
