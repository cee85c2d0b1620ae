//! What a record says of itself before it begins.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// First bytes of a file.
pub(super) const MAGIC: [u8; 8] = *b"HCADREC\n";

/// Version of the format that is written, and the only one that is read.
pub const FORMAT: u32 = 1;

/// What was recorded, and by whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of hcad. Another may do other things than were recorded.
    pub hcad: String,
    /// Name of the device.
    pub device: String,
    /// Its entry in the configuration, without what names files and sockets of the host.
    pub configuration: Map<String, Value>,
}

impl Header {
    /// Of a record by this version.
    pub fn new(device: &str, configuration: Map<String, Value>) -> Self {
        let hcad = env!("CARGO_PKG_VERSION").to_owned();
        Self { format: FORMAT, hcad, device: device.to_owned(), configuration }
    }
}
