//! Receive offloads whose results appear in receive descriptors: checksum verification, header length and
//! VLAN tag stripping.
//!
//! # Spec
//! E810 interface, section 8.5.

use card::nic::receive::{self, ChecksumStatus, Checksums};
use card::nic::vlan;
use protocol::hca::e810::rx_context::RxContext;
use protocol::hca::e810::rx_descriptor::Checks;
use protocol::net::layers::{Layers, TagKind, Transport, VlanTag};

pub(super) use card::nic::receive::headers_len;

/// Verifies a frame's checksums. A frame without an IP header is not checked.
pub(super) fn verify(frame: &[u8], layers: &Layers) -> Checks {
    let Checksums { ip, l4 } = receive::verify(frame, layers);
    let ipv4_error = ip == ChecksumStatus::Invalid;
    match l4 {
        ChecksumStatus::Valid => Checks { done: true, ipv4_error, l4_error: false },
        ChecksumStatus::Invalid => Checks { done: true, ipv4_error, l4_error: true },
        // Report an IPv4 header error even if software must verify the transport checksum itself.
        ChecksumStatus::Unverified => Checks { done: ipv4_error, ipv4_error, l4_error: false },
    }
}

/// Returns the offsets at which a queue can split a frame into headers and data, innermost layer first. Each offset
/// follows a layer that the frame has and the queue's context selects.
pub(super) fn split_points(frame: &[u8], layers: &Layers, context: &RxContext) -> [Option<usize>; 3] {
    let transport = layers.ip.filter(|ip| match ip.transport {
        Transport::Tcp(_) | Transport::Udp(_) => context.split_tcp_udp,
        Transport::Sctp(_) => context.split_sctp,
        Transport::Icmp | Transport::Other => false,
    });
    [
        transport.and_then(|_| headers_len(frame, layers)),
        layers.ip.filter(|_| context.split_ip).map(|ip| ip.payload_at),
        context.split_ethernet.then_some(layers.network_at),
    ]
}

/// Splits a frame around its outer tag and returns the two parts and the tag. Returns `None` if there is no
/// tag to strip. In single VLAN mode (E810 interface, section 7.1), a service tag counts as payload, because
/// the driver would report a stripped service tag as a customer tag.
pub(super) fn strip(frame: &[u8], outer_tag: Option<VlanTag>) -> Option<([&[u8]; 2], u16)> {
    let tag = outer_tag.filter(|tag| tag.kind == TagKind::Customer)?;
    Some((vlan::strip(frame)?, tag.tci.into_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_outer_customer_tag_is_stripped() {
        let tagged = |kind: [u8; 2]| {
            [&[1; 6][..], &[2; 6], &kind, &[0x00, 0x07, 0x81, 0x00, 0x60, 0x05, 0x08, 0x06]].concat()
        };
        let frame = tagged([0x81, 0x00]);
        let layers = Layers::parse(&frame).unwrap();
        let ([addresses, rest], tci) = strip(&frame, layers.outer_tag).unwrap();
        assert_eq!((addresses, tci), (&frame[..12], 7));
        assert_eq!(rest, [0x81, 0x00, 0x60, 0x05, 0x08, 0x06]);
        assert!(strip(rest, None).is_none());

        let service = tagged([0x88, 0xa8]);
        let layers = Layers::parse(&service).unwrap();
        assert!(layers.outer_tag.is_some());
        assert!(strip(&service, layers.outer_tag).is_none());
    }
}
