//! What guests are made of, fetched once and kept: QEMU, a stock kernel with its modules, a static busybox.
//!
//! Each set of packages is one entry of the cache, unpacked below `root`, with a manifest of the versions. An entry
//! appears whole by a rename or not at all, so runs may race and be interrupted.

mod apt;
mod sources;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use self::apt::{Apt, Package};

/// What the user brings instead of the lab's own.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// A QEMU program, run as it is.
    pub qemu: Option<PathBuf>,
    /// A folder such as `/lib/modules/7.2.12`, with the image as `vmlinuz` inside.
    pub kernel: Option<PathBuf>,
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
}

/// A program and the arguments that come before all others.
#[derive(Clone, Debug)]
pub struct QemuProgram {
    /// The program to execute.
    pub program: PathBuf,
    /// Its first arguments.
    pub leading_args: Vec<String>,
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its image.
    pub image: PathBuf,
    /// The folder of its modules, as `/lib/modules/<release>`.
    pub modules: PathBuf,
}

impl Artifacts {
    /// Finds everything in the cache below `cache`, or fetches what is missing.
    ///
    /// # Errors
    /// When something is missing and cannot be fetched, or an override does not exist.
    pub fn obtain(cache: &Path, overrides: &Overrides) -> Result<Self> {
        let linux = Set::LINUX.entry(cache)?;
        let qemu = match &overrides.qemu {
            Some(program) => QemuProgram { program: program.clone(), leading_args: Vec::new() },
            None => unpacked_qemu(&Set::QEMU.entry(cache)?),
        };
        let kernel = match &overrides.kernel {
            Some(modules) => Kernel { image: modules.join("vmlinuz"), modules: modules.clone() },
            None => unpacked_kernel(&linux)?,
        };
        let busybox = linux.join("usr/bin/busybox");
        for file in [&qemu.program, &kernel.image, &busybox] {
            ensure!(file.is_file(), "{} does not exist", file.display());
        }
        Ok(Self { qemu, kernel, busybox })
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

/// Beginning of the name of a folder in the cache that holds what is being fetched.
const WORK: &str = "work-";

/// A set of packages that are fetched and unpacked together.
struct Set {
    /// Name of the cache entry; the number changes with the recipe.
    name: &'static str,
    /// What apt is asked to install.
    install: &'static [&'static str],
    /// Beginnings of the names that are kept of apt's answer; everything when empty.
    keep: &'static [&'static str],
}

impl Set {
    const QEMU: Self = Self { name: "qemu-1", install: &["qemu-system-x86", "seabios"], keep: &[] };
    /// The image's own dependencies build an initramfs, which the lab does itself.
    const LINUX: Self = Self {
        name: "linux-1",
        install: &["linux-image-amd64", "busybox-static"],
        keep: &["linux-binary-", "linux-modules-", "linux-base-", "busybox-static"],
    };

    /// The root of the unpacked set, fetched if it is not there.
    fn entry(&self, cache: &Path) -> Result<PathBuf> {
        let entry = cache.join(self.name);
        let manifest = entry.join("manifest.json");
        if !manifest.exists() {
            fs::create_dir_all(cache).with_context(|| format!("creating {}", cache.display()))?;
            let lock = File::create(cache.join("lock")).context("creating the cache's lock")?;
            lock.lock().context("locking the cache")?;
            if !manifest.exists() {
                self.fetch(cache, &entry)
                    .with_context(|| format!("fetching {} into the cache", self.name))?;
            }
        }
        Ok(entry.join("root"))
    }

    /// Fills the entry. The caller holds the cache's lock.
    fn fetch(&self, cache: &Path, entry: &Path) -> Result<()> {
        let begun = Instant::now();
        // Absolute, since apt runs in another folder. Our own, since an apt that has lost its parent may still write
        // to that of an interrupted run.
        let cache = cache.canonicalize()?;
        let work = cache.join(format!("{WORK}{}", std::process::id()));
        for leftover in fs::read_dir(&cache)?.flatten() {
            if leftover.file_name().to_string_lossy().starts_with(WORK) {
                // If it cannot be removed now, the next run does.
                let _ = fs::remove_dir_all(leftover.path());
            }
        }
        remove_dir(entry)?;
        let (state, debs, root) = (work.join("apt"), work.join("debs"), work.join("entry/root"));
        for folder in [&state, &debs, &root] {
            fs::create_dir_all(folder)?;
        }
        tracing::info!("fetching {} (Debian packages, once)", self.install.join(" and "));
        let apt = Apt::open(&state, Path::new("/etc/apt"))?;
        let mut packages = apt.resolve(self.install)?;
        packages.retain(|p| self.keep.is_empty() || self.keep.iter().any(|k| p.name.starts_with(k)));
        apt.download(&packages, &debs)?;
        for deb in fs::read_dir(&debs)? {
            apt::unpack(&deb?.path(), &root)?;
        }
        let manifest = Manifest::new(&packages);
        fs::write(work.join("entry/manifest.json"), serde_json::to_string_pretty(&manifest)?)?;
        fs::rename(work.join("entry"), entry)?;
        remove_dir(&work)?;
        tracing::info!("fetched {} packages in {:.0} s", packages.len(), begun.elapsed().as_secs_f64());
        Ok(())
    }
}

/// What an entry was made of.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    packages: Vec<String>,
}

impl Manifest {
    fn new(packages: &[Package]) -> Self {
        let mut packages: Vec<String> =
            packages.iter().map(|p| format!("{} {}", p.name, p.version)).collect();
        packages.sort();
        Self { packages }
    }
}

/// QEMU and its libraries belong to another release than the host's: its own loader finds them.
fn unpacked_qemu(root: &Path) -> QemuProgram {
    let at = |path: &str| root.join(path).display().to_string();
    QemuProgram {
        program: root.join("usr/lib64/ld-linux-x86-64.so.2"),
        leading_args: vec![
            "--library-path".into(),
            format!("{}:{}", at("usr/lib/x86_64-linux-gnu"), at("usr/lib")),
            at("usr/bin/qemu-system-x86_64"),
            "-L".into(),
            at("usr/share/qemu"),
            "-L".into(),
            at("usr/share/seabios"),
        ],
    }
}

fn unpacked_kernel(root: &Path) -> Result<Kernel> {
    let folder = root.join("usr/lib/modules");
    let modules = fs::read_dir(&folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.join("vmlinuz").is_file())
        .with_context(|| format!("no kernel image below {}", folder.display()))?;
    Ok(Kernel { image: modules.join("vmlinuz"), modules })
}

fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}
