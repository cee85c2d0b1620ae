//! `down` stops guests and daemons.

use anyhow::{Result, bail, ensure};
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
    /// A testbed does not exist, or drivers of HCAs in strict mode have violated rules.
    pub(super) async fn run(self) -> Result<()> {
        let names = if self.all { States::open()?.running()? } else { self.names };
        let mut all = Vec::new();
        for name in names {
            let complaints = end(&name).await.unwrap_or_else(|error| vec![format!("{error:#}")]);
            if !self.json && complaints.is_empty() {
                line(&format!("{name} stopped"))?;
            }
            all.push(Ended { name, complaints });
        }
        if self.json {
            print_json(&all)?;
        }
        let complaints: Vec<String> = all.into_iter().flat_map(|one| one.complaints).collect();
        ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
        Ok(())
    }
}

/// Stops one testbed and returns the problems found.
pub(super) async fn end(name: &TestbedName) -> Result<Vec<String>> {
    let progress = Line::begin(name.as_str());
    progress.show("stopping guests");
    match ask(name, &Request::Down).await? {
        Reply::Down { complaints } => Ok(complaints),
        other => bail!("unexpected reply from testbed {name}: {other:?}"),
    }
}
