//! Checks that UC and UD deliver only complete messages, exactly as posted, and none that must be rejected.

use protocol::ids::{MacAddr, Qkey, Qpn};
use protocol::roce::{Ext, Imm, IpAddrs, RoceFrame};

use super::execution::locate;
use super::side::fits;
use super::{Checker, SideId, Violation, ensure};
use crate::host::{HostEvent, SimHost};
use crate::plan::GRH_BYTES;
use crate::plan::{Area, Op, Pair, pkey_index, va};
use engine::{Access, GrhArea, RecvDone, SendOp, State};

/// The messages received by a side from its peer.
#[derive(Debug)]
pub(super) struct Received {
    /// Index of the first message that can still arrive, if the network keeps packets in order.
    next: usize,
    /// Index of the WRITE being received, and the number of bytes received so far.
    writing: Option<(usize, usize)>,
    /// Number of bytes written so far to the buffers of the receive request at the head of the queue.
    filled: usize,
    /// For each message, whether all its packets have arrived.
    whole: Vec<bool>,
}

/// A datagram that must be received.
#[derive(Debug)]
pub(super) struct Arrival {
    id: SideId,
    payload: Vec<u8>,
    imm: Option<Imm>,
    solicited: bool,
    source: (Qpn, MacAddr),
    grh: bool,
}

impl Received {
    pub(super) fn new(ops: usize) -> Self {
        Self { next: 0, writing: None, filled: 0, whole: vec![false; ops] }
    }
}

impl Checker<'_> {
    /// Returns whether the network keeps packets in order and delivers each at most once.
    fn is_ordered(&self) -> bool {
        self.plan.faults.duplicate == 0 && self.plan.faults.reorder == 0
    }

    pub(super) fn on_connected_access(&mut self, id: SideId, event: &HostEvent) -> Result<(), Violation> {
        let (pair, ordered, peer) = (self.pair(id), self.is_ordered(), id.peer());
        let HostEvent::Write { key, va: at, data, access } = event else {
            return Err("expected a write".to_owned());
        };
        if *access == Access::LocalWrite {
            return self.fill_receive(id, 0, *key, *at, data.len());
        }
        let ops = &self.ops(peer)[..self.side(peer).sends.posted];
        let holds = |op: &&Op| op.to.first().is_some_and(|to| range(to).contains(at));
        let index = ops.iter().position(|op| holds(&op)).ok_or("no request causes this access")?;
        let op = &ops[index];
        let to = op.to[0];
        let offset = usize::try_from(at - range(&to).start).unwrap_or(usize::MAX);
        let bytes = pair.source_bytes(peer.side, &op.from);
        let right = *key == pair.key(id.side, to.region)
            && !op.refused
            && bytes.get(offset..offset + data.len()) == Some(data.as_slice());
        ensure!(right, "the write does not match request {index} at byte {offset}");
        let done = offset + data.len() == op.len as usize;
        let received = &mut self.side_mut(id).received;
        ensure!(
            offset == 0 || received.writing == Some((index, offset)),
            "the write to request {index} starts at byte {offset}, expected byte 0 or the end of the preceding write"
        );
        ensure!(!ordered || index >= received.next, "request {index} was executed after a later request");
        received.writing = Some((index, offset + data.len()));
        received.next = received.next.max(index);
        received.whole[index] |= done && op.imm().is_none();
        Ok(())
    }

    /// Checks a write to the receive request at the head of the queue. The write must start at byte `start` of the
    /// buffers, or at the end of the preceding write.
    fn fill_receive(
        &mut self,
        id: SideId,
        start: usize,
        key: u32,
        at: u64,
        len: usize,
    ) -> Result<(), Violation> {
        let pair: &Pair = self.pair(id);
        let areas = self.next_areas(id, 0).ok_or("no receive request is posted")?;
        let side = self.side_mut(id);
        ensure!(side.fetched.is_some() || !side.shared, "no receive request was fetched");
        let is_at = |offset: usize| {
            locate(&areas, offset).is_some_and(|(area, within)| {
                let expected_at = range(&area).start + within as u64;
                (pair.key(id.side, area.region), expected_at) == (key, at) && len <= area.len - within
            })
        };
        let filled = side.received.filled;
        let from = [filled, start].into_iter().find(|&offset| is_at(offset));
        let from = from.ok_or_else(|| format!("expected a write at byte {filled} of the receive request"))?;
        side.received.filled = from + len;
        Ok(())
    }

    pub(super) fn receive_connected(
        &mut self,
        id: SideId,
        done: &RecvDone,
        host: &SimHost,
    ) -> Result<(), Violation> {
        let (pair, peer) = (self.pair(id), id.peer());
        let side = self.side(id);
        let areas = &self.next_areas(id, 0).ok_or("no receive request is posted")?;
        let skip = if self.is_ordered() { side.received.next } else { 0 };
        let posted = self.side(peer).sends.posted;
        let found = self.ops(peer)[..posted].iter().enumerate().skip(skip).find(|(_, op)| {
            let bytes = pair.source_bytes(peer.side, &op.from);
            let into = if matches!(op.request.op, SendOp::Send { .. }) { areas } else { &op.to };
            let same = || stored(host, pair, id.side, into, bytes.len()) == Some(bytes.clone());
            op.takes_receive() && !op.refused && op.fails.is_empty() && fits(op, done).is_ok() && same()
        });
        let (index, _) = found.ok_or_else(|| format!("no message matches, starting at request {skip}"))?;
        ensure!(
            done.remote_qpn == pair.ends[peer.side].qpn,
            "the completion reports a remote QP that did not send request {index}"
        );
        let received = &mut self.side_mut(id).received;
        (received.filled, received.next) = (0, received.next.max(index + 1));
        received.whole[index] = true;
        Ok(())
    }

    /// Checks that every deliverable message posted after the network was healed has been received.
    pub(super) fn check_nothing_lost(&self, id: SideId) -> Result<(), Violation> {
        let (pair, peer) = (self.pair(id), id.peer());
        let (side, sender) = (self.side(id), self.side(peer));
        let states = [State::Rtr, State::Rts, State::Sqd, State::Sqe];
        let receives = states.contains(&side.state) && side.life == sender.life;
        if pair.service != engine::Service::Uc
            || !receives
            || side.missed_receive
            || side.unreachable_since.is_some()
            || sender.state != State::Rts
        {
            return Ok(());
        }
        let recvs = pair.lives[side.life].sides[id.side].recvs.iter().take(side.recvs.posted);
        let shortest = match self.srq(id) {
            Some(srq) => Some(self.plan.slots[&srq]),
            None => recvs.map(|recv| recv.areas.iter().map(|area| area.len).sum()).min(),
        };
        let ops = self.ops(peer)[..sender.sends.done].iter().enumerate();
        let mut due = ops.filter(|(index, op)| {
            // Received messages are identified by their immediate data or content. A message of a few bytes may have
            // been mistaken for another message, so its delivery is not checked.
            let known = op.imm().is_some() || (op.len >= 8 && op.request.op != SendOp::Nop);
            let fits = op.imm().is_none() && !op.takes_receive() || Some(op.len as usize) <= shortest;
            let sent = op.fails.is_empty() && !op.refused && sender.sent_at[*index] > self.clean_from;
            known && fits && sent && sender.sent_whole(*index, op.packets(pair.mtu))
        });
        match due.find(|(index, _)| !side.received.whole[*index]) {
            Some((index, _)) => Err(format!("the peer's request {index} was not received")),
            None => Ok(()),
        }
    }

    /// Determines the receivers of a multicast datagram. Each group member must receive a copy if it would accept the
    /// same datagram sent by unicast.
    pub(super) fn expect_multicast_copies(&mut self, node: usize, frame: &RoceFrame<'_>) {
        let groups = self.plan.groups.iter().filter(|group| frame.encap.ip.dst() == group.gid);
        let mut taken = std::collections::BTreeMap::<_, usize>::new();
        for &(pair, side) in groups.flat_map(|group| &group.members) {
            let id = SideId { pair, side };
            let of = self.pair(id);
            let concerned = of.service.is_datagram() && of.ends[side].node == node;
            if !concerned || !self.is_member(id, frame.packet.bth.pkey) {
                continue;
            }
            let ahead = taken.entry(self.srq(id)).or_default();
            if let Some(arrival) = self.expect_datagram(id, frame, *ahead) {
                *ahead += usize::from(self.side(id).fetched.is_none());
                self.arrivals.push(arrival);
            }
        }
    }

    /// Returns the receiver of the multicast copy being written.
    pub(super) fn member_of(&self, event: &HostEvent) -> Result<SideId, Violation> {
        let HostEvent::Write { key, va, .. } = event else { return Err("expected a write".to_owned()) };
        let is_of = |id: &SideId| {
            let into =
                |area: &Area| self.pair(*id).key(id.side, area.region) == *key && range(area).contains(va);
            self.next_areas(*id, 0).is_some_and(|areas| areas.iter().any(into))
        };
        let mut ids = self.arrivals.iter().map(|due| due.id);
        ids.find(is_of).ok_or_else(|| format!("no member expects this multicast write: {event:x?}"))
    }

    /// Returns the expected delivery of a datagram, or `None` if it must be dropped. `ahead` is the number of other
    /// receivers that fetch a request from the same shared queue first.
    pub(super) fn expect_datagram(&self, id: SideId, frame: &RoceFrame<'_>, ahead: usize) -> Option<Arrival> {
        let (pair, side) = (self.pair(id), self.side(id));
        let (Ext::Deth(deth) | Ext::DethImm(deth, _)) = frame.packet.ext else { return None };
        let qkey = pair.ends[id.side].qkey;
        let receives = matches!(side.state, State::Rtr | State::Rts | State::Sqd | State::Sqe);
        let allowed = qkey == Qkey::new(0) || qkey == deth.qkey;
        let payload = frame.packet.payload;
        if !receives || !allowed || payload.len() > pair.mtu.bytes() {
            return None;
        }
        let areas = self.next_areas(id, ahead)?;
        let room: usize = areas.iter().map(|area| area.len).sum();
        (head(pair) + payload.len() <= room).then(|| Arrival {
            id,
            payload: payload.to_vec(),
            imm: frame.packet.ext.imm(),
            solicited: frame.packet.bth.solicited,
            source: (deth.src_qp, frame.encap.src_mac),
            grh: matches!(frame.encap.ip, IpAddrs::V6 { .. }),
        })
    }

    pub(super) fn on_datagram_access(&mut self, id: SideId, event: &HostEvent) -> Result<(), Violation> {
        let due = self.arrivals.iter().find(|due| due.id == id).ok_or("the datagram must be dropped")?;
        let pair = self.pair(id);
        // Without a GRH in the packet, the GRH area stays unchanged.
        let skipped = pair.grh_area == GrhArea::InfiniBand && !due.grh;
        let start = if skipped { GRH_BYTES } else { 0 };
        match event {
            HostEvent::Write { key, va, data, access: Access::LocalWrite } => {
                self.fill_receive(id, start, *key, *va, data.len())
            }
            _ => Err("expected a local write".to_owned()),
        }
    }

    pub(super) fn receive_datagram(
        &mut self,
        id: SideId,
        done: &RecvDone,
        host: &SimHost,
    ) -> Result<(), Violation> {
        let pair = self.pair(id);
        let due = self.arrivals.iter().position(|due| due.id == id);
        let due = self.arrivals.remove(due.ok_or("the datagram must be dropped")?);
        let areas = &self.next_areas(id, 0).ok_or("no receive request is posted")?;
        let len = head(pair) + due.payload.len();
        let found = stored(host, pair, id.side, areas, len)
            .ok_or("the datagram is longer than its receive request")?;
        ensure!(found.ends_with(&due.payload), "the received payload differs from the datagram");
        // IBTA annex A17: the IPv4 header is in the last 20 bytes of the GRH area.
        let header = match (pair.grh_area, due.grh) {
            (GrhArea::None, _) | (GrhArea::InfiniBand, false) => true,
            (GrhArea::Roce, false) => found[20] == 0x45,
            (GrhArea::Roce, true) => (found[0] >> 4, found[6]) == (6, 17),
            // IBTA volume 1, section 8.3.3: IP version 6, next header 1Bh.
            (GrhArea::InfiniBand, true) => (found[0] >> 4, found[6]) == (6, 0x1b),
        };
        ensure!(header, "the GRH area has an invalid header: {:02x?}", &found[..head(pair)]);
        let index = pkey_index(id.pair, id.side);
        ensure!(
            (done.grh, done.pkey_index) == (due.grh, index),
            "the GRH flag or the P_Key index of the completion does not match {due:?}"
        );
        ensure!(
            done.byte_len as usize == len
                && (done.imm, done.solicited) == (due.imm, due.solicited)
                && (done.remote_qpn, done.remote_mac) == due.source,
            "the completion does not match {due:?}"
        );
        self.side_mut(id).received.filled = 0;
        Ok(())
    }

    pub(super) fn check_datagram(
        &self,
        id: SideId,
        nth: usize,
        frame: &RoceFrame<'_>,
    ) -> Result<(), Violation> {
        let pair = self.pair(id);
        let op = &self.ops(id)[nth];
        let (Ext::Deth(deth) | Ext::DethImm(deth, _)) = frame.packet.ext else {
            return Err("the packet has no DETH".to_owned());
        };
        let to = op.request.ud.as_ref().ok_or("the request has no destination")?;
        let own = pair.ends[id.side].qkey;
        // IBTA 10.2.5: a controlled Q_Key is replaced with the Q_Key of the sending QP.
        let qkey = if to.qkey.get() >> 31 == 1 { own } else { to.qkey };
        let source = pair.ends[id.side].qpn;
        ensure!(
            (deth.qkey, deth.src_qp) == (qkey, source),
            "the DETH is {deth:?}, expected {qkey:?} and source QP {source:?}"
        );
        ensure!(
            frame.packet.bth.dest_qp == to.qpn && frame.encap.ip == to.path.ip,
            "the destination does not match request {nth}"
        );
        ensure!(
            frame.packet.payload == pair.source_bytes(id.side, &op.from),
            "the payload does not match request {nth}"
        );
        ensure!(frame.packet.ext.imm() == op.imm(), "the immediate data does not match request {nth}");
        Ok(())
    }
}

fn head(pair: &Pair) -> usize {
    if pair.grh_area == GrhArea::None { 0 } else { GRH_BYTES }
}

fn range(area: &Area) -> std::ops::Range<u64> {
    let first = va(area.region) + area.offset as u64;
    first..first + area.len as u64
}

/// Returns the first `len` bytes in a side's areas, or `None` if the areas are shorter.
fn stored(host: &SimHost, pair: &Pair, side: usize, areas: &[Area], len: usize) -> Option<Vec<u8>> {
    let bytes = areas.iter().flat_map(|area| {
        &host.regions[&pair.key(side, area.region)].bytes[area.offset..area.offset + area.len]
    });
    let found: Vec<u8> = bytes.take(len).copied().collect();
    (found.len() == len).then_some(found)
}
