//! Two guests with one HCA each, connected over UDP. Each HCA has its own daemon.

use agent::wire::{BindVfio, CloseHca, DeviceSelector, HcaInfo, HcrBase, OpenHca};
use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::daemon::{Daemon, HcaSpec};
use crate::lab::{Guest, Lab};
use crate::run_dir::RunDir;
use crate::vm::{Image, Vm};

pub(super) const VFIO_MODULES: &[&str] = &["vfio-pci", "vfio_iommu_type1"];

#[derive(Debug)]
pub(super) struct Node {
    pub(super) vm: Vm,
    pub(super) daemon: Daemon,
    /// Location of the command register (HCR) that this node's driver uses.
    hcr: HcrBase,
    /// Whether the agent runs in a guest rather than in a process on the host.
    in_guest: bool,
}

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) a: Node,
    pub(super) b: Node,
    image: Image,
    run: RunDir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    AToB,
    BToA,
}

impl Pair {
    pub(super) async fn start(lab: &Lab, scenario: &str) -> Result<Self> {
        Self::start_with_console(lab, scenario, "").await
    }

    /// Starts the pair with access to the console of the named guest.
    pub(super) async fn start_with_console(lab: &Lab, scenario: &str, guest: &str) -> Result<Self> {
        Self::start_as(lab, scenario, guest, [json!({}), json!({})]).await
    }

    async fn start_as(lab: &Lab, scenario: &str, console: &str, options: [Value; 2]) -> Result<Self> {
        let run = lab.new_run(scenario)?;
        let started = Self::start_in(lab, &run, console, options).await;
        let (image, a, b) =
            started.with_context(|| format!("console output and logs are in {}", run.path().display()))?;
        Ok(Self { a, b, image, run })
    }

    /// Starts the pair and initialises both HCAs. Node `a` uses the HCR address from the public driver, and node `b`
    /// uses the one from the interface document.
    pub(super) async fn start_open(lab: &Lab, scenario: &str) -> Result<Self> {
        Self::start_open_as(lab, scenario, [json!({}), json!({})]).await
    }

    pub(super) async fn start_open_as(lab: &Lab, scenario: &str, options: [Value; 2]) -> Result<Self> {
        let mut pair = Self::start_as(lab, scenario, "", options).await?;
        tokio::try_join!(pair.a.open(), pair.b.open())?;
        Ok(pair)
    }

    async fn start_in(
        lab: &Lab,
        run: &RunDir,
        console: &str,
        options: [Value; 2],
    ) -> Result<(Image, Node, Node)> {
        let hcad = lab.hcad()?;
        let image = lab.image(run, VFIO_MODULES)?;
        let [mut a, mut b] = HcaSpec::pair()?;
        [a.options, b.options] = options;
        let daemon_a = Daemon::start(&hcad, &a, run).await?;
        let daemon_b = Daemon::start(&hcad, &b, run).await?;
        let (vm_a, vm_b) = tokio::try_join!(
            boot(lab, run, &image, "a", &daemon_a, console),
            boot(lab, run, &image, "b", &daemon_b, console)
        )?;
        Ok((
            image,
            Node { vm: vm_a, daemon: daemon_a, hcr: HcrBase::Zero, in_guest: !lab.has_no_guests() },
            Node { vm: vm_b, daemon: daemon_b, hcr: HcrBase::Document, in_guest: !lab.has_no_guests() },
        ))
    }

    /// Returns text that names the files to inspect when a case fails.
    pub(super) fn hint(&self) -> String {
        format!("console output, logs, captures and command lines: {}", self.run.path().display())
    }

    pub(super) fn run(&self) -> &RunDir {
        &self.run
    }

    /// Returns the requester's guest and the responder's guest for one direction.
    pub(super) fn towards(&mut self, direction: Direction) -> (&mut Vm, &mut Vm) {
        match direction {
            Direction::AToB => (&mut self.a.vm, &mut self.b.vm),
            Direction::BToA => (&mut self.b.vm, &mut self.a.vm),
        }
    }

    /// Kills guest `a` with SIGKILL and attaches a new guest to the same daemon.
    pub(super) async fn replace_a(&mut self, lab: &Lab) -> Result<()> {
        self.a.vm.kill().await?;
        self.a.daemon.wait_for_disconnect().await?;
        self.a.vm = boot(lab, &self.run, &self.image, "a", &self.a.daemon, "").await?;
        self.a.open().await
    }

    /// Kills the guests, then shuts the daemons down cleanly so that the captures are complete.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.a.vm.kill().await?;
        self.b.vm.kill().await?;
        self.a.daemon.stop().await?;
        self.b.daemon.stop().await
    }
}

impl Node {
    pub(super) async fn boot(
        lab: &Lab,
        run: &RunDir,
        image: &Image,
        name: &str,
        daemon: Daemon,
    ) -> Result<Self> {
        let vm = boot(lab, run, image, name, &daemon, "").await?;
        Ok(Self { vm, daemon, hcr: HcrBase::Zero, in_guest: !lab.has_no_guests() })
    }

    /// Binds the HCA to the user-space driver and initialises it.
    pub(super) async fn open(&mut self) -> Result<()> {
        if self.in_guest {
            self.vm.call(BindVfio { device: DeviceSelector::default() }).await?;
        }
        self.reopen(OpenHca::default()).await.map(drop)
    }

    /// Initialises an HCA that is already bound to the user-space driver.
    pub(super) async fn reopen(&mut self, step: OpenHca) -> Result<HcaInfo> {
        let device = match self.in_guest {
            true => step.device,
            false => DeviceSelector::Socket(self.daemon.socket().display().to_string()),
        };
        self.vm.call(OpenHca { hcr: self.hcr, device, ..step }).await
    }

    pub(super) async fn close(&mut self) -> Result<()> {
        self.vm.call(CloseHca::default()).await.map(drop)
    }
}

async fn boot(
    lab: &Lab,
    run: &RunDir,
    image: &Image,
    name: &str,
    daemon: &Daemon,
    console: &str,
) -> Result<Vm> {
    if lab.has_no_guests() {
        return Vm::without_guest(name, run).await;
    }
    let hcas = vec![daemon.socket().to_owned()];
    let guest = Guest { name, hcas, with_console: name == console, ..Guest::default() };
    lab.boot(run, image, guest).await
}
