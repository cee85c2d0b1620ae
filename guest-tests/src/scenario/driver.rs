//! A driver that executes steps, either in a guest or in this process.

use agent::serve::Agent;
use agent::wire::Call;
use anyhow::{Context as _, Result};

use crate::vm::Vm;

pub(super) trait Driver {
    /// Executes a step. If the step fails, `downcast_ref` can extract the step's failure from the error.
    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer>;
}

impl Driver for Vm {
    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        Vm::call(self, step).await
    }
}

/// A driver for a device that is reached through a socket. This process acts as the VMM, and there is no guest.
#[derive(Debug, Default)]
pub(super) struct Guestless(Agent);

impl Driver for Guestless {
    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        self.0.call(step).context("the device has no guest")
    }
}
