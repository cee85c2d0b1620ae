//! `root` manages additional packages in the guests' root file system.

use anyhow::Result;

use crate::arch::Arch;
use crate::artifacts::{Added, PackageName, cache_dir, user_space};
use crate::report::line;
use crate::testbed::progress::Line;

/// Arguments of [`super::Command::Root`].
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Root {
    /// Add Debian packages and their dependencies
    Add {
        /// Debian trixie packages to add
        #[arg(required = true, value_name = "PACKAGE")]
        packages: Vec<PackageName>,
    },
    /// Remove added packages
    Remove {
        /// Packages to remove, as printed by `guest-lab root list`
        #[arg(required = true, value_name = "PACKAGE")]
        packages: Vec<PackageName>,
    },
    /// List the added packages
    List,
}

impl Root {
    /// Executes the command. The package list is changed only after the root file system has been built.
    ///
    /// # Errors
    /// Fails if a package cannot be fetched.
    pub(super) async fn run(self) -> Result<()> {
        let cache = cache_dir()?;
        let before = Added::read(&cache)?;
        let after = match self {
            Self::Add { packages } => before.with(packages),
            Self::Remove { packages } => before.without(&packages),
            Self::List => return before.names().try_for_each(line),
        };
        let progress = Line::begin("root filesystem");
        progress.show("rebuilding");
        tokio::task::spawn_blocking(move || {
            user_space(&cache, Arch::HOST, &after)?;
            after.write(&cache)
        })
        .await?
    }
}
