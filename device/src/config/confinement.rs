//! Settings for the process sandbox.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

/// Sandbox settings. The sandbox restricts hcad to the files, sockets and system calls that its configuration
/// requires. It uses Landlock, seccomp and no_new_privs, as far as the kernel supports them, and drops
/// capabilities. At startup, hcad logs the active restrictions.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConfinementEntry {
    /// Enable the sandbox. `false` has the same effect as `--no-confinement`.
    pub enabled: bool,
    /// Directories in which `hcactl capture`, `hcactl trace` and `hcactl record` can create files.
    /// Subdirectories are included. Default: a directory that hcad creates next to the control socket
    /// (`control.files` for `control.sock`).
    pub writable: Option<Vec<PathBuf>>,
    /// Additional directories in which hcad can create sockets for devices that are added at run time
    /// (with `hcactl device add` or by a reload). The runtime directory, and all directories that contain
    /// sockets of devices in this file, are always allowed.
    pub sockets: Vec<PathBuf>,
    /// Directories from which hcad can read files after startup. If the configuration file has been replaced
    /// rather than edited in place, hcad can reload it on SIGHUP only if the file's directory is listed
    /// here. `hcactl reload` always works.
    pub readable: Vec<PathBuf>,
    /// Allow devices that are added at run time to use the tap fabric. The tap fabric is always allowed if a
    /// device in this file uses it.
    pub tap: bool,
    /// Allow devices that are added at run time to use the ring fabric. The ring directory must be the default one, or
    /// a directory in which hcad can create sockets (see `sockets`). The ring fabric is always allowed if a device in
    /// this file uses it.
    pub ring: bool,
    /// Allow devices that are added at run time to use the UDP fabric. The UDP fabric is always allowed if a
    /// device in this file uses it.
    pub udp: bool,
    /// Allow devices that are added at run time to specify peers by DNS name. DNS names are always allowed if a
    /// device in this file uses one. If they are allowed, hcad can also send DNS requests over UDP and TCP.
    pub dns: bool,
}

impl Default for ConfinementEntry {
    fn default() -> Self {
        Self {
            enabled: true,
            writable: None,
            sockets: Vec::new(),
            readable: Vec::new(),
            tap: false,
            ring: false,
            udp: true,
            dns: false,
        }
    }
}
