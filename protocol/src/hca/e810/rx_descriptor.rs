//! Receive descriptors, as posted by the driver and as written back by the device.
//!
//! # Spec
//! E810 interface, section 8.3.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::packet_type::PacketType;
use crate::describe::{Field, Hex, Value, Visitor, describe};
use crate::ids::Iova;

/// Length of a descriptor in bytes.
pub const LEN: usize = 32;

/// Byte offset of the status. The device writes the first status byte last, which hands the descriptor to the driver.
pub const STATUS_OFFSET: usize = 8;

/// Write-back layout, selected by the queue's QRXFLXP_CNTXT register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Profile {
    /// Layout of earlier controllers, used by iPXE.
    Legacy = 1,
    /// Layout used by Linux, with the hash before the flow ID. Also used for unsupported profiles.
    #[default]
    Nic = 2,
    /// Layout used by DPDK, with the flow ID before the hash.
    Comms = 22,
}

impl Profile {
    /// Returns the profile selected by a QRXFLXP_CNTXT value.
    pub const fn of_register(value: u32) -> Self {
        match value & 0x3f {
            1 => Self::Legacy,
            22 => Self::Comms,
            _ => Self::Nic,
        }
    }
}

describe!(RxBuffers { data, headers });
describe!(RxWriteBack { packet_type, len, header_len, end_of_packet, checks, tag, hash as hex });
describe!(Checks { done, ipv4_error, l4_error });

fn hex(hash: Option<u32>) -> Option<Hex<u32>> {
    hash.map(Hex)
}

impl Field for Tag {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let (Self::First(tag) | Self::Second(tag)) = self;
        to.value(name, Value::Hex((*tag).into()));
    }
}

/// Receive descriptor as posted by the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxBuffers {
    /// Address of the data buffer.
    pub data: Iova,
    /// Address of the header buffer, if the queue splits headers.
    pub headers: Iova,
}

impl RxBuffers {
    /// Parses a posted descriptor.
    pub fn parse(bytes: &[u8; LEN]) -> Self {
        let [data, headers, ..]: [U64; 4] = transmute!(*bytes);
        Self { data: Iova::new(data.get()), headers: Iova::new(headers.get()) }
    }

    /// Returns whether the driver would mistake the posted descriptor for a completed one, because bit 0 of the header
    /// address is also the done bit.
    pub const fn has_done_bit(&self) -> bool {
        self.headers.get() & 1 != 0
    }
}

/// Receive descriptor that the device writes back after it has filled the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxWriteBack {
    /// Packet type of the frame.
    pub packet_type: PacketType,
    /// Number of bytes in the data buffer, 14 bits.
    pub len: u16,
    /// Number of bytes in the header buffer, 11 bits, or `None` if the buffer was not used.
    pub header_len: Option<u16>,
    /// Whether this is the frame's last buffer.
    pub end_of_packet: bool,
    /// Results of the checksum verification.
    pub checks: Checks,
    /// VLAN tag, if one was stripped.
    pub tag: Option<Tag>,
    /// Flow hash, if it was computed.
    pub hash: Option<u32>,
}

/// Results of the checksum verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// The network and transport headers were recognised, and their checksums were verified.
    pub done: bool,
    /// The IPv4 header checksum is wrong.
    pub ipv4_error: bool,
    /// The transport checksum is wrong.
    pub l4_error: bool,
}

/// A stripped VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Tag control information for the first tag field.
    First(u16),
    /// Tag control information for the second tag field.
    Second(u16),
}

#[bitfield(u16, repr = U16, from = u16_le, into = u16_ne)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct Status0 {
    done: bool,
    end_of_packet: bool,
    header_buffer_overflow: bool,
    l3_l4_checked: bool,
    ipv4_error: bool,
    l4_error: bool,
    outer_ip_error: bool,
    outer_udp_error: bool,
    loopback: bool,
    ipv6_extension: bool,
    receive_error: bool,
    crc_present: bool,
    hash_valid: bool,
    first_tag: bool,
    #[bits(2)]
    __: u8,
}

const fn u16_le(value: u16) -> U16 {
    U16::new(value)
}

const fn u16_ne(value: U16) -> u16 {
    value.get()
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct Raw {
    profile: u8,
    cast: u8,
    packet_type: U16,
    len: U16,
    header_len: U16,
    status0: Status0,
    tag_first: U16,
    hash_or_flow: U32,
    status1: U16,
    flags: u8,
    timestamp_low: u8,
    reserved: U16,
    tag_second: U16,
    flow_or_hash: U32,
    timestamp_high: U32,
}

const _: () = assert!(size_of::<Raw>() == LEN);
const _: () = assert!(std::mem::offset_of!(Raw, status0) == STATUS_OFFSET);

#[bitfield(u64, repr = U64, from = U64::new, into = U64::get)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct LegacyStatus {
    done: bool,
    end_of_packet: bool,
    first_tag: bool,
    l3_l4_checked: bool,
    #[bits(8)]
    __: u8,
    /// Filter status. The value 3 means that the hash is valid.
    #[bits(2)]
    filter: u8,
    #[bits(8)]
    __: u8,
    ipv4_error: bool,
    l4_error: bool,
    #[bits(6)]
    __: u8,
    packet_type: u8,
    #[bits(14)]
    len: u16,
    #[bits(11)]
    header_len: u16,
    split: bool,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct LegacyRaw {
    mirror: U16,
    tag_first: U16,
    hash: U32,
    status: LegacyStatus,
    extended_status: U16,
    reserved: U16,
    tag_second: U16,
    tag_third: U16,
    flow: U64,
}

const _: () = assert!(size_of::<LegacyRaw>() == LEN);
const _: () = assert!(std::mem::offset_of!(LegacyRaw, status) == STATUS_OFFSET);

impl RxWriteBack {
    /// Returns the descriptor in the layout of `profile`. The done bit is set, which hands the descriptor to the
    /// driver.
    pub fn emit(&self, profile: Profile) -> [u8; LEN] {
        match profile {
            Profile::Legacy => self.emit_legacy(),
            Profile::Nic | Profile::Comms => self.emit_flexible(profile),
        }
    }

    fn tags(&self) -> (Option<u16>, Option<u16>) {
        match self.tag {
            None => (None, None),
            Some(Tag::First(tag)) => (Some(tag), None),
            Some(Tag::Second(tag)) => (None, Some(tag)),
        }
    }

    fn emit_legacy(&self) -> [u8; LEN] {
        const HASH: u8 = 3;
        let (first, second) = self.tags();
        let [packet_type, _] = self.packet_type.get().to_le_bytes();
        transmute!(LegacyRaw {
            mirror: U16::ZERO,
            tag_first: U16::new(first.unwrap_or_default()),
            hash: U32::new(self.hash.unwrap_or_default()),
            status: LegacyStatus::new()
                .with_done(true)
                .with_end_of_packet(self.end_of_packet)
                .with_first_tag(first.is_some())
                .with_l3_l4_checked(self.checks.done)
                .with_filter(if self.hash.is_some() { HASH } else { 0 })
                .with_ipv4_error(self.checks.ipv4_error)
                .with_l4_error(self.checks.l4_error)
                .with_packet_type(packet_type)
                .with_len(self.len & 0x3fff)
                .with_header_len(self.header_len.unwrap_or_default() & 0x7ff)
                .with_split(self.header_len.is_some()),
            extended_status: U16::new(second.is_some().into()),
            reserved: U16::ZERO,
            tag_second: U16::new(second.unwrap_or_default()),
            tag_third: U16::ZERO,
            flow: U64::ZERO,
        })
    }

    fn emit_flexible(&self, profile: Profile) -> [u8; LEN] {
        /// Flow ID that DPDK treats as "no flow filter matched".
        const NO_FLOW: U32 = U32::new(u32::MAX);
        /// Set if the header buffer was used.
        const SPLIT: u16 = 1 << 11;
        const SECOND_TAG: u16 = 1 << 11;
        let (first, second) = self.tags();
        let hash = U32::new(self.hash.unwrap_or_default());
        let (hash_or_flow, flow_or_hash) = match profile {
            Profile::Comms => (NO_FLOW, hash),
            Profile::Legacy | Profile::Nic => (hash, U32::ZERO),
        };
        transmute!(Raw {
            profile: profile as u8,
            cast: 0,
            packet_type: U16::new(self.packet_type.get()),
            len: U16::new(self.len & 0x3fff),
            header_len: U16::new(self.header_len.map_or(0, |len| len & 0x7ff | SPLIT)),
            status0: Status0::new()
                .with_done(true)
                .with_end_of_packet(self.end_of_packet)
                .with_l3_l4_checked(self.checks.done)
                .with_ipv4_error(self.checks.ipv4_error)
                .with_l4_error(self.checks.l4_error)
                .with_hash_valid(self.hash.is_some())
                .with_first_tag(first.is_some()),
            tag_first: U16::new(first.unwrap_or_default()),
            hash_or_flow,
            status1: U16::new(if second.is_some() { SECOND_TAG } else { 0 }),
            flags: 0,
            timestamp_low: 0,
            reserved: U16::ZERO,
            tag_second: U16::new(second.unwrap_or_default()),
            flow_or_hash,
            timestamp_high: U32::ZERO,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_buffer_addresses() {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&0x1_2345_6000_u64.to_le_bytes());
        bytes[8..16].copy_from_slice(&0x7000_u64.to_le_bytes());
        let buffers = RxBuffers { data: Iova::new(0x1_2345_6000), headers: Iova::new(0x7000) };
        assert_eq!(RxBuffers::parse(&bytes), buffers);
    }

    /// Write-back of a frame with a VLAN tag, correct checksums and a hash.
    #[test]
    fn flex_descriptor_layout_matches_specification() {
        let frame = RxWriteBack {
            packet_type: PacketType::ETHERNET,
            len: 1510,
            header_len: None,
            end_of_packet: true,
            checks: Checks { done: true, ipv4_error: false, l4_error: false },
            tag: Some(Tag::First(0x6005)),
            hash: Some(0x5161_71ca),
        };
        let mut expected = [0; LEN];
        expected[..16].copy_from_slice(&[
            0x02, 0x00, 0x01, 0x00, 0xe6, 0x05, 0x00, 0x00, //
            0x0b, 0x30, 0x05, 0x60, 0xca, 0x71, 0x61, 0x51,
        ]);
        assert_eq!(frame.emit(Profile::Nic), expected);

        let bytes = frame.emit(Profile::Comms);
        assert_eq!((bytes[0], &bytes[1..12]), (22, &expected[1..12]));
        assert_eq!((&bytes[12..16], &bytes[24..28]), (&[0xff; 4][..], &expected[12..16]));

        let split = RxWriteBack { header_len: Some(54), tag: Some(Tag::Second(0x0102)), hash: None, ..frame };
        let bytes = split.emit(Profile::Nic);
        assert_eq!(bytes[6..8], [0x36, 0x08]);
        assert_eq!(bytes[8..16], [0x0b, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..24], [0, 0x08, 0, 0, 0, 0, 0x02, 0x01]);
    }

    /// Write-back of a 1510-byte frame with a VLAN tag and a wrong TCP checksum.
    #[test]
    fn legacy_layout_matches_specified_bytes() {
        let frame = RxWriteBack {
            packet_type: PacketType::ETHERNET,
            len: 1510,
            header_len: None,
            end_of_packet: true,
            checks: Checks { done: true, ipv4_error: false, l4_error: true },
            tag: Some(Tag::First(0x6005)),
            hash: Some(0x5161_71ca),
        };
        let mut expected = [0; LEN];
        expected[..16].copy_from_slice(&[
            0x00, 0x00, 0x05, 0x60, 0xca, 0x71, 0x61, 0x51, //
            0x0f, 0x30, 0x80, 0x40, 0x80, 0x79, 0x01, 0x00,
        ]);
        assert_eq!(frame.emit(Profile::Legacy), expected);

        let split = RxWriteBack { header_len: Some(54), tag: Some(Tag::Second(0x0102)), ..frame };
        let bytes = split.emit(Profile::Legacy);
        assert_eq!(bytes[8..16], [0x0b, 0x30, 0x80, 0x40, 0x80, 0x79, 0x61, 0x83]);
        assert_eq!(bytes[16..24], [0x01, 0, 0, 0, 0x02, 0x01, 0, 0]);
    }

    #[test]
    fn each_status_bit_is_independent() {
        let blank = RxWriteBack {
            packet_type: PacketType::ETHERNET,
            len: 0,
            header_len: None,
            end_of_packet: false,
            checks: Checks::default(),
            tag: None,
            hash: None,
        };
        let status = |frame: RxWriteBack| {
            let bytes = frame.emit(Profile::Nic);
            u16::from_le_bytes([bytes[8], bytes[9]])
        };
        let checks = |checks| status(RxWriteBack { checks, ..blank });
        assert_eq!(status(blank), 1 << 0);
        assert_eq!(status(RxWriteBack { end_of_packet: true, ..blank }), 1 << 1 | 1);
        assert_eq!(checks(Checks { done: true, ..Checks::default() }), 1 << 3 | 1);
        assert_eq!(checks(Checks { ipv4_error: true, ..Checks::default() }), 1 << 4 | 1);
        assert_eq!(checks(Checks { l4_error: true, ..Checks::default() }), 1 << 5 | 1);
        assert_eq!(status(RxWriteBack { hash: Some(0), ..blank }), 1 << 12 | 1);
        assert_eq!(status(RxWriteBack { tag: Some(Tag::First(0)), ..blank }), 1 << 13 | 1);
    }
}
