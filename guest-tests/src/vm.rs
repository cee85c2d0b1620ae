//! One guest: its QEMU, its agent, its end. Or an agent alone, in a process of its own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use agent::wire::{
    Call, EnterRoot, ExitStatus, Failure, LoadModules, Ping, ProgramEnd, Run, Shutdown, ShutdownKind,
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use crate::agent_link::AgentLink;
use crate::artifacts::{Artifacts, Disks};
use crate::monitor::Monitor;
use crate::process::{Process, tail};
use crate::qemu::{Endpoints, Machine, slot, vfio_user_behind};
use crate::run_dir::RunDir;
use crate::tools::words;

/// From the start of QEMU until it has opened its side of the agent's port.
const QEMU_START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a QEMU that has closed a socket may take to end.
const LAST_BREATH: Duration = Duration::from_secs(1);
/// What a program in the guest may take when nothing else is said.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);
/// What an answer may take beyond the time a step waits.
const ANSWER_MARGIN: Duration = Duration::from_secs(20);
/// How long a guest that restarts may leave a question unanswered before it is asked again, and when it is given up.
const REBOOT_PATIENCE: Duration = Duration::from_secs(20);
const REBOOT_TIMEOUT: Duration = Duration::from_secs(180);
/// Between two answers of an agent that is still going.
const REBOOT_POLL: Duration = Duration::from_millis(200);
/// Lines of console and log in a failure's message.
const TAIL_LINES: usize = 12;
/// The hidden command of this program that serves an agent without a guest.
pub const AGENT_COMMAND: &str = "agent";
/// How Linux begins its last line.
const KERNEL_PANIC: &str = "Kernel panic - not syncing";

/// Boots of this process that were tried again.
static PANICKED_BOOTS: AtomicU32 = AtomicU32::new(0);

/// Returns how many boots ended in a kernel panic and were tried again.
pub fn panicked_boots() -> u32 {
    PANICKED_BOOTS.load(Ordering::Relaxed)
}

/// What a guest starts from.
#[derive(Clone, Debug)]
pub struct Image {
    /// The archive given to the kernel.
    pub initramfs: PathBuf,
    /// Modules inside, in loading order.
    pub modules: Vec<String>,
    /// The disks of a guest with a user space; without them the agent is alone with busybox.
    pub disks: Option<Disks>,
}

/// A running guest. QEMU is killed when this is dropped.
#[derive(Debug)]
pub struct Vm {
    name: String,
    /// QEMU, or the process of an agent without a guest.
    qemu: Process,
    agent: AgentLink,
    console_log: PathBuf,
    console: Option<UnixStream>,
    commands: Vec<UnixStream>,
    monitor: Option<Monitor>,
    boot_time: Duration,
}

/// What the lab wants of a guest beside the agent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// To type into its console.
    pub console: bool,
    /// So many ports that carry commands, at most [`Self::MOST_COMMANDS`].
    pub commands: usize,
    /// To change the machine while it runs.
    pub monitor: bool,
}

impl Wanted {
    /// Bound: ports of one virtio-serial device beside the agent's and the one that is reserved for a console.
    pub const MOST_COMMANDS: usize = 29;
}

impl Vm {
    /// Starts a machine, waits up to `limit` for its agent and loads the image's modules.
    ///
    /// # Errors
    /// When the guest does not get that far, with the ends of its console and of QEMU's log.
    pub async fn boot(
        machine: &Machine,
        artifacts: &Artifacts,
        image: &Image,
        run: &RunDir,
        wanted: Wanted,
        limit: Duration,
    ) -> Result<Self> {
        let console_log = run.file(format!("guest-{}.console", machine.name));
        let mut vm = boot_again_after_panic(&machine.name, &console_log, async || {
            Self::start(machine, artifacts, image, run, wanted, limit).await
        })
        .await?;
        vm.furnish(image).await?;
        Ok(vm)
    }

    /// Starts a machine and waits for its agent.
    async fn start(
        machine: &Machine,
        artifacts: &Artifacts,
        image: &Image,
        run: &RunDir,
        wanted: Wanted,
        limit: Duration,
    ) -> Result<Self> {
        let begun = Instant::now();
        let name = format!("guest-{}", machine.name);
        let endpoints = Endpoints {
            agent: run.socket(&format!("{name}.agent")),
            console_log: run.file(format!("{name}.console")),
            commands: (0..wanted.commands).map(|n| run.socket(&format!("{name}.exec{n}"))).collect(),
            console: wanted.console.then(|| run.socket(&format!("{name}.tty"))),
            monitor: wanted.monitor.then(|| run.socket(&format!("{name}.monitor"))),
        };
        // QEMU connects to us, so there is nothing to wait for and to try again.
        let agent_listener = listen(&endpoints.agent)?;
        let command_listeners: Vec<_> =
            endpoints.commands.iter().map(|path| listen(path)).collect::<Result<_>>()?;
        let console_listener = endpoints.console.as_deref().map(listen).transpose()?;
        let monitor_listener = endpoints.monitor.as_deref().map(listen).transpose()?;
        let command = machine.command(&artifacts.qemu, &artifacts.kernel, &image.initramfs, &endpoints);
        let mut qemu = Process::start(&name, command, run)?;

        let console = match &console_listener {
            Some(listener) => Some(accept(listener, &mut qemu).await?),
            None => None,
        };
        let mut commands = Vec::new();
        for listener in &command_listeners {
            commands.push(accept(listener, &mut qemu).await?);
        }
        let monitor = match &monitor_listener {
            Some(listener) => Some(Monitor::new(accept(listener, &mut qemu).await?).await?),
            None => None,
        };
        let stream = accept(&agent_listener, &mut qemu).await?;
        let agent = AgentLink::new(stream, &run.file(format!("{name}.agent.jsonl")))?;
        let mut vm = Self {
            name: machine.name.clone(),
            qemu,
            agent,
            console_log: endpoints.console_log,
            console,
            commands,
            monitor,
            boot_time: Duration::ZERO,
        };
        vm.call_within(limit, Ping {})
            .await
            .with_context(|| format!("the guest did not boot within {} s", limit.as_secs()))?;
        vm.boot_time = begun.elapsed();
        Ok(vm)
    }

    /// Starts an agent in a process of its own. It can open devices by their sockets, as VMM and driver at once.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn without_guest(name: &str, run: &RunDir) -> Result<Self> {
        let process = format!("guest-{name}");
        let socket = run.socket(&format!("{process}.agent"));
        let listener = listen(&socket)?;
        let mut command = tokio::process::Command::new(std::env::current_exe()?);
        command.arg(AGENT_COMMAND).arg(&socket);
        let mut qemu = Process::start(&process, command, run)?;
        let stream = accept(&listener, &mut qemu).await?;
        let agent = AgentLink::new(stream, &run.file(format!("{process}.agent.jsonl")))?;
        Ok(Self {
            name: name.to_owned(),
            console_log: qemu.log().to_owned(),
            qemu,
            agent,
            console: None,
            commands: Vec::new(),
            monitor: None,
            boot_time: Duration::ZERO,
        })
    }

    /// Restarts a guest that may restart, and waits until it answers again.
    ///
    /// # Errors
    /// When it does not.
    pub async fn reboot(&mut self, image: &Image) -> Result<()> {
        let before = Duration::from_millis(self.call(Ping {}).await?.uptime_ms);
        let asked = Instant::now();
        // One that has not restarted is older by all that has passed since; one that has cannot be older than that.
        let is_new = |uptime_ms| Duration::from_millis(uptime_ms) < asked.elapsed() + before / 2;
        self.call(Shutdown { kind: ShutdownKind::Reboot }).await?;
        // A question may still reach the agent that is going, and is lost with it.
        while asked.elapsed() < REBOOT_TIMEOUT {
            if self.agent.call_within(REBOOT_PATIENCE, Ping {}).await.is_ok_and(|pong| is_new(pong.uptime_ms))
            {
                return self.furnish(image).await;
            }
            sleep(REBOOT_POLL).await;
        }
        let result =
            Err(anyhow!("the guest did not reply within {} s after its reboot", REBOOT_TIMEOUT.as_secs()));
        self.explained(result).await
    }

    /// Loads modules and enters the user space.
    async fn furnish(&mut self, image: &Image) -> Result<()> {
        if !image.modules.is_empty() {
            self.call(LoadModules { paths: image.modules.clone() })
                .await
                .context("cannot load kernel modules")?;
        }
        if image.disks.is_some() {
            // The disks as `Lab` orders them.
            let step = EnterRoot { system: "/dev/vda".into(), modules: Some("/dev/vdb".into()) };
            self.call(step).await.context("cannot mount the root filesystem")?;
            self.run(&["ip", "link", "set", "lo", "up"]).await?;
        }
        Ok(())
    }

    /// Its name, such as `a`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// From the start of QEMU to the agent's first answer.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// What the kernel and the agent printed.
    pub fn console_log(&self) -> &Path {
        &self.console_log
    }

    /// The console's other end, for a guest started with one; only once.
    pub fn take_console(&mut self) -> Option<UnixStream> {
        self.console.take()
    }

    /// The ports that carry commands; only once.
    pub fn take_commands(&mut self) -> Vec<UnixStream> {
        std::mem::take(&mut self.commands)
    }

    /// Plugs the HCA behind `socket` into a free slot, by its number behind those of its cards; the guest is told of it as of any card.
    ///
    /// # Errors
    /// When QEMU refuses, or the guest was started without a free hot-plug slot.
    pub async fn plug(&mut self, number: usize, socket: &Path) -> Result<()> {
        let monitor = self.monitor.as_mut().context("the guest was started without a free hot-plug slot")?;
        let added = monitor.execute("device_add", vfio_user_behind(socket, &slot(number))).await;
        self.explained(added.map(drop)).await
    }

    /// How QEMU ended, if it has.
    ///
    /// # Errors
    /// When the process cannot be asked.
    pub fn status(&mut self) -> Result<Option<std::process::ExitStatus>> {
        self.qemu.status()
    }

    /// Runs a step in the guest.
    ///
    /// # Errors
    /// The step's [`Failure`] (to be found with `downcast_ref`), or the guest's end or silence with what it printed
    /// last.
    pub async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        let result = self.agent.call(step).await;
        self.explained(result).await
    }

    /// Runs a step that may take up to `limit`.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_within<C: Call>(&mut self, limit: Duration, step: C) -> Result<C::Answer> {
        let result = self.agent.call_within(limit, step).await;
        self.explained(result).await
    }

    /// Runs a step that must fail, and returns its failure.
    ///
    /// # Errors
    /// When it succeeds, or the guest is gone or silent.
    pub async fn call_refused<C: Call>(&mut self, step: C) -> Result<Failure> {
        let result = self.agent.call_refused(step).await;
        self.explained(result).await
    }

    /// Runs a program in the guest that must end with success, and returns what it printed.
    ///
    /// # Errors
    /// When it fails or takes longer than a minute, with what it complained about; else as [`Self::call`].
    pub async fn run(&mut self, argv: &[&str]) -> Result<String> {
        self.run_within(PROGRAM_TIMEOUT, argv).await
    }

    /// The same with a time of its own.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn run_within(&mut self, limit: Duration, argv: &[&str]) -> Result<String> {
        let end = self.end_of(limit, argv.iter().map(|&word| word.to_owned()).collect()).await?;
        ensure!(
            end.status == ExitStatus::Code(0),
            "{argv:?} in guest {} failed with {:?}: {}{}",
            self.name,
            end.status,
            end.stdout,
            end.stderr
        );
        Ok(end.stdout)
    }

    /// Runs a program of the guest to its end, whatever that is; its command line has no words with spaces in them.
    ///
    /// # Errors
    /// When it cannot be started or takes longer than `limit`; else as [`Self::call`].
    pub async fn program(&mut self, limit: Duration, line: &str) -> Result<ProgramEnd> {
        self.end_of(limit, words(line)).await
    }

    async fn end_of(&mut self, limit: Duration, argv: Vec<String>) -> Result<ProgramEnd> {
        let timeout_ms = u32::try_from(limit.as_millis())?;
        let step = Run { argv, timeout_ms, ..Run::default() };
        self.call_within(limit + ANSWER_MARGIN, step).await
    }

    /// Ends QEMU with SIGKILL: nothing in it can react.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub async fn kill(&mut self) -> Result<()> {
        self.qemu.kill().await
    }

    /// Sends a signal to QEMU, and waits for nothing.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.qemu.signal(signal)
    }

    /// The number of QEMU's process.
    ///
    /// # Errors
    /// When it has ended.
    pub fn process_id(&self) -> Result<u32> {
        self.qemu.id()
    }

    /// Names the guest in an error, and shows what it printed when the error is not the step's own.
    async fn explained<T>(&mut self, result: Result<T>) -> Result<T> {
        let Err(error) = result else { return result };
        if error.is::<Failure>() {
            return Err(error.context(format!("guest {}", self.name)));
        }
        // A QEMU that ends closes its sockets first.
        let state = match timeout(LAST_BREATH, self.qemu.ended()).await {
            Ok(Ok(status)) => format!("QEMU exited with {status}"),
            _ => "QEMU is running".into(),
        };
        Err(error.context(format!(
            "guest {} ({state})\nend of {}:\n{}\nend of {}:\n{}",
            self.name,
            self.console_log.display(),
            tail(&self.console_log, TAIL_LINES),
            self.qemu.log().display(),
            tail(self.qemu.log(), TAIL_LINES),
        )))
    }
}

/// Boots, and once more if the kernel panics before the agent answers: on a busy host, QEMU's emulation of several
/// processors sometimes lets one execute the breakpoint by which Linux patches its own text. No driver of an HCA is loaded by
/// then, so that this hides no fault of a device.
async fn boot_again_after_panic<T>(
    name: &str,
    console_log: &Path,
    mut boot: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let first = boot().await;
    let console = std::fs::read(console_log).unwrap_or_default();
    if !String::from_utf8_lossy(&console).contains(KERNEL_PANIC) {
        return first;
    }
    PANICKED_BOOTS.fetch_add(1, Ordering::Relaxed);
    let kept = console_log.with_extension("console.panic");
    std::fs::write(&kept, console).with_context(|| format!("cannot write {}", kept.display()))?;
    tracing::warn!(
        "the kernel of guest {name} panicked during boot; booting the guest again. Its console log is {}",
        kept.display()
    );
    match first {
        // A guest that may restart has done so by itself.
        Ok(vm) => Ok(vm),
        Err(_) => boot().await.context("cannot boot the guest again after a kernel panic"),
    }
}

fn listen(path: &Path) -> Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", path.display()));
        }
        _ => {}
    }
    UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))
}

async fn accept(listener: &UnixListener, qemu: &mut Process) -> Result<UnixStream> {
    let attempt = timeout(QEMU_START_TIMEOUT, async {
        tokio::select! {
            connection = listener.accept() => Ok(connection?.0),
            status = qemu.ended() => Err(anyhow!("QEMU exited with {}", status?)),
        }
    });
    match attempt.await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => {
            Err(error.context(format!("end of {}:\n{}", qemu.log().display(), tail(qemu.log(), TAIL_LINES))))
        }
        Err(_) => bail!(
            "QEMU did not connect to guest-lab within {QEMU_START_TIMEOUT:?}; end of {}:\n{}",
            qemu.log().display(),
            tail(qemu.log(), TAIL_LINES)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Boots whose consoles end like these, and returns how many there were and how the last one ended.
    async fn boots(consoles: &[&str]) -> (usize, Result<usize>) {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("guest-a.console");
        let mut count = 0;
        let result = boot_again_after_panic("a", &log, async || {
            let console = consoles[count];
            count += 1;
            std::fs::write(&log, console)?;
            if console == "agent" { Ok(count) } else { bail!("the guest closed its connection to guest-lab") }
        })
        .await;
        (count, result)
    }

    #[tokio::test]
    async fn panicked_boot_is_repeated_once() {
        const PANIC: &str = "[    0.9] Kernel panic - not syncing: Fatal exception in interrupt";
        assert_eq!(boots(&["agent"]).await.1.unwrap(), 1);
        let before = panicked_boots();
        assert_eq!(boots(&[PANIC, "agent"]).await.1.unwrap(), 2);
        assert_eq!(panicked_boots(), before + 1);
        let (count, result) = boots(&[PANIC, PANIC]).await;
        assert_eq!(count, 2);
        assert!(format!("{:#}", result.unwrap_err()).contains("closed its connection"));
        let (count, result) = boots(&["[    0.9] Oops: int3"]).await;
        assert_eq!(count, 1);
        result.unwrap_err();
    }
}
