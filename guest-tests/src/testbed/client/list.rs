//! `ps` lists the running testbeds.

use anyhow::Result;

use super::{describe, print_json};
use crate::report::line;
use crate::testbed::protocol::Description;
use crate::testbed::state::States;

/// Arguments of [`super::Command::Ps`].
#[derive(Clone, Debug, clap::Args)]
pub struct List {
    /// Print the running testbeds as a JSON array
    #[arg(long)]
    json: bool,
}

impl List {
    /// Prints the list of testbeds.
    ///
    /// # Errors
    /// Fails if the state directory cannot be read.
    pub(super) async fn run(self) -> Result<()> {
        let mut all = Vec::new();
        for name in States::open()?.running()? {
            match describe(&name).await {
                Ok(description) => all.push(description),
                // The testbed may be starting or stopping.
                Err(error) => tracing::warn!("{error:#}"),
            }
        }
        if self.json {
            return print_json(&all);
        }
        line(&table(&all))
    }
}

/// Returns a table with a heading and one line per guest.
pub(super) fn table(all: &[Description]) -> String {
    let mut rows =
        vec![["GUEST", "KIND", "STATE", "ADDRESS", "RDMA DEVICE", "COMMANDS", "KERNEL"].map(str::to_owned)];
    for testbed in all {
        for guest in &testbed.guests {
            rows.push([
                format!("{}:{}", testbed.name, guest.name),
                guest.device.clone(),
                guest.stage.words().to_owned(),
                guest.ip.to_string(),
                guest.rdma_device.clone().unwrap_or_else(|| "-".into()),
                guest.commands.to_string(),
                testbed.kernel.clone(),
            ]);
        }
    }
    let widths: Vec<usize> =
        (0..7).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or_default()).collect();
    let text = |row: &[String; 7]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(text).collect::<Vec<_>>().join("\n")
}
