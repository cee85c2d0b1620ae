//! Collects the machine state that the checks evaluate.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::arch::Arch;
use crate::artifacts::{CachedParts, NoArchive, cache_dir, probe_archive};
use crate::kvm;
use crate::programs;
use crate::testbed::state_dir;

#[derive(Clone, Debug)]
pub(super) struct Findings {
    /// CPU architecture, as named by Rust.
    pub(super) arch: String,
    /// Release of the host kernel.
    pub(super) kernel: String,
    pub(super) kvm: Kvm,
    pub(super) cache: Result<Cache, String>,
    /// Result of contacting the Debian archive, or `None` if it was not contacted.
    pub(super) archive: Option<Result<(), NoArchive>>,
    /// Available memory in bytes.
    pub(super) memory: Option<u64>,
    /// Directory for the sockets of running guests.
    pub(super) runtime: Result<PathBuf, String>,
    /// `Ok` if file systems can be mounted in a user namespace, otherwise the error.
    pub(super) user_namespaces: Result<(), String>,
    /// `Ok` if a network namespace and tap interfaces can be created, otherwise the error.
    pub(super) network_namespaces: Result<(), String>,
    /// First line of `rustc --version`.
    pub(super) rustc: Option<String>,
    pub(super) has_cc: bool,
    pub(super) hcad: Result<Program, String>,
    pub(super) hcactl: Result<Program, String>,
}

/// Whether guests run under KVM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kvm {
    /// The file `/dev/kvm` does not exist.
    Absent,
    /// The user has no permission to open `/dev/kvm`.
    Denied,
    /// Opening `/dev/kvm` fails for another reason.
    Unusable(String),
    /// `/dev/kvm` can be opened. The first boot will show whether KVM can run a guest.
    Untested,
    /// A guest has booted under KVM.
    Works,
    /// A guest failed to boot under KVM. This happens on some virtual hosts that offer `/dev/kvm`.
    Fails {
        /// The first line of the error.
        error: String,
        /// The file that contains the whole error.
        note: PathBuf,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cache {
    pub(super) folder: PathBuf,
    /// Free space available to the user, in bytes.
    pub(super) free: u64,
    pub(super) parts: CachedParts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) version: String,
}

impl Findings {
    /// Collects this machine's state. Contacts the Debian archive only if `ask_archive` is set.
    pub(super) fn collect(ask_archive: bool) -> Self {
        let cache = cache_dir();
        Self {
            arch: std::env::consts::ARCH.into(),
            kernel: read("/proc/sys/kernel/osrelease"),
            kvm: kvm(cache.as_deref().ok()),
            cache: cache.map_err(|error| error.to_string()).and_then(open_cache),
            archive: ask_archive.then(probe_archive),
            memory: memory(),
            runtime: state_dir().map_err(|error| format!("{error:#}")),
            user_namespaces: succeeds(
                "unshare",
                &["--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
            ),
            network_namespaces: network_namespaces(),
            rustc: version_of(Path::new("rustc")).ok(),
            has_cc: succeeds("cc", &["--version"]).is_ok(),
            hcad: program(programs::hcad()),
            hcactl: program(programs::hcactl()),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn kvm(cache: Option<&Path>) -> Kvm {
    match File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Kvm::Absent,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Kvm::Denied,
        Err(error) => return Kvm::Unusable(error.to_string()),
    }
    let Some(note) = cache.map(kvm::result_file) else { return Kvm::Untested };
    match fs::read_to_string(&note) {
        Err(_) => Kvm::Untested,
        Ok(text) => match text.lines().next().unwrap_or_default() {
            kvm::WORKS => Kvm::Works,
            error => Kvm::Fails { error: error.to_owned(), note },
        },
    }
}

/// Creates the cache directory, as every other command does, and checks that it is writable.
fn open_cache(folder: PathBuf) -> Result<Cache, String> {
    let name = folder.display().to_string();
    fs::create_dir_all(&folder).map_err(|error| format!("{name} cannot be created: {error}"))?;
    tempfile::tempfile_in(&folder).map_err(|error| format!("{name} cannot be written to: {error}"))?;
    let stat = rustix::fs::statvfs(&folder).map_err(|error| format!("{name}: {error}"))?;
    let parts = CachedParts::read(&folder, Arch::HOST);
    Ok(Cache { folder, free: stat.f_bavail.saturating_mul(stat.f_frsize), parts })
}

/// Returns the memory available to new processes, or the control group's limit if that is lower.
fn memory() -> Option<u64> {
    let text = read("/proc/meminfo");
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    let group = read("/proc/self/cgroup");
    let limit = group.lines().find_map(|line| line.strip_prefix("0::"));
    let limit = limit.and_then(|path| read(&format!("/sys/fs/cgroup{path}/memory.max")).parse().ok());
    Some((kibibytes * 1024).min(limit.unwrap_or(u64::MAX)))
}

/// Checks that network namespaces and tap interfaces can be created. Scenarios create them when they run as root.
fn network_namespaces() -> Result<(), String> {
    if !rustix::process::getuid().is_root() {
        return Err("guest-lab is not running as root".into());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err("/dev/net/tun does not exist".into());
    }
    succeeds("unshare", &["--net", "true"])?;
    succeeds("ip", &["-Version"])
}

/// Runs a program and discards its output. Returns the reason if the program fails.
fn succeeds(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("{program} is not installed"),
        _ => format!("{program}: {error}"),
    })?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let reason = errors.lines().last().map_or_else(|| output.status.to_string(), str::to_owned);
    if output.status.success() { Ok(()) } else { Err(reason) }
}

fn version_of(program: &Path) -> Result<String, String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{} cannot be run: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next().unwrap_or_default().trim();
    if output.status.success() && !line.is_empty() {
        Ok(line.to_owned())
    } else {
        Err(format!("{} --version failed: {}", program.display(), output.status))
    }
}

fn program(found: anyhow::Result<PathBuf>) -> Result<Program, String> {
    // Drop the suggested fix after the semicolon, since the check adds its own.
    let path = found.map_err(|error| error.to_string().split(';').next().unwrap_or_default().to_owned())?;
    let version = version_of(&path)?;
    Ok(Program { path, version: version_number(&version).to_owned() })
}

/// Returns the number in a line such as `hcad 0.1.0 (development build)`.
fn version_number(line: &str) -> &str {
    line.split(' ').nth(1).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_number_excludes_build() {
        assert_eq!(version_number("hcad 0.1.0 (development build)"), "0.1.0");
        assert_eq!(version_number("hcactl 0.1.0"), "0.1.0");
    }
}
