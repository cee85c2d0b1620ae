//! The header of a recording.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// First bytes of the file.
pub(super) const MAGIC: [u8; 8] = *b"HCADREC\n";

/// Version of the recording format that this version of hcad reads and writes.
pub const FORMAT: u32 = 1;

/// Identifies the recorded device and the version of hcad that recorded it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub format: u32,
    /// Version of hcad that made the recording. Other versions may behave differently.
    pub hcad: String,
    /// Name of the device.
    pub device: String,
    /// The device's configuration entry, without host files and sockets.
    pub configuration: Map<String, Value>,
    /// Wall-clock time at the origin of the device's clock, in nanoseconds since 1970. Zero if the recording lacks this
    /// field.
    #[serde(default)]
    pub clock_origin_ns: u64,
}

impl Header {
    /// Creates the header for a recording written by this version of hcad.
    pub fn new(device: &str, configuration: Map<String, Value>) -> Self {
        let hcad = env!("CARGO_PKG_VERSION").to_owned();
        Self { format: FORMAT, hcad, device: device.to_owned(), configuration, clock_origin_ns: 0 }
    }

    /// Sets the wall-clock time (since 1970) at the origin of the device's clock.
    #[must_use]
    pub fn with_clock_origin(self, origin: Duration) -> Self {
        Self { clock_origin_ns: u64::try_from(origin.as_nanos()).unwrap_or(u64::MAX), ..self }
    }
}
