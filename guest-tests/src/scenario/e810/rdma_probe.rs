//! Makes `irdma` initialise the RDMA block of an E810 repeatedly. The RDMA device's port must become active, tools must
//! show the device, and the device must survive link changes and resets (E810 interface, sections 9.2, 14.3, 14.4, 15
//! and 17.2).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::{sleep, timeout};

use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::nic::roce;
use crate::scenario::nic::station::{Station, load};
use crate::tools::await_text;

/// The driver's module, and the modules that the tools require.
const MODULES: &[&str] = &["irdma", "ib_uverbs", "ib_umad", "rdma_ucm"];
/// How long the port may take to become active after the driver starts or the device is reset.
const PORT_TIMEOUT: Duration = Duration::from_secs(240);
/// Polling interval while waiting.
const POLL: Duration = Duration::from_millis(100);

/// Number of unload and load cycles.
const CYCLES: u32 = 5;
/// Timeout for all cycles together.
const CYCLES_TIMEOUT: Duration = Duration::from_secs(400);

/// Expected values in the output of `ibv_devinfo -v` (section 15.1).
const DEVINFO: &[(&str, &str)] = &[
    ("transport", "InfiniBand (0)"),
    ("fw_ver", "1.70"),
    ("vendor_id", "0x8086"),
    ("vendor_part_id", "5522"),
    ("hw_ver", "0x2"),
    ("phys_port_cnt", "1"),
    ("max_mr_size", "0x200000000000"),
    ("page_size_cap", "0x40201000"),
    ("max_qp", "1021"),
    ("max_qp_wr", "4063"),
    ("device_cap_flags", "0x00221000"),
    ("max_sge", "13"),
    ("max_cq", "2045"),
    ("max_cqe", "1048574"),
    ("max_mr", "16383"),
    ("max_pd", "262141"),
    ("max_qp_rd_atom", "127"),
    ("max_qp_init_rd_atom", "255"),
    ("atomic_cap", "ATOMIC_NONE (0)"),
    ("max_mcast_grp", "1024"),
    ("max_mcast_qp_attach", "8"),
    ("max_ah", "4096"),
    ("max_srq", "0"),
    ("max_pkeys", "1"),
    ("state", "PORT_ACTIVE (4)"),
    ("max_mtu", "4096 (5)"),
    ("active_mtu", "1024 (3)"),
    ("link_layer", "Ethernet"),
    ("active_width", "4X (2)"),
    ("active_speed", "25.0 Gbps (32)"),
    ("gid_tbl_len", "32"),
];

/// Expected `max_mw` in kernel 6.12, which supports memory windows, and in later kernels, which do not (section 15.2).
const WINDOWS: [&str; 2] = ["16383", "0"];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("e810-rdma-probe")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut probe = Probe::start(lab, &run).await.context(hint.clone())?;
    report.case("irdma binds and its port becomes active", &hint, probe.binds()).await?;
    report.case("ibv_devinfo", &hint, probe.devinfo()).await?;
    report.case("rdma link, rdma resource and rdma statistic", &hint, probe.tools()).await?;
    report.case("a GID for each address", &hint, probe.gids()).await?;
    report.case("the path MTU follows the interface MTU", &hint, probe.mtu()).await?;
    report.case("link down and up by hcactl", &hint, probe.link_flap()).await?;
    report.case("link down and up by ip", &hint, probe.interface_flap()).await?;
    report.case("iWARP is rejected, and RoCE works again", &hint, probe.iwarp()).await?;
    let name = format!("{CYCLES} unload and load cycles");
    report.case_within(CYCLES_TIMEOUT, &name, &hint, probe.cycles()).await?;
    report.case("the driver resets its function", &hint, probe.driver_reset()).await?;
    report.case("function-level reset", &hint, probe.function_reset()).await?;
    report.case("no kernel warnings", &hint, probe.station.no_warnings()).await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, probe.station.stop()).await
}

/// The guest and its RDMA device.
#[derive(Debug)]
struct Probe {
    station: Station,
    device: String,
}

impl Probe {
    async fn start(lab: &Lab, run: &crate::run_dir::RunDir) -> Result<Self> {
        let image = lab.debian_image(run).await?;
        let station = roce::alone(lab, run, &image, Vec::new()).await?;
        Ok(Self { station, device: String::new() })
    }

    async fn binds(&mut self) -> Result<()> {
        load(&mut self.station.vm, MODULES).await?;
        self.find().await?;
        self.station.no_warnings().await
    }

    /// Waits for an RDMA device with an active port.
    async fn find(&mut self) -> Result<()> {
        let found = async {
            loop {
                let names = self.station.sh("ls /sys/class/infiniband").await?;
                if let Some(name) = names.split_whitespace().next() {
                    return anyhow::Ok(name.to_owned());
                }
                sleep(POLL).await;
            }
        };
        let found = timeout(PORT_TIMEOUT, found).await;
        self.device = found.with_context(|| format!("no RDMA device within {PORT_TIMEOUT:?}"))??;
        self.port_is("4: ACTIVE").await
    }

    async fn port_is(&mut self, state: &str) -> Result<()> {
        let path = format!("/sys/class/infiniband/{}/ports/1/state", self.device);
        await_text(&mut self.station.vm, &[&path], &[state], PORT_TIMEOUT).await
    }

    async fn devinfo(&mut self) -> Result<()> {
        let text = self.station.sh(&format!("ibv_devinfo -v -d {}", self.device)).await?;
        let old = self.station.sh("uname -r").await?.starts_with("6.12.");
        // The output has lines of the form `name: value`. Some names occur once per GID.
        let mut found = BTreeMap::new();
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            found.entry(name.trim()).or_insert(value.trim());
        }
        let windows = ("max_mw", WINDOWS[usize::from(!old)]);
        let differences: Vec<String> = DEVINFO
            .iter()
            .chain([&windows])
            .filter(|(name, value)| found.get(name) != Some(value))
            .map(|(name, value)| format!("{name} is {:?}, expected {value}", found.get(name)))
            .collect();
        ensure!(differences.is_empty(), "{}\n{text}", differences.join("\n"));
        Ok(())
    }

    /// Checks the output of iproute2.
    async fn tools(&mut self) -> Result<()> {
        let (device, netdev) = (self.device.clone(), self.station.device.clone());
        for (line, parts) in [
            (
                format!("rdma link show {device}/1"),
                vec![
                    "state ACTIVE".to_owned(),
                    "physical_state LINK_UP".to_owned(),
                    format!("netdev {netdev}"),
                ],
            ),
            // The QP that the kernel uses for management datagrams.
            (format!("rdma resource show qp link {device}/1"), vec!["lqpn 1 type GSI state RTS".to_owned()]),
            (format!("rdma resource show cq dev {device}"), vec!["comm [ib_core]".to_owned()]),
            (
                format!("rdma statistic show link {device}/1"),
                vec!["RxUDP".to_owned(), "OutRdmaWrites".to_owned()],
            ),
        ] {
            let text = self.station.sh(&line).await?;
            let plain = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let missing: Vec<&String> = parts.iter().filter(|part| !plain.contains(part.as_str())).collect();
            ensure!(missing.is_empty(), "the output of {line} lacks {missing:?}:\n{text}");
        }
        Ok(())
    }

    /// Checks that GIDs are added and removed together with the interface's addresses.
    async fn gids(&mut self) -> Result<()> {
        let netdev = self.station.device.clone();
        for (address, gid) in [("10.99.0.7/24", "::ffff:10.99.0.7,"), ("fd99::7/64", "fd99::7,")] {
            self.station.sh(&format!("ip address add {address} dev {netdev} nodad")).await?;
            self.gid_is_there(gid, true).await.with_context(|| address.to_owned())?;
            self.station.sh(&format!("ip address del {address} dev {netdev}")).await?;
            self.gid_is_there(gid, false).await.with_context(|| address.to_owned())?;
        }
        self.station.no_warnings().await
    }

    async fn gid_is_there(&mut self, gid: &str, wanted: bool) -> Result<()> {
        let line = format!("ibv_devinfo -v -d {} | grep -c -F '{gid}' || true", self.device);
        let settled = async {
            while (self.station.sh(&line).await?.trim() != "0") != wanted {
                sleep(POLL).await;
            }
            anyhow::Ok(())
        };
        let settled = timeout(PORT_TIMEOUT, settled).await;
        settled.with_context(|| format!("GID {gid} present: expected {wanted} within {PORT_TIMEOUT:?}"))?
    }

    async fn mtu(&mut self) -> Result<()> {
        let netdev = self.station.device.clone();
        for (mtu, active) in [(9000, "4096"), (1500, "1024")] {
            self.station.sh(&format!("ip link set {netdev} mtu {mtu}")).await?;
            self.port_is("4: ACTIVE").await?;
            let text = self.station.sh(&format!("ibv_devinfo -d {} | grep active_mtu", self.device)).await?;
            ensure!(text.contains(active), "at MTU {mtu}: {text}");
        }
        self.station.no_warnings().await
    }

    /// Takes the port down and brings it back up, as an operator would.
    async fn link_flap(&mut self) -> Result<()> {
        for _ in 0..3 {
            self.control(&["port", "down"]).await?;
            self.port_is("1: DOWN").await?;
            self.control(&["port", "up"]).await?;
            self.port_is("4: ACTIVE").await?;
        }
        self.station.no_warnings().await
    }

    async fn control(&self, arguments: &[&str]) -> Result<()> {
        let daemon = self.station.daemon.as_ref().context("the station has no daemon")?;
        daemon.control(arguments).await.map(drop)
    }

    /// Takes the guest's interface down and brings it back up.
    async fn interface_flap(&mut self) -> Result<()> {
        let netdev = self.station.device.clone();
        for _ in 0..3 {
            self.station.sh(&format!("ip link set {netdev} down")).await?;
            self.port_is("1: DOWN").await?;
            self.station.sh(&format!("ip link set {netdev} up")).await?;
            self.port_is("4: ACTIVE").await?;
        }
        self.station.no_warnings().await
    }

    /// Checks that iWARP is rejected, since the device supports only RoCE. With RoCE disabled, `ice` accepts the
    /// setting, but `irdma` then rejects the device.
    async fn iwarp(&mut self) -> Result<()> {
        const REFUSED: [&str; 2] = ["status=-95", "failed with error -95"];
        let said = self.set_protocol("enable_iwarp", true).await?;
        ensure!(said.contains("Operation not supported"), "enabling iWARP in addition to RoCE: {said:?}");
        self.station.no_warnings().await?;
        for (protocol, enabled) in [("enable_roce", false), ("enable_iwarp", true)] {
            let said = self.set_protocol(protocol, enabled).await?;
            ensure!(said.is_empty(), "{protocol} {enabled}: {said}");
            let devices = self.station.sh("ls /sys/class/infiniband").await?;
            ensure!(devices.is_empty(), "after {protocol} {enabled}, the devices are {devices}");
        }
        let warnings = self.station.new_warnings().await?;
        for text in REFUSED {
            ensure!(warnings.iter().any(|line| line.contains(text)), "{text} is missing from {warnings:#?}");
        }
        let others = warnings.iter().filter(|line| !REFUSED.iter().any(|text| line.contains(text)));
        ensure!(others.count() == 0, "the kernel logged warnings:\n{warnings:#?}");
        for (protocol, enabled) in [("enable_iwarp", false), ("enable_roce", true)] {
            let said = self.set_protocol(protocol, enabled).await?;
            ensure!(said.is_empty(), "{protocol} {enabled}: {said}");
        }
        self.find().await?;
        self.station.no_warnings().await
    }

    /// Enables or disables a protocol of the RDMA block. Returns what `devlink` prints, which is empty on success.
    async fn set_protocol(&mut self, protocol: &str, enabled: bool) -> Result<String> {
        let line = format!(
            "devlink dev param set pci/$(basename $(readlink /sys/class/net/{}/device)) \
             name {protocol} value {enabled} cmode runtime 2>&1; true",
            self.station.device
        );
        self.station.sh(&line).await
    }

    /// Repeatedly unloads and loads the two drivers together. Each depends on the other.
    async fn cycles(&mut self) -> Result<()> {
        for _ in 0..CYCLES {
            self.station.sh("modprobe -r irdma; ! lsmod | grep -q '^ice ' || modprobe -r ice").await?;
            self.station.restart().await?;
            load(&mut self.station.vm, MODULES).await?;
            self.find().await?;
        }
        self.station.no_warnings().await
    }

    /// Makes the NIC driver reset its function. The reset stops and restarts `irdma`. The driver in kernel 6.12 does
    /// not support such resets.
    async fn driver_reset(&mut self) -> Result<()> {
        const COUNTER: &str = "/frontend/e810/function_resets";
        if self.station.sh("uname -r").await?.starts_with("6.12.") {
            return Ok(());
        }
        let daemon = self.station.daemon.as_ref().context("the station has no daemon")?;
        let before = daemon.counter(COUNTER).await?;
        let line = format!("ethtool --reset {} irq dma filter offload", self.station.device);
        self.station.vm.run(&["sh", "-c", &line]).await?;
        let began = async {
            while daemon.counter(COUNTER).await? == before {
                sleep(POLL).await;
            }
            anyhow::Ok(())
        };
        timeout(PORT_TIMEOUT, began)
            .await
            .with_context(|| format!("waited {PORT_TIMEOUT:?} for: {line}"))??;
        self.find().await?;
        self.station.no_warnings().await
    }

    /// Resets the function without involving either driver.
    async fn function_reset(&mut self) -> Result<()> {
        let line = format!("echo 1 > /sys/class/net/{}/device/reset", self.station.device);
        self.station.vm.run_within(PORT_TIMEOUT, &["sh", "-c", &line]).await?;
        self.find().await?;
        self.station.no_warnings().await
    }
}
