//! The driver's objects: an event queue, a protection domain, a key, a completion queue and a queue pair.
//!
//! # Spec
//! mlx5 interface, sections 5, 8.1, 9.1, 10 and 13.1.

use anyhow::Result;

use super::bytes::{get_u32, put_u32, put_u64};
use super::command::{Commands, Op};
use super::completion::Completions;
use super::queue::Events;
use super::work_queue::Sends;
use crate::vfio::{Arena, Device, PAGE};

/// Input length in bytes, without the page list, of the commands that create or modify an object.
const INPUT: usize = 0x110;
/// Offset of a QP context in a command's input.
const QP_CONTEXT: usize = 0x18;
/// Offset of any other context in a command's input.
const CONTEXT: usize = 0x10;
/// Low byte of the key, chosen arbitrarily.
const KEY_BYTE: u32 = 0x42;
/// Mask for object numbers.
const NUMBER: u32 = 0xff_ffff;
/// Number that means "any QP" in keys, and "no user index" in QPs.
const NONE: u32 = 0xff_ffff;
/// Migration state of a QP without an alternate path.
const MIGRATED: u32 = 3 << 11;

#[derive(Debug)]
pub(super) struct Objects {
    /// UAR page for the event queue's doorbells.
    pub(super) event_uar: u32,
    /// UAR page for the other doorbells. It must be allocated after the event queue, because the device does not
    /// provide a mappable page until then.
    pub(super) uar: u32,
    pub(super) eqn: u32,
    pd: u32,
    mkey: u32,
    /// Key for local and remote access to all mapped memory.
    pub(super) key: u32,
    pub(super) cqn: u32,
    pub(super) qpn: u32,
    lid: u16,
}

impl Objects {
    /// Creates all objects and connects the QP to itself.
    pub(super) fn create(
        device: &Device,
        arena: &Arena,
        commands: &mut Commands,
        (events, completions, sends): (&Events, &Completions, &Sends),
        lid: u16,
    ) -> Result<Self> {
        let mut number = |op, input: Vec<u8>| {
            let output = commands.run_long(device, arena, op, input, 16)?;
            anyhow::Ok(get_u32(&output, 0x08) & NUMBER)
        };
        let event_uar = number(Op::AllocUar, vec![0; 16])?;
        let mut input = with_pages(arena, events.place());
        put_u32(&mut input, CONTEXT + 0x0c, u32::from(Events::LOG) << 24 | event_uar);
        let eqn = number(Op::CreateEq, input)?;
        let uar = number(Op::AllocUar, vec![0; 16])?;
        let pd = number(Op::AllocPd, vec![0; 16])?;
        // A physical key covers the whole address space. It permits local and remote reads and writes.
        let mut input = vec![0; INPUT];
        put_u32(&mut input, CONTEXT, 0xf << 10);
        put_u32(&mut input, CONTEXT + 0x04, NONE << 8 | KEY_BYTE);
        put_u32(&mut input, CONTEXT + 0x0c, 1 << 31 | pd);
        let mkey = number(Op::CreateMkey, input)?;
        let mut input = with_pages(arena, completions.place());
        put_u32(&mut input, CONTEXT + 0x0c, u32::from(Completions::LOG) << 24 | uar);
        put_u32(&mut input, CONTEXT + 0x14, eqn);
        put_u64(&mut input, CONTEXT + 0x38, arena.iova(completions.record()));
        let cqn = number(Op::CreateCq, input)?;
        let mut input = with_pages(arena, sends.place());
        let at = |offset| QP_CONTEXT + offset;
        put_u32(&mut input, at(0x00), MIGRATED);
        put_u32(&mut input, at(0x04), pd);
        put_u32(&mut input, at(0x08), u32::from(Sends::LOG) << 11);
        put_u32(&mut input, at(0x0c), uar);
        put_u32(&mut input, at(0x10), NONE);
        put_u32(&mut input, at(0x7c), cqn);
        put_u32(&mut input, at(0x9c), cqn);
        put_u64(&mut input, at(0xa0), arena.iova(sends.record()));
        // The QP has no receive queue.
        put_u32(&mut input, at(0xac), 3 << 24);
        let qpn = number(Op::CreateQp, input)?;
        let objects = Self { event_uar, uar, eqn, pd, mkey, key: mkey << 8 | KEY_BYTE, cqn, qpn, lid };
        objects.connect(device, arena, commands, sends)?;
        Ok(objects)
    }

    /// Resets the QP after an error and connects it to itself again.
    pub(super) fn reconnect(
        &self,
        device: &Device,
        arena: &Arena,
        commands: &mut Commands,
        sends: &Sends,
    ) -> Result<()> {
        commands.run(device, arena, Op::ToReset, &[(0x08, self.qpn)], 16)?;
        self.connect(device, arena, commands, sends)
    }

    fn connect(&self, device: &Device, arena: &Arena, commands: &mut Commands, sends: &Sends) -> Result<()> {
        const MTU_4096: u32 = 5 << 29;
        const LOG_MAX_MESSAGE: u32 = 30 << 24;
        const PORT: u32 = 1 << 16;
        let context = || {
            let mut input = vec![0; INPUT];
            put_u32(&mut input, 0x08, self.qpn);
            put_u32(&mut input, QP_CONTEXT, MIGRATED);
            put_u32(&mut input, QP_CONTEXT + 0x3c, PORT);
            input
        };
        let at = |offset| QP_CONTEXT + offset;
        let mut input = context();
        put_u32(&mut input, at(0x04), self.pd);
        put_u32(&mut input, at(0x7c), self.cqn);
        // Permit remote READ and WRITE.
        put_u32(&mut input, at(0x90), 3 << 14);
        put_u32(&mut input, at(0x9c), self.cqn);
        put_u64(&mut input, at(0xa0), arena.iova(sends.record()));
        commands.run_long(device, arena, Op::ResetToInit, input, 16)?;
        let mut input = context();
        put_u32(&mut input, at(0x08), MTU_4096 | LOG_MAX_MESSAGE);
        put_u32(&mut input, at(0x14), self.qpn);
        put_u32(&mut input, at(0x1c), self.lid.into());
        commands.run_long(device, arena, Op::InitToRtr, input, 16)?;
        let mut input = context();
        // ACK timeout of 67 ms; seven retries.
        put_u32(&mut input, at(0x20), 14 << 27);
        put_u32(&mut input, at(0x70), 7 << 16 | 7 << 13);
        commands.run_long(device, arena, Op::RtrToRts, input, 16).map(drop)
    }

    pub(super) fn destroy(&self, device: &Device, arena: &Arena, commands: &mut Commands) -> Result<()> {
        for (op, number) in [
            (Op::DestroyQp, self.qpn),
            (Op::DestroyCq, self.cqn),
            (Op::DestroyMkey, self.mkey),
            (Op::DeallocPd, self.pd),
            (Op::DestroyEq, self.eqn),
            (Op::DeallocUar, self.uar),
            (Op::DeallocUar, self.event_uar),
        ] {
            commands.run(device, arena, op, &[(0x08, number)], 16)?;
        }
        Ok(())
    }
}

/// Returns the input for a command that creates a queue. It ends with the page list for a ring of `count` pages at
/// `offset`.
fn with_pages(arena: &Arena, (offset, count): (usize, usize)) -> Vec<u8> {
    let mut input = vec![0; INPUT + 8 * count];
    for page in 0..count {
        put_u64(&mut input, INPUT + 8 * page, arena.iova(offset + page * PAGE));
    }
    input
}
