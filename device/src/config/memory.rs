//! What a VMM may lend as guest memory.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{ConfigError, value};
use crate::memory::limits::{DEFAULT_BYTES, MAX_BYTES_OF_ALL};
use crate::memory::{FileSystems, Limits};

const GIB: u64 = 1 << 30;

/// What the VMM of a device may lend as guest memory.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GuestMemoryEntry {
    /// Length of the files that are mapped at once, GiB. A file counts whole, however much of it is lent. All devices
    /// together have 65536. Without it 1024, or an equal share of all where that is less.
    pub max_gib: Option<u32>,
    /// Where these files may be.
    pub files: FileSystems,
}

impl GuestMemoryEntry {
    /// `devices`: how many there are. `left`: bytes that those before this one left of what all have together.
    pub(super) fn check(&self, devices: usize, left: &mut u64, key: &str) -> Result<Limits, ConfigError> {
        let share = MAX_BYTES_OF_ALL / u64::try_from(devices.max(1)).unwrap_or(u64::MAX);
        let bytes = self.max_gib.map_or(DEFAULT_BYTES.min(share), |gib| u64::from(gib) * GIB);
        *left = left.checked_sub(bytes).ok_or_else(|| {
            let (bytes, left) = (bytes / GIB, *left / GIB);
            value(&format!("{key}.max_gib"), format!("{bytes} GiB where the devices before it leave {left}"))
        })?;
        Ok(Limits { bytes, file_systems: self.files, ..Limits::default() })
    }
}
