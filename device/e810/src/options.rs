//! Device options, from the configuration.

use card::frontend;
use protocol::hca::e810::pci;
use schemars::JsonSchema;
use serde::Deserialize;

use super::limits::Limits;

/// Configuration of a device, fixed when the device is created.
pub type Setup = frontend::Setup<Options>;

/// Options for E810 devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Number of queue pairs of the NIC, 1 to 256. The driver uses one per guest CPU, and one for flow director.
    #[schemars(with = "u16", range(min = 1, max = 256))]
    pub queues: Queues,
    /// Number of MSI-X vectors, 4 to 2048. Eight plus twice the number of guest CPUs is enough.
    #[schemars(with = "u16", range(min = 4, max = 2048))]
    pub vectors: MsixVectors,
    /// Whether the device supports RDMA. If not, `ice` logs this once and `irdma` finds no device.
    pub rdma: bool,
    /// Link speed that the device reports. It does not limit throughput.
    pub link_speed: LinkSpeed,
    /// Limits on RDMA objects.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // `ice` logs an error if its interface leaves no queue pair for flow director. Since each queue pair of the
            // interface needs a vector, as do other causes, `ice` runs out of vectors first.
            queues: Queues(64),
            vectors: MsixVectors(64),
            rdma: true,
            link_speed: LinkSpeed::Gbps100,
            limits: Limits::default(),
        }
    }
}

/// Number of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u16")]
pub struct Queues(u16);

impl Queues {
    /// Maximum number of queue pairs. The limit bounds the memory that the device needs for them.
    pub const MAX: u16 = 256;

    pub const fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for Queues {
    type Error = &'static str;

    fn try_from(count: u16) -> Result<Self, Self::Error> {
        match count {
            1..=Self::MAX => Ok(Self(count)),
            _ => Err("must be between 1 and 256"),
        }
    }
}

/// Number of MSI-X vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u16")]
pub struct MsixVectors(u16);

impl MsixVectors {
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for MsixVectors {
    type Error = &'static str;

    fn try_from(count: u16) -> Result<Self, Self::Error> {
        match count {
            4..=pci::MAX_MSIX_VECTORS => Ok(Self(count)),
            _ => Err("must be between 4 and 2048"),
        }
    }
}

/// Link speed that the device reports to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum LinkSpeed {
    /// 25 Gbit/s.
    #[serde(rename = "25G")]
    Gbps25,
    /// 40 Gbit/s.
    #[serde(rename = "40G")]
    Gbps40,
    /// 50 Gbit/s.
    #[serde(rename = "50G")]
    Gbps50,
    /// 100 Gbit/s.
    #[serde(rename = "100G")]
    Gbps100,
}

impl LinkSpeed {
    /// Returns the speed in Gbit/s.
    pub const fn gbps(self) -> u16 {
        match self {
            Self::Gbps25 => 25,
            Self::Gbps40 => 40,
            Self::Gbps50 => 50,
            Self::Gbps100 => 100,
        }
    }

    /// Returns the link status bit for this speed (E810 interface, section 5.6).
    pub const fn bit(self) -> u16 {
        match self {
            Self::Gbps25 => 1 << 7,
            Self::Gbps40 => 1 << 8,
            Self::Gbps50 => 1 << 9,
            Self::Gbps100 => 1 << 10,
        }
    }

    /// Returns the PHY type bit for direct attach copper at this speed (E810 interface, section 5.6).
    pub const fn phy(self) -> u64 {
        match self {
            Self::Gbps25 => 1 << 20,
            Self::Gbps40 => 1 << 30,
            Self::Gbps50 => 1 << 36,
            Self::Gbps100 => 1 << 51,
        }
    }
}
