//! Creates listening sockets and accepts clients.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, chownat, flock, fstat, open};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, shutdown};
use rustix::process::umask;
use thiserror::Error;

use crate::log_line;

/// Maximum number of clients waiting to be accepted.
const BACKLOG: i32 = 128;

/// Maximum total time to wait for directory locks within a [`LOCK_WINDOW`]. Other daemons hold such a lock only
/// briefly. A lock that is held longer is ignored, because any user can lock a shared directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Period after which the full [`LOCK_TIMEOUT`] is available again. Start-up takes less time, even with many devices.
/// All waits during start-up therefore share one [`LOCK_TIMEOUT`].
const LOCK_WINDOW: Duration = Duration::from_secs(60);

/// Pause between two attempts to lock a directory.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// An error from creating or taking over a listening socket.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another process is listening on this path.
    #[error("{}: another process is listening on this socket", .0.display())]
    InUse(PathBuf),
    /// The path exists and is not a socket.
    #[error("{}: the file exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The path cannot be bound.
    #[error("{}: cannot listen: {error}", path.display())]
    Bind { path: PathBuf, error: io::Error },
    /// The mode or group of the socket file cannot be set.
    #[error("{}: cannot set the socket permissions to {access}: {error}", path.display())]
    Access { path: PathBuf, access: Access, error: io::Error },
    /// The inherited descriptor is not a usable socket.
    #[error("file descriptor {fd} {reason}")]
    Descriptor { fd: RawFd, reason: &'static str },
}

/// Access to a socket: the mode and the group of its file. The mode is set regardless of the umask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub mode: Mode,
    /// Group of the file. `None` keeps the group assigned by the kernel, which is the group of the process or of the
    /// directory.
    pub group: Option<Gid>,
}

impl Access {
    /// Grants access only to this process's user.
    pub const PRIVATE: Self = Self { mode: Mode::RUSR.union(Mode::WUSR), group: None };
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mode {:04o}", self.mode.bits())?;
        self.group.map_or(Ok(()), |group| write!(f, " and group {}", group.as_raw()))
    }
}

/// A listening socket. Dropping the listener removes the socket file, if this process created it.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    /// Path, device number and inode number of the file, if this process created it.
    file: Option<(PathBuf, u64, u64)>,
}

#[derive(Debug)]
pub enum Source {
    /// A listening socket, which serves one client at a time.
    Listener(Arc<Listener>),
    /// A connected client. The device stops when the client disconnects.
    Client(UnixStream),
}

impl Listener {
    /// Listens on `path` and grants access only to this process's user. Replaces a socket file left behind by a process
    /// that has exited.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        Self::bind_for(path, Access::PRIVATE)
    }

    /// Duplicates the socket as a non-blocking listener. The socket file is still removed when `self` is dropped.
    ///
    /// # Errors
    /// Fails if the process has reached its descriptor limit.
    pub fn try_clone(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// Listens on `path` with the given access.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind_for(path: &Path, access: Access) -> Result<Self, ListenError> {
        let bind_error = |error| ListenError::Bind { path: path.to_path_buf(), error };
        // Two processes that find the same stale file must not both replace it: the second process must find the
        // first's socket. The lock is on the directory and does not leave a file behind.
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let folder = File::open(folder).map_err(bind_error)?;
        lock(&folder, path).map_err(|error| bind_error(error.into()))?;

        remove_stale(path)?;
        let listener = listen(path, access)?;
        listener.set_nonblocking(true).map_err(bind_error)?;
        let made = std::fs::symlink_metadata(path).map_err(bind_error)?;
        Ok(Self { listener, file: Some((path.to_path_buf(), made.dev(), made.ino())) })
    }

    /// Returns whether the socket was inherited. An inherited socket cannot be recreated.
    pub fn is_passed(&self) -> bool {
        self.file.is_none()
    }

    /// Returns the path that the socket listens on, if it has one.
    pub fn path(&self) -> Option<PathBuf> {
        self.listener.local_addr().ok()?.as_pathname().map(Path::to_path_buf)
    }

    /// Removes the socket file unless another process has replaced it. After that, new clients cannot connect.
    pub fn remove_file(&self) {
        if let Some((path, device, inode)) = &self.file {
            let ours =
                std::fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (*device, *inode));
            if ours {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Returns the next waiting client, if any.
    ///
    /// # Errors
    /// Fails if the socket has failed or if the process has reached its descriptor limit.
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.listener.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {
                    Ok(None)
                }
                _ => Err(error),
            },
        }
    }
}

impl Source {
    /// Takes over an inherited descriptor: a Unix socket, listening or connected.
    ///
    /// # Errors
    /// Fails with [`ListenError::Descriptor`] if the descriptor is not such a socket.
    pub fn from_inherited(fd: RawFd) -> Result<Self, ListenError> {
        let wrong = |reason| ListenError::Descriptor { fd, reason };
        if fd <= 2 {
            return Err(wrong("is a standard stream"));
        }
        // This also checks that the descriptor is open, before an `OwnedFd` takes it over.
        std::fs::metadata(format!("/proc/self/fd/{fd}"))
            .ok()
            .filter(|metadata| metadata.file_type().is_socket())
            .ok_or(wrong("is not an open socket"))?;
        // SAFETY: the descriptor is open, as just checked. Its number was passed to the process at start, each number
        // is adopted only once, and this happens before the process opens any descriptors of its own. No other code
        // therefore owns the descriptor.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        if !socket_domain(&owned).is_ok_and(|family| family == AddressFamily::UNIX) {
            return Err(wrong("is not a Unix socket"));
        }
        if !socket_type(&owned).is_ok_and(|kind| kind == SocketType::STREAM) {
            return Err(wrong("is not a stream socket"));
        }
        if socket_acceptconn(&owned).is_ok_and(|listening| listening) {
            let listener = UnixListener::from(owned);
            listener.set_nonblocking(true).map_err(|_| wrong("cannot be made non-blocking"))?;
            return Ok(Self::Listener(Arc::new(Listener { listener, file: None })));
        }
        let stream = UnixStream::from(owned);
        stream.peer_addr().map_err(|_| wrong("is neither listening nor connected"))?;
        Ok(Self::Client(stream))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove_file();
    }
}

/// Locks a directory until `folder` is closed, or continues without the lock after a timeout. Without a lock, two
/// daemons that start concurrently may both replace a stale file, which makes one of them unreachable.
fn lock(folder: &File, path: &Path) -> rustix::io::Result<()> {
    static WAITED: Mutex<Waited> = Mutex::new(Waited { since: None, total: Duration::ZERO });
    let begun = Instant::now();
    let mut waited = WAITED.lock().unwrap_or_else(PoisonError::into_inner);
    let end = begun + waited.left(begun);
    let locked = loop {
        match flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => thread::sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => {
                log_line!(warn, socket = %path.display(), "another process is holding the lock on the socket directory; continuing without the lock");
                break Ok(());
            }
            Err(Errno::INTR) => {}
            locked => break locked,
        }
    };
    waited.total += begun.elapsed();
    locked
}

struct Waited {
    since: Option<Instant>,
    total: Duration,
}

impl Waited {
    /// Returns how much of [`LOCK_TIMEOUT`] is left.
    fn left(&mut self, now: Instant) -> Duration {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= LOCK_WINDOW) {
            *self = Self { since: Some(now), total: Duration::ZERO };
        }
        LOCK_TIMEOUT.saturating_sub(self.total)
    }
}

/// Creates a listening socket with the given access. Since the file gets its group and mode before the socket listens,
/// a user without this access can never connect.
fn listen(path: &Path, access: Access) -> Result<UnixListener, ListenError> {
    let bind_error = |error: Errno| ListenError::Bind { path: path.to_path_buf(), error: error.into() };
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(bind_error)?;
    let address = SocketAddrUnix::new(path).map_err(bind_error)?;
    bind_with(&socket, &address, access.mode).map_err(bind_error)?;
    let given = set_group(path, access).and_then(|()| rustix::net::listen(&socket, BACKLOG));
    given.map_err(|error| {
        let _ = std::fs::remove_file(path);
        ListenError::Access { path: path.to_path_buf(), access, error: error.into() }
    })?;
    Ok(UnixListener::from(socket))
}

/// Binds the socket with file mode `mode` by setting the umask, since a sandboxed process cannot change modes. The
/// umask applies to all threads, but it can only remove permissions, so private files that other threads create in the
/// meantime stay private.
fn bind_with(socket: &OwnedFd, address: &SocketAddrUnix, mode: Mode) -> rustix::io::Result<()> {
    static UMASK: Mutex<()> = Mutex::new(());
    let _ours = UMASK.lock().unwrap_or_else(PoisonError::into_inner);
    let before = umask((Mode::RWXU | Mode::RWXG | Mode::RWXO) - mode);
    let bound = rustix::net::bind(socket, address);
    umask(before);
    bound
}

fn set_group(path: &Path, access: Access) -> rustix::io::Result<()> {
    // Use a descriptor so that the changed file is the one that was checked, even if other users can write to the
    // directory.
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::Socket {
        return Err(Errno::NOTSOCK);
    }
    match access.group {
        Some(_) => chownat(&file, "", None, access.group, AtFlags::EMPTY_PATH),
        None => Ok(()),
    }
}

/// Removes a socket file that no process listens on.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let bind_error = |error| ListenError::Bind { path: path.to_path_buf(), error };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(bind_error(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ListenError::NotASocket(path.to_path_buf()));
        }
        Ok(_) => {}
    }
    match probe(path) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(bind_error),
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::PROTOTYPE | Errno::ISCONN) => Err(ListenError::InUse(path.to_path_buf())),
        Err(error) => Err(bind_error(error.into())),
    }
}

/// Checks, without connecting to the server, whether a socket is in use. For a SEQPACKET connection to a stream socket,
/// Linux returns EPROTOTYPE, or ECONNREFUSED if no process has the socket open.
fn probe(path: &Path) -> rustix::io::Result<()> {
    let address = SocketAddrUnix::new(path)?;
    match PROBE.get() {
        Some(kept) => rustix::net::connect(kept, &address),
        None => rustix::net::connect(&make_probe()?, &address),
    }
}

/// Creates a socket that can connect but cannot send.
fn make_probe() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    shutdown(&probe, Shutdown::Both)?;
    Ok(probe)
}

/// The probe socket. It is created before the process enters the sandbox, because some configurations of the sandbox
/// permit no other socket to connect.
static PROBE: OnceLock<OwnedFd> = OnceLock::new();

/// Creates the probe socket, which is used to check whether a socket is in use. This function must be called before the
/// process enters the sandbox.
///
/// # Errors
/// Fails if the process has reached its descriptor limit.
pub fn keep_probe() -> io::Result<BorrowedFd<'static>> {
    let made = make_probe()?;
    Ok(PROBE.get_or_init(|| made).as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_socket_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hca.sock");
        // Like a killed process, a dropped `UnixListener` leaves its file behind.
        drop(UnixListener::bind(&path).unwrap());
        let live = Listener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path), Err(ListenError::InUse(_))));
        drop(live);
        assert!(!path.exists());
    }

    #[test]
    fn locked_directory_delays_only_first_few_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let holder = File::open(folder.path()).unwrap();
        flock(&holder, FlockOperation::LockExclusive).unwrap();
        let begun = Instant::now();
        let paths: Vec<_> = (0..100).map(|id| folder.path().join(format!("{id}.sock"))).collect();
        let _listeners: Vec<_> = paths.iter().map(|path| Listener::bind(path).unwrap()).collect();
        assert!(begun.elapsed() < 60 * LOCK_TIMEOUT, "only the first sockets may wait for the lock");
        UnixStream::connect(&paths[0]).unwrap();
    }

    #[test]
    fn all_directory_locks_share_one_time_limit() {
        let (mut waited, start) = (Waited { since: None, total: Duration::ZERO }, Instant::now());
        assert_eq!(waited.left(start), LOCK_TIMEOUT);
        waited.total += LOCK_TIMEOUT / 4;
        assert_eq!(waited.left(start), LOCK_TIMEOUT * 3 / 4);
        waited.total += LOCK_TIMEOUT;
        assert_eq!(waited.left(start + LOCK_WINDOW / 2), Duration::ZERO);
        assert_eq!(waited.left(start + LOCK_WINDOW), LOCK_TIMEOUT);
    }

    #[test]
    fn regular_file_at_path_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "x").unwrap();
        assert!(matches!(Listener::bind(&path), Err(ListenError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
    }

    #[test]
    fn replaced_socket_file_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hca.sock");
        let first = Listener::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _second = Listener::bind(&path).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn socket_is_private_by_default() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hca.sock");
        let mode = || std::fs::metadata(&path).unwrap().mode() & 0o7777;
        let private = Listener::bind(&path).unwrap();
        assert_eq!(mode(), 0o600);
        UnixStream::connect(&path).unwrap();
        drop(private);
        // The usual umask would remove permissions from this mode.
        let access = Access { mode: Mode::from_raw_mode(0o666), group: Some(rustix::process::getegid()) };
        let _shared = Listener::bind_for(&path, access).unwrap();
        assert_eq!(mode(), 0o666);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn probe_does_not_reach_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hca.sock");
        let live = Listener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path), Err(ListenError::InUse(_))));
        assert!(live.accept().unwrap().is_none(), "the probe must not connect to the server");
        // A socket that is bound but not yet listening is also in use.
        let bound = folder.path().join("bound.sock");
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&bound).unwrap()).unwrap();
        assert!(matches!(Listener::bind(&bound), Err(ListenError::InUse(_))));
    }

    #[test]
    fn listen_error_contains_path() {
        let error = Listener::bind(Path::new("/nonexistent/folder/x.sock")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/folder/x.sock: cannot listen:"), "{error}");
    }

    #[test]
    fn inherited_descriptor_must_be_unix_stream_socket() {
        use std::os::fd::IntoRawFd;
        use std::os::unix::net::UnixDatagram;

        let folder = tempfile::tempdir().unwrap();
        let listening = UnixListener::bind(folder.path().join("a")).unwrap().into_raw_fd();
        assert!(matches!(Source::from_inherited(listening), Ok(Source::Listener(_))));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(matches!(Source::from_inherited(ours.into_raw_fd()), Ok(Source::Client(_))));
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into_raw_fd();
        let error = Source::from_inherited(udp).unwrap_err();
        assert_eq!(error.to_string(), format!("file descriptor {udp} is not a Unix socket"));
        let (datagrams, _theirs) = UnixDatagram::pair().unwrap();
        let datagrams = datagrams.into_raw_fd();
        let error = Source::from_inherited(datagrams).unwrap_err();
        assert_eq!(error.to_string(), format!("file descriptor {datagrams} is not a stream socket"));
        assert!(Source::from_inherited(1).is_err());
        assert!(Source::from_inherited(9_999).is_err());
    }
}
