//! Toeplitz hash. NICs use it to distribute flows across receive queues (RSS).
//!
//! # Spec
//! Microsoft, "RSS Hashing Functions". For every bit set in the input, the hash is XORed with the 32 bits of the key
//! that start at the same position.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::layers::{Addresses, Ip, Ports, Transport};

/// Maximum length of the input in bytes. Two IPv6 addresses and two ports need only 36 bytes, but NICs can hash up to
/// twenty-four 16-bit words.
const MAX_INPUT: usize = 48;

/// An RSS key for inputs of up to the maximum length. Shorter keys are padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; Self::LEN]);

impl Key {
    /// Length of a key in bytes.
    pub const LEN: usize = MAX_INPUT + size_of::<u32>();

    /// Length in bytes of a short key, which suffices for IPv6 addresses and ports.
    pub const SHORT_LEN: usize = 40;

    /// Creates a key from its bytes.
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// Creates a key by padding a short key with zeros.
    pub fn short(bytes: [u8; Self::SHORT_LEN]) -> Self {
        let mut key = [0; Self::LEN];
        key.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        Self(key)
    }

    /// Returns the bytes of the key.
    pub const fn bytes(&self) -> [u8; Self::LEN] {
        self.0
    }

    /// Hashes the source address, the destination address and `ports`, if any.
    pub fn hash(&self, ip: &Ip, ports: Option<Ports>) -> u32 {
        let addresses = match ip.addresses {
            Addresses::V4 { src, dst } => self.hash_from(0, &src.octets()) ^ self.hash_from(4, &dst.octets()),
            Addresses::V6 { src, dst } => {
                self.hash_from(0, &src.octets()) ^ self.hash_from(16, &dst.octets())
            }
        };
        let ports_at = match ip.addresses {
            Addresses::V4 { .. } => 8,
            Addresses::V6 { .. } => 32,
        };
        let ports = ports.map_or(0, |Ports { src, dst }| {
            self.hash_from(ports_at, &src.get().to_be_bytes())
                ^ self.hash_from(ports_at + 2, &dst.get().to_be_bytes())
        });
        addresses ^ ports
    }

    /// Hashes arbitrary 16-bit words. Words beyond the maximum input length are ignored.
    pub fn hash_words(&self, words: impl Iterator<Item = u16>) -> u32 {
        let places = (0..MAX_INPUT).step_by(size_of::<u16>());
        places.zip(words).fold(0, |hash, (at, word)| hash ^ self.hash_from(at, &word.to_be_bytes()))
    }

    /// Returns the contribution of `input` to the hash. The first byte of `input` is byte `at` of the whole input.
    fn hash_from(&self, at: usize, input: &[u8]) -> u32 {
        let windows = self.0.windows(size_of::<u64>() - 3).skip(at);
        input.iter().zip(windows).fold(0, |hash, (byte, window)| {
            // Each bit of the input byte selects a 32-bit window of the key. The eight windows overlap and cover 39
            // bits, which are at the top of this 64-bit word.
            let window = window.iter().fold(0, |word, key| word << 8 | u64::from(*key)) << 24;
            (0..8)
                .filter(|bit| byte & 0x80 >> bit != 0)
                .fold(hash, |hash, bit| hash ^ high_half(window << bit))
        })
    }
}

/// Replaces source and destination with their XOR, both in the addresses and in the ports. Both directions of a flow
/// then have the same hash.
#[must_use]
pub fn symmetric(ip: &Ip) -> Ip {
    let addresses = match ip.addresses {
        Addresses::V4 { src, dst } => {
            let both = Ipv4Addr::from_bits(src.to_bits() ^ dst.to_bits());
            Addresses::V4 { src: both, dst: both }
        }
        Addresses::V6 { src, dst } => {
            let both = Ipv6Addr::from_bits(src.to_bits() ^ dst.to_bits());
            Addresses::V6 { src: both, dst: both }
        }
    };
    let pair = |Ports { src, dst }| {
        let both = (src.get() ^ dst.get()).into();
        Ports { src: both, dst: both }
    };
    let transport = match ip.transport {
        Transport::Tcp(ports) => Transport::Tcp(pair(ports)),
        Transport::Udp(ports) => Transport::Udp(pair(ports)),
        Transport::Sctp(ports) => Transport::Sctp(pair(ports)),
        transport @ (Transport::Icmp | Transport::Other) => transport,
    };
    Ip { addresses, transport, ..*ip }
}

fn high_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// Omits the key: knowing it lets an attacker steer all flows to one queue.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("toeplitz::Key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key from Microsoft's verification suite.
    const KEY: Key = Key([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ]);

    fn ip(addresses: Addresses) -> Ip {
        let transport = Transport::Other;
        Ip { addresses, protocol: 0, fragment: false, extensions: false, payload_at: 0, end: 0, transport }
    }

    /// For a flow between 1.0.0.0:2 and 0.0.0.0:0, both addresses become 1.0.0.0 and both ports become 2. The bits set
    /// in the input are 7, 39, 78 and 94, so the hash is the XOR of the key windows at these positions.
    #[test]
    fn symmetric_hash_is_equal_in_both_directions() {
        let at = |bit: usize| {
            let window = KEY.0[bit / 8..][..8].iter().fold(0, |word: u64, byte| word << 8 | u64::from(*byte));
            high_half(window << (bit % 8))
        };
        let (one, other) = (Ipv4Addr::new(1, 0, 0, 0), Ipv4Addr::UNSPECIFIED);
        let (two, zero) = (2.into(), 0.into());
        let there = ip(Addresses::V4 { src: one, dst: other });
        let back = ip(Addresses::V4 { src: other, dst: one });
        assert_eq!(KEY.hash(&symmetric(&there), None), at(7) ^ at(39));
        let expected = at(7) ^ at(39) ^ at(78) ^ at(94);
        for (datagram, src, dst) in [(there, two, zero), (back, zero, two)] {
            let datagram = symmetric(&Ip { transport: Transport::Udp(Ports { src, dst }), ..datagram });
            assert_eq!(KEY.hash(&datagram, datagram.transport.ports()), expected);
        }
    }

    /// Both tables from Microsoft's "Verifying the RSS Hash Calculation". Each row contains the destination, the
    /// source, the hash of the addresses, and the hash of the addresses and ports.
    #[test]
    fn hash_matches_microsoft_verification_suite() {
        let v4 = [
            ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e_8fc2, 0x51cc_c178),
            ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718_262a, 0xc626_b0ea),
            ("12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0_a5de, 0x5c2b_394a),
            ("209.142.163.6", 2217, "38.27.205.30", 48228, 0x8298_9176, 0xafc7_327f),
            ("202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d18_09c5, 0x10e8_28a2),
        ];
        for (dst, dst_port, src, src_port, of_addresses, with_ports) in v4 {
            let datagram = ip(Addresses::V4 { src: src.parse().unwrap(), dst: dst.parse().unwrap() });
            let ports = Ports { src: src_port.into(), dst: dst_port.into() };
            assert_eq!(KEY.hash(&datagram, None), of_addresses, "{src}");
            assert_eq!(KEY.hash(&datagram, Some(ports)), with_ports, "{src}");
            let Addresses::V4 { src, dst } = datagram.addresses else { unreachable!() };
            let halves = |address: Ipv4Addr| [address.to_bits() >> 16, address.to_bits() & 0xffff];
            let words = [halves(src), halves(dst), [src_port.into(), dst_port.into()]];
            let words = words.as_flattened().iter().map(|word| u16::try_from(*word).unwrap());
            assert_eq!(KEY.hash_words(words), with_ports, "{src}");
        }
        let v6 = [
            ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc1_8cd5, 0x4020_7d3d),
            ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c_461c, 0xdde5_1bbf),
            (
                "fe80::200:f8ff:fe21:67cf",
                38024,
                "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
                44251,
                0x4b61_e985,
                0x02d1_feef,
            ),
        ];
        for (dst, dst_port, src, src_port, of_addresses, with_ports) in v6 {
            let datagram = ip(Addresses::V6 { src: src.parse().unwrap(), dst: dst.parse().unwrap() });
            let ports = Ports { src: src_port.into(), dst: dst_port.into() };
            assert_eq!(KEY.hash(&datagram, None), of_addresses, "{src}");
            assert_eq!(KEY.hash(&datagram, Some(ports)), with_ports, "{src}");
        }
    }
}
