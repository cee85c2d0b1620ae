//! Counts datagrams that the kernel dropped because the socket buffer was full.

use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use engine::Instant;

/// Interval at which the counter is read while frames arrive.
const PERIOD: Duration = Duration::from_secs(1);

/// Number of `SO_MEMINFO` words up to and including the drop counter (linux/sock_diag.h: `SK_MEMINFO_DROPS` is
/// 8).
const WORDS: usize = 9;

/// The kernel's drop counter, read periodically. The alternative, `SO_RXQ_OVFL`, adds a control message to each
/// datagram, and `quinn_udp` leaves no room for it.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Value of the counter when it was last read.
    counted: u32,
    polled: Option<Instant>,
}

impl Losses {
    /// Returns whether it is time to read the counter.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.polled.is_none_or(|polled| now.saturating_since(polled) >= PERIOD)
    }

    /// Returns the number of datagrams dropped since the last call.
    pub(super) fn poll(&mut self, now: Instant, socket: &UdpSocket) -> u32 {
        self.polled = Some(now);
        let Some(count) = drops(socket) else { return 0 };
        let lost = count.wrapping_sub(self.counted);
        self.counted = count;
        lost
    }
}

/// Returns the number of datagrams dropped by a socket since its creation, modulo 2^32. Returns `None` if the kernel
/// does not report it.
fn drops(socket: &UdpSocket) -> Option<u32> {
    let mut words = [0_u32; WORDS];
    let mut len = libc::socklen_t::try_from(size_of_val(&words)).ok()?;
    // SAFETY: the kernel writes at most `len` bytes to `words`, which is `len` bytes long, and stores the actual length
    // in `len`. It does not keep the pointers. Every bit pattern is a valid `u32`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            words.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let is_complete = result == 0 && usize::try_from(len) == Ok(size_of_val(&words));
    words.last().copied().filter(|_| is_complete)
}
