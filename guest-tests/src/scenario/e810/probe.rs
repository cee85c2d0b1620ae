//! Binds the driver to an E810 repeatedly, with every kind of package.
//!
//! One guest has two connected E810s, one as a card behind a root port and the other on the root bus.

use std::path::PathBuf;

use agent::wire::{Dmesg, Info};
use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use super::package::{self, Package};
use super::{answers, lifecycle, messages};
use crate::daemon::{Daemon, HcaSpec};
use crate::lab::{Guest, Lab};
use crate::report::{Report, Skip};
use crate::run_dir::RunDir;
use crate::scenario::extent::Extent;
use crate::scenario::nic::ping;
use crate::scenario::nic::station::{
    Address, CPUS, bring_up, carrier, device, e810_without_strict, load, warnings,
};
use crate::vm::{Image, Vm};

/// Numbers of the two E810s on the fabric.
const CARD: u16 = 1;
const INTEGRATED: u16 = 2;
/// Network namespace of the second E810. It ensures that packets between the two E810s leave the guest.
const SPACE: &str = "second";
/// PCI vendor and device ID.
const IDS: (u16, u16) = (0x8086, 0x1592);

/// The guest and the current names of its devices, which can change when the driver is loaded.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) vm: Vm,
    pub(super) daemon: Daemon,
    /// Name of the card's network device.
    pub(super) device: String,
    pub(super) function: String,
    /// Number of kernel messages that have already been checked.
    judged: usize,
    image: Image,
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let run = lab.new_run(extent.select("e810-probe", "e810-probe-full"))?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let debian = package::debian_disk(lab).await;
    let disks = debian.iter().cloned().collect();
    let mut probe = Probe::start(lab, &run, disks).await.context(hint.clone())?;
    report.case("without a package", &hint, probe.binds(Package::None)).await?;
    let debian = match debian {
        Ok(_) => Ok(()),
        Err(skip) => Err(skip),
    };
    report.case("with Debian's package", &hint, with_debians(&mut probe, debian)).await?;
    // The device keeps a package until a full reset. Restart the guest before testing the next package.
    report.case("the guest restarts", &hint, probe.restarts()).await?;
    report.case("with the lab's package", &hint, probe.binds(Package::Synthetic)).await?;
    for &(name, line, expected) in answers::ALL {
        report.case(name, &hint, answers::check(&mut probe, line, expected)).await?;
    }
    report.case("two E810s have different serial numbers", &hint, probe.differ()).await?;
    report.case("link down and up by hcactl", &hint, lifecycle::link_flap(&mut probe)).await?;
    report.case("link down and up by ip", &hint, lifecycle::interface_flap(&mut probe)).await?;
    report.case("devlink dev reload", &hint, lifecycle::devlink_reload(&mut probe)).await?;
    report.case("function-level reset", &hint, lifecycle::function_reset(&mut probe)).await?;
    report.case("resets by ethtool", &hint, lifecycle::driver_resets(&mut probe)).await?;
    report.case("all queue counts and ring sizes", &hint, lifecycle::rings(&mut probe)).await?;
    let repeated = extent.select(lifecycle::CYCLES.fewer(), lifecycle::CYCLES);
    let name = format!("{} unload and load cycles", repeated.times());
    let case = lifecycle::cycles(&mut probe, repeated);
    report.case_within(lifecycle::CYCLES_TIMEOUT, &name, &hint, case).await?;
    report.case("no kernel warnings", &hint, probe.no_warnings(Package::Synthetic)).await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, probe.stop()).await
}

async fn with_debians(probe: &mut Probe, debian: std::result::Result<(), Skip>) -> Result<()> {
    debian?;
    probe.binds(Package::Debian).await
}

impl Probe {
    pub(super) async fn start(lab: &Lab, run: &RunDir, disks: Vec<PathBuf>) -> Result<Self> {
        let image = lab.debian_image(run).await?;
        // Strict mode is off. On a devlink reload, ice disables its control queue without freeing its VSI, which strict
        // mode would report. Only the subsequent reset frees the VSI.
        let specs = HcaSpec::pair()?.map(|spec| e810_without_strict(lab, spec));
        let daemon = Daemon::start_by(Command::new(lab.hcad()?), &specs, run).await?;
        let [card, integrated] = daemon.sockets() else { anyhow::bail!("not two sockets") };
        let guest = Guest {
            name: "a",
            cards: vec![card.clone()],
            hcas: vec![integrated.clone()],
            disks,
            reboots: true,
            least_cpus: CPUS,
            ..Guest::default()
        };
        let mut vm = lab.boot(run, &image, guest).await?;
        let judged = warnings(&mut vm).await?.len();
        Ok(Self { vm, daemon, device: String::new(), function: String::new(), judged, image })
    }

    /// Loads the driver with the given package, if any, and checks that both functions work.
    pub(super) async fn binds(&mut self, package: Package) -> Result<()> {
        self.unload().await?;
        package.install(&mut self.vm).await?;
        self.load().await?;
        let info = self.vm.call(Info {}).await?;
        let functions: Vec<_> = info.devices.iter().filter(|f| (f.vendor, f.device) == IDS).collect();
        ensure!(functions.len() == 2, "{} functions {IDS:x?}", functions.len());
        for function in functions {
            ensure!(function.driver.as_deref() == Some("ice"), "bound to {:?}", function.driver);
        }
        let mut lines = self.vm.call(Dmesg { level: None }).await?.lines;
        lines.retain(|line| line.starts_with("ice"));
        let message = package.message();
        let said = lines.iter().filter(|line| line.contains(&message)).count();
        // Since the two functions have different serial numbers, the driver treats them as two cards and prints the
        // message for each.
        ensure!(said >= 2, "{message:?} occurs {said} times in {lines:#?}");
        self.talk().await?;
        self.no_warnings(package).await
    }

    /// Loads the driver and brings up both interfaces. The second E810's interface moves to its own network namespace.
    pub(super) async fn load(&mut self) -> Result<()> {
        load(&mut self.vm, &["ice"]).await?;
        self.find().await
    }

    /// Finds both interfaces and brings them up.
    pub(super) async fn find(&mut self) -> Result<()> {
        self.device = device(&mut self.vm, CARD).await?;
        let link = self.vm.run(&["readlink", &format!("/sys/class/net/{}/device", self.device)]).await?;
        self.function = link.trim().rsplit('/').next().unwrap_or_default().to_owned();
        bring_up(&mut self.vm, &self.device, &Address::on(0, CARD)).await?;
        let second = device(&mut self.vm, INTEGRATED).await?;
        let Address { ipv4, ipv6 } = Address::on(0, INTEGRATED);
        let line = format!(
            "ip netns add {SPACE} && ip link set {second} netns {SPACE} && \
             ip -n {SPACE} address add {ipv4}/24 dev {second} && \
             ip -n {SPACE} address add {ipv6}/64 dev {second} nodad && ip -n {SPACE} link set {second} up && \
             until ip -n {SPACE} link show {second} | grep -q LOWER_UP; do sleep 0.05; done"
        );
        self.sh(&line).await.map(drop)
    }

    /// Finds the card's network device again after it has been recreated.
    pub(super) async fn refind(&mut self) -> Result<()> {
        self.device = device(&mut self.vm, CARD).await?;
        bring_up(&mut self.vm, &self.device, &Address::on(0, CARD)).await
    }

    /// Unloads the driver if it is loaded and deletes the second E810's network namespace.
    pub(super) async fn unload(&mut self) -> Result<()> {
        self.sh(&format!(
            "! lsmod | grep -q '^ice ' || modprobe -r ice; ip netns del {SPACE} 2>/dev/null; true"
        ))
        .await
        .map(drop)
    }

    /// Checks that fragmented packets pass between the two interfaces over both IP versions.
    pub(super) async fn talk(&mut self) -> Result<()> {
        let Address { ipv4, ipv6 } = Address::on(0, INTEGRATED);
        for address in [ipv4, ipv6] {
            let text = self.sh(&ping::script(4000, 3, &address)).await?;
            ping::all_answered(&text, 4000, 3)?;
        }
        Ok(())
    }

    async fn differ(&mut self) -> Result<()> {
        let serials = self.sh("devlink dev info | grep serial_number").await?;
        let mut serials: Vec<&str> = serials.lines().map(str::trim).collect();
        ensure!(serials.len() == 2, "{serials:?}");
        serials.dedup();
        ensure!(serials.len() == 2, "both have the serial number {serials:?}");
        Ok(())
    }

    /// Restarts the guest without unloading the driver first.
    async fn restarts(&mut self) -> Result<()> {
        self.vm.reboot(&self.image).await?;
        self.judged = warnings(&mut self.vm).await?.len();
        Ok(())
    }

    pub(super) async fn sh(&mut self, line: &str) -> Result<String> {
        self.vm.run(&["sh", "-c", line]).await
    }

    /// Waits until the card has gained or lost its carrier.
    pub(super) async fn carrier(&mut self, wanted: bool) -> Result<()> {
        carrier(&mut self.vm, &self.device, wanted).await
    }

    /// Checks that the kernel has logged only expected warnings since the last check.
    pub(super) async fn no_warnings(&mut self, package: Package) -> Result<()> {
        let mut all = warnings(&mut self.vm).await?;
        let new = all.split_off(self.judged.min(all.len()));
        self.judged = all.len() + new.len();
        if package == Package::None { messages::check_safe_mode(&new) } else { messages::check(&new) }
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        self.vm.kill().await?;
        self.daemon.stop().await
    }
}
