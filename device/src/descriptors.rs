//! Manages file descriptors. The number of descriptors in a process is limited, and each VMM passes several to this
//! process.

use std::fs::File;
use std::io;

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Initial size of the descriptor table: enough for 250 guests with 64 vectors each.
const ROOM: i32 = 16_384;

/// Raises the descriptor limit of this process to the maximum and enlarges its descriptor table.
///
/// The usual soft limit is kept low for programs that use `select`. A few VMMs that share many memory files can exhaust
/// that limit.
///
/// If a process has several threads, growing the table blocks until every CPU has passed through the
/// scheduler, which takes tens of milliseconds on a busy host. Therefore, call this before creating other
/// threads.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the old limit remains.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let most =
        limit.maximum.and_then(|limit| i32::try_from(limit).ok()).map_or(ROOM, |limit| limit.min(ROOM));
    // The table keeps its size after this descriptor has been closed.
    let _ = open().map(|file| fcntl_dupfd_cloexec(file, most - 1));
}

/// A spare descriptor. When no other descriptors are left, it is released so that a client can be accepted.
#[derive(Debug)]
pub struct Reserve(Option<File>);

impl Reserve {
    /// Opens a spare descriptor if possible.
    pub fn new() -> Self {
        Self(open())
    }

    /// Releases the spare descriptor if `error` means that no descriptors are left. Returns whether a descriptor is now
    /// free.
    pub fn release(&mut self, error: &io::Error) -> bool {
        let exhausted = matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE));
        exhausted && self.0.take().is_some()
    }

    /// Opens a spare descriptor again if possible. Call this when descriptors may have become free, and only after the
    /// waiting client has been accepted.
    pub fn refill(&mut self) {
        if self.0.is_none() {
            self.0 = open();
        }
    }
}

impl Default for Reserve {
    fn default() -> Self {
        Self::new()
    }
}

fn open() -> Option<File> {
    File::open("/dev/null").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_descriptor_is_released_once_on_emfile() {
        let mut reserve = Reserve::new();
        assert!(!reserve.release(&io::Error::from(Errno::CONNABORTED)));
        let exhausted = io::Error::from(Errno::MFILE);
        assert!(reserve.release(&exhausted) && !reserve.release(&exhausted));
        reserve.refill();
        assert!(reserve.release(&exhausted));
    }
}
