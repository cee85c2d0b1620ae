//! Opens files that reveal guest and peer activity. A new file is accessible only to the user that runs this process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use libc::{c_int, c_void, siginfo_t};
use rustix::fs::{Mode, OFlags, fchmod, fcntl_getfl, fcntl_setfl, fstat};
use vmm_sys_util::signal::register_signal_handler;

const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Creates the file at `path` or truncates an existing file, which keeps its mode.
///
/// # Errors
/// Fails if the file cannot be created or opened, or if it is a FIFO that no program reads.
pub fn create(path: &Path) -> io::Result<File> {
    create_or(path, OpenOptions::new().write(true).truncate(true))
}

/// Creates the file at `path` or opens an existing file for appending.
///
/// # Errors
/// Fails if the file cannot be created or opened, or if it is a FIFO that no program reads.
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
            open_existing(path, options.create_new(false).create(true))
        }
        created => created,
    }
}

fn open_existing(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // open(2): without O_NONBLOCK, opening a FIFO would wait for a reader. The waiting thread may be the one that
    // handles signals and control requests.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = options.custom_flags(flags).open(path).map_err(|error| {
        let is_fifo = fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo());
        match error.raw_os_error() {
            Some(libc::ENXIO) if is_fifo => io::Error::other("no program has opened the FIFO for reading"),
            _ => error,
        }
    })?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
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
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use rustix::fs::{CWD, FileType, mknodat};

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

    #[test]
    fn opening_fifo_without_reader_fails() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for open in [create, append] {
            let (done, opened) = mpsc::channel();
            let path = path.clone();
            thread::spawn(move || done.send(open(&path).map(drop).map_err(|error| error.to_string())));
            let opened = opened.recv_timeout(Duration::from_secs(60)).expect("opening the FIFO blocks");
            assert_eq!(opened, Err("no program has opened the FIFO for reading".to_owned()));
        }
        // If there is a reader, the file is in blocking mode: a write to a full FIFO waits.
        let _reader = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        let file = append(&path).unwrap();
        assert_eq!(fcntl_getfl(&file).unwrap() & (OFlags::NONBLOCK | OFlags::APPEND), OFlags::APPEND);
    }
}
