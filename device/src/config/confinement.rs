//! What the process may still do once it serves.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

/// The sandbox. The process restricts itself to what its configuration names, as far as the kernel supports it: no
/// new privileges, landlock, seccomp. The log lists the measures in force.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConfinementEntry {
    /// Whether the sandbox is enabled. `false` has the effect of `--no-confinement`.
    pub enabled: bool,
    /// Directories in which `hcactl capture on` and `hcactl trace on` may create files, including subdirectories.
    /// Default: a directory created next to the control socket, `control.files` for `control.sock`.
    pub writable: Option<Vec<PathBuf>>,
    /// Additional directories for the sockets of devices that are added by `hcactl device add` or a reload. Always
    /// allowed are the directories of the sockets in this file and the runtime directory.
    pub sockets: Vec<PathBuf>,
    /// Directories whose files may be read. Needed if SIGHUP should read a configuration file that was replaced;
    /// `hcactl reload` does not need it.
    pub readable: Vec<PathBuf>,
    /// Whether devices added later may use the tap fabric. Always allowed if a device in this file uses it.
    pub tap: bool,
    /// Whether devices added later may use the ring fabric, in the default directory or in a directory for sockets.
    /// Always allowed if a device in this file uses it.
    pub ring: bool,
    /// Whether devices added later may use the UDP fabric. Always allowed if a device in this file uses it.
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
