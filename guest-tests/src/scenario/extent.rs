//! How much of a scenario to run. A scenario that takes minutes also has a shorter form, which `ci/test` always runs.

/// Selects the form of a scenario. Each form has its own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Every operation, but not in every combination.
    Core,
    /// All combinations, which take minutes.
    Full,
}

impl Extent {
    /// Returns `core` or `full`, depending on the extent.
    pub(super) const fn select<T: Copy>(self, core: T, full: T) -> T {
        match self {
            Self::Core => core,
            Self::Full => full,
        }
    }
}
