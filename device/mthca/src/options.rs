//! Configurable options for mthca devices.

use card::frontend;
use schemars::JsonSchema;
use serde::Deserialize;

use super::limits::{Limits, LimitsEntry};

/// Parameters for creating an mthca device.
pub type Setup = frontend::Setup<Options>;

/// Options for mthca devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Board ID that QUERY_ADAPTER returns and the driver shows in sysfs: at most 16 ASCII characters.
    #[schemars(with = "String", length(max = 16))]
    pub board_id: BoardId,
    /// Limits that QUERY_DEV_LIM reports.
    #[schemars(with = "LimitsEntry")]
    pub limits: Limits,
}

/// Board ID in ASCII, padded with NUL bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct BoardId(pub [u8; 16]);

impl Default for BoardId {
    fn default() -> Self {
        Self(*b"HCAD_MT25204\0\0\0\0")
    }
}

impl TryFrom<String> for BoardId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut id = [0; 16];
        match id.get_mut(..text.len()) {
            Some(place) if text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                place.copy_from_slice(text.as_bytes());
                Ok(Self(id))
            }
            _ => Err("must have at most 16 characters, all printable ASCII"),
        }
    }
}
