//! Guests whose root file system is the host's own.
//!
//! QEMU shares the host's whole root read-only over 9P, with the permissions of the user that runs QEMU. In the guest,
//! the root is the lower layer of an overlay, which lets programs change any file. The changes are kept in the guest's
//! memory and lost when it stops.
//!
//! The host may lack programs such as `ip` and `modprobe`. The guest is therefore set up from the initramfs, which
//! contains busybox and all drivers, before it enters the host's root.

use std::path::{Path, PathBuf};

use agent::wire::{EnterRoot, MountShare, System};
use anyhow::{Context, Result, ensure};

use crate::qemu::Share;
use crate::vm::Vm;

/// Mount tag of the host's root.
const ROOT_TAG: &str = "root";
/// Mount tag of the writable directory.
const WRITABLE_TAG: &str = "writable";
/// Directories that guests mount their own file systems on.
const OWN: &[&str] = &["/dev", "/proc", "/run", "/sys"];

/// The host's root file system as the root of a testbed's guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostRoot {
    /// Directory in which guests can change files on the host.
    pub writable: Option<PathBuf>,
}

impl HostRoot {
    /// Checks that a directory on the host is available at the same path in the guests.
    ///
    /// # Errors
    /// Fails if the guests have other files there or if the path is not UTF-8.
    pub(super) fn check(&self, folder: &Path) -> Result<()> {
        ensure!(folder.to_str().is_some(), "the path {} is not UTF-8", folder.display());
        let own = OWN.iter().find(|own| folder.starts_with(own));
        if let Some(own) = own.filter(|_| self.writable.as_deref() != Some(folder)) {
            anyhow::bail!(
                "guests do not see {}, because they have their own {own}; change to another directory, or pass --write",
                folder.display()
            );
        }
        Ok(())
    }

    /// Returns the directories that QEMU must share with the guest.
    pub(super) fn devices(&self) -> Vec<Share> {
        let share = |folder: &Path, tag: &str, read_only| Share {
            folder: folder.to_owned(),
            tag: tag.to_owned(),
            read_only,
        };
        let writable = self.writable.iter().map(|folder| share(folder, WRITABLE_TAG, false));
        std::iter::once(share(Path::new("/"), ROOT_TAG, true)).chain(writable).collect()
    }

    /// Switches a guest to the host's root.
    ///
    /// # Errors
    /// Fails if a file system cannot be mounted.
    pub(super) async fn enter(&self, vm: &mut Vm) -> Result<()> {
        let step = EnterRoot { system: System::Shared(ROOT_TAG.to_owned()), modules: None };
        vm.call(step).await.context("cannot mount the host's root file system")?;
        if let Some(folder) = &self.writable {
            let at =
                folder.to_str().with_context(|| format!("the path {} is not UTF-8", folder.display()))?;
            let step = MountShare { tag: WRITABLE_TAG.to_owned(), at: at.to_owned(), read_only: false };
            vm.call(step).await.with_context(|| format!("cannot mount {at}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_directories_not_available_in_guests() {
        let read_only = HostRoot::default();
        for folder in ["/home/me", "/tmp/x", "/devel", "/"] {
            read_only.check(Path::new(folder)).unwrap();
        }
        for folder in ["/dev/shm/x", "/run/user/1000", "/proc"] {
            assert!(
                read_only.check(Path::new(folder)).unwrap_err().to_string().contains("--write"),
                "{folder}"
            );
        }
        let writable = HostRoot { writable: Some("/run/user/1000".into()) };
        writable.check(Path::new("/run/user/1000")).unwrap();
    }

    #[test]
    fn only_writable_directory_is_shared_read_write() {
        let shares = HostRoot { writable: Some("/home/me".into()) }.devices();
        let shares: Vec<_> =
            shares.iter().map(|share| (share.folder.to_str().unwrap(), share.read_only)).collect();
        assert_eq!(shares, [("/", true), ("/home/me", false)]);
    }
}
