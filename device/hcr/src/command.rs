//! Command execution, shared by all HCR interfaces: mailboxes, logging, counters and tracing.

use std::time::{Duration, Instant};

use card::frontend::Context;
use card::limited;
use card::memory::GuestMemory;
use card::memory::dma::DmaError;
use card::telemetry::trace::{Kind, Trace};
use protocol::describe::{Describe, Field as _, Hex, Value, Visitor};
use protocol::hca::hcr::PendingCommand;
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::Iova;

const MAILBOX_LEN: usize = 4096;

/// Contents of the outbox. Empty if the command has no outbox.
pub type Outbox = Vec<u8>;

/// Mailboxes of one command.
#[derive(Debug, Default)]
pub struct Mailboxes {
    pub inbox: Inbox,
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
    /// Copies at most one page from guest memory. The guest cannot change the copy while the command uses it.
    ///
    /// # Errors
    /// INTERNAL_ERR if the guest has not mapped the memory.
    pub fn fetch(&mut self, dma: &GuestMemory, at: u64, len: usize) -> Result<&[u8], CmdError> {
        let (copy, _) = self.page.split_at_mut(len.min(MAILBOX_LEN));
        if !copy.is_empty() {
            dma.read(Iova::new(at), copy)
                .map_err(|error| beyond_dma("inbox not in mapped memory at", &error))?;
        }
        self.len = copy.len();
        Ok(copy)
    }

    pub fn bytes(&self) -> &[u8] {
        self.page.get(..self.len).unwrap_or_default()
    }
}

impl Mailboxes {
    /// Writes `outbox` to guest memory, unless it is empty.
    ///
    /// # Errors
    /// INTERNAL_ERR if the guest has not mapped the memory.
    pub fn send(&self, dma: &GuestMemory, at: u64) -> Result<(), CmdError> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        dma.write(Iova::new(at), &self.outbox)
            .map_err(|error| beyond_dma("outbox not in mapped memory at", &error))
    }
}

/// Returns the inbox as an array of `LEN` bytes. This never fails in practice: the command table and the mailbox
/// layouts agree on the sizes.
///
/// # Errors
/// INTERNAL_ERR if the inbox is shorter than `LEN`.
pub fn fixed<const LEN: usize>(inbox: &[u8]) -> Result<&[u8; LEN], CmdError> {
    inbox.first_chunk().ok_or(CmdError::new(CmdStatus::InternalErr, "inbox length", inbox.len() as u64))
}

fn beyond_dma(what: &'static str, error: &DmaError) -> CmdError {
    CmdError::new(CmdStatus::InternalErr, what, error.iova.get())
}

/// Names, trace fields and statuses of an interface's commands.
#[derive(Clone, Copy, Debug)]
pub struct CommandSet {
    pub name: fn(u16) -> Option<&'static str>,
    /// Describes the parameters and mailboxes of a completed command, for a trace.
    pub describe: fn(&PendingCommand, &Mailboxes, &mut dyn Visitor),
    /// Maps a command's precise status to the one reported to software.
    pub reported_status: fn(CmdStatus) -> CmdStatus,
    /// Statuses that the driver expects in normal operation. They are logged at debug level, not as warnings.
    pub expected: &'static [CmdStatus],
}

/// Executes a command and reports it to the log, the counters and the trace.
///
/// # Errors
/// Fails with the status that is reported to software.
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

/// A completed command, as recorded in a trace.
struct CompletedCommand<'a> {
    pending: &'a PendingCommand,
    op: Option<&'static str>,
    /// Start time, measured by the trace's clock.
    began: Duration,
    mailboxes: &'a Mailboxes,
    /// The status reported to software.
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

/// Describes a mailbox's fields, or its bytes if it cannot be decoded. An empty mailbox is omitted.
pub fn show_mailbox<T: Describe>(name: &str, bytes: &[u8], read: Option<T>, to: &mut dyn Visitor) {
    match read {
        Some(mailbox) => to.object(name, &mailbox),
        None if bytes.is_empty() => {}
        None => to.value(name, Value::Bytes(bytes)),
    }
}
