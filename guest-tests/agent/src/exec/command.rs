//! One command that runs: its threads, and what the host tells it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::Host;
use super::terminal::{self, Terminal};
use crate::error::bad_step;
use crate::guest::{PATH, pidfd, wait_for};
use crate::wire::ExitStatus;
use crate::wire::exec::{INPUT_WINDOW, Start, ToGuest, ToHost};

/// Where commands start when nothing else is said, if the guest has it.
const HOME: &str = "/root";
/// How long an output may stay open and silent when the command has ended: something it started may hold it.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Between the request to end and the end by force.
const GRACE: Duration = Duration::from_secs(2);
/// Bytes taken from an output at once.
const CHUNK: usize = 32 << 10;

/// A command, as the host sees it through its port.
pub(super) struct Running {
    command: Arc<Group>,
    /// Closed at the end of the input.
    input: Option<Sender<Vec<u8>>>,
    waiting: Arc<Mutex<usize>>,
    terminal: Option<Terminal>,
}

impl Running {
    /// Starts it and tells the host so. Its outputs and its end go to the host by themselves.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(start: &Start, host: &Host) -> Result<Self> {
        let (name, arguments) = start.argv.split_first().ok_or_else(|| bad_step("no command is given"))?;
        let mut command = Command::new(name);
        command.args(arguments).env("PATH", PATH).env("HOME", HOME).envs(&start.env);
        match &start.folder {
            Some(folder) => command.current_dir(folder),
            None => command.current_dir(if std::path::Path::new(HOME).is_dir() { HOME } else { "/" }),
        };
        with_default_signals(&mut command);
        let terminal = start.terminal.map(Terminal::open).transpose().context("cannot open a terminal")?;
        match &terminal {
            Some((_, other)) => terminal::control(&mut command, other)?,
            None => {
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                // Signals are for the command with all it starts.
                command.process_group(0);
            }
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        drop(command);
        host.send(&ToHost::Started);

        let end = Arc::new(pidfd(&child).context("cannot open a pidfd of the command")?);
        let terminal = terminal.map(|(ours, _)| ours);
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
        feed(host, stdin, &end, chunks, &waiting, terminal.is_some());
        let group = Arc::new(Group(Mutex::new(Some(child))));
        let (host, waited) = (host.clone(), Arc::clone(&group));
        std::thread::spawn(move || {
            let status = waited.wait(&end);
            for thread in outputs {
                let _ = thread.join();
            }
            host.send(&ToHost::Ended(status));
        });
        Ok(Self { command: group, input: Some(input), waiting, terminal })
    }

    /// Does what the host says.
    pub(super) fn take(&mut self, frame: ToGuest) {
        match frame {
            ToGuest::Start(_) => {}
            ToGuest::Input(bytes) => {
                let mut waiting = lock(&self.waiting);
                if *waiting + bytes.len() <= INPUT_WINDOW {
                    *waiting += bytes.len();
                    drop(waiting);
                    if let Some(input) = &self.input {
                        // One that takes no more input has said so by taking it all.
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
                    // A terminal that keeps its size is still one.
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
            group.ends_within(GRACE);
            group.signal(libc::SIGKILL);
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.command.signal(libc::SIGKILL);
    }
}

/// What we ignore, or whoever started us did, is nothing to a command: a shell could not even catch it.
fn with_default_signals(command: &mut Command) {
    // SAFETY: between fork and exec only signal is called, which is async-signal-safe and touches no memory. That of the two
    // that cannot be changed changes nothing.
    unsafe {
        command.pre_exec(|| {
            for number in 1..=libc::SIGSYS {
                libc::signal(number, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}

/// A command and what it has started; nothing once it has been waited for, when its number may be another's.
struct Group(Mutex<Option<Child>>);

impl Group {
    fn signal(&self, signal: i32) {
        if let Some(child) = lock(&self.0).as_ref()
            && let Ok(group) = libc::pid_t::try_from(child.id())
        {
            // SAFETY: kill takes no pointers; a child that was not waited for keeps its number, and its group's.
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
        // It is only waited for when it has ended, so that signals can be sent meanwhile.
        let _ = wait_for(&[(end.as_fd(), libc::POLLIN)], None);
        let status = lock(&self.0).take().map(|mut child| child.wait());
        match status {
            Some(Ok(status)) => match (status.code(), status.signal()) {
                (Some(code), _) => ExitStatus::Code(code),
                (None, signal) => ExitStatus::Signal(signal.unwrap_or(0)),
            },
            // It cannot be asked how it ended.
            _ => ExitStatus::Signal(0),
        }
    }
}

/// Sends what a command prints until it has closed its output, or has ended and left it silent.
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
                // A terminal whose other end is closed reads as an error.
                _ => return,
            }
        }
    })
}

/// Hands input on until it ends, or the command does. What a command does not want is taken all the same.
fn feed(
    host: &Host,
    target: Option<File>,
    end: &Arc<OwnedFd>,
    chunks: Receiver<Vec<u8>>,
    waiting: &Arc<Mutex<usize>>,
    is_terminal: bool,
) {
    let (host, end, waiting) = (host.clone(), Arc::clone(end), Arc::clone(waiting));
    std::thread::spawn(move || {
        let mut target = target.filter(|target| set_nonblocking(target).is_ok());
        for chunk in chunks {
            if let Some(open) = &mut target
                && write_all(open, &chunk, &end).is_err()
            {
                target = None;
            }
            *lock(&waiting) -= chunk.len();
            host.send(&ToHost::Taken(u32::try_from(chunk.len()).unwrap_or(u32::MAX)));
        }
        if is_terminal && let Some(open) = &mut target {
            // A terminal has no end of input but the character that stands for it.
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

/// Waits until a file is ready; false when the command has ended and it does not get ready any more.
fn ready(file: &File, events: i16, end: &OwnedFd) -> io::Result<bool> {
    let both = [(file.as_fd(), events), (end.as_fd(), libc::POLLIN)];
    if wait_for(&both, None)?.first() == Some(&true) {
        return Ok(true);
    }
    Ok(wait_for(&[(file.as_fd(), events)], Some(LAST_WORDS))?.first() == Some(&true))
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
