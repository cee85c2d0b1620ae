//! Impairs a link with the daemon's impairment rules.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::time::Instant;

use crate::daemon::Daemon;

/// Timeout for frames that are expected immediately.
const SOON: Duration = Duration::from_secs(60);

/// Impairment rules for one device's link.
#[derive(Debug, Default)]
pub(super) struct Impairments(Vec<u64>);

impl Impairments {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a rule in the syntax of `hcactl impair add`.
    pub(super) async fn add(&mut self, daemon: &Daemon, rule: &[&str]) -> Result<()> {
        let answer = daemon.control(&[&["impair", "add"], rule].concat()).await?;
        let id = answer.as_u64().with_context(|| format!("the reply has no rule number: {answer}"))?;
        self.0.push(id);
        Ok(())
    }

    /// Returns the number of frames that have matched the rules.
    pub(super) async fn matched(&self, daemon: &Daemon) -> Result<u64> {
        Ok(self.column(daemon, "matched").await?.iter().sum())
    }

    /// Returns the number of frames that the rules have impaired.
    pub(super) async fn hits(&self, daemon: &Daemon) -> Result<u64> {
        Ok(self.hits_of_each(daemon).await?.iter().sum())
    }

    /// Returns the number of frames that each rule has impaired.
    pub(super) async fn hits_of_each(&self, daemon: &Daemon) -> Result<Vec<u64>> {
        self.column(daemon, "hits").await
    }

    async fn column(&self, daemon: &Daemon, column: &str) -> Result<Vec<u64>> {
        let rows = daemon.control(&["impair", "list"]).await?;
        let number = |row: &Value, column: &str| row.get(column).and_then(Value::as_u64);
        let rows = rows.as_array().with_context(|| format!("the reply is not a list: {rows}"))?;
        rows.iter()
            .filter(|row| number(row, "id").is_some_and(|id| self.0.contains(&id)))
            .map(|row| number(row, column).with_context(|| format!("{column} is missing in {row}")))
            .collect()
    }

    /// Waits until `count` frames have matched the rules.
    pub(super) async fn await_matches(&self, daemon: &Daemon, count: u64) -> Result<()> {
        let deadline = Instant::now() + SOON;
        while self.matched(daemon).await? < count {
            ensure!(Instant::now() < deadline, "waited {SOON:?} for {count} frames");
        }
        Ok(())
    }

    pub(super) async fn clear(self, daemon: &Daemon) -> Result<()> {
        for id in self.0 {
            daemon.control(&["impair", "clear", &id.to_string()]).await?;
        }
        Ok(())
    }
}
