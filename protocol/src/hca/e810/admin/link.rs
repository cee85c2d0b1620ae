//! PHY and link: 0600, 0601, 0605, 0607, 0613, 0620.
//!
//! # Spec
//! E810 interface, section 5.6.

use bitflags::bitflags;

use crate::describe::show_flags;
use crate::layout;

layout! {
    /// "Get PHY capabilities".
    pub struct GetPhyCapabilities[16] {
        /// Whether qualified modules are to be told.
        @2[0]    report_qualified: bool,
        /// 0 what there is without media, 1 with it, 2 what is configured, 4 the default.
        @2[3:1]  mode: u8,
    }
}

layout! {
    /// "Set MAC loopback".
    pub struct SetMacLoopback[16] {
        /// The MAC receives what it sends, and nothing from the wire.
        @0[0]    enable: bool,
    }
}

layout! {
    /// Answer of "get PHY capabilities".
    pub struct PhyCapabilities[560] {
        /// Kinds of PHY, a bit each.
        @0   phy_low: u64 => Hex,
        /// Further kinds.
        @8   phy_high: u64 => Hex,
        /// See [`PhyAbilities`].
        @16  abilities: PhyAbilities as u8,
        /// Modes of low power.
        @17  low_power: u8,
        /// Kinds of error correction.
        @34  fec: u8 => Hex,
        /// What the module says of itself.
        @37  module_type: [u8; 3],
    }
}

layout! {
    /// Buffer of "set PHY configuration".
    pub struct PhyConfig[24] {
        /// Kinds of PHY that may be used, a bit each.
        @0   phy_low: u64 => Hex,
        /// Further kinds.
        @8   phy_high: u64 => Hex,
        /// See [`PhyAbilities`].
        @16  abilities: PhyAbilities as u8,
    }
}

bitflags! {
    /// What a PHY can or is to do.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PhyAbilities: u32 {
        /// Sends pauses.
        const TX_PAUSE = 1 << 0;
        /// Obeys pauses.
        const RX_PAUSE = 1 << 1;
        /// The link is enabled.
        const LINK_ENABLED = 1 << 3;
        /// Negotiates.
        const AUTO_NEGOTIATION = 1 << 4;
        /// Of a configuration: it holds at once.
        const APPLY_NOW = 1 << 5;
        /// Chooses the error correction.
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
    /// "Restart auto-negotiation".
    pub struct RestartNegotiation[16] {
        /// Negotiate anew.
        @2[1]  restart: bool,
        /// Enable the link.
        @2[2]  enable: bool,
    }
}

layout! {
    /// "Get link status": what is asked, and in the answer whether events are enabled.
    pub struct GetLinkStatus[16] {
        /// [`EVENTS_DISABLE`], [`EVENTS_ENABLE`], or 0 to leave it. In the answer: 1 if they are enabled.
        @2[1:0]  events: u8,
    }
}

/// [`GetLinkStatus::events`]: no events from now on.
pub const EVENTS_DISABLE: u8 = 2;
/// [`GetLinkStatus::events`]: events from now on.
pub const EVENTS_ENABLE: u8 = 3;

layout! {
    /// State of the link.
    pub struct LinkStatus[32] {
        /// The link is up.
        @2[0]  up: bool,
        /// The port is up.
        @2[5]  port_up: bool,
        /// There is a module or cable.
        @2[6]  media_available: bool,
        /// There is a signal.
        @2[7]  signal: bool,
        /// Negotiation is completed.
        @3[0]  negotiated: bool,
        /// The module is one of those that were tested.
        @3[7]  module_qualified: bool,
        /// Longest frame.
        @6     max_frame: u16,
        /// Speed, a bit each.
        @10    speed: u16 => Hex,
        /// Kind of PHY, a bit each.
        @16    phy_low: u64 => Hex,
        /// Further kinds.
        @24    phy_high: u64 => Hex,
    }
}

layout! {
    /// "Set event mask".
    pub struct SetEventMask[16] {
        /// Events that are not wanted, a bit each.
        @8   mask: u16 => Hex,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0607 of `probe-synth-fd.aq.gz`.
    const UP: [u8; 32] = [
        0, 0, 0xe1, 0x81, 0, 0, 0, 0x26, 0, 0, 0, 4, 0, 0, 0, 0, //
        0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn a_link_that_is_up_is_told_as_recorded() {
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

    /// 0600 of `probe-synth-fd.aq.gz`.
    #[test]
    fn the_phy_is_told_as_recorded() {
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
