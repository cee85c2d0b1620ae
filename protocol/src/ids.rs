//! Newtypes for identifiers, which let the compiler detect mix-ups.
//!
//! Conversions are explicit: `new` creates an identifier from an integer, and `get` returns the integer.

use std::fmt;

use crate::describe::{Field, Value, Visitor};
use crate::layout;

macro_rules! id {
    ($(#[$doc:meta])* pub struct $name:ident($int:ty, mask $mask:expr, $tag:literal);) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name($int);

        impl $name {
            /// Truncates `raw` to the width of the field.
            pub const fn new(raw: $int) -> Self {
                Self(raw & $mask)
            }

            /// Returns the identifier as an integer.
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

            fn take<O: layout::BitOrder>(object: &[u8], first: usize, width: usize) -> Self {
                Self::new(layout::Value::take::<O>(object, first, width))
            }

            fn put<O: layout::BitOrder>(&self, object: &mut [u8], first: usize, width: usize) {
                self.0.put::<O>(object, first, width);
            }
        }
    };
}
pub(crate) use id;

id! {
    /// Queue pair number, 24 bits. Bits above the QP table size can hold a generation number.
    pub struct Qpn(u32, mask 0xff_ffff, "qpn");
}
id! {
    /// Completion queue number, 24 bits.
    pub struct Cqn(u32, mask 0xff_ffff, "cqn");
}
id! {
    /// Event queue number, 24 bits.
    pub struct Eqn(u32, mask 0xff_ffff, "eqn");
}
id! {
    /// Shared receive queue number, 24 bits.
    pub struct Srqn(u32, mask 0xff_ffff, "srqn");
}
id! {
    /// Index of a UAR page (user access region), 24 bits. The page contains doorbell registers.
    pub struct UarIndex(u32, mask 0xff_ffff, "uar");
}
id! {
    /// Index of a memory key, 24 bits. The key is the index followed by a low byte of the driver's choice.
    pub struct MkeyIndex(u32, mask 0xff_ffff, "mkey");
}
id! {
    /// XRC domain number, 24 bits.
    pub struct XrcDomain(u32, mask 0xff_ffff, "xrcd");
}
id! {
    /// Transport domain number, 24 bits.
    pub struct TransportDomain(u32, mask 0xff_ffff, "td");
}
id! {
    /// Queue identifier chosen by the driver, 24 bits. CQEs report it so that the driver can find the queue.
    pub struct UserIndex(u32, mask 0xff_ffff, "uidx");
}
id! {
    /// Q counter set number. A set counts events of the QPs that use it.
    pub struct CounterSet(u8, mask u8::MAX, "counters");
}
id! {
    /// Transport interface receive object (TIR) number, 24 bits. A TIR distributes frames among receive queues.
    pub struct Tirn(u32, mask 0xff_ffff, "tirn");
}
id! {
    /// Flow table number, 24 bits.
    pub struct FlowTableId(u32, mask 0xff_ffff, "ft");
}
id! {
    /// Flow group number, 32 bits. A group holds the entries of a flow table that have the same mask.
    pub struct FlowGroupId(u32, mask u32::MAX, "fg");
}
id! {
    /// Flow counter number. A flow counter counts frames and bytes that match flow table entries.
    pub struct FlowCounterId(u32, mask u32::MAX, "fc");
}
id! {
    /// Transport interface send object (TIS) number, 24 bits. A TIS assigns send queues to a transport domain.
    pub struct Tisn(u32, mask 0xff_ffff, "tisn");
}
id! {
    /// Receive queue table (RQT) number, 24 bits. RSS selects one of the table's receive queues.
    pub struct Rqtn(u32, mask 0xff_ffff, "rqtn");
}
id! {
    /// Receive queue number (RQN) for Ethernet frames, 24 bits.
    pub struct Rqn(u32, mask 0xff_ffff, "rqn");
}
id! {
    /// Send queue number (SQN) for Ethernet frames, 24 bits.
    pub struct Sqn(u32, mask 0xff_ffff, "sqn");
}
id! {
    /// DevX user context number, 16 bits. Every command names the user context that it is sent for.
    pub struct UserId(u16, mask u16::MAX, "user");
}
id! {
    /// User memory object (UMEM) number. A UMEM holds queues and doorbell records of a DevX user.
    pub struct UmemId(u32, mask u32::MAX, "umem");
}
id! {
    /// Flow label in an IPv6 header or a global route header, 20 bits.
    pub struct FlowLabel(u32, mask 0xf_ffff, "flow");
}
id! {
    /// Protection domain (PD) number.
    pub struct Pdn(u32, mask u32::MAX, "pd");
}
id! {
    /// Key of a memory region, as used in local work requests.
    pub struct Lkey(u32, mask u32::MAX, "lkey");
}
id! {
    /// Key of a memory region, as used in requests from a peer.
    pub struct Rkey(u32, mask u32::MAX, "rkey");
}
id! {
    /// Q_Key of a datagram QP.
    pub struct Qkey(u32, mask u32::MAX, "qkey");
}
id! {
    /// Partition key: bit 15 is set for full membership, and bits 14:0 are the partition number.
    pub struct Pkey(u16, mask u16::MAX, "pkey");
}
id! {
    /// Local identifier (LID) of a port.
    pub struct Lid(u16, mask u16::MAX, "lid");
}
id! {
    /// Message sequence number, 24 bits, maintained by the responder.
    pub struct Msn(u32, mask 0xff_ffff, "msn");
}
id! {
    /// DMA address, as used by the guest on the bus.
    pub struct Iova(u64, mask u64::MAX, "iova");
}
id! {
    /// Virtual address inside a memory region, as it appears in work requests and in the RETH.
    pub struct Va(u64, mask u64::MAX, "va");
}
id! {
    /// Address in the ICM, the device context memory that MAP_ICM maps to bus pages.
    pub struct IcmAddr(u64, mask u64::MAX, "icm");
}

impl Pkey {
    /// Default P_Key, with full membership.
    pub const DEFAULT: Self = Self(0xffff);

    /// Returns whether the keys match: the partitions are equal, and at least one of the keys has full membership.
    /// Partition 0 is invalid and never matches.
    ///
    /// # Spec
    /// IBTA volume 1, section 10.9.3.
    pub const fn matches(self, other: Self) -> bool {
        self.0 & 0x7fff != 0 && (self.0 ^ other.0) & 0x7fff == 0 && (self.0 | other.0) & 0x8000 != 0
    }
}

impl Lkey {
    /// Returns the R_Key with the same value. JingZhao and mthca regions have one key for both local and remote access.
    pub const fn as_rkey(self) -> Rkey {
        Rkey(self.0)
    }
}

impl Rkey {
    /// Returns the L_Key with the same value.
    pub const fn as_lkey(self) -> Lkey {
        Lkey(self.0)
    }
}

impl MkeyIndex {
    /// Returns the index part of a memory key.
    pub const fn of(key: u32) -> Self {
        Self(key >> 8)
    }

    /// Returns the memory key that consists of this index and `low`.
    pub const fn key(self, low: u8) -> u32 {
        self.0 << 8 | low as u32
    }
}

impl UserIndex {
    /// No user index: the driver identifies the queue by its queue number.
    pub const NONE: Self = Self(0xff_ffff);
}

impl Msn {
    /// Returns the MSN after one more completed message, modulo 2^24.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }
}

/// 48-bit Ethernet address in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns whether the group bit is set. This includes the broadcast address.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns the default address of a port: 02:00:00:00 followed by the LID, high byte first.
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
            // Without this check, `from_str_radix` would accept a sign.
            let is_byte = |part: &&str| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit());
            let part = parts.next().filter(is_byte).ok_or(ParseMacError)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        if parts.next().is_some() { Err(ParseMacError) } else { Ok(Self(bytes)) }
    }
}

/// The text is not a MAC address of six two-digit hexadecimal bytes, separated by colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a MAC address such as 02:00:00:00:00:01")]
pub struct ParseMacError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limited_members_do_not_match_each_other() {
        assert!(Pkey::new(0xffff).matches(Pkey::new(0x7fff)));
        assert!(!Pkey::new(0x7fff).matches(Pkey::new(0x7fff)));
        assert!(!Pkey::new(0xffff).matches(Pkey::new(0x8001)));
        assert!(!Pkey::new(0x8000).matches(Pkey::new(0x8000)), "partition 0 never matches");
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
