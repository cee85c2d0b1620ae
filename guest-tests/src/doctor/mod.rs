//! `doctor` checks whether guests can boot on this machine.
//!
//! `findings` collects the machine's state, and `checks` evaluates it. The evaluation is a pure function, so tests can
//! run it on the findings of hypothetical machines.

mod checks;
mod findings;

use anyhow::Result;
use serde::Serialize;

use self::checks::judge;
use self::findings::Findings;
use crate::report::line;
use crate::testbed::progress::Line;

/// The `doctor` command.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Doctor {
    /// Do not contact the Debian archive
    #[arg(long)]
    offline: bool,
    /// Print the check results as a JSON array
    #[arg(long)]
    json: bool,
}

/// Result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// The check found no problem.
    Ok,
    /// Guests boot, but something is slow or does not work.
    Limited,
    /// Guests cannot boot at all.
    Missing,
    /// The check was skipped because of an option.
    Skipped,
}

/// A check and its result, printed as one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    /// The finding and its consequences.
    found: String,
    /// How to fix the problem, or `None` if the check found none.
    remedy: Option<String>,
}

impl Check {
    fn to_line(&self) -> String {
        let state = match self.state {
            State::Ok => "ok",
            State::Limited => "limited",
            State::Missing => "missing",
            State::Skipped => "skipped",
        };
        let Self { name, found, .. } = self;
        let remedy = self.remedy.as_ref().map(|remedy| format!(". {remedy}")).unwrap_or_default();
        format!("{state:8} {name:19} {found}{remedy}")
    }
}

impl Doctor {
    /// Prints one line per check and returns whether guests can boot.
    ///
    /// # Errors
    /// Fails if the output cannot be written.
    pub fn run(self) -> Result<bool> {
        let progress = Line::begin("doctor");
        progress.show(if self.offline {
            "checking this machine"
        } else {
            "checking this machine and the Debian archive"
        });
        let checks = judge(&Findings::collect(!self.offline));
        drop(progress);
        let bootable = checks.iter().all(|check| check.state != State::Missing);
        if self.json {
            line(&serde_json::to_string_pretty(&checks)?)?;
        } else {
            for check in &checks {
                line(&check.to_line())?;
            }
            line(&format!("\n{}", conclusion(&checks)))?;
        }
        Ok(bootable)
    }
}

fn conclusion(checks: &[Check]) -> String {
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    match (count(State::Missing), count(State::Limited)) {
        (0, 0) => "Guests can be booted.".into(),
        (0, 1) => "Guests can be booted, with 1 limitation (see above).".into(),
        (0, limited) => format!("Guests can be booted, with {limited} limitations (see above)."),
        (1, _) => "Guests cannot be booted: 1 requirement is missing (see above).".into(),
        (missing, _) => format!("Guests cannot be booted: {missing} requirements are missing (see above)."),
    }
}
