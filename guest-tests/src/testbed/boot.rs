//! Boots a testbed's guests: starts their daemons and QEMU, then sets up networking, shared directories and drivers.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::{Semaphore, mpsc};

use super::commands::{MOST_COMMANDS, Ports};
use super::host_root::HostRoot;
use super::impair::Link;
use super::kind::{Device, Kind};
use super::name::GuestName;
use super::protocol::{Event, Stage};
use super::switch::Switch;
use super::{DeviceFabric, UpOptions};
use crate::artifacts::ddp;
use crate::daemon::{Daemon, Fabric, HcaSpec, Peer, free_ports};
use crate::lab::{Guest, Lab, guests_per_wave};
use crate::qemu::{Nic, NicModel};
use crate::run_dir::RunDir;
use crate::tools::await_text;
use crate::vm::{Image, Vm};

/// MTU of the Ethernet interfaces. It leaves room for the headers of a packet with a path MTU of 4096.
const ETHERNET_MTU: &str = "4200";
/// Timeout for loading drivers while several emulated guests are booting.
const LOAD_TIMEOUT: Duration = Duration::from_secs(180);
/// How long the port may take to become active after the driver is loaded.
const PORT_TIMEOUT: Duration = Duration::from_secs(30);
/// Path, in the guest, of the script that sets up the RDMA device's network interface.
pub(super) const NETWORK_SCRIPT: &str = "/run/hcad/network";
/// Console log level that includes informational messages, which driver authors need.
const CONSOLE_LEVEL: &str = "7";

/// A booted guest that accepts commands.
#[derive(Debug)]
pub(super) struct Booted {
    pub(super) place: Place,
    pub(super) vm: Vm,
    pub(super) daemon: Option<Daemon>,
    pub(super) ports: Ports,
}

impl Booted {
    /// Returns the guest's device on the fabric, if the guest has an HCA.
    pub(super) fn link(&self) -> Option<Link> {
        let control = self.daemon.as_ref()?.controls();
        Some(Link { guest: self.place.name, mac: self.place.mac_on_fabric(), control })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) name: GuestName,
    /// HCA number, which determines the guest's addresses.
    pub(super) id: u16,
    pub(super) device: Device,
    /// Whether soft-RoCE uses a NIC on the fabric that connects the HCAs.
    among_hcas: bool,
}

impl Place {
    pub(super) fn all(wanted: &UpOptions) -> Vec<Self> {
        let among_hcas = wanted.kind() == Kind::Mixed;
        let place = |(name, id)| Self { name, id, device: wanted.kind().of_guest(id), among_hcas };
        GuestName::first(wanted.count()).zip(1..).map(place).collect()
    }

    /// Returns the guests that the testbed's supervisor boots.
    pub(super) fn booted_here(wanted: &UpOptions) -> Vec<Self> {
        let is_here = |place: &Self| wanted.node.as_ref().is_none_or(|node| node.id() == place.id);
        Self::all(wanted).into_iter().filter(is_here).collect()
    }

    /// Returns whether the guest is the testbed's first.
    pub(super) const fn is_first(self) -> bool {
        self.id == 1
    }

    /// Returns the guest's address on the Ethernet network that connects the guests.
    pub(super) fn ip(self) -> Ipv4Addr {
        let [high, low] = self.id.to_be_bytes();
        Ipv4Addr::new(192, 168, high, low)
    }

    /// Returns the IP address of the RDMA device's network interface, if the device has one.
    pub(super) fn rdma_ip(self) -> Option<Ipv4Addr> {
        let [high, low] = self.id.to_be_bytes();
        // The guest must use the IP address that HCAs derive from a peer's number.
        let on_fabric = Ipv4Addr::new(10, 77, high, low);
        match self.device {
            Device::Rxe if !self.among_hcas => Some(self.ip()),
            Device::E810 | Device::Connectx | Device::Rxe => Some(on_fabric),
            Device::Mthca | Device::Jingzhao | Device::ConnectxIb => None,
        }
    }

    /// Returns whether the guest is connected to the HCAs' fabric by a NIC instead of an HCA.
    const fn is_nic_on_fabric(self) -> bool {
        self.among_hcas && matches!(self.device, Device::Rxe)
    }

    /// Returns the MAC address of the guest's NIC on the Ethernet network that connects the guests.
    fn mac(self) -> [u8; 6] {
        let [high, low] = self.id.to_be_bytes();
        [2, 0, 0, 1, high, low]
    }

    /// Returns the MAC address of the guest's HCA or of its NIC on the fabric.
    fn mac_on_fabric(self) -> [u8; 6] {
        let [high, low] = self.id.to_be_bytes();
        [2, 0, 0, 0, high, low]
    }
}

/// Boots the guests in waves and reports their progress to `events`.
///
/// # Errors
/// Fails if a guest does not boot.
pub(super) async fn all(
    lab: &Lab,
    run: &RunDir,
    wanted: &UpOptions,
    events: &mpsc::UnboundedSender<Event>,
) -> Result<(Vec<Booted>, Switch)> {
    let (places, names) = (Place::booted_here(wanted), Place::all(wanted));
    let image = match &wanted.host_root {
        None => lab.debian_image(run).await?,
        Some(_) => shared_root_image(lab, run, &places)?,
    };
    let ethernet = free_ports(places.len())?;
    let (specs, switch, ends) = match (&wanted.node, ethernet.as_slice()) {
        (Some(node), [nic]) => {
            let device = End::Hca(node.device(*nic).await?);
            (vec![device], Switch::start(&[]).await?, vec![node.gate()])
        }
        _ => {
            let switch = Switch::start(&ethernet).await?;
            let ends = switch.ends().to_vec();
            (fabric(&places, device_fabric(wanted.fabric, run))?, switch, ends)
        }
    };
    let waves = Semaphore::new(guests_per_wave());
    let mut boots = Vec::new();
    for (((&place, end), &bind), peer) in places.iter().zip(specs).zip(&ethernet).zip(ends) {
        let guest = GuestBoot { lab, run, image: &image, wanted, names: &names, events };
        let nic = Nic { model: NicModel::Virtio, mac: place.mac(), bind, peer };
        let waves = &waves;
        boots.push(async move {
            let _turn = waves.acquire().await.context("the boot was cancelled")?;
            guest.boot(place, end, nic).await
        });
    }
    Ok((try_all(boots).await?, switch))
}

/// Returns the image for guests that use the host's root file system. The image contains the drivers for all guests.
fn shared_root_image(lab: &Lab, run: &RunDir, places: &[Place]) -> Result<Image> {
    let drivers = places.iter().flat_map(|place| place.device.modules()).copied();
    let modules: Vec<&str> = std::iter::once(NicModel::Virtio.module()).chain(drivers).collect();
    let (path, package) = (format!("lib/firmware/{}/ice.pkg", ddp::FOLDER), ddp::synthetic());
    let is_e810 = |place: &Place| place.device == Device::E810;
    let files: &[(&str, &[u8])] =
        if places.iter().any(is_e810) { &[(path.as_str(), package.as_slice())] } else { &[] };
    lab.shared_root_image(run, &modules, files)
}

/// The device that connects a guest to the fabric.
enum End {
    /// The guest has an HCA.
    Hca(HcaSpec),
    /// The guest has a NIC that is connected to the fabric through another guest's HCA.
    Nic(Nic),
    /// The guest has neither an HCA nor a NIC on the fabric.
    None,
}

fn device_fabric(choice: DeviceFabric, run: &RunDir) -> Fabric {
    match choice {
        DeviceFabric::Udp => Fabric::Udp,
        DeviceFabric::Ring => Fabric::Ring(run.socket("ring")),
    }
}

/// Returns each guest's connection to the fabric. NICs are connected to the first HCA.
fn fabric(places: &[Place], network: Fabric) -> Result<Vec<End>> {
    let mut specs = HcaSpec::mesh_of(places.len())?;
    for spec in &mut specs {
        spec.fabric = network.clone();
    }
    let is_hca = |place: &Place| place.device.interface().is_some();
    let nics: Vec<SocketAddr> =
        places.iter().zip(&specs).filter_map(|(place, spec)| (!is_hca(place)).then_some(spec.bind)).collect();
    for spec in &mut specs {
        spec.peers.retain(|peer| !nics.contains(&peer.addr));
    }
    let first = places.iter().position(is_hca);
    let gate = first.and_then(|first| specs.get_mut(first)).map(|spec| {
        let leaves = nics.iter().map(|&addr| Peer { addr, leaf: true, id: None });
        spec.peers.extend(leaves);
        spec.bind
    });
    let end = |(place, spec): (&Place, HcaSpec)| match gate {
        Some(_) if is_hca(place) => End::Hca(spec),
        Some(peer) if place.is_nic_on_fabric() => {
            End::Nic(Nic { model: NicModel::Virtio, mac: place.mac_on_fabric(), bind: spec.bind, peer })
        }
        _ => End::None,
    };
    Ok(places.iter().zip(specs).map(end).collect())
}

/// Runs all futures concurrently. The first error cancels the others.
async fn try_all<T>(futures: Vec<impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    let mut pending: Vec<_> = futures.into_iter().map(Box::pin).map(Some).collect();
    let mut done: Vec<Option<T>> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, result) in pending.iter_mut().zip(&mut done) {
            if let Some(running) = future
                && let std::task::Poll::Ready(ended) = running.as_mut().poll(context)
            {
                *future = None;
                match ended {
                    Ok(value) => *result = Some(value),
                    Err(error) => return std::task::Poll::Ready(Err(error)),
                }
            }
        }
        if pending.iter().all(Option::is_none) {
            std::task::Poll::Ready(Ok(()))
        } else {
            std::task::Poll::Pending
        }
    })
    .await?;
    Ok(done.into_iter().flatten().collect())
}

struct GuestBoot<'a> {
    lab: &'a Lab,
    run: &'a RunDir,
    image: &'a Image,
    wanted: &'a UpOptions,
    /// All guests of the testbed.
    names: &'a [Place],
    events: &'a mpsc::UnboundedSender<Event>,
}

impl GuestBoot<'_> {
    async fn boot(self, place: Place, end: End, ethernet: Nic) -> Result<Booted> {
        self.report(place, Stage::Booting);
        let name = place.name.to_string();
        let mut nics = vec![ethernet];
        let daemon = match (end, place.device.interface()) {
            (End::Nic(nic), _) => {
                nics.push(nic);
                None
            }
            (End::None, _) | (_, None) => None,
            (End::Hca(spec), Some(interface)) => {
                let spec = HcaSpec {
                    name: name.clone(),
                    interface,
                    capture: self.wanted.capture,
                    record: self.wanted.record,
                    trace: self.lab.trace(),
                    strict: self.wanted.strict,
                    explained: place.device.explained(),
                    ..spec
                };
                Some(Daemon::start(&self.lab.hcad()?, &spec, self.run).await?)
            }
        };
        let sockets = daemon.iter().map(|daemon| daemon.socket().to_owned()).collect();
        let (hcas, cards) =
            if place.device.is_card() { (Vec::new(), sockets) } else { (sockets, Vec::new()) };
        let (least_cpus, least_memory_mib) = place.device.least();
        let root = self.wanted.host_root.iter().flat_map(HostRoot::devices);
        let shares =
            self.wanted.shares.iter().enumerate().map(|(n, share)| share.device(n)).chain(root).collect();
        let own_disk = match self.wanted.choice.template() {
            Some(template) => template.disk(place, self.run)?,
            None => None,
        };
        let guest = Guest {
            name: &name,
            hcas,
            cards,
            nics,
            own_disk,
            shares,
            commands: MOST_COMMANDS,
            least_cpus,
            least_memory_mib,
            ..Guest::default()
        };
        let mut vm = self.lab.boot(self.run, self.image, guest).await?;
        let ports = Ports::new(vm.take_commands());
        self.report(place, Stage::SettingUp);
        self.set_up(place, &mut vm, &ports).await.with_context(|| format!("cannot set up guest {name}"))?;
        self.report(place, Stage::Ready);
        Ok(Booted { place, vm, daemon, ports })
    }

    async fn set_up(&self, place: Place, vm: &mut Vm, ports: &Ports) -> Result<()> {
        let name = place.name;
        sh(
            ports,
            &format!(
                "echo {CONSOLE_LEVEL} > /proc/sys/kernel/printk && echo {name} > /proc/sys/kernel/hostname"
            ),
        )
        .await?;
        match &self.wanted.host_root {
            None => {
                self.load(vm, &["virtio_net"]).await?;
                self.add_addresses(place, ports).await?;
                self.add_names(ports).await?;
                if !self.wanted.shares.is_empty() {
                    self.load(vm, &["9pnet_virtio", "9p"]).await?;
                }
                self.mount_shares(vm).await?;
                self.load_drivers(place, vm, ports).await?;
                self.set_up_port(place, vm, ports).await
            }
            Some(root) => {
                // The drivers are in the initramfs and have already been loaded.
                sh(ports, "ip link set lo up").await?;
                self.add_addresses(place, ports).await?;
                // The program that creates a soft-RoCE device exists only in the host's root file system, so the guest
                // must switch to that file system first.
                let on_host = place.device == Device::Rxe;
                if !on_host {
                    self.set_up_port(place, vm, ports).await?;
                }
                root.enter(vm).await?;
                self.add_names(ports).await?;
                self.mount_shares(vm).await?;
                if on_host {
                    self.set_up_port(place, vm, ports).await?;
                }
                Ok(())
            }
        }
    }

    /// Sets up the guest's interface on the Ethernet network that connects the guests.
    async fn add_addresses(&self, place: Place, ports: &Ports) -> Result<()> {
        let (ip, find) = (place.ip(), find_interface(place.mac()));
        if self.wanted.node.is_some() {
            // The RDMA device is on the same network and must not answer ARP requests for this interface's address.
            sh(ports, "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore").await?;
            sh(ports, "echo 2 > /proc/sys/net/ipv4/conf/all/arp_announce").await?;
        }
        sh(ports, &format!("{find} ip link set $n mtu {ETHERNET_MTU} up && ip address add {ip}/16 dev $n"))
            .await
    }

    /// Adds the names and addresses of all guests to `/etc/hosts`.
    async fn add_names(&self, ports: &Ports) -> Result<()> {
        let hosts: String =
            self.names.iter().map(|other| format!("{} {}\n", other.ip(), other.name)).collect();
        let script = "cat >> /etc/hosts && mkdir -p -m 700 /root";
        ports.run(&["sh", "-c", script], hosts.as_bytes()).await.map(drop)
    }

    async fn mount_shares(&self, vm: &mut Vm) -> Result<()> {
        for (number, share) in self.wanted.shares.iter().enumerate() {
            vm.call(share.mount(number))
                .await
                .with_context(|| format!("cannot mount a shared directory at {}", share.at()))?;
        }
        Ok(())
    }

    async fn load_drivers(&self, place: Place, vm: &mut Vm, ports: &Ports) -> Result<()> {
        if place.device == Device::E810 {
            let folder = format!("/lib/firmware/{}", ddp::FOLDER);
            let save = format!("mkdir -p {folder} && cat > {folder}/ice.pkg");
            ports
                .run(&["sh", "-c", &save], &ddp::synthetic())
                .await
                .context("cannot write the DDP package for the ice driver")?;
        }
        self.load(vm, place.device.modules()).await
    }

    async fn load(&self, vm: &mut Vm, modules: &[&str]) -> Result<()> {
        vm.run_within(LOAD_TIMEOUT, &[&["modprobe", "-a"], modules].concat()).await.map(drop)
    }

    /// Sets up the RDMA device's network interface and waits until the device's port is active.
    async fn set_up_port(&self, place: Place, vm: &mut Vm, ports: &Ports) -> Result<()> {
        let Some(device) = place.device.rdma_device() else { return Ok(()) };
        if let Some(script) = network(place) {
            let save = format!("mkdir -p {} && cat > {NETWORK_SCRIPT}", folder_of(NETWORK_SCRIPT));
            ports.run(&["sh", "-c", &save], script.as_bytes()).await?;
            ports
                .run(&["sh", NETWORK_SCRIPT], b"")
                .await
                .context("cannot configure the network interface of the RDMA device")?;
        }
        let path = format!("/sys/class/infiniband/{device}/ports/1/state");
        await_text(vm, &[&path], &["4: ACTIVE"], PORT_TIMEOUT).await
    }

    fn report(&self, place: Place, stage: Stage) {
        // If the receiver has been dropped, the guests are being stopped anyway.
        let _ = self.events.send(Event::Guest { name: place.name, stage });
    }
}

/// Returns the script that sets up the RDMA device's network interface whenever its driver is loaded, or `None` if
/// nothing needs to be set up.
fn network(place: Place) -> Option<String> {
    let ip = place.rdma_ip()?;
    Some(match place.device {
        Device::Mthca | Device::Jingzhao | Device::ConnectxIb => return None,
        // The name of the network device depends on its PCI address.
        Device::E810 | Device::Connectx => format!(
            "for d in /sys/class/net/*; do case $(readlink $d/device/driver) in */ice|*/mlx5_core) \
             ip link set ${{d##*/}} up && ip address replace {ip}/16 dev ${{d##*/}};; esac; done"
        ),
        Device::Rxe => {
            let mac = if place.is_nic_on_fabric() { place.mac_on_fabric() } else { place.mac() };
            let find = find_interface(mac);
            format!(
                "{find} ip link set $n mtu {ETHERNET_MTU} up && ip address replace {ip}/16 dev $n && \
                 {{ [ -d /sys/class/infiniband/rxe0 ] || rdma link add rxe0 type rxe netdev $n; }}"
            )
        }
    })
}

/// Returns shell code that sets `$n` to the name of the interface with the given MAC address. The name depends on the
/// order in which interfaces are detected.
fn find_interface(mac: [u8; 6]) -> String {
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    format!("for d in /sys/class/net/*; do [ \"$(cat $d/address)\" = {mac} ] && n=${{d##*/}}; done;")
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("/", |(folder, _)| folder)
}

async fn sh(ports: &Ports, line: &str) -> Result<()> {
    ports.run(&["sh", "-c", line], b"").await.map(drop)
}
