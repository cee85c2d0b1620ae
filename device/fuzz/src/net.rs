//! Fuzzes a port with ARP, neighbour discovery, echo and RoCE frames. About half of the frames have correct checksums.
//! The port must send no more frames to a host than the host has sent to it, and must still answer its static neighbour
//! afterwards.

use card::fabric::TxBatch;
use card::identity::Identity;
use card::net::{DropReason, Port};
use engine::Instant;
use protocol::ids::Lid;
use protocol::net::checksum::Checksum;
use protocol::roce::Offload;

use super::OPERATIONS;
use super::input::Input;

/// LIDs that determine the identities of the port, a static neighbour and an unknown host.
const OWN: u16 = 2;
const NEIGHBOUR: u16 = 3;
const OTHER: u16 = 1;

/// Maximum length of the random part of a frame.
const BODY: u8 = 200;

/// Maximum number of bytes by which a reply may exceed its request. An advertisement contains an 8-byte option that the
/// shortest probe lacks (RFC 4861, section 7.2.4).
const OPTION: usize = 8;

pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut port = Port::new(identity(OWN));
    port.add_static_neighbour(&identity(NEIGHBOUR));
    let mut now = Instant::ZERO;
    let mut received = 0;
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        if operation >= 240 {
            now = Instant::from_nanos(now.as_nanos().saturating_add(u64::from(input.word()) << 4));
            while port.next_resolved().is_some() {}
            let ip = identity(u16::from(input.byte() % 4)).ip();
            let _ = port.resolve(now, ip);
            port.wait(now, ip, vec![0; 60]);
            continue;
        }
        let frame = frame(operation, &mut input);
        receive(&mut port, now, &frame);
        received += 1;
        assert_eq!(counted(&port), received, "every frame must be counted exactly once");
    }
    check_arp_reply(&mut port, now);
}

fn receive(port: &mut Port, now: Instant, frame: &[u8]) {
    let Some(untagged) = port.untag(frame) else { return };
    let mut answers = TxBatch::default();
    let handed_on = port.receive(now, &untagged, Offload::None, &mut answers).is_some();
    assert!(answers.len() <= usize::from(!handed_on));
    for (dst, answer) in answers.iter() {
        assert_eq!(
            (&dst.0[..], &answer[..6]),
            (&untagged[6..12], &untagged[6..12]),
            "a reply must go to the sender of its request"
        );
        assert!(
            answer.len() <= frame.len() + OPTION,
            "a frame of {} bytes caused a reply of {} bytes",
            frame.len(),
            answer.len()
        );
    }
}

/// Returns the number of frames accepted, answered or dropped.
fn counted(port: &Port) -> u64 {
    let stats = port.stats();
    let dropped: u64 = DropReason::ALL.into_iter().map(|reason| stats.dropped(reason)).sum();
    stats.roce + stats.arp + stats.echo + stats.neighbour_discovery + dropped
}

fn identity(number: u16) -> Identity {
    Identity::from_lid(Lid::new(number))
}

fn frame(operation: u8, input: &mut Input<'_>) -> Vec<u8> {
    let choice = input.byte();
    if operation >= 224 {
        return input.bytes(255).to_vec();
    }
    let from = identity([OTHER, OTHER, NEIGHBOUR, OWN][usize::from(choice & 3)]);
    let to = identity(OWN);
    let mut frame = match choice >> 2 & 7 {
        0 => vec![0xff; 6],
        1 => vec![0x33, 0x33, 0xff, 0, 0, 2],
        2 => vec![0x33, 0x33, 0, 0, 0, 1],
        _ => to.mac.0.to_vec(),
    };
    frame.extend(from.mac.0);
    if choice >> 5 == 7 {
        frame.extend([0x81, 0x00, input.byte(), input.byte() & 3]);
    }
    let link = frame.len();
    match operation % 4 {
        0 => arp(&mut frame, from, to, input),
        1 => ipv4(&mut frame, from, to, input),
        _ => ipv6(&mut frame, from, to, input),
    }
    // Change some bytes, then correct the checksums of about half of the frames.
    for _ in 0..input.byte() % 4 {
        let at = usize::from(input.byte()) % frame.len();
        frame[at] = input.byte();
    }
    if operation & 0x40 == 0 {
        fix_checksums(&mut frame[link..]);
    }
    frame
}

fn arp(frame: &mut Vec<u8>, from: Identity, to: Identity, input: &mut Input<'_>) {
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, input.byte() % 4]);
    frame.extend(from.mac.0);
    frame.extend(from.ipv4.octets());
    frame.extend([0; 6]);
    frame.extend(to.ipv4.octets());
}

fn ipv4(frame: &mut Vec<u8>, from: Identity, to: Identity, input: &mut Input<'_>) {
    let (protocol, body) = ([1, 1, 17, 6][usize::from(input.byte() % 4)], input.bytes(BODY));
    let transport = head(protocol, input);
    let len = u8::try_from(20 + transport.len() + body.len()).unwrap_or(u8::MAX);
    frame.extend([0x08, 0x00, 0x45, 0, 0, len, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(from.ipv4.octets());
    frame.extend(to.ipv4.octets());
    frame.extend(transport);
    frame.extend(body);
}

fn ipv6(frame: &mut Vec<u8>, from: Identity, to: Identity, input: &mut Input<'_>) {
    let choice = input.byte();
    let kind = [135, 136, 128, 135][usize::from(choice & 3)];
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    message.extend(to.link_local().octets());
    if choice & 4 == 0 {
        message.extend([1 + (choice & 1), 1]);
        message.extend(from.mac.0);
    }
    message.extend(input.bytes(BODY / 2));
    let len = u8::try_from(message.len()).unwrap_or(u8::MAX);
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, len, 58, if choice & 8 == 0 { 255 } else { 64 }]);
    frame.extend(if choice & 0x10 == 0 { from.link_local().octets() } else { [0; 16] });
    frame.extend(match choice >> 5 & 3 {
        0 => protocol::net::icmpv6::solicited_node(to.link_local()).octets(),
        1 => protocol::net::icmpv6::ALL_NODES.octets(),
        _ => to.link_local().octets(),
    });
    frame.extend(message);
}

/// Returns the first bytes of an echo request or a RoCE datagram.
fn head(protocol: u8, input: &mut Input<'_>) -> [u8; 8] {
    match protocol {
        17 => [0xc0, 0, 0x12, 0xb7, 0, input.byte().wrapping_add(8), 0, 0],
        _ => [8, 0, 0, 0, 0, 1, 0, input.byte()],
    }
}

/// Corrects the checksums of a packet that starts with its EtherType.
fn fix_checksums(packet: &mut [u8]) {
    let fill = |field: Option<&mut [u8]>, sum: u16| {
        if let Some(field) = field {
            field.copy_from_slice(&sum.to_be_bytes());
        }
    };
    match packet {
        [0x08, 0x00, ip @ ..] if ip.len() >= 24 => {
            ip[10..12].fill(0);
            let sum = Checksum::new().with(&ip[..20]).value();
            fill(ip.get_mut(10..12), sum);
            ip[22..24].fill(0);
            let sum = Checksum::new().with(&ip[20..]).value();
            fill(ip.get_mut(22..24), sum);
        }
        [0x86, 0xdd, ip @ ..] if ip.len() >= 44 => {
            ip[42..44].fill(0);
            let (addresses, message) = (Checksum::new().with(&ip[8..40]), &ip[40..]);
            let len = u16::try_from(message.len()).unwrap_or(u16::MAX);
            let sum = addresses.with_u16(len).with_u16(58).with(message).value();
            fill(ip.get_mut(42..44), sum);
        }
        _ => {}
    }
}

/// Checks that the port still answers an ARP request from its static neighbour.
fn check_arp_reply(port: &mut Port, now: Instant) {
    let later = Instant::from_nanos(now.as_nanos().saturating_add(1_000_000_000));
    let mut frame = vec![0xff; 6];
    frame.extend(identity(NEIGHBOUR).mac.0);
    arp(&mut frame, identity(NEIGHBOUR), identity(OWN), &mut Input::new(&[1]));
    let mut answers = TxBatch::default();
    assert!(port.receive(later, &frame, Offload::None, &mut answers).is_none());
    assert_eq!(answers.len(), 1, "the ARP request must be answered");
}
