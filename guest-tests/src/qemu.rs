//! Builds QEMU's command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::arch::{Arch, Iommu};
use crate::artifacts::{Kernel, QemuProgram};

/// Size of the address space that is reserved at each empty slot for the BARs of a hot-plugged device.
const FREE_SLOT_MEMORY: &str = "32M";

/// How guest code is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Accelerator {
    /// Emulation, on any host
    Tcg,
    /// Hardware virtualisation
    Kvm,
}

#[derive(Clone, Debug)]
pub struct Machine {
    /// Name of the guest, such as `a`.
    pub name: String,
    /// Guest memory in MiB. The HCA's daemon maps all of it.
    pub memory_mib: u32,
    pub cpus: u32,
    pub accelerator: Accelerator,
    /// Additional arguments for the kernel's command line.
    pub kernel_args: String,
    /// The IOMMU in front of all devices, for user-space drivers.
    pub iommu: Option<Iommu>,
    /// Images of the guest's read-only disks, /dev/vda and so on.
    pub disks: Vec<PathBuf>,
    /// Image of an additional, writable disk that outlives QEMU.
    pub own_disk: Option<PathBuf>,
    /// Ethernet NICs of the guest, eth0 and so on.
    pub nics: Vec<Nic>,
    /// Sockets of the HCAs that are vfio-user devices on the root bus.
    pub hcas: Vec<PathBuf>,
    /// Sockets of additional HCAs, each behind its own root port like a plug-in card.
    pub cards: Vec<PathBuf>,
    /// Number of empty root ports. Their slots are numbered after those of the cards.
    pub free_slots: usize,
    /// Host directories that the guest can mount.
    pub shares: Vec<Share>,
    /// Whether the guest can reboot. If false, QEMU exits when the guest reboots.
    pub reboots: bool,
    /// Boot loader that fetches the kernel and initramfs over the network. If `None`, QEMU loads both.
    pub boot_loader: Option<PathBuf>,
}

/// A host directory that the guest mounts by its tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub folder: PathBuf,
    pub tag: String,
    pub read_only: bool,
}

/// An Ethernet NIC whose link is a UDP socket. Each frame is one datagram, as on an HCA's fabric.
#[derive(Clone, Debug)]
pub struct Nic {
    pub model: NicModel,
    pub mac: [u8; 6],
    /// UDP address that QEMU binds to receive frames.
    pub bind: SocketAddr,
    /// UDP address that QEMU sends all frames to.
    pub peer: SocketAddr,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NicModel {
    #[default]
    Virtio,
    /// The Intel 82574L NIC.
    E1000e,
}

impl NicModel {
    /// Returns QEMU's name for the model.
    const fn device(self) -> &'static str {
        match self {
            Self::Virtio => "virtio-net-pci",
            Self::E1000e => "e1000e",
        }
    }

    /// Returns the name of the model's kernel module.
    pub const fn module(self) -> &'static str {
        match self {
            Self::Virtio => "virtio_net",
            Self::E1000e => "e1000e",
        }
    }
}

/// Sockets and files of one guest. QEMU connects to the sockets.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Socket for the agent's virtio-serial port.
    pub agent: PathBuf,
    /// Sockets for the agent's exec ports.
    pub commands: Vec<PathBuf>,
    /// File for the console output.
    pub console_log: PathBuf,
    /// Socket for the serial console, if the lab can write to the console.
    pub console: Option<PathBuf>,
    /// Socket for QEMU's monitor, if the lab hot-plugs devices.
    pub monitor: Option<PathBuf>,
}

impl Machine {
    /// Returns the command that starts the guest.
    pub fn command(
        &self,
        qemu: &QemuProgram,
        kernel: &Kernel,
        initramfs: &Path,
        endpoints: &Endpoints,
    ) -> Command {
        let mut args = Args(Vec::new());
        args.flag("-nodefaults").flag("-no-user-config");
        if !self.reboots {
            args.flag("-no-reboot");
        }
        args.pair("-name", format!("guest-{}", self.name)).pair("-display", "none");
        // The daemon accesses guest memory directly, so the memory must have a shared backend.
        let machine = kernel.arch.machine(self.accelerator, self.boot_loader.is_some());
        args.pair("-M", format!("{machine},memory-backend=mem"));
        args.pair("-m", format!("{}M", self.memory_mib));
        args.pair("-object", format!("memory-backend-memfd,id=mem,size={}M,share=on", self.memory_mib));
        let (accelerator, processor) = kernel.arch.processor(self.accelerator);
        args.pair("-accel", accelerator).pair("-cpu", processor);
        args.pair("-smp", self.cpus.to_string());

        match &self.boot_loader {
            Some(loader) => {
                args.pair("-kernel", loader.display().to_string());
            }
            None => {
                args.pair("-kernel", kernel.image.display().to_string());
                args.pair("-initrd", initramfs.display().to_string());
                args.pair("-append", command_line(kernel.arch, &self.kernel_args));
            }
        }

        // Append mode is required. Otherwise QEMU would keep writing at its old offset after the lab truncates the log.
        let console_log = escaped(&endpoints.console_log);
        args.pair(
            "-chardev",
            match &endpoints.console {
                None => format!("file,id=console,path={console_log},append=on"),
                Some(socket) => {
                    let socket = escaped(socket);
                    format!("socket,id=console,path={socket},logfile={console_log},logappend=on")
                }
            },
        );
        args.pair("-serial", "chardev:console");
        if let Some(socket) = &endpoints.monitor {
            args.pair("-qmp", format!("unix:{}", escaped(socket)));
        }

        if let Some(iommu) = self.iommu {
            // The IOMMU must precede the devices whose accesses it translates.
            args.pair("-device", iommu.device);
        }
        args.pair("-device", "virtio-serial-pci");
        // Put the exec ports before the agent's port, so that they exist by the time the agent's port does.
        for (index, socket) in endpoints.commands.iter().enumerate() {
            args.pair("-chardev", format!("socket,id=exec{index},path={}", escaped(socket)));
            let name = format!("{}{index}", agent::wire::exec::EXEC_PORT_PREFIX);
            args.pair("-device", format!("virtserialport,chardev=exec{index},name={name}"));
        }
        args.pair("-chardev", format!("socket,id=agent,path={}", escaped(&endpoints.agent)));
        args.pair("-device", format!("virtserialport,chardev=agent,name={}", agent::wire::PORT_NAME));
        let shared = self.disks.iter().map(|image| (image, "on"));
        for (index, (image, readonly)) in
            shared.chain(self.own_disk.iter().map(|image| (image, "off"))).enumerate()
        {
            let file = escaped(image);
            args.pair("-drive", format!("if=none,id=disk{index},format=raw,readonly={readonly},file={file}"));
            args.pair("-device", format!("virtio-blk-pci,drive=disk{index}"));
        }
        for share in &self.shares {
            let Share { folder, tag, read_only } = share;
            let readonly = if *read_only { "on" } else { "off" };
            // security_model=none makes files created by the guest belong to the user running QEMU. multidevs=remap
            // permits other file systems below the shared directory.
            args.pair(
                "-fsdev",
                format!(
                    "local,id={tag},path={},security_model=none,multidevs=remap,readonly={readonly}",
                    escaped(folder)
                ),
            );
            args.pair("-device", format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
        }
        for (index, nic) in self.nics.iter().enumerate() {
            let (local, remote) = (inet("local", nic.bind), inet("remote", nic.peer));
            args.pair("-netdev", format!("dgram,id=net{index},{local},{remote}"));
            let [a, b, c, d, e, f] = nic.mac;
            let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
            // Omit the option ROM, since the guest does not boot from the NIC.
            args.pair("-device", format!("{},netdev=net{index},mac={mac},romfile=", nic.model.device()));
        }
        for socket in &self.hcas {
            args.pair("-device", vfio_user(socket).to_string());
        }
        for (index, socket) in self.cards.iter().enumerate() {
            let bus = slot(index + 1);
            args.pair("-device", root_port(index + 1));
            args.pair("-device", vfio_user_behind(socket, &bus).to_string());
        }
        for index in 0..self.free_slots {
            // By default, firmware reserves too little address space for an HCA's BARs at an empty slot, so set the
            // size explicitly.
            let port = root_port(self.cards.len() + index + 1);
            args.pair("-device", format!("{port},mem-reserve={FREE_SLOT_MEMORY}"));
        }

        let mut command = Command::new(&qemu.program);
        command.args(&qemu.leading_args).args(args.0);
        command
    }
}

struct Args(Vec<OsString>);

impl Args {
    fn flag(&mut self, name: &str) -> &mut Self {
        self.0.push(name.into());
        self
    }

    fn pair(&mut self, name: &str, value: impl AsRef<str>) -> &mut Self {
        self.0.push(name.into());
        self.0.push(value.as_ref().into());
        self
    }
}

/// Returns the command line for a guest's kernel, with additional `args`.
pub(crate) fn command_line(arch: Arch, args: &str) -> String {
    format!("console={} panic=-1 {args}", arch.console()).trim_end().to_owned()
}

/// Returns the properties of a vfio-user device with the given server socket.
fn vfio_user(socket: &Path) -> Value {
    json!({
        "driver": "vfio-user-pci",
        "socket": { "path": socket.display().to_string(), "type": "unix" },
    })
}

/// Returns the properties of a vfio-user device behind the root port `slot`.
pub(crate) fn vfio_user_behind(socket: &Path, slot: &str) -> Value {
    let mut device = vfio_user(socket);
    device["bus"] = slot.into();
    device
}

/// Returns the ID of the root port with slot number `number`. Numbers start at 1.
pub(crate) fn slot(number: usize) -> String {
    format!("slot{number}")
}

fn root_port(number: usize) -> String {
    format!("pcie-root-port,id={},chassis={number},slot={number}", slot(number))
}

/// Formats an address as an option for `-netdev dgram`.
fn inet(name: &str, address: SocketAddr) -> String {
    format!("{name}.type=inet,{name}.host={},{name}.port={}", address.ip(), address.port())
}

/// Escapes a path for use in a comma-separated option.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(machine: &Machine, console: Option<PathBuf>) -> String {
        line_of(Arch::Amd64, machine, console)
    }

    fn line_of(arch: Arch, machine: &Machine, console: Option<PathBuf>) -> String {
        let qemu = QemuProgram { program: "qemu".into(), leading_args: vec!["-L".into(), "fw".into()] };
        let kernel = Kernel { arch, image: "vmlinuz".into(), modules: "modules".into() };
        let endpoints = Endpoints {
            agent: "s/agent".into(),
            commands: vec!["s/exec".into()],
            console_log: "a,b.console".into(),
            console,
            monitor: None,
        };
        let command = machine.command(&qemu, &kernel, Path::new("initrd"), &endpoints);
        let words: Vec<_> = command.as_std().get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        words.join(" ")
    }

    fn machine() -> Machine {
        Machine {
            name: "a".into(),
            memory_mib: 512,
            cpus: 1,
            accelerator: Accelerator::Tcg,
            kernel_args: "quiet".into(),
            iommu: Arch::Amd64.iommu(),
            disks: Vec::new(),
            own_disk: None,
            nics: Vec::new(),
            hcas: vec!["s/hca".into()],
            cards: Vec::new(),
            free_slots: 0,
            shares: Vec::new(),
            reboots: false,
            boot_loader: None,
        }
    }

    #[test]
    fn exec_ports_precede_agent_port() {
        let share = Share { folder: "/x,y".into(), tag: "share0".into(), read_only: true };
        let line = line(&Machine { shares: vec![share], ..machine() }, None);
        let at = |part: &str| line.find(part).unwrap_or_else(|| panic!("{part} is missing from {line}"));
        assert!(at("chardev=exec0,name=org.hcad.exec.0") < at("chardev=agent,name=org.hcad.agent"));
        assert!(line.contains(
            "-fsdev local,id=share0,path=/x,,y,security_model=none,multidevs=remap,readonly=on \
             -device virtio-9p-pci,fsdev=share0,mount_tag=share0"
        ));
    }

    #[test]
    fn iommu_precedes_hca_on_command_line() {
        let line = line(&machine(), None);
        let at = |part: &str| line.find(part).unwrap_or_else(|| panic!("{part} is missing from {line}"));
        assert!(at("intel-iommu,caching-mode=on") < at(r#"{"driver":"vfio-user-pci""#));
        assert!(line.contains(
            "-M q35,pit=off,memory-backend=mem -m 512M -object memory-backend-memfd,id=mem,size=512M,share=on"
        ));
        assert!(line.contains("-append console=ttyS0 panic=-1 quiet -chardev"));
    }

    #[test]
    fn arm64_guest_has_gicv3_and_msi_controller() {
        let line = line_of(Arch::Arm64, &Machine { iommu: Arch::Arm64.iommu(), ..machine() }, None);
        assert!(line.contains("-M virt,gic-version=3,its=on,memory-backend=mem -m 512M"), "{line}");
        assert!(line.contains("-append console=ttyAMA0 panic=-1 quiet -chardev"), "{line}");
        assert!(!line.contains("iommu"), "{line}");
    }

    #[test]
    fn only_own_disk_of_guest_is_writable() {
        let nic = Nic {
            model: NicModel::Virtio,
            mac: [2, 0, 0, 0, 0, 2],
            bind: ([127, 0, 0, 1], 7002).into(),
            peer: ([127, 0, 0, 1], 7001).into(),
        };
        let disks = vec!["c/image.ext4".into()];
        let own_disk = Some("c/own".into());
        let line = line(&Machine { iommu: None, disks, own_disk, nics: vec![nic], ..machine() }, None);
        assert!(!line.contains("iommu"));
        assert!(line.contains(
            "-netdev dgram,id=net0,local.type=inet,local.host=127.0.0.1,local.port=7002,\
             remote.type=inet,remote.host=127.0.0.1,remote.port=7001 \
             -device virtio-net-pci,netdev=net0,mac=02:00:00:00:00:02"
        ));
        assert!(line.contains("format=raw,readonly=on,file=c/image.ext4 -device virtio-blk-pci,drive=disk0"));
        assert!(line.contains("format=raw,readonly=off,file=c/own -device virtio-blk-pci,drive=disk1"));
    }

    #[test]
    fn card_has_its_own_root_port() {
        let cards = vec!["s/x".into(), "s/y".into()];
        let line = line(&Machine { cards, ..machine() }, None);
        for part in ["pcie-root-port,id=slot2,chassis=2,slot=2", r#""bus":"slot2""#] {
            assert!(line.contains(part), "{part} is missing from {line}");
        }
    }

    #[test]
    fn console_log_is_opened_for_append_with_escaped_path() {
        let with_socket = line(&machine(), Some("s/tty".into()));
        assert!(with_socket.contains("path=s/tty,logfile=a,,b.console,logappend=on"), "{with_socket}");
        let without = line(&machine(), None);
        assert!(without.contains("-chardev file,id=console,path=a,,b.console,append=on"), "{without}");
    }
}
