//! Downloads Debian packages with apt. Each apt instance has private state, does not need root privileges, and leaves
//! the host unchanged.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::sources::Archive;
use crate::arch::Arch;
use crate::testbed::progress::Line;

/// Interval between progress updates during a download.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Options for apt-get in [`Apt::probe`].
const PROBE_OPTIONS: &[&str] = &[
    "-o",
    "Acquire::Retries=0",
    "-o",
    "Acquire::http::Timeout=10",
    "-o",
    "Acquire::https::Timeout=10",
    "-o",
    "Acquire::IndexTargets::deb::Packages::DefaultEnabled=false",
    "-o",
    "Acquire::IndexTargets::deb::Translations::DefaultEnabled=false",
    "-o",
    "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false",
];

/// A suite of the stable release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// The stable release, Debian 13.
    Trixie,
    /// Backports for Debian 13. Only this suite has a QEMU with a vfio-user client.
    TrixieBackports,
}

impl Suite {
    /// Returns Debian's name for the suite.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trixie => "trixie",
            Self::TrixieBackports => "trixie-backports",
        }
    }
}

/// The Debian release to take packages from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// The stable release and its backports. The given suite takes precedence if both have a package.
    Stable(Suite),
    /// The unstable release, which has the newest version of each package.
    Unstable,
}

impl Release {
    /// Returns the names of the suites, separated by spaces.
    const fn suites(self) -> &'static str {
        match self {
            Self::Stable(_) => "trixie trixie-backports",
            Self::Unstable => "sid",
        }
    }

    /// Returns the name of the suite that takes precedence.
    const fn preferred(self) -> &'static str {
        match self {
            Self::Stable(suite) => suite.name(),
            Self::Unstable => "sid",
        }
    }
}

/// A component of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Component {
    Main,
    /// The non-free firmware, which a mirror may lack.
    NonFreeFirmware,
}

impl Component {
    /// Returns Debian's name for the component.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::NonFreeFirmware => "non-free-firmware",
        }
    }
}

/// Which kind of package to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Packages to be unpacked and run.
    Binary,
    Source,
}

/// A package, in the version that apt selected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
}

/// An apt instance with its own lists, cache and configuration in one directory.
pub(super) struct Apt {
    config: PathBuf,
}

impl Apt {
    /// Reads the package lists from the first archive in this machine's configuration that has the release's suites.
    ///
    /// # Errors
    /// Fails if apt is missing or no configured archive responds.
    pub(super) fn open(
        dir: &Path,
        etc_apt: &Path,
        kind: Kind,
        component: Component,
        release: Release,
        arch: Arch,
    ) -> Result<Self> {
        if let Some(tool) = missing_tool() {
            bail!(
                "{tool} is not installed; the lab requires it to download and unpack Debian packages. Install the Debian packages apt and dpkg, or run 'guest-lab fetch' on another machine and copy its cache directory"
            );
        }
        Self::update(dir, etc_apt, kind, component, release, arch, &[])
    }

    /// Checks whether an archive in this machine's configuration has the stable release. Fetches only release files and
    /// waits only a few seconds for each file.
    ///
    /// # Errors
    /// Fails if no configured archive responds. The error contains apt's messages.
    pub(super) fn probe(dir: &Path, etc_apt: &Path) -> Result<()> {
        let release = Release::Stable(Suite::Trixie);
        Self::update(dir, etc_apt, Kind::Binary, Component::Main, release, Arch::HOST, PROBE_OPTIONS)
            .map(drop)
    }

    fn update(
        dir: &Path,
        etc_apt: &Path,
        kind: Kind,
        component: Component,
        release: Release,
        arch: Arch,
        options: &[&'static str],
    ) -> Result<Self> {
        let apt = Self { config: dir.join("apt.conf") };
        for folder in ["lists/partial", "archives/partial", "log"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        fs::write(dir.join("status"), "")?;
        fs::write(&apt.config, private_config(dir, arch))?;

        let suites = release.suites();
        let mut failures = Vec::new();
        for archive in Archive::of_machine(etc_apt)? {
            fs::write(dir.join("debian.sources"), archive.source_list(kind, suites, component, arch))?;
            match apt.get(options.iter().chain(&["-qq", "update"]), None) {
                Ok(_) => return Ok(apt),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        bail!(
            "no archive in {} has the suites '{suites}'; apt-get says:\n{}",
            etc_apt.display(),
            failures.join("\n")
        )
    }

    /// Returns the packages that apt would install for `names` on an empty system, without recommended packages.
    ///
    /// # Errors
    /// Fails if apt finds no solution.
    pub(super) fn resolve(&self, names: &[&str], release: Release) -> Result<Vec<Package>> {
        let fixed = ["-s", "-qq", "--no-install-recommends", "-t", release.preferred(), "install"];
        let plan = self.get(fixed.iter().chain(names), None)?;
        let packages: Vec<Package> = plan.lines().filter_map(parse_plan_line).collect();
        ensure!(!packages.is_empty(), "apt-get found no packages to install for {}", names.join(" "));
        Ok(packages)
    }

    /// Downloads packages to `into` and returns their total size in bytes. apt verifies the packages against the signed
    /// lists.
    ///
    /// # Errors
    /// Fails if a package cannot be downloaded.
    pub(super) fn download(&self, packages: &[Package], into: &Path, progress: &Line) -> Result<u64> {
        if packages.is_empty() {
            return Ok(0);
        }
        let wanted: Vec<String> = packages.iter().map(|p| format!("{}={}", p.name, p.version)).collect();
        let download = |options: &[&'static str]| {
            let words: Vec<&str> = options.iter().copied().chain(wanted.iter().map(String::as_str)).collect();
            self.get(words, Some(into))
        };
        let plan = download(&["-qq", "--print-uris", "download"])?;
        let all: u64 = plan.lines().filter_map(parse_uri_line).sum();
        let (done, end) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while end.recv_timeout(PROGRESS_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                    progress.bytes(size_of(into), all);
                }
            });
            let result = download(&["-qq", "download"]);
            drop(done);
            result.map(|_| all)
        })
    }

    /// Downloads the upstream files of a source package, without Debian's changes, to the empty directory `into`.
    ///
    /// # Errors
    /// Fails if the archive does not have this version.
    pub(super) fn download_upstream(&self, package: &Package, into: &Path) -> Result<PathBuf> {
        let wanted = format!("{}={}", package.name, package.version);
        self.get(["-qq", "source", "--download-only", "--tar-only", &wanted], Some(into))?;
        let mut files = fs::read_dir(into)?.filter_map(|entry| Some(entry.ok()?.path()));
        let is_upstream = |path: &PathBuf| path.to_string_lossy().contains(".orig.tar.");
        files.find(is_upstream).with_context(|| {
            format!("apt-get did not download an upstream archive for the source package {wanted}")
        })
    }

    fn get<I>(&self, args: I, folder: Option<&Path>) -> Result<String>
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        let mut command = Command::new("apt-get");
        command.arg("-c").arg(&self.config).args(args).env("LC_ALL", "C");
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        run(&mut command)
    }
}

/// Unpacks one downloaded package under `root`, without running its maintainer scripts.
///
/// # Errors
/// Fails if dpkg-deb rejects the package.
pub(super) fn unpack(package: &Path, root: &Path) -> Result<()> {
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(root)).map(drop)
}

/// Returns the first required program that cannot be started.
pub(super) fn missing_tool() -> Option<&'static str> {
    let starts = |tool: &&str| Command::new(tool).arg("--version").output().is_ok();
    ["apt-get", "dpkg-deb"].into_iter().find(|tool| !starts(tool))
}

/// Runs a program and returns its standard output.
///
/// # Errors
/// Fails if the program cannot be started or exits with an error. The message then includes its standard error.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let (status, errors) = (output.status, String::from_utf8_lossy(&output.stderr));
    ensure!(status.success(), "{command:?} failed with {status}:\n{errors}", errors = errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the configuration that apt reads after this machine's configuration, whose proxies and certificates stay in
/// effect.
///
/// Hooks, which would act on the host, are cleared. apt's sandbox is disabled, since it would make apt switch from root
/// to a user that cannot write to this directory. The instance writes nowhere else anyway.
fn private_config(dir: &Path, arch: Arch) -> String {
    let dir = dir.display();
    format!(
        r#"#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::DEP-11-icons;
#clear Acquire::IndexTargets::deb::DEP-11-icons-small;
#clear Acquire::IndexTargets::deb::DEP-11-icons-hidpi;
APT::Architecture "{arch}";
APT::Architectures {{ "{arch}"; }};
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::State "{dir}";
Dir::State::lists "{dir}/lists";
Dir::State::status "{dir}/status";
Dir::Cache "{dir}";
Dir::Cache::archives "{dir}/archives";
Dir::Log "{dir}/log";
Dir::Etc::sourcelist "{dir}/debian.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
"#
    )
}

/// Returns the total size of the files in a directory, in bytes.
fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

/// Returns the size from a line of the form `'URI' file size checksum`.
fn parse_uri_line(line: &str) -> Option<u64> {
    line.split_whitespace().nth(2)?.parse().ok()
}

/// Parses a line of the form `Inst name (version suite [architecture])`.
fn parse_plan_line(line: &str) -> Option<Package> {
    let mut words = line.strip_prefix("Inst ")?.split_whitespace();
    let name = words.next()?.to_owned();
    let version = words.find_map(|word| word.strip_prefix('('))?.to_owned();
    Some(Package { name, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_size_from_uri_line() {
        let line = "'http://x/pool/s/seabios_1.17_all.deb' seabios_1.17_all.deb 171234 SHA256:00ff";
        assert_eq!(parse_uri_line(line), Some(171_234));
        assert_eq!(parse_uri_line("E: no such package"), None);
    }

    #[test]
    fn inst_line_yields_package_and_version() {
        let line = "Inst seabios (1.17.0-1~bpo13+1 Debian Backports:stable-backports [all])";
        assert_eq!(
            parse_plan_line(line),
            Some(Package { name: "seabios".into(), version: "1.17.0-1~bpo13+1".into() })
        );
        assert_eq!(parse_plan_line("Conf seabios (1.17.0-1~bpo13+1 Debian [all])"), None);
    }
}
