//! Opens files that reveal guest and peer activity. A new file is accessible only to the user that runs this process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use libc::{c_int, c_void, siginfo_t};
use rustix::fs::{Mode, fchmod, fstat};
use vmm_sys_util::signal::register_signal_handler;

const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Creates the file at `path` or truncates an existing file, which keeps its mode.
///
/// # Errors
/// Fails if the file cannot be created or opened.
pub fn create(path: &Path) -> io::Result<File> {
    create_or(path, OpenOptions::new().write(true).truncate(true))
}

/// Creates the file at `path` or opens an existing file for appending.
///
/// # Errors
/// Fails if the file cannot be created or opened.
pub fn append(path: &Path) -> io::Result<File> {
    create_or(path, OpenOptions::new().append(true))
}

/// Creates the file at `path`, which must not exist. This neither overwrites a file nor blocks on a FIFO.
///
/// # Errors
/// Fails if the file exists or cannot be created.
pub fn create_new(path: &Path) -> io::Result<File> {
    private(path, OpenOptions::new().write(true))
}

/// Makes a write beyond RLIMIT_FSIZE fail like a write to a full disk. By default, SIGXFSZ would kill the
/// process, and with it the devices of all guests.
///
/// # Errors
/// Fails if the handler cannot be installed.
pub fn survive_size_limit() -> io::Result<()> {
    // An empty handler suffices, because the interrupted system call returns EFBIG.
    extern "C" fn nothing(_: c_int, _: *mut siginfo_t, _: *mut c_void) {}
    register_signal_handler(libc::SIGXFSZ, nothing)
        .map_err(|error| io::Error::from_raw_os_error(error.errno()))
}

fn create_or(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    match private(path, options) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            options.create_new(false).create(true).open(path)
        }
        created => created,
    }
}

fn private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.create_new(true).mode(PRIVATE.bits()).open(path)?;
    // Restore any of the owner's permissions that the umask removed. Skip `fchmod` if none are missing, because it
    // fails in a sandboxed process.
    if Mode::from_raw_mode(fstat(&file)?.st_mode) != PRIVATE {
        fchmod(&file, PRIVATE)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn create_sets_mode_only_on_new_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        create(&path).unwrap();
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::fs::write(&path, "old").unwrap();
        create(&path).unwrap();
        assert_eq!((mode(), std::fs::read(&path).unwrap().len()), (0o640, 0));
        assert_eq!(create_new(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
