//! Checks READ responses: each must carry the bytes that its PSN addresses in a READ of this connection.
//!
//! The simulation also injects stale READs, which duplicate no request (see `stale`). A response to a stale READ fails
//! this check, because its PSN belongs to another request or to other bytes.

use protocol::roce::Packet;

use super::{Checker, SideId, Violation, ensure};
use engine::SendOp;

impl Checker<'_> {
    /// Checks a READ response sent by a side.
    pub(super) fn check_read_response(&self, id: SideId, packet: &Packet<'_>) -> Result<(), Violation> {
        let (pair, peer) = (self.pair(id), id.peer());
        let ops = self.ops(peer);
        let (nth, at) = self.side(peer).flight.find(packet.bth.psn);
        let op = nth.and_then(|nth| ops.get(nth)).filter(|op| matches!(op.request.op, SendOp::Read { .. }));
        let op = op.ok_or_else(|| format!("no READ of the peer covers {:?}", packet.bth.psn))?;
        let offset = at as usize * pair.mtu.bytes();
        let bytes = pair.source_bytes(id.side, &op.from);
        let answer = bytes.get(offset..offset + packet.payload.len());
        ensure!(answer == Some(packet.payload), "the payload does not match READ {nth:?} at byte {offset}");
        Ok(())
    }
}
