//! Linux driver sources for the guests' kernel. Debian ships all Linux sources in one archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::apt::{Component, Package, Release, Suite, run};
use super::cache::{self, Work};
use super::kernel::{Kernel, KernelChoice};
use super::packages::Set;
use crate::arch::Arch;

/// Returns a directory from the Linux sources, such as `drivers/infiniband/hw/mthca`. The directory belongs to the
/// cache and must not be changed.
///
/// # Errors
/// Fails if the source cannot be fetched or if the kernel is not Debian's.
pub fn folder_of_linux(cache: &Path, choice: &KernelChoice, folder: &str) -> Result<PathBuf> {
    let source = Source::of(cache, choice)?;
    let name = folder.rsplit('/').next().unwrap_or(folder);
    let entry = cache::entry(cache, &format!("{}-{name}-1", source.package), |work| {
        let parents = folder.matches('/').count();
        source.unpack(cache, work, &work.entry, &[folder], parents)
    })?;
    Ok(entry.join(name))
}

/// A kernel's source package.
pub(super) struct Source {
    pub(super) package: String,
    pub(super) suite: Suite,
    /// Kernel release, as printed by `uname -r`.
    release: String,
}

impl Source {
    /// Finds a kernel's source package.
    ///
    /// # Errors
    /// Fails if the kernel is not Debian's or cannot be fetched.
    pub(super) fn of(cache: &Path, choice: &KernelChoice) -> Result<Self> {
        let KernelChoice::Stock { suite, .. } = choice else {
            bail!(
                "the source is only available for Debian kernels; use --kernel trixie or --kernel trixie-backports"
            )
        };
        let release = Kernel::obtain(cache, Arch::HOST, choice)?.release();
        let version = version(&release).with_context(|| {
            format!("kernel release '{release}' does not start with a version such as 6.12")
        })?;
        Ok(Self { package: format!("linux-source-{version}"), suite: *suite, release })
    }

    /// Unpacks the source directories `folders` into `to`, stripping the first `parents` components from their paths.
    ///
    /// # Errors
    /// Fails if the package cannot be fetched or lacks a directory.
    pub(super) fn unpack(
        &self,
        cache: &Path,
        work: &Work,
        to: &Path,
        folders: &[&str],
        parents: usize,
    ) -> Result<()> {
        let Self { package, suite, release } = self;
        let is_wanted = |found: &Package| found.name == *package;
        let set = Set {
            name: "Linux source",
            install: &[package],
            arch: Arch::HOST,
            release: Release::Stable(*suite),
            component: Component::Main,
            wanted: &is_wanted,
        };
        let fetched = set.fetch(work).with_context(|| {
            format!(
                "cannot download the source of kernel {release}. If the archive only has a newer kernel, remove '{}/linux-*'; the lab then downloads that kernel and its source",
                cache.display()
            )
        })?;
        let sources = fetched.join("usr/src");
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(sources.join(format!("{package}.tar.xz"))).arg("-C").arg(to);
        tar.arg(format!("--strip-components={}", 1 + parents));
        run(tar.args(folders.iter().map(|folder| format!("{package}/{folder}"))))
            .with_context(|| format!("cannot unpack {folders:?} from the kernel source"))?;
        fs::remove_dir_all(&sources).with_context(|| format!("cannot remove {}", sources.display()))
    }
}

/// Returns the version that a kernel release's source package has in its name, such as `7.3` for release
/// `7.3.4+deb13-amd64`.
fn version(release: &str) -> Option<String> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some([numbers.next()?, numbers.next()?].join(".")).filter(|version| version.len() > 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_version_consists_of_major_and_minor() {
        assert_eq!(version("7.3.4+deb13-amd64").unwrap(), "7.3");
        assert_eq!(version("6.12.117+deb13-amd64").unwrap(), "6.12");
        assert_eq!(version("custom"), None);
    }
}
