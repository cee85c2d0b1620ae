//! Running a command, whatever the interface: its mailboxes, and who is told how it ended.

use std::time::{Duration, Instant};

use protocol::describe::{Describe, Field as _, Hex, Value, Visitor};
use protocol::hca::hcr::PendingCommand;
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::Iova;

use crate::frontend::Context;
use crate::limited;
use crate::memory::GuestMemory;
use crate::memory::dma::DmaError;
use crate::telemetry::trace::{Kind, Trace};

/// Bytes of a mailbox, at most.
const MAILBOX_LEN: usize = 4096;

/// What a command writes to its outbox; empty without one.
pub type Outbox = Vec<u8>;

/// The mailboxes of one command, as far as it had any.
#[derive(Debug, Default)]
pub struct Mailboxes {
    /// What the command read.
    pub inbox: Inbox,
    /// What it wrote.
    pub outbox: Outbox,
}

/// A copy of an inbox.
#[derive(Debug)]
pub struct Inbox {
    page: [u8; MAILBOX_LEN],
    len: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { page: [0; MAILBOX_LEN], len: 0 }
    }
}

impl Inbox {
    /// Copies up to a page out of guest memory, once: the command works on the copy.
    ///
    /// # Errors
    /// INTERNAL_ERR: it is not the guest's to give.
    pub fn fetch(&mut self, dma: &GuestMemory, at: u64, len: usize) -> Result<&[u8], CmdError> {
        let (copy, _) = self.page.split_at_mut(len.min(MAILBOX_LEN));
        if !copy.is_empty() {
            dma.read(Iova::new(at), copy)
                .map_err(|error| beyond_dma("inbox not in mapped memory at", &error))?;
        }
        self.len = copy.len();
        Ok(copy)
    }

    /// What was copied.
    pub fn bytes(&self) -> &[u8] {
        self.page.get(..self.len).unwrap_or_default()
    }
}

impl Mailboxes {
    /// Writes what is in `outbox`, if there is anything.
    ///
    /// # Errors
    /// As [`Inbox::fetch`].
    pub fn send(&self, dma: &GuestMemory, at: u64) -> Result<(), CmdError> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        dma.write(Iova::new(at), &self.outbox)
            .map_err(|error| beyond_dma("outbox not in mapped memory at", &error))
    }
}

/// A mailbox of fixed size. An interface's command table and its layouts agree on sizes, so this does not fail.
///
/// # Errors
/// INTERNAL_ERR: they do not agree.
pub fn fixed<const LEN: usize>(inbox: &[u8]) -> Result<&[u8; LEN], CmdError> {
    inbox.first_chunk().ok_or(CmdError::new(CmdStatus::InternalErr, "inbox length", inbox.len() as u64))
}

fn beyond_dma(what: &'static str, error: &DmaError) -> CmdError {
    CmdError::new(CmdStatus::InternalErr, what, error.iova.get())
}

/// An interface's commands for its commands.
#[derive(Clone, Copy, Debug)]
pub struct CommandSet {
    /// Name of an opcode.
    pub name: fn(u16) -> Option<&'static str>,
    /// Tells parameters and mailboxes of a command that ended.
    pub describe: fn(&PendingCommand, &Mailboxes, &mut dyn Visitor),
    /// The status that software is told.
    pub reported_status: fn(CmdStatus) -> CmdStatus,
    /// Statuses that are answers, and no refusals that somebody should know of.
    pub expected: &'static [CmdStatus],
}

/// Runs a command from start to end, and tells the log, the counters and the trace.
///
/// # Errors
/// The refusal, as software is told.
pub fn run<T>(
    cx: &mut Context<'_>,
    commands: &CommandSet,
    pending: &PendingCommand,
    execute: impl FnOnce(&mut Context<'_>, &mut Mailboxes) -> Result<T, CmdError>,
) -> Result<T, CmdStatus> {
    let begun = Instant::now();
    let began = cx.monitor.trace().map(|trace| trace.now());
    let mut mailboxes = Mailboxes::default();
    let result = execute(cx, &mut mailboxes);
    let op = (commands.name)(pending.command.op());
    let name = op.unwrap_or("unknown");
    let status = match &result {
        Ok(_) => {
            limited!(debug, command = name, modifier = pending.in_modifier, "command completed");
            CmdStatus::Ok
        }
        Err(error) if commands.expected.contains(&error.status) => {
            limited!(
                debug,
                command = name,
                modifier = pending.in_modifier,
                "command completed with status: {error}"
            );
            (commands.reported_status)(error.status)
        }
        Err(error) => {
            limited!(warn, command = name, modifier = pending.in_modifier, "command rejected: {error}");
            (commands.reported_status)(error.status)
        }
    };
    cx.monitor.count_command(name, status.name(), begun.elapsed());
    if let (Some(trace), Some(began)) = (cx.monitor.trace(), began) {
        let refusal = result.as_ref().err();
        record(
            trace,
            commands,
            &CompletedCommand { pending, op, began, mailboxes: &mailboxes, status, refusal },
        );
    }
    result.map_err(|_| status)
}

/// A command that ended.
struct CompletedCommand<'a> {
    pending: &'a PendingCommand,
    op: Option<&'static str>,
    /// By the trace's clock.
    began: Duration,
    mailboxes: &'a Mailboxes,
    /// The code software sees.
    status: CmdStatus,
    refusal: Option<&'a CmdError>,
}

fn record(trace: &mut Trace, commands: &CommandSet, completed: &CompletedCommand<'_>) {
    let CompletedCommand { pending, op, began, mailboxes, status, refusal } = *completed;
    let took = trace.now().saturating_sub(began);
    trace.record(Kind::Command, op.unwrap_or("unknown"), |to| {
        status.name().show("status", to);
        if let Some(refusal) = refusal {
            format_args!("{refusal}").show("refused", to);
        }
        format_args!("{:.1}", took.as_secs_f64() * 1e6).show("us", to);
        if op.is_none() {
            Hex(pending.command.op()).show("op", to);
        }
        (commands.describe)(pending, mailboxes, to);
    });
}

/// Tells the fields of a mailbox, or its bytes if nobody can read them; nothing without bytes.
pub fn show_mailbox<T: Describe>(name: &str, bytes: &[u8], read: Option<T>, to: &mut dyn Visitor) {
    match read {
        Some(mailbox) => to.object(name, &mailbox),
        None if bytes.is_empty() => {}
        None => to.value(name, Value::Bytes(bytes)),
    }
}
