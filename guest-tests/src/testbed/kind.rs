//! Testbed kinds: each guest's HCA, driver and device name.

use serde::{Deserialize, Serialize};

use crate::daemon::{Explained, Interface};
use crate::scenario::DOORBELL_RECORD_REMAPS;

/// RDMA devices of a testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Mellanox InfiniHost III Lx with the stock driver ib_mthca
    Mthca,
    /// JingZhao HCA without a stock driver; load your own with --module
    Jingzhao,
    /// Intel E810 with the stock drivers ice and irdma
    E810,
    /// NVIDIA ConnectX, Ethernet port, with the stock drivers mlx5_core and mlx5_ib
    Connectx,
    /// NVIDIA ConnectX, InfiniBand port, with the stock drivers mlx5_core and mlx5_ib
    #[serde(rename = "connectx-ib")]
    ConnectxIb,
    /// No HCA; Linux's soft-RoCE over an Ethernet network between the guests
    Rxe,
    /// E810, soft-RoCE and mthca in rotation, on one fabric
    Mixed,
}

impl Kind {
    /// Returns the kind's name, as given on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mthca => "mthca",
            Self::Jingzhao => "jingzhao",
            Self::E810 => "e810",
            Self::Connectx => "connectx",
            Self::ConnectxIb => "connectx-ib",
            Self::Rxe => "rxe",
            Self::Mixed => "mixed",
        }
    }

    /// Returns the device of guest `number`, counted from 1.
    pub const fn of_guest(self, number: u16) -> Device {
        match (self, number % 3) {
            (Self::Mthca, _) | (Self::Mixed, 0) => Device::Mthca,
            (Self::Jingzhao, _) => Device::Jingzhao,
            (Self::E810, _) | (Self::Mixed, 1) => Device::E810,
            (Self::Connectx, _) => Device::Connectx,
            (Self::ConnectxIb, _) => Device::ConnectxIb,
            (Self::Rxe, _) | (Self::Mixed, _) => Device::Rxe,
        }
    }
}

/// A guest's RDMA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// An HCA driven by `ib_mthca`.
    Mthca,
    /// An HCA that has no stock driver.
    Jingzhao,
    /// A NIC driven by `ice` and `irdma`.
    E810,
    /// A NIC driven by `mlx5_core` and `mlx5_ib`.
    Connectx,
    /// An HCA driven by `mlx5_core` and `mlx5_ib`.
    ConnectxIb,
    /// The Linux kernel's soft-RoCE.
    Rxe,
}

impl Device {
    /// Returns the device's name, as shown to users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mthca => "mthca",
            Self::Jingzhao => "jingzhao",
            Self::E810 => "e810",
            Self::Connectx => "connectx",
            Self::ConnectxIb => "connectx-ib",
            Self::Rxe => "rxe",
        }
    }

    /// Returns the device interface, if the device is an HCA.
    pub const fn interface(self) -> Option<Interface> {
        match self {
            Self::Mthca => Some(Interface::Mthca),
            Self::Jingzhao => Some(Interface::Jingzhao),
            Self::E810 => Some(Interface::E810),
            Self::Connectx => Some(Interface::Connectx),
            Self::ConnectxIb => Some(Interface::ConnectxIb),
            Self::Rxe => None,
        }
    }

    /// Returns the strict rules that the stock driver may violate without failing a test.
    pub const fn explained(self) -> &'static [Explained] {
        match self {
            Self::Mthca => &DOORBELL_RECORD_REMAPS,
            Self::Jingzhao | Self::E810 | Self::Connectx | Self::ConnectxIb | Self::Rxe => &[],
        }
    }

    /// Returns the modules to load: drivers and modules for verbs programs.
    pub const fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Mthca => &["ib_mthca", "ib_uverbs", "ib_umad", "rdma_ucm"],
            Self::Jingzhao => &["ib_uverbs", "rdma_ucm"],
            Self::E810 => &["ice", "irdma", "ib_uverbs", "rdma_ucm"],
            Self::Connectx => &["mlx5_core", "mlx5_ib", "ib_uverbs", "rdma_ucm"],
            Self::ConnectxIb => &["mlx5_core", "mlx5_ib", "ib_uverbs", "ib_umad", "rdma_ucm"],
            Self::Rxe => &["rdma_rxe", "ib_uverbs", "rdma_ucm"],
        }
    }

    /// Returns the RDMA device's name, if a stock driver creates one.
    pub const fn rdma_device(self) -> Option<&'static str> {
        match self {
            Self::Mthca => Some("mthca0"),
            Self::Jingzhao => None,
            Self::E810 => Some("irdma0"),
            Self::Connectx | Self::ConnectxIb => Some("mlx5_0"),
            Self::Rxe => Some("rxe0"),
        }
    }

    /// Returns whether the driver expects the device behind a root port, like a plug-in card.
    pub const fn is_card(self) -> bool {
        matches!(self, Self::E810 | Self::Connectx | Self::ConnectxIb)
    }

    /// Returns a guest's minimum number of CPUs and minimum memory in MiB.
    pub const fn least(self) -> (u32, u32) {
        match self {
            // With two CPUs, the driver uses two queue pairs or channels.
            Self::E810 | Self::Connectx => (2, 1024),
            Self::ConnectxIb => (1, 1024),
            Self::Mthca => (1, 256),
            _ => (1, 512),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use serde_json::json;

    use super::*;

    #[test]
    fn cli_and_json_kind_names_match() {
        for kind in Kind::value_variants() {
            let argument = kind.to_possible_value().unwrap();
            assert_eq!((argument.get_name(), json!(kind)), (kind.name(), json!(kind.name())));
        }
    }

    #[test]
    fn mixed_testbed_rotates_through_device_kinds() {
        let devices = |kind: Kind, count| (1..=count).map(|n| kind.of_guest(n).name()).collect::<Vec<_>>();
        assert_eq!(devices(Kind::Mixed, 4), ["e810", "rxe", "mthca", "e810"]);
        assert_eq!(devices(Kind::Jingzhao, 2), ["jingzhao", "jingzhao"]);
    }
}
