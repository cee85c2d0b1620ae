//! READ responses: each carries the bytes that its PSN stands for in a READ of this connection.
//!
//! The net hands responders READs of their own QP and peer that repeat nothing (`stale`). An answer to one is noticed here:
//! its PSN is of another request, or of other bytes.

use protocol::roce::Packet;

use super::{Checker, Place, Violation, demand};
use crate::SendOp;

impl Checker<'_> {
    /// `place` sends a READ response.
    pub(super) fn judge_read_response(&self, place: Place, packet: &Packet<'_>) -> Result<(), Violation> {
        let (pair, peer) = (self.pair(place), place.peer());
        let ops = self.ops(peer);
        let (nth, at) = self.side(peer).flight.find(packet.bth.psn);
        let op = nth.and_then(|nth| ops.get(nth)).filter(|op| matches!(op.request.op, SendOp::Read { .. }));
        let op =
            op.ok_or_else(|| format!("answers a READ at {:?} that was never executed", packet.bth.psn))?;
        let offset = at as usize * pair.mtu.bytes();
        let bytes = pair.source_bytes(place.side, &op.from);
        let answer = bytes.get(offset..offset + packet.payload.len());
        demand!(answer == Some(packet.payload), "not byte {offset} and following of READ {nth:?}");
        Ok(())
    }
}
