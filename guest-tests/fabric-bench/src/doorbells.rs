//! How the doorbells of a ConnectX reach the device.

/// The value of a device's `doorbells` option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbells {
    /// Each doorbell is a message to the device.
    Trapped,
    /// The driver stores doorbells to memory that the device polls.
    Mapped,
}

impl Doorbells {
    pub(crate) const ALL: [Self; 2] = [Self::Trapped, Self::Mapped];

    /// Returns the infix for the names of results measured with these doorbells. It follows `connectx_` or `loopback_`.
    pub(crate) const fn infix(self) -> &'static str {
        match self {
            Self::Trapped => "",
            Self::Mapped => "mapped_",
        }
    }

    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Trapped => "trapped",
            Self::Mapped => "mapped",
        }
    }
}
