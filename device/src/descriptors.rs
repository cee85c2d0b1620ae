//! Descriptors, of which a process has a limited number and VMMs share theirs with it.

use std::fs::File;
use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of this process as far as it may. The usual one is kept low for programs that use `select`, and a few
/// VMMs that share many memory files reach it.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // A refusal leaves what there was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
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
