//! A guest: a QEMU process and a connection to the agent. An agent can also run in a separate process without a guest.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use agent::wire::{
    Call, EnterRoot, ExitStatus, Failure, LoadModules, Ping, ProgramEnd, Run, Shutdown, ShutdownKind, System,
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use crate::agent_link::AgentLink;
use crate::artifacts::{Artifacts, Disks};
use crate::bounded_log::Trimmer;
use crate::monitor::Monitor;
use crate::process::{Process, tail};
use crate::qemu::{Endpoints, Machine, slot, vfio_user_behind};
use crate::run_dir::RunDir;
use crate::tools::words;

/// How long QEMU may take to start and connect to the agent's socket.
const QEMU_START_TIMEOUT: Duration = Duration::from_secs(240);
/// How long QEMU may take to exit after it has closed one of its sockets.
const QEMU_EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Default timeout for a program in the guest.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(240);
/// Additional time for the reply to a step, beyond the step's own timeout.
const ANSWER_MARGIN: Duration = Duration::from_secs(60);
/// Timeout for one ping while a guest restarts. Pings are repeated until the new agent answers one or the restart
/// exceeds [`REBOOT_TIMEOUT`].
const PING_TIME_LIMIT: Duration = Duration::from_secs(20);
const REBOOT_TIMEOUT: Duration = Duration::from_secs(240);
/// Interval between pings while the old agent is still shutting down.
const REBOOT_POLL: Duration = Duration::from_millis(200);
/// Number of trailing lines of console output and QEMU's log to include in an error message.
const TAIL_LINES: usize = 12;
/// Hidden command that runs this program as an agent without a guest.
pub const AGENT_COMMAND: &str = "agent";
/// Start of the message that Linux prints on a panic.
const KERNEL_PANIC: &str = "Kernel panic - not syncing";

static PANICKED_BOOTS: AtomicU32 = AtomicU32::new(0);

/// Returns the number of boots that ended in a kernel panic and were repeated.
pub fn panicked_boots() -> u32 {
    PANICKED_BOOTS.load(Ordering::Relaxed)
}

/// Files that a guest boots from.
#[derive(Clone, Debug)]
pub struct Image {
    /// The initramfs archive for the kernel.
    pub initramfs: PathBuf,
    /// Modules in the initramfs, in loading order.
    pub modules: Vec<String>,
    /// Disks of a guest with a root file system. Without them, the guest contains only the agent and busybox.
    pub disks: Option<Disks>,
    /// Whether devices are behind an IOMMU, as user-space drivers require.
    pub iommu: bool,
}

/// A running guest. QEMU is killed on drop.
#[derive(Debug)]
pub struct Vm {
    name: String,
    /// QEMU, or the agent's process if there is no guest.
    qemu: Process,
    agent: AgentLink,
    console_log: PathBuf,
    /// Limits the size of the console log. `None` for an agent without a guest.
    _trimmer: Option<Trimmer>,
    console: Option<UnixStream>,
    commands: Vec<UnixStream>,
    monitor: Option<Monitor>,
    boot_time: Duration,
}

/// Connections between the lab and a guest, in addition to the connection to the agent.
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestPorts {
    /// Whether the lab writes to the guest's console.
    pub console: bool,
    /// Number of exec ports (at most [`Self::MOST_COMMANDS`]).
    pub commands: usize,
    /// Whether the lab plugs and unplugs devices at run time, through QEMU's monitor.
    pub monitor: bool,
}

impl GuestPorts {
    /// Maximum number of exec ports, limited by the number of ports on one virtio-serial device. The agent uses one
    /// port, and one is reserved for a console.
    pub const MOST_COMMANDS: usize = 29;
}

impl Vm {
    /// Starts a guest, waits up to `limit` for its agent, loads the image's modules, and enters the root file system
    /// if the image has one.
    ///
    /// # Errors
    /// Fails if one of these steps fails. The error contains the last lines of the guest's console output and QEMU's
    /// log.
    pub async fn boot(
        machine: &Machine,
        artifacts: &Artifacts,
        image: &Image,
        run: &RunDir,
        wanted: GuestPorts,
        limit: Duration,
    ) -> Result<Self> {
        let console_log = run.file(format!("guest-{}.console", machine.name));
        let mut vm = boot_again_after_panic(&machine.name, &console_log, async || {
            Self::start(machine, artifacts, image, run, wanted, limit).await
        })
        .await?;
        vm.enter_root(image).await?;
        Ok(vm)
    }

    /// Starts a guest and waits until its agent responds.
    async fn start(
        machine: &Machine,
        artifacts: &Artifacts,
        image: &Image,
        run: &RunDir,
        wanted: GuestPorts,
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
        // Listen before QEMU starts and connects, to avoid retries.
        let agent_listener = listen(&endpoints.agent)?;
        let command_listeners: Vec<_> =
            endpoints.commands.iter().map(|path| listen(path)).collect::<Result<_>>()?;
        let console_listener = endpoints.console.as_deref().map(listen).transpose()?;
        let monitor_listener = endpoints.monitor.as_deref().map(listen).transpose()?;
        let command = machine.command(&artifacts.qemu, &artifacts.kernel, &image.initramfs, &endpoints);
        let trimmer = Trimmer::start(&endpoints.console_log)?;
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
            _trimmer: Some(trimmer),
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

    /// Starts an agent in a separate process. It can connect to device sockets and then acts as both the VMM and the
    /// driver.
    ///
    /// # Errors
    /// Fails if the agent does not start.
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
            _trimmer: None,
            qemu,
            agent,
            console: None,
            commands: Vec::new(),
            monitor: None,
            boot_time: Duration::ZERO,
        })
    }

    /// Reboots a guest that was started with reboots enabled, and waits until it responds again.
    ///
    /// # Errors
    /// Fails if the guest does not respond.
    pub async fn reboot(&mut self, image: &Image) -> Result<()> {
        self.restart(image, ShutdownKind::Reboot).await
    }

    /// Makes the guest's kernel panic and waits until the crash kernel responds.
    ///
    /// # Errors
    /// Fails if the guest does not respond.
    pub async fn crash(&mut self, image: &Image) -> Result<()> {
        self.restart(image, ShutdownKind::Crash).await
    }

    async fn restart(&mut self, image: &Image, kind: ShutdownKind) -> Result<()> {
        let before = Duration::from_millis(self.call(Ping {}).await?.uptime_ms);
        let asked = Instant::now();
        // Without a restart, the uptime is `before` plus the elapsed time. After a restart, it is at most the elapsed
        // time. The threshold is halfway between the two.
        let is_new = |uptime_ms| Duration::from_millis(uptime_ms) < asked.elapsed() + before / 2;
        self.call(Shutdown { kind }).await?;
        // The old agent may receive a ping and shut down before it replies.
        while asked.elapsed() < REBOOT_TIMEOUT {
            if self.agent.call_within(PING_TIME_LIMIT, Ping {}).await.is_ok_and(|pong| is_new(pong.uptime_ms))
            {
                return self.enter_root(image).await;
            }
            sleep(REBOOT_POLL).await;
        }
        let result =
            Err(anyhow!("the guest did not reply within {} s after its reboot", REBOOT_TIMEOUT.as_secs()));
        self.explained(result).await
    }

    /// Loads modules and enters the root file system.
    async fn enter_root(&mut self, image: &Image) -> Result<()> {
        if !image.modules.is_empty() {
            self.call_within(PROGRAM_TIMEOUT, LoadModules { paths: image.modules.clone() })
                .await
                .context("cannot load kernel modules")?;
        }
        if image.disks.is_some() {
            // These names depend on the order of the disks, which `Lab` defines.
            let step =
                EnterRoot { system: System::Disk("/dev/vda".into()), modules: Some("/dev/vdb".into()) };
            self.call_within(PROGRAM_TIMEOUT, step).await.context("cannot mount the root filesystem")?;
            self.run(&["ip", "link", "set", "lo", "up"]).await?;
        }
        Ok(())
    }

    /// Returns the guest's name, such as `a`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the time from the start of QEMU to the agent's first reply.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// Returns the path of the console log, which the kernel and the agent write to.
    pub fn console_log(&self) -> &Path {
        &self.console_log
    }

    /// Returns the connection to the console, if the guest was started with one. Later calls return `None`.
    pub fn take_console(&mut self) -> Option<UnixStream> {
        self.console.take()
    }

    /// Returns the connections to the exec ports. Later calls return an empty list.
    pub fn take_commands(&mut self) -> Vec<UnixStream> {
        std::mem::take(&mut self.commands)
    }

    /// Hot-plugs the HCA behind `socket` into free slot `number`. The cards present at boot have the lowest slot
    /// numbers, and the free slots follow.
    ///
    /// # Errors
    /// Fails if QEMU rejects the device or if the guest was started without a free hot-plug slot.
    pub async fn plug(&mut self, number: usize, socket: &Path) -> Result<()> {
        let monitor = self.monitor.as_mut().context("the guest was started without a free hot-plug slot")?;
        let mut device = vfio_user_behind(socket, &slot(number));
        device["id"] = card(number).into();
        let added = monitor.execute("device_add", device).await;
        self.explained(added.map(drop)).await
    }

    /// Unplugs the HCA that [`Self::plug`] plugged into slot `number` and waits until the guest has released it.
    ///
    /// # Errors
    /// Fails if the guest does not release the HCA within `limit` or if QEMU rejects the request or exits.
    pub async fn unplug(&mut self, number: usize, limit: Duration) -> Result<()> {
        let monitor = self.monitor.as_mut().context("the guest was started without a free hot-plug slot")?;
        let id = card(number);
        let removed = async {
            monitor.execute("device_del", json!({ "id": id })).await?;
            monitor.event("DEVICE_DELETED", &id, limit).await
        }
        .await;
        self.explained(removed).await
    }

    /// Returns QEMU's exit status, or `None` if QEMU is still running.
    ///
    /// # Errors
    /// Fails if the status cannot be read.
    pub fn status(&mut self) -> Result<Option<std::process::ExitStatus>> {
        self.qemu.status()
    }

    /// Checks that the agent responds within `limit`. Unlike the error from a step, the error from a ping does not
    /// include guest output.
    ///
    /// # Errors
    /// Fails if the agent does not respond.
    pub async fn ping(&mut self, limit: Duration) -> Result<()> {
        self.agent.ping(limit).await
    }

    /// Returns whether QEMU has exited. Waits briefly, as QEMU closes its sockets before it exits.
    pub async fn has_ended(&mut self) -> bool {
        matches!(timeout(QEMU_EXIT_TIMEOUT, self.qemu.ended()).await, Ok(Ok(_)))
    }

    /// Executes a step in the guest.
    ///
    /// # Errors
    /// Fails if the step fails, QEMU has exited, or the guest does not respond. If the step failed, `downcast_ref` can
    /// extract its [`Failure`]. In the other cases, the error contains the guest's last output.
    pub async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        let result = self.agent.call(step).await;
        self.explained(result).await
    }

    /// Executes a step that may take up to `limit`.
    ///
    /// # Errors
    /// Same as for [`Self::call`].
    pub async fn call_within<C: Call>(&mut self, limit: Duration, step: C) -> Result<C::Answer> {
        let result = self.agent.call_within(limit, step).await;
        self.explained(result).await
    }

    /// Executes a step that must fail and returns its failure.
    ///
    /// # Errors
    /// Fails if the step succeeds, QEMU has exited, or the guest does not respond.
    pub async fn call_refused<C: Call>(&mut self, step: C) -> Result<Failure> {
        let result = self.agent.call_refused(step).await;
        self.explained(result).await
    }

    /// Runs a program in the guest and returns its output. The program must succeed.
    ///
    /// # Errors
    /// Fails if the program fails or takes longer than four minutes. The error contains the program's output. All other
    /// errors are the same as for [`Self::call`].
    pub async fn run(&mut self, argv: &[&str]) -> Result<String> {
        self.run_within(PROGRAM_TIMEOUT, argv).await
    }

    /// Runs a program that must succeed within `limit`.
    ///
    /// # Errors
    /// Same as for [`Self::run`].
    pub async fn run_within(&mut self, limit: Duration, argv: &[&str]) -> Result<String> {
        let end = self.end_of(limit, argv.iter().map(|&word| word.to_owned()).collect()).await?;
        ensure!(
            end.status == ExitStatus::Code(0),
            "{argv:?} in guest {name} failed with {status}:\n{stdout}{stderr}",
            name = self.name,
            status = end.status,
            stdout = end.stdout,
            stderr = end.stderr
        );
        Ok(end.stdout)
    }

    /// Runs a program in the guest until it exits, regardless of its exit status. The command line is split at
    /// whitespace.
    ///
    /// # Errors
    /// Fails if the program cannot be started or takes longer than `limit`. All other errors are the same as for
    /// [`Self::call`].
    pub async fn program(&mut self, limit: Duration, line: &str) -> Result<ProgramEnd> {
        self.end_of(limit, words(line)).await
    }

    async fn end_of(&mut self, limit: Duration, argv: Vec<String>) -> Result<ProgramEnd> {
        let timeout_ms = u32::try_from(limit.as_millis())?;
        let step = Run { argv, timeout_ms, ..Run::default() };
        self.call_within(limit + ANSWER_MARGIN, step).await
    }

    /// Kills QEMU with SIGKILL without giving the guest a chance to react.
    ///
    /// # Errors
    /// Fails if QEMU cannot be killed.
    pub async fn kill(&mut self) -> Result<()> {
        self.qemu.kill().await
    }

    /// Sends a signal to QEMU without waiting for its effect.
    ///
    /// # Errors
    /// Fails if QEMU has exited.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.qemu.signal(signal)
    }

    /// Returns QEMU's process ID.
    ///
    /// # Errors
    /// Fails if QEMU has exited.
    pub fn process_id(&self) -> Result<u32> {
        self.qemu.id()
    }

    /// Adds the guest's name to an error. Unless the error is the [`Failure`] of a step, also adds the guest's last
    /// output.
    async fn explained<T>(&mut self, result: Result<T>) -> Result<T> {
        let Err(error) = result else { return result };
        if error.is::<Failure>() {
            return Err(error.context(format!("guest {}", self.name)));
        }
        // QEMU closes its sockets before it exits, so its exit status may not be available yet.
        let exited = match timeout(QEMU_EXIT_TIMEOUT, self.qemu.ended()).await {
            Ok(Ok(status)) => Some(status),
            _ => None,
        };
        let end = |log: &Path| format!("end of {}:\n{}", log.display(), tail(log, TAIL_LINES));
        Err(error.context(LastState {
            guest: self.name.clone(),
            exited,
            console: end(&self.console_log),
            log: end(self.qemu.log()),
        }))
    }
}

/// A guest's state when a request to it failed, included in the error.
#[derive(Debug)]
pub(crate) struct LastState {
    pub(crate) guest: String,
    /// QEMU's exit status, or `None` if it was running.
    pub(crate) exited: Option<std::process::ExitStatus>,
    /// Last lines of the guest's console output.
    pub(crate) console: String,
    /// Last lines that QEMU printed.
    pub(crate) log: String,
}

impl fmt::Display for LastState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { guest, exited, console, log } = self;
        match exited {
            Some(status) => write!(f, "guest {guest} (QEMU exited with {status})")?,
            None => write!(f, "guest {guest} (QEMU is running)")?,
        }
        write!(f, "\n{console}\n{log}")
    }
}

/// Boots a guest and retries once if the kernel panics before the agent responds. On a busy host, a QEMU process that
/// emulates several CPUs sometimes executes a breakpoint that Linux uses to patch its own code, and Linux then panics.
/// The retry cannot hide a device bug, because no HCA driver has been loaded at that point.
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
        // The agent has responded, so the guest must have rebooted on its own after the panic.
        Ok(vm) => Ok(vm),
        Err(_) => boot().await.context("cannot boot the guest again after a kernel panic"),
    }
}

/// Returns the ID of the card in slot `number`.
fn card(number: usize) -> String {
    format!("card{number}")
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

    /// Simulates boots that leave the given output on the console. Returns the number of boots and the result of the
    /// last one.
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
    async fn boot_is_retried_once_after_kernel_panic() {
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
