//! Receive offload: verifies checksums and locates the end of the headers.

use protocol::net::checksum::Checksum;
use protocol::net::layers::{Addresses, Ip, Layers, Transport};

/// Results of the checksum verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksums {
    /// Result for the IP header. IPv6 headers have no checksum and are always valid.
    pub ip: ChecksumStatus,
    /// Result for TCP, UDP, SCTP or ICMP.
    pub l4: ChecksumStatus,
}

/// Result for one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumStatus {
    Valid,
    Invalid,
    /// The frame has no such header, or software must verify the checksum.
    Unverified,
}

/// Verifies the checksums of a frame. If the frame has no IP header, nothing is verified.
pub fn verify(frame: &[u8], layers: &Layers) -> Checksums {
    let (Some(ip), Some(header)) = (&layers.ip, layers.ip_header(frame)) else {
        return Checksums { ip: ChecksumStatus::Unverified, l4: ChecksumStatus::Unverified };
    };
    let is_valid = match ip.addresses {
        Addresses::V4 { .. } => Checksum::new().with(header).value() == 0,
        Addresses::V6 { .. } => true,
    };
    let l4 = ip.payload(frame).and_then(|payload| is_l4_valid(ip, payload));
    Checksums {
        ip: ChecksumStatus::of(is_valid),
        l4: l4.map_or(ChecksumStatus::Unverified, ChecksumStatus::of),
    }
}

impl ChecksumStatus {
    const fn of(is_valid: bool) -> Self {
        if is_valid { Self::Valid } else { Self::Invalid }
    }
}

/// Returns whether the transport checksum is valid, or `None` if the transport header was not parsed or software must
/// verify the checksum. A UDP checksum that the sender omitted over IPv4 counts as valid.
fn is_l4_valid(ip: &Ip, payload: &[u8]) -> Option<bool> {
    let is_sum_valid = || ip.pseudo_header().with(payload).value() == 0;
    match (ip.transport, ip.addresses) {
        (Transport::Tcp(_), _) | (Transport::Icmp, Addresses::V6 { .. }) => Some(is_sum_valid()),
        (Transport::Icmp, Addresses::V4 { .. }) => Some(Checksum::new().with(payload).value() == 0),
        (Transport::Udp(_), addresses) => {
            let [.., high, low, sum_high, sum_low] = *payload.first_chunk::<8>()?;
            let has_sum = [sum_high, sum_low] != [0, 0];
            // If the UDP length differs from the length of the IP payload, as in a fragment or a padded
            // datagram, verification is left to software.
            if usize::from(u16::from_be_bytes([high, low])) != payload.len() {
                return None;
            }
            match addresses {
                // RFC 768: zero means that the sender did not compute a checksum, so the datagram is accepted.
                Addresses::V4 { .. } if !has_sum => Some(true),
                // RFC 6935 permits zero UDP checksums for some tunnels; that choice is left to software.
                Addresses::V6 { .. } if !has_sum => None,
                _ => Some(is_sum_valid()),
            }
        }
        (Transport::Sctp(_), _) => {
            let found = payload.get(8..12)?.first_chunk().map(|sum| u32::from_le_bytes(*sum))?;
            let sum = crc32c::crc32c_append(crc32c::crc32c(payload.get(..8)?), &[0; 4]);
            Some(crc32c::crc32c_append(sum, payload.get(12..)?) == found)
        }
        (Transport::Other, _) => None,
    }
}

/// Returns the length of all headers up to the TCP, UDP or SCTP payload. For other protocols, the headers end
/// with the IP header. Returns `None` if the frame has no IP header.
pub fn headers_len(frame: &[u8], layers: &Layers) -> Option<usize> {
    let ip = layers.ip.as_ref()?;
    let transport = match ip.transport {
        Transport::Tcp(_) => usize::from(frame.get(ip.payload_at + 12)? >> 4) * 4,
        Transport::Udp(_) => 8,
        Transport::Sctp(_) => 12,
        Transport::Icmp | Transport::Other => 0,
    };
    Some((ip.payload_at + transport).min(ip.end))
}
