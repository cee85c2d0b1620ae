//! Seam of the queue half.

use engine::{AsyncEvent, Completion};
use protocol::ids::Qpn;

use super::device::Setup;
use super::resources::Resources;
use crate::frontend::Context;

impl Resources {
    /// Writes the entry of a completion to its queue.
    pub fn complete(&mut self, _: &Setup, _: &mut Context<'_>, _: &Completion) {}

    /// Reports what happened to a QP that no completion tells.
    pub fn qp_event(&mut self, _: &mut Context<'_>, _: Qpn, _: AsyncEvent) {}

    /// Does what can wait for the end of a turn. Whether more waits.
    pub fn end_turn(&mut self, _: &Setup, _: &mut Context<'_>) -> bool {
        false
    }
}
