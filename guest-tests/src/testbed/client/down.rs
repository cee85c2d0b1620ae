//! `down` stops guests and daemons.

use anyhow::{Error, Result, bail, ensure};
use serde::Serialize;

use super::{ask, print_json};
use crate::report::line;
use crate::testbed::name::TestbedName;
use crate::testbed::progress::Line;
use crate::testbed::protocol::{Reply, Request};
use crate::testbed::state::States;

/// Arguments of [`super::Command::Down`].
#[derive(Clone, Debug, clap::Args)]
pub struct Down {
    /// Testbeds to stop
    #[arg(required_unless_present = "all", value_name = "NAME")]
    names: Vec<TestbedName>,
    /// Stop all running testbeds
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Print the problems found in each testbed as a JSON array
    #[arg(long)]
    json: bool,
}

/// The object that `down --json` prints for each testbed.
#[derive(Clone, Debug, Serialize)]
struct Ended {
    name: TestbedName,
    complaints: Vec<String>,
}

impl Down {
    /// Stops all selected testbeds, even if one of them fails.
    ///
    /// # Errors
    /// Fails if a testbed does not exist or cannot be stopped, or if the driver of an HCA in strict mode has violated a
    /// rule.
    pub(super) async fn run(self) -> Result<()> {
        let names = if self.all { States::open()?.running()? } else { self.names };
        let mut all = Vec::new();
        for name in names {
            let stopped = end(&name).await.unwrap_or_else(Stopped::failed);
            if !self.json && stopped.complaints.is_empty() {
                let strict = if stopped.strict { "; strict mode found no unexpected violations" } else { "" };
                line(&format!("{name} stopped{strict}"))?;
            }
            all.push(Ended { name, complaints: stopped.complaints });
        }
        if self.json {
            print_json(&all)?;
        }
        let complaints: Vec<String> = all.into_iter().flat_map(|one| one.complaints).collect();
        ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
        Ok(())
    }
}

pub(super) struct Stopped {
    /// Problems found while stopping.
    pub(super) complaints: Vec<String>,
    /// Whether the devices were in strict mode.
    pub(super) strict: bool,
}

impl Stopped {
    fn failed(error: Error) -> Self {
        Self { complaints: vec![format!("{error:#}")], strict: false }
    }
}

/// Stops one testbed, with its guests and daemons.
pub(super) async fn end(name: &TestbedName) -> Result<Stopped> {
    let progress = Line::begin(name.as_str());
    progress.show("stopping guests");
    match ask(name, &Request::Down).await? {
        Reply::Down { complaints, strict } => Ok(Stopped { complaints, strict }),
        other => bail!("unexpected reply from testbed {name}: {other:?}"),
    }
}
