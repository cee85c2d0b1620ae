//! Numbers that must not be mixed up, each with its own type.
//!
//! None converts implicitly: crossing from an integer to an identifier is written out with `new`, and back with
//! `get`.

use std::fmt;

use crate::describe::{Field, Value, Visitor};
use crate::layout;

macro_rules! id {
    ($(#[$doc:meta])* pub struct $name:ident($int:ty, mask $mask:expr, $tag:literal);) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name($int);

        impl $name {
            /// Keeps the bits the field has.
            pub const fn new(raw: $int) -> Self {
                Self(raw & $mask)
            }

            /// The plain number.
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($tag, ":{:#x}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl Field for $name {
            fn show(&self, name: &str, to: &mut dyn Visitor) {
                to.value(name, Value::Hex(self.0.into()));
            }
        }

        impl layout::Value for $name {
            const WIDTH: usize = <$int as layout::Value>::WIDTH;

            fn take(object: &[u8], first: usize, width: usize) -> Self {
                Self::new(layout::Value::take(object, first, width))
            }

            fn put(&self, object: &mut [u8], first: usize, width: usize) {
                self.0.put(object, first, width);
            }
        }
    };
}
pub(crate) use id;

id! {
    /// Queue pair number, 24 bits. Software may use more bits than a device's table has entries.
    pub struct Qpn(u32, mask 0xff_ffff, "qpn");
}
id! {
    /// Completion queue number, 24 bits.
    pub struct Cqn(u32, mask 0xff_ffff, "cqn");
}
id! {
    /// Event queue number.
    pub struct Eqn(u32, mask 0xff_ffff, "eqn");
}
id! {
    /// Shared receive queue number, 24 bits.
    pub struct Srqn(u32, mask 0xff_ffff, "srqn");
}
id! {
    /// Flow label of an IPv6 header or a global route header, 20 bits.
    pub struct FlowLabel(u32, mask 0xf_ffff, "flow");
}
id! {
    /// Protection domain.
    pub struct Pdn(u32, mask u32::MAX, "pd");
}
id! {
    /// Key of a memory region in work requests of its owner.
    pub struct Lkey(u32, mask u32::MAX, "lkey");
}
id! {
    /// Key of a memory region in requests of a peer.
    pub struct Rkey(u32, mask u32::MAX, "rkey");
}
id! {
    /// Datagram queue key.
    pub struct Qkey(u32, mask u32::MAX, "qkey");
}
id! {
    /// Partition key: bit 15 is full membership, the rest the partition.
    pub struct Pkey(u16, mask u16::MAX, "pkey");
}
id! {
    /// Local identifier of a port.
    pub struct Lid(u16, mask u16::MAX, "lid");
}
id! {
    /// Message sequence number, 24 bits, counted by a responder.
    pub struct Msn(u32, mask 0xff_ffff, "msn");
}
id! {
    /// Address a device uses for DMA (guest bus address).
    pub struct Iova(u64, mask u64::MAX, "iova");
}
id! {
    /// Address inside a memory region, as work requests and RETH give it.
    pub struct Va(u64, mask u64::MAX, "va");
}
id! {
    /// Address in the device's context memory (ICM), which MAP_ICM maps to bus pages.
    pub struct IcmAddr(u64, mask u64::MAX, "icm");
}

impl Pkey {
    /// Full member of the default partition.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether two keys may talk: same partition and at least one full member. The partition whose number is zero does not
    /// exist: its keys are invalid.
    ///
    /// # Spec
    /// IBTA volume 1, section 10.9.3.
    pub const fn matches(self, other: Self) -> bool {
        self.0 & 0x7fff != 0 && (self.0 ^ other.0) & 0x7fff == 0 && (self.0 | other.0) & 0x8000 != 0
    }
}

impl Lkey {
    /// The same region's key as a peer names it. JingZhao and mthca regions have one key for both uses.
    pub const fn as_rkey(self) -> Rkey {
        Rkey(self.0)
    }
}

impl Rkey {
    /// The same region's key as its owner names it.
    pub const fn as_lkey(self) -> Lkey {
        Lkey(self.0)
    }
}

impl Msn {
    /// One message later, modulo 2^24.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }
}

/// Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All ones.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether the group bit is set (broadcast included).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The address of the default LID rule: 02:00:00:00:hi:lo.
    pub const fn from_lid(lid: Lid) -> Self {
        let [hi, lo] = lid.get().to_be_bytes();
        Self([2, 0, 0, 0, hi, lo])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            // Two characters alone would let the sign of `from_str_radix` in.
            let is_byte = |part: &&str| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit());
            let part = parts.next().filter(is_byte).ok_or(ParseMacError)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        if parts.next().is_some() { Err(ParseMacError) } else { Ok(Self(bytes)) }
    }
}

/// Text is not six two-digit hexadecimal bytes joined by colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a MAC address such as 02:00:00:00:00:01")]
pub struct ParseMacError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limited_members_of_one_partition_do_not_match() {
        assert!(Pkey::new(0xffff).matches(Pkey::new(0x7fff)));
        assert!(!Pkey::new(0x7fff).matches(Pkey::new(0x7fff)));
        assert!(!Pkey::new(0xffff).matches(Pkey::new(0x8001)));
        assert!(!Pkey::new(0x8000).matches(Pkey::new(0x8000)), "invalid");
    }

    #[test]
    fn mac_text_round_trips() {
        let mac: MacAddr = "02:00:00:00:01:fe".parse().unwrap();
        assert_eq!(mac, MacAddr::from_lid(Lid::new(0x1fe)));
        assert_eq!(mac.to_string(), "02:00:00:00:01:fe");
        assert!("02:00:00:00:01".parse::<MacAddr>().is_err());
        assert!("02:00:00:00:01:fe:00".parse::<MacAddr>().is_err());
        assert!("+2:00:00:00:01:fe".parse::<MacAddr>().is_err());
    }
}
