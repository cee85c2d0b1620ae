//! Power-of-two counts for limits in the configuration.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

/// A power of two between 2^`MIN` and 2^`MAX`, stored as its logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u64")]
pub struct Count<const MIN: u8, const MAX: u8>(u8);

impl<const MIN: u8, const MAX: u8> Count<MIN, MAX> {
    /// Creates a count from its logarithm, clamped to the range.
    pub const fn of_log(log: u8) -> Self {
        if log < MIN {
            Self(MIN)
        } else if log > MAX {
            Self(MAX)
        } else {
            Self(log)
        }
    }

    /// Smallest and largest count.
    pub const RANGE: [u32; 2] = [1 << MIN, 1 << MAX];

    /// Returns the logarithm to base 2.
    pub const fn log(self) -> u8 {
        self.0
    }

    pub const fn get(self) -> u32 {
        1 << self.0
    }
}

/// The schema contains only the range. It does not express that counts are powers of two.
impl<const MIN: u8, const MAX: u8> JsonSchema for Count<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("Count{MIN}To{MAX}").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "integer",
            "format": "uint32",
            "minimum": 1_u32 << MIN,
            "maximum": 1_u32 << MAX,
        })
    }
}

impl<const MIN: u8, const MAX: u8> TryFrom<u64> for Count<MIN, MAX> {
    type Error = String;

    fn try_from(count: u64) -> Result<Self, Self::Error> {
        let log = (MIN..=MAX).find(|log| 1_u64 << log == count);
        log.map(Self)
            .ok_or_else(|| format!("{count} is not a power of two from {} to {}", 1_u64 << MIN, 1_u64 << MAX))
    }
}
