//! A pseudo-terminal for a command. Its slave side is the controlling terminal of the command's session.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::guest::mount::mount;
use crate::wire::exec::Size;

/// The end-of-file character (VEOF) of terminals, Ctrl-D.
pub(super) const END_OF_INPUT: u8 = 4;
/// Mount point of the file system that contains the pseudo-terminals.
const FOLDER: &str = "/dev/pts";

/// The master side of the pseudo-terminal.
pub(super) struct Terminal(OwnedFd);

impl Terminal {
    /// Opens a pseudo-terminal. Returns the master side and the slave side.
    pub(super) fn open(size: Size) -> Result<(Self, OwnedFd)> {
        if !Path::new(FOLDER).join("ptmx").exists() {
            std::fs::create_dir_all(FOLDER).context(FOLDER)?;
            mount("devpts", FOLDER, "devpts", 0, "")?;
        }
        let (mut ours, mut other) = (-1, -1);
        let size = of(size);
        // SAFETY: the integers and the size outlive the call. The name and the terminal settings may be null.
        let result = unsafe {
            libc::openpty(
                &raw mut ours,
                &raw mut other,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const size,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error().into());
        }
        // SAFETY: the call has created both descriptors, and no other code owns them.
        let (ours, other) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(other)) };
        // A program that inherited the master would keep the terminal open.
        // SAFETY: F_SETFD takes no pointers.
        if unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } < 0
            // SAFETY: F_SETFD takes no pointers.
            || unsafe { libc::fcntl(other.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } < 0
        {
            return Err(io::Error::last_os_error().into());
        }
        Ok((Self(ours), other))
    }

    /// Duplicates the descriptor of the master side.
    pub(super) fn file(&self) -> io::Result<File> {
        self.0.try_clone().map(File::from)
    }

    /// Changes the size. The kernel then sends SIGWINCH to the foreground programs.
    pub(super) fn resize(&self, size: Size) -> io::Result<()> {
        let size = of(size);
        // SAFETY: the size outlives the call, which only reads it.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Makes the command a session leader with `terminal` as its controlling terminal.
pub(super) fn control(command: &mut Command, terminal: &OwnedFd) -> io::Result<()> {
    command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal.try_clone()?);
    // SAFETY: only setsid and ioctl are called between fork and exec. They are async-signal-safe and do not access
    // memory.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        })
    };
    Ok(())
}

fn of(size: Size) -> libc::winsize {
    libc::winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}
