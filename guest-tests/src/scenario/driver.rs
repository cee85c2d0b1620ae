//! A driver that runs steps: in a guest, or in this program.

use agent::serve::Agent;
use agent::wire::Call;
use anyhow::{Context as _, Result};

use crate::vm::Vm;

pub(super) trait Driver {
    /// Runs a step; its failure is an error, to be found with `downcast_ref`.
    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer>;
}

impl Driver for Vm {
    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        Vm::call(self, step).await
    }
}

/// The driver of a function behind a socket: this program is its VMM, and there is no guest.
#[derive(Debug, Default)]
pub(super) struct Guestless(Agent);

impl Driver for Guestless {
    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        self.0.call(step).context("the device has no guest")
    }
}
