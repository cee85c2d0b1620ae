//! The objects that the driver creates when it opens the function: doorbell pages, an event queue, a protection domain,
//! a key, a completion queue and a queue pair.
//!
//! # Spec
//! mlx5 interface, sections 5, 8.1, 9.1 and 13.1.

use anyhow::Result;

use super::bytes::{put_u32, put_u64};
use super::command::{Function, Op};
use super::completion::Completions;
use super::qp::{Fields, Peer, QueuePair};
use super::queue::Events;
use super::work_queue::QueueMemory;
use crate::vfio::{Arena, PAGE};

/// Input length in bytes, without the page list, of the commands that create or modify an object.
pub(super) const INPUT: usize = 0x110;
/// Offset of the object's context in a command's input, for all objects except QPs.
pub(super) const CONTEXT: usize = 0x10;
/// Low byte of the keys, chosen arbitrarily.
pub(super) const KEY_BYTE: u32 = 0x42;
/// Number that means "any QP" in keys, and "no user index" in QPs.
pub(super) const NONE: u32 = 0xff_ffff;
/// Rights of a key that permits local and remote reads and writes.
pub(super) const READ_AND_WRITE: u32 = 0xf << 10;

#[derive(Debug)]
pub(super) struct Objects {
    /// UAR page for the event queue's doorbells.
    pub(super) event_uar: u32,
    /// UAR page for the other doorbells. It must be allocated after the event queue has been created. Before that, the
    /// device prefers pages whose doorbells trap.
    pub(super) uar: u32,
    pub(super) eqn: u32,
    pub(super) pd: u32,
    mkey: u32,
    /// Key for local and remote access to all mapped memory.
    pub(super) key: u32,
    pub(super) cqn: u32,
    pub(super) qp: QueuePair,
    lid: u16,
}

impl Objects {
    /// Creates all objects and connects the QP to itself.
    pub(super) fn create(
        function: &mut Function<'_>,
        (events, completions, memory): (&Events, &Completions, &QueueMemory),
        lid: u16,
    ) -> Result<Self> {
        let event_uar = function.allocate(Op::AllocUar)?;
        let mut input = with_pages(function.arena, events.place());
        put_u32(&mut input, CONTEXT + 0x0c, u32::from(Events::LOG) << 24 | event_uar);
        let eqn = function.create(Op::CreateEq, input)?;
        let uar = function.allocate(Op::AllocUar)?;
        let pd = function.allocate(Op::AllocPd)?;
        // A physical key covers the whole address space.
        let mut input = vec![0; INPUT];
        put_u32(&mut input, CONTEXT, READ_AND_WRITE);
        put_u32(&mut input, CONTEXT + 0x04, NONE << 8 | KEY_BYTE);
        put_u32(&mut input, CONTEXT + 0x0c, 1 << 31 | pd);
        let mkey = function.create(Op::CreateMkey, input)?;
        let cqn = create_cq(function, completions, uar, eqn)?;
        let fields = Fields { pd, uar, send_cqn: cqn, recv_cqn: cqn, user_index: Fields::NO_INDEX };
        let qp = QueuePair::create(function, memory, fields)?;
        qp.connect(function, Peer { lid, qpn: qp.qpn })?;
        Ok(Self { event_uar, uar, eqn, pd, mkey, key: mkey << 8 | KEY_BYTE, cqn, qp, lid })
    }

    /// Resets the QP after an error and connects it to itself again.
    pub(super) fn reconnect(&self, function: &mut Function<'_>) -> Result<()> {
        self.qp.reset(function)?;
        self.qp.connect(function, Peer { lid: self.lid, qpn: self.qp.qpn })
    }

    pub(super) fn destroy(&self, function: &mut Function<'_>) -> Result<()> {
        self.qp.destroy(function)?;
        for (op, number) in [
            (Op::DestroyCq, self.cqn),
            (Op::DestroyMkey, self.mkey),
            (Op::DeallocPd, self.pd),
            (Op::DestroyEq, self.eqn),
            (Op::DeallocUar, self.uar),
            (Op::DeallocUar, self.event_uar),
        ] {
            function.execute(op, number)?;
        }
        Ok(())
    }
}

/// Creates a completion queue with doorbell page `uar`. Returns its number.
pub(super) fn create_cq(
    function: &mut Function<'_>,
    completions: &Completions,
    uar: u32,
    eqn: u32,
) -> Result<u32> {
    let mut input = with_pages(function.arena, completions.place());
    put_u32(&mut input, CONTEXT + 0x0c, u32::from(completions.log()) << 24 | uar);
    put_u32(&mut input, CONTEXT + 0x14, eqn);
    put_u64(&mut input, CONTEXT + 0x38, function.arena.iova(completions.record()));
    function.create(Op::CreateCq, input)
}

/// Returns the input for a command that creates an object backed by the `count` pages at `offset`. The input ends with
/// the list of these pages.
pub(super) fn with_pages(arena: &Arena, (offset, count): (usize, usize)) -> Vec<u8> {
    let mut input = vec![0; INPUT + 8 * count];
    for page in 0..count {
        put_u64(&mut input, INPUT + 8 * page, arena.iova(offset + page * PAGE));
    }
    input
}
