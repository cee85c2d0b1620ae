//! key_qpc_data: the device's copy of QP contexts. Commands fill it, and the engine's units read it instead of guest
//! memory.
//!
//! The key data of CQs and EQs (PD, key, size, and EQ number or vector) is the same for all readers. It is stored in
//! [`CompletionQueue`](super::super::completion_queue::CompletionQueue) and
//! [`EventQueue`](super::super::event_queue::EventQueue), next to the producer counter.
//!
//! # Spec
//! CtxMgt document, sections 4.2 and 5.4; JingZhao interface, section 4.3.

use protocol::hca::jingzhao::modify::StoredQpc;

use super::message::{ReadQp, WriteQp};
use super::request_controller::Writer;

pub trait KeyData {
    /// Returns the key data of the QP at `index`, or `None` if the QP is in RESET.
    fn key(&mut self, index: u32) -> Option<&mut KeyQpc>;
}

/// Key data of a QP, together with the rest of its context.
#[derive(Debug)]
pub struct KeyQpc {
    context: StoredQpc,
    /// Bit w is set if writer w has made changes that have not been written back yet.
    dirty: u8,
}

impl KeyQpc {
    /// Creates key data from the context in a command.
    pub fn new(context: StoredQpc) -> Self {
        Self { context, dirty: 0 }
    }

    /// Returns the whole context, for the command unit, strict checks and snapshots. The state and the PSNs are as of
    /// the last [`CtxMgt::observe`](super::CtxMgt::observe).
    pub fn context(&self) -> &StoredQpc {
        &self.context
    }

    /// Replaces the context, as requested by the command unit.
    pub fn load(&mut self, context: StoredQpc) {
        self.context = context;
    }

    pub fn read<M: ReadQp>(&self) -> M {
        M::of(&self.context)
    }

    /// Applies a write request from a unit. Returns whether anything changed.
    pub(super) fn write<M: WriteQp>(&mut self, message: M) -> bool {
        message.apply(&mut self.context.image)
    }

    /// Marks a writer's changes as dirty. Returns true if they were not already marked.
    pub(super) fn mark_dirty(&mut self, writer: Writer) -> bool {
        let newly_dirty = self.dirty & bit(writer) == 0;
        self.dirty |= bit(writer);
        newly_dirty
    }

    /// Clears a writer's dirty mark. Returns whether the mark was set.
    pub(super) fn take_dirty(&mut self, writer: Writer) -> bool {
        let was_dirty = self.dirty & bit(writer) != 0;
        self.dirty &= !bit(writer);
        was_dirty
    }

    /// Clears all dirty marks. Called when the whole context is being written back.
    pub(super) fn clear_dirty(&mut self) {
        self.dirty = 0;
    }
}

const fn bit(writer: Writer) -> u8 {
    1 << writer as u8
}
