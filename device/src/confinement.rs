//! The process's sandbox. It limits what an attacker gains by compromising the process from a guest, a VMM or a peer.
//!
//! The sandbox uses four Linux features, each as far as the kernel supports it. With no_new_privs, executing a program
//! does not grant privileges. Landlock restricts file access to the paths that the configuration needs (`paths`).
//! Capabilities are dropped, except for those needed later. Seccomp permits only the system calls needed for serving
//! (`calls`). No thread can leave the sandbox, and new threads inherit it.
//!
//! Landlock applies only to the calling thread and the threads that it creates, so file access is restricted first,
//! while the process has a single thread. Capabilities and system calls are restricted last, since set-up needs more of
//! them.

mod calls;
mod paths;

use std::collections::BTreeSet;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::OnceLock;

use card::capabilities;
use card::vfio::server::keep_probe;
use rustix::fs::Gid;
use rustix::process::{getegid, getgroups};
use rustix::thread::{CapabilitySet, set_thread_groups};
use thiserror::Error;

use self::paths::{Grant, Paths};
use crate::config::{Config, ConfigError, DeviceConfig, FabricConfig, Use};

/// Details of a sandbox feature, or why it is not active.
type Outcome<T> = Result<T, Missing>;

/// Why a sandbox feature is not active.
#[derive(Clone, Debug, Error)]
enum Missing {
    /// The feature is unsupported by the kernel, or disabled.
    #[error("not supported by the kernel")]
    Kernel,
    /// Enabling the feature failed with this error.
    #[error("{0}")]
    Refused(String),
}

/// The process's sandbox. Set by [`begin`], unless the sandbox is disabled.
static SANDBOX: OnceLock<Sandbox> = OnceLock::new();

#[derive(Debug)]
struct Sandbox {
    no_new_privileges: bool,
    paths: Outcome<Paths>,
    permitted: calls::Permitted,
    /// Capabilities that are kept.
    kept: CapabilitySet,
}

/// Sets no_new_privs and restricts file access to what `config` needs, unless the configuration disables the sandbox.
/// Call this before creating other threads. `file` is the configuration file, which must remain readable for reloads.
/// `dns_ports` are the ports of the name servers.
///
/// # Errors
/// Fails if a configured directory cannot be opened.
pub fn begin(config: &Config, file: Option<&Path>, dns_ports: &BTreeSet<u16>) -> Result<(), ConfigError> {
    if !config.confinement.enabled {
        return Ok(());
    }
    let grants = paths::grants(config, file)?;
    capabilities::begin();
    // The probe socket is used to check whether a socket file is in use. If the probe socket cannot be created, every
    // existing socket file counts as in use.
    let probe = keep_probe().ok().map(|probe| probe.as_raw_fd());
    let of_devices = config.devices.iter().filter_map(|device| device.socket_access.group);
    let groups: Vec<_> = of_devices.chain(config.sockets.group()).collect();
    join(&groups);
    let kept = needed(config, &groups, &grants);
    let no_new_privileges = rustix::thread::set_no_new_privs(true).is_ok();
    let dns = config.may_have_names();
    let dns_ports = dns_ports.iter().copied().filter(|_| dns);
    let paths = paths::restrict(config, grants, dns_ports);
    let groups = groups.iter().map(|group| group.as_raw()).collect();
    let (ring, udp) = (config.may_have_rings(), config.may_have_udp());
    let permitted = calls::Permitted { groups, ring, udp, dns, probe };
    let _ = SANDBOX.set(Sandbox { no_new_privileges, paths, permitted, kept });
    Ok(())
}

/// Adds the process to the groups of the configured sockets, if permitted. Without CAP_CHOWN, a process can assign its
/// files only to groups that it belongs to.
fn join(groups: &[Gid]) {
    let mut all = getgroups().unwrap_or_default();
    all.extend(groups.iter().copied().filter(|group| !is_member(*group)));
    let _ = set_thread_groups(&all);
}

fn is_member(group: Gid) -> bool {
    getegid() == group || getgroups().is_ok_and(|groups| groups.contains(&group))
}

/// Returns the capabilities needed to restart or add devices later.
fn needed(config: &Config, groups: &[Gid], grants: &[Grant]) -> CapabilitySet {
    let is_low = |device: &DeviceConfig| matches!(device.fabric, FabricConfig::Udp { bind, .. } if (1..1024).contains(&bind.port()));
    [
        // Needed to attach to another user's interface or to create an interface.
        (CapabilitySet::NET_ADMIN, paths::has_tap(config)),
        (CapabilitySet::NET_BIND_SERVICE, config.devices.iter().any(is_low)),
        (CapabilitySet::CHOWN, !groups.iter().all(|group| is_member(*group))),
        // Needed to access other users' directories and files.
        (CapabilitySet::DAC_OVERRIDE, !capabilities::without(|| paths::are_usable(grants))),
    ]
    .into_iter()
    .filter_map(|(capability, needed)| needed.then_some(capability))
    .collect()
}

/// Completes the sandbox in all threads and logs the active restrictions.
pub fn complete() {
    let Some(sandbox) = SANDBOX.get() else {
        tracing::info!("sandbox disabled");
        return;
    };
    let (mut in_force, mut missing) = (Vec::new(), Vec::new());
    match &sandbox.paths {
        Ok(paths) => in_force.push(paths.to_string()),
        Err(error) => missing.push(format!("landlock ({error})")),
    }
    match capabilities::keep(sandbox.kept) {
        Ok(kept) if kept.is_empty() => in_force.push("no capabilities".to_owned()),
        Ok(kept) => {
            let names: Vec<_> = kept.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
            in_force.push(format!("no capabilities except {}", names.join(" ")));
        }
        Err(error) => missing.push(format!("dropping capabilities ({error})")),
    }
    // The seccomp filter forbids changing file modes. Clear the umask, so that files are created with their final mode.
    rustix::process::umask(rustix::fs::Mode::empty());
    match calls::restrict(&sandbox.permitted) {
        Ok(()) => in_force.push("seccomp".to_owned()),
        Err(error) => missing.push(format!("seccomp ({error})")),
    }
    match sandbox.no_new_privileges {
        true => in_force.push("no new privileges".to_owned()),
        false => missing.push("no_new_privs (rejected by the kernel)".to_owned()),
    }
    match (in_force.is_empty(), missing.is_empty()) {
        (_, true) => tracing::info!("sandbox active: {}", in_force.join(", ")),
        (false, false) => {
            tracing::info!(
                "sandbox active: {}; this host does not support {}",
                in_force.join(", "),
                missing.join(", ")
            );
        }
        (true, false) => {
            tracing::info!("running without a sandbox: this host does not support {}", missing.join(", "))
        }
    }
}

/// Checks that the sandbox permits creating a file at `path`.
///
/// # Errors
/// [`OutsideError`] if the path is not permitted.
pub fn check_file(path: &Path) -> Result<(), OutsideError> {
    match SANDBOX.get().map(|sandbox| &sandbox.paths) {
        Some(Ok(paths)) => paths.check_file(path),
        _ => Ok(()),
    }
}

/// Checks that the sandbox permits a device added at run time. `name` is the device's configuration key, for error
/// messages.
///
/// # Errors
/// [`ConfigError::Value`], which names the setting that would have permitted the device.
pub fn check_device(device: &DeviceConfig, name: &str) -> Result<(), ConfigError> {
    let Some(sandbox) = SANDBOX.get() else { return Ok(()) };
    let refused = |key: String, problem: String| {
        let problem = format!("{problem}; the sandbox allows only what was configured when hcad started");
        Err(ConfigError::Value { key, problem })
    };
    if let Some(group) =
        device.socket_access.group.filter(|group| !sandbox.permitted.groups.contains(&group.as_raw()))
    {
        let problem = format!("group {} was not set as a `socket_group`", group.as_raw());
        return refused(format!("{name}.socket_group"), problem);
    }
    if matches!(device.fabric, FabricConfig::Ring { .. }) && !sandbox.permitted.ring {
        let problem = "no device used the ring fabric, and `confinement.ring` was false";
        return refused(format!("{name}.fabric.ring"), problem.to_owned());
    }
    if matches!(device.fabric, FabricConfig::Udp { .. }) && !sandbox.permitted.udp {
        let problem = "no device used the UDP fabric, and `confinement.udp` was false";
        return refused(format!("{name}.fabric.udp"), problem.to_owned());
    }
    if !device.fabric.named_peers().is_empty() && !sandbox.permitted.dns {
        let problem = "no device had a peer with a DNS name, and `confinement.dns` was false";
        return refused(format!("{name}.fabric.udp.peers"), problem.to_owned());
    }
    let Ok(paths) = &sandbox.paths else { return Ok(()) };
    for (key, path, used) in device.paths_of(name) {
        match used {
            Use::Socket if !paths.may_have_socket(&path) => {
                let problem = format!("{} is outside the allowed socket directories", path.display());
                return refused(key, format!("{problem} (add more with `confinement.sockets`)"));
            }
            Use::File => paths
                .check_file(&path)
                .map_err(|outside| ConfigError::Value { key, problem: outside.to_string() })?,
            Use::Socket => {}
        }
    }
    match device.fabric {
        FabricConfig::Tap { .. } if !paths.tap => {
            let problem = "no device used the tap fabric, and `confinement.tap` was false";
            refused(format!("{name}.fabric.tap"), problem.to_owned())
        }
        _ => Ok(()),
    }
}

/// Returns whether the sandbox restricts file access.
pub fn is_in_force() -> bool {
    SANDBOX.get().is_some_and(|sandbox| sandbox.paths.is_ok())
}

/// The sandbox does not allow a file at this path.
#[derive(Debug, Error)]
#[error("the sandbox allows {files}; to allow another directory, add it to `confinement.writable`")]
pub struct OutsideError {
    /// Description of the permitted locations.
    files: String,
}
