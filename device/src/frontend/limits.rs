//! Limits that a configuration can set.

use serde::Deserialize;

/// A count that is a power of two, 2^`MIN` to 2^`MAX`; its logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u64")]
pub struct Count<const MIN: u8, const MAX: u8>(u8);

impl<const MIN: u8, const MAX: u8> Count<MIN, MAX> {
    /// The count with this logarithm, or the nearest there is.
    pub const fn of_log(log: u8) -> Self {
        if log < MIN {
            Self(MIN)
        } else if log > MAX {
            Self(MAX)
        } else {
            Self(log)
        }
    }

    /// The logarithm.
    pub const fn log(self) -> u8 {
        self.0
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
