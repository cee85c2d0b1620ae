//! What the process may still do once it serves.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

/// The process confines itself to what its configuration names, as far as the kernel can: no new privileges, landlock,
/// seccomp. What is in force is in the log.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConfinementEntry {
    /// False, or `--no-confinement`: it may do all that its user may.
    pub enabled: bool,
    /// Folders below which `hcactl capture on` and `hcactl trace on` may make files. If this is not said, a folder beside the
    /// control socket that is made for them: `control.files` for `control.sock`.
    pub writable: Option<Vec<PathBuf>>,
    /// Folders below which devices that come later, by `hcactl device add` or a reload, may have their sockets, beside those
    /// in which sockets of this file are and the one for sockets that nobody names.
    pub sockets: Vec<PathBuf>,
    /// Folders below which files may be read: that of this file, if SIGHUP is to find another that was put in its place.
    /// `hcactl reload` needs none.
    pub readable: Vec<PathBuf>,
    /// Devices that come later may be on tap interfaces; so they may if a device of this file is.
    pub tap: bool,
    /// Devices that come later may be on rings, in the folder that is usual or one of those for sockets; so they may if a
    /// device of this file is.
    pub ring: bool,
    /// Devices that come later may be on UDP. If this is false they may only if a device of this file is.
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
