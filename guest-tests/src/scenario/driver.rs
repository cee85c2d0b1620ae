//! A driver that executes steps, either in a guest or in this process.

use agent::serve::Agent;
use agent::wire::Call;
use anyhow::{Context as _, Result};

use crate::vm::Vm;

pub(super) trait Driver {
    /// Executes a step. If the step fails, the error contains its failure, which `downcast_ref` can extract.
    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer>;
}

impl Driver for Vm {
    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        Vm::call(self, step).await
    }
}

/// The driver of a function behind a socket. This process acts as the VMM, and there is no guest.
#[derive(Debug, Default)]
pub(super) struct Guestless(Agent);

impl Driver for Guestless {
    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        self.0.call(step).context("the device has no guest")
    }
}
