//! Configurable options of the device.

use card::frontend;
use protocol::hca::mlx5::capability::GeneralCaps;
use protocol::hca::mlx5::pci;
use schemars::JsonSchema;
use serde::Deserialize;

use super::limits::Limits;

/// Parameters of a device.
pub type Setup = frontend::Setup<Options>;

/// Options for ConnectX devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Type of the port. In Linux, `mlx5_core` provides the network device of an Ethernet port, and `mlx5_ib` provides
    /// RoCE or InfiniBand.
    pub port: Port,
    /// Model to emulate. It determines only the PCI device ID, because the driver treats all models alike.
    pub model: Model,
    /// Use the PCI device ID of a virtual function. The driver then does not write the HOST_ENDIANNESS register, and
    /// Linux 6.12 does not fill its cache of memory keys.
    pub virtual_function: bool,
    /// Number of MSI-X vectors, 2 to 64. The driver uses one per guest CPU, plus one.
    #[schemars(with = "u16", range(min = 2, max = 64))]
    pub vectors: Vectors,
    /// Whether user programs may send commands of their own through DevX.
    pub devx: bool,
    /// Board ID that QUERY_ADAPTER returns and `ibv_devinfo` shows: at most 16 ASCII characters.
    #[schemars(with = "String", length(max = 16))]
    pub board_id: BoardId,
    /// Limits that the device reports to the driver in its reply to QUERY_HCA_CAP.
    pub limits: Limits,
    /// How doorbells reach the device. Set from the option shared by all interfaces.
    #[serde(skip)]
    pub doorbells: Doorbells,
}

/// How doorbells reach the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doorbells {
    /// The device processes every store.
    #[default]
    Trapped,
    /// The VMM may map UAR pages into the guest. The device polls them and the doorbell records.
    Mapped,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: Port::Ethernet,
            model: Model::ConnectX5,
            virtual_function: false,
            vectors: Vectors(32),
            devx: true,
            board_id: BoardId::default(),
            limits: Limits::default(),
            doorbells: Doorbells::default(),
        }
    }
}

impl Options {
    /// Returns the maximum general capabilities.
    pub fn caps(&self) -> GeneralCaps {
        let caps = self.limits.caps();
        let caps = if self.devx { caps } else { caps.without_devx() };
        match self.port {
            Port::Ethernet => caps.with_ethernet_port(),
            Port::InfiniBand => caps,
        }
    }

    /// Returns the maximum log2 of the UAR page size, in units of 4 KiB. No CPU uses base pages larger than 64 KiB.
    /// With mapped doorbells, the size is fixed at 4 KiB, because the VMM maps the pages before the driver sets their
    /// size.
    pub fn max_log_uar_page(&self) -> u16 {
        const LARGEST: u16 = 4;
        let [first, last] = self.limits.uar_pages();
        // Leave at least as many allocatable pages as reserved ones.
        let log_most = ((last + 1) / (2 * first)).ilog2();
        match self.doorbells {
            Doorbells::Trapped => u16::try_from(log_most).map_or(LARGEST, |most| most.min(LARGEST)),
            Doorbells::Mapped => 0,
        }
    }

    pub const fn device_id(&self) -> u16 {
        let model = self.model.pci();
        if self.virtual_function { model.virtual_function() } else { model.code() }
    }
}

/// Type of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Port {
    /// Ethernet, with RoCEv2
    Ethernet,
    /// InfiniBand
    InfiniBand,
}

/// Model of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "named after the models")]
pub enum Model {
    #[serde(rename = "connectx-4")]
    ConnectX4,
    #[serde(rename = "connectx-5")]
    ConnectX5,
    #[serde(rename = "connectx-6")]
    ConnectX6,
    #[serde(rename = "connectx-7")]
    ConnectX7,
}

impl Model {
    /// Returns the PCI model, which determines the device ID.
    pub const fn pci(self) -> pci::Model {
        match self {
            Self::ConnectX4 => pci::Model::ConnectX4,
            Self::ConnectX5 => pci::Model::ConnectX5,
            Self::ConnectX6 => pci::Model::ConnectX6,
            Self::ConnectX7 => pci::Model::ConnectX7,
        }
    }
}

/// Number of MSI-X vectors, 2 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u16")]
pub struct Vectors(u16);

impl Vectors {
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for Vectors {
    type Error = &'static str;

    fn try_from(count: u16) -> Result<Self, Self::Error> {
        match count {
            2..=64 => Ok(Self(count)),
            _ => Err("must be between 2 and 64"),
        }
    }
}

/// Board ID as text, padded with NUL bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct BoardId(pub [u8; 16]);

impl Default for BoardId {
    fn default() -> Self {
        Self(*b"HCD0000000001\0\0\0")
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

#[cfg(test)]
mod tests {
    use protocol::hca::mlx5::user_context::UserRights;

    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn model_and_function_select_device_id() {
        assert_eq!(parse("{}").unwrap().device_id(), 0x1017);
        let virtual_function = parse(r#"{"virtual_function": true}"#).unwrap();
        assert_eq!(virtual_function.device_id(), 0x1018);
        let seven = parse(r#"{"model": "connectx-7", "virtual_function": true}"#).unwrap();
        assert_eq!(seven.device_id(), 0x101e);
    }

    #[test]
    fn port_is_ethernet_by_default() {
        assert_eq!(parse("{}").unwrap().port, Port::Ethernet);
        let infiniband = parse(r#"{"port": "infiniband"}"#).unwrap();
        assert_eq!(infiniband.port, Port::InfiniBand);
        assert_eq!(infiniband.caps(), infiniband.limits.caps());
    }

    #[test]
    fn device_without_devx_has_no_user_contexts() {
        let caps = |text| parse(text).unwrap().caps();
        assert_eq!(caps("{}").log_max_user_contexts, 10);
        let without = caps(r#"{"devx": false}"#);
        assert_eq!((without.log_max_user_contexts, without.log_max_user_memories), (0, 0));
        assert_eq!(without.user_rights, UserRights::empty());
    }

    #[test]
    fn rejects_invalid_options() {
        for (text, problem) in [
            (r#"{"vectors": 1}"#, "must be between 2 and 64"),
            (r#"{"board_id": "0123456789abcdefg"}"#, "must have at most 16 characters"),
            (r#"{"model": "connectx-3"}"#, "unknown variant"),
            (r#"{"port": "ib"}"#, "unknown variant"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(problem), "{error}");
        }
    }
}
