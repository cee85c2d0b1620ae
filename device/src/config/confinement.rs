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
    /// Folders below which `hcactl capture on` and `hcactl trace on` may make files, beside those in which captures and
    /// traces of this file are. The folder of the control socket if this is not said.
    pub writable: Option<Vec<PathBuf>>,
}

impl Default for ConfinementEntry {
    fn default() -> Self {
        Self { enabled: true, writable: None }
    }
}
