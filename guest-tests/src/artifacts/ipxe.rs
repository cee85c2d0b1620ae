//! The iPXE boot loader, which boots over the network using its own NIC drivers.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::apt::{Component, Release, Suite};
use super::cache;
use super::packages::Set;
use crate::arch::Arch;

/// Returns iPXE as an image that boots like a Linux kernel. Fetches iPXE if it is not in the cache.
pub(super) fn image(cache: &Path) -> Result<PathBuf> {
    let set = Set {
        name: "iPXE",
        install: &["ipxe"],
        arch: Arch::HOST,
        release: Release::Stable(Suite::Trixie),
        component: Component::Main,
        wanted: &|package| package.name == "ipxe",
    };
    let entry = cache::entry(cache, "ipxe-1", |work| set.fetch(work).map(drop))?;
    Ok(entry.join("root/usr/lib/ipxe/ipxe.lkrn"))
}
