//! Child processes of the lab. They do not outlive the lab, and their output and command lines are saved to files.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::bounded_log::{BoundedLog, LOG_LIMIT};
use crate::run_dir::RunDir;

/// Byte used to fill a stalled pipe. No program started by the lab prints it.
const FILLER: u8 = 0;

/// A running program. It is killed on drop or, if the lab is killed, by the kernel.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Number of bytes written to the log so far.
    written: watch::Receiver<usize>,
    /// Number of log bytes that [`Self::line`] has already searched.
    seen: usize,
    reading: watch::Sender<Reading>,
}

/// How a program's output is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The output is copied to the log.
    On,
    /// The output is not read, and the pipe is filled so that the program's writes block.
    Stalled,
    /// The lab has closed its end of the pipe.
    Over,
}

impl Process {
    /// Starts `command`. The first 64 MiB of its standard output and standard error are appended to `NAME.log` in the
    /// run directory.
    ///
    /// # Errors
    /// Fails if the command cannot be started.
    pub fn start(name: &str, command: Command, run: &RunDir) -> Result<Self> {
        Self::start_within(LOG_LIMIT, name, command, run)
    }

    fn start_within(limit: u64, name: &str, mut command: Command, run: &RunDir) -> Result<Self> {
        let log = run.file(format!("{name}.log"));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let before = usize::try_from(file.metadata()?.len())?;
        fs::write(run.file(format!("{name}.cmd")), command_line(&command))?;
        let (reader, writer) = std::io::pipe().context("cannot create a pipe")?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).kill_on_drop(true);
        die_with_parent(&mut command);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {name}: {command:?}", command = command.as_std()))?;
        // The command's copies of the write end would keep the pipe open.
        drop(command);
        let (count, written) = watch::channel(before);
        let (reading, wanted) = watch::channel(Reading::On);
        let log_file = BoundedLog::new(file, limit);
        tokio::spawn(pump(pipe::Receiver::from_owned_fd(reader.into())?, log_file, count, wanted));
        Ok(Self { name: name.to_owned(), child, log, written, seen: before, reading })
    }

    /// Changes how the program's output is handled.
    pub fn read_output(&self, reading: Reading) {
        self.reading.send_replace(reading);
    }

    /// Returns the process ID.
    ///
    /// # Errors
    /// Fails if the program has exited.
    pub fn id(&self) -> Result<u32> {
        self.child.id().with_context(|| format!("{} has exited", self.name))
    }

    /// Sends a signal to the program.
    ///
    /// # Errors
    /// Fails if the program has exited.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let id = libc::pid_t::try_from(self.id()?)?;
        // SAFETY: kill takes no pointers. The child has not been reaped, so no other process has its ID.
        let result = unsafe { libc::kill(id, signal) };
        ensure!(
            result == 0,
            "cannot send signal {signal} to {name}: {error}",
            name = self.name,
            error = std::io::Error::last_os_error()
        );
        Ok(())
    }

    /// Returns the program's name, as used in messages and file names.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Waits for the next log line that contains `text`.
    ///
    /// # Errors
    /// Fails if no such line appears within `limit` or if the program exits first.
    pub async fn line(&mut self, text: &str, limit: Duration) -> Result<String> {
        let failure = match timeout(limit, self.next_line(text)).await {
            Ok(Ok(Some(line))) => return Ok(line),
            Ok(Ok(None)) => format!("{} exited before it wrote '{text}'", self.name),
            Ok(Err(error)) => return Err(error),
            Err(_) => format!("{} did not write '{text}' within {limit:?}", self.name),
        };
        bail!("{failure}; the last lines of {} are:\n{}", self.log.display(), tail(&self.log, 20))
    }

    async fn next_line(&mut self, text: &str) -> Result<Option<String>> {
        loop {
            self.written.mark_unchanged();
            let bytes = fs::read(&self.log).with_context(|| format!("cannot read {}", self.log.display()))?;
            let new = bytes.get(self.seen..).unwrap_or_default();
            let whole = new.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
            let mut passed = 0;
            for line in new[..whole].split_inclusive(|&b| b == b'\n') {
                passed += line.len();
                let line = String::from_utf8_lossy(line);
                if line.contains(text) {
                    self.seen += passed;
                    return Ok(Some(line.trim_end().to_owned()));
                }
            }
            self.seen += whole;
            if self.written.changed().await.is_err() {
                return Ok(None);
            }
        }
    }

    /// Waits until the program exits.
    ///
    /// # Errors
    /// Fails if the process cannot be waited for.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        self.child.wait().await.with_context(|| format!("cannot wait for {} to exit", self.name))
    }

    /// Returns the exit status if the program has exited.
    ///
    /// # Errors
    /// Fails if the status cannot be read.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot get the exit status of {}", self.name))
    }

    /// Kills the program with SIGKILL and reaps it.
    ///
    /// # Errors
    /// Fails if the program cannot be killed.
    pub async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.with_context(|| format!("cannot kill {}", self.name))
    }

    /// Sends SIGTERM and kills the program if it has not exited after `limit`.
    ///
    /// # Errors
    /// Fails if the program had to be killed.
    pub async fn stop(&mut self, limit: Duration) -> Result<ExitStatus> {
        // Sending the signal fails if the program has already exited, which is fine.
        let _ = self.signal(libc::SIGTERM);
        match timeout(limit, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => {
                self.kill().await?;
                bail!("{} did not exit within {limit:?} after SIGTERM and was killed", self.name)
            }
        }
    }
}

/// Copies the program's output to the log until end of file and publishes the log's length.
async fn pump(
    mut output: pipe::Receiver,
    mut log: BoundedLog<File>,
    count: watch::Sender<usize>,
    mut reading: watch::Receiver<Reading>,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let wanted = *reading.borrow_and_update();
        match wanted {
            Reading::On => {}
            Reading::Over => return,
            Reading::Stalled => {
                // If the pipe cannot be filled, the test is less strict but still valid.
                let _ = fill(&output);
                // An error means that the `Process` was dropped. Read the remaining output, which may show why the
                // program ended.
                if reading.changed().await.is_ok() {
                    continue;
                }
            }
        }
        let read = tokio::select! {
            Ok(()) = reading.changed() => continue,
            read = output.read(&mut buffer) => read,
        };
        let Ok(len @ 1..) = read else { return };
        let text: Vec<u8> = buffer[..len].iter().copied().filter(|&byte| byte != FILLER).collect();
        // Keep reading when the log is full, so that the program does not block.
        match log.append(&text) {
            Ok(0) => {}
            Ok(len) => count.send_modify(|written| *written += len),
            Err(_) => return,
        }
    }
}

/// Fills a pipe so that further writes to it block.
fn fill(output: &pipe::Receiver) -> std::io::Result<()> {
    // O_NONBLOCK would affect the program if set on its own write end, so open a separate one through /proc.
    let mut end = File::options()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", output.as_raw_fd()))?;
    // A write of up to PIPE_BUF (4096) bytes fails if the pipe has no room for all of them, so finish with single
    // bytes.
    for piece in [4096, 1] {
        while end.write(&[FILLER; 4096][..piece]).is_ok() {}
    }
    Ok(())
}

fn die_with_parent(command: &mut Command) {
    // SAFETY: only prctl is called between fork and exec. It is async-signal-safe and does not access memory.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        })
    };
}

/// Returns whether a process is suspended by a signal or stopped by a debugger.
pub(crate) fn is_suspended(id: u32) -> bool {
    fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| has_suspended_state(&stat))
}

/// Returns whether a line of proc_pid_stat(5) shows a suspended process. Splits the line at the last parenthesis, since
/// the program name in parentheses may contain any character.
fn has_suspended_state(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// Formats the command so that it can be pasted into a shell.
fn command_line(command: &Command) -> String {
    let command = command.as_std();
    let mut line = quoted(&command.get_program().to_string_lossy());
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&quoted(&arg.to_string_lossy()));
    }
    line.push('\n');
    line
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Returns the last lines of a file, for an error message.
pub fn tail(path: &Path, lines: usize) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    let start = all.len().saturating_sub(lines);
    if all.is_empty() { format!("{} is empty", path.display()) } else { all[start..].join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_shell_quoted() {
        let mut command = Command::new("/bin/x");
        command.args(["-append", "a b", "it's", ""]);
        assert_eq!(command_line(&command), "/bin/x -append 'a b' 'it'\\''s' ''\n");
    }

    #[test]
    fn stat_line_of_suspended_process_is_recognised() {
        assert!(has_suspended_state("12 (qemu-system-x86) T 1 12 12"));
        assert!(has_suspended_state("12 (a) S (b) t 1 12 12"));
        assert!(!has_suspended_state("12 (a) T (b) S 1 12 12") && !has_suspended_state(""));
    }

    #[tokio::test]
    async fn program_that_ignores_sigterm_is_killed() {
        let lab = tempfile::tempdir().unwrap();
        let run = RunDir::create(lab.path(), "x").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; while :; do read x; done </dev/zero"]);
        let mut process = Process::start("stubborn", command, &run).unwrap();
        process.line("ready", Duration::from_secs(60)).await.unwrap();
        let error = process.stop(Duration::from_millis(100)).await.unwrap_err();
        assert!(error.to_string().contains("stubborn"), "{error:#}");
        assert!(process.status().unwrap().is_some());
    }

    #[tokio::test]
    async fn log_lines_are_found_in_order() {
        let lab = tempfile::tempdir().unwrap();
        let run = RunDir::create(lab.path(), "x").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; echo three; echo last two"]);
        let mut process = Process::start("speaker", command, &run).unwrap();
        let limit = Duration::from_secs(60);
        assert_eq!(process.line("two", limit).await.unwrap(), "two");
        assert_eq!(process.line("two", limit).await.unwrap(), "last two");
        let error = process.line("one", limit).await.unwrap_err();
        assert!(error.to_string().starts_with("speaker exited before it wrote 'one'"), "{error:#}");
    }

    #[tokio::test]
    async fn full_log_does_not_block_program() {
        let lab = tempfile::tempdir().unwrap();
        let run = RunDir::create(lab.path(), "x").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 1000000 /dev/zero | tr '\\0' x; exit 3"]);
        let mut process = Process::start_within(1000, "speaker", command, &run).unwrap();
        let status = timeout(Duration::from_secs(60), process.ended()).await.unwrap().unwrap();
        assert_eq!(status.code(), Some(3));
        let error = process.line("never written", Duration::from_secs(60)).await.unwrap_err();
        assert!(error.to_string().contains("further output is discarded"), "{error:#}");
        assert!(fs::metadata(process.log()).unwrap().len() < 1100);
    }

    #[tokio::test]
    async fn output_is_logged_after_reading_resumes() {
        let lab = tempfile::tempdir().unwrap();
        let run = RunDir::create(lab.path(), "x").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "trap 'echo held' USR1; echo ready; while :; do sleep 0.01; done"]);
        let mut process = Process::start("speaker", command, &run).unwrap();
        let limit = Duration::from_secs(60);
        process.line("ready", limit).await.unwrap();
        process.read_output(Reading::Stalled);
        process.signal(libc::SIGUSR1).unwrap();
        process.line("held", Duration::from_millis(100)).await.unwrap_err();
        process.read_output(Reading::On);
        assert_eq!(process.line("held", limit).await.unwrap(), "held");
        process.read_output(Reading::Over);
        process.kill().await.unwrap();
    }
}
