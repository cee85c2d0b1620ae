//! Restricts access to files and sockets (Landlock).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use card::fabric::tap;
use card::telemetry::file;
use control_api::runtime_folder;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, LandlockStatus, NetPort, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus,
    Scope, make_bitflags,
};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::{Missing, Outcome, OutsideError};
use crate::config::{Config, ConfigError, FabricConfig, MetricsConfig, Use};

/// The newest Landlock ABI that this module uses. Older kernels enforce only the rights that they support.
const LANDLOCK_ABI: ABI = ABI::V9;

/// Rights to a directory where sockets are created, probed and removed. ReadDir allows hcad to lock the directory.
const SOCKETS: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadDir | MakeSock | RemoveFile | ResolveUnix});

/// Rights to a directory where files are created and written, but not read. They include writing to existing files,
/// which Landlock does not distinguish from new ones.
const FILES: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeReg | WriteFile | Truncate});

/// Rights to a regular file that is named in the configuration.
const FILE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{WriteFile | Truncate});

/// Rights to a FIFO or a device file that is named in the configuration.
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{WriteFile});

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile});

/// Access rights to a path and everything below it.
pub(super) struct Grant {
    path: PathFd,
    name: PathBuf,
    rights: BitFlags<AccessFs>,
    /// Canonical path of a directory where files may be created.
    folder: Option<PathBuf>,
    /// Canonical path of a directory for sockets.
    sockets: Option<PathBuf>,
    /// Canonical path of a configured file.
    file: Option<PathBuf>,
}

impl Grant {
    /// Returns whether this thread's user has the permissions that the grant covers.
    fn is_usable(&self) -> bool {
        let needs = [
            (AccessFs::ReadFile.into(), Access::READ_OK),
            (AccessFs::WriteFile.into(), Access::WRITE_OK),
            (AccessFs::MakeReg | AccessFs::MakeSock, Access::WRITE_OK | Access::EXEC_OK),
        ];
        let needs = needs.iter().filter(|(right, _)| self.rights.intersects(*right));
        let access = needs.fold(Access::EXISTS, |all, (_, access)| all | *access);
        accessat(CWD, &self.name, access, AtFlags::EACCESS).is_ok()
    }
}

/// The file access restrictions in force.
#[derive(Debug)]
pub(super) struct Paths {
    abi: i32,
    /// Directories below which files may be created.
    folders: Vec<PathBuf>,
    /// Files that may be written.
    files: Vec<PathBuf>,
    /// Directories below which sockets may be created.
    sockets: Vec<PathBuf>,
    /// Whether tap interfaces may be opened.
    pub(super) tap: bool,
}

/// Returns the access rights needed by a configuration, both now and when a device restarts. Missing paths are omitted;
/// an attempt to use them later reports an error.
pub(super) fn grants(config: &Config, origin: Option<&Path>) -> Result<Vec<Grant>, ConfigError> {
    let mut grants = Vec::new();
    let mut grant = |path: &Path, rights: BitFlags<AccessFs>| -> io::Result<()> {
        let of = |right: AccessFs| rights.contains(right).then(|| path.canonicalize()).transpose();
        let (folder, sockets) = (of(AccessFs::MakeReg)?, of(AccessFs::MakeSock)?);
        let file = (rights == FILE).then(|| path.canonicalize()).transpose()?;
        let name = path.to_owned();
        let path = PathFd::new(path).map_err(io::Error::other)?;
        grants.push(Grant { path, name, rights, folder, sockets, file });
        Ok(())
    };
    let confinement = &config.confinement;
    let writable = confinement.writable.as_deref().unwrap_or_default();
    for (key, folders, rights) in [
        ("writable", writable, FILES),
        ("sockets", &confinement.sockets, SOCKETS),
        ("readable", &confinement.readable, READ),
    ] {
        for (index, folder) in folders.iter().enumerate() {
            grant(folder, rights).map_err(|error| ConfigError::Value {
                key: format!("confinement.{key}[{index}]"),
                problem: format!("{}: {error}", folder.display()),
            })?;
        }
    }
    // Grant access only to the configuration file itself, since its directory may contain unrelated files.
    if let Some(origin) = origin {
        let _ = grant(origin, READ);
    }
    let _ = grant(&runtime_folder::own(), SOCKETS);
    if config.confinement.ring {
        let _ = grant(&runtime_folder::ring(), SOCKETS);
    }
    if let Some(folder) = config.own_folder() {
        match runtime_folder::make_own(&folder) {
            // RemoveFile is needed for cleanup: if one file of a series cannot be created, the files created before it
            // are removed.
            Ok(()) => drop(grant(&folder, FILES | AccessFs::RemoveFile)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let problem = format!(
                    "{} must be a directory that only the user that runs hcad can write to; select a different directory with `confinement.writable`",
                    folder.display()
                );
                return Err(ConfigError::Value { key: "control_socket".to_owned(), problem });
            }
            // A later attempt to create a file in this directory will report the error.
            Err(_) => {}
        }
    }
    for (_, path, used) in config.paths() {
        let path = path.as_path();
        if used == Use::File && !path.exists() {
            // Landlock can only grant access to existing files. If this file cannot be created, an attempt to use it
            // later reports the error.
            let _ = file::append(path);
        }
        let _ = match (used, path.canonicalize()) {
            (Use::Socket, _) => grant(folder_of(path), SOCKETS),
            (Use::File, Ok(file)) if file.is_file() => grant(&file, FILE),
            (Use::File, Ok(device)) => grant(&device, WRITE),
            (Use::File, Err(_)) => Ok(()),
        };
    }
    if has_tap(config) {
        let _ = grant(Path::new(tap::DEVICE), READ | AccessFs::WriteFile | AccessFs::IoctlDev);
        // Read to determine the MTUs of network interfaces.
        let _ = grant(Path::new("/sys/devices/virtual/net"), READ);
    }
    // Opened to reserve a spare descriptor.
    let _ = grant(Path::new("/dev/null"), READ | WRITE);
    // Read to determine whether the parent process ignored SIGHUP.
    let _ = grant(Path::new("/proc/self/status"), READ);
    if config.metrics.is_some() {
        let _ = grant(Path::new("/proc/self/statm"), READ);
        let _ = grant(Path::new("/proc/self/fd"), AccessFs::ReadDir.into());
    }
    // Read to resolve symbol names in panic backtraces.
    let _ = std::env::current_exe().and_then(|program| grant(&program, READ));
    Ok(grants)
}

pub(super) fn are_usable(grants: &[Grant]) -> bool {
    grants.iter().all(Grant::is_usable)
}

pub(super) fn has_tap(config: &Config) -> bool {
    config.confinement.tap
        || config.devices.iter().any(|device| matches!(device.fabric, FabricConfig::Tap { .. }))
}

fn port(config: &Config) -> Option<u16> {
    match &config.metrics {
        Some(MetricsConfig::Tcp(address)) => Some(address.port()),
        Some(MetricsConfig::Unix(_)) | None => None,
    }
}

/// Restricts this thread and the threads that it creates to the granted rights and to TCP connections to `dns_ports`.
pub(super) fn restrict(
    config: &Config,
    grants: Vec<Grant>,
    dns_ports: impl Iterator<Item = u16>,
) -> Outcome<Paths> {
    let each = |folder: fn(&Grant) -> Option<PathBuf>| {
        let mut folders: Vec<_> = grants.iter().filter_map(folder).collect();
        folders.sort();
        folders.dedup();
        folders
    };
    let (folders, sockets) = (each(|grant| grant.folder.clone()), each(|grant| grant.sockets.clone()));
    let files = each(|grant| grant.file.clone());
    let (tap, port) = (has_tap(config), port(config));
    let status = apply(grants, port, dns_ports).map_err(|error| Missing::Refused(error.to_string()))?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _)
        | (_, LandlockStatus::NotEnabled | LandlockStatus::NotImplemented) => Err(Missing::Kernel),
        (_, LandlockStatus::Available { effective_abi, kernel_abi }) => {
            Ok(Paths { abi: kernel_abi.unwrap_or(effective_abi as i32), folders, files, sockets, tap })
        }
    }
}

/// Applies all restrictions that Landlock supports. Besides file access, they cover signals to other processes,
/// connections to their abstract sockets, and TCP: the process may bind only to `port` and connect only to `dns_ports`.
fn apply(
    grants: Vec<Grant>,
    port: Option<u16>,
    dns_ports: impl Iterator<Item = u16>,
) -> Result<RestrictionStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))?
        .handle_access(AccessNet::from_all(LANDLOCK_ABI))?
        .scope(Scope::from_all(LANDLOCK_ABI))?
        .create()?;
    for Grant { path, rights, .. } in grants {
        rules = rules.add_rule(PathBeneath::new(path, rights))?;
    }
    if let Some(port) = port {
        rules = rules.add_rule(NetPort::new(port, AccessNet::BindTcp))?;
    }
    for port in dns_ports {
        rules = rules.add_rule(NetPort::new(port, AccessNet::ConnectTcp))?;
    }
    rules.restrict_self()
}

impl Paths {
    pub(super) fn may_have_socket(&self, path: &Path) -> bool {
        is_below(path, &self.sockets)
    }

    pub(super) fn check_file(&self, path: &Path) -> Result<(), OutsideError> {
        if is_below(path, &self.folders) || path.canonicalize().is_ok_and(|file| self.files.contains(&file)) {
            return Ok(());
        }
        let folders: Vec<_> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        let files = if folders.is_empty() {
            "no new files".to_owned()
        } else {
            format!("new files only under {}", folders.join(", "))
        };
        Err(OutsideError { files })
    }
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "landlock ABI {}", self.abi)
    }
}

/// Returns whether the directory of `path` is one of `granted` or below one of them. Also returns true if the directory
/// is missing. A later attempt to use it reports the error.
fn is_below(path: &Path, granted: &[PathBuf]) -> bool {
    let folder = folder_of(path).canonicalize();
    folder.map_or(true, |folder| granted.iter().any(|granted| folder.starts_with(granted)))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
