//! A guest with one NIC and its IP addresses. The NIC is an E810, a ConnectX (with IPoIB if its port is an InfiniBand
//! port), or a NIC emulated by QEMU. A daemon serves the E810 or the ConnectX.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::daemon::{Daemon, HcaSpec, Interface};
use crate::lab::{Guest, Lab};
use crate::qemu::Nic;
use crate::run_dir::RunDir;
use crate::scenario::connectx;
use crate::scenario::e810::messages;
use crate::scenario::e810::package::Package;
use crate::scenario::kernel_log;
use crate::scenario::rxe_interop::mac;
use crate::scenario::stock_pair;
use crate::testbed::kind;
use crate::tools::await_text;
use crate::vm::{Image, Vm};

/// Number of CPUs. With two, the driver uses two of the E810's queue pairs.
pub(in crate::scenario) const CPUS: u32 = 2;
/// Guest memory, large enough for a 256 MiB file.
const MEMORY_MIB: u32 = 1024;
/// Timeout for loading a driver while several emulated guests boot.
const LOAD_TIMEOUT: Duration = Duration::from_secs(180);
/// How long the interface may take to gain a carrier after `ip link set up`.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(240);
/// Modules for virtual devices on top of a NIC.
const STACKED: &[&str] = &["8021q", "macvlan", "bridge", "veth"];

/// A guest with a NIC and its addresses.
#[derive(Debug)]
pub(in crate::scenario) struct Station {
    pub(in crate::scenario) vm: Vm,
    /// The NIC's daemon, or `None` if QEMU emulates the NIC.
    pub(in crate::scenario) daemon: Option<Daemon>,
    /// The station's number on the fabric, which determines its addresses.
    pub(in crate::scenario) id: u16,
    pub(in crate::scenario) device: String,
    hca: Option<kind::Device>,
    /// Number of kernel messages that have already been checked.
    checked: usize,
}

/// Addresses of a station on one network. Network 0 is untagged. Any other number is a VLAN ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::scenario) struct Address {
    pub(in crate::scenario) ipv4: String,
    pub(in crate::scenario) ipv6: String,
}

impl Address {
    pub(in crate::scenario) fn on(network: u16, id: u16) -> Self {
        let [high, low] = network.to_be_bytes();
        // VLAN IDs are 12 bits wide, so `high` is at most 15 and the second octet at most 96.
        Self {
            ipv4: format!("10.{}.{low}.{id}", 81 + u16::from(high)),
            ipv6: format!("fd81:{network:x}::{id:x}"),
        }
    }
}

/// Returns settings for a station's E810 in strict mode. Frames are not captured, because tests with
/// stations transfer gigabytes.
pub(in crate::scenario) fn strict_e810(lab: &Lab, spec: HcaSpec) -> HcaSpec {
    HcaSpec { interface: Interface::E810, capture: false, trace: lab.trace(), strict: true, ..spec }
}

/// Like [`strict_e810`], but for any kind of card.
pub(in crate::scenario) fn strict_card(hca: kind::Device, lab: &Lab, spec: HcaSpec) -> HcaSpec {
    HcaSpec { interface: hca.interface().unwrap_or_default(), ..strict_e810(lab, spec) }
}

/// Returns settings for a station's E810 without strict mode, for speed tests and for drivers with known violations.
pub(in crate::scenario) fn e810_without_strict(lab: &Lab, spec: HcaSpec) -> HcaSpec {
    HcaSpec { strict: false, ..strict_e810(lab, spec) }
}

impl Station {
    /// Boots a guest with an E810 as a plug-in card and with the given additional disks. The E810's driver loads the
    /// lab's own DDP package.
    pub(in crate::scenario) async fn with_e810(
        lab: &Lab,
        run: &RunDir,
        image: &Image,
        spec: &HcaSpec,
        disks: Vec<PathBuf>,
    ) -> Result<Self> {
        Self::with_e810_in(lab, run, image, spec, Guest { disks, ..shape(&spec.name) }).await
    }

    /// Boots a guest with an E810 and the given configuration.
    pub(in crate::scenario) async fn with_e810_in(
        lab: &Lab,
        run: &RunDir,
        image: &Image,
        spec: &HcaSpec,
        guest: Guest<'_>,
    ) -> Result<Self> {
        Self::with_hca(kind::Device::E810, lab, run, image, spec, guest).await
    }

    /// Boots a guest with the given configuration and an E810 or a ConnectX as a plug-in card.
    pub(in crate::scenario) async fn with_hca(
        hca: kind::Device,
        lab: &Lab,
        run: &RunDir,
        image: &Image,
        spec: &HcaSpec,
        guest: Guest<'_>,
    ) -> Result<Self> {
        let daemon = Daemon::start(&lab.hcad()?, spec, run).await?;
        let cards = vec![daemon.socket().to_owned()];
        let vm = lab.boot(run, image, Guest { cards, ..guest }).await?;
        let (daemon, hca) = (Some(daemon), Some(hca));
        let mut station = Self { vm, daemon, id: spec.id, device: String::new(), hca, checked: 0 };
        station.start_hca().await?;
        Ok(station)
    }

    /// Kills the guest with SIGKILL and attaches a new guest to the same daemon.
    pub(in crate::scenario) async fn replace(
        &mut self,
        lab: &Lab,
        run: &RunDir,
        image: &Image,
        guest: Guest<'_>,
    ) -> Result<()> {
        self.die().await?;
        let daemon = self.daemon.as_ref().context("the station has no daemon")?;
        let cards = vec![daemon.socket().to_owned()];
        self.vm = lab.boot(run, image, Guest { cards, ..guest }).await?;
        self.start_hca().await
    }

    /// Kills the guest with SIGKILL and waits until its daemon has detected the disconnect. Until then, the guest's
    /// queue pairs still respond to their peers.
    pub(in crate::scenario) async fn die(&mut self) -> Result<()> {
        self.vm.kill().await?;
        match &mut self.daemon {
            Some(daemon) => daemon.wait_for_disconnect().await,
            None => Ok(()),
        }
    }

    /// Boots a guest with one of QEMU's NICs.
    pub(in crate::scenario) async fn with_nic(
        lab: &Lab,
        run: &RunDir,
        image: &Image,
        name: &str,
        id: u16,
        nic: Nic,
    ) -> Result<Self> {
        let module = nic.model.module();
        let vm = lab.boot(run, image, Guest { nics: vec![nic], ..shape(name) }).await?;
        let mut station = Self { vm, daemon: None, id, device: String::new(), hca: None, checked: 0 };
        station.start(module).await?;
        Ok(station)
    }

    async fn start_hca(&mut self) -> Result<()> {
        match self.hca {
            Some(kind::Device::ConnectxIb) => self.start_ipoib().await,
            Some(kind::Device::Connectx) => self.start("mlx5_core").await,
            _ => {
                Package::Synthetic.install(&mut self.vm).await?;
                self.start("ice").await
            }
        }
    }

    async fn start_ipoib(&mut self) -> Result<()> {
        self.checked = self.messages().await?.len();
        stock_pair::load(&mut self.vm, kind::Device::ConnectxIb).await?;
        load(&mut self.vm, &["ib_ipoib"]).await?;
        self.device = "ib0".into();
        let address = self.address(0);
        bring_up(&mut self.vm, &self.device, &address).await
    }

    async fn start(&mut self, module: &str) -> Result<()> {
        // Earlier kernel warnings are unrelated to the NIC.
        self.checked = self.messages().await?.len();
        load(&mut self.vm, &[&[module], STACKED].concat()).await?;
        self.device = device(&mut self.vm, self.id).await?;
        // The station must also answer pings to broadcast and multicast addresses.
        self.sh("echo 0 > /proc/sys/net/ipv4/icmp_echo_ignore_broadcasts").await?;
        let address = self.address(0);
        bring_up(&mut self.vm, &self.device, &address).await
    }

    /// Returns the name of the RDMA device.
    pub(in crate::scenario) fn rdma_device(&self) -> Result<&'static str> {
        self.hca.and_then(kind::Device::rdma_device).context("the station has no RDMA device")
    }

    /// Returns the driver modules and the modules that verbs programs need.
    pub(in crate::scenario) fn modules(&self) -> &'static [&'static str] {
        self.hca.map_or(&[], kind::Device::modules)
    }

    /// Returns whether the device is a ConnectX.
    pub(in crate::scenario) fn is_connectx(&self) -> bool {
        matches!(self.hca, Some(kind::Device::Connectx | kind::Device::ConnectxIb))
    }

    pub(in crate::scenario) async fn restart(&mut self) -> Result<()> {
        load(&mut self.vm, &["ice"]).await?;
        self.device = device(&mut self.vm, self.id).await?;
        let address = self.address(0);
        bring_up(&mut self.vm, &self.device, &address).await
    }

    pub(in crate::scenario) fn address(&self, network: u16) -> Address {
        Address::on(network, self.id)
    }

    /// Runs a shell command, which must succeed.
    pub(in crate::scenario) async fn sh(&mut self, line: &str) -> Result<String> {
        self.vm.run(&["sh", "-c", line]).await
    }

    /// Runs a shell command that must succeed within `limit`.
    pub(in crate::scenario) async fn within(&mut self, limit: Duration, line: &str) -> Result<String> {
        self.vm.run_within(limit, &["sh", "-c", line]).await
    }

    /// Starts or stops capturing the card's frames. Does nothing if QEMU emulates the NIC.
    pub(in crate::scenario) async fn capture(&self, on: bool) -> Result<()> {
        let Some(daemon) = &self.daemon else { return Ok(()) };
        let file = daemon.capture().display().to_string();
        let words: &[&str] = if on { &["capture", "on", &file] } else { &["capture", "off"] };
        daemon.control(words).await.context("capture").map(drop)
    }

    /// Checks that the kernel has logged only expected warnings since the last check.
    pub(in crate::scenario) async fn no_warnings(&mut self) -> Result<()> {
        self.no_warnings_but(&[]).await
    }

    /// Like [`Self::no_warnings`], but also permits lines that contain any of the substrings in `also`.
    pub(in crate::scenario) async fn no_warnings_but(&mut self, also: &[&str]) -> Result<()> {
        let new = self.new_messages().await?;
        messages::check_except(&new, also).with_context(|| format!("guest {}", self.vm.name()))
    }

    /// Returns the unexpected kernel warnings since the last check.
    pub(in crate::scenario) async fn new_warnings(&mut self) -> Result<Vec<String>> {
        Ok(messages::others(&self.new_messages().await?))
    }

    async fn new_messages(&mut self) -> Result<Vec<String>> {
        let mut all = self.messages().await?;
        let new = all.split_off(self.checked.min(all.len()));
        self.checked = all.len() + new.len();
        Ok(new)
    }

    async fn messages(&mut self) -> Result<Vec<String>> {
        let is_connectx = self.is_connectx();
        let mut lines = warnings(&mut self.vm).await?;
        lines.retain(|line| !(is_connectx && connectx::messages::is_normal(line)));
        Ok(lines)
    }

    /// Returns the number of payload bytes that the card has received over RDMA.
    pub(in crate::scenario) async fn rdma_received(&self) -> Result<u64> {
        let daemon = self.daemon.as_ref().context("the station has no daemon")?;
        daemon.counter("/engine/received_payload_bytes").await
    }

    /// Checks that the card has received at least `bytes` bytes over RDMA since its counter had the value `before`.
    pub(in crate::scenario) async fn has_received(&self, before: u64, bytes: u64) -> Result<()> {
        let by_rdma = self.rdma_received().await?.saturating_sub(before);
        ensure!(by_rdma >= bytes, "{by_rdma} of {bytes} bytes arrived in guest {} over RDMA", self.vm.name());
        Ok(())
    }

    /// Kills the guest, then shuts its daemon down cleanly.
    pub(in crate::scenario) async fn stop(mut self) -> Result<()> {
        self.vm.kill().await?;
        match self.daemon {
            Some(daemon) => daemon.stop().await,
            None => Ok(()),
        }
    }
}

/// Returns the configuration of a station's guest.
pub(in crate::scenario) fn shape(name: &str) -> Guest<'_> {
    Guest { name, least_cpus: CPUS, least_memory_mib: MEMORY_MIB, ..Guest::default() }
}

/// Returns the kernel messages at warning level or above.
pub(in crate::scenario) async fn warnings(vm: &mut Vm) -> Result<Vec<String>> {
    kernel_log::warnings(vm).await
}

pub(in crate::scenario) async fn load(vm: &mut Vm, modules: &[&str]) -> Result<()> {
    vm.run_within(LOAD_TIMEOUT, &[&["modprobe", "-a"], modules].concat()).await.map(drop)
}

/// Returns the network device of NIC `id`. Ignores stacked devices, which have the same MAC address.
pub(in crate::scenario) async fn device(vm: &mut Vm, id: u16) -> Result<String> {
    let wanted = mac_text(id);
    let links = vm.run(&["ip", "-j", "-d", "link", "show"]).await?;
    let links: Vec<Value> = serde_json::from_str(&links).with_context(|| links.clone())?;
    let is_it = |link: &&Value| {
        link["address"].as_str() == Some(&wanted) && link.pointer("/linkinfo/info_kind").is_none()
    };
    let found = links.iter().find(is_it).and_then(|link| link["ifname"].as_str());
    let all = || links.iter().map(|link| link["ifname"].to_string()).collect::<Vec<_>>().join(", ");
    Ok(found.with_context(|| format!("no device has MAC {wanted}; the devices have {}", all()))?.to_owned())
}

pub(in crate::scenario) fn mac_text(id: u16) -> String {
    mac(id).map(|byte| format!("{byte:02x}")).join(":")
}

/// Configures a device's addresses and waits until it can be used.
///
/// Duplicate address detection (DAD) for the link-local address takes up to two seconds. Until it has finished, the
/// kernel does not resolve neighbours for a queue pair, so connection attempts fail after one second (`ib_core`,
/// `addr.c`). MAC addresses are unique here, so DAD is disabled.
pub(in crate::scenario) async fn bring_up(vm: &mut Vm, device: &str, address: &Address) -> Result<()> {
    let Address { ipv4, ipv6 } = address;
    let commands = format!(
        "echo 0 > /proc/sys/net/ipv6/conf/{device}/accept_dad && \
         ip link set {device} up && ip address add {ipv4}/24 dev {device} && \
         ip address add {ipv6}/64 dev {device} nodad"
    );
    vm.run(&["sh", "-c", &commands]).await?;
    carrier(vm, device, true).await
}

/// Waits until a device that is up has gained or lost its carrier.
pub(in crate::scenario) async fn carrier(vm: &mut Vm, device: &str, wanted: bool) -> Result<()> {
    let path = format!("/sys/class/net/{device}/carrier");
    let text = if wanted { "1" } else { "0" };
    await_text(vm, &[&path], &[text], CARRIER_TIMEOUT).await.with_context(|| format!("carrier of {device}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn station_addresses_are_derived_from_network_and_id() {
        assert_eq!(Address::on(0, 1).ipv4, "10.81.0.1");
        assert_eq!(Address::on(4094, 2).ipv4, "10.96.254.2");
        assert_eq!(Address::on(100, 3).ipv6, "fd81:64::3");
    }
}
