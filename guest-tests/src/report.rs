//! The output of a run: one line per case, followed by the counts.

use std::fmt;
use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, timeout};

use crate::times;

/// Error returned by a case that cannot run here, with the reason.
#[derive(Debug)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Number of cases with each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u32,
    pub failed: u32,
    pub skipped: u32,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Runs cases and prints each outcome immediately.
#[derive(Debug)]
pub struct Report {
    scenario: String,
    counts: Counts,
    case_timeout: Duration,
    stop_at_failure: bool,
    only: Option<String>,
}

impl Report {
    /// Creates a report. A case without its own time limit is aborted after `case_timeout`. If `stop_at_failure` is
    /// set, guests and daemons keep running after a failed case until Enter is pressed.
    pub fn new(case_timeout: Duration, stop_at_failure: bool) -> Self {
        Self { scenario: String::new(), counts: Counts::default(), case_timeout, stop_at_failure, only: None }
    }

    /// Restricts the report to cases whose names contain `text`, if it is `Some`. Other cases are neither run nor
    /// counted.
    #[must_use]
    pub fn with_only(self, text: Option<String>) -> Self {
        Self { only: text, ..self }
    }

    /// Creates an empty report with the same settings, for a scenario that runs in parallel.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self { scenario: String::new(), counts: Counts::default(), only: self.only.clone(), ..*self }
    }

    /// Adds the counts from a parallel report.
    pub fn add(&mut self, counts: Counts) {
        self.counts.passed += counts.passed;
        self.counts.failed += counts.failed;
        self.counts.skipped += counts.skipped;
    }

    /// Sets the scenario name for the following cases.
    pub fn begin(&mut self, scenario: &str) {
        scenario.clone_into(&mut self.scenario);
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Runs one case. `hint` lists the files to inspect if the case fails.
    ///
    /// # Errors
    /// Fails if the outcome cannot be printed.
    pub async fn case(
        &mut self,
        name: &str,
        hint: &str,
        case: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        self.case_within(self.case_timeout, name, hint, case).await
    }

    /// Runs one case with its own time limit.
    ///
    /// # Errors
    /// Fails if the outcome cannot be printed.
    pub async fn case_within(
        &mut self,
        limit: Duration,
        name: &str,
        hint: &str,
        case: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        if self.only.as_ref().is_some_and(|text| !name.contains(text)) {
            return Ok(());
        }
        let begun = Instant::now();
        let result = timeout(limit, case).await.unwrap_or_else(|_| {
            Err(anyhow::anyhow!(
                "the case did not finish within {} s; --timeout changes this limit",
                limit.as_secs()
            ))
        });
        let elapsed = begun.elapsed();
        let seconds = elapsed.as_secs_f64();
        let scenario = &self.scenario;
        times::case(scenario, name, elapsed);
        match result {
            Ok(()) => {
                self.counts.passed += 1;
                line(&format!("ok    {scenario}: {name} ({seconds:.1} s)"))
            }
            Err(error) => match error.downcast_ref::<Skip>() {
                Some(reason) => {
                    self.counts.skipped += 1;
                    line(&format!("skip  {scenario}: {name}: {reason}"))
                }
                None => {
                    self.counts.failed += 1;
                    let causes = indented(&format!("{error:#}"));
                    line(&format!(
                        "FAIL  {scenario}: {name} ({seconds:.1} s)\n{causes}\n{}",
                        indented(hint)
                    ))?;
                    if self.stop_at_failure {
                        line("      guests and daemons are still running; press Enter to stop them")?;
                        tokio::task::spawn_blocking(|| io::stdin().read_line(&mut String::new())).await??;
                    }
                    Ok(())
                }
            },
        }
    }
}

/// Prints a line to standard output and flushes it, so that the outcome of each case is visible immediately.
///
/// # Errors
/// Fails if standard output is closed.
pub fn line(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("      {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn outcomes_are_counted_separately() {
        let mut report = Report::new(Duration::from_secs(9), false);
        report.case("good", "", async { Ok(()) }).await.unwrap();
        report.case("bad", "", async { anyhow::bail!("broken") }).await.unwrap();
        report.case("not here", "", async { Err(Skip("no KVM".into()).into()) }).await.unwrap();
        assert_eq!(report.counts().to_string(), "1 passed, 1 failed, 1 skipped");
    }

    #[tokio::test]
    async fn only_selected_cases_run() {
        let mut report =
            Report::new(Duration::from_secs(9), false).with_only(Some("ib_write".into())).beside();
        report.case("ib_write_bw -s 64", "", async { Ok(()) }).await.unwrap();
        report.case("ib_read_bw -s 64", "", async { anyhow::bail!("it runs") }).await.unwrap();
        assert_eq!(report.counts().to_string(), "1 passed, 0 failed, 0 skipped");
    }
}
