//! Runs Linux drivers with planted bugs. hcad's log must identify each bug and must not report violations if no bug is
//! selected.
//!
//! Each driver is built from its source in the kernel tree, with an added module parameter that selects a bug.
//! The scenario triggers the bugs with management datagrams, since the kernel driver itself posts these datagrams.
//! Requests from user programs would bypass the kernel driver.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::stock_pair::StockNode;
use crate::daemon::Explained;
use crate::lab::Lab;
use crate::report::{Report, line};
use crate::testbed::kind::Device;

const LIMIT: Duration = Duration::from_secs(180);
/// Disk that contains the module. It follows the disks of the root file system.
const DISK: &str = "/dev/vdc";
/// Sector size in bytes. The disk image is padded to whole sectors, and the kernel ignores the bytes after the module.
const SECTOR: usize = 512;

/// A text replacement in one of a driver's source files: file, old text and new text. Every occurrence is replaced.
pub(super) type Change = (&'static str, &'static str, &'static str);

pub(super) struct Driver {
    pub(super) scenario: &'static str,
    pub(super) device: Device,
    /// Directory of the driver in the Linux source tree.
    pub(super) folder: &'static str,
    pub(super) module: &'static str,
    /// Modules to load first: dependencies and modules for the tools in the guest.
    pub(super) others: &'static [&'static str],
    pub(super) changes: &'static [Change],
    pub(super) planted: &'static [Planted],
    /// Rules that the planted bugs violate. These violations do not make the scenario fail.
    pub(super) explained: &'static [Explained],
}

/// A planted bug, identified by its number in the module parameter.
pub(super) struct Planted {
    pub(super) number: u32,
    pub(super) about: &'static str,
    /// Rules whose violation must be reported.
    pub(super) rules: &'static [&'static str],
    /// Text that a log line must contain to identify the bug.
    pub(super) says: &'static str,
}

/// Declares that a planted bug violates `rule`.
pub(super) const fn meant(rule: &'static str) -> Explained {
    Explained { rule, why: "planted" }
}

impl Driver {
    pub(super) async fn run(&'static self, lab: &Lab, report: &mut Report) -> Result<()> {
        let run = lab.new_run(self.scenario)?;
        let hint = format!("console output, logs and the driver: {}", run.path().display());
        let changes = self.changes;
        let change = move |folder: &Path| plant(folder, changes);
        let module =
            lab.build_changed_driver(&run, self.folder, change).await.with_context(|| hint.clone())?;
        let disk = disk_of(&module).with_context(|| hint.clone())?;
        let started = StockNode::start_alone(self.device, lab, &run, vec![disk], Some(self.explained)).await;
        let mut node = started.with_context(|| hint.clone())?;
        report
            .case("the unmodified driver triggers no reports", &hint, self.expect_no_report(&mut node))
            .await?;
        for planted in self.planted {
            report.case(planted.about, &hint, self.expect_reports(&mut node, planted)).await?;
        }
        let title = "the correct driver still triggers no reports";
        report.case(title, &hint, self.expect_no_report(&mut node)).await?;
        report.case("the daemon exits cleanly on SIGTERM", &hint, node.stop()).await
    }

    /// Loads the driver with bug `planted`, queries the subnet manager, and unloads the driver.
    async fn load(&self, node: &mut StockNode, planted: u32) -> Result<()> {
        const LOAD: &str = "disk=$1 planted=$2 module=$3; shift 3; \
                            cat $disk > /run/$module.ko && modprobe -a \"$@\" || exit; \
                            insmod /run/$module.ko planted=$planted";
        // With some bugs, the query does not receive a reply. It therefore has a timeout.
        const USE: &str = "for turn in 1 2 3; do timeout 2 sminfo; done; rmmod $1";
        let planted = planted.to_string();
        let load = ["sh", "-c", LOAD, "sh", DISK, &planted, self.module];
        node.vm.run_within(LIMIT, &[&load, self.others].concat()).await?;
        node.port_is("4: ACTIVE").await?;
        node.vm.run_within(LIMIT, &["sh", "-c", USE, "sh", self.module]).await.map(drop)
    }

    async fn expect_no_report(&self, node: &mut StockNode) -> Result<()> {
        let before = Violations::by_now(node).await?;
        self.load(node, 0).await?;
        before.expect_none_since(node).await
    }

    /// Checks that the reported rules are exactly the bug's and that a log line identifies the bug.
    async fn expect_reports(&self, node: &mut StockNode, planted: &Planted) -> Result<()> {
        let before = Violations::by_now(node).await?;
        self.load(node, planted.number).await?;
        let new = before.since(node, planted.says).await?;
        ensure!(new.keys().eq(planted.rules), "reported: {new:?}, expected {:?}", planted.rules);
        Ok(())
    }
}

fn plant(folder: &Path, changes: &[Change]) -> Result<()> {
    for (file, old, new) in changes {
        let path = folder.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(text.contains(old), "{file} of this kernel does not contain {old:?}");
        fs::write(&path, text.replace(old, new))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn disk_of(module: &Path) -> Result<PathBuf> {
    let mut bytes = fs::read(module)?;
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    let disk = module.with_extension("disk");
    fs::write(&disk, bytes)?;
    Ok(disk)
}

/// A snapshot of the violations reported by a daemon.
pub(super) struct Violations {
    violations: BTreeMap<String, u64>,
    lines: usize,
}

impl Violations {
    pub(super) async fn by_now(node: &mut StockNode) -> Result<Self> {
        Ok(Self { violations: node.daemon.violations().await?, lines: lines(node)?.len() })
    }

    pub(super) async fn expect_none_since(self, node: &StockNode) -> Result<()> {
        let (before, after) = (self.violations, node.daemon.violations().await?);
        ensure!(after == before, "reported {after:?}, before that {before:?}");
        Ok(())
    }

    /// Returns how often each rule has been reported since the snapshot was taken. Prints the first few new log lines
    /// and fails unless a new line contains `says`.
    pub(super) async fn since(self, node: &mut StockNode, says: &str) -> Result<BTreeMap<String, u64>> {
        let after = node.daemon.violations().await?;
        let new = |(rule, count): (&String, &u64)| {
            let new = count - self.violations.get(rule).unwrap_or(&0);
            (new != 0).then(|| (rule.clone(), new))
        };
        let new: BTreeMap<String, u64> = after.iter().filter_map(new).collect();
        let lines = lines(node)?.split_off(self.lines);
        for told in lines.iter().take(3) {
            line(&format!("      {told}"))?;
        }
        ensure!(
            lines.iter().any(|told| told.contains(says)),
            "no line contains {says:?}; reported: {new:?}, lines: {lines:#?}"
        );
        Ok(new)
    }
}

/// Returns the lines in the daemon's log that report violations.
fn lines(node: &mut StockNode) -> Result<Vec<String>> {
    let log = node.daemon.process().log();
    let text = std::fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
    Ok(text.lines().filter(|line| line.contains("driver violation")).map(str::to_owned).collect())
}
