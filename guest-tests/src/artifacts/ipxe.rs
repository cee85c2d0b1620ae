//! The boot loader iPXE, which brings drivers of its own for the cards that it boots from.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::apt::{Component, Suite};
use super::cache;
use super::packages::Set;

/// iPXE as an image that boots like a Linux kernel, fetched if it is not in the cache.
pub(super) fn image(cache: &Path) -> Result<PathBuf> {
    let set = Set {
        name: "iPXE",
        install: &["ipxe"],
        suite: Suite::Trixie,
        component: Component::Main,
        wanted: &|package| package.name == "ipxe",
    };
    let entry = cache::entry(cache, "ipxe-1", |work| set.fetch(work).map(drop))?;
    Ok(entry.join("root/usr/lib/ipxe/ipxe.lkrn"))
}
