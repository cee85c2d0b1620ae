//! What this machine refuses to tests. `ci/test` finds it out before its first step (`find_limits` of `ci/common.sh`) and
//! passes it on, so that all steps skip for the same reason.

/// Something that not every machine allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Network namespaces with bridges, tunnels and taps.
    NetworkNamespaces,
    /// Mounts in a user namespace.
    Mounts,
}

impl Limit {
    /// Returns why this machine does not allow it, if that has been found. Without `ci/test` nothing has been.
    pub fn reason(self) -> Option<String> {
        let variable = match self {
            Self::NetworkNamespaces => "HCAD_NO_NETNS",
            Self::Mounts => "HCAD_NO_MOUNTS",
        };
        std::env::var(variable).ok().filter(|reason| !reason.is_empty())
    }
}
