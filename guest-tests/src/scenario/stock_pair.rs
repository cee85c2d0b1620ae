//! Two guests with a Debian root file system. Each has an HCA with a stock kernel driver, and an Ethernet NIC connected
//! to the other guest's NIC. Tools use the Ethernet link for out-of-band communication, and soft-RoCE runs on it for
//! comparison.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::connectx::messages;
use super::failing::PeerAddress;
use super::kernel_log;
use super::nic::roce::{Gid, gid_index_of};
use super::nic::station::{self, Address};
use super::perftest::{self, Device};
use crate::daemon::{Daemon, Explained, HcaSpec, free_udp_ports};
use crate::lab::{Guest, Lab};
use crate::qemu::{Nic, NicModel};
use crate::run_dir::RunDir;
use crate::testbed::kind;
use crate::tools::{Ends, Exchange, await_text};
use crate::vm::{Image, Vm};

/// Name that the kernel gives to the first `ib_mthca` device.
pub(super) const MTHCA: &str = "mthca0";
/// Name that the kernel gives to the first ConnectX.
pub(super) const CONNECTX: &str = "mlx5_0";
/// Modules for soft-RoCE and its tools.
const SOFT_ROCE: &[&str] = &["rdma_rxe", "ib_uverbs", "ib_umad", "rdma_ucm"];
/// MTU of the Ethernet interfaces. It leaves room for the headers of a packet with a path MTU of 4096.
pub(super) const ETHERNET_MTU: &str = "4200";
/// Timeout for loading the driver while several emulated guests boot.
const LOAD_TIMEOUT: Duration = Duration::from_secs(180);
/// How long the port may take to become active after the driver is loaded. The driver waits one second for the device
/// to reset.
const PORT_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct StockNode {
    pub(super) vm: Vm,
    pub(super) daemon: Daemon,
    /// The HCA's number, which is also its LID.
    pub(super) id: u16,
    pub(super) ip: Ipv4Addr,
    /// The kind of HCA, which also determines the driver.
    hca: kind::Device,
    place: Place,
    /// Index of the IPv4 GID if the port is an Ethernet port. It is set when the driver is loaded.
    gid: Option<usize>,
    /// Number of kernel warnings that have already been checked.
    old_warnings: usize,
}

/// Boot parameters of a guest: name, HCA sockets, NIC and disks.
#[derive(Debug)]
struct Place {
    name: String,
    hcas: Vec<PathBuf>,
    nic: Nic,
    disks: Vec<PathBuf>,
}

impl Place {
    fn guest(&self, hca: kind::Device) -> Guest<'_> {
        let sockets = self.hcas.clone();
        let (hcas, cards) = if hca.is_card() { (Vec::new(), sockets) } else { (sockets, Vec::new()) };
        let (least_cpus, least_memory_mib) = hca.least();
        Guest {
            name: &self.name,
            hcas,
            cards,
            least_cpus,
            least_memory_mib,
            nics: vec![self.nic.clone()],
            disks: self.disks.clone(),
            reboots: true,
            ..Guest::default()
        }
    }
}

#[derive(Debug)]
pub(super) struct StockPair {
    pub(super) a: StockNode,
    pub(super) b: StockNode,
    image: Image,
    run: RunDir,
}

impl StockPair {
    /// Starts daemons and guests, but does not load an HCA driver.
    pub(super) async fn start(lab: &Lab, scenario: &str) -> Result<Self> {
        Self::start_with(lab, lab.new_run(scenario)?, |spec| spec).await
    }

    /// Starts the pair in strict mode. Violations in `explained` do not fail the scenario.
    pub(super) async fn start_strict(
        lab: &Lab,
        scenario: &str,
        explained: &'static [Explained],
    ) -> Result<Self> {
        Self::start_with(lab, lab.new_run(scenario)?, |spec| strict(Some(explained), spec)).await
    }

    /// Starts the pair in an existing run directory. `change` modifies the specification of each HCA.
    pub(super) async fn start_with(
        lab: &Lab,
        run: RunDir,
        change: impl Fn(HcaSpec) -> HcaSpec,
    ) -> Result<Self> {
        Self::start_of(kind::Device::Mthca, lab, run, change).await
    }

    pub(super) async fn start_of(
        hca: kind::Device,
        lab: &Lab,
        run: RunDir,
        change: impl Fn(HcaSpec) -> HcaSpec,
    ) -> Result<Self> {
        let started = Self::start_in(hca, lab, &run, change).await;
        let (image, a, b) =
            started.with_context(|| format!("console output and logs are in {}", run.path().display()))?;
        Ok(Self { a, b, image, run })
    }

    async fn start_in(
        hca: kind::Device,
        lab: &Lab,
        run: &RunDir,
        change: impl Fn(HcaSpec) -> HcaSpec,
    ) -> Result<(Image, StockNode, StockNode)> {
        let image = lab.debian_image(run).await?;
        let ports = free_udp_ports::<2>()?;
        let [spec_a, spec_b] = HcaSpec::pair()?.map(|spec| change(spec_of(hca, lab, spec)));
        let wires = [ports, [ports[1], ports[0]]];
        let (a, b) = tokio::try_join!(
            StockNode::start(hca, lab, run, &image, &spec_a, wires[0], Vec::new()),
            StockNode::start(hca, lab, run, &image, &spec_b, wires[1], Vec::new())
        )?;
        Ok((image, a, b))
    }

    /// Loads the drivers in both guests and waits until both ports are active.
    pub(super) async fn load(&mut self) -> Result<()> {
        tokio::try_join!(self.a.load(), self.b.load()).map(drop)
    }

    /// Runs a client program in guest `a` and a server program in guest `b`.
    pub(super) async fn exchange(&mut self, exchange: &Exchange) -> Result<Ends> {
        exchange.run(&mut self.b.vm, &mut self.a.vm).await
    }

    pub(super) fn ends(&mut self) -> perftest::Ends<'_> {
        perftest::Ends { a: &mut self.a.vm, b: &mut self.b.vm }
    }

    pub(super) fn perftest_device(&self) -> Device {
        Device {
            title: match self.a.hca {
                kind::Device::Mthca => "ib_mthca",
                hca => hca.name(),
            },
            names: [self.a.selected("-x"), self.b.selected("-x")],
            server: self.b.ip.to_string(),
            slow: false,
        }
    }

    /// Returns the RoCE devices for programs that connect through `rdma_cm`, which selects the GIDs itself.
    pub(super) fn perftest_device_by_cm(&self) -> Device {
        let names = [self.a.rdma_device().into(), self.b.rdma_device().into()];
        Device { names, server: Address::on(0, self.b.id).ipv4, ..self.perftest_device() }
    }

    /// Checks that neither kernel has logged unexpected warnings.
    pub(super) async fn no_warnings(&mut self) -> Result<()> {
        self.a.no_warnings().await?;
        self.b.no_warnings().await
    }

    pub(super) async fn capture_on(&self) -> Result<()> {
        for node in [&self.a, &self.b] {
            let file = node.daemon.capture().display().to_string();
            node.daemon.control(&["capture", "on", &file]).await?;
        }
        Ok(())
    }

    pub(super) async fn capture_off(&self) -> Result<()> {
        for node in [&self.a, &self.b] {
            node.daemon.control(&["capture", "off"]).await?;
        }
        Ok(())
    }

    /// Returns text that names the files to inspect when a case fails.
    pub(super) fn hint(&self) -> String {
        format!("console output, logs and command lines: {}", self.run.path().display())
    }

    pub(super) fn folder(&self) -> &Path {
        self.run.path()
    }

    /// Kills guest `a` with SIGKILL and attaches a new guest to the same daemon.
    pub(super) async fn replace_a(&mut self, lab: &Lab) -> Result<()> {
        self.a.vm.kill().await?;
        self.a.daemon.wait_for_disconnect().await?;
        self.a.boot_again(lab, &self.run, &self.image).await
    }

    /// Reboots guest `a` from within the guest. The QEMU process stays the same.
    pub(super) async fn reboot_a(&mut self) -> Result<()> {
        self.a.vm.reboot(&self.image).await?;
        self.a.set_up().await
    }

    /// Kills the guests, then shuts the daemons down cleanly.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.a.vm.kill().await?;
        self.b.vm.kill().await?;
        self.a.daemon.stop().await?;
        self.b.daemon.stop().await
    }
}

impl StockNode {
    /// Starts a single node with additional disks. If `permitted` is given, the node is in strict mode, and only those
    /// violations are permitted.
    pub(super) async fn start_alone(
        hca: kind::Device,
        lab: &Lab,
        run: &RunDir,
        disks: Vec<PathBuf>,
        permitted: Option<&'static [Explained]>,
    ) -> Result<Self> {
        let image = lab.debian_image(run).await?;
        Self::start_alone_with(hca, lab, run, &image, disks, permitted).await
    }

    /// Like [`StockNode::start_alone`], but with the given image.
    pub(super) async fn start_alone_with(
        hca: kind::Device,
        lab: &Lab,
        run: &RunDir,
        image: &Image,
        disks: Vec<PathBuf>,
        permitted: Option<&'static [Explained]>,
    ) -> Result<Self> {
        let [spec, _] = HcaSpec::pair()?;
        let spec = spec_of(hca, lab, strict(permitted, spec));
        Self::start(hca, lab, run, image, &spec, free_udp_ports()?, disks).await
    }

    pub(super) const fn rdma_device(&self) -> &'static str {
        name_of(self.hca)
    }

    /// Returns the device's name for a command line. On an Ethernet port, the name is followed by the program's
    /// `option` for the GID index.
    pub(super) fn selected(&self, option: &str) -> String {
        match self.gid {
            Some(gid) => format!("{} {option} {gid}", self.rdma_device()),
            None => self.rdma_device().to_owned(),
        }
    }

    /// Returns the address that peers use to reach the port.
    pub(super) fn peer_address(&self) -> PeerAddress {
        self.gid.map_or(PeerAddress::Lid(self.id), PeerAddress::Gid)
    }

    /// Kills the guest, then shuts the daemon down cleanly.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.vm.kill().await?;
        self.daemon.stop().await
    }

    /// Starts a daemon and its guest. `wire` contains the UDP addresses of the NIC and its peer.
    async fn start(
        hca: kind::Device,
        lab: &Lab,
        run: &RunDir,
        image: &Image,
        spec: &HcaSpec,
        wire: [SocketAddr; 2],
        disks: Vec<PathBuf>,
    ) -> Result<Self> {
        let daemon = Daemon::start(&lab.hcad()?, spec, run).await?;
        let (nic, ip) = (nic(spec.id, wire), address(spec.id));
        let place = Place { name: spec.name.clone(), hcas: vec![daemon.socket().to_owned()], nic, disks };
        let vm = lab.boot(run, image, place.guest(hca)).await?;
        let mut node = Self { vm, daemon, id: spec.id, ip, hca, place, gid: None, old_warnings: 0 };
        node.set_up().await?;
        Ok(node)
    }

    async fn boot_again(&mut self, lab: &Lab, run: &RunDir, image: &Image) -> Result<()> {
        self.vm = lab.boot(run, image, self.place.guest(self.hca)).await?;
        self.set_up().await
    }

    /// Brings the Ethernet interface up. Ignores the kernel warnings logged so far, which are unrelated to RDMA.
    async fn set_up(&mut self) -> Result<()> {
        self.vm.run(&["modprobe", "virtio_net"]).await?;
        self.vm.run(&["ip", "link", "set", "eth0", "mtu", ETHERNET_MTU, "up"]).await?;
        self.vm.run(&["ip", "address", "add", &format!("{}/16", self.ip), "dev", "eth0"]).await?;
        self.old_warnings = self.warnings().await?.len();
        Ok(())
    }

    pub(super) async fn load(&mut self) -> Result<()> {
        if self.hca == kind::Device::Connectx {
            return self.load_nic().await;
        }
        load(&mut self.vm, self.hca).await
    }

    /// Loads the drivers for an Ethernet port. The port's state follows that of its network device, which is therefore
    /// brought up first.
    async fn load_nic(&mut self) -> Result<()> {
        station::load(&mut self.vm, &["mlx5_core"]).await?;
        let device = station::device(&mut self.vm, self.id).await?;
        self.vm.run(&["ip", "link", "set", &device, "mtu", ETHERNET_MTU]).await?;
        station::bring_up(&mut self.vm, &device, &Address::on(0, self.id)).await?;
        load(&mut self.vm, self.hca).await?;
        let device = self.rdma_device();
        self.gid = Some(gid_index_of(&mut self.vm, device, Gid::V4).await?);
        Ok(())
    }

    /// Waits until the port is in the given state, such as `4: ACTIVE`.
    pub(super) async fn port_is(&mut self, state: &str) -> Result<()> {
        port_is(&mut self.vm, self.hca, state).await
    }

    /// Returns whether the kernel logs the port's state. Kernel 6.12 does not.
    pub(super) async fn logs_port_state(&mut self) -> Result<bool> {
        Ok(!self.vm.run(&["uname", "-r"]).await?.starts_with("6.12."))
    }

    /// Returns whether the kernel omits the event when the port first goes down. Kernel 6.12 raises an event for a RoCE
    /// port only if the state differs from the last reported one, which is "down" until the first event.
    pub(super) async fn omits_first_port_event(&mut self) -> Result<bool> {
        Ok(self.gid.is_some() && self.vm.run(&["uname", "-r"]).await?.starts_with("6.12."))
    }

    pub(super) async fn no_warnings(&mut self) -> Result<()> {
        let new = self.new_warnings().await?;
        ensure!(
            new.is_empty(),
            "the kernel of guest {} logged warnings:\n{}",
            self.place.name,
            new.join("\n")
        );
        Ok(())
    }

    /// Returns the warnings logged since the last call.
    pub(super) async fn new_warnings(&mut self) -> Result<Vec<String>> {
        let mut all = self.warnings().await?;
        let new = all.split_off(self.old_warnings.min(all.len()));
        self.old_warnings = all.len() + new.len();
        Ok(new)
    }

    async fn warnings(&mut self) -> Result<Vec<String>> {
        let lines = kernel_log::warnings(&mut self.vm).await?;
        let is_normal = |line: &String| match self.hca {
            kind::Device::Connectx | kind::Device::ConnectxIb => messages::is_normal(line),
            _ => false,
        };
        Ok(lines.into_iter().filter(|line| !is_unanswered_sweep(line) && !is_normal(line)).collect())
    }
}

/// Returns whether a line reports a management datagram that arrived while its port had no agent. Every ten seconds,
/// each HCA's subnet manager queries the NodeInfo of all other HCAs (IBTA 14.2.5.3). `ib_core` opens QP0 before it adds
/// the port's agents and removes them before it closes QP0. A query that arrives in between causes this message. The
/// sender cannot prevent the race, which also occurs on real fabrics.
pub(super) fn is_unanswered_sweep(line: &str) -> bool {
    line.contains("infiniband ") && line.contains("Unable to find port agent")
}

/// If `permitted` is given, enables strict mode and permits only those violations.
fn strict(permitted: Option<&'static [Explained]>, spec: HcaSpec) -> HcaSpec {
    HcaSpec { strict: permitted.is_some(), explained: permitted.unwrap_or_default(), ..spec }
}

/// Returns the specification for an HCA of kind `hca`. Frames are not captured, because the tools transfer gigabytes.
fn spec_of(hca: kind::Device, lab: &Lab, spec: HcaSpec) -> HcaSpec {
    let interface = hca.interface().unwrap_or_default();
    HcaSpec { interface, capture: false, trace: lab.trace(), ..spec }
}

const fn name_of(hca: kind::Device) -> &'static str {
    match hca.rdma_device() {
        Some(name) => name,
        None => "no driver",
    }
}

pub(super) async fn load_mthca(vm: &mut Vm) -> Result<()> {
    load(vm, kind::Device::Mthca).await
}

/// Loads an HCA's drivers and the modules for tools, and waits until the device's port is active.
pub(super) async fn load(vm: &mut Vm, hca: kind::Device) -> Result<()> {
    vm.run_within(LOAD_TIMEOUT, &[&["modprobe", "-a"], hca.modules()].concat()).await?;
    port_is(vm, hca, "4: ACTIVE").await
}

/// Creates the soft-RoCE device `rxe0` on a network device.
pub(super) async fn add_soft_roce(vm: &mut Vm, netdev: &str) -> Result<()> {
    vm.run(&[&["modprobe", "-a"], SOFT_ROCE].concat()).await?;
    vm.run(&["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", netdev]).await.map(drop)
}

/// Waits until an HCA's port is in the given state, such as `4: ACTIVE`.
async fn port_is(vm: &mut Vm, hca: kind::Device, state: &str) -> Result<()> {
    let path = format!("/sys/class/infiniband/{}/ports/1/state", name_of(hca));
    await_text(vm, &[&path], &[state], PORT_TIMEOUT).await
}

/// Returns the Ethernet NIC of the guest with HCA `id`. The NIC's MAC address differs from the HCA's, so captures show
/// which network a frame belongs to.
pub(super) fn nic(id: u16, [bind, peer]: [SocketAddr; 2]) -> Nic {
    let [high, low] = id.to_be_bytes();
    Nic { model: NicModel::Virtio, mac: [2, 0, 0, 1, high, low], bind, peer }
}

pub(super) fn address(id: u16) -> Ipv4Addr {
    let [high, low] = id.to_be_bytes();
    Ipv4Addr::new(192, 168, high, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unanswered_sweep_message_is_tolerated() {
        assert!(is_unanswered_sweep("infiniband mthca0: Unable to find port agent"));
        assert!(!is_unanswered_sweep("infiniband mthca0: Unable to find agent"));
        assert!(!is_unanswered_sweep("ib_mthca 0000:00:04.0: Catastrophic error detected"));
    }
}
