//! Interfaces to the guest's kernel: log, modules, crash kernel and shutdown.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::pci;
use crate::wire::{GuestInfo, LoadCrashKernel, LoadedModules, ShutdownKind};

const LOG: &str = "/dev/kmsg";
/// Log level of warnings; lower numbers are more severe.
const WARNING: u8 = 4;

/// Returns a description of the guest and its PCI devices.
pub(crate) fn info() -> Result<GuestInfo> {
    let read = |path: &str| -> Result<String> {
        Ok(fs::read_to_string(path).with_context(|| path.to_owned())?.trim().to_owned())
    };
    Ok(GuestInfo {
        kernel: read("/proc/sys/kernel/osrelease")?,
        cmdline: read("/proc/cmdline")?,
        devices: pci::functions()?,
        warnings: messages(Some(WARNING))?,
    })
}

pub(crate) fn uptime() -> Result<Duration> {
    let text = fs::read_to_string("/proc/uptime").context("cannot read /proc/uptime")?;
    let seconds: f64 =
        text.split_whitespace().next().unwrap_or_default().parse().context("cannot read /proc/uptime")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Returns the kernel messages that are at least as severe as `level`, or all messages if `level` is `None`.
pub(crate) fn messages(level: Option<u8>) -> Result<Vec<String>> {
    let mut log = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(LOG)
        .context("cannot open the kernel's log")?;
    let mut lines = Vec::new();
    let mut record = vec![0; 8192];
    loop {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(len) => {
                let text = String::from_utf8_lossy(&record[..len]);
                lines.extend(
                    parse_record(&text).filter(|(l, _)| level.is_none_or(|most| *l <= most)).map(|(_, m)| m),
                );
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // The kernel has overwritten the next records. Continue with the oldest one that remains.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => return Err(error).context("cannot read the kernel's log"),
        }
    }
    Ok(lines)
}

/// Writes a line to the kernel log, and thus to the console.
pub(crate) fn say(line: &str) {
    // If the log cannot be opened, the line is lost.
    if let Ok(mut log) = File::options().write(true).open(LOG) {
        // Each write creates one record.
        let _ = log.write_all(format!("<5>agent: {line}\n").as_bytes());
    }
}

/// Loads modules in the given order. A module that is already loaded is not an error.
pub(crate) fn load_modules(paths: &[String]) -> Result<LoadedModules> {
    let mut result = LoadedModules::default();
    for path in paths {
        match load_module(Path::new(path)) {
            Ok(()) => result.loaded.push(path.clone()),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => result.present.push(path.clone()),
            Err(error) => return Err(error).with_context(|| format!("cannot load {path}")),
        }
    }
    Ok(result)
}

fn load_module(path: &Path) -> io::Result<()> {
    const COMPRESSED: i32 = 4;
    let compressed = path.extension().is_some_and(|e| e == "xz" || e == "zst" || e == "gz");
    let file = File::open(path)?;
    let parameters = CString::default();
    let flags = if compressed { COMPRESSED } else { 0 };
    // SAFETY: the descriptor and the string outlive the call.
    let result =
        unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), parameters.as_ptr(), flags) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Runs an interactive shell, or a single command line, on the console.
pub(crate) fn shell(command: Option<&str>) -> Result<()> {
    let mut shell = match command {
        Some(command) => {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", command]);
            shell
        }
        // Ctrl-C reaches only programs with a controlling terminal. /dev/console cannot be a controlling terminal, so
        // cttyhack uses the terminal behind the console instead.
        None => {
            let mut shell = Command::new("/bin/busybox");
            shell.args(["setsid", "cttyhack", "/bin/sh"]);
            shell
        }
    };
    let status = shell.status().with_context(|| format!("cannot start {shell:?}"))?;
    ensure!(command.is_none() || status.success(), "{}: {status}", command.unwrap_or_default());
    Ok(())
}

/// System call number of `kexec_file_load`, which libc does not define for arm64 and musl.
const KEXEC_FILE_LOAD: libc::c_long = if cfg!(target_arch = "aarch64") { 294 } else { 320 };

/// Loads the crash kernel, which runs after a panic.
pub(crate) fn load_crash_kernel(step: &LoadCrashKernel) -> Result<()> {
    const ON_CRASH: libc::c_ulong = 2;
    let mut disk = File::open(&step.disk).with_context(|| step.disk.clone())?;
    let kernel = copy_to_memory(&mut disk, step.kernel_len).context("cannot read the kernel")?;
    let initramfs = copy_to_memory(&mut disk, step.initramfs_len).context("cannot read the initramfs")?;
    let command_line = CString::new(step.command_line.as_str())?;
    // SAFETY: the descriptors and the string outlive the call. The length includes the string's terminating NUL.
    let result = unsafe {
        libc::syscall(
            KEXEC_FILE_LOAD,
            kernel.as_raw_fd(),
            initramfs.as_raw_fd(),
            command_line.as_bytes_with_nul().len(),
            command_line.as_ptr(),
            ON_CRASH,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()).context("cannot load a crash kernel") } else { Ok(()) }
}

/// Copies the next `len` bytes into a memfd.
fn copy_to_memory(from: &mut File, len: u64) -> Result<File> {
    // SAFETY: the name is a C string. The returned descriptor is checked and then owned only by the `File`.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"kernel".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error().into());
        }
        File::from_raw_fd(fd)
    };
    let copied = io::copy(&mut from.take(len), &mut file)?;
    ensure!(copied == len, "the disk ends after {copied} of {len} bytes");
    Ok(file)
}

/// Powers off, restarts or crashes the guest.
pub(crate) fn shutdown(kind: ShutdownKind) -> Result<()> {
    let how = match kind {
        ShutdownKind::PowerOff => libc::RB_POWER_OFF,
        ShutdownKind::Reboot => libc::RB_AUTOBOOT,
        ShutdownKind::Crash => {
            return fs::write("/proc/sysrq-trigger", "c").context("cannot crash the kernel");
        }
    };
    // SAFETY: neither call accesses memory. Losing data that sync has not written is acceptable.
    let result = unsafe {
        libc::sync();
        libc::reboot(how)
    };
    if result < 0 { Err(io::Error::last_os_error()).context("cannot shut down the guest") } else { Ok(()) }
}

/// Parses a log record of the form `priority,sequence,time,flags;text`, where the priority combines facility and level.
/// Returns the level and the first line of the text; the other lines contain only details.
fn parse_record(record: &str) -> impl Iterator<Item = (u8, String)> {
    record
        .split_once(';')
        .and_then(|(header, text)| {
            let priority: u32 = header.split(',').next()?.parse().ok()?;
            let level = u8::try_from(priority & 7).ok()?;
            Some((level, text.lines().next().unwrap_or_default().to_owned()))
        })
        .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_record_yields_level_and_first_line() {
        let record = "30,512,9876,-;vfio: group 3 attached\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:05.0\n";
        let parsed: Vec<_> = parse_record(record).collect();
        assert_eq!(parsed, [(6, "vfio: group 3 attached".to_owned())]);
    }
}
