//! key_qpc_data: what the device holds of QP contexts, filled by commands, for the engine's units to read without
//! going to guest memory.
//!
//! The key data of CQs and EQs - PD, key, size, and EQ number or vector - is the same for all its readers. It is in the
//! [`CompletionQueue`](super::super::completion_queue::CompletionQueue) and
//! [`EventQueue`](super::super::event_queue::EventQueue), with the producer counter that belongs to it.
//!
//! # Spec
//! CtxMgt document, sections 4.2 and 5.4; JingZhao interface, section 4.3.

use protocol::hca::jingzhao::modify::StoredQpc;

use super::message::{ReadQp, WriteQp};
use super::request_controller::Writer;

/// Whoever keeps the key data of all QPs.
pub trait KeyData {
    /// Those of the QP at an index, if it left RESET.
    fn key(&mut self, index: u32) -> Option<&mut KeyQpc>;
}

/// Key data of a QP, and with it the rest of its entry.
#[derive(Debug)]
pub struct KeyQpc {
    context: StoredQpc,
    /// Bit w: the values of writer w wait to be written back.
    dirty: u8,
}

impl KeyQpc {
    /// Key data as a command gives them.
    pub fn new(context: StoredQpc) -> Self {
        Self { context, dirty: 0 }
    }

    /// The whole entry, for the command unit, which may read and write everything, and for operators. State and PSNs are
    /// as of the last [`CtxMgt::observe`](super::CtxMgt::observe).
    pub fn context(&self) -> &StoredQpc {
        &self.context
    }

    /// Replaces the entry (command unit).
    pub fn load(&mut self, context: StoredQpc) {
        self.context = context;
    }

    /// The response to a unit's request.
    pub fn read<M: ReadQp>(&self) -> M {
        M::of(&self.context)
    }

    /// Carries out a unit's request. Whether it changed anything.
    pub(super) fn write<M: WriteQp>(&mut self, message: M) -> bool {
        message.apply(&mut self.context.image)
    }

    /// Notes that a writer's values wait. Whether that is newly_dirty.
    pub(super) fn mark_dirty(&mut self, writer: Writer) -> bool {
        let newly_dirty = self.dirty & bit(writer) == 0;
        self.dirty |= bit(writer);
        newly_dirty
    }

    /// Whether a writer's values waited; they do no longer.
    pub(super) fn take_dirty(&mut self, writer: Writer) -> bool {
        let was_dirty = self.dirty & bit(writer) != 0;
        self.dirty &= !bit(writer);
        was_dirty
    }

    /// The whole entry was written: nothing waits.
    pub(super) fn clear_dirty(&mut self) {
        self.dirty = 0;
    }
}

const fn bit(writer: Writer) -> u8 {
    1 << writer as u8
}
