//! Transmit descriptors.
//!
//! A frame consists of an optional context descriptor and one data descriptor for each buffer. The last data descriptor
//! has the EOP bit set. All data descriptors of a frame contain the same header lengths and, except for EOP and RS, the
//! same command.
//!
//! # Spec
//! E810 interface, section 8.2.

use bitfield_struct::bitfield;

use crate::describe::{Describe, Field, Hex, Value, Visitor, describe};
use crate::ids::Iova;

/// Length of a descriptor in bytes.
pub const LEN: usize = 16;

/// Offset of the byte that the device overwrites when the descriptor is done.
pub const DONE_OFFSET: u64 = 8;

/// Descriptor type written when a descriptor is done.
const DONE: u8 = 0xf;

/// A parsed transmit descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxDescriptor {
    /// Type 0: a buffer of a frame.
    Data(DataDescriptor),
    /// Type 1: additional parameters for the frame that follows.
    Context(ContextDescriptor),
    /// Type 8: a flow director rule. The next data descriptor points to a sample frame.
    FilterProgram,
    /// A descriptor of any other type.
    Unknown(u8),
}

impl TxDescriptor {
    /// Returns the name used in traces.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Data(_) => "data",
            Self::Context(_) => "context",
            Self::FilterProgram => "filter_program",
            Self::Unknown(_) => "unknown",
        }
    }
}

impl Describe for TxDescriptor {
    fn describe(&self, to: &mut dyn Visitor) {
        match self {
            Self::Data(data) => data.describe(to),
            Self::Context(context) => context.describe(to),
            Self::FilterProgram => {}
            Self::Unknown(kind) => Hex(*kind).show("type", to),
        }
    }
}

/// Data descriptor: a buffer of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataDescriptor {
    /// Address of the buffer.
    pub buffer: Iova,
    /// Length of the buffer in bytes, 14 bits.
    pub len: u16,
    /// Requested offloads and flags.
    pub command: Command,
    /// Lengths of the headers that the offloads modify.
    pub headers: HeaderLengths,
    /// Tag control information to insert, if requested by the command.
    pub tag: u16,
}

describe!(DataDescriptor { buffer, len, command, headers, tag as Hex });

/// Command field of a data descriptor.
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct Command {
    /// Bit 0, EOP: last buffer of the frame.
    pub end_of_packet: bool,
    /// Bit 1, RS: mark the descriptor as done when the frame has been read.
    pub report_status: bool,
    __: bool,
    /// Bit 3, IL2TAG1: insert a VLAN tag.
    pub insert_tag: bool,
    /// Bit 4, DUMMY: do not send the bytes.
    pub dummy: bool,
    /// Bits 6:5, IIPT: type of the IP header (for a tunnel, the inner one).
    #[bits(2)]
    pub ip: IpType,
    __: bool,
    /// Bits 9:8, L4T: transport checksum to compute.
    #[bits(2)]
    pub l4: L4Type,
    /// Bit 10, RE: report event.
    pub report_event: bool,
    #[bits(5)]
    __: u8,
}

/// Type of the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum IpType {
    /// The driver does not indicate an IP header.
    None = 0,
    V6 = 1,
    V4 = 2,
    /// IPv4; compute the header checksum.
    V4Checksum = 3,
}

impl IpType {
    const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::None,
            1 => Self::V6,
            2 => Self::V4,
            _ => Self::V4Checksum,
        }
    }

    const fn into_bits(self) -> u8 {
        self as u8
    }
}

/// Type of the transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum L4Type {
    /// No transport checksum offload.
    None = 0,
    Tcp = 1,
    Sctp = 2,
    Udp = 3,
}

impl L4Type {
    const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::None,
            1 => Self::Tcp,
            2 => Self::Sctp,
            _ => Self::Udp,
        }
    }

    const fn into_bits(self) -> u8 {
        self as u8
    }
}

impl Field for Command {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let flags = [
            (self.end_of_packet(), "EOP"),
            (self.report_status(), "RS"),
            (self.insert_tag(), "IL2TAG1"),
            (self.dummy(), "DUMMY"),
            (self.report_event(), "RE"),
        ];
        let ip = match self.ip() {
            IpType::None => None,
            IpType::V6 => Some("IPV6"),
            IpType::V4 => Some("IPV4"),
            IpType::V4Checksum => Some("IPV4_CSUM"),
        };
        let l4 = match self.l4() {
            L4Type::None => None,
            L4Type::Tcp => Some("TCP"),
            L4Type::Sctp => Some("SCTP"),
            L4Type::Udp => Some("UDP"),
        };
        let set = flags.iter().filter_map(|(set, name)| set.then_some(*name));
        let names: smallvec::SmallVec<[_; 8]> = set.chain(ip).chain(l4).collect();
        // Bits 2, 7 and 11 are reserved.
        to.value(name, Value::Set(&names, u64::from(self.into_bits() & 0x884)));
    }
}

/// Header lengths in bytes. For a tunnel, the IP and transport headers are the inner ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderLengths {
    /// Length of everything before the first IP header; a multiple of 2.
    pub mac: u8,
    /// Length of the IP header with options or extension headers; a multiple of 4.
    pub ip: u16,
    /// Length of the transport header; a multiple of 4.
    pub l4: u8,
}

describe!(HeaderLengths { mac, ip, l4 });

/// Context descriptor: additional parameters for the frame that follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextDescriptor {
    /// Outer headers, if the frame is tunnelled.
    pub tunnel: Tunnel,
    /// Tag control information of an outer VLAN tag to insert. The data descriptors contain the inner tag.
    pub tag2: Option<u16>,
    /// Segmentation offload (TSO) parameters, if requested.
    pub segmentation: Option<Segmentation>,
    /// Where to forward the frame.
    pub destination: Destination,
}

describe!(ContextDescriptor { tunnel as unless_absent, tag2 as hex, segmentation, destination });

fn unless_absent(tunnel: Tunnel) -> Option<Tunnel> {
    (tunnel != Tunnel::default()).then_some(tunnel)
}

fn hex(tag: Option<u16>) -> Option<Hex<u16>> {
    tag.map(Hex)
}

/// Destination of a frame, as requested by the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Destination {
    /// Use the switch rules.
    #[default]
    Rules,
    /// Send to the wire, regardless of the switch rules.
    Wire,
    /// Send to other VSIs only.
    Local,
    /// Send to this VSI only.
    Vsi(u16),
}

impl Field for Destination {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        match self {
            Self::Rules => to.value(name, Value::Name("RULES")),
            Self::Wire => to.value(name, Value::Name("UPLINK")),
            Self::Local => to.value(name, Value::Name("LOCAL")),
            Self::Vsi(vsi) => to.value(name, Value::Text(format_args!("VSI {vsi}"))),
        }
    }
}

/// Segmentation offload (TSO) parameters for a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segmentation {
    /// Payload length in bytes, 18 bits.
    pub payload_len: u32,
    /// Maximum payload length of a segment (MSS) in bytes, 14 bits.
    pub mss: u16,
}

describe!(Segmentation { payload_len, mss });

/// Headers between the Ethernet header and the inner IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// Type of the outer IP header.
    pub ip: OuterIp,
    /// Length of the outer IP header in bytes.
    pub ip_len: u16,
    /// Protocol after the outer IP header.
    pub kind: TunnelKind,
    /// Number of bytes between the end of the outer IP header and the start of the inner one.
    pub len: u8,
    /// Compute the outer UDP checksum.
    pub udp_checksum: bool,
}

describe!(Tunnel { ip, ip_len, kind, len, udp_checksum });

/// Type of the outer IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum OuterIp {
    /// The frame is not tunnelled.
    #[default]
    None,
    V6,
    V4,
    /// IPv4; compute the header checksum.
    V4Checksum,
}

/// Protocol after the outer IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TunnelKind {
    /// The inner IP header follows directly.
    #[default]
    Ip,
    /// A UDP header and the tunnel header, for example VXLAN or GENEVE.
    Udp,
    Gre,
}

impl Field for OuterIp {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(
            name,
            Value::Name(match self {
                Self::None => "NONE",
                Self::V6 => "IPV6",
                Self::V4 => "IPV4",
                Self::V4Checksum => "IPV4_CSUM",
            }),
        );
    }
}

impl Field for TunnelKind {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(
            name,
            Value::Name(match self {
                Self::Ip => "IP",
                Self::Udp => "UDP",
                Self::Gre => "GRE",
            }),
        );
    }
}

/// Second word of a data descriptor.
#[bitfield(u64)]
struct DataWord {
    #[bits(4)]
    kind: u8,
    #[bits(12)]
    command: u16,
    /// Length of the Ethernet header in units of 2 bytes.
    #[bits(7)]
    mac_len: u8,
    /// Length of the IP header in units of 4 bytes.
    #[bits(7)]
    ip_len: u8,
    /// Length of the transport header in units of 4 bytes.
    #[bits(4)]
    l4_len: u8,
    #[bits(14)]
    size: u16,
    tag: u16,
}

/// First word of a context descriptor.
#[bitfield(u64)]
struct TunnelWord {
    #[bits(2)]
    outer_ip: u8,
    /// Length of the outer IP header in units of 4 bytes.
    #[bits(7)]
    outer_ip_len: u8,
    #[bits(2)]
    kind: u8,
    __: bool,
    /// Distance between the outer and the inner IP header in units of 2 bytes.
    #[bits(7)]
    len: u8,
    #[bits(4)]
    __: u8,
    udp_checksum: bool,
    __: u8,
    tag2: u16,
    __: u16,
}

/// Second word of a context descriptor.
#[bitfield(u64)]
struct ContextWord {
    #[bits(4)]
    kind: u8,
    segmentation: bool,
    timestamp: bool,
    tag2: bool,
    tag2_low: bool,
    #[bits(2)]
    destination: u8,
    __: bool,
    #[bits(19)]
    __: u32,
    #[bits(18)]
    payload_len: u32,
    #[bits(2)]
    __: u8,
    /// MSS, or the VSI number if the destination is a VSI.
    #[bits(14)]
    mss: u16,
}

impl TxDescriptor {
    /// Parses the descriptor from its bytes.
    pub fn parse(bytes: &[u8; LEN]) -> Self {
        const DATA: u8 = 0;
        const CONTEXT: u8 = 1;
        const FILTER_PROGRAM: u8 = 8;
        let [first, second]: [zerocopy::little_endian::U64; 2] = zerocopy::transmute!(*bytes);
        let (first, second) = (first.get(), second.get());
        match DataWord::from_bits(second).kind() {
            DATA => Self::Data(DataDescriptor::new(first, DataWord::from_bits(second))),
            CONTEXT => Self::Context(ContextDescriptor::new(
                TunnelWord::from_bits(first),
                ContextWord::from_bits(second),
            )),
            FILTER_PROGRAM => Self::FilterProgram,
            other => Self::Unknown(other),
        }
    }
}

impl DataDescriptor {
    fn new(buffer: u64, word: DataWord) -> Self {
        Self {
            buffer: Iova::new(buffer),
            len: word.size(),
            command: Command::from_bits(word.command()),
            headers: HeaderLengths {
                mac: word.mac_len() * 2,
                ip: u16::from(word.ip_len()) * 4,
                l4: word.l4_len() * 4,
            },
            tag: word.tag(),
        }
    }

    /// Returns the value to write to the byte at [`DONE_OFFSET`] when the descriptor is done. The byte contains the
    /// descriptor type and the low bits of the command; only the type changes.
    pub const fn done(&self) -> u8 {
        let [low, _] = self.command.into_bits().to_le_bytes();
        low << 4 | DONE
    }
}

impl ContextDescriptor {
    fn new(tunnel: TunnelWord, word: ContextWord) -> Self {
        Self {
            tunnel: Tunnel {
                ip: match tunnel.outer_ip() {
                    0 => OuterIp::None,
                    1 => OuterIp::V6,
                    2 => OuterIp::V4,
                    _ => OuterIp::V4Checksum,
                },
                ip_len: u16::from(tunnel.outer_ip_len()) * 4,
                kind: match tunnel.kind() {
                    1 => TunnelKind::Udp,
                    2 => TunnelKind::Gre,
                    _ => TunnelKind::Ip,
                },
                len: tunnel.len() * 2,
                udp_checksum: tunnel.udp_checksum(),
            },
            tag2: word.tag2().then_some(tunnel.tag2()),
            segmentation: word
                .segmentation()
                .then_some(Segmentation { payload_len: word.payload_len(), mss: word.mss() }),
            destination: match word.destination() {
                0 => Destination::Rules,
                1 => Destination::Wire,
                2 => Destination::Local,
                _ => Destination::Vsi(word.mss() & 0x3ff),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(first: u64, second: u64) -> TxDescriptor {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        TxDescriptor::parse(&bytes)
    }

    fn data(second: u64) -> DataDescriptor {
        match descriptor(0x4_7495_0000, second) {
            TxDescriptor::Data(data) => data,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn data_descriptor_fields_are_decoded() {
        let all = data(0x1234_0000_0000_0000 | 0x3fff << 34 | 5 << 30 | 5 << 23 | 7 << 16 | 0x36b << 4);
        assert_eq!(all.buffer, Iova::new(0x4_7495_0000));
        assert_eq!((all.len, all.tag), (0x3fff, 0x1234));
        assert_eq!(all.headers, HeaderLengths { mac: 14, ip: 20, l4: 20 });
        let command = all.command;
        assert!(command.end_of_packet() && command.report_status() && command.insert_tag());
        assert!(!command.dummy() && !command.report_event());
        assert_eq!((command.ip(), command.l4()), (IpType::V4Checksum, L4Type::Udp));
    }

    #[test]
    fn each_command_bit_is_decoded() {
        let command = |bits: u64| data(bits << 4).command;
        assert!(command(0x001).end_of_packet());
        assert!(command(0x002).report_status());
        assert!(command(0x008).insert_tag());
        assert!(command(0x010).dummy());
        assert!(command(0x400).report_event());
        for (bits, ip) in
            [(0, IpType::None), (0x20, IpType::V6), (0x40, IpType::V4), (0x60, IpType::V4Checksum)]
        {
            assert_eq!(command(bits).ip(), ip);
        }
        for (bits, l4) in
            [(0, L4Type::None), (0x100, L4Type::Tcp), (0x200, L4Type::Sctp), (0x300, L4Type::Udp)]
        {
            assert_eq!(command(bits).l4(), l4);
        }
    }

    #[test]
    fn largest_header_lengths_fit() {
        let most = data(0xf << 30 | 0x7f << 23 | 0x7f << 16);
        assert_eq!(most.headers, HeaderLengths { mac: 254, ip: 508, l4: 60 });
    }

    #[test]
    fn done_byte_preserves_command_bits() {
        let word: u64 = 0x1234_5678_9abc_de30;
        assert_eq!(data(word).done(), 0x3f);
        assert_eq!(data(0).done(), 0x0f);
    }

    #[test]
    fn context_descriptor_fields_are_decoded() {
        let tunnel = 0xabcd << 32 | 1 << 23 | 8 << 12 | 1 << 9 | 5 << 2 | 3;
        let word = 1448 << 50 | 65_000 << 30 | (1 | 4) << 4 | 1;
        let expected = ContextDescriptor {
            tunnel: Tunnel {
                ip: OuterIp::V4Checksum,
                ip_len: 20,
                kind: TunnelKind::Udp,
                len: 16,
                udp_checksum: true,
            },
            tag2: Some(0xabcd),
            segmentation: Some(Segmentation { payload_len: 65_000, mss: 1448 }),
            destination: Destination::Rules,
        };
        assert_eq!(descriptor(tunnel, word), TxDescriptor::Context(expected));
        assert_eq!(descriptor(0, 1), TxDescriptor::Context(ContextDescriptor::default()));
        let most = descriptor(0, u64::MAX << 50 | 0x3_ffff << 30 | 1 << 4 | 1);
        let segmentation = Some(Segmentation { payload_len: 0x3_ffff, mss: 0x3fff });
        assert_eq!(
            most,
            TxDescriptor::Context(ContextDescriptor { segmentation, ..ContextDescriptor::default() })
        );
    }

    #[test]
    fn context_descriptor_destination_is_decoded() {
        let destination = |switch: u64| match descriptor(0, 7 << 50 | switch << 4 | 1) {
            TxDescriptor::Context(context) => context.destination,
            other => panic!("{other:?}"),
        };
        let all = [Destination::Rules, Destination::Wire, Destination::Local, Destination::Vsi(7)];
        assert_eq!([0, 0x10, 0x20, 0x30].map(destination), all);
    }

    #[test]
    fn filter_program_and_unknown_types_are_decoded() {
        assert_eq!(descriptor(0, 8), TxDescriptor::FilterProgram);
        for kind in [2, 7, 9, 0xf] {
            assert_eq!(descriptor(0, kind.into()), TxDescriptor::Unknown(kind));
        }
    }
}
