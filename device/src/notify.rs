//! Notifies the service manager of the daemon's state and sends watchdog notifications.
//!
//! The socket is connected at startup, before the sandbox forbids it. Without a service manager, nothing is sent. Send
//! errors are ignored.
//!
//! The crate `sd-notify` (0.5) is not used. It opens and connects a datagram socket for each message, which the sandbox
//! forbids, and does not support abstract socket names.
//!
//! # Spec
//! sd_notify(3), systemd.service(5) for `WatchdogSec=`.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Connection to the service manager, if one exists.
#[derive(Debug, Default)]
pub struct Notify {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

impl Notify {
    /// Connects to the socket that NOTIFY_SOCKET names, if the variable is set.
    ///
    /// # Errors
    /// Fails if the socket cannot be reached.
    pub fn from_environment() -> io::Result<Self> {
        let socket = match env::var_os("NOTIFY_SOCKET") {
            Some(name) if !name.is_empty() => Some(connect(&name)?),
            _ => None,
        };
        // WATCHDOG_PID is not this process's PID if the watchdog was set up for a parent that did not clear the
        // variables.
        let is_ours = env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        let micros = env::var("WATCHDOG_USEC").ok().and_then(|micros| micros.parse().ok());
        let watchdog = micros.filter(|micros| is_ours && *micros > 0).map(Duration::from_micros);
        Ok(Self { socket, watchdog })
    }

    /// Returns the interval for watchdog notifications, which is half the watchdog timeout.
    pub fn interval(&self) -> Option<Duration> {
        self.socket.as_ref().and(self.watchdog).map(|watchdog| watchdog / 2)
    }

    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000);
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Sends a watchdog notification.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(message.as_bytes());
        }
    }
}

/// Connects to `name`, which is either a path or `@` followed by an abstract socket name.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    match name.as_bytes() {
        [b'/', ..] => socket.connect(name)?,
        [b'@', name @ ..] => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        _ => return Err(io::Error::other("must be a path or an abstract socket name")),
    }
    Ok(socket)
}
