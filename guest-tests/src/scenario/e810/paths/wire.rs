//! Checks the traffic classes, VLAN priorities and source ports of captured packets. Networks use these fields
//! to prioritise and distribute packets.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::VLAN;
use crate::run_dir::RunDir;
use crate::scenario::nic::station::Station;
use crate::tools::{Exchange, Ready};

const LIMIT: Duration = Duration::from_secs(60);
/// Type of service with DSCP 26 and without ECN.
const CLASS: u8 = 0x68;
/// The ECN codepoint ECT(0) (RFC 3168, section 5). The driver sets it for connections on devices that support DCQCN.
const CAPABLE: u8 = 2;
/// VLAN priority of packets with type of service [`CLASS`]. Linux assigns them priority 2, which the VLAN interface
/// maps to this value.
const PRIORITY: u16 = 5;
/// Upper bits of UD opcodes.
const UD: u8 = 0x60;
/// Lowest UDP source port of RoCEv2 packets. Source ports are in the dynamic range (IBTA annex A17, section A17.4.3).
const FIRST_PORT: u16 = 0xc000;

/// Fields of a captured RoCE packet that identify and classify its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packet {
    tag: Option<u16>,
    source: IpAddr,
    class: u8,
    port: u16,
    opcode: u8,
    qpn: u32,
}

/// Captures a station's frames to files in the run directory, so that CI checks them with the run's other captures.
#[derive(Debug)]
pub(super) struct Wire<'a>(pub(super) &'a RunDir);

impl Wire<'_> {
    /// Checks that all packets of a connection carry its traffic class and, in a VLAN, the corresponding priority.
    pub(super) async fn class_of_connection(&self, a: &mut Station, b: &mut Station) -> Result<()> {
        for network in [0, VLAN] {
            let (of_a, of_b) = (a.address(network).ipv4, b.address(network).ipv4);
            let server = format!("ucmatose -b {of_b} -C 20 -S 3000");
            let client = format!("ucmatose -s {of_b} -b {of_a} -C 20 -S 3000 -t {CLASS}");
            let packets = self.captured((a, b), &format!("rc-class-{network}"), [server, client]).await?;
            let connected = packets.iter().filter(|packet| packet.opcode & 0xe0 == 0);
            all_of_class(connected.copied(), CLASS | CAPABLE, network)?;
        }
        Ok(())
    }

    /// Checks that all datagrams carry the sender's traffic class, except those that set up the connection.
    pub(super) async fn class_of_datagrams(&self, a: &mut Station, b: &mut Station) -> Result<()> {
        for network in [0, VLAN] {
            let (of_a, of_b) = (a.address(network).ipv4, b.address(network).ipv4);
            let server = format!("udaddy -b {of_b} -C 20 -S 1000");
            let client = format!("udaddy -s {of_b} -b {of_a} -C 20 -S 1000 -t {CLASS}");
            let packets = self.captured((a, b), &format!("ud-class-{network}"), [server, client]).await?;
            let of_a: IpAddr = of_a.parse()?;
            let datagrams = packets
                .iter()
                .filter(|packet| packet.opcode & 0xe0 == UD && packet.qpn > 1 && packet.source == of_a);
            all_of_class(datagrams.copied(), CLASS, network)?;
        }
        Ok(())
    }

    /// Checks that a connection keeps its source port and that connections between the same hosts use different ports.
    pub(super) async fn ports_of_flows(&self, a: &mut Station, b: &mut Station) -> Result<()> {
        const CONNECTIONS: usize = 8;
        for ipv6 in [false, true] {
            let of = |station: &Station| {
                let address = station.address(0);
                if ipv6 { address.ipv6 } else { address.ipv4 }
            };
            let (of_a, of_b) = (of(a), of(b));
            let server = format!("ucmatose -b {of_b} -C 10 -c {CONNECTIONS}");
            let client = format!("ucmatose -s {of_b} -b {of_a} -C 10 -c {CONNECTIONS}");
            let packets = self
                .captured((a, b), &format!("ports-{}", if ipv6 { 6 } else { 4 }), [server, client])
                .await?;
            let own: IpAddr = of_a.parse()?;
            let mut ports = BTreeMap::new();
            for packet in packets.iter().filter(|packet| packet.source == own && packet.opcode & 0xe0 == 0) {
                let port = *ports.entry(packet.qpn).or_insert(packet.port);
                ensure!(
                    packet.port == port && port >= FIRST_PORT,
                    "{packet:?} belongs to a flow with port {port}"
                );
            }
            ensure!(ports.len() == CONNECTIONS, "{CONNECTIONS} connections used the ports {ports:?}");
            let mut different: Vec<u16> = ports.into_values().collect();
            different.sort_unstable();
            different.dedup();
            // If eight ports are chosen at random from 16,384, two are equal in about one run in six hundred. In
            // practice, at least seven are distinct.
            ensure!(different.len() >= CONNECTIONS - 1, "too few distinct ports: {different:?}");
        }
        Ok(())
    }

    /// Runs a program and returns the frames that station `a` sent and received while it ran.
    async fn captured(
        &self,
        (a, b): (&mut Station, &mut Station),
        name: &str,
        [server, client]: [String; 2],
    ) -> Result<Vec<Packet>> {
        let file = self.0.file(format!("hcad-a-{name}.pcapng"));
        let daemon = a.daemon.as_ref().context("the guest has no daemon")?.controls();
        daemon.ask(&["capture", "on", &file.display().to_string()]).await?;
        let exchange = Exchange { server, client, ready: Ready::Cm, limit: LIMIT };
        let ends = exchange.run(&mut b.vm, &mut a.vm).await;
        daemon.ask(&["capture", "off"]).await?;
        ends?;
        let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(frames(&bytes).filter_map(packet).collect())
    }
}

fn all_of_class(packets: impl Iterator<Item = Packet>, class: u8, network: u16) -> Result<()> {
    const LEAST: u32 = 20;
    let tag = (network != 0).then_some(PRIORITY << 13 | network);
    let mut count = 0;
    for packet in packets {
        ensure!(
            (packet.class, packet.tag) == (class, tag),
            "expected class {class:#x} and tag {tag:x?}: {packet:?}"
        );
        count += 1;
    }
    ensure!(count >= LEAST, "only {count} packets");
    Ok(())
}

/// Yields the frames of a little-endian pcapng file.
fn frames(mut file: &[u8]) -> impl Iterator<Item = &[u8]> {
    const ENHANCED_PACKET: u32 = 6;
    const DATA: usize = 28;
    let word = |block: &[u8], at: usize| {
        let bytes = block.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    std::iter::from_fn(move || {
        let (kind, len) = (word(file, 0)?, usize::try_from(word(file, 4)?).ok()?);
        let (block, rest) = file.split_at_checked(len.max(12))?;
        file = rest;
        Some((kind, block))
    })
    .filter(|(kind, _)| *kind == ENHANCED_PACKET)
    .filter_map(move |(_, block)| {
        let len = usize::try_from(word(block, 20)?).ok()?;
        block.get(DATA..DATA + len)
    })
}

/// Parses the fields of a RoCEv2 frame that identify and classify its flow.
fn packet(frame: &[u8]) -> Option<Packet> {
    const ROCE: u16 = 4791;
    const UDP: u8 = 17;
    let half = |bytes: &[u8], at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let (tag, ether_type, ip) = match half(frame, 12)? {
        0x8100 => (Some(half(frame, 14)?), half(frame, 16)?, frame.get(18..)?),
        other => (None, other, frame.get(14..)?),
    };
    let (source, class, protocol, udp) = match ether_type {
        0x0800 => {
            let source: [u8; 4] = *ip.get(12..)?.first_chunk()?;
            (IpAddr::from(source), *ip.get(1)?, *ip.get(9)?, ip.get(20..)?)
        }
        0x86dd => {
            let source: [u8; 16] = *ip.get(8..)?.first_chunk()?;
            let [_, class] = (half(ip, 0)? >> 4).to_be_bytes();
            (IpAddr::from(source), class, *ip.get(6)?, ip.get(40..)?)
        }
        _ => return None,
    };
    if protocol != UDP || half(udp, 2)? != ROCE {
        return None;
    }
    let bth: [u8; 12] = *udp.get(8..)?.first_chunk()?;
    let [opcode, _, _, _, _, high, middle, low, ..] = bth;
    let qpn = u32::from_be_bytes([0, high, middle, low]);
    Some(Packet { tag, source, class, port: half(udp, 0)?, opcode, qpn })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_of_tagged_frame_are_parsed() {
        let mut frame = vec![0; 12];
        frame.extend([0x81, 0, 0x40, 100, 0x08, 0]);
        frame.extend([0x45, 0x68, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0xc1, 0x23, 0x12, 0xb7, 0, 40, 0, 0]);
        frame.extend([4, 0, 0xff, 0xff, 0, 0, 1, 2, 0, 0, 0, 0]);
        let expected = Packet {
            tag: Some(0x4064),
            source: [10, 0, 0, 1].into(),
            class: 0x68,
            port: 0xc123,
            opcode: 4,
            qpn: 0x102,
        };
        assert_eq!(packet(&frame), Some(expected));
        let block = [
            &6_u32.to_le_bytes()[..],
            &(32 + u32::try_from(frame.len()).unwrap()).to_le_bytes(),
            &[0; 12],
            &u32::try_from(frame.len()).unwrap().to_le_bytes(),
            &[0; 4],
            &frame,
            &[0; 4],
        ]
        .concat();
        let file = [&[0x0a, 0x0d, 0x0d, 0x0a, 12, 0, 0, 0, 12, 0, 0, 0][..], &block, &block].concat();
        assert_eq!(frames(&file).collect::<Vec<_>>(), [&frame[..], &frame]);
    }
}
