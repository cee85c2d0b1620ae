//! Determines which storage protocols the kernel's configuration includes.

use anyhow::{Context, Result, ensure};

use crate::report::Report;

/// Protocols that Debian's kernels lack, with the options that each protocol requires.
const LACKING: &[(&str, &[&str])] = &[
    ("SMB Direct server", &["CONFIG_SMB_SERVER_SMBDIRECT"]),
    ("SMB Direct client", &["CONFIG_CIFS_SMB_DIRECT"]),
    ("RTRS", &["CONFIG_INFINIBAND_RTRS_CLIENT", "CONFIG_INFINIBAND_RTRS_SERVER"]),
];

/// A kernel's build configuration.
#[derive(Clone, Debug)]
pub(super) struct Config(String);

impl Config {
    pub(super) const fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns whether an option is enabled, either built in or as a module. Options with unmet dependencies are
    /// missing from the configuration.
    pub(super) fn has(&self, option: &str) -> bool {
        let value = self.0.lines().find_map(|line| line.strip_prefix(option)?.strip_prefix('='));
        matches!(value, Some("y" | "m"))
    }

    /// Returns the first of `options` that is not enabled.
    pub(super) fn lacks<'a>(&self, options: &[&'a str]) -> Option<&'a str> {
        options.iter().copied().find(|option| !self.has(option))
    }
}

/// Runs a case, named after the missing option, for each protocol that Debian's kernels lack. The case fails if the
/// kernel supports the protocol after all, since no scenario tests it.
pub(super) async fn cases(report: &mut Report, hint: &str, config: &Config) -> Result<()> {
    for (protocol, options) in LACKING {
        let off = config.lacks(options);
        let name = match off {
            Some(option) => format!("{protocol}: this kernel was built without {option}"),
            None => format!("{protocol}: not supported by this kernel"),
        };
        let case = async {
            ensure!(config.has("CONFIG_NVME_RDMA"), "the kernel was configured without RDMA");
            off.map(drop).with_context(|| format!("the kernel enables {options:?}, which no scenario tests"))
        };
        report.case(&name, hint, case).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_enabled_as_module_counts_as_enabled() {
        let config = Config::new("CONFIG_A=y\nCONFIG_AB=m\n# CONFIG_C is not set\nCONFIG_D=\"y\"\n".into());
        assert!(config.has("CONFIG_A") && config.has("CONFIG_AB"));
        assert_eq!(config.lacks(&["CONFIG_A", "CONFIG_C", "CONFIG_E"]), Some("CONFIG_C"));
        assert!(!config.has("CONFIG_E") && !config.has("CONFIG_D"));
    }
}
