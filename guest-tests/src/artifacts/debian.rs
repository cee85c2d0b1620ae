//! Disks for guests with a Debian root file system: one with the system, and one with the kernel's modules.
//!
//! Both are ext4 images that any number of guests can share, since guests mount them read-only. The system consists of
//! unpacked packages whose maintainer scripts have not been run. It does not start services. It also provides mke2fs
//! and depmod, which create the images.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use agent::pattern::Digest;
use anyhow::{Context, Result, ensure};

use super::added::Added;
use super::apt::{Component, Release, Suite, run};
use super::cache::{self, Work};
use super::kernel::Kernel;
use super::packages::{self, Set, Unpacked};
use super::python;
use crate::arch::Arch;
use crate::testbed::progress::Line;

/// Packages to install: shells and tools, all RDMA packages, storage and MPI over RDMA, tools that inspect and measure
/// NICs, and the programs that create the images.
const INSTALL: &[&str] = &[
    "base-files",
    "base-passwd",
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "dnsmasq-base",
    "e2fsprogs",
    "ethtool",
    "findutils",
    "fio",
    "grep",
    "ibverbs-providers",
    "ibverbs-utils",
    "infiniband-diags",
    "iperf3",
    "iproute2",
    "iputils-ping",
    "kmod",
    "libfabric-bin",
    "mount",
    "netbase",
    "netcat-openbsd",
    "nfs-common",
    "nfs-kernel-server",
    "nvme-cli",
    "open-iscsi",
    "openmpi-bin",
    "opensm",
    "pciutils",
    "perftest",
    "procps",
    "python3-mpi4py",
    "python3-pyverbs",
    "python3-scapy",
    "qperf",
    "rdma-core",
    "rdmacm-utils",
    "sed",
    "ucx-utils",
    "util-linux",
];

/// Packages to install for rdma-core's tests.
const INSTALL_FOR_TESTS: &[&str] = &[
    "base-files",
    "base-passwd",
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "findutils",
    "grep",
    "ibverbs-providers",
    "ibverbs-utils",
    "infiniband-diags",
    "iproute2",
    "iputils-ping",
    "kmod",
    "mount",
    "netbase",
    "procps",
    "python3-pyverbs",
    "python3-scapy",
    "rdma-core",
    "rdmacm-utils",
    "sed",
    "util-linux",
];

/// Dependencies that guests do not need: packages that start, install or configure a system, GPU support, and
/// dependencies of unused tools.
const WITHOUT: &[&str] = &[
    "adduser",
    "debconf",
    "dpkg",
    "gawk",
    "init-system-helpers",
    "libamd-comgr2",
    "libamdhip64-5",
    "libcbor0.10",
    "libdb5.3t64",
    "libdrm-amdgpu1",
    "libdrm-common",
    "libdrm2",
    "libedit2",
    "libfido2-1",
    "libfuse3-4",
    "libhsa-runtime64-1",
    "libhsakmt1",
    "libhwloc-plugins",
    "liblastlog2-2",
    "libllvm17t64",
    "libpam-modules",
    "libpam-modules-bin",
    "libpam-runtime",
    "libpciaccess0",
    "libperl5.40",
    "libsemanage-common",
    "libsemanage2",
    "libsepol2",
    "libsystemd-shared",
    "libx11-6",
    "libx11-data",
    "libxau6",
    "libxcb1",
    "libxdmcp6",
    "libxext6",
    "libxnvctrl0",
    "libz3-4",
    "libze1",
    "login.defs",
    "ocl-icd-libopencl1",
    "openssh-client",
    "passwd",
    "pci.ids",
    "perl",
    "perl-modules-5.40",
    "systemd",
    "tar",
    "tzdata",
    "udev",
];

/// Directories that no program needs at run time. [`pruned`] adds one whose path depends on the architecture.
const PRUNED: &[&str] = &[
    "usr/share/bash-completion",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
];

/// Kernel modules for hardware that guests do not have. They account for a third of the total size.
const NO_HARDWARE: &[&str] = &["sound", "drivers/gpu", "drivers/media", "drivers/net/wireless"];

/// The images of a guest with a Debian root file system.
#[derive(Clone, Debug)]
pub struct Disks {
    /// Image of the system, without kernel modules.
    pub system: PathBuf,
    /// Image with the content of `/lib/modules/<release>`, including `modules.dep`.
    pub modules: PathBuf,
}

impl Disks {
    /// Returns the disks for guests with `kernel` and the added packages. Creates the images that are not cached.
    ///
    /// # Errors
    /// Fails if packages cannot be fetched or an image cannot be created.
    pub fn obtain(cache: &Path, kernel: &Kernel, added: &Added) -> Result<Self> {
        Self::of(cache, kernel, &with_added(cache, kernel.arch, added)?)
    }

    /// Returns the disks with DPDK added.
    ///
    /// # Errors
    /// Same as for [`Disks::obtain`].
    pub fn with_dpdk(cache: &Path, kernel: &Kernel) -> Result<Self> {
        Self::of(cache, kernel, &with_dpdk(cache, kernel.arch)?)
    }

    /// Returns the disks with the programs that the kernel's network driver selftests need.
    ///
    /// # Errors
    /// Same as for [`Disks::obtain`].
    pub fn with_self_test_programs(cache: &Path, kernel: &Kernel) -> Result<Self> {
        Self::of(cache, kernel, &with_self_test_programs(cache, kernel.arch)?)
    }

    /// Returns the disks with the newest rdma-core instead of the one in the stable release.
    ///
    /// # Errors
    /// Same as for [`Disks::obtain`].
    pub fn with_newest_rdma_core(cache: &Path, kernel: &Kernel) -> Result<Self> {
        Self::of(cache, kernel, &newest(cache, kernel.arch)?)
    }

    fn of(cache: &Path, kernel: &Kernel, system: &Path) -> Result<Self> {
        let tools = tools(cache, kernel.arch)?;
        Ok(Self { system: system.join(IMAGE), modules: modules(cache, &tools, kernel)? })
    }
}

pub(super) const IMAGE: &str = "image.ext4";

/// Returns the system's cache entry, which contains the unpacked system in `root` and its image.
pub(super) fn debian(cache: &Path, arch: Arch) -> Result<PathBuf> {
    // Fetch the tools first, because the cache is locked while an entry is created.
    let foreign_tools = if arch == Arch::HOST { None } else { Some(tools(cache, arch)?) };
    cache::entry(cache, &entry_name(arch), |work| {
        let set = Set {
            name: "root filesystem",
            install: INSTALL,
            arch,
            release: Release::Stable(Suite::Trixie),
            component: Component::Main,
            wanted: &|package| !WITHOUT.contains(&package.name.as_str()),
        };
        let root = set.fetch(work)?;
        finish(arch, foreign_tools.as_deref().unwrap_or(&root), &root, &work.entry.join(IMAGE))
    })
}

/// Returns a directory with the programs that create guest images on this machine: mke2fs, depmod, Python and busybox.
/// If guests have this machine's architecture, this directory is the guests' own system.
pub(super) fn tools(cache: &Path, guest: Arch) -> Result<PathBuf> {
    if guest == Arch::HOST {
        return Ok(debian(cache, guest)?.join("root"));
    }
    let entry = cache::entry(cache, "image-tools-1", |work| {
        let set = Set {
            name: "image tools",
            install: &["busybox-static", "e2fsprogs", "kmod", "python3"],
            arch: Arch::HOST,
            release: Release::Stable(Suite::Trixie),
            component: Component::Main,
            wanted: &|package| !WITHOUT.contains(&package.name.as_str()),
        };
        set.fetch(work).map(drop)
    })?;
    Ok(entry.join("root"))
}

/// Returns the directory that contains the Python interpreter for compiling the Python modules of the system in `root`.
/// If guests have this machine's architecture, `root` itself contains an interpreter that runs here.
pub(super) fn with_python<'a>(arch: Arch, tools: &'a Path, root: &'a Path) -> &'a Path {
    if arch == Arch::HOST { root } else { tools }
}

/// Returns the cache entry for a system of the unstable release, which has the newest rdma-core. The newest rdma-core
/// needs libraries that the stable release lacks, so it cannot be installed in the stable system.
pub(super) fn newest(cache: &Path, arch: Arch) -> Result<PathBuf> {
    let tools = tools(cache, arch)?;
    let digest = digest(INSTALL_FOR_TESTS.iter().chain(WITHOUT).copied());
    let name = of_arch("debian-unstable-1", arch, digest);
    cache::entry(cache, &name, |work| {
        let set = Set {
            name: "root filesystem (unstable)",
            install: INSTALL_FOR_TESTS,
            arch,
            release: Release::Unstable,
            component: Component::Main,
            wanted: &|package| !WITHOUT.contains(&package.name.as_str()),
        };
        let root = set.fetch(work)?;
        finish(arch, &tools, &root, &work.entry.join(IMAGE))
    })
}

/// Returns the name of the cache entry, which depends on the list of packages.
pub(super) fn entry_name(arch: Arch) -> String {
    let pruned = pruned(arch);
    let words = INSTALL.iter().chain(WITHOUT).copied().chain(pruned.iter().map(String::as_str));
    of_arch("debian-5", arch, digest(words))
}

/// Returns the name of a cache entry for one architecture. Names for x86-64 do not include the architecture.
fn of_arch(name: &str, arch: Arch, digest: u64) -> String {
    match arch {
        Arch::Amd64 => format!("{name}-{digest:016x}"),
        Arch::Arm64 => format!("{name}-{arch}-{digest:016x}"),
    }
}

/// Returns the directories that no program needs at run time.
fn pruned(arch: Arch) -> Vec<String> {
    let conversions = format!("usr/lib/{}/gconv", arch.libraries());
    std::iter::once(conversions).chain(PRUNED.iter().map(|&folder| folder.to_owned())).collect()
}

/// Creates an image from the unpacked packages in `root`, using the programs in `tools`.
fn finish(arch: Arch, tools: &Path, root: &Path, image: &Path) -> Result<()> {
    let progress = Line::begin("root filesystem");
    configure(arch, root)?;
    progress.step("compiling Python modules");
    python::compile_system(with_python(arch, tools, root), root)?;
    progress.step("creating the disk image");
    make_image(tools, root, image)?;
    progress.done("created the disk image");
    Ok(())
}

/// Returns the cache entry for the system with the user's added packages and all their dependencies.
pub(super) fn with_added(cache: &Path, arch: Arch, added: &Added) -> Result<PathBuf> {
    let names: Vec<&str> = added.names().collect();
    if names.is_empty() { debian(cache, arch) } else { with(cache, arch, &names, &[], &|_| true) }
}

/// Returns the cache entry for the system with the programs that the kernel's network driver selftests need.
///
/// The tests of recent kernels need an `ethtool` that can print channels as JSON and hash IPv6 flow labels. The version
/// in the stable release can do neither.
pub(super) fn with_self_test_programs(cache: &Path, arch: Arch) -> Result<PathBuf> {
    const PACKAGES: &[&str] = &["bpftool", "python3-jsonschema", "python3-yaml", "socat", "tcpdump"];
    with(cache, arch, PACKAGES, &["ethtool"], &|name| !WITHOUT.contains(&name))
}

/// Returns the cache entry for the system with DPDK's `testpmd` and its drivers. Debian ships `testpmd` in the
/// development package `dpdk-dev`. The development packages it depends on are omitted.
pub(super) fn with_dpdk(cache: &Path, arch: Arch) -> Result<PathBuf> {
    const PACKAGE: &str = "dpdk-dev";
    let runs = |name: &str| name == PACKAGE || !name.ends_with("-dev") && !WITHOUT.contains(&name);
    with(cache, arch, &[PACKAGE], &[], &runs)
}

/// Returns the cache entry for the system with the packages listed in `names`, the dependencies that `wanted` accepts,
/// and the packages listed in `unstable`. The latter come from the unstable release, without dependencies.
fn with(
    cache: &Path,
    arch: Arch,
    names: &[&str],
    unstable: &[&str],
    wanted: &dyn Fn(&str) -> bool,
) -> Result<PathBuf> {
    let (system, tools) = (debian(cache, arch)?, tools(cache, arch)?);
    let base = system.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let parts = names.iter().chain(unstable).copied().chain([base]);
    let name = format!("debian-added-1-{:016x}", digest(parts));
    let present = packages::packages(&system)?;
    cache::entry(cache, &name, |work| {
        let mut copy = Command::new("cp");
        copy.args(["-a", "--reflink=auto"]).arg(system.join("root")).arg(&work.entry);
        run(&mut copy).context("cannot copy the root filesystem")?;
        if !unstable.is_empty() {
            let set = Set {
                name: "root filesystem (unstable)",
                install: unstable,
                arch,
                release: Release::Unstable,
                component: Component::Main,
                wanted: &|package| unstable.contains(&package.name.as_str()),
            };
            // apt's state is specific to one release, so use a separate directory.
            let scratch = work.scratch.join("unstable");
            set.fetch(&Work { entry: work.entry.clone(), scratch })?;
        }
        let set = Set {
            name: "root filesystem",
            install: names,
            arch,
            release: Release::Stable(Suite::Trixie),
            component: Component::Main,
            wanted: &|package| !present.contains(package) && wanted(&package.name),
        };
        let root = set.fetch(work)?;
        finish(arch, &tools, &root, &work.entry.join(IMAGE))
    })
}

fn digest<'a>(words: impl Iterator<Item = &'a str>) -> u64 {
    let mut digest = Digest::default();
    for word in words {
        digest.update(word.as_bytes());
        digest.update(b" ");
    }
    digest.finish()
}

/// Removes unneeded directories, and performs the maintainer-script steps that guests depend on.
fn configure(arch: Arch, root: &Path) -> Result<()> {
    for folder in &pruned(arch) {
        let path = root.join(folder);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {folder}"))?;
        }
    }
    for (from, to) in [
        ("usr/share/base-passwd/passwd.master", "etc/passwd"),
        ("usr/share/base-passwd/group.master", "etc/group"),
    ] {
        fs::copy(root.join(from), root.join(to)).with_context(|| format!("cannot copy {from}"))?;
    }
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n::1 localhost\n")?;
    // For interactive use, let busybox provide programs that users expect in a shell.
    for applet in ["awk", "less", "vi"] {
        let link = root.join("usr/bin").join(applet);
        if !link.exists() {
            symlink("busybox", link)
                .with_context(|| format!("cannot create a symbolic link for {applet}"))?;
        }
    }
    Ok(())
}

/// Returns the image of a kernel's modules. The cache entry depends on the kernel image, so a rebuilt kernel gets a new
/// entry.
fn modules(cache: &Path, tools: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let stat = fs::metadata(&kernel.image).with_context(|| kernel.image.display().to_string())?;
    let mut digest = Digest::default();
    digest.update(kernel.modules.as_os_str().as_encoded_bytes());
    digest.update(format!("{} {} {}", stat.len(), stat.mtime(), stat.mtime_nsec()).as_bytes());
    let release = kernel.release();
    let name = format!("modules-1-{release}-{:016x}", digest.finish());
    let entry = cache::entry(cache, &name, |work| {
        let progress = Line::begin("kernel");
        progress.step(format!("creating the module disk image for kernel {release}"));
        let folder = work.scratch.join("lib/modules").join(&release);
        mirror(&kernel.modules, &folder)?;
        let depmod = Unpacked::new(tools, "usr/bin/kmod", Some("depmod"));
        run(depmod.command().arg("-b").arg(&work.scratch).arg(&release)).context("cannot run depmod")?;
        make_image(tools, &folder, &work.entry.join(IMAGE))?;
        progress.done(&format!("created the module disk image for kernel {release}"));
        Ok(())
    })?;
    Ok(entry.join(IMAGE))
}

/// Mirrors a module directory with hard links, but omits symbolic links and the modules in [`NO_HARDWARE`].
fn mirror(from: &Path, to: &Path) -> Result<()> {
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        fs::create_dir_all(to.join(&folder))?;
        let source = from.join(&folder);
        for entry in fs::read_dir(&source).with_context(|| format!("cannot read {}", source.display()))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() && !NO_HARDWARE.iter().any(|no| path == Path::new("kernel").join(no)) {
                folders.push(path);
            } else if kind.is_file() && path != Path::new("vmlinuz") {
                let target = to.join(&path);
                // If the cache and a user-supplied kernel are on different file systems, the kernel's files are copied.
                fs::hard_link(entry.path(), &target)
                    .or_else(|_| fs::copy(entry.path(), &target).map(drop))
                    .with_context(|| format!("cannot copy {}", entry.path().display()))?;
            }
        }
    }
    Ok(())
}

/// Creates an ext4 image with the content of `tree`. It has no journal and is never mounted read-write.
pub(super) fn make_image(tools: &Path, tree: &Path, image: &Path) -> Result<()> {
    const BLOCK: u64 = 4096;
    let (mut bytes, mut files) = (0, 0);
    let mut folders = vec![tree.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            let stat = entry.metadata()?;
            bytes += stat.len().next_multiple_of(BLOCK).max(BLOCK);
            files += 1;
            if stat.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    // An inode takes 256 bytes. The additional blocks are for bitmaps, descriptors and indexed directories.
    let blocks = (bytes + (files + 64) * 256) / BLOCK * 103 / 100 + 1024;
    let mke2fs = Unpacked::new(tools, "usr/sbin/mke2fs", None);
    let mut command = mke2fs.command();
    command.args(["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0"]);
    command.args(["-b", &BLOCK.to_string(), "-N", &(files + 64).to_string(), "-d"]);
    command.arg(tree).arg(image).arg(blocks.to_string());
    // Use the package's configuration, since the host's own could select other features.
    command.env("MKE2FS_CONFIG", tools.join("etc/mke2fs.conf"));
    run(&mut command).with_context(|| format!("cannot create the image {}", image.display()))?;
    ensure!(image.is_file(), "mke2fs succeeded but did not create {}", image.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_mirror_omits_unneeded_files() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for file in ["modules.order", "vmlinuz", "kernel/net/a.ko.xz", "kernel/sound/b.ko.xz"] {
            let path = from.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        symlink("/usr/src", from.path().join("build")).unwrap();
        mirror(from.path(), to.path()).unwrap();
        let exists = |file: &str| to.path().join(file).exists();
        assert!(exists("modules.order") && exists("kernel/net/a.ko.xz"));
        assert!(!exists("vmlinuz") && !exists("kernel/sound") && !exists("build"));
    }
}
