//! Default locations of sockets.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// Directory used if the user has no runtime directory.
const SYSTEM_DIRECTORY: &str = "/run/hcad";

/// Returns the directory for this process's sockets: the one created by the service manager, or else [`shared`].
pub fn own() -> PathBuf {
    let given = env::var("RUNTIME_DIRECTORY").unwrap_or_default();
    first(&given).map_or_else(shared, PathBuf::from)
}

/// Returns the first directory in the list from the service manager.
fn first(given: &str) -> Option<&str> {
    // systemd.exec(5), RuntimeDirectory=: the directories are separated by colons.
    given.split(':').next().filter(|first| first.starts_with('/'))
}

/// Returns the directory where a user's programs find each other's sockets: `$XDG_RUNTIME_DIR/hcad`, or `/run/hcad` if
/// `$XDG_RUNTIME_DIR` is not an absolute path.
pub fn shared() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if Path::new(&folder).is_absolute() => Path::new(&folder).join("hcad"),
        _ => SYSTEM_DIRECTORY.into(),
    }
}

/// Returns the path of the control socket in a directory.
pub fn control(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

/// Returns the path of a device's socket in a directory.
pub fn device(folder: &Path, id: u16) -> PathBuf {
    folder.join(format!("hca{id}.sock"))
}

/// Returns the default directory of the ring fabric. It is below [`own`], because a service cannot write to another
/// service's directory.
pub fn ring() -> PathBuf {
    own().join("ring")
}

/// Creates a ring's directory if it does not exist. Only this user can access the new directory.
///
/// # Errors
/// Fails if the directory cannot be created.
pub fn make_ring(folder: &Path) -> io::Result<()> {
    if let Some(above) = [own(), shared()].iter().find(|above| folder.parent() == Some(above.as_path())) {
        make(above)?;
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Creates a directory if it does not exist. Only this user can access the new directory.
///
/// # Errors
/// Fails if the directory cannot be created. Also fails if `folder` exists but is not a directory (for example, a
/// symbolic link), has a different owner, or is writable by others.
pub fn make_own(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let there = fs::symlink_metadata(folder)?;
            let is_own = there.uid() == geteuid().as_raw() && there.mode() & 0o022 == 0;
            if there.is_dir() && is_own { Ok(()) } else { Err(error) }
        }
        made => made,
    }
}

/// Creates a directory if it does not exist. Any user may traverse the directory; access is restricted by the mode of
/// each socket.
///
/// # Errors
/// Fails if the directory cannot be created.
pub fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_runtime_directory_is_used() {
        assert_eq!(first("/run/hcad/a:/run/hcad/b"), Some("/run/hcad/a"));
        assert_eq!(first("/run/hcad/a"), Some("/run/hcad/a"));
        assert_eq!((first(""), first("a:/b")), (None, None));
    }
}
