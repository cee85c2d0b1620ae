//! A network namespace that is deleted on drop.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;
use tokio::time::Instant;

use crate::limits::Limit;

/// Timeout for duplicate address detection and link activation, which take about a second.
const SETTLED: Duration = Duration::from_secs(60);

/// A network namespace on the host.
#[derive(Debug)]
pub(super) struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a namespace with a unique name derived from `name` and brings its loopback interface up.
    pub(super) async fn create(name: &str) -> Result<Self> {
        if let Some(reason) = Limit::NetworkNamespaces.reason() {
            bail!(reason);
        }
        let name = format!("hcad-lab-{}-{name}", std::process::id());
        run(&["ip", "netns", "add", &name]).await?;
        let namespace = Self { name };
        namespace.ip(&["link", "set", "lo", "up"]).await?;
        Ok(namespace)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` with the given arguments in the namespace.
    pub(super) async fn ip(&self, arguments: &[&str]) -> Result<()> {
        self.show(arguments).await.map(drop)
    }

    /// Waits until no interface has a tentative address and every interface that is up has a link.
    pub(super) async fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + SETTLED;
        loop {
            let tentative = self.show(&["-6", "address", "show", "tentative"]).await?;
            let links = self.show(&["-oneline", "link", "show", "up"]).await?;
            if tentative.is_empty() && !links.contains("state DOWN") {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "addresses or links were not ready within {SETTLED:?}: {tentative}{links}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn show(&self, arguments: &[&str]) -> Result<String> {
        run(&[&["ip", "-netns", &self.name][..], arguments].concat()).await
    }

    /// Runs a program in the namespace and returns its output. Fails if the program does not exit successfully.
    pub(super) async fn exec(&self, argv: &[&str]) -> Result<String> {
        run(&[&["ip", "netns", "exec", &self.name][..], argv].concat()).await
    }

    /// Returns the command that runs a program in the namespace.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Processes may still be running in the namespace. The kernel frees it when the last one exits.
        let _ = std::process::Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Runs a program and returns its output. Fails if the program does not exit successfully.
pub(super) async fn run(argv: &[&str]) -> Result<String> {
    let (program, arguments) = argv.split_first().context("no program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.with_context(|| format!("cannot start {program}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {printed}{}", argv.join(" "), errors.trim_end());
    Ok(printed)
}
