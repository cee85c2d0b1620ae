//! Answers are fewer than what asks for them: one acknowledge, refusal or result for each request packet, and of a READ as
//! many packets as it asks for, each time it asks. All go to the connected peer, whoever sent the request.

use protocol::roce::{Ext, Kind, Packet};

use super::{Checker, Place, Violation, demand};
use crate::segment::packet_count;

/// Answers that a responder may still send.
#[derive(Debug, Default)]
pub(super) struct Owed {
    answers: u64,
    read_packets: u64,
}

impl Checker<'_> {
    /// A request arrives at `place`.
    pub(super) fn owe(&mut self, place: Place, packet: &Packet<'_>) {
        let mtu = self.pair(place).mtu.bytes();
        let owed = &mut self.side_mut(place).owed;
        owed.answers += 1;
        if let (Kind::Read, Ext::Reth(reth)) = (packet.bth.opcode.operation.kind(), packet.ext) {
            owed.read_packets += u64::from(packet_count(reth.dma_len, mtu));
        }
    }

    /// `place` answers.
    pub(super) fn judge_answer(&mut self, place: Place, packet: &Packet<'_>) -> Result<(), Violation> {
        let owed = &mut self.side_mut(place).owed;
        let left = match packet.bth.opcode.operation.kind() {
            Kind::Acknowledge | Kind::AtomicAcknowledge => &mut owed.answers,
            _ => &mut owed.read_packets,
        };
        demand!(*left > 0, "an answer that nobody asked for");
        *left -= 1;
        Ok(())
    }
}
