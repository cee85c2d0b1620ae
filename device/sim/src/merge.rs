//! Merges consecutive packets of a message into one large packet, as carried by a frame with segmentation offload.

use protocol::roce::{
    Bth, Encap, Ext, ExtKind, Kind, MAX_OFFLOADED_PAYLOAD, Mtu, Opcode, Packet, Position, RoceFrame,
    Transport,
};

/// Several packets with common headers.
#[derive(Debug)]
pub(crate) struct Merged {
    encap: Encap,
    bth: Bth,
    srqn: Option<protocol::ids::Srqn>,
    ext: Ext,
    payload: Vec<u8>,
    pub(crate) mtu: Mtu,
}

impl Merged {
    pub(crate) fn encap(&self) -> &Encap {
        &self.encap
    }

    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet { bth: self.bth, srqn: self.srqn, ext: self.ext, payload: &self.payload }
    }
}

/// Returns how many packets at the start of `frames` can be merged, at least 1.
pub(crate) fn mergeable(frames: &[(usize, RoceFrame<'_>)]) -> usize {
    let Some((to, first)) = frames.first() else { return 1 };
    let Some(mtu) = Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == first.packet.payload.len()) else {
        return 1;
    };
    let is_next = |pair: &[(usize, RoceFrame<'_>)]| match pair {
        [(_, before), (node, after)] => node == to && follows(before, after, mtu),
        _ => false,
    };
    let count = 1 + frames.windows(2).take_while(|pair| is_next(pair)).count();
    count.min(MAX_OFFLOADED_PAYLOAD / mtu.bytes())
}

/// Returns whether `after` continues the message of `before`, a packet with a full payload.
fn follows(before: &RoceFrame<'_>, after: &RoceFrame<'_>, mtu: Mtu) -> bool {
    let (old, new) = (&before.packet, &after.packet);
    let Opcode { transport, operation } = old.bth.opcode;
    let (kind, next) = (operation.kind(), new.bth.opcode.operation);
    let encap = Encap { fragment: after.encap.fragment, src_port: after.encap.src_port, ..before.encap };
    let bth = Bth {
        opcode: new.bth.opcode,
        psn: new.bth.psn,
        ack_req: new.bth.ack_req,
        solicited: new.bth.solicited,
        ..old.bth
    };
    matches!(kind, Kind::Send | Kind::Write | Kind::ReadResponse)
        && (transport, kind) == (new.bth.opcode.transport, next.kind())
        && transport != Transport::Ud
        && encap == after.encap
        && bth == new.bth
        && !old.bth.ack_req
        && new.bth.psn == old.bth.psn.advance(1)
        && new.srqn == old.srqn
        && !operation.position().ends()
        && !next.position().begins()
        && old.payload.len() == mtu.bytes()
        && (1..=mtu.bytes()).contains(&new.payload.len())
}

/// Merges packets, at most as many as [`mergeable`] returned. Returns `None` for a single packet, and for packets that
/// cannot be merged, such as responses with different credits.
pub(crate) fn merge(frames: &[(usize, RoceFrame<'_>)]) -> Option<Merged> {
    let [(_, first), .., (_, last)] = frames else { return None };
    let mtu = Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == first.packet.payload.len())?;
    let (begins, ends) = (
        first.packet.bth.opcode.operation.position().begins(),
        last.packet.bth.opcode.operation.position().ends(),
    );
    let operation = last.packet.bth.opcode.operation.at(Position::of(begins, ends));
    let opcode = Opcode { operation, ..first.packet.bth.opcode };
    let ext = match (opcode.ext_kind(), first.packet.ext, last.packet.ext) {
        (ExtKind::None, ..) => Ext::None,
        (ExtKind::RethImm, Ext::Reth(reth), Ext::Imm(imm)) => Ext::RethImm(reth, imm),
        (ExtKind::Reth, ext, _) => ext,
        (ExtKind::Aeth, ext, _) if begins => ext,
        (_, _, ext) => ext,
    };
    let bth = Bth { opcode, psn: first.packet.bth.psn, ..last.packet.bth };
    let payload = frames.iter().flat_map(|(_, frame)| frame.packet.payload).copied().collect();
    let merged = Merged { encap: first.encap, bth, srqn: first.packet.srqn, ext, payload, mtu };
    let packets = frames.iter().map(|(_, frame)| frame.packet);
    merged.packet().segments(mtu).eq(packets).then_some(merged)
}
