//! Features that this machine does not permit. `ci/test` determines them before its first step (`find_limits` in
//! `ci/common.sh`) and passes them to all steps, so that all steps skip tests for the same reasons.

/// A feature that some machines do not permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Creating network namespaces with bridges, tunnels and taps.
    NetworkNamespaces,
    /// Mounting file systems in a user namespace.
    Mounts,
}

impl Limit {
    /// Returns why this machine does not permit the feature, or `None` if it does or if `ci/test` has not determined
    /// the limits.
    pub fn reason(self) -> Option<String> {
        let variable = match self {
            Self::NetworkNamespaces => "HCAD_NO_NETNS",
            Self::Mounts => "HCAD_NO_MOUNTS",
        };
        std::env::var(variable).ok().filter(|reason| !reason.is_empty())
    }
}
