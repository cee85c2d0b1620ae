//! A Python program that runs in a guest. It reads one request per line and replies to each request with one line.
//!
//! A request is `{"do": NAME, ...}`, and the reply is `{"ok": VALUE}` or `{"error": TEXT}`.

use std::time::Duration;

use agent::wire::{Ask, ProgramId, Spawn, Wait};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::tools;
use crate::vm::Vm;

/// Time allowed for a reply, in addition to the request's own timeout.
const ANSWER_MARGIN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub struct LineProgram {
    program: ProgramId,
}

impl LineProgram {
    /// Starts a program from its source text, in a guest with a root file system.
    ///
    /// # Errors
    /// Fails if the interpreter does not start.
    pub async fn start(vm: &mut Vm, text: &str) -> Result<Self> {
        let argv = ["python3", "-c", text].map(str::to_owned).to_vec();
        Ok(Self { program: vm.call(Spawn { argv }).await?.program })
    }

    /// Sends a request with a time limit and returns the reply.
    ///
    /// # Errors
    /// Fails if the program rejects the request, does not reply in time, or has exited.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        limit: Duration,
        vm: &mut Vm,
        what: &str,
        mut arguments: Value,
    ) -> Result<T> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Answer {
            Ok(Value),
            Error(String),
        }
        arguments["do"] = what.into();
        let step = Ask {
            program: self.program,
            line: Some(arguments.to_string()),
            timeout_ms: u32::try_from(limit.as_millis())?,
        };
        let said = vm.call_within(limit + ANSWER_MARGIN, step).await?;
        match serde_json::from_str(&said.line)
            .with_context(|| format!("cannot parse the reply to {what}: {}", said.line))?
        {
            Answer::Ok(value) => serde_json::from_value(value)
                .with_context(|| format!("cannot parse the reply to {what}: {}", said.line)),
            Answer::Error(error) => bail!("request {what} to guest {} failed: {error}", vm.name()),
        }
    }

    /// Stops the program by closing its input. All objects that it created are destroyed when it exits.
    ///
    /// # Errors
    /// Fails if the program does not exit within `limit`.
    pub async fn close(self, limit: Duration, vm: &mut Vm) -> Result<()> {
        let step = Wait { program: self.program, timeout_ms: u32::try_from(limit.as_millis())? };
        vm.call_within(limit + ANSWER_MARGIN, step).await.map(drop)
    }

    /// Kills the program with SIGKILL.
    ///
    /// # Errors
    /// Fails if the program does not exit.
    pub async fn kill(self, vm: &mut Vm) -> Result<()> {
        tools::stop(vm, self.program).await.map(drop)
    }
}
