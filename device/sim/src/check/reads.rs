//! Checks that each READ response belongs to a READ posted on this connection and carries the bytes for its PSN.
//!
//! The simulation also injects stale READs, which do not duplicate any request (see `stale`). A response to a stale
//! READ fails this check because its PSN belongs to a different request or to different bytes.

use protocol::roce::{Ext, Packet};

use super::{Checker, SideId, Violation, ensure};
use engine::SendOp;

impl Checker<'_> {
    /// Returns whether a READ request to `node` repeats all or part of a READ that the peer sent earlier. The responder
    /// must execute such a request.
    pub(crate) fn repeats_read(&self, node: usize, packet: &Packet<'_>) -> bool {
        let (Ok(id), Ext::Reth(reth)) = (self.find(node, packet.bth.dest_qp), packet.ext) else {
            return false;
        };
        let peer = id.peer();
        let (nth, at) = self.side(peer).flight.find(packet.bth.psn);
        let Some(op) = nth.and_then(|nth| self.ops(peer).get(nth)) else { return false };
        let SendOp::Read { remote, .. } = op.request.op else { return false };
        let offset = u64::from(at) * self.pair(id).mtu.bytes() as u64;
        reth.rkey == remote.rkey
            && reth.va.get() == remote.va.get().wrapping_add(offset)
            && offset + u64::from(reth.dma_len) <= u64::from(op.len)
    }

    pub(super) fn check_read_response(&self, id: SideId, packet: &Packet<'_>) -> Result<(), Violation> {
        let (pair, peer) = (self.pair(id), id.peer());
        let ops = self.ops(peer);
        let (nth, at) = self.side(peer).flight.find(packet.bth.psn);
        let op = nth.and_then(|nth| ops.get(nth)).filter(|op| matches!(op.request.op, SendOp::Read { .. }));
        let op = op.ok_or_else(|| format!("no READ from the peer covers {:?}", packet.bth.psn))?;
        let offset = at as usize * pair.mtu.bytes();
        let bytes = pair.source_bytes(id.side, &op.from);
        let answer = bytes.get(offset..offset + packet.payload.len());
        ensure!(answer == Some(packet.payload), "the payload does not match READ {nth:?} at byte {offset}");
        Ok(())
    }
}
