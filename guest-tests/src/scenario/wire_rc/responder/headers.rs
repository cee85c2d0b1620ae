//! Tests header fields that the HCA ignores, and values that make it drop the packet. Drops must be counted by reason.

use anyhow::{Result, ensure};

use super::{accepted, case, dropped};
use crate::packet_peer::{Op, Packet};
use crate::scenario::wire_rc::Case;
use crate::scenario::wire_rc::link::{Link, message, state};

pub(in crate::scenario::wire_rc) const CASES: &[Case] = &[
    case("FECN, BECN and the reserved bits of the BTH are ignored", |link| {
        accepted(link, |packet| (packet.fecn, packet.becn, packet.reserved) = (true, true, true))
    }),
    case("a packet with hop limit 1 is accepted", |link| accepted(link, |packet| packet.ttl = 1)),
    case("any DSCP is accepted", |link| accepted(link, |packet| packet.ecn = 0xb8)),
    case("a transport version other than 0 is dropped", |link| {
        dropped(link, "/port/dropped/invalid", |packet| packet.tver = 1)
    }),
    case("an invalid P_Key is dropped", |link| {
        dropped(link, "/engine/drops/wrong_pkey", |packet| packet.pkey = 0x8000)
    }),
    case("a packet for an unknown QP is dropped", |link| {
        dropped(link, "/engine/drops/unknown_qp", |packet| packet.qpn ^= 0x200)
    }),
    case("a packet for an earlier QP with the same index is dropped", |link| {
        dropped(link, "/engine/drops/unknown_qp", |packet| packet.qpn ^= 0x1d_0000)
    }),
    case("a packet from an address other than the peer's is dropped", |link| {
        dropped(link, "/engine/drops/wrong_source", |packet| packet.source = Some([10, 77, 0, 99].into()))
    }),
    case("a truncated frame is dropped", |link| {
        dropped(link, "/port/dropped/short", |packet| packet.cut = 1)
    }),
    case("a frame without a complete BTH is dropped", |link| {
        dropped(link, "/port/dropped/short", |packet| packet.cut = 72)
    }),
    case("a pad count larger than the payload is dropped", |link| {
        dropped(link, "/port/dropped/short", |packet| {
            packet.payload.0.clear();
            packet.pad = Some(3);
        })
    }),
    case("a CNP is counted, gets no response and has no other effect", notification),
];

/// Checks a CNP, which has 16 reserved bytes after the BTH (IBTA annex A17, section A17.9.3).
fn notification(link: &mut Link<'_>) -> Result<()> {
    let notice = Packet { becn: true, ..link.packet(Op::Code(0x81), 0, &[0; 16]) };
    let before = link.counter("/engine/congestion/received_cnps")?;
    link.send(&notice)?;
    link.expect_silence()?;
    let received = link.counter("/engine/congestion/received_cnps")? - before;
    ensure!(received == 1, "{received} CNPs received");
    link.expect_state(state::RTS)?;
    link.expect_receives(0, 1)?;
    link.expect_memory(4096, &message(3 * link.mtu))
}
