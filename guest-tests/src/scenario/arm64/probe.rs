//! Tests that the stock drivers bind to one device of each kind in a single guest, and that each device exchanges
//! verified messages with itself.

use std::time::Duration;

use agent::wire::ExitStatus;
use anyhow::{Context as _, Result, ensure};

use crate::daemon::{Daemon, HcaSpec};
use crate::lab::{Guest, Lab};
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::scenario::connectx;
use crate::scenario::e810::{messages, package::Package};
use crate::scenario::kernel_log;
use crate::scenario::nic::roce::{Gid, gid_index_of};
use crate::scenario::nic::station::{self, Address};
use crate::scenario::stock_pair;
use crate::testbed::kind::Device;
use crate::tools::{self, Ready, await_text};
use crate::vm::Vm;

/// A device under test.
#[derive(Clone, Copy, Debug)]
struct Card {
    kind: Device,
    /// Name of the RDMA device.
    name: &'static str,
    driver: &'static str,
}

/// All kinds of devices with a stock driver.
const CARDS: [Card; 4] = [
    Card { kind: Device::Mthca, name: "mthca0", driver: "ib_mthca" },
    Card { kind: Device::Connectx, name: "mlx5_0", driver: "mlx5_core" },
    Card { kind: Device::ConnectxIb, name: "mlx5_1", driver: "mlx5_core" },
    Card { kind: Device::E810, name: "irdma0", driver: "ice" },
];
const CPUS: u32 = 2;
const MEMORY_MIB: u32 = 1536;
/// How long to wait for the port to become active after the driver is loaded.
const PORT_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout for the ping-pong program.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// TCP port of the ping-pong server.
const PORT: u16 = 18515;
/// Start of the address range for 64-bit BARs on QEMU's `virt` machine.
///
/// # Spec
/// QEMU, `hw/arm/virt.c`, `extended_memmap`: `VIRT_HIGH_PCIE_MMIO`.
const HIGH_WINDOW: u64 = 512 << 30;

struct Probe {
    vm: Vm,
    daemon: Daemon,
    /// Number of kernel warnings logged before the drivers were loaded.
    old_warnings: usize,
}

/// Runs the probe in a guest. One of the cases checks that the guest's kernel has pages of `page_size` bytes.
pub(super) async fn run(lab: &Lab, report: &mut Report, page_size: &str) -> Result<()> {
    let run = lab.new_run("arm64-probe")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut probe = Probe::start(lab, &run).await.context(hint.clone())?;
    let title = format!("the guest is arm64 with pages of {page_size} bytes");
    report.case(&title, &hint, probe.is_arm64(page_size)).await?;
    for (id, card) in (1..).zip(&CARDS) {
        let title = format!("{}, pages of {page_size} bytes: the driver binds", card.kind.name());
        report.case(&title, &hint, probe.binds(id, card)).await?;
        let title = format!("{}, pages of {page_size} bytes: verified messages", card.kind.name());
        report.case(&title, &hint, probe.exchanges(card)).await?;
    }
    report.case("no kernel warnings", &hint, probe.no_warnings()).await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, probe.stop()).await
}

impl Probe {
    async fn start(lab: &Lab, run: &RunDir) -> Result<Self> {
        let image = lab.debian_image(run).await?;
        let mut specs = HcaSpec::mesh_of(CARDS.len())?;
        for (spec, card) in specs.iter_mut().zip(&CARDS) {
            spec.interface = card.kind.interface().unwrap_or_default();
            spec.capture = false;
            spec.trace = lab.trace();
            spec.strict = true;
            spec.explained = card.kind.explained();
        }
        let hcad = tokio::process::Command::new(lab.hcad()?);
        let daemon = Daemon::start_by(hcad, &specs, run).await?;
        let sockets = |behind_port| {
            let all = daemon.sockets().iter().zip(&CARDS);
            all.filter(|(_, card)| card.kind.is_card() == behind_port)
                .map(|(socket, _)| socket.clone())
                .collect()
        };
        let guest = Guest {
            name: "a",
            hcas: sockets(false),
            cards: sockets(true),
            least_cpus: CPUS,
            least_memory_mib: MEMORY_MIB,
            ..Guest::default()
        };
        let mut vm = lab.boot(run, &image, guest).await?;
        Package::Synthetic.install(&mut vm).await?;
        let old_warnings = kernel_log::warnings(&mut vm).await?.len();
        Ok(Self { vm, daemon, old_warnings })
    }

    async fn is_arm64(&mut self, page_size: &str) -> Result<()> {
        let machine = self.vm.run(&["uname", "-m"]).await?;
        let pages = self.vm.run(&["python3", "-c", "import mmap; print(mmap.PAGESIZE)"]).await?;
        ensure!((machine.trim(), pages.trim()) == ("aarch64", page_size), "{machine}, {pages}");
        Ok(())
    }

    /// Loads the drivers and checks that the port becomes active, that interrupts arrive through the ITS, and that a
    /// BAR is in the range for 64-bit BARs.
    async fn binds(&mut self, id: u16, card: &Card) -> Result<()> {
        let modules = card.kind.modules();
        station::load(&mut self.vm, &modules[..1]).await?;
        if matches!(card.kind, Device::Connectx | Device::E810) {
            let device = station::device(&mut self.vm, id).await?;
            station::bring_up(&mut self.vm, &device, &Address::on(0, id)).await?;
        }
        station::load(&mut self.vm, modules).await?;
        let folder = format!("/sys/class/infiniband/{}", card.name);
        await_text(&mut self.vm, &[&format!("{folder}/ports/1/state")], &["4: ACTIVE"], PORT_TIMEOUT).await?;
        let link = self.vm.run(&["readlink", &format!("{folder}/device")]).await?;
        let function = link.trim().rsplit('/').next().unwrap_or_default().to_owned();
        let driver = self.vm.run(&["readlink", &format!("{folder}/device/driver")]).await?;
        ensure!(driver.trim().ends_with(card.driver), "{function} is bound to {driver}");
        let interrupts = self.vm.run(&["cat", "/proc/interrupts"]).await?;
        let count = interrupts_of(&interrupts, &function);
        ensure!(count > 0, "no interrupt of {function} arrived:\n{interrupts}");
        let resources = self.vm.run(&["cat", &format!("{folder}/device/resource")]).await?;
        ensure!(has_high_bar(&resources), "{function} has no BAR in the high range:\n{resources}");
        Ok(())
    }

    /// Runs the server and the client of a ping-pong program on the same device.
    async fn exchanges(&mut self, card: &Card) -> Result<()> {
        let name = card.name;
        let path = match card.kind {
            Device::Connectx | Device::E810 => {
                format!("{name} -g {}", gid_index_of(&mut self.vm, name, Gid::V4).await?)
            }
            _ => name.to_owned(),
        };
        let server = format!("ibv_rc_pingpong -s 65537 -n 20 -e -c -d {path}");
        let waiting = tools::spawn(&mut self.vm, &server).await?;
        let client = async {
            Ready::Tcp(PORT).wait(&mut self.vm, waiting, &server).await?;
            self.vm.program(EXCHANGE_TIMEOUT, &format!("{server} 127.0.0.1")).await
        }
        .await;
        // The server exits on its own only if its client succeeds.
        let has_exited = client.as_ref().is_ok_and(|end| end.status == ExitStatus::Code(0));
        let server = tools::stop_after(&mut self.vm, waiting, has_exited).await?;
        for end in [&client?, &server] {
            // The program exits with status 0 even after errors.
            let has_passed = end.stdout.contains(" iters in ") && !end.stdout.contains("invalid data");
            ensure!(has_passed, "{}{}", end.stdout, end.stderr);
        }
        Ok(())
    }

    async fn no_warnings(&mut self) -> Result<()> {
        let lines = kernel_log::warnings(&mut self.vm).await?.split_off(self.old_warnings);
        let mut lines = messages::others(&lines);
        lines.retain(|line| !connectx::messages::is_normal(line) && !stock_pair::is_unanswered_sweep(line));
        ensure!(lines.is_empty(), "the kernel logged warnings:\n{}", lines.join("\n"));
        Ok(())
    }

    async fn stop(mut self) -> Result<()> {
        self.vm.kill().await?;
        self.daemon.stop().await
    }
}

/// Returns the total number of a function's MSI-X interrupts on all CPUs, from the text of `/proc/interrupts`.
fn interrupts_of(text: &str, function: &str) -> u64 {
    let chip = format!("ITS-PCI-MSIX-{function}");
    let lines = text.lines().filter(|line| line.split_whitespace().any(|word| word == chip));
    let counts = lines.flat_map(|line| {
        line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).collect::<Vec<_>>()
    });
    counts.sum()
}

/// Returns whether any BAR is in the range for 64-bit BARs. Each line of the text contains the start, end and flags of
/// one BAR.
fn has_high_bar(resources: &str) -> bool {
    let start =
        |line: &str| u64::from_str_radix(line.split_whitespace().next()?.strip_prefix("0x")?, 16).ok();
    resources.lines().filter_map(start).any(|start| start >= HIGH_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_summed_over_vectors_and_cpus() {
        let text = "           CPU0       CPU1\n \
             15:          9          9  ITS-PCI-MSIX-0000:00:05.0    0 Edge      pciehp\n \
             33:        221          0  ITS-PCI-MSIX-0000:01:00.0    0 Edge      mlx5_async0\n \
             35:          0          1  ITS-PCI-MSIX-0000:01:00.0    2 Edge      mlx5_comp1\n";
        assert_eq!(interrupts_of(text, "0000:01:00.0"), 222);
        assert_eq!(interrupts_of(text, "0000:02:00.0"), 0);
    }

    #[test]
    fn bar_at_512_gib_is_in_high_range() {
        let line = |start: u64| format!("0x{start:016x} 0x{:016x} 0x000000000014220c\n", start + 4095);
        assert!(has_high_bar(&(line(0) + &line(0x80_0000_0000))));
        assert!(!has_high_bar(&line(0x1020_0000)));
    }
}
