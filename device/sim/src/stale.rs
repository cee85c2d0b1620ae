//! Stale READ requests. They look like duplicates, but are not copies of a request that the responder executed: they
//! are forged, or left over from an earlier connection.

use protocol::Psn;
use protocol::roce::{Bth, Ext, Opcode, Operation, Packet, Reth, RoceFrame};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::plan::{Pair, draw, draw_target_srq, path};

/// Draws a READ from the peer of `side`, with a valid key and a PSN before `expected`. The PSN is either arbitrary, or
/// recent enough that a real request on this connection probably used it.
pub(super) fn draw_read(rng: &mut ChaCha8Rng, pair: &Pair, side: usize, expected: Psn) -> RoceFrame<'static> {
    let (mine, theirs) = (&pair.ends[side], &pair.ends[1 - side]);
    let behind = if rng.random() { rng.random_range(1..=64) } else { rng.random_range(1..=1 << 23) };
    let len = draw::draw_len(rng, pair.mtu.bytes());
    let remote = pair.remote(side, draw::draw_source(rng, pair, side, len));
    let dma_len = u32::try_from(len).expect("messages are short");
    let (opcode, srqn) = if pair.is_xrc() {
        (Opcode::xrc(Operation::ReadRequest), Some(draw_target_srq(rng, pair)))
    } else {
        (Opcode::rc(Operation::ReadRequest), None)
    };
    let bth = Bth {
        opcode,
        solicited: false,
        mig_req: true,
        pkey: theirs.pkey,
        fecn: false,
        becn: false,
        dest_qp: mine.qpn,
        ack_req: true,
        psn: expected.retreat(behind),
    };
    let ext = Ext::Reth(Reth { va: remote.va, rkey: remote.rkey, dma_len });
    RoceFrame { encap: path(theirs.node, mine.node), packet: Packet { bth, srqn, ext, payload: b"" } }
}
