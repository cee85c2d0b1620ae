//! Programs the lab starts: their output in files, their exact command lines beside it, their end with ours.

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

use crate::run_dir::RunDir;

/// What a pipe is filled with; no program here prints it.
const FILLER: u8 = 0;

/// A running program. It is killed when this is dropped, and by the kernel when the lab itself is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Bytes of the log written so far.
    written: watch::Receiver<usize>,
    /// Bytes of the log that [`Self::line`] has been through.
    seen: usize,
    reading: watch::Sender<Reading>,
}

/// What happens to a program's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It goes to the log.
    On,
    /// Nobody reads it, and its pipe is full.
    Stalled,
    /// Nobody reads it, and nobody ever will: the pipe's reading end is closed.
    Over,
}

impl Process {
    /// Starts `command`; both its outputs are appended to `NAME.log` of the run.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(name: &str, mut command: Command, run: &RunDir) -> Result<Self> {
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
        let child =
            command.spawn().with_context(|| format!("cannot start {name}: {:?}", command.as_std()))?;
        // Its copies of the writing end would keep the log from ever ending.
        drop(command);
        let (count, written) = watch::channel(before);
        let (reading, wanted) = watch::channel(Reading::On);
        tokio::spawn(pump(pipe::Receiver::from_owned_fd(reader.into())?, file, count, wanted));
        Ok(Self { name: name.to_owned(), child, log, written, seen: before, reading })
    }

    /// Changes what happens to its output.
    pub fn read_output(&self, reading: Reading) {
        self.reading.send_replace(reading);
    }

    /// Its number.
    ///
    /// # Errors
    /// When it has ended.
    pub fn id(&self) -> Result<u32> {
        self.child.id().with_context(|| format!("{} has exited", self.name))
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let id = libc::pid_t::try_from(self.id()?)?;
        // SAFETY: kill takes no pointers; the id belongs to a child that was not waited for, so to no other process.
        let result = unsafe { libc::kill(id, signal) };
        ensure!(
            result == 0,
            "cannot send signal {signal} to {}: {}",
            self.name,
            std::io::Error::last_os_error()
        );
        Ok(())
    }

    /// Its name in messages and files.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Waits for the next line of its log that contains `text`.
    ///
    /// # Errors
    /// When there is none within `limit`, or the program ends before.
    pub async fn line(&mut self, text: &str, limit: Duration) -> Result<String> {
        let failure = match timeout(limit, self.next_line(text)).await {
            Ok(Ok(Some(line))) => return Ok(line),
            Ok(Ok(None)) => format!("{} exited before it wrote '{text}'", self.name),
            Ok(Err(error)) => return Err(error),
            Err(_) => format!("{} did not write '{text}' within {limit:?}", self.name),
        };
        bail!("{failure}; last lines of its log ({}):\n{}", self.log.display(), tail(&self.log, 20))
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

    /// Waits for its end.
    ///
    /// # Errors
    /// When waiting fails.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        self.child.wait().await.with_context(|| format!("cannot wait for {} to exit", self.name))
    }

    /// Whether it has ended already.
    ///
    /// # Errors
    /// When the process cannot be asked.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot get the status of {}", self.name))
    }

    /// Ends it with SIGKILL and waits for the end.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.with_context(|| format!("cannot kill {}", self.name))
    }

    /// Asks it to end with SIGTERM; kills it when it has not ended after `patience`.
    ///
    /// # Errors
    /// When it had to be killed.
    pub async fn stop(&mut self, patience: Duration) -> Result<ExitStatus> {
        // One that has ended by itself needs no signal.
        let _ = self.signal(libc::SIGTERM);
        match timeout(patience, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => {
                self.kill().await?;
                bail!("{} did not exit within {patience:?} after SIGTERM and was killed", self.name)
            }
        }
    }
}

/// Copies output to the log, telling how much is there, until the program closes it.
async fn pump(
    mut output: pipe::Receiver,
    mut log: File,
    count: watch::Sender<usize>,
    mut reading: watch::Receiver<Reading>,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        // Of a process that is dropped the rest is read: it says why it ended.
        let wanted = *reading.borrow_and_update();
        match wanted {
            Reading::On => {}
            Reading::Over => return,
            Reading::Stalled => {
                // A pipe that cannot be filled shows nothing, but does no harm.
                let _ = fill(&output);
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
        if log.write_all(&text).is_err() {
            return;
        }
        count.send_modify(|written| *written += text.len());
    }
}

/// Leaves no room in a pipe for what its other end writes.
fn fill(output: &pipe::Receiver) -> std::io::Result<()> {
    // Opened anew, since the flags of the program's own end are the program's.
    let mut end = File::options()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", output.as_raw_fd()))?;
    // By bytes at the end: a pipe takes a part of no small write.
    for piece in [4096, 1] {
        while end.write(&[FILLER; 4096][..piece]).is_ok() {}
    }
    Ok(())
}

fn die_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe and touches no memory of ours.
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

/// The command as one can paste it into a shell.
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

/// The last lines of a file, for a message about a failure.
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
    fn a_command_line_can_be_pasted() {
        let mut command = Command::new("/bin/x");
        command.args(["-append", "a b", "it's", ""]);
        assert_eq!(command_line(&command), "/bin/x -append 'a b' 'it'\\''s' ''\n");
    }

    #[tokio::test]
    async fn a_program_that_ignores_sigterm_is_killed_and_reported() {
        let lab = tempfile::tempdir().unwrap();
        let run = RunDir::create(lab.path(), "x").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; while :; do read x; done </dev/zero"]);
        let mut process = Process::start("stubborn", command, &run).unwrap();
        process.line("ready", Duration::from_secs(10)).await.unwrap();
        let error = process.stop(Duration::from_millis(100)).await.unwrap_err();
        assert!(error.to_string().contains("stubborn"), "{error:#}");
        assert!(process.status().unwrap().is_some());
    }

    #[tokio::test]
    async fn lines_are_found_in_order_and_the_end_of_the_log_is_noticed() {
        let lab = tempfile::tempdir().unwrap();
        let run = RunDir::create(lab.path(), "x").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; echo three; echo last two"]);
        let mut process = Process::start("speaker", command, &run).unwrap();
        let limit = Duration::from_secs(10);
        assert_eq!(process.line("two", limit).await.unwrap(), "two");
        assert_eq!(process.line("two", limit).await.unwrap(), "last two");
        let error = process.line("one", limit).await.unwrap_err();
        assert!(error.to_string().starts_with("speaker exited before it wrote 'one'"), "{error:#}");
    }

    #[tokio::test]
    async fn output_that_nobody_reads_waits_and_is_not_lost() {
        let lab = tempfile::tempdir().unwrap();
        let run = RunDir::create(lab.path(), "x").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "trap 'echo held' USR1; echo ready; while :; do sleep 0.01; done"]);
        let mut process = Process::start("speaker", command, &run).unwrap();
        let limit = Duration::from_secs(10);
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
