//! Every byte and word that a reliable connection puts into memory, in order and once.

use protocol::ids::Rkey;

use super::{Checker, Place, Violation, demand};
use crate::sim::host::Touch;
use crate::sim::plan::{Area, CELLS, Op, Pair, va};
use crate::{Access, AtomicOp, Fence, LocalOp, SendOp};

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// SEND, WRITE and atomics have their effect here.
    Responder,
    /// READ and atomics bring back data here.
    Requester,
    /// Work on its own keys has its effect here: requests for nothing else,
    Owner,
    /// and READs that invalidate a key in the end.
    Reader,
}

/// Walks over what the requests of one direction put into memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    role: Role,
    op: usize,
    /// Of `op`: done so far. An atomic at the responder counts 1, and so does work on a key.
    offset: usize,
}

impl Cursor {
    pub(super) fn new(role: Role) -> Self {
        Self { role, op: 0, offset: 0 }
    }

    fn due(&self, op: &Op) -> usize {
        match (self.role, &op.request.op) {
            (Role::Responder, SendOp::Send { .. } | SendOp::Write { .. })
            | (Role::Requester, SendOp::Read { .. }) => op.len as usize,
            (Role::Responder, SendOp::SendInvalidate { .. }) => op.len as usize + 1,
            (Role::Owner, SendOp::Local(_)) | (Role::Reader, SendOp::Read { invalidate: Some(_), .. }) => 1,
            (Role::Responder, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) => 1,
            (Role::Requester, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) => 8,
            _ => 0,
        }
    }

    /// Whether the requests up to and with `nth` have nothing more to put anywhere.
    pub(super) fn has_done(&self, ops: &[Op], nth: usize) -> bool {
        let left = ops.iter().enumerate().take(nth + 1).skip(self.op);
        left.into_iter().all(|(index, op)| {
            let done = if index == self.op { self.offset } else { 0 };
            done == self.due(op)
        })
    }

    /// The request that has the next thing to do.
    fn next(&mut self, ops: &[Op]) -> Result<usize, Violation> {
        while let Some(op) = ops.get(self.op) {
            if self.offset < self.due(op) {
                return Ok(self.op);
            }
            (self.op, self.offset) = (self.op + 1, 0);
        }
        Err("nobody asked for it".to_owned())
    }

    /// `data` was stored at `at` of the region with `key`: is it the next of what `ops` demand?
    fn store(
        &mut self,
        ops: &[Op],
        key_of: impl Fn(u32) -> u32,
        bytes_of: impl Fn(usize, &Op) -> Vec<u8>,
        held: Option<Area>,
        (key, at, data): (u32, u64, &[u8]),
    ) -> Result<(), Violation> {
        let index = self.next(ops)?;
        let op = &ops[index];
        let offset = self.offset;
        let (area, within) = locate(received_into(op, held.as_slice()), offset)
            .ok_or_else(|| format!("request {index} has no room for it"))?;
        let expected_at = va(area.region) + (area.offset + within) as u64;
        demand!(
            (key, at) == (key_of(area.region), expected_at) && data.len() <= area.len - within,
            "byte {offset} of request {index} is next"
        );
        let bytes = bytes_of(index, op);
        demand!(bytes.get(offset..offset + data.len()) == Some(data), "not the bytes of request {index}");
        self.offset += data.len();
        Ok(())
    }
}

/// Where the bytes of a message go: its receive request decides if that came from a shared queue.
fn received_into<'a>(op: &'a Op, held: &'a [Area]) -> &'a [Area] {
    match op.request.op {
        SendOp::Send { .. } | SendOp::SendInvalidate { .. } if !held.is_empty() => held,
        _ => &op.to,
    }
}

/// The area with byte `offset` of a list, and the byte's place in it.
pub(super) fn locate(areas: &[Area], offset: usize) -> Option<(Area, usize)> {
    let mut skip = offset;
    for &area in areas {
        if skip < area.len {
            return Some((area, skip));
        }
        skip -= area.len;
    }
    None
}

impl Checker<'_> {
    /// The node of `place` touched memory while it took a packet for `place`.
    pub(super) fn touch_reliable(&mut self, place: Place, touch: &Touch) -> Result<(), Violation> {
        let pair: &Pair = self.pair(place);
        let peer = place.peer();
        let life = self.side(place).life;
        match touch {
            Touch::Write { key, va, data, access: Access::LocalWrite } if self.is_returned(place, *va) => {
                let ops = &pair.lives[life].sides[place.side].ops;
                // What the peer's memory gave; none before the peer executed it.
                let originals = self.side(peer).originals.clone();
                let bytes = |index: usize, op: &Op| match op.request.op {
                    SendOp::Read { .. } => pair.source_bytes(peer.side, &op.from),
                    _ => originals[index].map(|value| value.to_le_bytes().to_vec()).unwrap_or_default(),
                };
                let side = self.side_mut(place);
                let posted = side.sends.posted;
                let key_of = |region| pair.key(place.side, region);
                side.returned.store(&ops[..posted], key_of, bytes, None, (*key, *va, data))
            }
            Touch::Write { key, va, data, access } => {
                let held = self.held_area(place);
                let ops = &pair.lives[life].sides[peer.side].ops[..self.side(peer).sends.posted];
                let side = self.side_mut(place);
                let index = side.executed.next(ops)?;
                let right = match ops[index].request.op {
                    SendOp::Send { .. } | SendOp::SendInvalidate { .. } => Access::LocalWrite,
                    _ => Access::RemoteWrite,
                };
                demand!(*access == right, "request {index} is next");
                let bytes = |_: usize, op: &Op| pair.source_bytes(peer.side, &op.from);
                let key_of = |region| pair.key(place.side, region);
                side.executed.store(ops, key_of, bytes, held, (*key, *va, data))
            }
            Touch::Atomic { key, va: at, op, original } => {
                let ops = &pair.lives[life].sides[peer.side].ops[..self.side(peer).sends.posted];
                let side = self.side_mut(place);
                let index = side.executed.next(ops)?;
                let (remote, asked) = match ops[index].request.op {
                    SendOp::CompareSwap { remote, compare, swap } => {
                        (remote, AtomicOp::CompareSwap { compare, swap })
                    }
                    SendOp::FetchAdd { remote, add } => (remote, AtomicOp::FetchAdd { add }),
                    _ => return Err(format!("request {index} is next")),
                };
                let here = (remote.va.get(), remote.rkey.get(), asked) == (*at, *key, *op);
                demand!(here && *key == pair.key(place.side, CELLS), "request {index} is next");
                side.executed.offset += 1;
                side.originals[index] = Some(*original);
                Ok(())
            }
            // After its last byte, and before its receive request completes.
            Touch::Invalidated { key, .. } => {
                let ops = &pair.lives[life].sides[peer.side].ops[..self.side(peer).sends.posted];
                let side = self.side_mut(place);
                let index = side.executed.next(ops)?;
                let (due, len) = (ops[index].invalidates(), ops[index].len as usize);
                demand!(due == Some(Rkey::new(*key)), "request {index} is next");
                demand!(side.executed.offset == len, "{} of {len} bytes are there", side.executed.offset);
                side.executed.offset += 1;
                Ok(())
            }
            Touch::Local { .. } | Touch::Took { .. } | Touch::NoRecv { .. } => Ok(()),
        }
    }

    /// A side executed work on one of its keys: the next that is due, once, and not too early.
    pub(super) fn touch_key(&mut self, place: Place, op: &LocalOp) -> Result<(), Violation> {
        let (ops, side) = (self.ops(place), self.side_mut(place));
        let ops = &ops[..side.sends.posted];
        if let LocalOp::Invalidate(key) = *op
            && ops.iter().any(|op| op.ends_key() == Some(key))
        {
            let index = side.ended.next(ops)?;
            demand!(ops[index].ends_key() == Some(key), "request {index} is next");
            demand!(side.returned.has_done(ops, index), "request {index} has not all its data");
            side.ended.offset += 1;
            return Ok(());
        }
        let index = side.worked.next(ops)?;
        demand!(ops[index].request.op == SendOp::Local(*op), "request {index} is next");
        demand!(side.flight.ends_with(index), "others than those before request {index} were sent");
        let waits = matches!(op, LocalOp::Invalidate(_)) || ops[index].request.fence == Fence::All;
        demand!(!waits || side.flight.is_answered(index), "not all before request {index} is done");
        side.worked.offset += 1;
        Ok(())
    }

    /// Whether `at` is where the next data of one of the side's own requests goes.
    fn is_returned(&mut self, place: Place, at: u64) -> bool {
        let pair = self.pair(place);
        let side = self.side_mut(place);
        let ops = &pair.lives[side.life].sides[place.side].ops[..side.sends.posted];
        ops.iter().filter(|op| op.wants_data()).flat_map(|op| &op.to).any(|area| {
            let first = va(area.region) + area.offset as u64;
            (first..first + area.len as u64).contains(&at)
        })
    }
}
