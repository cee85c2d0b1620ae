//! The link of a port.

/// State of the link, which is up while the cable is plugged in and software has not disabled the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether the cable is plugged in. The operator controls this. A reset does not change it.
    pub plugged: bool,
    /// Whether software has enabled the port. A reset enables it.
    pub enabled: bool,
}

impl Link {
    /// Returns whether frames can pass.
    pub const fn is_up(self) -> bool {
        self.plugged && self.enabled
    }
}

impl Default for Link {
    fn default() -> Self {
        Self { plugged: true, enabled: true }
    }
}
