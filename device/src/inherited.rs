//! Sockets inherited from the parent process, with `--fd` or through systemd socket activation.
//!
//! The crate `listenfd` (1.0) is not used. It accepts sockets even if LISTEN_PID is missing, does not limit
//! LISTEN_FDS, ignores a LISTEN_FDS that is not a number, and does not check whether a socket is listening.
//!
//! # Spec
//! sd_listen_fds(3).

use std::collections::BTreeMap;
use std::env;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use card::vfio::server::{ListenError, Listener, Source};
use thiserror::Error;

/// The first descriptor that a service manager passes (`SD_LISTEN_FDS_START`).
const LISTEN_FDS_START: RawFd = 3;

/// Maximum number of inherited sockets, far more than any configuration uses.
const MAX_SOCKETS: usize = 4096;

/// Why an inherited descriptor is unusable.
#[derive(Debug, Error)]
pub enum InheritedError {
    /// A descriptor is not a suitable socket.
    #[error(transparent)]
    Descriptor(#[from] ListenError),
    /// The socket is connected, but a listening socket is required.
    #[error("LISTEN_FDS: file descriptor {0} is a connected socket; set Accept=no in the socket unit")]
    Connected(RawFd),
    /// LISTEN_FDS is not a number or is too large.
    #[error("LISTEN_FDS: {0:?} is not a number between 0 and {MAX_SOCKETS}")]
    Number(String),
    /// The configuration does not use the inherited socket.
    #[error(
        "LISTEN_FDS: {} is not used; set it as `socket_path` or `control_socket` in the configuration",
        .0.display()
    )]
    Unused(PathBuf),
}

/// Inherited sockets. They are used in place of newly created sockets.
#[derive(Debug, Default)]
pub struct Inherited {
    /// The socket for the only device, if that device has no configured path.
    only: Option<Source>,
    /// Whether `only` was ever set, even if a device has taken the socket since.
    had_only: bool,
    listening: BTreeMap<PathBuf, Arc<Listener>>,
}

impl Inherited {
    /// Adopts the sockets passed with `--fd` or through the environment. Call this once, before anything else opens a
    /// descriptor.
    ///
    /// # Errors
    /// [`InheritedError`] if a descriptor is unusable.
    pub fn take_over(fd: Option<RawFd>) -> Result<Self, InheritedError> {
        let only = fd.map(Source::from_inherited).transpose()?;
        let mut listening = BTreeMap::new();
        for number in passed()?.filter(|number| Some(*number) != fd) {
            let Source::Listener(listener) = Source::from_inherited(number)? else {
                return Err(InheritedError::Connected(number));
            };
            let path = listener.path().unwrap_or_else(|| format!("descriptor {number}").into());
            listening.insert(path, listener);
        }
        Ok(Self { had_only: only.is_some(), only, listening })
    }

    /// If exactly one listening socket was inherited, uses it for a device without a path, as if it had been passed
    /// with `--fd`.
    pub fn prefer_only(&mut self) {
        if !self.had_only
            && self.listening.len() == 1
            && let Some((_, listener)) = self.listening.pop_first()
        {
            self.only = Some(Source::Listener(listener));
            self.had_only = true;
        }
    }

    /// Returns whether a socket was inherited for a device without a path, even if it is already in use.
    pub fn has_only(&self) -> bool {
        self.had_only
    }

    /// Takes back a socket from a device that has ended. `path` is the device's configured path.
    pub fn put_back(&mut self, path: Option<&Path>, listener: Arc<Listener>) {
        match path {
            Some(path) => drop(self.listening.insert(path.to_owned(), listener)),
            None => self.only = Some(Source::Listener(listener)),
        }
    }

    /// Takes the socket for a device without a path.
    pub fn take_only(&mut self) -> Option<Source> {
        self.only.take()
    }

    /// Takes the socket that listens on `path`.
    pub fn take(&mut self, path: &Path) -> Option<Arc<Listener>> {
        // The configuration may contain a different path to the same file.
        let one_name = path.canonicalize();
        self.listening.remove(path).or_else(|| {
            let is_it =
                |there: &&PathBuf| matches!((&one_name, there.canonicalize()), (Ok(a), Ok(b)) if *a == b);
            let there = self.listening.keys().find(is_it)?.clone();
            self.listening.remove(&there)
        })
    }

    /// Checks that every socket is used. Clients of an unused socket would wait forever.
    ///
    /// # Errors
    /// [`InheritedError::Unused`] names an unused socket.
    pub fn check_used(&self) -> Result<(), InheritedError> {
        match self.listening.keys().next() {
            Some(path) => Err(InheritedError::Unused(path.clone())),
            None => Ok(()),
        }
    }
}

/// Returns the descriptors passed to this process by a service manager.
fn passed() -> Result<impl Iterator<Item = RawFd>, InheritedError> {
    // LISTEN_FDS applies only to the process that LISTEN_PID names, not to descendants that inherit both variables.
    let is_ours = env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    let count = match env::var("LISTEN_FDS") {
        Ok(text) if is_ours => {
            text.parse().ok().filter(|count| *count <= MAX_SOCKETS).ok_or(InheritedError::Number(text))?
        }
        _ => 0,
    };
    Ok((LISTEN_FDS_START..).take(count))
}
