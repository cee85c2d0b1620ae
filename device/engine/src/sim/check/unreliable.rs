//! What UC and UD may deliver: messages whole, as they were posted, and nothing that is refused.

use protocol::ids::{MacAddr, Qkey, Qpn};
use protocol::roce::{Ext, Imm, IpAddrs, RoceFrame};

use super::execution::locate;
use super::side::fits;
use super::{Checker, Place, Violation, demand};
use crate::limits::GRH_BYTES;
use crate::sim::host::{SimHost, Touch};
use crate::sim::plan::{Area, Op, Pair, pkey_index, va};
use crate::{Access, GrhArea, RecvDone, SendOp, State};

/// What a side received of its peer's messages.
#[derive(Debug)]
pub(super) struct Received {
    /// Messages from here on may still come, on a net that keeps their order.
    next: usize,
    /// WRITE being stored, and its bytes so far.
    writing: Option<(usize, usize)>,
    /// Bytes that were stored for the receive request at the head of the queue.
    filled: usize,
    /// Which arrived whole.
    whole: Vec<bool>,
}

/// A datagram that must be received.
#[derive(Debug)]
pub(super) struct Arrival {
    place: Place,
    payload: Vec<u8>,
    imm: Option<Imm>,
    solicited: bool,
    source: (Qpn, MacAddr),
    /// It has a global route header.
    grh: bool,
}

impl Received {
    pub(super) fn new(ops: usize) -> Self {
        Self { next: 0, writing: None, filled: 0, whole: vec![false; ops] }
    }
}

impl Checker<'_> {
    /// Whether the net keeps the order of packets and delivers each once.
    fn is_ordered(&self) -> bool {
        self.plan.faults.duplicate == 0 && self.plan.faults.reorder == 0
    }

    pub(super) fn touch_connected(&mut self, place: Place, touch: &Touch) -> Result<(), Violation> {
        let (pair, ordered, peer) = (self.pair(place), self.is_ordered(), place.peer());
        let Touch::Write { key, va: at, data, access } = touch else {
            return Err("no such operation".to_owned());
        };
        if *access == Access::LocalWrite {
            return self.fill_receive(place, 0, *key, *at, data.len());
        }
        let ops = &self.ops(peer)[..self.side(peer).sends.posted];
        let holds = |op: &&Op| op.to.first().is_some_and(|to| range(to).contains(at));
        let index = ops.iter().position(|op| holds(&op)).ok_or("nobody asked for it")?;
        let op = &ops[index];
        let to = op.to[0];
        let offset = usize::try_from(at - range(&to).start).unwrap_or(usize::MAX);
        let bytes = pair.source_bytes(peer.side, &op.from);
        let right = *key == pair.key(place.side, to.region)
            && !op.refused
            && bytes.get(offset..offset + data.len()) == Some(data.as_slice());
        demand!(right, "not byte {offset} of request {index}");
        let done = offset + data.len() == op.len as usize;
        let received = &mut self.side_mut(place).received;
        demand!(offset == 0 || received.writing == Some((index, offset)), "request {index} has a hole");
        demand!(!ordered || index >= received.next, "request {index} is late");
        received.writing = Some((index, offset + data.len()));
        received.next = received.next.max(index);
        received.whole[index] |= done && op.imm().is_none();
        Ok(())
    }

    /// Stores for the receive request at the head of the queue begin at its start, and go on without a hole.
    fn fill_receive(
        &mut self,
        place: Place,
        start: usize,
        key: u32,
        at: u64,
        len: usize,
    ) -> Result<(), Violation> {
        let pair: &Pair = self.pair(place);
        let areas = self.next_areas(place, 0).ok_or("no receive request is posted")?;
        let side = self.side_mut(place);
        demand!(side.held.is_some() || !side.shared, "no receive request was taken");
        let is_at = |offset: usize| {
            locate(&areas, offset).is_some_and(|(area, within)| {
                let place_of = range(&area).start + within as u64;
                (pair.key(place.side, area.region), place_of) == (key, at) && len <= area.len - within
            })
        };
        let filled = side.received.filled;
        let from = [filled, start].into_iter().find(|&offset| is_at(offset));
        let from = from.ok_or_else(|| format!("receive request has {filled} bytes"))?;
        side.received.filled = from + len;
        Ok(())
    }

    pub(super) fn receive_connected(
        &mut self,
        place: Place,
        done: &RecvDone,
        host: &SimHost,
    ) -> Result<(), Violation> {
        let (pair, peer) = (self.pair(place), place.peer());
        let side = self.side(place);
        let areas = &self.next_areas(place, 0).ok_or("no receive request")?;
        let skip = if self.is_ordered() { side.received.next } else { 0 };
        let posted = self.side(peer).sends.posted;
        let found = self.ops(peer)[..posted].iter().enumerate().skip(skip).find(|(_, op)| {
            let bytes = pair.source_bytes(peer.side, &op.from);
            let into = if matches!(op.request.op, SendOp::Send { .. }) { areas } else { &op.to };
            let same = || stored(host, pair, place.side, into, bytes.len()) == Some(bytes.clone());
            op.takes_receive() && !op.refused && op.fails.is_empty() && fits(op, done).is_ok() && same()
        });
        let (index, _) = found.ok_or_else(|| format!("no message from {skip} on is like that"))?;
        demand!(done.remote_qpn == pair.ends[peer.side].qpn, "of request {index}");
        let received = &mut self.side_mut(place).received;
        (received.filled, received.next) = (0, received.next.max(index + 1));
        received.whole[index] = true;
        Ok(())
    }

    /// What was posted when the net was clean, and could be received, was received.
    pub(super) fn nothing_lost(&self, place: Place) -> Result<(), Violation> {
        let (pair, peer) = (self.pair(place), place.peer());
        let (side, sender) = (self.side(place), self.side(peer));
        let states = [State::Rtr, State::Rts, State::Sqd, State::Sqe];
        let receives = states.contains(&side.state) && side.life == sender.life;
        if pair.service != crate::Service::Uc
            || !receives
            || side.missed_receive
            || side.silent_since.is_some()
            || sender.state != State::Rts
        {
            return Ok(());
        }
        let recvs = pair.lives[side.life].sides[place.side].recvs.iter().take(side.recvs.posted);
        let shortest = match self.srq(place) {
            Some(srq) => Some(self.plan.slots[&srq]),
            None => recvs.map(|recv| recv.areas.iter().map(|area| area.len).sum()).min(),
        };
        let ops = self.ops(peer)[..sender.sends.done].iter().enumerate();
        let mut due = ops.filter(|(index, op)| {
            // An empty message may have been taken for another one.
            let known = op.imm().is_some() || (op.len >= 8 && op.request.op != SendOp::Nop);
            let fits = op.imm().is_none() && !op.takes_receive() || Some(op.len as usize) <= shortest;
            let sent = op.fails.is_empty() && !op.refused && sender.sent_at[*index] > self.clean_from;
            known && fits && sent && sender.sent_whole(*index, op.packets(pair.mtu))
        });
        match due.find(|(index, _)| !side.received.whole[*index]) {
            Some((index, _)) => Err(format!("request {index} of its peer was never received")),
            None => Ok(()),
        }
    }

    /// What must become of a datagram to a group: each member receives what it would receive of one for itself.
    pub(super) fn expect_copies(&mut self, node: usize, frame: &RoceFrame<'_>) {
        let groups = self.plan.groups.iter().filter(|group| frame.encap.ip.dst() == group.gid);
        let mut taken = std::collections::BTreeMap::<_, usize>::new();
        for &(pair, side) in groups.flat_map(|group| &group.members) {
            let place = Place { pair, side };
            let of = self.pair(place);
            let concerned = of.service.is_datagram() && of.ends[side].node == node;
            if !concerned || !self.is_member(place, frame.packet.bth.pkey) {
                continue;
            }
            let ahead = taken.entry(self.srq(place)).or_default();
            if let Some(arrival) = self.expect_datagram(place, frame, *ahead) {
                *ahead += usize::from(self.side(place).held.is_none());
                self.arrivals.push(arrival);
            }
        }
    }

    /// The receiver of a copy that is being stored.
    pub(super) fn member_of(&self, touch: &Touch) -> Result<Place, Violation> {
        let Touch::Write { key, va, .. } = touch else { return Err("no such operation".to_owned()) };
        let is_of = |place: &Place| {
            let into = |area: &Area| {
                self.pair(*place).key(place.side, area.region) == *key && range(area).contains(va)
            };
            self.next_areas(*place, 0).is_some_and(|areas| areas.iter().any(into))
        };
        let mut places = self.arrivals.iter().map(|due| due.place);
        places.find(is_of).ok_or_else(|| format!("a datagram to a group must not be stored: {touch:x?}"))
    }

    /// What must become of a datagram; `None` if it must be dropped. `ahead` others take requests of a shared queue
    /// before.
    pub(super) fn expect_datagram(
        &self,
        place: Place,
        frame: &RoceFrame<'_>,
        ahead: usize,
    ) -> Option<Arrival> {
        let (pair, side) = (self.pair(place), self.side(place));
        let (Ext::Deth(deth) | Ext::DethImm(deth, _)) = frame.packet.ext else { return None };
        let qkey = pair.ends[place.side].qkey;
        let receives = matches!(side.state, State::Rtr | State::Rts | State::Sqd | State::Sqe);
        let allowed = qkey == Qkey::new(0) || qkey == deth.qkey;
        let payload = frame.packet.payload;
        if !receives || !allowed || payload.len() > pair.mtu.bytes() {
            return None;
        }
        let areas = self.next_areas(place, ahead)?;
        let room: usize = areas.iter().map(|area| area.len).sum();
        (head(pair) + payload.len() <= room).then(|| Arrival {
            place,
            payload: payload.to_vec(),
            imm: frame.packet.ext.imm(),
            solicited: frame.packet.bth.solicited,
            source: (deth.src_qp, frame.encap.src_mac),
            grh: matches!(frame.encap.ip, IpAddrs::V6 { .. }),
        })
    }

    pub(super) fn touch_datagram(&mut self, place: Place, touch: &Touch) -> Result<(), Violation> {
        let due =
            self.arrivals.iter().find(|due| due.place == place).ok_or("the datagram must be dropped")?;
        let pair = self.pair(place);
        // The area of a header that the packet does not have stays as it is.
        let skipped = pair.grh_area == GrhArea::InfiniBand && !due.grh;
        let start = if skipped { GRH_BYTES } else { 0 };
        match touch {
            Touch::Write { key, va, data, access: Access::LocalWrite } => {
                self.fill_receive(place, start, *key, *va, data.len())
            }
            _ => Err("no such operation".to_owned()),
        }
    }

    pub(super) fn receive_datagram(
        &mut self,
        place: Place,
        done: &RecvDone,
        host: &SimHost,
    ) -> Result<(), Violation> {
        let pair = self.pair(place);
        let due = self.arrivals.iter().position(|due| due.place == place);
        let due = self.arrivals.remove(due.ok_or("the datagram must be dropped")?);
        let areas = &self.next_areas(place, 0).ok_or("no receive request")?;
        let len = head(pair) + due.payload.len();
        let found = stored(host, pair, place.side, areas, len).ok_or("longer than its receive request")?;
        demand!(found.ends_with(&due.payload), "wrong bytes");
        // IBTA annex A17: the IPv4 header is the second half of the GRH area.
        let header = match (pair.grh_area, due.grh) {
            (GrhArea::None, _) | (GrhArea::InfiniBand, false) => true,
            (GrhArea::Roce, false) => found[20] == 0x45,
            (GrhArea::Roce, true) => (found[0] >> 4, found[6]) == (6, 17),
            // IBTA volume 1, section 8.3.3.
            (GrhArea::InfiniBand, true) => (found[0] >> 4, found[6]) == (6, 0x1b),
        };
        demand!(header, "the GRH area begins with {:02x?}", &found[..head(pair)]);
        let index = pkey_index(place.pair, place.side);
        demand!((done.grh, done.pkey_index) == (due.grh, index), "of {due:?}");
        demand!(
            done.byte_len as usize == len
                && (done.imm, done.solicited) == (due.imm, due.solicited)
                && (done.remote_qpn, done.remote_mac) == due.source,
            "of {due:?}"
        );
        self.side_mut(place).received.filled = 0;
        Ok(())
    }

    /// `place` sends its `nth` request.
    pub(super) fn judge_datagram(
        &self,
        place: Place,
        nth: usize,
        frame: &RoceFrame<'_>,
    ) -> Result<(), Violation> {
        let pair = self.pair(place);
        let op = &self.ops(place)[nth];
        let (Ext::Deth(deth) | Ext::DethImm(deth, _)) = frame.packet.ext else {
            return Err("no DETH".to_owned());
        };
        let to = op.request.ud.as_ref().ok_or("no destination")?;
        let own = pair.ends[place.side].qkey;
        // IBTA volume 1, section 10.2.5: a controlled key stands for the QP's own.
        let qkey = if to.qkey.get() >> 31 == 1 { own } else { to.qkey };
        demand!((deth.qkey, deth.src_qp) == (qkey, pair.ends[place.side].qpn), "{deth:?}");
        demand!(frame.packet.bth.dest_qp == to.qpn && frame.encap.ip == to.path.ip, "for somebody else");
        demand!(frame.packet.payload == pair.source_bytes(place.side, &op.from), "wrong bytes");
        demand!(frame.packet.ext.imm() == op.imm(), "wrong immediate data");
        Ok(())
    }
}

fn head(pair: &Pair) -> usize {
    if pair.grh_area == GrhArea::None { 0 } else { GRH_BYTES }
}

/// Addresses of an area.
fn range(area: &Area) -> std::ops::Range<u64> {
    let first = va(area.region) + area.offset as u64;
    first..first + area.len as u64
}

/// The first `len` bytes of areas of a side; `None` if they are fewer.
fn stored(host: &SimHost, pair: &Pair, side: usize, areas: &[Area], len: usize) -> Option<Vec<u8>> {
    let bytes = areas.iter().flat_map(|area| {
        &host.regions[&pair.key(side, area.region)].bytes[area.offset..area.offset + area.len]
    });
    let found: Vec<u8> = bytes.take(len).copied().collect();
    (found.len() == len).then_some(found)
}
