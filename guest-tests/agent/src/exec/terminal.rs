//! A terminal for a command: our end, and the command's, which controls its session.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::guest::mount::mount;
use crate::wire::exec::Size;

/// What is typed to say that there is no more input (Ctrl-D).
pub(super) const END_OF_INPUT: u8 = 4;
/// Where the kernel makes terminals.
const FOLDER: &str = "/dev/pts";

/// Our end.
pub(super) struct Terminal(OwnedFd);

impl Terminal {
    /// A new terminal; ours and the command's end.
    pub(super) fn open(size: Size) -> Result<(Self, OwnedFd)> {
        if !Path::new(FOLDER).join("ptmx").exists() {
            std::fs::create_dir_all(FOLDER).context(FOLDER)?;
            mount("devpts", FOLDER, "devpts", 0, "")?;
        }
        let (mut ours, mut other) = (-1, -1);
        let size = of(size);
        // SAFETY: the integers and the size live through the call, which keeps none; no name and no mode are given.
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
        // SAFETY: the call has made both, and they are nobody else's.
        let (ours, other) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(other)) };
        // A program that inherits our end would keep the terminal alive.
        // SAFETY: fcntl with this command takes no pointers.
        if unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } < 0
            // SAFETY: as before.
            || unsafe { libc::fcntl(other.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } < 0
        {
            return Err(io::Error::last_os_error().into());
        }
        Ok((Self(ours), other))
    }

    /// Our end once more.
    pub(super) fn file(&self) -> io::Result<File> {
        self.0.try_clone().map(File::from)
    }

    /// Gives it another size; programs on it are told.
    pub(super) fn resize(&self, size: Size) -> io::Result<()> {
        let size = of(size);
        // SAFETY: the size lives through the call, which only reads it.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Makes a command the leader of a session of its own with this terminal.
pub(super) fn control(command: &mut Command, terminal: &OwnedFd) -> io::Result<()> {
    command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal.try_clone()?);
    // SAFETY: between fork and exec only setsid and ioctl are called, which are async-signal-safe and touch no memory.
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
