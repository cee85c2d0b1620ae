//! A frame's header fields, in the form that flow groups mask and compare.
//!
//! # Spec
//! mlx5 interface, section 16.4.

use std::cmp::Ordering;

use protocol::hca::mlx5::match_parameters::OuterHeaders;
use protocol::net::layers::{Addresses, Layers, TagKind, Transport};

/// The fields of [`OuterHeaders`] in wire format, as eight big-endian words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Fields([u64; 8]);

impl Ord for Fields {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        super::tests::steps::count_comparison();
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Fields {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Fields {
    /// Returns the fields of a frame. `layers` must be its layers.
    ///
    /// A frame without an IP header has no IP fields, and a fragment has no ports or TCP flags. The lengths in the
    /// headers do not matter, because rdma-core's tests match frames whose IPv6 payload length includes the IPv6
    /// header.
    pub fn of(frame: &[u8], layers: &Layers) -> Self {
        let tag = layers.outer_tag;
        let tci = tag.map_or(0, |tag| tag.tci.into_bits());
        let tag_kind = match tag.map(|tag| tag.kind) {
            Some(TagKind::Customer) => 1 << 15,
            Some(TagKind::Service) => 1 << 14,
            None => 0,
        };
        let mut words = [
            mac(layers.src.0) << 16 | u64::from(layers.ether_type.number()),
            mac(layers.dst.0) << 16 | u64::from(tci),
            tag_kind << 32,
            0,
            0,
            0,
            0,
            0,
        ];
        let [_, _, protocol, ttl, addresses @ ..] = &mut words;
        let Some(ip) = layers.any_ip(frame) else { return Self(words) };
        let header = frame.get(layers.network_at..).unwrap_or_default();
        let [version, service, lifetime] = match ip.addresses {
            Addresses::V4 { src, dst } => {
                *addresses = [0, u64::from(src.to_bits()), 0, u64::from(dst.to_bits())];
                [4, byte(header, 1), byte(header, 8)]
            }
            Addresses::V6 { src, dst } => {
                let ([a, b], [c, d]) = (halves(src.to_bits()), halves(dst.to_bits()));
                *addresses = [a, b, c, d];
                // RFC 8200, section 3: the traffic class follows the four bits of the version.
                [6, byte(header, 0) << 4 & 0xf0 | byte(header, 1) >> 4, byte(header, 7)]
            }
        };
        let fragment = u64::from(ip.fragment) << 13;
        *protocol |= (u64::from(ip.protocol) << 24 | service << 16 | fragment | version << 9) << 32;
        *ttl = lifetime << 32;
        let pair = |ports: protocol::net::layers::Ports| {
            u64::from(ports.src.get()) << 16 | u64::from(ports.dst.get())
        };
        match ip.transport {
            Transport::Tcp(ports) => {
                let tcp = frame.get(ip.payload_at..).unwrap_or_default();
                // RFC 9293, section 3.1. Bit 8 is the former nonce sum (NS) flag of RFC 3540.
                let flags = (byte(tcp, 12) & 1) << 8 | byte(tcp, 13);
                *protocol |= flags << 32 | pair(ports);
            }
            Transport::Udp(ports) => *ttl |= pair(ports),
            Transport::Sctp(_) | Transport::Icmp | Transport::Other => {}
        }
        Self(words)
    }

    /// Returns the fields with all bits outside `mask` cleared.
    #[must_use]
    pub fn masked(mut self, mask: &Self) -> Self {
        self.0.iter_mut().zip(mask.0).for_each(|(word, mask)| *word &= mask);
        self
    }

    pub fn headers(&self) -> OuterHeaders {
        let mut bytes = [0; OuterHeaders::LEN];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.0) {
            *to = word.to_be_bytes();
        }
        OuterHeaders::parse(&bytes)
    }
}

impl From<&OuterHeaders> for Fields {
    fn from(headers: &OuterHeaders) -> Self {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(headers.emit().as_chunks().0) {
            *word = u64::from_be_bytes(*bytes);
        }
        Self(words)
    }
}

fn mac([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

fn byte(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at).copied().unwrap_or_default().into()
}

#[allow(clippy::cast_possible_truncation, reason = "the halves of an IPv6 address")]
fn halves(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}
