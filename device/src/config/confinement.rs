//! Settings of the sandbox.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

/// Sandbox settings. As far as the kernel supports it, hcad restricts itself to the files, sockets and system
/// calls that its configuration requires. It uses landlock and seccomp, drops capabilities and sets
/// no_new_privs. The log lists the restrictions in force.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConfinementEntry {
    /// Enable the sandbox. `false` has the same effect as `--no-confinement`.
    pub enabled: bool,
    /// Directories in which `hcactl capture`, `hcactl trace` and `hcactl record` can create files, including
    /// all subdirectories. Default: a directory that hcad creates next to the control socket (`control.files`
    /// for `control.sock`).
    pub writable: Option<Vec<PathBuf>>,
    /// Additional directories for the sockets of devices that are added at run time, with `hcactl device add`
    /// or by a reload. The runtime directory and the directories of the sockets in this file are always
    /// allowed.
    pub sockets: Vec<PathBuf>,
    /// Directories whose files hcad can read after startup. Required if SIGHUP has to load a configuration
    /// file that was replaced rather than edited in place. Not required for `hcactl reload`.
    pub readable: Vec<PathBuf>,
    /// Allow devices that are added at run time to use the tap fabric. If a device in this file uses the tap
    /// fabric, it is always allowed.
    pub tap: bool,
    /// Allow devices that are added at run time to use the ring fabric, in the default ring directory or in
    /// an allowed socket directory. If a device in this file uses the ring fabric, it is always allowed.
    pub ring: bool,
    /// Allow devices that are added at run time to use the UDP fabric. If a device in this file uses the UDP
    /// fabric, it is always allowed.
    pub udp: bool,
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
        }
    }
}
