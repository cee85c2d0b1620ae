//! File descriptor limits. A process can have only a limited number of descriptors, and each VMM passes several of them
//! to hcad.

use std::fs::File;
use std::io;

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Initial size of the descriptor table, enough for 250 guests with 64 vectors each.
const TABLE_SIZE: i32 = 16_384;

/// Raises this process's descriptor limit to the maximum and enlarges its descriptor table.
///
/// The default soft limit is low for the sake of programs that use `select`. A few VMMs that share many memory files
/// can exhaust it.
///
/// Call this before creating other threads. In a process with several threads, growing the table waits for an RCU grace
/// period, which takes tens of milliseconds on a busy host.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the old limit stays in effect.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let most = limit
        .maximum
        .and_then(|limit| i32::try_from(limit).ok())
        .map_or(TABLE_SIZE, |limit| limit.min(TABLE_SIZE));
    // A high descriptor number makes the table grow, and closing the descriptor does not shrink it.
    let _ = open().map(|file| fcntl_dupfd_cloexec(file, most - 1));
}

/// A spare descriptor, released to accept a client when no other descriptors are left.
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

    /// Opens a spare descriptor again if possible. Call this after accepting or losing a client, since other
    /// descriptors may have been closed by then.
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
    fn spare_descriptor_is_released_once_per_refill() {
        let mut reserve = Reserve::new();
        assert!(!reserve.release(&io::Error::from(Errno::CONNABORTED)));
        let exhausted = io::Error::from(Errno::MFILE);
        assert!(reserve.release(&exhausted) && !reserve.release(&exhausted));
        reserve.refill();
        assert!(reserve.release(&exhausted));
    }
}
