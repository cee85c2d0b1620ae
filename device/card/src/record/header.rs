//! The header of a record.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// First bytes of the file.
pub(super) const MAGIC: [u8; 8] = *b"HCADREC\n";

/// Version of the format that this hcad writes and reads.
pub const FORMAT: u32 = 1;

/// Identifies the recorded device, and the version of hcad that recorded it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub format: u32,
    /// Version of hcad. Another version may behave differently.
    pub hcad: String,
    /// Name of the device.
    pub device: String,
    /// Configuration entry of the device, without files and sockets of the host.
    pub configuration: Map<String, Value>,
    /// Time since 1970 at the origin of the device's clock, in nanoseconds. Zero if the record lacks this field.
    #[serde(default)]
    pub clock_origin_ns: u64,
}

impl Header {
    /// Creates the header of a record that this version of hcad writes.
    pub fn new(device: &str, configuration: Map<String, Value>) -> Self {
        let hcad = env!("CARGO_PKG_VERSION").to_owned();
        Self { format: FORMAT, hcad, device: device.to_owned(), configuration, clock_origin_ns: 0 }
    }

    /// Sets the time since 1970 at the origin of the device's clock.
    #[must_use]
    pub fn with_clock_origin(self, origin: Duration) -> Self {
        Self { clock_origin_ns: u64::try_from(origin.as_nanos()).unwrap_or(u64::MAX), ..self }
    }
}
