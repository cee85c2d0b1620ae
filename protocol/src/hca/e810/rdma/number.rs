//! Network addresses stored as integers. The most significant byte is the first byte on the wire.
//!
//! # Spec
//! E810 interface, sections 10.3, 13.2 and 13.6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::describe::{Field, Value, Visitor};
use crate::ids::MacAddr;
use crate::layout;
use crate::roce::IpAddrs;

/// MAC address stored as an integer. Its first byte is in bits 47:40.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MacNumber(pub MacAddr);

impl From<u64> for MacNumber {
    fn from(number: u64) -> Self {
        let [_, _, mac @ ..] = number.to_be_bytes();
        Self(MacAddr(mac))
    }
}

impl From<MacNumber> for u64 {
    fn from(mac: MacNumber) -> Self {
        let [a, b, c, d, e, f] = mac.0.0;
        Self::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

impl Field for MacNumber {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        self.0.show(name, to);
    }
}

/// IP address stored as a little-endian 128-bit integer. The last 32 bits of an IPv6 address therefore come first in
/// memory. An IPv4 address occupies only the first 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpNumber(u128);

impl IpNumber {
    /// Interprets the number as an IPv4 address.
    pub fn v4(self) -> Ipv4Addr {
        let [.., a, b, c, d] = self.0.to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    }

    /// Interprets the number as an IPv6 address.
    pub const fn v6(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.0)
    }

    /// Interprets the number as an IPv4 address if `ipv4` is true, otherwise as an IPv6 address.
    pub fn address(self, ipv4: bool) -> IpAddr {
        if ipv4 { self.v4().into() } else { self.v6().into() }
    }
}

impl IpNumber {
    /// Returns the address pair with source `self` and the given destination.
    pub fn towards(self, destination: Self, ipv4: bool) -> IpAddrs {
        if ipv4 {
            IpAddrs::V4 { src: self.v4(), dst: destination.v4() }
        } else {
            IpAddrs::V6 { src: self.v6(), dst: destination.v6() }
        }
    }
}

impl From<IpAddr> for IpNumber {
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(address) => address.to_bits().into(),
            IpAddr::V6(address) => address.to_bits(),
        })
    }
}

impl layout::Value for IpNumber {
    const WIDTH: usize = 128;

    fn take<O: layout::BitOrder>(object: &[u8], first: usize, width: usize) -> Self {
        Self(u128::from_le_bytes(layout::Value::take::<O>(object, first, width)))
    }

    fn put<O: layout::BitOrder>(&self, object: &mut [u8], first: usize, width: usize) {
        self.0.to_le_bytes().put::<O>(object, first, width);
    }
}

impl Field for IpNumber {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        // The IP version is in another field. Show numbers below 2^32 as IPv4 addresses, since a peer's IPv6 address is
        // never that small.
        let ipv4 = self.0 <= u32::MAX.into();
        to.value(name, Value::Text(format_args!("{}", self.address(ipv4))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{LittleEndian, Value as _};

    /// The expected numbers are from the examples "0f ARP add" and "1c AH, IPv4" in section 16.3.
    #[test]
    fn addresses_match_driver_encoding() {
        let mac = MacNumber(MacAddr([0x02, 0xe8, 0x10, 0, 0, 1]));
        assert_eq!(u64::from(mac), 0x02e8_1000_0001);
        assert_eq!(MacNumber::from(0x02e8_1000_0001), mac);
        let ip = IpNumber::take::<LittleEndian>(&0x0a00_0002_u128.to_le_bytes(), 0, 128);
        assert_eq!(ip.address(true), IpAddr::from([10, 0, 0, 2]));
        assert_eq!(IpNumber::from(ip.address(true)), ip);
    }

    #[test]
    fn ipv6_address_words_are_in_reverse_order() {
        let mut words = [0; 16];
        for (place, word) in words.as_chunks_mut::<4>().0.iter_mut().zip([4_u32, 3, 2, 0xfe80_0001]) {
            *place = word.to_le_bytes();
        }
        let ip = IpNumber::take::<LittleEndian>(&words, 0, 128);
        assert_eq!(ip.v6(), "fe80:1:0:2:0:3:0:4".parse::<Ipv6Addr>().unwrap());
        let mut put = [0; 16];
        IpNumber::from(IpAddr::V6(ip.v6())).put::<LittleEndian>(&mut put, 0, 128);
        assert_eq!(put, words);
    }
}
