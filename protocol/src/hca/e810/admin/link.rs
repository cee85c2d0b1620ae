//! PHY and link commands: 0600, 0601, 0605, 0607, 0613, 0620.
//!
//! # Spec
//! E810 interface, section 5.6.

use bitflags::bitflags;

use crate::describe::show_flags;
use crate::layout;

layout! {
    /// Parameters of "get PHY capabilities".
    pub struct GetPhyCapabilities[16] {
        /// Whether to report qualified modules.
        @2[0]    report_qualified: bool,
        /// Report mode: 0 for capabilities without media, 1 for capabilities with media, [`REPORT_ACTIVE`], or 4 for
        /// the default configuration.
        @2[3:1]  mode: u8,
    }
}

/// Value of [`GetPhyCapabilities::mode`] that selects the active configuration.
pub const REPORT_ACTIVE: u8 = 2;

layout! {
    /// Parameters of "set MAC loopback".
    pub struct SetMacLoopback[16] {
        /// Whether the MAC receives its own frames instead of frames from the wire.
        @0[0]    enable: bool,
    }
}

layout! {
    /// Response to "get PHY capabilities".
    pub struct PhyCapabilities[560] {
        /// Supported PHY types, one bit each.
        @0   phy_low: u64 => Hex,
        /// More PHY types, one bit each.
        @8   phy_high: u64 => Hex,
        /// The PHY's current abilities.
        @16  abilities: PhyAbilities as u8,
        @17  low_power: u8,
        @34  fec: u8 => Hex,
        /// Module type, as the module reports it.
        @37  module_type: [u8; 3],
    }
}

layout! {
    /// Buffer for "set PHY configuration".
    pub struct PhyConfig[24] {
        /// Allowed PHY types, one bit each.
        @0   phy_low: u64 => Hex,
        /// More PHY types, one bit each.
        @8   phy_high: u64 => Hex,
        @16  abilities: PhyAbilities as u8,
        @17  low_power: u8,
        /// Requested FEC modes, as in the PHY capabilities.
        @22  fec: u8 => Hex,
    }
}

bitflags! {
    /// A PHY's abilities, or the requested configuration.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PhyAbilities: u32 {
        /// The port sends pause frames.
        const TX_PAUSE = 1 << 0;
        /// The port acts on received pause frames.
        const RX_PAUSE = 1 << 1;
        /// The link is enabled.
        const LINK_ENABLED = 1 << 3;
        /// The port uses auto-negotiation.
        const AUTO_NEGOTIATION = 1 << 4;
        /// The configuration applies immediately.
        const APPLY_NOW = 1 << 5;
        /// The FEC mode is selected automatically.
        const AUTO_FEC = 1 << 7;
    }
}

impl From<u8> for PhyAbilities {
    fn from(bits: u8) -> Self {
        Self::from_bits_retain(bits.into())
    }
}

impl From<PhyAbilities> for u8 {
    fn from(abilities: PhyAbilities) -> Self {
        let [low, ..] = abilities.bits().to_le_bytes();
        low
    }
}

impl crate::describe::Field for PhyAbilities {
    fn show(&self, name: &str, to: &mut dyn crate::describe::Visitor) {
        show_flags(self, name, to);
    }
}

layout! {
    /// Parameters of "restart auto-negotiation".
    pub struct RestartNegotiation[16] {
        @2[1]  restart: bool,
        @2[2]  enable: bool,
    }
}

layout! {
    /// Parameters of "get link status" and its response.
    pub struct GetLinkStatus[16] {
        /// [`EVENTS_DISABLE`], [`EVENTS_ENABLE`], or 0 for no change. In the response, 1 if events are enabled.
        @2[1:0]  events: u8,
    }
}

/// Value of [`GetLinkStatus::events`] that disables link events.
pub const EVENTS_DISABLE: u8 = 2;
/// Value of [`GetLinkStatus::events`] that enables link events.
pub const EVENTS_ENABLE: u8 = 3;

layout! {
    /// Link status in responses and events.
    pub struct LinkStatus[32] {
        /// Whether the link is up.
        @2[0]  up: bool,
        /// Whether the port is up.
        @2[5]  port_up: bool,
        /// Whether a module or cable is present.
        @2[6]  media_available: bool,
        /// Whether a signal is present.
        @2[7]  signal: bool,
        @3[0]  negotiated: bool,
        /// Whether the module is qualified.
        @3[7]  module_qualified: bool,
        /// Maximum frame length in bytes.
        @6     max_frame: u16,
        /// Link speed, one bit per speed.
        @10    speed: u16 => Hex,
        /// Active PHY type, one bit per type.
        @16    phy_low: u64 => Hex,
        /// More PHY types, one bit each.
        @24    phy_high: u64 => Hex,
    }
}

layout! {
    /// Parameters of "set event mask".
    pub struct SetEventMask[16] {
        /// Suppressed events, one bit each.
        @8   mask: u16 => Hex,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 0607 response from the recording `probe-synth-fd.aq.gz`.
    const UP: [u8; 32] = [
        0, 0, 0xe1, 0x81, 0, 0, 0, 0x26, 0, 0, 0, 4, 0, 0, 0, 0, //
        0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn link_up_status_matches_recorded_bytes() {
        let status = LinkStatus {
            up: true,
            port_up: true,
            media_available: true,
            signal: true,
            negotiated: true,
            module_qualified: true,
            max_frame: 9728,
            speed: 1 << 10,
            phy_low: 1 << 51,
            phy_high: 0,
        };
        assert_eq!(status.emit(), UP);
        assert_eq!(LinkStatus::parse(&UP), status);
    }

    /// Uses the 0600 response from the recording `probe-synth-fd.aq.gz`.
    #[test]
    fn phy_capabilities_match_recorded_bytes() {
        let capabilities = PhyCapabilities {
            phy_low: 1 << 51,
            abilities: PhyAbilities::from(0x9b),
            low_power: 4,
            fec: 0xc0,
            module_type: [0x80, 0x01, 0x86],
            ..PhyCapabilities::default()
        };
        let bytes = capabilities.emit();
        assert_eq!(bytes[..18], [0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x9b, 4]);
        assert_eq!(
            bytes[18..40],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc0, 0, 0, 0x80, 1, 0x86]
        );
        assert!(bytes[40..].iter().all(|byte| *byte == 0));
    }
}
