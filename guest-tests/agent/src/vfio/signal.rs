//! Interrupt counters, implemented as eventfds.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _};
use std::time::Duration;

/// Counts the interrupts on one vector.
#[derive(Debug)]
pub(crate) struct Signal(File);

impl Signal {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call does not access memory. The returned descriptor is checked and then owned only by the
        // `File`.
        let file = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from_raw_fd(fd)
        };
        Ok(Self(file))
    }

    /// Waits for an interrupt. Returns the number of interrupts since the last call, or 0 after a timeout.
    pub(crate) fn wait(&self, limit: Duration) -> io::Result<u64> {
        let mut wanted = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timeout = libc::c_int::try_from(limit.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: `wanted` is a single entry, which outlives the call.
        if unsafe { libc::poll(&raw mut wanted, 1, timeout) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut count = [0; 8];
        match (&self.0).read_exact(&mut count) {
            Ok(()) => Ok(u64::from_ne_bytes(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn interrupts_accumulate_until_read() {
        let signal = Signal::new().unwrap();
        assert_eq!(signal.wait(Duration::ZERO).unwrap(), 0);
        for _ in 0..3 {
            (&signal.0).write_all(&1u64.to_ne_bytes()).unwrap();
        }
        assert_eq!(signal.wait(Duration::from_secs(60)).unwrap(), 3);
        assert_eq!(signal.wait(Duration::ZERO).unwrap(), 0);
    }
}
