//! Kernels of guests: Debian's of two suites, or the user's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, ensure};

use super::apt::{Component, Suite};
use super::cache;
use super::packages::Set;

/// Which kernel guests run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelChoice {
    /// Debian's stock kernel of this suite.
    Stock(Suite),
    /// A folder such as `/lib/modules/7.2.12`, with the image as `vmlinuz` inside.
    Folder(PathBuf),
}

impl Default for KernelChoice {
    fn default() -> Self {
        Self::Stock(Suite::TrixieBackports)
    }
}

impl FromStr for KernelChoice {
    type Err = std::convert::Infallible;

    /// The name of a suite, else a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let suite = [Suite::Trixie, Suite::TrixieBackports].into_iter().find(|suite| suite.name() == text);
        Ok(suite.map_or_else(|| Self::Folder(text.into()), Self::Stock))
    }
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its image.
    pub image: PathBuf,
    /// The folder of its modules, as `/lib/modules/<release>`.
    pub modules: PathBuf,
}

impl Kernel {
    /// The chosen kernel, fetched if it is one of Debian's and not in the cache.
    pub(super) fn obtain(cache: &Path, choice: &KernelChoice) -> Result<Self> {
        let kernel = match choice {
            KernelChoice::Stock(suite) => Self::unpacked(&stock_root(cache, *suite)?)?,
            KernelChoice::Folder(folder) => {
                let modules = folder.canonicalize().with_context(|| folder.display().to_string())?;
                Self { image: modules.join("vmlinuz"), modules }
            }
        };
        ensure!(kernel.image.is_file(), "{} does not exist", kernel.image.display());
        Ok(kernel)
    }

    fn unpacked(root: &Path) -> Result<Self> {
        let folder = root.join("usr/lib/modules");
        let modules = fs::read_dir(&folder)
            .with_context(|| format!("reading {}", folder.display()))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.join("kernel").is_dir())
            .with_context(|| format!("no kernel modules below {}", folder.display()))?;
        // Backports has the image beside the modules, trixie in /boot.
        let beside = modules.join("vmlinuz");
        let image = if beside.is_file() {
            beside
        } else {
            root.join("boot").join(format!("vmlinuz-{}", release_of(&modules)))
        };
        Ok(Self { image, modules })
    }

    /// What it was configured with: lines such as `CONFIG_RDS=m`.
    ///
    /// # Errors
    /// When the file that says so is not there.
    pub fn config(&self) -> Result<String> {
        let beside = self.modules.join("config");
        let of_boot = format!("config-{}", self.release());
        let in_boot = match self.image.parent() {
            Some(boot) if boot != self.modules => boot.join(of_boot),
            _ => Path::new("/boot").join(of_boot),
        };
        let file = if beside.is_file() { beside } else { in_boot };
        fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))
    }

    /// Its release, as `uname -r` prints it.
    pub fn release(&self) -> String {
        release_of(&self.modules)
    }
}

fn release_of(modules: &Path) -> String {
    modules.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A static busybox, which comes with the stock kernel of the suite chosen or, beside a user's own, of the default.
pub(super) fn busybox(cache: &Path, choice: &KernelChoice) -> Result<PathBuf> {
    let suite = match choice {
        KernelChoice::Stock(suite) => *suite,
        KernelChoice::Folder(_) => Suite::TrixieBackports,
    };
    Ok(stock_root(cache, suite)?.join("usr/bin/busybox"))
}

/// The unpacked kernel and modules of a suite, with its headers, which the archive has no more when a newer kernel has come,
/// and a static busybox. The image's own dependencies build an initramfs, which the lab does itself.
fn stock_root(cache: &Path, suite: Suite) -> Result<PathBuf> {
    // The trixie kernel is one package, that of backports is several.
    const WANTED: [&str; 7] = [
        "linux-image-",
        "linux-binary-",
        "linux-modules-",
        "linux-base-",
        "linux-headers-",
        "linux-kbuild-",
        "busybox-static",
    ];
    let name = match suite {
        Suite::Trixie => "linux-trixie-1",
        Suite::TrixieBackports => "linux-1",
    };
    let set = Set {
        install: &["linux-image-amd64", "linux-headers-amd64", "busybox-static"],
        suite,
        component: Component::Main,
        wanted: &|package| WANTED.iter().any(|beginning| package.name.starts_with(beginning)),
    };
    Ok(cache::entry(cache, name, |work| set.fetch(work).map(drop))?.join("root"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_chosen_by_the_name_of_a_suite_or_by_its_folder() {
        let choice = |text: &str| text.parse::<KernelChoice>().unwrap();
        assert_eq!(choice("trixie"), KernelChoice::Stock(Suite::Trixie));
        assert_eq!(choice("trixie-backports"), KernelChoice::default());
        assert_eq!(choice("/lib/modules/7.2"), KernelChoice::Folder("/lib/modules/7.2".into()));
    }

    #[test]
    fn the_image_is_found_where_either_suite_puts_it() {
        let root = tempfile::tempdir().unwrap();
        let modules = root.path().join("usr/lib/modules/6.12.1-amd64");
        fs::create_dir_all(modules.join("kernel")).unwrap();
        let kernel = Kernel::unpacked(root.path()).unwrap();
        assert_eq!(kernel.image, root.path().join("boot/vmlinuz-6.12.1-amd64"));
        assert_eq!(kernel.release(), "6.12.1-amd64");
        fs::write(modules.join("vmlinuz"), "").unwrap();
        assert_eq!(Kernel::unpacked(root.path()).unwrap().image, modules.join("vmlinuz"));
    }
}
