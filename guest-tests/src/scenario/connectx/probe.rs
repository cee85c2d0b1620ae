//! Makes the drivers initialise the device repeatedly (mlx5 interface, sections 4 and 18).
//!
//! One guest with two CPUs has two ConnectX cards behind root ports.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use agent::wire::{Dmesg, Info, LoadCrashKernel};
use anyhow::{Context, Result, bail, ensure};
use tokio::process::Command;
use tokio::time::sleep;

use super::messages;
use crate::daemon::{Daemon, HcaSpec, Interface};
use crate::lab::{Guest, Lab};
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::scenario::kernel_log;
use crate::scenario::leak::Cycles;
use crate::vm::{Image, Vm};

/// PCI vendor and device ID.
const IDS: (u16, u16) = (0x15b3, 0x1017);
/// The drivers, and the modules that give user-space tools access to verbs, management datagrams and `rdma_cm`.
const MODULES: &[&str] = &["mlx5_core", "mlx5_ib", "ib_uverbs", "ib_umad", "rdma_ucm"];
/// Number of CPUs. Each CPU has its own completion vector.
const CPUS: u32 = 2;
const MEMORY_MIB: u32 = 1024;
/// Counter for resets requested by the first device's driver.
const RESETS: &str = "/frontend/connectx/resets";
/// Memory for the kernel that runs after a panic, in MiB.
const CRASH_MEMORY_MIB: u32 = 448;
/// Disk that holds the kernel to run after a panic. The first two disks contain the root file system.
const CRASH_DISK: &str = "/dev/vdc";
/// Timeout for loading the drivers while several emulated guests boot.
const LOAD_TIMEOUT: Duration = Duration::from_secs(180);
/// How long the port may take to become active after the driver starts.
const PORT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the driver may take to recover from a device failure. It polls the device's health every two seconds.
const RECOVERY: Duration = Duration::from_secs(40);
const PINGPONG_TIMEOUT: Duration = Duration::from_secs(120);
/// A grace period in milliseconds that outlasts the scenario.
const LONG_GRACE_PERIOD: u32 = 86_400_000;
/// Interval between polls for an expected kernel message.
const POLL: Duration = Duration::from_millis(100);

/// Expected values in `ibv_devinfo -v`.
const DEVINFO: &[(&str, &str)] = &[
    ("fw_ver", "16.35.3006"),
    ("vendor_id", "0x02c9"),
    ("vendor_part_id", "4119"),
    ("hw_ver", "0x0"),
    ("board_id", "HCD0000000001"),
    ("phys_port_cnt", "1"),
    ("state", "PORT_ACTIVE (4)"),
    ("max_mtu", "4096 (5)"),
    ("active_mtu", "4096 (5)"),
    ("link_layer", "InfiniBand"),
    ("phys_state", "LINK_UP (5)"),
];

/// Load and unload cycles with one device. They are slow in an emulated guest: each command's interrupt takes
/// milliseconds, and Linux 6.12 destroys 6,100 keys one by one (mlx5 interface, trap M-17).
const CYCLES: Cycles<'static> = Cycles {
    commands: "modprobe -r mlx5_ib mlx5_core && modprobe mlx5_ib && \
               until grep -q ACTIVE /sys/class/infiniband/mlx5_0/ports/1/state 2>/dev/null; do sleep 0.05; done",
    batches: 1,
    batch: 1,
    timeout: Duration::from_secs(600),
};
const MANY_CYCLES: Cycles<'static> = Cycles { batches: 7, batch: 7, ..CYCLES };
/// Timeout for all cycles together.
const CYCLES_TIMEOUT: Duration = Duration::from_secs(2400);

/// Selects which tests to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Extent {
    /// All tests, but only a few cycles.
    Core,
    /// 50 load and unload cycles, a kernel panic, and guests with different numbers of CPUs.
    Reloads,
}

/// The guest and its two devices.
#[derive(Debug)]
struct Probe {
    vm: Vm,
    daemon: Daemon,
    /// IDs of the devices on the fabric, which are also their LIDs.
    ids: [u16; 2],
    /// PCI addresses of the devices, in the same order as `ids`.
    functions: [String; 2],
    /// How many kernel messages and how many warnings have already been checked.
    checked: (usize, usize),
    image: Image,
    /// The kernel that runs after a panic.
    crash_kernel: Option<LoadCrashKernel>,
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let (name, cycles) = match extent {
        Extent::Core => ("connectx-probe", CYCLES),
        Extent::Reloads => ("connectx-reloads", MANY_CYCLES),
    };
    let run = lab.new_run(name)?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut probe = Probe::start(lab, &run, extent).await.context(hint.clone())?;
    report.case("the drivers bind and both ports become active", &hint, probe.binds()).await?;
    if extent == Extent::Core {
        probe.cases(report, &hint).await?;
    }
    let title = format!("{} unload and load cycles", cycles.times());
    report.case_within(CYCLES_TIMEOUT, &title, &hint, probe.cycles(cycles)).await?;
    match extent {
        Extent::Core => report.case("the guest restarts", &hint, probe.restarts()).await?,
        Extent::Reloads => {
            let title = "another kernel takes over the devices after a kernel panic";
            report.case(title, &hint, probe.crashes()).await?;
            for (cpus, title) in [(1, "a guest with 1 CPU"), (8, "a guest with 8 CPUs")] {
                report.case(title, &hint, probe.starts_with(lab, &run, cpus)).await?;
            }
        }
    }
    report.case("the daemon exits cleanly on SIGTERM", &hint, probe.stop()).await
}

impl Probe {
    async fn start(lab: &Lab, run: &RunDir, extent: Extent) -> Result<Self> {
        let image = lab.debian_image(run).await?;
        let specs = HcaSpec::pair()?.map(|spec| HcaSpec {
            interface: Interface::ConnectxIb,
            capture: false,
            trace: lab.trace(),
            strict: true,
            ..spec
        });
        let daemon = Daemon::start_by(Command::new(lab.hcad()?), &specs, run).await?;
        let mut guest = Guest {
            name: "a",
            cards: daemon.sockets().to_vec(),
            reboots: true,
            least_cpus: CPUS,
            least_memory_mib: MEMORY_MIB,
            ..Guest::default()
        };
        let mut crash_kernel = None;
        if extent == Extent::Reloads {
            let disk = run.scratch("crash-kernel");
            crash_kernel = Some(write_crash_disk(lab, &image, &disk)?);
            guest.disks = vec![disk];
            guest.crash_memory_mib = CRASH_MEMORY_MIB;
            guest.least_memory_mib = MEMORY_MIB + CRASH_MEMORY_MIB;
        }
        let vm = lab.boot(run, &image, guest).await?;
        let ids = specs.map(|spec| spec.id);
        let (functions, checked) = (Default::default(), (0, 0));
        let mut probe = Self { vm, daemon, ids, functions, checked, image, crash_kernel };
        probe.checked = probe.count_messages().await?;
        Ok(probe)
    }

    async fn cases(&mut self, report: &mut Report, hint: &str) -> Result<()> {
        report.case("ibv_devinfo", hint, self.devinfo()).await?;
        report.case("all counters in sysfs can be read", hint, self.counters()).await?;
        report.case("devlink dev info", hint, self.devlink_info()).await?;
        report.case("two HCAs have different GUIDs", hint, self.differ()).await?;
        report.case("one MSI-X vector for events and one per CPU", hint, self.interrupts()).await?;
        report.case("link down and up by hcactl", hint, self.link_flap()).await?;
        report.case("devlink dev reload", hint, self.devlink_reload()).await?;
        report.case("unbind and bind", hint, self.rebind()).await?;
        report.case("function-level reset of an unbound device", hint, self.function_reset()).await?;
        report.case("the driver recovers from fatal errors", hint, self.recovers()).await?;
        let title = "the driver unloads after a second fatal error within its grace period";
        report.case(title, hint, self.gives_up()).await?;
        report.case("a failed device can be unloaded and loaded", hint, self.unloads_failed()).await
    }

    /// Loads the drivers and checks that they bind to both functions.
    async fn binds(&mut self) -> Result<()> {
        self.load().await?;
        let info = self.vm.call(Info {}).await?;
        let functions: Vec<_> = info.devices.iter().filter(|f| (f.vendor, f.device) == IDS).collect();
        ensure!(functions.len() == 2, "{} functions {IDS:x?}", functions.len());
        for function in functions {
            ensure!(function.driver.as_deref() == Some("mlx5_core"), "bound to {:?}", function.driver);
        }
        let lines = self.vm.call(Dmesg { level: None }).await?.lines;
        let count = lines.iter().filter(|line| line.contains("firmware version: 16.35.3006")).count();
        ensure!(count == 2, "the driver printed the firmware version {count} times");
        self.expected_messages().await
    }

    /// Loads the drivers, finds both functions, and waits until their ports are active.
    async fn load(&mut self) -> Result<()> {
        self.vm.run_within(LOAD_TIMEOUT, &[&["modprobe", "-a"], MODULES].concat()).await?;
        let mut functions = BTreeMap::new();
        let listed = self.sh("for d in /sys/class/infiniband/*; do readlink -f $d/device; done").await?;
        for path in listed.lines() {
            let function = path.rsplit('/').next().unwrap_or_default().to_owned();
            self.port_is(&function, "ACTIVE").await?;
            functions.insert(self.lid(&function).await?, function);
        }
        let mut found = Vec::new();
        for id in self.ids {
            found.push(functions.remove(&id).with_context(|| format!("no device has LID {id}"))?);
        }
        self.functions = found.try_into().ok().context("not two devices")?;
        Ok(())
    }

    async fn lid(&mut self, function: &str) -> Result<u16> {
        let text = self.sh(&format!("cat {}", port_file(function, "lid"))).await?;
        let digits = text.trim().trim_start_matches("0x");
        u16::from_str_radix(digits, 16).with_context(|| format!("LID {text:?}"))
    }

    /// Waits until a device's port is in a given state. The RDMA device may not exist yet.
    async fn port_is(&mut self, function: &str, state: &str) -> Result<()> {
        let file = port_file(function, "state");
        let line = format!("until grep -qs {state} {file}; do sleep 0.1; done");
        let reached = self.vm.run_within(PORT_TIMEOUT, &["sh", "-c", &line]).await;
        reached.map(drop).with_context(|| format!("waiting until the port of {function} is {state}"))
    }

    /// Waits until both ports are active again, each with its LID.
    async fn active(&mut self) -> Result<()> {
        for (function, id) in self.functions.clone().into_iter().zip(self.ids) {
            self.port_is(&function, "ACTIVE").await?;
            let lid = self.lid(&function).await?;
            ensure!(lid == id, "{function} has LID {lid}, expected {id}");
        }
        Ok(())
    }

    async fn devinfo(&mut self) -> Result<()> {
        let names = self.sh("ls /sys/class/infiniband").await?;
        for name in names.split_whitespace() {
            let text = self.vm.run(&["ibv_devinfo", "-v", "-d", name]).await?;
            // The output has lines of the form `name: value`. Some names occur once per GID.
            let mut found = BTreeMap::new();
            for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
                found.entry(name.trim()).or_insert(value.trim());
            }
            let differences: Vec<String> = DEVINFO
                .iter()
                .filter(|(name, value)| found.get(name) != Some(value))
                .map(|(name, value)| format!("{name} is {:?}, expected {value}", found.get(name)))
                .collect();
            ensure!(differences.is_empty(), "{}\n{text}", differences.join("\n"));
        }
        self.expected_messages().await
    }

    /// The driver reads these counters with several commands and registers.
    async fn counters(&mut self) -> Result<()> {
        let text = self
            .sh("cd /sys/class/infiniband && grep . */ports/1/counters/* */ports/1/hw_counters/*")
            .await?;
        for name in
            ["/port_xmit_data:", "/symbol_error:", "/link_downed:", "/out_of_buffer:", "/req_cqe_error:"]
        {
            let count = text.lines().filter(|line| line.contains(name)).count();
            ensure!(count == 2, "{count} counters named {name:?}:\n{text}");
        }
        self.expected_messages().await
    }

    async fn devlink_info(&mut self) -> Result<()> {
        for function in self.functions.clone() {
            let text = self.vm.run(&["devlink", "dev", "info", &format!("pci/{function}")]).await?;
            for line in ["driver mlx5_core", "fw.version 16.35.3006"] {
                ensure!(text.lines().any(|found| found.trim() == line), "no line {line:?}:\n{text}");
            }
        }
        self.expected_messages().await
    }

    async fn differ(&mut self) -> Result<()> {
        for file in ["node_guid", "sys_image_guid", "ports/1/gids/0"] {
            let text = self.sh(&format!("cat /sys/class/infiniband/*/{file}")).await?;
            let mut values: Vec<&str> = text.lines().collect();
            values.sort_unstable();
            values.dedup();
            ensure!(values.len() == 2, "{file}: {text}");
        }
        Ok(())
    }

    /// Checks that the asynchronous events of each device are delivered through a dedicated MSI-X vector.
    async fn interrupts(&mut self) -> Result<()> {
        let text = self.vm.run(&["cat", "/proc/interrupts"]).await?;
        for function in &self.functions {
            let name = format!("mlx5_async0@pci:{function}");
            let line = text.lines().find(|line| line.contains(&name));
            let line = line.with_context(|| format!("{name} is missing from\n{text}"))?;
            // The line starts with the interrupt number, followed by a count for each CPU.
            let counts = line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
            let count: u64 = counts.sum();
            ensure!(count >= 100, "{name} occurred {count} times");
            ensure!(line.contains("MSI"), "not delivered through MSI-X: {line}");
        }
        Ok(())
    }

    /// Takes the port down and brings it back up, as an operator would. An event notifies the driver.
    async fn link_flap(&mut self) -> Result<()> {
        let function = self.functions[0].clone();
        for _ in 0..3 {
            self.daemon.controls_of(self.ids[0]).ask(&["port", "down"]).await?;
            self.port_is(&function, "DOWN").await?;
            self.daemon.controls_of(self.ids[0]).ask(&["port", "up"]).await?;
            self.active().await?;
        }
        self.expected_messages().await
    }

    /// Reinitialises each device through devlink, without unloading the driver.
    async fn devlink_reload(&mut self) -> Result<()> {
        for function in self.functions.clone() {
            let line = format!("devlink dev reload pci/{function}");
            self.vm.run_within(LOAD_TIMEOUT, &["sh", "-c", &line]).await?;
            self.active().await?;
        }
        self.expected_messages().await
    }

    async fn rebind(&mut self) -> Result<()> {
        for _ in 0..3 {
            for function in self.functions.clone() {
                self.driver(&function, "unbind").await?;
                self.driver(&function, "bind").await?;
            }
            self.active().await?;
        }
        self.expected_messages().await
    }

    /// Writes the function's address to the driver's `bind` or `unbind` file.
    async fn driver(&mut self, function: &str, file: &str) -> Result<()> {
        let line = format!("echo {function} > /sys/bus/pci/drivers/mlx5_core/{file}");
        self.vm.run_within(LOAD_TIMEOUT, &["sh", "-c", &line]).await.map(drop)
    }

    /// Unbinds a function before resetting it, because the driver does not handle resets that it did not initiate. Then
    /// binds the function again.
    async fn function_reset(&mut self) -> Result<()> {
        let function = self.functions[0].clone();
        self.driver(&function, "unbind").await?;
        self.sh(&format!("echo 1 > /sys/bus/pci/devices/{function}/reset")).await?;
        self.driver(&function, "bind").await?;
        self.active().await?;
        self.expected_messages().await
    }

    /// Makes a device fail. When the driver polls the health buffer, it must detect the failure and restart the device.
    /// The other device must not be affected.
    async fn recovers(&mut self) -> Result<()> {
        self.set_grace_period(0).await?;
        for device in [0, 1, 0] {
            self.expected_messages().await?;
            self.fail(device).await?;
            self.await_message("health recovery succeeded").await?;
            self.active().await?;
            let (lines, warnings) = self.new_messages().await?;
            messages::check_recovery(&lines, &warnings)?;
        }
        self.devinfo().await
    }

    /// Checks that the driver unloads itself if the device fails within the grace period of the driver's last recovery.
    /// After the driver has been rebound, the device must work again.
    async fn gives_up(&mut self) -> Result<()> {
        self.set_grace_period(LONG_GRACE_PERIOD).await?;
        let function = self.functions[0].clone();
        self.fail(0).await?;
        self.await_message(messages::GIVES_UP).await?;
        let gone = format!("while [ -e /sys/bus/pci/devices/{function}/infiniband ]; do sleep 0.1; done");
        self.vm.run_within(PORT_TIMEOUT, &["sh", "-c", &gone]).await?;
        self.driver(&function, "unbind").await?;
        self.driver(&function, "bind").await?;
        self.active().await?;
        let (lines, warnings) = self.new_messages().await?;
        messages::check_unload(&lines, &warnings)
    }

    /// Sets the grace period in milliseconds. If the device fails again within this time after a recovery, the driver
    /// gives up. The default is one minute (`mlx5_fw_fatal_reporter_pf_ops`, health.c). Unbinding the function restores
    /// the default.
    async fn set_grace_period(&mut self, milliseconds: u32) -> Result<()> {
        for function in self.functions.clone() {
            let line =
                format!("devlink health set pci/{function} reporter fw_fatal grace_period {milliseconds}");
            self.sh(&line).await?;
        }
        Ok(())
    }

    async fn fail(&mut self, device: usize) -> Result<()> {
        let id = self.ids.get(device).context("no such device")?;
        self.daemon.controls_of(*id).ask(&["fail", "--yes"]).await.map(drop)
    }

    /// Waits for a new kernel message that contains `part`.
    async fn await_message(&mut self, part: &str) -> Result<()> {
        let deadline = Instant::now() + RECOVERY;
        loop {
            let lines = self.vm.call(Dmesg { level: None }).await?.lines;
            if lines.iter().skip(self.checked.0).any(|line| line.contains(part)) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{part:?} did not appear within {RECOVERY:?}");
            sleep(POLL).await;
        }
    }

    /// Unloads the driver immediately after a device failure, whether or not the driver has detected the failure.
    async fn unloads_failed(&mut self) -> Result<()> {
        self.set_grace_period(0).await?;
        self.fail(1).await?;
        self.unload().await?;
        self.load().await?;
        let (lines, warnings) = self.new_messages().await?;
        messages::check_recovery(&lines, &warnings)
    }

    async fn unload(&mut self) -> Result<()> {
        self.vm.run_within(LOAD_TIMEOUT, &["modprobe", "-r", "mlx5_ib", "mlx5_core"]).await.map(drop)
    }

    /// Unloads and loads the drivers repeatedly and checks that the port becomes active each time. The second device is
    /// left out to save time.
    async fn cycles(&mut self, cycles: Cycles<'_>) -> Result<()> {
        let second = self.functions[1].clone();
        let bound_by =
            |driver: &str| format!("echo {driver} > /sys/bus/pci/devices/{second}/driver_override");
        self.unload().await?;
        self.sh(&bound_by("none")).await?;
        cycles.run(&mut self.vm).await?;
        self.sh(&bound_by("")).await?;
        self.unload().await?;
        self.load().await?;
        self.expected_messages().await?;
        self.devinfo().await
    }

    /// Restarts the guest without unloading the drivers first. The drivers stop the devices with a fast teardown.
    async fn restarts(&mut self) -> Result<()> {
        let before = self.daemon.counter(RESETS).await?;
        self.vm.reboot(&self.image).await?;
        let resets = self.daemon.counter(RESETS).await? - before;
        ensure!(resets == 1, "the driver requested {resets} resets after its fast teardown");
        self.checked = self.count_messages().await?;
        self.load().await?;
        self.devinfo().await
    }

    /// Makes the kernel panic while the drivers are loaded. The crash kernel then finds devices that were not stopped.
    async fn crashes(&mut self) -> Result<()> {
        let mut kernel = self.crash_kernel.take().context("no crash kernel was prepared")?;
        let arguments = self.vm.call(Info {}).await?.cmdline;
        let kept = arguments.split_whitespace().filter(|argument| !argument.starts_with("crashkernel="));
        kernel.command_line = kept.chain(["nr_cpus=1", "reset_devices"]).collect::<Vec<_>>().join(" ");
        self.vm.call_within(LOAD_TIMEOUT, kernel).await?;
        self.vm.crash(&self.image).await?;
        self.checked = self.count_messages().await?;
        self.load().await?;
        self.devinfo().await
    }

    /// Replaces the guest with one that has `cpus` CPUs. Checks that the device has one completion vector per CPU and
    /// that messages and events arrive.
    async fn starts_with(&mut self, lab: &Lab, run: &RunDir, cpus: u32) -> Result<()> {
        self.vm.kill().await?;
        let guest = Guest {
            name: "a",
            cards: self.daemon.sockets().to_vec(),
            least_cpus: cpus,
            least_memory_mib: MEMORY_MIB,
            ..Guest::default()
        };
        self.vm = lab.boot(run, &self.image, guest).await?;
        self.checked = self.count_messages().await?;
        let found = self.sh("nproc").await?;
        ensure!(found.trim() == cpus.to_string(), "the guest has {found} CPUs");
        self.load().await?;
        self.devinfo().await?;
        let names = self.sh("ls /sys/class/infiniband").await?;
        let names: Vec<&str> = names.split_whitespace().collect();
        let &[one, other] = names.as_slice() else { bail!("not two devices: {names:?}") };
        for name in [one, other] {
            let text = self.vm.run(&["ibv_devinfo", "-v", "-d", name]).await?;
            let vectors = text.lines().find_map(|line| line.trim().strip_prefix("num_comp_vectors:"));
            ensure!(vectors.map(str::trim) == Some(&cpus.to_string()), "{text}");
        }
        let line = format!(
            "ip link set lo up; ibv_rc_pingpong -d {one} -e -c -n 200 & \
             until ibv_rc_pingpong -d {other} -e -c -n 200 127.0.0.1; do sleep 0.2; done; wait $!"
        );
        self.vm.run_within(PINGPONG_TIMEOUT, &["sh", "-c", &line]).await?;
        self.expected_messages().await
    }

    async fn sh(&mut self, line: &str) -> Result<String> {
        self.vm.run(&["sh", "-c", line]).await
    }

    /// Checks that all kernel messages since the last check are expected.
    async fn expected_messages(&mut self) -> Result<()> {
        let (lines, warnings) = self.new_messages().await?;
        messages::check(&lines, &warnings)
    }

    /// Returns all kernel messages since the last call, and separately those at warning level or above.
    async fn new_messages(&mut self) -> Result<(Vec<String>, Vec<String>)> {
        let mut lines = self.vm.call(Dmesg { level: None }).await?.lines;
        let mut warnings = kernel_log::warnings(&mut self.vm).await?;
        let new = lines.split_off(self.checked.0.min(lines.len()));
        let severe = warnings.split_off(self.checked.1.min(warnings.len()));
        self.checked = (lines.len() + new.len(), warnings.len() + severe.len());
        Ok((new, severe))
    }

    async fn count_messages(&mut self) -> Result<(usize, usize)> {
        let lines = self.vm.call(Dmesg { level: None }).await?.lines.len();
        Ok((lines, kernel_log::warnings(&mut self.vm).await?.len()))
    }

    async fn stop(mut self) -> Result<()> {
        self.vm.kill().await?;
        self.daemon.stop().await
    }
}

/// Writes the guest's kernel and initramfs to a disk.
fn write_crash_disk(lab: &Lab, image: &Image, disk: &Path) -> Result<LoadCrashKernel> {
    const SECTOR: usize = 512;
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let (kernel, initramfs) = (read(&lab.kernel().image)?, read(&image.initramfs)?);
    let mut content = [kernel.as_slice(), &initramfs].concat();
    content.resize(content.len().next_multiple_of(SECTOR), 0);
    fs::write(disk, content).with_context(|| format!("cannot write {}", disk.display()))?;
    Ok(LoadCrashKernel {
        disk: CRASH_DISK.into(),
        kernel_len: kernel.len() as u64,
        initramfs_len: initramfs.len() as u64,
        command_line: String::new(),
    })
}

/// Returns a glob pattern for one of the port's sysfs files, regardless of the RDMA device's name.
fn port_file(function: &str, file: &str) -> String {
    format!("/sys/bus/pci/devices/{function}/infiniband/*/ports/1/{file}")
}
