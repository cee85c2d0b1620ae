//! Where sockets are that nobody has named a place for.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// Where they are without a folder of the user's own.
const OF_THE_SYSTEM: &str = "/run/hcad";

/// The folder of this process: the one its service manager has made for it, else [`shared`].
pub fn own() -> PathBuf {
    // systemd.exec(5), RuntimeDirectory=: there may be several, with colons between them.
    let given = env::var("RUNTIME_DIRECTORY").unwrap_or_default();
    match given.split(':').next() {
        Some(first) if first.starts_with('/') => first.into(),
        _ => shared(),
    }
}

/// The folder where programs of this user find each other: below `$XDG_RUNTIME_DIR`, or `/run/hcad`.
pub fn shared() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if Path::new(&folder).is_absolute() => Path::new(&folder).join("hcad"),
        _ => OF_THE_SYSTEM.into(),
    }
}

/// The control socket in a folder.
pub fn control(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

/// The socket of a device in a folder.
pub fn device(folder: &Path, id: u16) -> PathBuf {
    folder.join(format!("hca{id}.sock"))
}

/// The folder of HCAs that reach each other through shared memory, in a folder.
pub fn ring(folder: &Path) -> PathBuf {
    folder.join("ring")
}

/// Makes the folder of a ring, unless it is there, for its user alone.
///
/// # Errors
/// It cannot be made.
pub fn make_ring(folder: &Path) -> io::Result<()> {
    let shared = shared();
    if folder.parent() == Some(&shared) {
        make(&shared)?;
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Makes a folder of this user alone, unless it is there.
///
/// # Errors
/// It cannot be made, or what is there is a link or others may write to it.
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

/// Makes it, unless it is there. Everybody may pass through: each socket says who may connect to it.
///
/// # Errors
/// It cannot be made.
pub fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}
