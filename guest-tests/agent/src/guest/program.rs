//! Starts programs in the guest, exchanges lines with them, and waits for them to exit.

use std::collections::BTreeMap;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::error::{bad_step, timeout};
use crate::wire::{Ask, ExitStatus, Kill, ProgramEnd, ProgramId, Run, Said, Spawn, Spawned, Wait};

/// Maximum output kept per stream, in bytes. Further output is read and discarded.
const MAX_OUTPUT: usize = 1 << 20;
const MAX_PROGRAMS: usize = 64;
/// How long to wait for end of file on an output stream, which a child of the program may keep open.
const EOF_TIMEOUT: Duration = Duration::from_millis(500);
/// Search path for programs. The kernel starts the agent without one.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, Default)]
pub(crate) struct Programs {
    running: BTreeMap<ProgramId, Program>,
    last_id: u32,
}

impl Programs {
    pub(crate) fn run(step: &Run) -> Result<ProgramEnd> {
        let mut program = Program::start(&step.argv)?;
        let limit = Duration::from_millis(step.timeout_ms.into());
        if let Some(mut input) = program.stdin.take() {
            let text = step.stdin.clone();
            // Write from a separate thread, since the program may print output before it has read all its input, or may
            // never read its input at all.
            std::thread::spawn(move || input.write_all(text.as_bytes()));
        }
        program.end(limit)
    }

    pub(crate) fn spawn(&mut self, step: &Spawn) -> Result<Spawned> {
        ensure!(
            self.running.len() < MAX_PROGRAMS,
            bad_step(format!("too many programs are running (maximum {MAX_PROGRAMS})"))
        );
        let program = Program::start(&step.argv)?;
        self.last_id += 1;
        let id = ProgramId(self.last_id);
        self.running.insert(id, program);
        Ok(Spawned { program: id })
    }

    pub(crate) fn ask(&mut self, step: &Ask) -> Result<Said> {
        let program = self.find(step.program)?;
        if let Some(line) = &step.line {
            let input = program.stdin.as_mut().ok_or_else(|| bad_step("its standard input is closed"))?;
            let written = writeln!(input, "{line}").and_then(|()| input.flush());
            written.with_context(|| program.complaint("does not read its standard input"))?;
        }
        let line = program.next_line(Duration::from_millis(step.timeout_ms.into()))?;
        Ok(Said { line })
    }

    pub(crate) fn wait(&mut self, step: &Wait) -> Result<ProgramEnd> {
        self.find(step.program)?;
        let mut program = self.running.remove(&step.program).ok_or_else(|| bad_step("unknown program"))?;
        program.stdin = None;
        program.end(Duration::from_millis(step.timeout_ms.into()))
    }

    pub(crate) fn kill(&mut self, step: &Kill) -> Result<()> {
        self.find(step.program)?.signal(step.signal).context("cannot send a signal")
    }

    fn find(&mut self, id: ProgramId) -> Result<&mut Program> {
        self.running.get_mut(&id).ok_or_else(|| bad_step(format!("unknown {id:?}")))
    }
}

/// A running program, killed on drop.
#[derive(Debug)]
struct Program {
    name: String,
    child: Child,
    end: OwnedFd,
    stdin: Option<ChildStdin>,
    stdout: Arc<Output>,
    stderr: Arc<Output>,
}

impl Program {
    fn start(argv: &[String]) -> Result<Self> {
        let (name, arguments) = argv.split_first().ok_or_else(|| bad_step("no program is given"))?;
        let mut child = Command::new(name)
            .args(arguments)
            .env("PATH", PATH)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Give the program its own process group, so that signals also reach its children.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let end = pidfd(&child).context("cannot open a pidfd of the program")?;
        let stdin = child.stdin.take();
        let stdout = Output::of(child.stdout.take());
        let stderr = Output::of(child.stderr.take());
        Ok(Self { name: name.clone(), child, end, stdin, stdout, stderr })
    }

    fn next_line(&self, limit: Duration) -> Result<String> {
        let (mut buffer, _) = self
            .stdout
            .changed
            .wait_timeout_while(self.stdout.lock(), limit, |b| b.line_end().is_none() && !b.closed)
            .unwrap_or_else(PoisonError::into_inner);
        let Some(end) = buffer.line_end() else {
            let closed = buffer.closed;
            drop(buffer);
            ensure!(!closed, self.complaint("closed its standard output"));
            return Err(timeout(self.complaint("printed no line within the time limit")));
        };
        let line: Vec<u8> = buffer.bytes.drain(..=end).collect();
        Ok(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned())
    }

    /// Waits for the program to exit and kills it if it is still running after `limit`.
    fn end(mut self, limit: Duration) -> Result<ProgramEnd> {
        let ended =
            wait_for(&[(self.end.as_fd(), libc::POLLIN)], Some(limit)).context("waiting for a program")?;
        if ended != [true] {
            let _ = self.signal(libc::SIGKILL);
            let _ = self.child.wait();
            return Err(timeout(self.complaint(&format!("did not exit within {limit:?}"))));
        }
        let status = self.child.wait().context("cannot read the exit status of a program")?;
        let status = match (status.code(), status.signal()) {
            (Some(code), _) => ExitStatus::Code(code),
            (None, signal) => ExitStatus::Signal(signal.unwrap_or(0)),
        };
        Ok(ProgramEnd { status, stdout: self.stdout.rest(), stderr: self.stderr.rest() })
    }

    /// Signals the process group, which exists until the child is reaped.
    fn signal(&self, signal: i32) -> io::Result<()> {
        let group = libc::pid_t::try_from(self.child.id()).map_err(io::Error::other)?;
        // SAFETY: kill takes no pointers.
        if unsafe { libc::kill(-group, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn complaint(&self, what: &str) -> String {
        let (stdout, stderr) = (self.stdout.rest(), self.stderr.rest());
        format!("{} {what}; standard output: {}\nstandard error: {}", self.name, stdout.trim(), stderr.trim())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.signal(libc::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// An output stream of a program, collected by a thread.
#[derive(Debug, Default)]
struct Output {
    buffer: Mutex<Buffer>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    closed: bool,
}

impl Buffer {
    fn line_end(&self) -> Option<usize> {
        self.bytes.iter().position(|&byte| byte == b'\n')
    }
}

impl Output {
    fn of(source: Option<impl Read + Send + 'static>) -> Arc<Self> {
        let output = Arc::new(Self::default());
        let collected = Arc::clone(&output);
        std::thread::spawn(move || {
            let mut chunk = [0; 8192];
            if let Some(mut source) = source {
                while let Ok(len @ 1..) = source.read(&mut chunk) {
                    let mut buffer = collected.lock();
                    let room = MAX_OUTPUT.saturating_sub(buffer.bytes.len());
                    buffer.bytes.extend_from_slice(&chunk[..len.min(room)]);
                    drop(buffer);
                    collected.changed.notify_all();
                }
            }
            collected.lock().closed = true;
            collected.changed.notify_all();
        });
        output
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits at most [`EOF_TIMEOUT`] for end of file, then returns the output.
    fn rest(&self) -> String {
        let (mut buffer, _) = self
            .changed
            .wait_timeout_while(self.lock(), EOF_TIMEOUT, |buffer| !buffer.closed)
            .unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&std::mem::take(&mut buffer.bytes)).into_owned()
    }
}

/// Returns a descriptor that becomes readable when the child exits.
pub(crate) fn pidfd(child: &Child) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes no pointers, and no other code owns the new descriptor.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, child.id(), 0);
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Waits until at least one descriptor is closed or ready for its events. Returns, for each descriptor, whether it is
/// closed or ready. If `limit` expires first, all values are `false`.
pub(crate) fn wait_for(wanted: &[(BorrowedFd<'_>, i16)], limit: Option<Duration>) -> io::Result<Vec<bool>> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let entry =
        |&(fd, events): &(BorrowedFd<'_>, i16)| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let mut polled: Vec<libc::pollfd> = wanted.iter().map(entry).collect();
    let count = libc::nfds_t::try_from(polled.len()).map_err(io::Error::other)?;
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let milliseconds = left.map_or(-1, |left| i32::try_from(left.as_millis()).unwrap_or(i32::MAX));
        // SAFETY: `polled` has `count` entries and outlives the call.
        if unsafe { libc::poll(polled.as_mut_ptr(), count, milliseconds) } >= 0 {
            return Ok(polled.iter().map(|entry| entry.revents != 0).collect());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::into_failure;
    use crate::wire::FailureKind;

    fn argv(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    fn run(script: &str, stdin: &str, timeout_ms: u32) -> Result<ProgramEnd> {
        Programs::run(&Run { argv: argv(&["sh", "-c", script]), stdin: stdin.into(), timeout_ms })
    }

    #[test]
    fn failing_program_returns_exit_status() {
        let end = run("cat; echo no >&2; exit 3", "yes", 60_000).unwrap();
        let expected =
            ProgramEnd { status: ExitStatus::Code(3), stdout: "yes".into(), stderr: "no\n".into() };
        assert_eq!(end, expected);
        assert_eq!(run("kill -9 $$", "", 60_000).unwrap().status, ExitStatus::Signal(9));
    }

    #[test]
    fn unread_input_does_not_block_step() {
        let end = run("echo done", &"x".repeat(1 << 20), 60_000).unwrap();
        assert_eq!((end.status, end.stdout.as_str()), (ExitStatus::Code(0), "done\n"));
    }

    #[test]
    fn timed_out_program_is_killed() {
        let begun = Instant::now();
        // On a loaded host, the program may need longer to write its output.
        let failure = [200, 2_000, 20_000]
            .into_iter()
            .map(|timeout_ms| into_failure(&run("echo begun; sleep 300 & wait", "", timeout_ms).unwrap_err()))
            .inspect(|failure| assert_eq!(failure.kind, FailureKind::Timeout))
            .find(|failure| failure.message.contains("standard output: begun"));
        assert!(failure.is_some());
        // The step must not wait for `sleep`, which holds both outputs open.
        assert!(begun.elapsed() < Duration::from_secs(300));
    }

    #[test]
    fn program_replies_to_lines_until_input_is_closed() {
        let mut programs = Programs::default();
        let script = "echo ready; while read -r line; do echo \"got $line\"; done; echo end";
        let Spawned { program } = programs.spawn(&Spawn { argv: argv(&["sh", "-c", script]) }).unwrap();
        let mut ask = |line: Option<&str>| {
            let step = Ask { program, line: line.map(str::to_owned), timeout_ms: 60_000 };
            programs.ask(&step).unwrap().line
        };
        assert_eq!(ask(None), "ready");
        assert_eq!(ask(Some("one")), "got one");
        assert_eq!(ask(Some("two")), "got two");
        let end = programs.wait(&Wait { program, timeout_ms: 60_000 }).unwrap();
        assert_eq!((end.status, end.stdout.as_str()), (ExitStatus::Code(0), "end\n"));
        assert!(programs.wait(&Wait { program, timeout_ms: 1 }).is_err());
    }

    #[test]
    fn ask_fails_if_program_exits_or_times_out() {
        let mut programs = Programs::default();
        let mut spawn = |script: &str| {
            let program = programs.spawn(&Spawn { argv: argv(&["sh", "-c", script]) }).unwrap().program;
            let result = programs.ask(&Ask { program, line: None, timeout_ms: 300 });
            (program, into_failure(&result.unwrap_err()))
        };
        let (_, failure) = spawn("echo broken >&2; exit 1");
        assert!(failure.kind != FailureKind::Timeout && failure.message.contains("broken"), "{failure:?}");
        let (silent, failure) = spawn("sleep 60");
        assert_eq!(failure.kind, FailureKind::Timeout);
        programs.kill(&Kill { program: silent, signal: libc::SIGTERM }).unwrap();
        let end = programs.wait(&Wait { program: silent, timeout_ms: 60_000 }).unwrap();
        assert_eq!(end.status, ExitStatus::Signal(libc::SIGTERM));
    }
}
