//! Ethernet II frames, without the frame check sequence.

use std::borrow::Cow;
use std::net::IpAddr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::udp;
use crate::WireError;
use crate::ids::MacAddr;
use crate::view::view;

/// Wire format of the Ethernet header, 14 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[allow(missing_docs)]
pub struct RawEther {
    pub dst: [u8; 6],
    pub src: [u8; 6],
    /// EtherType, or the length of an IEEE 802.3 frame.
    pub ether_type: U16,
}

const _: () = assert!(size_of::<RawEther>() == 14);

/// EtherType of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EtherType {
    /// EtherType of IPv4, 0x0800.
    Ipv4,
    /// EtherType of ARP, 0x0806.
    Arp,
    /// EtherType of IPv6, 0x86dd.
    Ipv6,
    /// Any other EtherType, or the length of an IEEE 802.3 frame.
    Other(u16),
}

/// A frame, split into header and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct EtherFrame<'a> {
    pub dst: MacAddr,
    pub src: MacAddr,
    /// EtherType of the payload.
    pub ether_type: EtherType,
    /// Everything after the header, including Ethernet padding.
    pub payload: &'a [u8],
}

impl<'a> EtherFrame<'a> {
    /// Splits a frame. The payload is not inspected.
    ///
    /// # Errors
    /// [`WireError::Short`] if the frame ends inside the header.
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        let (raw, payload) = view::<RawEther>(frame, "Ethernet")?;
        Ok(Self {
            dst: MacAddr(raw.dst),
            src: MacAddr(raw.src),
            ether_type: EtherType::from_number(raw.ether_type.get()),
            payload,
        })
    }

    /// Splits a frame that may have a VLAN tag. Returns the frame without the tag, and the tag control information, if
    /// any.
    ///
    /// # Errors
    /// [`WireError::Short`] if the frame ends inside the header or the tag.
    pub fn parse_tagged(frame: &'a [u8]) -> Result<(Self, Option<u16>), WireError> {
        let whole = Self::parse(frame)?;
        if !TAGS.contains(&whole.ether_type.number().to_be_bytes()) {
            return Ok((whole, None));
        }
        let Some((&[tci_high, tci_low, type_high, type_low], payload)) = whole.payload.split_first_chunk()
        else {
            let (need, have) = (size_of::<RawEther>() + TAG_LEN, frame.len());
            return Err(WireError::Short { what: "VLAN tag", need, have });
        };
        let ether_type = EtherType::from_number(u16::from_be_bytes([type_high, type_low]));
        Ok((Self { ether_type, payload, ..whole }, Some(u16::from_be_bytes([tci_high, tci_low]))))
    }

    /// Returns whether the frame looks like RoCEv2: UDP to port 4791 over IPv4 or IPv6. Parsing it can still fail,
    /// since lengths and checksums are not verified. A fragment is not RoCE, and any bytes of its datagram can be at
    /// the position of the port.
    pub fn is_roce(&self) -> bool {
        let protocol_and_udp = match self.ether_type {
            EtherType::Ipv4 if self.is_ipv4_fragment() => None,
            EtherType::Ipv4 => {
                let header_len = self.payload.first().map(|first| usize::from(first & 0xf) * 4);
                self.payload.get(9).copied().zip(header_len.and_then(|len| self.payload.get(len..)))
            }
            EtherType::Ipv6 => self.payload.get(6).copied().zip(self.payload.get(40..)),
            EtherType::Arp | EtherType::Other(_) => None,
        };
        protocol_and_udp.is_some_and(|(protocol, udp)| {
            protocol == udp::PROTOCOL && udp.get(2..4) == Some(&udp::ROCE_PORT.to_be_bytes())
        })
    }

    /// Returns whether the payload, which is an IPv4 packet, is a fragment (RFC 791, section 3.1).
    fn is_ipv4_fragment(&self) -> bool {
        const MORE_AND_OFFSET: u16 = 0x3fff;
        let field = self.payload.get(6..).and_then(|field| field.first_chunk());
        field.is_some_and(|field| u16::from_be_bytes(*field) & MORE_AND_OFFSET != 0)
    }
}

/// EtherTypes of the C-TAG and the S-TAG (IEEE 802.1Q-2018, section 9.5, table 9-1).
pub const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

/// Length of a VLAN tag in bytes.
pub const TAG_LEN: usize = 4;
/// Length in bytes of the two addresses in front of the tag.
pub(crate) const ADDRESSES_LEN: usize = 12;

/// Returns a C-TAG with the tag control information `tci`.
pub(crate) const fn tag(tci: u16) -> [u8; TAG_LEN] {
    let ([high, low], [[a, b], _]) = (tci.to_be_bytes(), TAGS);
    [a, b, high, low]
}

/// Removes the priority tag from a frame, for ports without VLANs.
///
/// A priority tag has VID 0 and carries only the priority of the frame (IEEE 802.1Q-2018, section 3, "priority-tagged
/// frame", and section 6.9). An untagged frame is returned unchanged, without copying it.
///
/// # Errors
/// [`WireError::Invalid`] for a VLAN-tagged frame, [`WireError::Short`] for a frame that ends inside its tag.
pub fn untagged(frame: &[u8]) -> Result<Cow<'_, [u8]>, WireError> {
    const VID: u16 = 0x0fff;
    let Some((addresses, rest)) = frame.split_at_checked(ADDRESSES_LEN) else { return Ok(frame.into()) };
    match rest {
        [high, low, ..] if !TAGS.contains(&[*high, *low]) => Ok(frame.into()),
        [_, _, high, low, untagged @ ..] => match u16::from_be_bytes([*high, *low]) & VID {
            0 => Ok([addresses, untagged].concat().into()),
            vid => Err(WireError::Invalid { what: "VLAN", value: vid.into() }),
        },
        _ => Err(WireError::Short { what: "VLAN tag", need: ADDRESSES_LEN + TAG_LEN, have: frame.len() }),
    }
}

impl RawEther {
    /// Returns an Ethernet header in wire format.
    pub fn new(dst: MacAddr, src: MacAddr, ether_type: EtherType) -> Self {
        Self { dst: dst.0, src: src.0, ether_type: ether_type.number().into() }
    }
}

/// Returns the Ethernet address of an IP multicast group (RFC 1112, section 6.4; RFC 2464, section 7). Returns `None`
/// for unicast addresses.
pub fn group_mac(group: IpAddr) -> Option<MacAddr> {
    if !group.is_multicast() {
        return None;
    }
    Some(match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            MacAddr([0x33, 0x33, a, b, c, d])
        }
    })
}

impl EtherType {
    /// Converts a number to an EtherType. Every number is valid.
    pub const fn from_number(number: u16) -> Self {
        match number {
            0x0800 => Self::Ipv4,
            0x0806 => Self::Arp,
            0x86dd => Self::Ipv6,
            other => Self::Other(other),
        }
    }

    /// Returns the EtherType as an integer.
    pub const fn number(self) -> u16 {
        match self {
            Self::Ipv4 => 0x0800,
            Self::Arp => 0x0806,
            Self::Ipv6 => 0x86dd,
            Self::Other(number) => number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_fragment_is_not_roce() {
        let is_roce = |fragment: [u8; 2]| {
            let ip = [0x45, 0, 0, 48, 0, 1, fragment[0], fragment[1], 64, udp::PROTOCOL, 0, 0];
            let ports = [0xc0, 0, 0x12, 0xb7];
            let frame = [&[2; 12][..], &[8, 0], &ip, &[10; 8], &ports, &[0; 24]].concat();
            EtherFrame::parse(&frame).unwrap().is_roce()
        };
        assert!(is_roce([0x40, 0]) && is_roce([0, 0]), "with and without DF");
        for fragment in [[0x20, 0], [0, 1], [0x20, 0xb9], [0x1f, 0xff]] {
            assert!(!is_roce(fragment), "{fragment:02x?}");
        }
    }

    #[test]
    fn untagged_removes_priority_tag_and_rejects_vlan() {
        let frame = |tag: &[u8]| [&[0x11; 6][..], &[0x22; 6], tag, &[0x08, 0x00, 0x45]].concat();
        assert_eq!(untagged(&frame(&[])), Ok(frame(&[]).into()));
        for tag in [[0x81, 0x00, 0x00, 0x00], [0x81, 0x00, 0xf0, 0x00], [0x88, 0xa8, 0x60, 0x00]] {
            assert_eq!(untagged(&frame(&tag)), Ok(frame(&[]).into()), "{tag:02x?}");
        }
        for (tag, vid) in [([0x81, 0x00, 0x00, 0x01], 1), ([0x81, 0x00, 0xff, 0xff], 0xfff)] {
            let refused = Err(WireError::Invalid { what: "VLAN", value: vid });
            assert_eq!(untagged(&frame(&tag)), refused, "{tag:02x?}");
        }
        for len in 0..12 {
            assert_eq!(
                untagged(&frame(&[])[..len]).unwrap().len(),
                len,
                "a frame too short for a tag is unchanged"
            );
        }
        for len in 14..16 {
            assert!(untagged(&frame(&[0x81, 0x00, 0x00, 0x00])[..len]).is_err());
        }
        let twice = frame(&[0x81, 0x00, 0x00, 0x00, 0x81, 0x00, 0x00, 0x05]);
        assert_eq!(untagged(&twice).unwrap()[12..14], [0x81, 0x00], "only one tag is removed");
    }
}
