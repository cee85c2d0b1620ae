//! What the kernel lost at a socket because nobody took it in time.

use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use engine::Instant;

/// Time between two questions while frames arrive.
const PERIOD: Duration = Duration::from_secs(1);

/// Words of `SO_MEMINFO` up to the one that counts drops (linux/sock_diag.h: `SK_MEMINFO_DROPS` is 8).
const WORDS: usize = 9;

/// The kernel's count, read now and then. Its other way to tell, `SO_RXQ_OVFL`, puts a message beside each datagram, where
/// there is room only for those that `quinn_udp` expects.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The count when it was read.
    counted: u32,
    asked: Option<Instant>,
}

impl Losses {
    /// Whether it is time to ask.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.asked.is_none_or(|asked| now.saturating_since(asked) >= PERIOD)
    }

    /// Datagrams lost since this was asked before.
    pub(super) fn ask(&mut self, now: Instant, socket: &UdpSocket) -> u32 {
        self.asked = Some(now);
        let Some(count) = drops(socket) else { return 0 };
        let lost = count.wrapping_sub(self.counted);
        self.counted = count;
        lost
    }
}

/// Drops of a socket since it was made, modulo 2^32; `None` if the kernel does not tell.
fn drops(socket: &UdpSocket) -> Option<u32> {
    let mut words = [0_u32; WORDS];
    let mut len = libc::socklen_t::try_from(size_of_val(&words)).ok()?;
    // SAFETY: the kernel writes at most `len` bytes to `words`, which is as long, and the length to `len`; it keeps no
    // pointer. Any bytes are valid words.
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
