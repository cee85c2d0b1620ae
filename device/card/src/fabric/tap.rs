//! The `tap` fabric: frames on a Linux tap interface, for bridges, VXLAN and other host networking.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use engine::Mtu;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use super::rx_batch::RxFrame;
use super::{Fabric, FabricStats, MAX_FRAME_LEN, RxBatch, Sent, TxBatch};
use crate::log_line;

/// Device file of the tap driver.
pub const DEVICE: &str = "/dev/net/tun";

/// Maximum length of a RoCE packet's headers and trailer, without the Ethernet header: IPv6, UDP, BTH, the
/// longest extension headers and ICRC.
const ROCE_HEADERS: usize = 40 + 8 + 12 + 28 + 4;

/// Default MTU of a Linux interface.
const DEFAULT_MTU: usize = 1500;

/// Name of a network interface: 1 to 15 characters, without slashes, colons, percent signs or white space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceName(String);

impl InterfaceName {
    /// Returns the bytes of the name, without a terminator.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl TryFrom<String> for InterfaceName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        // These are the rules of the kernel's `dev_valid_name`. A percent sign is rejected as well, because the
        // kernel would replace `%d` with a number.
        let is_valid = (1..16).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%'))
            && name != "."
            && name != "..";
        if is_valid { Ok(Self(name)) } else { Err(format!("{name:?} is not a valid interface name")) }
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug)]
pub struct TapFabric {
    tap: OwnedFd,
    stats: FabricStats,
}

impl TapFabric {
    /// Attaches to the interface, creating it if it does not exist and permissions allow.
    ///
    /// # Errors
    /// Fails if the interface is not a tap interface, is in use or cannot be created.
    pub fn open(interface: &InterfaceName, path_mtu: Mtu) -> io::Result<Self> {
        let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let tap: OwnedFd =
            OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(DEVICE)?.into();
        attach(&tap, interface)?;
        let mtu = mtu(interface);
        let (path_mtu, need) = (path_mtu.bytes(), path_mtu.bytes() + ROCE_HEADERS);
        log_line!(info, %interface, mtu, path_mtu, "attached to the tap interface");
        if mtu.is_some_and(|mtu| mtu < need) {
            log_line!(warn, %interface, mtu, need, "tap interface MTU is too small for path MTU {path_mtu}; raise the interface MTU or set a smaller `path_mtu`");
        }
        Ok(Self { tap, stats: FabricStats::default() })
    }

    /// Creates a fabric that uses a socket in place of an interface. The socket must preserve message
    /// boundaries.
    #[cfg(test)]
    pub(crate) fn on(tap: OwnedFd) -> Self {
        Self { tap, stats: FabricStats::default() }
    }
}

impl Fabric for TapFabric {
    fn send(&mut self, batch: &mut TxBatch) -> Sent {
        while let Some(first) = batch.front() {
            self.stats.tx_calls += 1;
            match rustix::io::write(&self.tap, batch.slice(first.start..first.end)) {
                Ok(_) => self.stats.tx_frames += 1,
                Err(Errno::AGAIN) => {
                    batch.reclaim();
                    return Sent::Blocked;
                }
                Err(Errno::INTR) => continue,
                Err(error) => {
                    self.stats.tx_refused += 1;
                    // EIO means that the interface is down.
                    crate::limited!(warn, %error, "cannot write frames to the tap interface");
                }
            }
            batch.advance(1);
        }
        Sent::All
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        batch.frames.clear();
        for (index, slot) in batch.storage.chunks_exact_mut(RxBatch::SLOT_LEN).enumerate() {
            let len = match rustix::io::read(&self.tap, &mut *slot) {
                Ok(len) => len,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if len > MAX_FRAME_LEN {
                self.stats.rx_bad_length += 1;
                continue;
            }
            self.stats.rx_frames += 1;
            let start = index * RxBatch::SLOT_LEN;
            batch.frames.push(RxFrame::whole(start..start + len));
        }
        Ok(())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }

    fn stats(&mut self) -> FabricStats {
        self.stats
    }
}

/// Attaches an open `/dev/net/tun` descriptor to an interface. Afterwards, each read or write of the descriptor
/// transfers one complete Ethernet frame without a prefix.
fn attach(tap: &OwnedFd, interface: &InterfaceName) -> io::Result<()> {
    // linux/if_tun.h declares _IOW('T', 202, int), although the argument is an `ifreq`, which is longer.
    const TUNSETIFF: Opcode = opcode::write::<libc::c_int>(b'T', 202);
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(interface.as_bytes()) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let flags = libc::c_short::try_from(libc::IFF_TAP | libc::IFF_NO_PI).unwrap_or_default();
    let request =
        libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags } };
    // SAFETY: TUNSETIFF reads and writes at most one `ifreq`, and the kernel does not keep a pointer to it. The kernel
    // rejects a descriptor that is not a tun device.
    unsafe {
        let setter = Setter::<TUNSETIFF, libc::ifreq>::new(request);
        ioctl(tap, setter)?;
    }
    Ok(())
}

/// Returns the largest path MTU whose packets fit the interface's MTU, or the smallest path MTU if none fits.
pub fn path_mtu(interface: &InterfaceName) -> Mtu {
    fitting(mtu(interface).unwrap_or(DEFAULT_MTU))
}

fn fitting(mtu: usize) -> Mtu {
    let fits = |path: &Mtu| path.bytes() + ROCE_HEADERS <= mtu;
    Mtu::ALL.into_iter().rev().find(fits).unwrap_or(Mtu::Mtu256)
}

/// Returns the MTU of an interface, if sysfs reports it.
fn mtu(interface: &InterfaceName) -> Option<usize> {
    let path = format!("/sys/class/net/{interface}/mtu");
    let text = io::read_to_string(File::open(path).ok()?).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// Each turn adds frames to those that the interface did not accept, so the batch never becomes empty.
    #[test]
    fn slow_interface_keeps_batch_buffer_small() {
        let (tap, network) = UnixDatagram::pair().unwrap();
        tap.set_nonblocking(true).unwrap();
        let mut fabric = TapFabric::on(tap.into());
        let mut frames = TxBatch::default();
        let turns = 1000;
        for _ in 0..turns {
            while frames.len() < 1000 {
                frames.push(&[9; 1500]);
            }
            assert_eq!(fabric.send(&mut frames), Sent::Blocked);
            for _ in 0..5 {
                network.recv(&mut [0; 1500]).unwrap();
            }
        }
        assert!(fabric.stats().tx_frames > 3 * turns);
        let len = frames.buffer().len();
        assert!(len < 4 * frames.bytes(), "{len} bytes for {} frames", frames.len());
    }

    #[test]
    fn path_mtu_is_largest_that_fits() {
        for (mtu, path) in [
            (68, 256),
            (348, 256),
            (604, 512),
            (1420, 1024),
            (1500, 1024),
            (2139, 1024),
            (2140, 2048),
            (9000, 4096),
        ] {
            assert_eq!(fitting(mtu).bytes(), path, "{mtu}");
        }
    }
}
