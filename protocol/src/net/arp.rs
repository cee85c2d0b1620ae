//! ARP for IPv4 on Ethernet.

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ether::{EtherType, RawEther};
use crate::WireError;
use crate::ids::MacAddr;
use crate::view::view;

/// ARP message as its 28 bytes (RFC 826).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawArp {
    /// 1, Ethernet.
    pub hardware_type: U16,
    /// 0800, IPv4.
    pub protocol_type: U16,
    /// 6.
    pub hardware_len: u8,
    /// 4.
    pub protocol_len: u8,
    /// 1 request, 2 reply.
    pub operation: U16,
    /// Sender's Ethernet address.
    pub sender_mac: [u8; 6],
    /// Sender's IP address.
    pub sender_ip: [u8; 4],
    /// Target's Ethernet address.
    pub target_mac: [u8; 6],
    /// Target's IP address.
    pub target_ip: [u8; 4],
}

const _: () = assert!(size_of::<RawArp>() == 28);

/// Request or reply.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArpOperation {
    Request,
    Reply,
}

/// ARP message, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Request or reply.
    pub operation: ArpOperation,
    /// Sender's Ethernet address.
    pub sender_mac: MacAddr,
    /// Sender's IP address; unspecified in a probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// Target's Ethernet address; means nothing in a request.
    pub target_mac: MacAddr,
    /// Target's IP address.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// Reads the payload of an Ethernet frame; trailing padding is ignored.
    ///
    /// # Errors
    /// [`WireError::Short`]; [`WireError::Invalid`] for other address types and operations.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let (raw, _) = view::<RawArp>(bytes, "ARP")?;
        let invalid = |what, value: U16| WireError::Invalid { what, value: value.get().into() };
        if raw.hardware_type.get() != 1 || raw.hardware_len != 6 {
            return Err(invalid("ARP hardware type", raw.hardware_type));
        }
        if raw.protocol_type.get() != EtherType::Ipv4.number() || raw.protocol_len != 4 {
            return Err(invalid("ARP protocol type", raw.protocol_type));
        }
        let operation = match raw.operation.get() {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            _ => return Err(invalid("ARP operation", raw.operation)),
        };
        Ok(Self {
            operation,
            sender_mac: MacAddr(raw.sender_mac),
            sender_ip: raw.sender_ip.into(),
            target_mac: MacAddr(raw.target_mac),
            target_ip: raw.target_ip.into(),
        })
    }

    /// The message's bytes.
    pub fn emit(&self) -> RawArp {
        RawArp {
            hardware_type: 1.into(),
            protocol_type: EtherType::Ipv4.number().into(),
            hardware_len: 6,
            protocol_len: 4,
            operation: match self.operation {
                ArpOperation::Request => 1.into(),
                ArpOperation::Reply => 2.into(),
            },
            sender_mac: self.sender_mac.0,
            sender_ip: self.sender_ip.octets(),
            target_mac: self.target_mac.0,
            target_ip: self.target_ip.octets(),
        }
    }

    /// Appends the whole frame, 42 bytes: a request to everybody, a reply to its target.
    pub fn emit_frame(&self, out: &mut Vec<u8>) {
        let dst = match self.operation {
            ArpOperation::Request => MacAddr::BROADCAST,
            ArpOperation::Reply => self.target_mac,
        };
        out.extend_from_slice(RawEther::new(dst, self.sender_mac, EtherType::Arp).as_bytes());
        out.extend_from_slice(self.emit().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Lid;
    use crate::net::ether::EtherFrame;

    /// Made by scapy 2.8.0: Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff") /
    /// ARP(op=1, hwsrc="02:00:00:00:00:01", psrc="10.77.0.1", pdst="10.77.0.2").
    const REQUEST: [u8; 42] = *b"\xff\xff\xff\xff\xff\xff\x02\0\0\0\0\x01\x08\x06\
        \0\x01\x08\0\x06\x04\0\x01\x02\0\0\0\0\x01\x0a\x4d\0\x01\0\0\0\0\0\0\x0a\x4d\0\x02";

    /// Made by scapy 2.8.0: Ether(src="02:00:00:00:00:02", dst="02:00:00:00:00:01") /
    /// ARP(op=2, hwsrc="02:00:00:00:00:02", psrc="10.77.0.2", hwdst="02:00:00:00:00:01", pdst="10.77.0.1").
    const REPLY: [u8; 42] = *b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\x06\
        \0\x01\x08\0\x06\x04\0\x02\x02\0\0\0\0\x02\x0a\x4d\0\x02\x02\0\0\0\0\x01\x0a\x4d\0\x01";

    #[test]
    fn frames_of_scapy_are_read_and_written() {
        let mac = |lid| MacAddr::from_lid(Lid::new(lid));
        let request = Arp {
            operation: ArpOperation::Request,
            sender_mac: mac(1),
            sender_ip: Ipv4Addr::new(10, 77, 0, 1),
            target_mac: MacAddr([0; 6]),
            target_ip: Ipv4Addr::new(10, 77, 0, 2),
        };
        let reply = Arp {
            operation: ArpOperation::Reply,
            sender_mac: mac(2),
            sender_ip: Ipv4Addr::new(10, 77, 0, 2),
            target_mac: mac(1),
            target_ip: Ipv4Addr::new(10, 77, 0, 1),
        };
        for (bytes, meant) in [(REQUEST, request), (REPLY, reply)] {
            let ether = EtherFrame::parse(&bytes).unwrap();
            assert_eq!(ether.ether_type, EtherType::Arp);
            assert_eq!(Arp::parse(ether.payload), Ok(meant));
            let mut out = Vec::new();
            meant.emit_frame(&mut out);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn other_address_types_are_refused() {
        for offset in [1, 2, 4, 5, 7] {
            let mut bytes = REQUEST;
            bytes[14 + offset] ^= 8;
            assert!(matches!(Arp::parse(&bytes[14..]), Err(WireError::Invalid { .. })), "byte {offset}");
        }
    }
}
