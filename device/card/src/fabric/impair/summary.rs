//! The frame fields that rules can match. Checksums are not verified, because rules also apply to damaged frames.

use std::fmt;
use std::net::IpAddr;

use protocol::ids::MacAddr;
use protocol::net::ether::{EtherFrame, EtherType};
use protocol::net::ipv4::Ipv4;
use protocol::net::ipv6::Ipv6;
use protocol::roce::Bth;

const ETHER_LEN: usize = 14;
const UDP_LEN: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct Addrs {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameSummary {
    pub(super) src_mac: MacAddr,
    pub(super) dst_mac: MacAddr,
    pub(super) ip: Option<Addrs>,
    /// Offset of the IP header, if the frame has one.
    pub(super) ip_at: usize,
    /// BTH of a RoCE packet.
    pub(super) bth: Option<Bth>,
    /// Offset of the first byte that may be corrupted: the start of the BTH in a RoCE packet, or the first byte
    /// after the Ethernet header and its VLAN tag in other frames.
    pub(super) body: usize,
}

impl FrameSummary {
    pub(super) fn of(frame: &[u8]) -> Self {
        // A frame that ends inside its VLAN tag still has MAC addresses.
        let parsed =
            EtherFrame::parse_tagged(frame).map(|(ether, _)| ether).or_else(|_| EtherFrame::parse(frame));
        let Ok(ether) = parsed else { return Self { body: ETHER_LEN, ..Self::default() } };
        let ip_at = frame.len() - ether.payload.len();
        let (ip, header_len, payload) = match ether.ether_type {
            EtherType::Ipv4 => match Ipv4::parse(ether.payload) {
                Ok((ip, payload)) => (Some(Addrs { src: ip.src.into(), dst: ip.dst.into() }), 20, payload),
                Err(_) => (None, 0, &[][..]),
            },
            EtherType::Ipv6 => match Ipv6::parse(ether.payload) {
                Ok((ip, payload)) => (Some(Addrs { src: ip.src.into(), dst: ip.dst.into() }), 40, payload),
                Err(_) => (None, 0, &[][..]),
            },
            EtherType::Arp | EtherType::Other(_) => (None, 0, &[][..]),
        };
        let transport = payload.get(UDP_LEN..).filter(|_| ether.is_roce());
        let bth = transport.and_then(|bytes| Bth::parse(bytes).ok()).map(|(bth, ..)| bth);
        let body = if bth.is_some() { ip_at + header_len + UDP_LEN } else { ip_at };
        Self { src_mac: ether.src, dst_mac: ether.dst, ip, ip_at, bth, body }
    }
}

impl fmt::Display for FrameSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bth {
            Some(bth) => write!(f, "{}, QP {}, PSN {:#x}", bth.opcode, bth.dest_qp, bth.psn.get())?,
            None => f.write_str("not RoCE")?,
        }
        match &self.ip {
            Some(Addrs { src, dst }) => write!(f, ", {src} to {dst}"),
            None => write!(f, ", {} to {}", self.src_mac, self.dst_mac),
        }
    }
}
