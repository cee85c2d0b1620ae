//! Typed requests to the agent of one guest over its virtio-serial port.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use agent::wire::{Call, Failure, Request, Response};
use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// Default time limit of a step. Longer steps have their own limits.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to one agent, with at most one outstanding request.
#[derive(Debug)]
pub struct AgentLink {
    lines: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    transcript: File,
    last_id: u64,
}

impl AgentLink {
    /// Creates a link over `stream`. All lines, in both directions, are also written to `transcript`.
    ///
    /// # Errors
    /// The transcript cannot be created.
    pub fn new(stream: UnixStream, transcript: &Path) -> Result<Self> {
        let (reader, writer) = stream.into_split();
        let transcript =
            File::create(transcript).with_context(|| format!("cannot create {}", transcript.display()))?;
        Ok(Self { lines: BufReader::new(reader), writer, transcript, last_id: 0 })
    }

    /// Executes a step and returns its answer.
    ///
    /// # Errors
    /// The step fails, the link is closed, or the agent does not answer in time. `downcast_ref` can extract the
    /// [`Failure`] of a failed step.
    pub async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        self.call_within(STEP_TIMEOUT, step).await
    }

    /// Executes a step that may take up to `limit`.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub async fn call_within<C: Call>(&mut self, limit: Duration, step: C) -> Result<C::Answer> {
        Ok(self.exchange(limit, step).await?.into_answer::<C>()?)
    }

    /// Executes a step that is expected to fail, and returns the failure.
    ///
    /// # Errors
    /// The step succeeds, the link is closed, or the agent does not answer in time.
    pub async fn call_refused<C: Call>(&mut self, step: C) -> Result<Failure> {
        let response = self.exchange(STEP_TIMEOUT, step).await?;
        match response.result {
            Err(failure) => Ok(failure),
            Ok(answer) => bail!("the guest agent reported success instead of an error: {answer}"),
        }
    }

    async fn exchange<C: Call>(&mut self, limit: Duration, step: C) -> Result<Response> {
        let step_name = short_name::<C>();
        self.last_id += 1;
        let line = Request::new(self.last_id, step).to_line();
        timeout(limit, self.send_and_receive(&line))
            .await
            .with_context(|| format!("the guest agent did not reply to {step_name} within {limit:?}"))?
            .with_context(|| format!("cannot send request {step_name} to the guest agent"))
    }

    async fn send_and_receive(&mut self, line: &str) -> Result<Response> {
        self.transcript.write_all(line.as_bytes())?;
        self.writer.write_all(line.as_bytes()).await?;
        loop {
            let mut answer = String::new();
            if self.lines.read_line(&mut answer).await? == 0 {
                bail!("the guest closed its connection to guest-lab");
            }
            self.transcript.write_all(answer.as_bytes())?;
            let response: Response = serde_json::from_str(&answer)
                .with_context(|| format!("the guest agent sent an invalid reply: {}", answer.trim_end()))?;
            // Skip late answers to abandoned requests. An answer with ID 0 means that the agent could not parse a
            // request, which can only be the current request.
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
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_, mut writer) = theirs.into_split();
        writer.write_all(answers.as_bytes()).await.unwrap();
        std::mem::forget(writer);
        (AgentLink::new(ours, &folder.path().join("t")).unwrap(), folder)
    }

    #[tokio::test]
    async fn late_answer_to_earlier_request_is_skipped() {
        let (mut link, _folder) =
            answering("{\"id\":0,\"result\":{\"Err\":{\"kind\":\"protocol\",\"message\":\"m\"}}}\n\
                {\"id\":1,\"result\":{\"Ok\":{\"uptime_ms\":1}}}\n{\"id\":2,\"result\":{\"Ok\":{\"uptime_ms\":2}}}\n")
            .await;
        let failure = link.call(Ping {}).await.unwrap_err();
        assert_eq!(failure.downcast_ref::<Failure>().unwrap().message, "m");
        assert_eq!(link.call(Ping {}).await.unwrap().uptime_ms, 2);
    }

    #[tokio::test]
    async fn timeout_error_names_step() {
        let (mut link, _folder) = answering("").await;
        let error = link.call_within(Duration::from_millis(1), Ping {}).await.unwrap_err();
        assert_eq!(error.to_string(), "the guest agent did not reply to Ping within 1ms");
    }
}
