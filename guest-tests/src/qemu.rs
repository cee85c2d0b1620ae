//! QEMU's command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::artifacts::{Kernel, QemuProgram};

/// How guest code is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Accelerator {
    /// Emulated; works everywhere.
    Tcg,
    /// By the host's processor.
    Kvm,
}

/// One guest machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Name, such as `a`.
    pub name: String,
    /// Guest memory. The HCA's daemon maps all of it.
    pub memory_mib: u32,
    /// Virtual processors.
    pub cpus: u32,
    /// How guest code is executed.
    pub accelerator: Accelerator,
    /// Added to the kernel's command line.
    pub kernel_args: String,
    /// Sockets of the HCAs, each one vfio-user device.
    pub hcas: Vec<PathBuf>,
}

/// Sockets and files of one machine.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Where the lab listens for the agent's virtio-serial port.
    pub agent: PathBuf,
    /// Where the console is written.
    pub console_log: PathBuf,
    /// Where the lab listens for the console, if it wants to type into it.
    pub console: Option<PathBuf>,
}

impl Machine {
    /// The command that starts this machine.
    pub fn command(
        &self,
        qemu: &QemuProgram,
        kernel: &Kernel,
        initramfs: &Path,
        endpoints: &Endpoints,
    ) -> Command {
        let mut args = Args(Vec::new());
        args.flag("-nodefaults").flag("-no-user-config").flag("-no-reboot");
        args.pair("-name", format!("guest-{}", self.name)).pair("-display", "none");
        // A memory backend that other processes can map is what makes DMA possible.
        args.pair("-M", "q35,memory-backend=mem");
        args.pair("-m", format!("{}M", self.memory_mib));
        args.pair("-object", format!("memory-backend-memfd,id=mem,size={}M,share=on", self.memory_mib));
        match self.accelerator {
            Accelerator::Tcg => args.pair("-accel", "tcg,thread=multi").pair("-cpu", "max"),
            // The guest's IOMMU needs the interrupt controller's help to stay outside the kernel.
            Accelerator::Kvm => args.pair("-accel", "kvm,kernel-irqchip=split").pair("-cpu", "host"),
        };
        args.pair("-smp", self.cpus.to_string());

        args.pair("-kernel", kernel.image.display().to_string());
        args.pair("-initrd", initramfs.display().to_string());
        args.pair("-append", format!("console=ttyS0 panic=-1 {}", self.kernel_args).trim_end());

        let console_log = escaped(&endpoints.console_log);
        args.pair(
            "-chardev",
            match &endpoints.console {
                None => format!("file,id=console,path={console_log}"),
                Some(socket) => format!("socket,id=console,path={},logfile={console_log}", escaped(socket)),
            },
        );
        args.pair("-serial", "chardev:console");

        // caching-mode makes the guest's IOMMU tell about each mapping, so that QEMU can pass it on. It must come
        // before the devices it translates for.
        args.pair("-device", "intel-iommu,caching-mode=on");
        args.pair("-device", "virtio-serial-pci");
        args.pair("-chardev", format!("socket,id=agent,path={}", escaped(&endpoints.agent)));
        args.pair("-device", format!("virtserialport,chardev=agent,name={}", agent::wire::PORT_NAME));
        for socket in &self.hcas {
            let device = serde_json::json!({
                "driver": "vfio-user-pci",
                "socket": { "path": socket.display().to_string(), "type": "unix" },
            });
            args.pair("-device", device.to_string());
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

/// A path inside a comma-separated option.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(machine: &Machine, console: Option<PathBuf>) -> String {
        let qemu = QemuProgram { program: "qemu".into(), leading_args: vec!["-L".into(), "fw".into()] };
        let kernel = Kernel { image: "vmlinuz".into(), modules: "modules".into() };
        let endpoints = Endpoints { agent: "s/agent".into(), console_log: "a,b.console".into(), console };
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
            hcas: vec!["s/hca".into()],
        }
    }

    #[test]
    fn the_iommu_comes_before_the_hca_and_memory_is_shared() {
        let line = line(&machine(), None);
        let at = |part: &str| line.find(part).unwrap_or_else(|| panic!("{part} is missing in {line}"));
        assert!(at("intel-iommu,caching-mode=on") < at(r#"{"driver":"vfio-user-pci""#));
        assert!(
            line.contains(
                "memory-backend=mem -m 512M -object memory-backend-memfd,id=mem,size=512M,share=on"
            )
        );
        assert!(line.contains("-append console=ttyS0 panic=-1 quiet -chardev"));
    }

    #[test]
    fn a_comma_in_a_path_stays_part_of_the_path() {
        assert!(line(&machine(), Some("s/tty".into())).contains("path=s/tty,logfile=a,,b.console"));
    }
}
