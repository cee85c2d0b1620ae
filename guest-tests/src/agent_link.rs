//! Typed requests to the agent of one guest over its virtio-serial port.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use agent::wire::{Call, Failure, Ping, Request, Response};
use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt as _, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// Default timeout for a step. Longer steps have their own.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum length of a reply in bytes. Protects the lab from a guest that never stops sending. The longest replies
/// contain program output.
const LONGEST_ANSWER: u64 = 64 << 20;

/// A connection to one agent, with at most one outstanding request.
#[derive(Debug)]
pub struct AgentLink {
    lines: BufReader<OwnedReadHalf>,
    /// The start of a reply that did not arrive completely in time. The next exchange reads the rest.
    partial: Vec<u8>,
    writer: OwnedWriteHalf,
    transcript: File,
    last_id: u64,
}

impl AgentLink {
    /// Creates a link over `stream`. All lines, in both directions, are also written to `transcript`.
    ///
    /// # Errors
    /// Fails if the transcript cannot be created.
    pub fn new(stream: UnixStream, transcript: &Path) -> Result<Self> {
        let (reader, writer) = stream.into_split();
        let transcript =
            File::create(transcript).with_context(|| format!("cannot create {}", transcript.display()))?;
        Ok(Self { lines: BufReader::new(reader), partial: Vec::new(), writer, transcript, last_id: 0 })
    }

    /// Executes a step and returns its answer.
    ///
    /// # Errors
    /// Fails if the step fails, the link is closed, or the agent does not reply in time. `downcast_ref` can extract
    /// the [`Failure`] of a failed step.
    pub async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        self.call_within(STEP_TIMEOUT, step).await
    }

    /// Executes a step that may take up to `limit`.
    ///
    /// # Errors
    /// Same as for [`Self::call`].
    pub async fn call_within<C: Call>(&mut self, limit: Duration, step: C) -> Result<C::Answer> {
        Ok(self.exchange(limit, step, true).await?.into_answer::<C>()?)
    }

    /// Checks that the agent replies. The supervisor pings the agent repeatedly while commands run, so the transcript
    /// omits pings.
    ///
    /// # Errors
    /// Fails if the link is closed or if the agent does not reply in time.
    pub async fn ping(&mut self, limit: Duration) -> Result<()> {
        self.exchange(limit, Ping {}, false).await.map(drop)
    }

    /// Executes a step that is expected to fail and returns the failure.
    ///
    /// # Errors
    /// Fails if the step succeeds, the link is closed, or the agent does not reply in time.
    pub async fn call_refused<C: Call>(&mut self, step: C) -> Result<Failure> {
        let response = self.exchange(STEP_TIMEOUT, step, true).await?;
        match response.result {
            Err(failure) => Ok(failure),
            Ok(answer) => bail!("the guest agent reported success instead of an error: {answer}"),
        }
    }

    async fn exchange<C: Call>(&mut self, limit: Duration, step: C, logged: bool) -> Result<Response> {
        let step_name = short_name::<C>();
        self.last_id += 1;
        let line = Request::new(self.last_id, step).to_line();
        timeout(limit, self.send_and_receive(&line, logged))
            .await
            .with_context(|| format!("the guest agent did not reply to {step_name} within {limit:?}"))?
            .with_context(|| format!("request {step_name} to the guest agent failed"))
    }

    async fn send_and_receive(&mut self, line: &str, logged: bool) -> Result<Response> {
        if logged {
            self.transcript.write_all(line.as_bytes())?;
        }
        self.writer.write_all(line.as_bytes()).await?;
        loop {
            // If the future is cancelled, the bytes read so far stay in the buffer.
            let room = LONGEST_ANSWER.saturating_sub(self.partial.len() as u64);
            (&mut self.lines).take(room).read_until(b'\n', &mut self.partial).await?;
            if self.partial.last() != Some(&b'\n') {
                let has_room = (self.partial.len() as u64) < LONGEST_ANSWER;
                ensure!(has_room, "the guest agent sent a reply of more than {LONGEST_ANSWER} bytes");
                bail!("the guest closed its connection to guest-lab");
            }
            let answer = std::mem::take(&mut self.partial);
            if logged {
                self.transcript.write_all(&answer)?;
            }
            let response: Response = serde_json::from_slice(&answer).with_context(|| {
                let text = String::from_utf8_lossy(&answer);
                format!("the guest agent sent an invalid reply: {}", text.trim_end())
            })?;
            // Skip late replies to abandoned requests. ID 0 means that the agent could not parse a request, which can
            // only be the current one.
            if response.id == self.last_id || response.id == 0 {
                return Ok(response);
            }
        }
    }
}

fn short_name<T>() -> &'static str {
    let name = std::any::type_name::<T>();
    name.rsplit("::").next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use agent::wire::Ping;

    use super::*;

    async fn answering(answers: &'static str) -> (AgentLink, tempfile::TempDir) {
        let (link, mut agent, folder) = connected();
        agent.write_all(answers.as_bytes()).await.unwrap();
        std::mem::forget(agent);
        (link, folder)
    }

    /// Returns a link, the agent's end of it, and a directory that contains the transcript as `t`.
    fn connected() -> (AgentLink, UnixStream, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        (AgentLink::new(ours, &folder.path().join("t")).unwrap(), theirs, folder)
    }

    #[tokio::test]
    async fn late_reply_to_earlier_request_is_skipped() {
        let (mut link, _folder) =
            answering("{\"id\":0,\"result\":{\"Err\":{\"kind\":\"protocol\",\"message\":\"m\"}}}\n\
                {\"id\":1,\"result\":{\"Ok\":{\"uptime_ms\":1}}}\n{\"id\":2,\"result\":{\"Ok\":{\"uptime_ms\":2}}}\n")
            .await;
        let failure = link.call(Ping {}).await.unwrap_err();
        assert_eq!(failure.downcast_ref::<Failure>().unwrap().message, "m");
        assert_eq!(link.call(Ping {}).await.unwrap().uptime_ms, 2);
    }

    #[tokio::test]
    async fn partial_reply_is_completed_after_timeout() {
        let (mut link, mut agent, _folder) = connected();
        agent.write_all(b"{\"id\":1,\"result\":{\"Ok\":{\"upt").await.unwrap();
        link.call_within(Duration::from_millis(1), Ping {}).await.unwrap_err();
        agent.write_all(b"ime_ms\":1}}}\n{\"id\":2,\"result\":{\"Ok\":{\"uptime_ms\":2}}}\n").await.unwrap();
        assert_eq!(link.call(Ping {}).await.unwrap().uptime_ms, 2);
    }

    #[tokio::test]
    async fn transcript_omits_liveness_pings() {
        let (mut link, mut agent, folder) = connected();
        agent.write_all(b"{\"id\":1,\"result\":{\"Ok\":{\"uptime_ms\":1}}}\n").await.unwrap();
        link.ping(Duration::from_secs(60)).await.unwrap();
        link.ping(Duration::from_millis(1)).await.unwrap_err();
        drop(agent);
        link.ping(Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(std::fs::read_to_string(folder.path().join("t")).unwrap(), "");
    }

    #[tokio::test]
    async fn timeout_error_mentions_step() {
        let (mut link, _folder) = answering("").await;
        let error = link.call_within(Duration::from_millis(1), Ping {}).await.unwrap_err();
        assert_eq!(error.to_string(), "the guest agent did not reply to Ping within 1ms");
    }
}
