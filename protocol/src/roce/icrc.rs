//! The invariant CRC of RoCEv2.
//!
//! CRC-32 of Ethernet over eight bytes of ones (where InfiniBand has its LRH), the IP header, the UDP header, the BTH
//! and everything up to the ICRC, with the fields that change on the way taken as ones: TOS, TTL and checksum of IPv4;
//! traffic class, flow label and hop limit of IPv6; the UDP checksum; byte 4 of the BTH (FECN, BECN, reserved). It is
//! sent least significant byte first.
//!
//! # Spec
//! IBTA volume 1, section 7.8.1 (ICRC) and annex A17 (RoCEv2).

use zerocopy::FromBytes;

use super::bth::RawBth;
use crate::net::ipv4::RawIpv4;
use crate::net::ipv6::RawIpv6;
use crate::net::udp::RawUdp;

/// Bytes of the ICRC field.
pub const ICRC_LEN: usize = 4;

const BTH_LEN: usize = size_of::<RawBth>();

/// State of the CRC after eight bytes of ones.
fn seeded() -> crc32fast::Hasher {
    const CRC_OF_EIGHT_FF: u32 = 0x2144_df1c;
    crc32fast::Hasher::new_with_initial_len(CRC_OF_EIGHT_FF, 8)
}

/// ICRC of a packet: `ip_and_udp` are the headers as sent, `transport` everything from the BTH up to the ICRC. Nothing
/// sent over RoCEv2 lacks one of these headers; for slices too short to have them the result means nothing.
pub fn icrc(ip_and_udp: &[u8], transport: &[u8]) -> u32 {
    // The masked headers are a small copy, so that the CRC runs over two slices only.
    let mut masked = [0; size_of::<RawIpv6>() + size_of::<RawUdp>() + BTH_LEN];
    let (bth, rest) = transport.split_at_checked(BTH_LEN).unwrap_or((transport, &[]));
    let header_len = ip_and_udp.len() + bth.len();
    let Some(headers) = masked.get_mut(..header_len) else { return 0 };
    let (to_ip_and_udp, to_bth) = headers.split_at_mut(ip_and_udp.len());
    to_ip_and_udp.copy_from_slice(ip_and_udp);
    to_bth.copy_from_slice(bth);

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
    if let Some(congestion_bits) = to_bth.get_mut(4) {
        *congestion_bits = 0xff;
    }

    let mut hasher = seeded();
    hasher.update(headers);
    hasher.update(rest);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    #[test]
    fn seed_is_the_crc_of_eight_bytes_of_ones() {
        let mut plain = crc32fast::Hasher::new();
        plain.update(&[0xff; 8]);
        plain.update(b"headers");
        let mut seeded = super::seeded();
        seeded.update(b"headers");
        assert_eq!(seeded.finalize(), plain.finalize());
    }
}
