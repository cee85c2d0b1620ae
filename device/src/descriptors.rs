//! Descriptors, of which a process has a limited number and VMMs share theirs with it.

use std::fs::File;
use std::io;

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that the table of the process has room for from the start: those of 250 guests with 64 vectors each.
const ROOM: i32 = 16_384;

/// Raises the limit of this process as far as it may. The usual one is kept low for programs that use `select`, and a few
/// VMMs that share many memory files reach it.
///
/// Then it makes the table long. Where there are several threads, whoever opens a descriptor while the table grows waits until
/// every processor has noticed, which takes some ten milliseconds of a busy host. So this comes before any other thread.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // A refusal leaves what there was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let most =
        limit.maximum.and_then(|limit| i32::try_from(limit).ok()).map_or(ROOM, |limit| limit.min(ROOM));
    // The table keeps its length.
    let _ = open().map(|file| fcntl_dupfd_cloexec(file, most - 1));
}

/// A descriptor for nothing, given up so that a client can be accepted when there are no others left.
#[derive(Debug)]
pub struct Reserve(Option<File>);

impl Reserve {
    /// One, if there is one.
    pub fn new() -> Self {
        Self(open())
    }

    /// Makes room for another descriptor, if `error` says that there is none. Whether there is now.
    pub fn give_up(&mut self, error: &io::Error) -> bool {
        let exhausted = matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE));
        exhausted && self.0.take().is_some()
    }

    /// Has one again, if that is possible. After descriptors were closed: whoever waits for one comes first.
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
    fn a_reserve_is_given_up_once_and_only_for_want_of_descriptors() {
        let mut reserve = Reserve::new();
        assert!(!reserve.give_up(&io::Error::from(Errno::CONNABORTED)));
        let exhausted = io::Error::from(Errno::MFILE);
        assert!(reserve.give_up(&exhausted) && !reserve.give_up(&exhausted));
        reserve.refill();
        assert!(reserve.give_up(&exhausted));
    }
}
