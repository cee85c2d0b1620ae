//! Features that are unavailable on this machine. `ci/test` detects them before its first step (`find_limits` in
//! `ci/common.sh`) and passes them to all steps, so that all steps skip tests for the same reasons.

/// A feature that is unavailable on some machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Creating network namespaces with bridges, tunnels and taps.
    NetworkNamespaces,
    /// Mounting file systems in a user namespace.
    Mounts,
}

impl Limit {
    /// Returns why the feature is unavailable, or `None` if it is available or if the test does not run under
    /// `ci/test`.
    pub fn reason(self) -> Option<String> {
        let variable = match self {
            Self::NetworkNamespaces => "HCAD_NO_NETNS",
            Self::Mounts => "HCAD_NO_MOUNTS",
        };
        std::env::var(variable).ok().filter(|reason| !reason.is_empty())
    }
}
