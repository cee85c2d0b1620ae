//! CPU architectures of guests and hosts, and all settings of the lab that depend on them.

use std::fmt;

use crate::qemu::Accelerator;

/// A CPU architecture, named as in Debian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arch {
    /// x86-64
    Amd64,
    /// 64-bit Arm
    Arm64,
}

/// A QEMU for one architecture: its Debian packages, and the paths of its files below the root directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QemuFiles {
    /// Packages to install. The first one contains the program.
    pub(crate) packages: &'static [&'static str],
    pub(crate) program: &'static str,
    /// Directories that QEMU searches for firmware.
    pub(crate) firmware: &'static [&'static str],
}

/// An emulated IOMMU. Without one, a user-space driver in the guest cannot use an HCA.
#[derive(Clone, Copy, Debug)]
pub struct Iommu {
    /// QEMU device name with its options.
    pub(crate) device: &'static str,
    /// Kernel arguments that enable the IOMMU.
    pub(crate) kernel_args: &'static str,
}

impl Arch {
    /// The architecture of this machine.
    pub const HOST: Self = if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::Amd64 };

    /// Returns Debian's name for the architecture.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Returns the name of the directory below `/usr/lib` that contains libraries.
    pub(crate) const fn libraries(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// Returns the path of the dynamic loader.
    pub(crate) const fn loader(self) -> &'static str {
        match self {
            Self::Amd64 => "usr/lib64/ld-linux-x86-64.so.2",
            Self::Arm64 => "usr/lib/ld-linux-aarch64.so.1",
        }
    }

    /// Returns the QEMU that runs guests of this architecture.
    pub(crate) const fn qemu(self) -> QemuFiles {
        match self {
            Self::Amd64 => QemuFiles {
                packages: &["qemu-system-x86", "seabios"],
                program: "usr/bin/qemu-system-x86_64",
                firmware: &["usr/share/qemu", "usr/share/seabios"],
            },
            Self::Arm64 => QemuFiles {
                packages: &["qemu-system-arm"],
                program: "usr/bin/qemu-system-aarch64",
                firmware: &["usr/share/qemu"],
            },
        }
    }

    /// Returns QEMU's machine type, with its options.
    ///
    /// The firmware and boot loader of a guest that boots from the network need the PIT and the serial port.
    pub(crate) fn machine(self, accelerator: Accelerator, boots_from_network: bool) -> String {
        match (self, accelerator) {
            // With graphics=off, the firmware and the boot loader use the serial port.
            (Self::Amd64, _) if boots_from_network => "q35,graphics=off".into(),
            // Without a PIT, Linux calibrates the TSC against the HPET. On a busy host, the calibration of an emulated
            // TSC against the PIT can be off by a factor of ten. The guest's clock then runs up to ten times too fast.
            (Self::Amd64, Accelerator::Tcg) => "q35,pit=off".into(),
            (Self::Amd64, Accelerator::Kvm) => "q35".into(),
            // MSI-X requires a GICv3 and its ITS.
            (Self::Arm64, Accelerator::Tcg) => "virt,gic-version=3,its=on".into(),
            (Self::Arm64, Accelerator::Kvm) => "virt,gic-version=host".into(),
        }
    }

    /// Returns the values of QEMU's options `-accel` and `-cpu`.
    pub(crate) const fn processor(self, accelerator: Accelerator) -> (&'static str, &'static str) {
        match (self, accelerator) {
            (Self::Amd64, Accelerator::Tcg) => ("tcg,thread=multi", "max"),
            // Interrupt remapping in the emulated IOMMU requires a split irqchip.
            (Self::Amd64, Accelerator::Kvm) => ("kvm,kernel-irqchip=split", "host"),
            // This processor has atomic instructions, but no pointer authentication, which is slow to emulate.
            (Self::Arm64, Accelerator::Tcg) => ("tcg,thread=multi", "neoverse-n1"),
            (Self::Arm64, Accelerator::Kvm) => ("kvm", "host"),
        }
    }

    /// Returns the name of the serial console in the guest.
    pub(crate) const fn console(self) -> &'static str {
        match self {
            Self::Amd64 => "ttyS0",
            Self::Arm64 => "ttyAMA0",
        }
    }

    /// Returns kernel arguments for this architecture. On x86-64, they disable the timer check and the TSC watchdog. On
    /// a busy host, delays would make the timer check panic and the watchdog print warnings.
    pub(crate) const fn kernel_args(self) -> &'static str {
        match self {
            Self::Amd64 => "no_timer_check tsc=nowatchdog",
            Self::Arm64 => "",
        }
    }

    /// Returns the emulated IOMMU, if it works with vfio-user devices. QEMU's SMMUv3 does not report new mappings, so
    /// QEMU cannot forward them to a vfio-user device.
    pub(crate) const fn iommu(self) -> Option<Iommu> {
        match self {
            // With caching-mode=on, the guest notifies the emulated IOMMU of every new mapping, so that QEMU can
            // forward the mapping to the device.
            Self::Amd64 => {
                Some(Iommu { device: "intel-iommu,caching-mode=on", kernel_args: "intel_iommu=on" })
            }
            Self::Arm64 => None,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
