//! A running command: its process, its threads, and the handling of frames from the host.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::Host;
use super::terminal::{self, Terminal};
use crate::error::bad_step;
use crate::guest::{PATH, pidfd, wait_for};
use crate::wire::ExitStatus;
use crate::wire::exec::{INPUT_WINDOW, Start, StartError, StartErrorKind, ToGuest, ToHost, User};

/// Default working directory of commands, used if it exists.
const HOME: &str = "/root";
/// How long to wait for an input or output to become ready after the command has exited. A child of the command may
/// still have the file open.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
/// Time between SIGHUP and SIGKILL.
const KILL_DELAY: Duration = Duration::from_secs(2);
/// Maximum size of a single read of the command's output, in bytes.
const CHUNK: usize = 32 << 10;

/// The command that is running on a virtio port.
pub(super) struct Running {
    command: Arc<Group>,
    /// Passes input to the thread that writes it to the command. Dropped when the input ends.
    input: Option<Sender<Vec<u8>>>,
    waiting: Arc<Mutex<usize>>,
    terminal: Option<Terminal>,
}

impl Running {
    /// Starts the command and the threads that send its output and exit status to the host.
    ///
    /// # Errors
    /// Fails if the command cannot be started.
    pub(super) fn start(start: &Start, host: &Host) -> Result<Self, StartError> {
        let other =
            |error: anyhow::Error| StartError { kind: StartErrorKind::Other, reason: format!("{error:#}") };
        let (mut command, terminal) = prepare(start).map_err(other)?;
        let child = command.spawn().map_err(|error| StartError {
            kind: kind_of(&error),
            reason: format!("cannot start {}: {error}", start.argv.first().map_or("", String::as_str)),
        })?;
        // The terminal descriptors in `command` would keep the terminal open.
        drop(command);
        Self::forward(child, terminal.map(|(ours, _)| ours), host).map_err(other)
    }

    /// Reports the start to the host and spawns the threads that forward input, output and exit status.
    fn forward(mut child: Child, terminal: Option<Terminal>, host: &Host) -> Result<Self> {
        host.send(&ToHost::Started);
        let end = Arc::new(pidfd(&child).context("cannot open a pidfd of the command")?);
        let (stdin, outputs) = match &terminal {
            Some(terminal) => {
                let (read, write) = (terminal.file()?, terminal.file()?);
                (Some(write), vec![output(host, Some(read), &end, ToHost::Output)])
            }
            None => {
                let stdin = child.stdin.take().map(|end| File::from(OwnedFd::from(end)));
                let stdout = child.stdout.take().map(|end| File::from(OwnedFd::from(end)));
                let stderr = child.stderr.take().map(|end| File::from(OwnedFd::from(end)));
                let outputs = vec![
                    output(host, stdout, &end, ToHost::Output),
                    output(host, stderr, &end, ToHost::Errors),
                ];
                (stdin, outputs)
            }
        };
        let (input, chunks) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(0));
        let has_ended = Arc::new(AtomicBool::new(false));
        feed(host, stdin, &end, chunks, (&waiting, &has_ended), terminal.is_some());
        let group = Arc::new(Group(Mutex::new(Some(child))));
        let (host, waited) = (host.clone(), Arc::clone(&group));
        std::thread::spawn(move || {
            let status = waited.wait(&end);
            for thread in outputs {
                let _ = thread.join();
            }
            host.send_last(&ToHost::Ended(status), &has_ended);
        });
        Ok(Self { command: group, input: Some(input), waiting, terminal })
    }

    /// Handles a frame from the host.
    pub(super) fn take(&mut self, frame: ToGuest) {
        match frame {
            ToGuest::Start(_) => {}
            ToGuest::Input(bytes) => {
                let mut waiting = lock(&self.waiting);
                if *waiting + bytes.len() <= INPUT_WINDOW {
                    *waiting += bytes.len();
                    drop(waiting);
                    if let Some(input) = &self.input {
                        // If the command has closed its input, the input thread discards the bytes.
                        let _ = input.send(bytes);
                    }
                } else {
                    drop(waiting);
                    crate::guest::say(
                        "the host sent more input than the window allows; stopping the command",
                    );
                    self.hang_up();
                }
            }
            ToGuest::InputEnd => self.input = None,
            ToGuest::Signal(signal) => self.command.signal(signal),
            ToGuest::Resize(size) => {
                if let Some(terminal) = &self.terminal {
                    // If the resize fails, the terminal remains usable with its old size.
                    let _ = terminal.resize(size);
                }
            }
            ToGuest::HangUp => self.hang_up(),
        }
    }

    fn hang_up(&mut self) {
        self.input = None;
        self.command.signal(libc::SIGHUP);
        let group = Arc::clone(&self.command);
        std::thread::spawn(move || {
            group.ends_within(KILL_DELAY);
            group.signal(libc::SIGKILL);
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.command.signal(libc::SIGKILL);
    }
}

/// Prepares the command and opens a terminal if it needs one.
fn prepare(start: &Start) -> Result<(Command, Option<(Terminal, OwnedFd)>)> {
    let (name, arguments) = start.argv.split_first().ok_or_else(|| bad_step("no command is given"))?;
    let mut command = Command::new(name);
    command.args(arguments).env("PATH", PATH).env("HOME", HOME).envs(&start.env);
    match &start.folder {
        Some(folder) => {
            // Without this check, the error would be the same as for a missing program.
            ensure!(Path::new(folder).is_dir(), "cannot run {name} in {folder}, which is not a directory");
            command.current_dir(folder)
        }
        None => command.current_dir(if Path::new(HOME).is_dir() { HOME } else { "/" }),
    };
    with_default_signals(&mut command);
    if let Some(user) = &start.user {
        as_user(&mut command, user);
    }
    let terminal = start.terminal.map(Terminal::open).transpose().context("cannot open a terminal")?;
    match &terminal {
        Some((_, other)) => terminal::control(&mut command, other)?,
        None => {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // The command gets its own process group, so that signals also reach its children.
            command.process_group(0);
        }
    }
    Ok((command, terminal))
}

/// Classifies an error from fork(2) or execve(2).
fn kind_of(error: &io::Error) -> StartErrorKind {
    match error.raw_os_error() {
        Some(libc::ENOENT) => StartErrorKind::NotFound,
        Some(libc::EACCES | libc::ENOEXEC | libc::ENOTDIR | libc::EISDIR | libc::ELOOP | libc::ETXTBSY) => {
            StartErrorKind::NotExecutable
        }
        _ => StartErrorKind::Other,
    }
}

/// Restores the default signal dispositions. Otherwise, the command would inherit ignored signals, which a shell cannot
/// trap.
fn with_default_signals(command: &mut Command) {
    // SAFETY: only signal(2) is called between fork and exec. It is async-signal-safe and does not access memory. For
    // SIGKILL and SIGSTOP, it fails without effect.
    unsafe {
        command.pre_exec(|| {
            for number in 1..=libc::SIGSYS {
                libc::signal(number, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}

/// Runs the command as `user`, without a limit on locked memory. RDMA regions count as locked memory, and RDMA hosts
/// usually do not limit it.
fn as_user(command: &mut Command, user: &User) {
    let User { uid, gid, groups } = user.clone();
    // SAFETY: between fork and exec, only system calls are made. The list of groups and the limit outlive the calls.
    // The user ID is changed last, because the new user may lack permission for the other changes.
    unsafe {
        command.pre_exec(move || {
            // Make the user the owner of the streams. If they are pipes that belong to another user, the command cannot
            // open /dev/stdout. Other kinds of files do not need this, so errors are ignored.
            for stream in 0..=2 {
                libc::fchown(stream, uid, gid);
            }
            let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
            let results = [
                libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit),
                libc::setgroups(groups.len(), groups.as_ptr()),
                libc::setgid(gid),
                libc::setuid(uid),
            ];
            if results.contains(&-1) { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
}

/// The process group of a command. `None` once the command has been reaped and its process ID may be reused.
struct Group(Mutex<Option<Child>>);

impl Group {
    fn signal(&self, signal: i32) {
        if let Some(child) = lock(&self.0).as_ref()
            && let Ok(group) = libc::pid_t::try_from(child.id())
        {
            // SAFETY: kill takes no pointers. A child that has not been reaped keeps its process ID and its group ID.
            unsafe { libc::kill(-group, signal) };
        }
    }

    fn ends_within(&self, limit: Duration) {
        let end = lock(&self.0).as_ref().and_then(|child| pidfd(child).ok());
        if let Some(end) = end {
            let _ = wait_for(&[(end.as_fd(), libc::POLLIN)], Some(limit));
        }
    }

    fn wait(&self, end: &OwnedFd) -> ExitStatus {
        // `Child::wait` would hold the lock that `signal` needs, so first wait for the exit without the lock.
        let _ = wait_for(&[(end.as_fd(), libc::POLLIN)], None);
        let status = lock(&self.0).take().map(|mut child| child.wait());
        match status {
            Some(Ok(status)) => match (status.code(), status.signal()) {
                (Some(code), _) => ExitStatus::Code(code),
                (None, signal) => ExitStatus::Signal(signal.unwrap_or(0)),
            },
            // The exit status is not available.
            _ => ExitStatus::Signal(0),
        }
    }
}

/// Forwards one of the command's outputs until it is closed or until the command has exited and no more output arrives.
fn output(
    host: &Host,
    source: Option<File>,
    end: &Arc<OwnedFd>,
    frame: fn(Vec<u8>) -> ToHost,
) -> std::thread::JoinHandle<()> {
    let (host, end) = (host.clone(), Arc::clone(end));
    std::thread::spawn(move || {
        let Some(mut source) = source else { return };
        let mut chunk = vec![0; CHUNK];
        while let Ok(true) = ready(&source, libc::POLLIN, &end) {
            match source.read(&mut chunk) {
                Ok(len @ 1..) => host.send(&frame(chunk[..len].to_vec())),
                Err(error) if is_passing(&error) => {}
                // Reading from a terminal whose other end is closed returns an error.
                _ => return,
            }
        }
    })
}

/// Writes input to the command until the input ends. Discards input that the command no longer reads, and does not
/// acknowledge input after the command has ended.
fn feed(
    host: &Host,
    target: Option<File>,
    end: &Arc<OwnedFd>,
    chunks: Receiver<Vec<u8>>,
    (waiting, has_ended): (&Arc<Mutex<usize>>, &Arc<AtomicBool>),
    is_terminal: bool,
) {
    let (host, end) = (host.clone(), Arc::clone(end));
    let (waiting, has_ended) = (Arc::clone(waiting), Arc::clone(has_ended));
    std::thread::spawn(move || {
        let mut target = target.filter(|target| set_nonblocking(target).is_ok());
        for chunk in chunks {
            if let Some(open) = &mut target
                && write_all(open, &chunk, &end).is_err()
            {
                target = None;
            }
            *lock(&waiting) -= chunk.len();
            let taken = ToHost::Taken(u32::try_from(chunk.len()).unwrap_or(u32::MAX));
            host.send_before_last(&taken, &has_ended);
        }
        if is_terminal && let Some(open) = &mut target {
            // On a terminal, a control character signals the end of the input.
            let _ = write_all(open, &[terminal::END_OF_INPUT], &end);
        }
    });
}

fn write_all(target: &mut File, mut bytes: &[u8], end: &OwnedFd) -> io::Result<()> {
    while !bytes.is_empty() {
        if !ready(target, libc::POLLOUT, end)? {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match target.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until a file is ready. Returns `false` if the command has exited and the file is not ready within
/// [`DRAIN_TIMEOUT`].
fn ready(file: &File, events: i16, end: &OwnedFd) -> io::Result<bool> {
    let both = [(file.as_fd(), events), (end.as_fd(), libc::POLLIN)];
    if wait_for(&both, None)?.first() == Some(&true) {
        return Ok(true);
    }
    Ok(wait_for(&[(file.as_fd(), events)], Some(DRAIN_TIMEOUT))?.first() == Some(&true))
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn set_nonblocking(file: &File) -> io::Result<()> {
    // SAFETY: fcntl with these commands takes no pointers.
    unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        if flags < 0 || libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
