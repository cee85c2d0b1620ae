//! Steps about the guest itself: its kernel, its PCI devices, its end.

use serde::{Deserialize, Serialize};

/// The answer of steps that have nothing to say but success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// Is the agent there?
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Ping {}

/// Answer of [`Ping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// Time since the guest started, milliseconds.
    pub uptime_ms: u64,
}

/// What is this guest, and what does its kernel think of its PCI devices?
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Info {}

/// Answer of [`Info`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GuestInfo {
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// Kernel command line.
    pub cmdline: String,
    /// Every PCI function, in address order.
    pub devices: Vec<DeviceInfo>,
    /// Kernel messages of level warning and worse.
    pub warnings: Vec<String>,
}

/// One PCI function as sysfs shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Address, such as `0000:00:05.0`.
    pub address: String,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Subsystem vendor id.
    pub subsystem_vendor: u16,
    /// Subsystem id.
    pub subsystem_device: u16,
    /// Class code, 24 bits.
    pub class: u32,
    /// Revision.
    pub revision: u8,
    /// BARs in use.
    pub bars: Vec<BarInfo>,
    /// MSI-X vectors the function offers, 0 without the capability.
    pub msix_vectors: u32,
    /// Driver bound, if any.
    pub driver: Option<String>,
    /// IOMMU group, if any.
    pub iommu_group: Option<u32>,
}

/// One base address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarInfo {
    /// 0 to 5.
    pub index: u8,
    /// Bus address.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Memory space that is 64 bits wide.
    pub wide: bool,
    /// Prefetchable.
    pub prefetchable: bool,
}

/// The kernel's messages.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Dmesg {
    /// Only messages of this level or worse (0 = emergency, 4 = warning, 7 = debug); all without it.
    pub level: Option<u8>,
}

/// Answer of [`Dmesg`]: one message each, without the record's header, oldest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DmesgLines {
    /// The messages.
    pub lines: Vec<String>,
}

/// Load kernel modules from files of the guest, in this order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadModules {
    /// Paths of uncompressed modules.
    pub paths: Vec<String>,
}

/// Answer of [`LoadModules`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadedModules {
    /// Modules loaded now.
    pub loaded: Vec<String>,
    /// Modules that were there before.
    pub present: Vec<String>,
}

/// Make a file system on a disk this guest's root, for good. It is mounted read-only with a tmpfs over it; both are
/// ext4. The drivers must be loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnterRoot {
    /// Device of the system.
    pub system: String,
    /// Device of what belongs into `/lib/modules/<release>`.
    pub modules: Option<String>,
}

/// Give the guest's console a shell (`/bin/sh`) and wait for its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Shell {
    /// Command line for `sh -c` instead of an interactive shell; a non-zero status is a failure.
    pub command: Option<String>,
}

/// End the guest. The answer is sent before the kernel is asked.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Shutdown {
    /// How.
    pub kind: ShutdownKind,
}

/// Ways to end a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShutdownKind {
    /// Power off.
    PowerOff,
    /// Restart.
    Reboot,
}

/// Take a PCI function from its driver and give it to vfio-pci.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BindVfio {
    /// Which one.
    pub device: DeviceSelector,
}

/// Names one PCI function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceSelector {
    /// By address, such as `0000:00:05.0`.
    Address(String),
    /// The first with these ids.
    Ids {
        /// Vendor id.
        vendor: u16,
        /// Device id.
        device: u16,
    },
    /// Without a guest: the function that a vfio-user server offers on this Unix socket.
    Socket(String),
}

impl Default for DeviceSelector {
    /// The JingZhao HCA.
    fn default() -> Self {
        Self::Ids { vendor: 0x10ee, device: 0x7028 }
    }
}

/// Answer of [`BindVfio`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Address of the function.
    pub address: String,
    /// Its IOMMU group.
    pub iommu_group: u32,
}
