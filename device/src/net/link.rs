//! The link of a port.

/// Up while the cable is in and software has not disabled the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The cable, which is the operator's. Not of the device: no reset touches it.
    pub plugged: bool,
    /// What software makes of the port, until the next reset.
    pub enabled: bool,
}

impl Link {
    /// Whether frames can pass.
    pub const fn is_up(self) -> bool {
        self.plugged && self.enabled
    }
}

impl Default for Link {
    fn default() -> Self {
        Self { plugged: true, enabled: true }
    }
}
