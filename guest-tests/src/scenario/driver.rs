//! The agent acting as a driver, either in a guest or in this process.

use agent::serve::Agent;
use agent::wire::Call;
use anyhow::{Context as _, Result};

use crate::vm::Vm;

pub(super) trait Driver {
    /// Executes a step. The step's own error can be extracted from the returned error with `downcast_ref`.
    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer>;
}

impl Driver for Vm {
    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        Vm::call(self, step).await
    }
}

/// An agent in this process. With no guest, it also acts as the device's VMM.
#[derive(Debug, Default)]
pub(super) struct Guestless(Agent);

impl Driver for Guestless {
    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        self.0.call(step).context("the device has no guest")
    }
}
