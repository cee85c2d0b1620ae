//! Steps for the guest itself: its kernel, its PCI devices and its shutdown.

use serde::{Deserialize, Serialize};

/// The answer to a step that does not return data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// Checks that the agent responds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Ping {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// Time since the guest booted, in milliseconds.
    pub uptime_ms: u64,
}

/// Describes the guest and its PCI devices.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Info {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GuestInfo {
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    pub cmdline: String,
    /// All PCI functions, in address order.
    pub devices: Vec<DeviceInfo>,
    /// Kernel messages at warning level or above.
    pub warnings: Vec<String>,
}

/// A PCI function as sysfs describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// PCI address, such as `0000:00:05.0`.
    pub address: String,
    pub vendor: u16,
    pub device: u16,
    pub subsystem_vendor: u16,
    pub subsystem_device: u16,
    /// Class code (24 bits).
    pub class: u32,
    pub revision: u8,
    pub bars: Vec<BarInfo>,
    /// Number of MSI-X vectors, or 0 if the function has no MSI-X capability.
    pub msix_vectors: u32,
    pub driver: Option<String>,
    pub iommu_group: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarInfo {
    /// BAR number, 0 to 5.
    pub index: u8,
    pub start: u64,
    pub size: u64,
    /// Whether the BAR is 64 bits wide.
    pub wide: bool,
    pub prefetchable: bool,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Dmesg {
    /// Least severe level to return (0 = emergency, 4 = warning, 7 = debug), or `None` for all messages.
    pub level: Option<u8>,
}

/// Answer to [`Dmesg`]: the messages without record headers, oldest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DmesgLines {
    pub lines: Vec<String>,
}

/// Loads kernel modules from files in the guest, in the given order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadModules {
    /// Paths of uncompressed modules.
    pub paths: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadedModules {
    /// Modules that this step loaded.
    pub loaded: Vec<String>,
    /// Modules that were already loaded.
    pub present: Vec<String>,
}

/// Permanently replaces the guest's root file system. The new root is mounted read-only under a tmpfs overlay. The
/// drivers that it needs must already be loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnterRoot {
    pub system: System,
    /// Block device that contains `/lib/modules/<release>` as an ext4 file system.
    pub modules: Option<String>,
}

/// The file system that becomes a guest's root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// A block device with an ext4 file system. A tmpfs hides its `/tmp`.
    Disk(String),
    /// Mount tag of a host directory that is shared over 9P. Its `/tmp` remains visible in the guest.
    Shared(String),
}

impl Default for System {
    fn default() -> Self {
        Self::Disk(String::new())
    }
}

/// Mounts a host directory that is shared over 9P. The mount point is created if it does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountShare {
    /// Mount tag of the shared directory.
    pub tag: String,
    /// Absolute path of the mount point.
    pub at: String,
    pub read_only: bool,
}

/// Runs a shell (`/bin/sh`) on the guest's console and waits until it exits.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Shell {
    /// Command line to run with `sh -c` instead of an interactive shell. A non-zero exit status is a failure.
    pub command: Option<String>,
}

/// Shuts the guest down after sending the response.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Shutdown {
    pub kind: ShutdownKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShutdownKind {
    PowerOff,
    Reboot,
    /// The kernel panics and, without stopping any device, starts the kernel loaded by [`LoadCrashKernel`].
    Crash,
}

/// Loads the kernel that runs after a panic. The guest must have reserved memory for it (`crashkernel`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadCrashKernel {
    /// Disk that contains the kernel image, followed by the initramfs.
    pub disk: String,
    /// Length of the kernel image in bytes.
    pub kernel_len: u64,
    /// Length of the initramfs in bytes.
    pub initramfs_len: u64,
    pub command_line: String,
}

/// Unbinds a PCI function from its driver and binds it to vfio-pci.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BindVfio {
    pub device: DeviceSelector,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceSelector {
    /// Selects a function by its PCI address, such as `0000:00:05.0`.
    Address(String),
    /// Selects the first function with matching IDs.
    Ids { vendor: u16, device: u16 },
    /// Selects the function that a vfio-user server provides on this Unix socket. The agent then runs on the host, not
    /// in a guest.
    Socket(String),
}

impl Default for DeviceSelector {
    /// Selects the JingZhao HCA.
    fn default() -> Self {
        Self::Ids { vendor: 0x10ee, device: 0x7028 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    pub address: String,
    pub iommu_group: u32,
}
