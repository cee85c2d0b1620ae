//! The flow hash for receive side scaling (RSS): a Toeplitz hash over selected packet fields.

use protocol::net::layers::{Addresses, Ip, Transport};
use protocol::net::toeplitz::{self, Key};

/// A 16-bit packet word that can be hashed. Offsets are in bytes from the source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Word of the source or destination address in an IPv4 header.
    Ipv4(u8),
    /// Word of the source or destination address in an IPv6 header.
    Ipv6(u8),
    /// Port in a TCP header.
    Tcp(Port),
    /// Port in a UDP header.
    Udp(Port),
    /// Port in an SCTP header.
    Sctp(Port),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    Source,
    Destination,
}

/// The packet fields covered by the hash.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Source and destination addresses, followed by the TCP, UDP or SCTP ports unless the packet is a fragment.
    Flow,
    /// The given words, in the given order. A word counts as 0 if it is `None` or absent from the packet.
    Fields(&'a [Option<Field>]),
}

/// Hashes a packet. If `symmetric` is set, both directions of a flow have the same hash.
pub fn hash(key: &Key, symmetric: bool, ip: &Ip, input: Input<'_>) -> u32 {
    let ip = if symmetric { toeplitz::symmetric(ip) } else { *ip };
    match input {
        // `ports` is `None` for fragments.
        Input::Flow => key.hash(&ip, ip.transport.ports()),
        Input::Fields(fields) => key.hash_words(words(&ip, fields)),
    }
}

/// Returns the packet words selected by `fields`.
pub fn words(ip: &Ip, fields: &[Option<Field>]) -> impl Iterator<Item = u16> {
    fields.iter().map(|field| field.and_then(|field| field.of(ip)).unwrap_or(0))
}

impl Field {
    fn of(self, ip: &Ip) -> Option<u16> {
        let at = |addresses: &[u8], offset: u8| {
            let word = addresses.get(usize::from(offset)..)?.first_chunk()?;
            Some(u16::from_be_bytes(*word))
        };
        match (self, ip.addresses, ip.transport) {
            (Self::Ipv4(offset), Addresses::V4 { src, dst }, _) => {
                at([src.octets(), dst.octets()].as_flattened(), offset)
            }
            (Self::Ipv6(offset), Addresses::V6 { src, dst }, _) => {
                at([src.octets(), dst.octets()].as_flattened(), offset)
            }
            (Self::Tcp(port), _, Transport::Tcp(ports))
            | (Self::Udp(port), _, Transport::Udp(ports))
            | (Self::Sctp(port), _, Transport::Sctp(ports)) => Some(match port {
                Port::Source => ports.src.get(),
                Port::Destination => ports.dst.get(),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::net::layers::Ports;

    use super::*;

    /// The key from Microsoft's verification suite.
    const KEY: [u8; Key::SHORT_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Hash of the addresses in the first row of the suite: 66.9.149.187 port 2794 to 161.142.100.80 port 1766.
    const OF_ADDRESSES: u32 = 0x323e_8fc2;
    const WITH_PORTS: u32 = 0x51cc_c178;

    fn packet(transport: Transport) -> Ip {
        Ip {
            addresses: Addresses::V4 { src: [66, 9, 149, 187].into(), dst: [161, 142, 100, 80].into() },
            protocol: 6,
            fragment: false,
            extensions: false,
            payload_at: 34,
            end: 54,
            transport,
        }
    }

    fn ports() -> Ports {
        Ports { src: 2794.into(), dst: 1766.into() }
    }

    #[test]
    fn flow_hash_includes_transport_ports() {
        let key = Key::short(KEY);
        for (transport, expected) in [
            (Transport::Tcp(ports()), WITH_PORTS),
            (Transport::Udp(ports()), WITH_PORTS),
            (Transport::Sctp(ports()), WITH_PORTS),
            (Transport::Icmp, OF_ADDRESSES),
            (Transport::Other, OF_ADDRESSES),
        ] {
            assert_eq!(hash(&key, false, &packet(transport), Input::Flow), expected, "{transport:?}");
        }
    }

    #[test]
    fn explicit_field_hash_equals_flow_hash() {
        let key = Key::short(KEY);
        let addresses = [0, 2, 4, 6].map(|offset| Some(Field::Ipv4(offset)));
        let both = [Some(Field::Tcp(Port::Source)), Some(Field::Tcp(Port::Destination))];
        let all = [&addresses[..], &both].concat();
        let tcp = packet(Transport::Tcp(ports()));
        for symmetric in [false, true] {
            let flow = hash(&key, symmetric, &tcp, Input::Flow);
            assert_eq!(hash(&key, symmetric, &tcp, Input::Fields(&all)), flow);
        }
        assert_eq!(hash(&key, false, &tcp, Input::Fields(&addresses)), OF_ADDRESSES);
    }

    #[test]
    fn absent_header_fields_are_hashed_as_zero() {
        let fields = [
            None,
            Some(Field::Ipv6(0)),
            Some(Field::Udp(Port::Source)),
            Some(Field::Ipv4(7)),
            Some(Field::Ipv4(u8::MAX)),
            Some(Field::Ipv4(6)),
        ];
        let words: Vec<u16> = words(&packet(Transport::Tcp(ports())), &fields).collect();
        assert_eq!(words, [0, 0, 0, 0, 0, 0x6450]);
    }

    #[test]
    fn symmetric_hash_ignores_direction() {
        let there = packet(Transport::Tcp(ports()));
        let Addresses::V4 { src, dst } = there.addresses else { panic!("{there:?}") };
        let swapped = Ports { src: ports().dst, dst: ports().src };
        let back = Ip {
            addresses: Addresses::V4 { src: dst, dst: src },
            transport: Transport::Tcp(swapped),
            ..there
        };
        let key = Key::short(KEY);
        let of = |symmetric, ip| hash(&key, symmetric, &ip, Input::Flow);
        assert_eq!(of(true, there), of(true, back));
        assert_ne!(of(false, there), of(false, back));
    }
}
