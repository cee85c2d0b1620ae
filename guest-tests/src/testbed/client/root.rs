//! `root`: what the guests' user space has beside what all have.

use anyhow::Result;

use crate::artifacts::{Added, PackageName, cache_dir, user_space};
use crate::report::line;
use crate::testbed::progress::Line;

/// See [`super::Command::Root`].
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Root {
    /// Adds Debian packages with all they depend on, for guests that `up` and `ci` boot from now on
    Add {
        /// Packages of Debian trixie
        #[arg(required = true, value_name = "PACKAGE")]
        packages: Vec<PackageName>,
    },
    /// Takes packages out that were added
    Remove {
        /// As `list` names them
        #[arg(required = true, value_name = "PACKAGE")]
        packages: Vec<PackageName>,
    },
    /// Names what was added
    List,
}

impl Root {
    /// Does it. The list changes when the user space has been made.
    ///
    /// # Errors
    /// When a package cannot be fetched.
    pub(super) async fn run(self) -> Result<()> {
        let cache = cache_dir()?;
        let before = Added::read(&cache)?;
        let after = match self {
            Self::Add { packages } => before.with(packages),
            Self::Remove { packages } => before.without(&packages),
            Self::List => return before.names().try_for_each(line),
        };
        let progress = Line::begin("user space");
        progress.say("being made");
        tokio::task::spawn_blocking(move || {
            user_space(&cache, &after)?;
            after.write(&cache)
        })
        .await?
    }
}
