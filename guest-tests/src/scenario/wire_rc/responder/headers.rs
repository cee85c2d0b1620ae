//! Header fields: what is not looked at, and what is dropped before anything is executed, each for its reason.

use anyhow::{Result, ensure};

use super::{accepted, case, dropped};
use crate::packet_peer::{Op, Packet};
use crate::scenario::wire_rc::Case;
use crate::scenario::wire_rc::link::{Link, message, state};

pub(in crate::scenario::wire_rc) const CASES: &[Case] = &[
    case("FECN, BECN and the reserved bits of the BTH are not looked at", |link| {
        accepted(link, |packet| (packet.fecn, packet.becn, packet.reserved) = (true, true, true))
    }),
    case("a packet on its last hop is heard", |link| accepted(link, |packet| packet.ttl = 1)),
    case("any DSCP is heard", |link| accepted(link, |packet| packet.ecn = 0xb8)),
    case("a transport version other than 0 is dropped", |link| {
        dropped(link, "/port/dropped/invalid", |packet| packet.tver = 1)
    }),
    case("an invalid P_Key is dropped", |link| {
        dropped(link, "/engine/drops/wrong_pkey", |packet| packet.pkey = 0x8000)
    }),
    case("a packet for a queue pair that is not there is dropped", |link| {
        dropped(link, "/engine/drops/unknown_qp", |packet| packet.qpn ^= 0x200)
    }),
    case("a packet for an earlier queue pair at the same place of the table is dropped", |link| {
        dropped(link, "/engine/drops/unknown_qp", |packet| packet.qpn ^= 0x1d_0000)
    }),
    case("a packet from another address than the peer's is dropped", |link| {
        dropped(link, "/engine/drops/wrong_source", |packet| packet.source = Some([10, 77, 0, 99].into()))
    }),
    case("a frame that lacks its end is dropped", |link| {
        dropped(link, "/port/dropped/short", |packet| packet.cut = 1)
    }),
    case("a frame without a whole BTH is dropped", |link| {
        dropped(link, "/port/dropped/short", |packet| packet.cut = 72)
    }),
    case("more pad than there is payload is dropped", |link| {
        dropped(link, "/port/dropped/short", |packet| {
            packet.payload.0.clear();
            packet.pad = Some(3);
        })
    }),
    case("a congestion notification is counted, not answered, and harms nobody", notification),
];

/// IBTA annex A17, section A17.9.3: 16 reserved bytes behind the BTH.
fn notification(link: &mut Link<'_>) -> Result<()> {
    let notice = Packet { becn: true, ..link.packet(Op::Code(0x81), 0, &[0; 16]) };
    let before = link.counter("/engine/congestion/received_cnps")?;
    link.send(&notice)?;
    link.expect_silence()?;
    let heard = link.counter("/engine/congestion/received_cnps")? - before;
    ensure!(heard == 1, "{heard} notifications received");
    link.expect_state(state::RTS)?;
    link.expect_receives(0, 1)?;
    link.expect_memory(4096, &message(3 * link.mtu))
}
