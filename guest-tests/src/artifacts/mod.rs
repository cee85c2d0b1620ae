//! The components of a guest, fetched once and cached: QEMU, a stock kernel with its modules, a static busybox, and a
//! Debian root file system.
//!
//! Each component is one cache entry, built from Debian packages. A manifest lists the versions of these packages.

mod added;
mod apt;
mod cache;
mod clang;
pub mod ddp;
mod debian;
mod ipxe;
mod kbuild;
mod kernel;
mod linux_source;
mod nixl;
mod packages;
mod python;
mod rdma_core;
mod self_tests;
mod sources;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

pub use self::added::{Added, PackageName};
pub use self::apt::Suite;
use self::apt::{Component, Release};
pub use self::debian::Disks;
pub use self::kbuild::ModuleBuild;
pub use self::kernel::{Kernel, KernelChoice, Pages};
pub use self::linux_source::folder_of_linux;
use self::packages::{Set, Unpacked};
pub use self::rdma_core::RdmaCore;
use crate::arch::{Arch, QemuFiles};

/// Parts that the user provides to replace the lab's own.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Architecture of the guests, if it differs from this machine's.
    pub arch: Option<Arch>,
    /// Path of a QEMU binary. Unlike the lab's own QEMU, it runs with this machine's loader and libraries.
    pub qemu: Option<PathBuf>,
    pub kernel: KernelChoice,
    /// An image of the root file system, for guests that have one. Stock kernels must be able to mount it as ext4.
    pub root: Option<PathBuf>,
    /// Packages to add to the lab's own root file system.
    pub added: Added,
}

/// All external parts of a guest.
#[derive(Clone, Debug)]
pub struct Artifacts {
    pub qemu: QemuProgram,
    pub kernel: Kernel,
    /// A statically linked busybox.
    pub busybox: PathBuf,
    cache: PathBuf,
    root: Option<PathBuf>,
    added: Added,
}

/// A QEMU program, and the arguments that must precede all other arguments.
#[derive(Clone, Debug)]
pub struct QemuProgram {
    pub program: PathBuf,
    pub leading_args: Vec<String>,
}

impl QemuProgram {
    /// Checks a user-supplied program, which must be a QEMU binary that supports the devices that guests need.
    fn own(program: &Path) -> Result<Self> {
        let name = program.display();
        ensure!(program.is_file(), "{name} does not exist; pass the path to a QEMU binary with --qemu");
        let asked = Command::new(program).args(["-device", "help"]).stdin(Stdio::null()).output();
        let devices = asked.with_context(|| format!("cannot start {name}"))?.stdout;
        check_devices(program, &String::from_utf8_lossy(&devices))?;
        Ok(Self { program: program.to_owned(), leading_args: Vec::new() })
    }
}

/// Checks, based on the output of `-device help`, that a program is a QEMU binary that supports the devices that guests
/// need.
fn check_devices(program: &Path, devices: &str) -> Result<()> {
    const DEVICE: &str = "vfio-user-pci";
    let name = program.display();
    ensure!(devices.contains("name \""), "{name} is not QEMU: '-device help' lists no devices");
    ensure!(
        devices.contains(DEVICE),
        "{name} does not support the device {DEVICE}; use QEMU 11.0 or later, built with vfio-user support"
    );
    Ok(())
}

impl Artifacts {
    /// Finds all components in `cache` and fetches missing ones.
    ///
    /// # Errors
    /// Fails if a part cannot be fetched or if an override does not exist.
    pub fn obtain(cache: &Path, overrides: &Overrides) -> Result<Self> {
        let arch = overrides.arch.unwrap_or(Arch::HOST);
        // Check the user's files before downloading anything.
        let own = overrides.qemu.as_deref().map(QemuProgram::own).transpose()?;
        let kernel = Kernel::obtain(cache, arch, &overrides.kernel)?;
        let qemu = match own {
            Some(qemu) => qemu,
            None => fetched_qemu(cache, arch)?,
        };
        let busybox = kernel::busybox(cache, arch, &overrides.kernel)?;
        for file in [&qemu.program, &kernel.image, &busybox].into_iter().chain(&overrides.root) {
            ensure!(file.is_file(), "{} does not exist", file.display());
        }
        Ok(Self {
            qemu,
            kernel,
            busybox,
            cache: cache.to_owned(),
            root: overrides.root.clone(),
            added: overrides.added.clone(),
        })
    }

    /// Returns the names of busybox's applets, one per line.
    ///
    /// # Errors
    /// Fails if busybox cannot be started.
    pub fn busybox_applets(&self) -> Result<String> {
        // If the guests' busybox cannot run on this machine, use one for this machine from the same Debian release.
        let busybox = match self.kernel.arch {
            Arch::HOST => self.busybox.clone(),
            foreign => debian::tools(&self.cache, foreign)?.join("usr/bin/busybox"),
        };
        apt::run(Command::new(busybox).arg("--list"))
    }

    /// Returns the disks for a guest with a root file system. Creates the images that are not cached.
    ///
    /// # Errors
    /// Same as for [`Disks::obtain`].
    pub fn disks(&self) -> Result<Disks> {
        let disks = Disks::obtain(&self.cache, &self.kernel, &self.added)?;
        Ok(Disks { system: self.root.clone().unwrap_or(disks.system), ..disks })
    }

    /// Returns the disks for guests with DPDK.
    ///
    /// # Errors
    /// Same as for [`Disks::obtain`].
    pub fn dpdk_disks(&self) -> Result<Disks> {
        Disks::with_dpdk(&self.cache, &self.kernel)
    }

    /// Returns the disks for guests that run the kernel's network driver selftests.
    ///
    /// # Errors
    /// Same as for [`Disks::obtain`].
    pub fn self_test_disks(&self) -> Result<Disks> {
        Disks::with_self_test_programs(&self.cache, &self.kernel)
    }

    /// Returns a disk with the kernel's network driver selftests, at the same paths as in the Linux source tree.
    ///
    /// # Errors
    /// Fails if the guests' architecture is not this machine's, if the source or the compiler cannot be fetched, or if
    /// a program does not compile.
    pub fn self_tests(&self) -> Result<PathBuf> {
        self.require_host_arch("the kernel's self-tests")?;
        self_tests::image(&self.cache)
    }

    /// Returns a disk with Debian's DDP package for `ice`. The machine's Debian archive must include non-free firmware.
    ///
    /// # Errors
    /// Fails if the package cannot be fetched or if the image cannot be created.
    pub fn debian_ddp(&self) -> Result<PathBuf> {
        ddp::of_debian(&self.cache)
    }

    /// Returns the iPXE boot loader as an image that boots like a Linux kernel.
    ///
    /// # Errors
    /// Fails if the guests' architecture is not this machine's or if the boot loader cannot be fetched.
    pub fn ipxe(&self) -> Result<PathBuf> {
        self.require_host_arch("booting from the network")?;
        ipxe::image(&self.cache)
    }

    /// Returns the disks for guests with the newest rdma-core.
    ///
    /// # Errors
    /// Same as for [`Disks::obtain`].
    pub fn newest_rdma_core_disks(&self) -> Result<Disks> {
        Disks::with_newest_rdma_core(&self.cache, &self.kernel)
    }

    /// Returns a disk with rdma-core's own tests. The tests have the same version as rdma-core in the root file system.
    ///
    /// # Errors
    /// Fails if the tests cannot be fetched or if the image cannot be created.
    pub fn rdma_core_tests(&self, rdma_core: RdmaCore) -> Result<PathBuf> {
        rdma_core::tests(&self.cache, self.kernel.arch, rdma_core)
    }

    /// Returns a disk with NIXL, its bundled UCX, and numpy, laid out like a directory on Python's module search path.
    ///
    /// # Errors
    /// Fails if the guests' architecture is not this machine's, if the wheels cannot be fetched, or if the image cannot
    /// be created.
    pub fn nixl(&self) -> Result<PathBuf> {
        self.require_host_arch("NIXL")?;
        nixl::image(&self.cache)
    }

    /// Checks that the guests' architecture is this machine's.
    fn require_host_arch(&self, what: &str) -> Result<()> {
        let arch = self.kernel.arch;
        ensure!(arch == Arch::HOST, "guest-lab does not support {what} in {arch} guests on this machine");
        Ok(())
    }
}

/// Returns the cache directory: `$HCAD_LAB_CACHE` if set, or else `hcad-lab` in the user's cache directory.
///
/// # Errors
/// Fails if the environment specifies neither a cache directory nor a home directory.
pub fn cache_dir() -> Result<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    var("HCAD_LAB_CACHE")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("hcad-lab")))
        .or_else(|| Some(var("HOME")?.join(".cache/hcad-lab")))
        .context("no cache directory: set HCAD_LAB_CACHE, XDG_CACHE_HOME or HOME")
}

/// Returns the name of the cache entry for the lab's QEMU.
const fn qemu_entry(arch: Arch) -> &'static str {
    match arch {
        Arch::Amd64 => "qemu-1",
        Arch::Arm64 => "qemu-arm64-1",
    }
}

/// Versions of the guest parts in the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachedParts {
    /// Version of QEMU's Debian package.
    pub qemu: Option<String>,
    /// Release of the default kernel.
    pub kernel: Option<String>,
    /// Number of packages in the root file system.
    pub user_space: Option<usize>,
}

impl CachedParts {
    /// Reads the cache without fetching anything.
    pub fn read(cache: &Path, arch: Arch) -> Self {
        Self {
            qemu: packages::version(&cache.join(qemu_entry(arch)), arch.qemu().packages[0]).ok(),
            kernel: kernel::cached_release(cache, arch),
            user_space: packages::packages(&cache.join(debian::entry_name(arch))).ok().map(|all| all.len()),
        }
    }

    /// Returns whether guests can boot without downloads.
    pub const fn is_complete(&self) -> bool {
        self.qemu.is_some() && self.kernel.is_some() && self.user_space.is_some()
    }
}

/// Why no configured Debian archive can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoArchive {
    /// The named program cannot be started.
    Program(&'static str),
    /// No archive is configured, or none responds correctly. The text is a message from the lab or from apt.
    Answer(String),
}

/// Checks whether a configured Debian archive offers the packages that the lab fetches. Downloads a few kilobytes.
///
/// # Errors
/// Fails if no configured archive offers these packages.
pub fn probe_archive() -> Result<(), NoArchive> {
    if let Some(program) = apt::missing_tool() {
        return Err(NoArchive::Program(program));
    }
    let probe = || {
        let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
        apt::Apt::probe(folder.path(), Path::new("/etc/apt"))
    };
    probe().map_err(|error| NoArchive::Answer(format!("{error:#}")))
}

/// Builds the root file system with the given additional packages, unless it is already cached.
///
/// # Errors
/// Fails if packages cannot be fetched or the image cannot be created.
pub fn user_space(cache: &Path, arch: Arch, added: &Added) -> Result<()> {
    debian::with_added(cache, arch, added).map(drop)
}

/// Returns the lab's own QEMU, which is fetched if it is not cached.
///
/// # Errors
/// Fails if QEMU cannot be fetched.
pub fn fetched_qemu(cache: &Path, guest: Arch) -> Result<QemuProgram> {
    let QemuFiles { packages, program, firmware } = guest.qemu();
    let set = Set {
        name: "QEMU",
        install: packages,
        arch: Arch::HOST,
        release: Release::Stable(Suite::TrixieBackports),
        component: Component::Main,
        wanted: &|_| true,
    };
    let root = cache::entry(cache, qemu_entry(guest), |work| set.fetch(work).map(drop))?.join("root");
    let Unpacked { program, mut leading_args } = Unpacked::new(&root, program, None);
    for folder in firmware {
        leading_args.extend(["-L".into(), root.join(folder).display().to_string()]);
    }
    Ok(QemuProgram { program, leading_args })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_program_that_is_not_qemu() {
        let refusal = |program: &str| format!("{:#}", QemuProgram::own(Path::new(program)).unwrap_err());
        let refused = refusal("/bin/true");
        assert!(refused.starts_with("/bin/true is not QEMU"), "{refused}");
        assert!(refusal("/does/not/exist").starts_with("/does/not/exist does not exist"));
    }

    #[test]
    fn missing_kernel_is_reported_before_download() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, missing) = (folder.path().join("cache"), folder.path().join("missing"));
        let overrides = Overrides { kernel: KernelChoice::Path(missing.clone()), ..Overrides::default() };
        let error = format!("{:#}", Artifacts::obtain(&cache, &overrides).unwrap_err());
        assert!(error.starts_with(&format!("'{}' is neither", missing.display())), "{error}");
        assert!(!cache.exists());
    }

    #[test]
    fn rejects_qemu_without_vfio_user() {
        let qemu = Path::new("/usr/bin/qemu");
        check_devices(qemu, "name \"vfio-user-pci\", bus PCI\n").unwrap();
        let error = check_devices(qemu, "name \"virtio-net-pci\", bus PCI\n").unwrap_err();
        assert!(format!("{error:#}").contains("does not support the device vfio-user-pci"), "{error:#}");
    }
}
