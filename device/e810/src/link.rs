//! PHY and link state as reported to the driver.
//!
//! # Spec
//! E810 interface, section 5.6.

use card::net::Port;
use protocol::hca::e810::admin::link::{LinkStatus, PhyAbilities, PhyCapabilities, PhyConfig, REPORT_ACTIVE};

use super::options::LinkSpeed;

/// Maximum frame size in bytes, including the FCS.
pub const MAX_FRAME: u16 = 9728;

/// FEC options of the PHY: Reed-Solomon and Firecode (BASE-R).
const FEC: u8 = 0xc0;
/// Low-power byte of the PHY capabilities (E810 interface, section 5.6).
const LOW_POWER: u8 = 4;
/// Module type bytes of a direct attach copper cable.
const MODULE_TYPE: [u8; 3] = [0x80, 0x01, 0x86];

/// Link state that survives a function reset.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    speed: LinkSpeed,
    /// Whether the driver has enabled the link. The port has the same setting.
    enabled: bool,
    /// Last configuration that the driver has set.
    config: Option<PhyConfig>,
    /// Whether the link is reported as down because it restarts.
    restarting: bool,
}

impl Link {
    pub fn new(speed: LinkSpeed) -> Self {
        Self { speed, enabled: true, config: None, restarting: false }
    }

    /// Stores a configuration, which the driver can read back. The settings have no other effect.
    pub fn configure(&mut self, config: PhyConfig) {
        self.config = Some(config);
    }

    /// Reports the link as down until [`Link::finish_restart`].
    pub fn restart(&mut self) {
        self.restarting = true;
    }

    /// Ends the restart. Returns whether the link was restarting.
    pub fn finish_restart(&mut self) -> bool {
        std::mem::take(&mut self.restarting)
    }

    /// Enables or disables the link on behalf of the driver. Returns whether the setting changed.
    pub fn set_enabled(&mut self, enabled: bool) -> bool {
        std::mem::replace(&mut self.enabled, enabled) != enabled
    }

    pub(super) const fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the PHY capabilities. If `mode` selects the active configuration, returns the one that the driver has
    /// set. In all other modes, the capabilities are the same.
    pub fn phy(&self, mode: u8) -> PhyCapabilities {
        let abilities = PhyAbilities::TX_PAUSE
            | PhyAbilities::RX_PAUSE
            | PhyAbilities::AUTO_NEGOTIATION
            | PhyAbilities::AUTO_FEC;
        let mut phy = PhyCapabilities {
            phy_low: self.speed.phy(),
            phy_high: 0,
            abilities,
            low_power: LOW_POWER,
            fec: FEC,
            module_type: MODULE_TYPE,
        };
        if let Some(config) = self.config.filter(|_| mode == REPORT_ACTIVE) {
            phy.abilities = (config.abilities - PhyAbilities::APPLY_NOW) | PhyAbilities::AUTO_NEGOTIATION;
            (phy.phy_low, phy.phy_high) = (config.phy_low, config.phy_high);
            (phy.low_power, phy.fec) = (config.low_power, config.fec);
        }
        phy.abilities.set(PhyAbilities::LINK_ENABLED, self.enabled);
        phy
    }

    /// Returns the link status. Media is always reported as available, because `ice` would otherwise power down the PHY
    /// and poll for media.
    pub fn status(&self, port: &Port, max_frame: u16) -> LinkStatus {
        let up = port.is_up() && !self.restarting;
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
