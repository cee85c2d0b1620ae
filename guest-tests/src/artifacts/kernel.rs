//! Kernels for guests: Debian's kernel from one of two suites, or a user-supplied kernel.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use super::apt::{Component, Release, Suite};
use super::cache;
use super::packages::Set;
use crate::arch::Arch;

/// Selects the guests' kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelChoice {
    /// Debian's stock kernel from a suite.
    Stock { suite: Suite, pages: Pages },
    /// A directory such as `/lib/modules/7.2.12` that contains the image as `vmlinuz`, or an image file whose modules
    /// are in `/lib/modules`.
    Path(PathBuf),
}

/// Page size of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB, the default for Debian's kernels.
    Usual,
    /// 16 KiB, as in Debian's arm64 kernels whose names end in `-16k`.
    Of16KiB,
}

impl Pages {
    /// Returns the suffix of Debian's package names. `--kernel` accepts the same suffix after the name of a suite.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Usual => "",
            Self::Of16KiB => "-16k",
        }
    }
}

impl Default for KernelChoice {
    fn default() -> Self {
        Self::Stock { suite: Suite::TrixieBackports, pages: Pages::Usual }
    }
}

impl fmt::Display for KernelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stock { suite, pages } => write!(f, "{}{}", suite.name(), pages.suffix()),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for KernelChoice {
    type Err = std::convert::Infallible;

    /// Parses the name of a suite, optionally with a page size. Any other text is a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, pages) = match text.strip_suffix(Pages::Of16KiB.suffix()) {
            Some(name) => (name, Pages::Of16KiB),
            None => (text, Pages::Usual),
        };
        let suite = [Suite::Trixie, Suite::TrixieBackports].into_iter().find(|suite| suite.name() == name);
        Ok(suite.map_or_else(|| Self::Path(text.into()), |suite| Self::Stock { suite, pages }))
    }
}

#[derive(Clone, Debug)]
pub struct Kernel {
    pub arch: Arch,
    pub image: PathBuf,
    /// Directory of the kernel's modules, such as `/lib/modules/<release>`.
    pub modules: PathBuf,
}

impl Kernel {
    /// Returns the chosen kernel. A Debian kernel is fetched if it is not cached.
    pub(super) fn obtain(cache: &Path, arch: Arch, choice: &KernelChoice) -> Result<Self> {
        let kernel = match choice {
            KernelChoice::Stock { suite, pages } => {
                Self::unpacked(arch, &stock_root(cache, arch, *suite, *pages)?)?
            }
            KernelChoice::Path(path) if path.is_file() => {
                ensure!(
                    arch == Arch::Amd64,
                    "{} is a file; for {arch} guests, pass a directory that contains the modules, and the image as 'vmlinuz'",
                    path.display()
                );
                Self::of_image(path, Path::new("/lib/modules"))?
            }
            KernelChoice::Path(folder) => {
                let modules = folder.canonicalize().with_context(|| {
                    let suites = [Suite::Trixie, Suite::TrixieBackports].map(|suite| suite.name()).join(", ");
                    format!(
                        "'{}' is neither a Debian kernel ({suites}) nor the path of a kernel",
                        folder.display()
                    )
                })?;
                Self { arch, image: modules.join("vmlinuz"), modules }
            }
        };
        ensure!(kernel.image.is_file(), "{} does not exist", kernel.image.display());
        Ok(kernel)
    }

    /// Returns the kernel in an image file such as a bzImage. Its modules are in a directory below `installed`.
    fn of_image(image: &Path, installed: &Path) -> Result<Self> {
        let release = release_in(&fs::read(image).with_context(|| image.display().to_string())?)
            .with_context(|| format!("{} is not an x86 kernel image", image.display()))?;
        let modules = installed.join(&release);
        if !modules.is_dir() {
            bail!(
                "{} is kernel {release}, whose modules are not in {}. Install them there, or pass a directory that contains the modules, and the image as 'vmlinuz'",
                image.display(),
                modules.display()
            );
        }
        Ok(Self { arch: Arch::Amd64, image: image.canonicalize()?, modules })
    }

    fn unpacked(arch: Arch, root: &Path) -> Result<Self> {
        let folder = root.join("usr/lib/modules");
        let modules = fs::read_dir(&folder)
            .with_context(|| format!("cannot read {}", folder.display()))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.join("kernel").is_dir())
            .with_context(|| format!("{} contains no kernel modules", folder.display()))?;
        // In backports, the image is next to the modules. In trixie, the image is in /boot.
        let beside = modules.join("vmlinuz");
        let image = if beside.is_file() {
            beside
        } else {
            root.join("boot").join(format!("vmlinuz-{}", release_of(&modules)))
        };
        Ok(Self { arch, image, modules })
    }

    /// Returns the kernel's configuration, which has lines such as `CONFIG_RDS=m`.
    ///
    /// # Errors
    /// Fails if the configuration file is missing.
    pub fn config(&self) -> Result<String> {
        let beside = self.modules.join("config");
        let of_boot = format!("config-{}", self.release());
        let in_boot = match self.image.parent() {
            Some(boot) if boot != self.modules => boot.join(of_boot),
            _ => Path::new("/boot").join(of_boot),
        };
        let file = if beside.is_file() { beside } else { in_boot };
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    /// Returns the release in the form that `uname -r` prints.
    pub fn release(&self) -> String {
        release_of(&self.modules)
    }
}

/// Returns the kernel release from the boot header of an image. The word at offset 20eh contains the release string's
/// offset relative to 200h.
///
/// # Spec
/// Linux, `Documentation/arch/x86/boot.rst`.
fn release_in(image: &[u8]) -> Option<String> {
    let pointer = image.get(0x20e..0x210)?;
    let text = image.get(0x200 + usize::from(u16::from_le_bytes(pointer.try_into().ok()?))..)?;
    let is_header = image.get(0x202..0x206)? == b"HdrS";
    let end = text.iter().position(|byte| matches!(byte, 0 | b' '))?;
    let release = std::str::from_utf8(&text[..end]).ok()?;
    // The release becomes a directory name, so it must not contain a slash.
    (is_header && !release.is_empty() && !release.contains('/')).then(|| release.to_owned())
}

fn release_of(modules: &Path) -> String {
    modules.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns a static busybox, which is fetched together with the chosen suite's stock kernel. For a user-supplied
/// kernel, the busybox of the default suite is returned.
pub(super) fn busybox(cache: &Path, arch: Arch, choice: &KernelChoice) -> Result<PathBuf> {
    let (suite, pages) = match choice {
        KernelChoice::Stock { suite, pages } => (*suite, *pages),
        KernelChoice::Path(_) => (Suite::TrixieBackports, Pages::Usual),
    };
    Ok(stock_root(cache, arch, suite, pages)?.join("usr/bin/busybox"))
}

/// Returns the unpacked kernel of a suite, with its modules and headers and a static busybox. The archive drops the
/// headers when a newer kernel is released, so they are fetched together with the kernel. The image package also
/// depends on packages that are only needed to build an initramfs. They are omitted, since the lab builds its own.
fn stock_root(cache: &Path, arch: Arch, suite: Suite, pages: Pages) -> Result<PathBuf> {
    ensure!(
        pages == Pages::Usual || arch == Arch::Arm64,
        "Debian has no {arch} kernel with 16 KiB pages; add --arch arm64"
    );
    // In trixie, the kernel is one package; in backports, it is split into several.
    const WANTED: [&str; 7] = [
        "linux-image-",
        "linux-binary-",
        "linux-modules-",
        "linux-base-",
        "linux-headers-",
        "linux-kbuild-",
        "busybox-static",
    ];
    let flavour = format!("{arch}{}", pages.suffix());
    let set = Set {
        name: &format!("kernel ({}, {flavour})", suite.name()),
        install: &[&format!("linux-image-{flavour}"), &format!("linux-headers-{flavour}"), "busybox-static"],
        arch,
        release: Release::Stable(suite),
        component: Component::Main,
        wanted: &|package| WANTED.iter().any(|beginning| package.name.starts_with(beginning)),
    };
    Ok(cache::entry(cache, &entry_name(arch, suite, pages), |work| set.fetch(work).map(drop))?.join("root"))
}

/// Returns the name of a kernel's cache entry. Names for x86-64 do not include the architecture.
fn entry_name(arch: Arch, suite: Suite, pages: Pages) -> String {
    match (arch, suite) {
        (Arch::Amd64, Suite::Trixie) => "linux-trixie-1".into(),
        (Arch::Amd64, Suite::TrixieBackports) => "linux-1".into(),
        (Arch::Arm64, suite) => format!("linux-{}-{arch}{}-1", suite.name(), pages.suffix()),
    }
}

/// Returns the release of the default kernel if the cache contains it.
pub(super) fn cached_release(cache: &Path, arch: Arch) -> Option<String> {
    let root = cache.join(entry_name(arch, Suite::TrixieBackports, Pages::Usual)).join("root");
    Kernel::unpacked(arch, &root).ok().map(|kernel| kernel.release())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_is_chosen_by_suite_or_path() {
        let choice = |text: &str| text.parse::<KernelChoice>().unwrap();
        let stock = |suite, pages| KernelChoice::Stock { suite, pages };
        assert_eq!(choice("trixie"), stock(Suite::Trixie, Pages::Usual));
        assert_eq!(choice("trixie-backports-16k"), stock(Suite::TrixieBackports, Pages::Of16KiB));
        assert_eq!(choice("trixie-backports-16k").to_string(), "trixie-backports-16k");
        assert_eq!(choice("trixie-backports"), KernelChoice::default());
        assert_eq!(choice("/lib/modules/7.2"), KernelChoice::Path("/lib/modules/7.2".into()));
    }

    #[test]
    fn unknown_kernel_error_lists_debian_kernels() {
        let choice = "6.12".parse().unwrap();
        let error =
            format!("{:#}", Kernel::obtain(Path::new("/nonexistent"), Arch::Amd64, &choice).unwrap_err());
        let expected =
            "'6.12' is neither a Debian kernel (trixie, trixie-backports) nor the path of a kernel: No such";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn kernel_image_selects_modules_by_release() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("bzImage");
        let mut bytes = vec![0; 0x400];
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&[0x40, 0x01]);
        bytes[0x340..0x358].copy_from_slice(b"6.12.9-own (me@host) #1\0");
        fs::write(&image, &bytes).unwrap();
        let missing = format!("{:#}", Kernel::of_image(&image, folder.path()).unwrap_err());
        assert!(missing.contains("is kernel 6.12.9-own, whose modules are not in"), "{missing}");
        fs::create_dir(folder.path().join("6.12.9-own")).unwrap();
        assert_eq!(Kernel::of_image(&image, folder.path()).unwrap().release(), "6.12.9-own");
        fs::write(&image, b"no image").unwrap();
        let wrong = format!("{:#}", Kernel::of_image(&image, folder.path()).unwrap_err());
        assert!(wrong.contains("is not an x86 kernel image"), "{wrong}");
    }

    #[test]
    fn kernel_image_is_found_in_both_suites() {
        let root = tempfile::tempdir().unwrap();
        let modules = root.path().join("usr/lib/modules/6.12.1-amd64");
        fs::create_dir_all(modules.join("kernel")).unwrap();
        let kernel = Kernel::unpacked(Arch::Amd64, root.path()).unwrap();
        assert_eq!(kernel.image, root.path().join("boot/vmlinuz-6.12.1-amd64"));
        assert_eq!(kernel.release(), "6.12.1-amd64");
        fs::write(modules.join("vmlinuz"), "").unwrap();
        assert_eq!(Kernel::unpacked(Arch::Amd64, root.path()).unwrap().image, modules.join("vmlinuz"));
    }
}
