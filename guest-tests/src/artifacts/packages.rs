//! Sets of Debian packages that are fetched together and unpacked into one directory. Maintainer scripts are not run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::apt::{Apt, Component, Kind, Package, Release, unpack};
use super::cache::Work;
use crate::arch::Arch;
use crate::testbed::progress::{Line, mebibytes};

pub(super) struct Set<'a> {
    /// Name of the set in progress lines.
    pub(super) name: &'a str,
    pub(super) install: &'a [&'a str],
    /// Architecture of the packages.
    pub(super) arch: Arch,
    /// Release that contains the packages.
    pub(super) release: Release,
    /// Component of the archive that contains the packages.
    pub(super) component: Component,
    /// Returns whether a package that apt selected is needed.
    pub(super) wanted: &'a dyn Fn(&Package) -> bool,
}

impl Set<'_> {
    /// Downloads the set, unpacks it below `root` in the cache entry, and writes a manifest next to `root`.
    ///
    /// # Errors
    /// Fails if apt is missing or finds no solution, or if a package cannot be fetched.
    pub(super) fn fetch(&self, work: &Work) -> Result<PathBuf> {
        let (state, debs, root) =
            (work.scratch.join("apt"), work.scratch.join("debs"), work.entry.join("root"));
        for folder in [&state, &debs, &root] {
            fs::create_dir_all(folder)?;
        }
        let progress = Line::begin(self.name);
        progress.step("reading the package lists");
        let apt =
            Apt::open(&state, Path::new("/etc/apt"), Kind::Binary, self.component, self.release, self.arch)?;
        let mut packages = apt.resolve(self.install, self.release)?;
        packages.retain(self.wanted);
        progress.step(format!("downloading {} packages", packages.len()));
        let bytes = apt.download(&packages, &debs, &progress)?;
        progress.step("unpacking");
        for deb in fs::read_dir(&debs)? {
            unpack(&deb?.path(), &root)?;
        }
        let manifest = serde_json::to_string_pretty(&Manifest::new(&packages))?;
        fs::write(work.entry.join(MANIFEST), manifest)?;
        progress.done(&format!("downloaded {} packages ({} MiB)", packages.len(), mebibytes(bytes)));
        Ok(root)
    }
}

/// Returns the version of a package in a cache entry.
///
/// # Errors
/// Fails if the entry was not built from packages or does not contain this package.
pub(super) fn version(entry: &Path, package: &str) -> Result<String> {
    let found = packages(entry)?.into_iter().find(|one| one.name == package);
    found
        .map(|one| one.version)
        .with_context(|| format!("the package manifest in {} does not list {package}", entry.display()))
}

/// Returns the packages that a cache entry was built from.
///
/// # Errors
/// Fails if the entry was not built from packages.
pub(super) fn packages(entry: &Path) -> Result<Vec<Package>> {
    let path = entry.join(MANIFEST);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let Manifest { packages } =
        serde_json::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))?;
    let package = |line: &String| {
        let (name, version) = line.split_once(' ')?;
        Some(Package { name: name.to_owned(), version: version.to_owned() })
    };
    Ok(packages.iter().filter_map(package).collect())
}

const MANIFEST: &str = "manifest.json";

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

/// A program in an unpacked root directory, built for this machine's architecture. Its Debian release may differ from
/// the host's, so it is started with the loader and libraries in that directory.
#[derive(Clone, Debug)]
pub(super) struct Unpacked {
    /// Path of the dynamic loader.
    pub(super) program: PathBuf,
    /// Arguments that come before the program's own.
    pub(super) leading_args: Vec<String>,
}

impl Unpacked {
    /// Describes the program at `path` below `root`. `name`, if given, replaces the program's `argv[0]`.
    pub(super) fn new(root: &Path, path: &str, name: Option<&str>) -> Self {
        let at = |path: &str| root.join(path).display().to_string();
        let libraries = format!("{}:{}", at(&format!("usr/lib/{}", Arch::HOST.libraries())), at("usr/lib"));
        let mut leading_args = vec!["--library-path".into(), libraries];
        leading_args.extend(name.into_iter().flat_map(|name| ["--argv0".into(), name.into()]));
        leading_args.push(at(path));
        Self { program: root.join(Arch::HOST.loader()), leading_args }
    }

    /// Returns the command that starts the program, without its own arguments.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.leading_args);
        command
    }
}
