//! Checks that a responder cannot be used for amplification: each request packet triggers at most one ACK, NAK or
//! atomic response, and a READ at most as many response packets as its length requires. The destination of replies is
//! not checked, since a responder always replies to its connected peer.

use protocol::roce::{Ext, Kind, Packet};

use super::{Checker, SideId, Violation, ensure};
use crate::check::packet_count;

/// Number of replies that a responder may still send.
#[derive(Debug, Default)]
pub(super) struct ReplyAllowance {
    answers: u64,
    read_packets: u64,
}

impl Checker<'_> {
    pub(super) fn on_request(&mut self, id: SideId, packet: &Packet<'_>) {
        let mtu = self.pair(id).mtu.bytes();
        let reply_allowance = &mut self.side_mut(id).reply_allowance;
        reply_allowance.answers += 1;
        if let (Kind::Read, Ext::Reth(reth)) = (packet.bth.opcode.operation.kind(), packet.ext) {
            reply_allowance.read_packets += u64::from(packet_count(reth.dma_len, mtu));
        }
    }

    pub(super) fn check_reply(&mut self, id: SideId, packet: &Packet<'_>) -> Result<(), Violation> {
        let reply_allowance = &mut self.side_mut(id).reply_allowance;
        let left = match packet.bth.opcode.operation.kind() {
            Kind::Acknowledge | Kind::AtomicAcknowledge => &mut reply_allowance.answers,
            _ => &mut reply_allowance.read_packets,
        };
        ensure!(*left > 0, "more replies were sent than the received requests allow");
        *left -= 1;
        Ok(())
    }
}
