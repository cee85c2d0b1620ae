//! Two guests, each with one HCA served by a daemon of its own, wired to each other over UDP.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::daemon::{Daemon, HcaSpec};
use crate::lab::{Guest, Lab};
use crate::run_dir::RunDir;
use crate::vm::{Image, Vm};

/// What a userspace driver needs in the guest.
pub(super) const VFIO_MODULES: &[&str] = &["vfio-pci", "vfio_iommu_type1"];

/// One guest and its daemon.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) vm: Vm,
    pub(super) daemon: Daemon,
}

/// Two nodes of one fabric.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) a: Node,
    pub(super) b: Node,
    pub(super) image: Image,
    pub(super) run: RunDir,
}

impl Pair {
    /// Starts both daemons, then both guests side by side.
    pub(super) async fn start(lab: &Lab, scenario: &str) -> Result<Self> {
        let hcad = lab.hcad()?;
        let run = lab.new_run(scenario)?;
        let image = lab.image(&run, VFIO_MODULES)?;
        let [a, b] = HcaSpec::pair()?;
        let context = || format!("see {}", run.path().display());
        let (a, b) = async {
            let daemon_a = Daemon::start(&hcad, &a, &run).await?;
            let daemon_b = Daemon::start(&hcad, &b, &run).await?;
            let boot_a = boot(lab, &run, &image, "a", daemon_a.socket().to_owned());
            let boot_b = boot(lab, &run, &image, "b", daemon_b.socket().to_owned());
            let (vm_a, vm_b) = tokio::try_join!(boot_a, boot_b)?;
            anyhow::Ok((Node { vm: vm_a, daemon: daemon_a }, Node { vm: vm_b, daemon: daemon_b }))
        }
        .await
        .with_context(context)?;
        Ok(Self { a, b, image, run })
    }

    /// Where to look when a case fails.
    pub(super) fn hint(&self) -> String {
        format!("consoles, logs, captures and command lines: {}", self.run.path().display())
    }
}

pub(super) async fn boot(lab: &Lab, run: &RunDir, image: &Image, name: &str, socket: PathBuf) -> Result<Vm> {
    let guest = Guest { name, hcas: vec![socket], with_console: false };
    lab.boot(run, image, guest).await
}
