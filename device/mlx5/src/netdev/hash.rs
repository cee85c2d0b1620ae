//! The RSS hash of a TIR.
//!
//! # Spec
//! mlx5 interface, sections 9.3 and 16.3.

use protocol::hca::mlx5::frame_cqe::{HashedAddresses, HashedPorts};
use protocol::hca::mlx5::tir::{HashFields, TirContext};
use protocol::net::layers::{Addresses, Ip, Layers, Ports, Transport};
use protocol::net::toeplitz::Key;
use smallvec::SmallVec;

/// IP protocol numbers of IPsec (RFC 4303 and RFC 4302).
const ESP: u8 = 50;
const AUTHENTICATION_HEADER: u8 = 51;

/// Bytes covered by a hash: at most 40, for two IPv6 addresses, two ports and an SPI.
type Input = SmallVec<[u8; 64]>;

#[derive(Debug)]
pub enum Hash {
    None,
    Xor(HashFields),
    Toeplitz { key: Box<Key>, fields: HashFields, symmetric: bool },
}

/// Hash reported in a frame's CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    pub value: u32,
    pub ports: HashedPorts,
    pub addresses: HashedAddresses,
}

impl Default for Hashed {
    fn default() -> Self {
        Self { value: 0, ports: HashedPorts::None, addresses: HashedAddresses::None }
    }
}

impl Hash {
    pub fn toeplitz(context: &TirContext) -> Self {
        let TirContext { key, fields, symmetric, .. } = *context;
        Self::Toeplitz { key: Box::new(Key::short(key)), fields, symmetric }
    }

    /// Returns the hash that selects the queue, and the hash to report. Only Toeplitz hashes are reported.
    pub fn of(&self, frame: &[u8], layers: &Layers) -> (u32, Hashed) {
        match self {
            Self::None => (0, Hashed::default()),
            Self::Xor(fields) => {
                let (bytes, _) = input(*fields, false, frame, layers);
                (bytes.iter().fold(0, |hash, byte| hash ^ byte).into(), Hashed::default())
            }
            Self::Toeplitz { key, fields, symmetric } => {
                let (bytes, hashed) = input(*fields, *symmetric, frame, layers);
                let words = bytes.as_chunks::<2>().0.iter().map(|word| u16::from_be_bytes(*word));
                let value = key.hash_words(words);
                (value, Hashed { value, ..hashed })
            }
        }
    }
}

/// Returns the selected fields of a frame, in this order: source address, destination address, source port, destination
/// port, SPI. The result is empty if the frame has no IP header of the selected version. The ports are omitted if the
/// frame has no header of the selected transport.
fn input(fields: HashFields, symmetric: bool, frame: &[u8], layers: &Layers) -> (Input, Hashed) {
    let (mut bytes, mut hashed) = (Input::new(), Hashed::default());
    let Some(ip) = layers.ip else { return (bytes, hashed) };
    let ports = match ip.transport {
        Transport::Tcp(ports) if !fields.udp => Some((ports, HashedPorts::Tcp)),
        Transport::Udp(ports) if fields.udp => Some((ports, HashedPorts::Udp)),
        _ => None,
    };
    let (v4, v6);
    let (src, dst): (&[u8], &[u8]) = match ip.addresses {
        Addresses::V4 { src, dst } if !fields.ipv6 => {
            hashed.addresses = HashedAddresses::Ipv4;
            v4 = [src.octets(), dst.octets()];
            (&v4[0], &v4[1])
        }
        Addresses::V6 { src, dst } if fields.ipv6 => {
            hashed.addresses = HashedAddresses::Ipv6;
            v6 = [src.octets(), dst.octets()];
            (&v6[0], &v6[1])
        }
        _ => return (bytes, hashed),
    };
    // Section 16.3 leaves the symmetric function to the device. mlx5e reports it as RXH_XFRM_SYM_OR_XOR, so swapping
    // only the addresses, or only the ports, must not change the hash. Hashing the addresses in descending order and
    // the ports in ascending order gives the hashes in the golden traces.
    let addresses = if symmetric && src < dst { [dst, src] } else { [src, dst] };
    let mut add = |selected: bool, field: &[u8]| {
        if selected {
            bytes.extend_from_slice(field);
        }
    };
    add(fields.source_ip, addresses[0]);
    add(fields.destination_ip, addresses[1]);
    if let Some((Ports { src, dst }, kind)) = ports.filter(|_| fields.source_port || fields.destination_port)
    {
        let (src, dst) = (src.get(), dst.get());
        let ports = if symmetric && src > dst { [dst, src] } else { [src, dst] };
        hashed.ports = kind;
        add(fields.source_port, &ports[0].to_be_bytes());
        add(fields.destination_port, &ports[1].to_be_bytes());
    }
    if fields.spi
        && let Some(spi) = spi(frame, &ip)
    {
        hashed.ports = HashedPorts::Spi;
        add(true, &spi);
    }
    (bytes, hashed)
}

/// Returns the security parameter index of an IPsec packet.
fn spi(frame: &[u8], ip: &Ip) -> Option<[u8; 4]> {
    let offset = match ip.protocol {
        ESP => 0,
        AUTHENTICATION_HEADER => 4,
        _ => return None,
    };
    ip.payload(frame)?.get(offset..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 40] = [
        0x0a, 0xdf, 0xdd, 0xef, 0x16, 0xda, 0x5f, 0x96, 0xbc, 0xb1, 0xab, 0xb8, 0x57, 0xea, 0x1f, 0xfe, 0xe6,
        0xd3, 0x55, 0xe4, 0x13, 0x58, 0x7e, 0x64, 0x58, 0x18, 0x56, 0x4f, 0x2a, 0x24, 0x65, 0xdf, 0xba, 0xa6,
        0x6e, 0x28, 0xce, 0x46, 0xf5, 0x7a,
    ];

    const ALL: HashFields = HashFields {
        ipv6: false,
        udp: false,
        spi: false,
        destination_port: true,
        source_port: true,
        destination_ip: true,
        source_ip: true,
    };

    /// Returns a TCP or UDP frame over IPv4.
    fn frame(protocol: u8, endpoints: [([u8; 4], u16); 2]) -> Vec<u8> {
        let [(src, src_port), (dst, dst_port)] = endpoints;
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
        frame.extend(src.into_iter().chain(dst));
        frame.extend(src_port.to_be_bytes().into_iter().chain(dst_port.to_be_bytes()));
        frame.resize(54, 0);
        frame
    }

    const THERE: [([u8; 4], u16); 2] = [([10, 7, 0, 2], 5001), ([10, 7, 0, 1], 35892)];

    fn of(hash: &Hash, frame: &[u8]) -> (u32, Hashed) {
        hash.of(frame, &Layers::parse(frame).unwrap())
    }

    fn toeplitz(fields: HashFields, symmetric: bool) -> Hash {
        Hash::toeplitz(&TirContext { key: KEY, fields, symmetric, ..TirContext::default() })
    }

    /// The expected hash is that of a segment in golden trace eth-5.
    #[test]
    fn tcp_hash_matches_recording() {
        let expected =
            Hashed { value: 0xeaef_677c, ports: HashedPorts::Tcp, addresses: HashedAddresses::Ipv4 };
        for symmetric in [false, true] {
            let (index, hashed) = of(&toeplitz(ALL, symmetric), &frame(6, THERE));
            assert_eq!((index, hashed), (0xeaef_677c, expected));
        }
    }

    #[test]
    fn symmetric_hash_ignores_swapped_addresses_or_ports() {
        let [from, to] = THERE;
        let back = frame(6, [to, from]);
        assert_eq!(of(&toeplitz(ALL, true), &back).0, 0xeaef_677c);
        assert_ne!(of(&toeplitz(ALL, false), &back).0, 0xeaef_677c);
        let other_ports = frame(6, [(from.0, to.1), (to.0, from.1)]);
        assert_eq!(of(&toeplitz(ALL, true), &other_ports).0, 0xeaef_677c);
        assert_ne!(of(&toeplitz(ALL, false), &other_ports).0, 0xeaef_677c);
        let other_addresses = frame(6, [(to.0, from.1), (from.0, to.1)]);
        assert_eq!(of(&toeplitz(ALL, true), &other_addresses).0, 0xeaef_677c);
    }

    #[test]
    fn hash_covers_only_selected_headers() {
        // Golden trace eth-4 contains this hash of an ICMP echo request with the same addresses.
        let addresses =
            Hashed { value: 0x4b3b_712b, ports: HashedPorts::None, addresses: HashedAddresses::Ipv4 };
        let tcp_fields = toeplitz(ALL, false);
        assert_eq!(of(&tcp_fields, &frame(17, THERE)).1, addresses, "UDP ports are not hashed as TCP ports");
        let ip = HashFields { source_port: false, destination_port: false, ..ALL };
        assert_eq!(of(&toeplitz(ip, true), &frame(6, THERE)).1, addresses);
        let v6 = toeplitz(HashFields { ipv6: true, ..ALL }, false);
        assert_eq!(of(&v6, &frame(6, THERE)), (0, Hashed::default()));
        assert_eq!(of(&Hash::None, &frame(6, THERE)), (0, Hashed::default()));
    }

    #[test]
    fn xor_hash_is_not_reported() {
        let (index, hashed) = of(&Hash::Xor(ALL), &frame(6, THERE));
        let ports = 0x13 ^ 0x89 ^ 0x8c ^ 0x34;
        assert_eq!((index, hashed), (3 ^ ports, Hashed::default()));
    }

    #[test]
    fn ipsec_spi_is_hashed() {
        let fields = HashFields { spi: true, source_port: false, destination_port: false, ..ALL };
        let hash = toeplitz(fields, false);
        let mut esp = frame(50, THERE);
        let first = of(&hash, &esp);
        assert_eq!(first.1.ports, HashedPorts::Spi);
        esp[37] ^= 1;
        assert_ne!(of(&hash, &esp).0, first.0);
    }
}
