//! What guests are made of, fetched once and kept: QEMU, a stock kernel with its modules, a static busybox, a Debian
//! user space.
//!
//! Each is one entry of the cache, made of Debian packages; a manifest names their versions.

mod apt;
mod cache;
mod debian;
mod kernel;
mod packages;
mod rdma_core;
mod sources;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

pub use self::apt::Suite;
pub use self::debian::Disks;
pub use self::kernel::{Kernel, KernelChoice};
use self::packages::{Set, Unpacked};

/// What the user brings instead of the lab's own.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// A QEMU program, run as it is.
    pub qemu: Option<PathBuf>,
    /// Another kernel.
    pub kernel: KernelChoice,
    /// An image with the user space of guests that have one, in a file system that stock kernels call ext4.
    pub root: Option<PathBuf>,
}

/// Everything a guest needs from outside the project.
#[derive(Clone, Debug)]
pub struct Artifacts {
    /// How to start QEMU.
    pub qemu: QemuProgram,
    /// Kernel image and modules.
    pub kernel: Kernel,
    /// A statically linked busybox.
    pub busybox: PathBuf,
    cache: PathBuf,
    root: Option<PathBuf>,
}

/// A program and the arguments that come before all others.
#[derive(Clone, Debug)]
pub struct QemuProgram {
    /// The program to execute.
    pub program: PathBuf,
    /// Its first arguments.
    pub leading_args: Vec<String>,
}

impl Artifacts {
    /// Finds everything in the cache below `cache`, or fetches what is missing.
    ///
    /// # Errors
    /// When something is missing and cannot be fetched, or an override does not exist.
    pub fn obtain(cache: &Path, overrides: &Overrides) -> Result<Self> {
        let qemu = match &overrides.qemu {
            Some(program) => QemuProgram { program: program.clone(), leading_args: Vec::new() },
            None => fetched_qemu(cache)?,
        };
        let kernel = Kernel::obtain(cache, &overrides.kernel)?;
        let busybox = kernel::busybox(cache, &overrides.kernel)?;
        for file in [&qemu.program, &kernel.image, &busybox].into_iter().chain(&overrides.root) {
            ensure!(file.is_file(), "{} does not exist", file.display());
        }
        Ok(Self { qemu, kernel, busybox, cache: cache.to_owned(), root: overrides.root.clone() })
    }

    /// The disks of a guest with a user space, made if they are not in the cache.
    ///
    /// # Errors
    /// As [`Disks::obtain`].
    pub fn disks(&self) -> Result<Disks> {
        let disks = Disks::obtain(&self.cache, &self.kernel)?;
        Ok(Disks { system: self.root.clone().unwrap_or(disks.system), ..disks })
    }

    /// A disk with rdma-core's own tests, in the version of the lab's user space.
    ///
    /// # Errors
    /// When they cannot be fetched or the image cannot be made.
    pub fn rdma_core_tests(&self) -> Result<PathBuf> {
        rdma_core::tests(&self.cache)
    }
}

/// The cache's folder: `$HCAD_LAB_CACHE`, else `hcad-lab` in the user's cache folder.
///
/// # Errors
/// When the environment names neither a cache nor a home.
pub fn cache_dir() -> Result<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    var("HCAD_LAB_CACHE")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("hcad-lab")))
        .or_else(|| Some(var("HOME")?.join(".cache/hcad-lab")))
        .context("set HCAD_LAB_CACHE to a folder: there is no HOME to put the cache in")
}

fn fetched_qemu(cache: &Path) -> Result<QemuProgram> {
    let set =
        Set { install: &["qemu-system-x86", "seabios"], suite: Suite::TrixieBackports, wanted: |_| true };
    let root = cache::entry(cache, "qemu-1", |work| set.fetch(work).map(drop))?.join("root");
    let Unpacked { program, mut leading_args } = Unpacked::new(&root, "usr/bin/qemu-system-x86_64", None);
    for firmware in ["usr/share/qemu", "usr/share/seabios"] {
        leading_args.extend(["-L".into(), root.join(firmware).display().to_string()]);
    }
    Ok(QemuProgram { program, leading_args })
}
