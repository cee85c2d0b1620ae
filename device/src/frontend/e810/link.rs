//! The port's PHY and link as the driver is told of them.
//!
//! # Spec
//! E810 interface, section 5.6.

use protocol::hca::e810::admin::link::{LinkStatus, PhyAbilities, PhyCapabilities};

use super::options::LinkSpeed;
use crate::net::Port;

/// Longest frame, with its check sequence.
pub const MAX_FRAME: u16 = 9728;

/// Both kinds of error correction that copper has, Reed-Solomon and fire code, can be asked for.
const FEC: u8 = 0xc0;
/// Low power modes: none is used.
const LOW_POWER: u8 = 4;
/// What a cable of directly attached copper says of itself.
const MODULE_TYPE: [u8; 3] = [0x80, 0x01, 0x86];

/// What no reset of the function changes.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    speed: LinkSpeed,
    /// The driver wants a link.
    enabled: bool,
}

impl Link {
    /// A link that the driver has not disabled.
    pub fn new(speed: LinkSpeed) -> Self {
        Self { speed, enabled: true }
    }

    /// Enables or disables the link for the driver. Whether that is a change.
    pub fn set_enabled(&mut self, enabled: bool) -> bool {
        std::mem::replace(&mut self.enabled, enabled) != enabled
    }

    /// Whether the driver wants a link.
    pub(super) const fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether frames cross it.
    pub fn is_up(&self, port: &Port) -> bool {
        self.enabled && port.is_up()
    }

    /// What the PHY can do. All modes of the question have one answer.
    pub fn phy(&self) -> PhyCapabilities {
        let mut abilities = PhyAbilities::TX_PAUSE
            | PhyAbilities::RX_PAUSE
            | PhyAbilities::AUTO_NEGOTIATION
            | PhyAbilities::AUTO_FEC;
        abilities.set(PhyAbilities::LINK_ENABLED, self.enabled);
        PhyCapabilities {
            phy_low: self.speed.phy(),
            phy_high: 0,
            abilities,
            low_power: LOW_POWER,
            fec: FEC,
            module_type: MODULE_TYPE,
        }
    }

    /// The state of the link. The medium stays available while it is down, or the driver would switch the PHY off and poll.
    pub fn status(&self, port: &Port, max_frame: u16) -> LinkStatus {
        let up = self.is_up(port);
        LinkStatus {
            up,
            port_up: up,
            media_available: true,
            signal: up,
            negotiated: up,
            module_qualified: true,
            max_frame,
            speed: if up { self.speed.bit() } else { 0 },
            phy_low: if up { self.speed.phy() } else { 0 },
            phy_high: 0,
        }
    }
}
