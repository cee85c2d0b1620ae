//! What the process takes from itself, so that whoever gets hold of it through a guest, a VMM or a peer gets little.
//!
//! Three of Linux's means, each as far as the kernel has it: no new privileges, so that no program run from here gains
//! any; landlock, so that files are reached only where the configuration names some (`paths`); seccomp, so that only
//! the system calls that serving takes are there (`calls`). What is confined stays so, and threads made later are too.
//!
//! Paths come first, before the process has a second thread: landlock holds for a thread and those it makes. System
//! calls come last, when all that takes more of them is done.

mod calls;
mod paths;

use std::path::Path;
use std::sync::OnceLock;

use thiserror::Error;

use self::paths::Paths;
use crate::config::{Config, ConfigError, FabricConfig};

/// What is in force, or why it is not.
type Outcome<T> = Result<T, Missing>;

/// Why a means is not used.
#[derive(Clone, Debug, Error)]
enum Missing {
    /// Neither in the kernel's code nor switched on there.
    #[error("the kernel has none")]
    Kernel,
    /// Another reason.
    #[error("{0}")]
    Refused(String),
}

/// Confinement of the process, of which there is one. Empty if it is off, or not begun.
static BEGUN: OnceLock<Begun> = OnceLock::new();

#[derive(Debug)]
struct Begun {
    no_new_privileges: bool,
    paths: Outcome<Paths>,
    /// Some device is on a ring.
    calls_others: bool,
}

/// Begins, unless the configuration says otherwise: no new privileges, and no files but those that `config` needs. To be
/// called before there are other threads.
///
/// # Errors
/// A folder that is to be reached cannot be.
pub fn begin(config: &Config) -> Result<(), ConfigError> {
    if !config.confinement.enabled {
        return Ok(());
    }
    let grants = paths::grants(config)?;
    let no_new_privileges = rustix::thread::set_no_new_privs(true).is_ok();
    let paths = paths::restrict(grants, paths::port(config));
    let calls_others = config.devices.iter().any(|device| matches!(device.fabric, FabricConfig::Ring { .. }));
    let _ = BEGUN.set(Begun { no_new_privileges, paths, calls_others });
    Ok(())
}

/// Completes what [`begin`] began, in all threads, and logs what is in force.
pub fn complete() {
    let Some(begun) = BEGUN.get() else {
        tracing::info!("not confined: it is switched off");
        return;
    };
    let (mut in_force, mut missing) = (Vec::new(), Vec::new());
    match &begun.paths {
        Ok(paths) => in_force.push(paths.to_string()),
        Err(error) => missing.push(format!("landlock ({error})")),
    }
    match calls::restrict(begun.calls_others) {
        Ok(()) => in_force.push("seccomp".to_owned()),
        Err(error) => missing.push(format!("seccomp ({error})")),
    }
    match begun.no_new_privileges {
        true => in_force.push("no new privileges".to_owned()),
        false => missing.push("no new privileges (the kernel refuses)".to_owned()),
    }
    match (in_force.is_empty(), missing.is_empty()) {
        (_, true) => tracing::info!("confined: {}", in_force.join(", ")),
        (false, false) => {
            tracing::info!("confined: {}; missing: {}", in_force.join(", "), missing.join(", "));
        }
        (true, false) => tracing::info!("not confined; missing: {}", missing.join(", ")),
    }
}

/// Whether a file could be made at `path` as far as confinement goes, and where it could if not.
///
/// # Errors
/// [`Outside`].
pub fn check_file(path: &Path) -> Result<(), Outside> {
    match BEGUN.get().map(|begun| &begun.paths) {
        Some(Ok(paths)) => paths.check_file(path),
        _ => Ok(()),
    }
}

/// A file would be where the process does not let itself write.
#[derive(Debug, Error)]
#[error(
    "hcad confines itself to what its configuration names, for files {folders}: \
     `confinement.writable` may name more folders"
)]
pub struct Outside {
    /// Where it does.
    folders: String,
}
