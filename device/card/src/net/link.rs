//! Link state of a port.

/// State of the link, which is up if the cable is plugged in and the port is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether the cable is plugged in. Only the operator changes this.
    pub plugged: bool,
    /// Whether software has enabled the port. A reset enables it.
    pub enabled: bool,
}

impl Link {
    pub const fn is_up(self) -> bool {
        self.plugged && self.enabled
    }
}

impl Default for Link {
    fn default() -> Self {
        Self { plugged: true, enabled: true }
    }
}
