//! A client for QEMU's monitor, which can change a running machine. The protocol is QMP, with one JSON object per line
//! (qemu-qmp-ref(7)).

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// Timeout for a reply. QEMU replies from its main loop, which is blocked while a device is being hot-plugged.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// A connection to the monitor, with at most one outstanding command.
#[derive(Debug)]
pub struct Monitor {
    lines: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Monitor {
    /// Negotiates capabilities on a connected stream, as QMP requires before any other command.
    ///
    /// # Errors
    /// Fails if the other end is not a QMP monitor.
    pub async fn new(stream: UnixStream) -> Result<Self> {
        let (reader, writer) = stream.into_split();
        let mut monitor = Self { lines: BufReader::new(reader), writer };
        let greeting = monitor.message().await?;
        greeting
            .get("QMP")
            .with_context(|| format!("expected a QMP greeting from the QEMU monitor, got: {greeting}"))?;
        monitor.execute("qmp_capabilities", json!({})).await?;
        Ok(monitor)
    }

    /// Executes a command and returns its result.
    ///
    /// # Errors
    /// Fails if QEMU rejects the command, has exited, or does not reply.
    pub async fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments });
        self.writer
            .write_all(format!("{line}\n").as_bytes())
            .await
            .context("cannot write to the QEMU monitor")?;
        loop {
            let mut message =
                self.message().await.with_context(|| format!("QEMU did not reply to {command}"))?;
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(refusal) = message.pointer("/error/desc") {
                bail!("QEMU rejected {command}: {}", refusal.as_str().unwrap_or_default());
            }
            // All other messages are events.
        }
    }

    /// Waits for an event about a device. Events that QEMU sent before this call may be missed.
    ///
    /// # Errors
    /// Fails if the event does not occur within `limit` or if QEMU has exited.
    pub async fn event(&mut self, name: &str, device: &str, limit: Duration) -> Result<()> {
        let search = async {
            loop {
                let message = self.message_within(limit).await?;
                if message["event"] == name && message["data"]["device"] == device {
                    return Ok(());
                }
            }
        };
        timeout(limit, search).await.with_context(|| format!("QEMU sent no {name} within {limit:?}"))?
    }

    async fn message(&mut self) -> Result<Value> {
        self.message_within(ANSWER_TIMEOUT).await
    }

    async fn message_within(&mut self, limit: Duration) -> Result<Value> {
        let mut line = String::new();
        let read = timeout(limit, self.lines.read_line(&mut line));
        if read.await.with_context(|| format!("the QEMU monitor did not respond within {limit:?}"))?? == 0 {
            bail!("QEMU closed its monitor socket");
        }
        serde_json::from_str(&line).with_context(|| format!("the QEMU monitor sent invalid JSON: {line:?}"))
    }
}
