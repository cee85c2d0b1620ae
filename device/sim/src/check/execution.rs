//! Checks that every memory effect of a reliable connection happens exactly once and in order.

use protocol::ids::Rkey;

use super::{Checker, SideId, Violation, ensure};
use crate::host::HostEvent;
use crate::key_op::KeyOp;
use crate::plan::{Area, CELLS, Op, Pair, va};
use engine::{Access, AtomicOp, Fence, SendOp};

/// The kind of effect that a [`Cursor`] tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Data written at the responder by SENDs, WRITEs and atomics.
    Responder,
    /// Response data written at the requester by READs and atomics.
    Requester,
    /// Key operations posted by the owner of the memory.
    Owner,
    /// Local keys that READs invalidate after their data has arrived.
    Reader,
}

/// Progress through the memory effects of the requests in one direction. The effects must happen in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    role: Role,
    op: usize,
    /// Progress in `op`, in bytes. An atomic at the responder or a key operation counts as 1.
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

    /// Returns whether all effects of requests 0 to `nth` have happened.
    pub(super) fn has_done(&self, ops: &[Op], nth: usize) -> bool {
        let left = ops.iter().enumerate().take(nth + 1).skip(self.op);
        left.into_iter().all(|(index, op)| {
            let done = if index == self.op { self.offset } else { 0 };
            done == self.due(op)
        })
    }

    /// Returns the request whose effect is expected next.
    fn next(&mut self, ops: &[Op]) -> Result<usize, Violation> {
        while let Some(op) = ops.get(self.op) {
            if self.offset < self.due(op) {
                return Ok(self.op);
            }
            (self.op, self.offset) = (self.op + 1, 0);
        }
        Err("no request causes this access".to_owned())
    }

    /// Checks that the next expected effect is to write `data` to address `at` in the region with key `key`.
    fn store(
        &mut self,
        ops: &[Op],
        key_of: impl Fn(u32) -> u32,
        bytes_of: impl Fn(usize, &Op) -> Vec<u8>,
        fetched: Option<(u32, Area)>,
        (key, at, data): (u32, u64, &[u8]),
    ) -> Result<(), Violation> {
        let index = self.next(ops)?;
        let op = &ops[index];
        let offset = self.offset;
        let fetched = fetched.filter(|_| is_send(op));
        let areas = fetched.as_ref().map_or(op.to.as_slice(), |(_, area)| std::slice::from_ref(area));
        let (area, within) = locate(areas, offset)
            .ok_or_else(|| format!("request {index} has no buffer for byte {offset}"))?;
        let expected_at = va(area.region) + (area.offset + within) as u64;
        let expected_key = fetched.map_or_else(|| key_of(area.region), |(key, _)| key);
        ensure!(
            (key, at) == (expected_key, expected_at) && data.len() <= area.len - within,
            "the write must start at byte {offset} of request {index} and must not exceed the buffer"
        );
        let bytes = bytes_of(index, op);
        ensure!(
            bytes.get(offset..offset + data.len()) == Some(data),
            "the data written for request {index} is wrong"
        );
        self.offset += data.len();
        Ok(())
    }
}

/// Returns whether the message is written to the buffers of a receive request.
fn is_send(op: &Op) -> bool {
    matches!(op.request.op, SendOp::Send { .. } | SendOp::SendInvalidate { .. })
}

/// Returns the area that contains byte `offset` of the concatenated areas, and the offset within that area.
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
    pub(super) fn on_reliable_access(&mut self, id: SideId, event: &HostEvent) -> Result<(), Violation> {
        let pair: &Pair = self.pair(id);
        let peer = id.peer();
        let life = self.side(id).life;
        match event {
            HostEvent::Write { key, va, data, access: Access::LocalWrite } if self.is_returned(id, *va) => {
                let ops = &pair.lives[life].sides[id.side].ops;
                // Original values that the atomics must return, unset until the peer has executed them.
                let originals = self.side(peer).originals.clone();
                let bytes = |index: usize, op: &Op| match op.request.op {
                    SendOp::Read { .. } => pair.source_bytes(peer.side, &op.from),
                    _ => originals[index].map(|value| value.to_le_bytes().to_vec()).unwrap_or_default(),
                };
                let side = self.side_mut(id);
                let posted = side.sends.posted;
                let key_of = |region| pair.key(id.side, region);
                side.returned.store(&ops[..posted], key_of, bytes, None, (*key, *va, data))
            }
            HostEvent::Write { key, va, data, access } => {
                let fetched = self.side(id).fetched.map(|fetched| fetched.buffer());
                let ops = &pair.lives[life].sides[peer.side].ops[..self.side(peer).sends.posted];
                let side = self.side_mut(id);
                let index = side.executed.next(ops)?;
                let right = match ops[index].request.op {
                    SendOp::Send { .. } | SendOp::SendInvalidate { .. } => Access::LocalWrite,
                    _ => Access::RemoteWrite,
                };
                ensure!(*access == right, "request {index} requires {right:?} access, not {access:?}");
                let bytes = |_: usize, op: &Op| pair.source_bytes(peer.side, &op.from);
                let key_of = |region| pair.key(id.side, region);
                side.executed.store(ops, key_of, bytes, fetched, (*key, *va, data))
            }
            HostEvent::Atomic { key, va: at, op, original } => {
                let ops = &pair.lives[life].sides[peer.side].ops[..self.side(peer).sends.posted];
                let side = self.side_mut(id);
                let index = side.executed.next(ops)?;
                let (remote, asked) = match ops[index].request.op {
                    SendOp::CompareSwap { remote, compare, swap } => {
                        (remote, AtomicOp::CompareSwap { compare, swap })
                    }
                    SendOp::FetchAdd { remote, add } => (remote, AtomicOp::FetchAdd { add }),
                    _ => return Err(format!("request {index} is next, but is not an atomic")),
                };
                let here = (remote.va.get(), remote.rkey.get(), asked) == (*at, *key, *op);
                ensure!(
                    here && *key == pair.key(id.side, CELLS),
                    "the atomic operation does not match request {index}"
                );
                side.executed.offset += 1;
                side.originals[index] = Some(*original);
                Ok(())
            }
            // The key is invalidated after the last byte has been written and before the receive request completes.
            HostEvent::Invalidated { key, .. } => {
                let ops = &pair.lives[life].sides[peer.side].ops[..self.side(peer).sends.posted];
                let side = self.side_mut(id);
                let index = side.executed.next(ops)?;
                let (due, len) = (ops[index].invalidates(), ops[index].len as usize);
                ensure!(
                    due == Some(Rkey::new(*key)),
                    "key {key:#x} was invalidated, but request {index} does not invalidate it"
                );
                ensure!(
                    side.executed.offset == len,
                    "the key was invalidated when only {} of {len} bytes had been written",
                    side.executed.offset
                );
                side.executed.offset += 1;
                Ok(())
            }
            HostEvent::Local { .. } | HostEvent::Took { .. } | HostEvent::NoRecv { .. } => Ok(()),
        }
    }

    /// Checks a local key operation. Key operations must execute once, in posting order. An invalidation or fenced
    /// operation must not execute while earlier requests are outstanding.
    pub(super) fn on_key_access(&mut self, id: SideId, op: &KeyOp) -> Result<(), Violation> {
        let (ops, side) = (self.ops(id), self.side_mut(id));
        let ops = &ops[..side.sends.posted];
        if let KeyOp::Invalidate(key) = *op
            && ops.iter().any(|op| op.ends_key() == Some(key))
        {
            let index = side.ended.next(ops)?;
            ensure!(
                ops[index].ends_key() == Some(key),
                "{key:?} was invalidated, but request {index} does not invalidate it"
            );
            ensure!(
                side.returned.has_done(ops, index),
                "request {index} invalidated its key before its data was written"
            );
            side.ended.offset += 1;
            return Ok(());
        }
        let index = side.worked.next(ops)?;
        ensure!(
            ops[index].request.op == SendOp::Local((*op).into()),
            "the executed operation, {op:?}, does not match request {index}"
        );
        ensure!(
            side.flight.ends_with(index),
            "request {index} was executed out of order: before an earlier request was sent, or after a later one"
        );
        let waits = matches!(op, KeyOp::Invalidate(_)) || ops[index].request.fence == Fence::All;
        ensure!(
            !waits || side.flight.is_answered(index),
            "request {index} was executed while earlier requests were outstanding"
        );
        side.worked.offset += 1;
        Ok(())
    }

    /// Returns whether address `at` is in a buffer for responses to the side's own requests.
    fn is_returned(&mut self, id: SideId, at: u64) -> bool {
        let pair = self.pair(id);
        let side = self.side_mut(id);
        let ops = &pair.lives[side.life].sides[id.side].ops[..side.sends.posted];
        ops.iter().filter(|op| op.returns_data()).flat_map(|op| &op.to).any(|area| {
            let first = va(area.region) + area.offset as u64;
            (first..first + area.len as u64).contains(&at)
        })
    }
}
