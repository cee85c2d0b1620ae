//! The state of a running guest, and the liveness check of its agent.
//!
//! A command may print nothing for hours even though the guest is healthy. After a period without output, the
//! supervisor therefore pings the agent, which handles requests on a separate port, independently of commands. An
//! unanswered ping means that QEMU has exited or is suspended, or that the guest's kernel or agent has hung.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use agent::wire::Dmesg;
use anyhow::Result;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::boot::{Booted, Place};
use super::commands::Ports;
use super::name::{Target, TestbedName};
use super::protocol::Stage;
use crate::daemon::Daemon;
use crate::process::is_suspended;
use crate::vm::Vm;

/// Timeout for a ping. Long enough for an emulated guest on a busy host.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a command may go without sending data before the agent is pinged.
const QUIET: Duration = Duration::from_secs(10);
/// Timeout for querying the daemon about its device.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(2);

/// A running guest that accepts commands.
pub(super) struct RunningGuest {
    pub(super) place: Place,
    pub(super) boot_ms: u64,
    pub(super) ports: Ports,
    pub(super) control_socket: Option<PathBuf>,
    target: Target,
    qemu: Option<u32>,
    vm: Mutex<Vm>,
    daemon: Mutex<Option<Daemon>>,
}

impl RunningGuest {
    pub(super) fn new(testbed: &TestbedName, booted: Booted) -> Self {
        let Booted { place, vm, daemon, ports } = booted;
        Self {
            place,
            boot_ms: u64::try_from(vm.boot_time().as_millis()).unwrap_or(u64::MAX),
            ports,
            control_socket: daemon.as_ref().map(|daemon| daemon.controls().socket().to_owned()),
            target: Target { testbed: testbed.clone(), guest: place.name },
            qemu: vm.process_id().ok(),
            vm: Mutex::new(vm),
            daemon: Mutex::new(daemon),
        }
    }

    /// Returns the guest's state, and QEMU's process ID if it is running.
    pub(super) async fn state(&self) -> (Stage, Option<u32>) {
        // If the lock is held, another task is waiting for the agent and has not reaped QEMU yet.
        if self.vm.try_lock().is_ok_and(|mut vm| !matches!(vm.status(), Ok(None))) {
            return (Stage::Ended, None);
        }
        let stage = if self.qemu.is_some_and(is_suspended) {
            Stage::Suspended
        } else if self.has_lost_device().await {
            Stage::DeviceLost
        } else {
            Stage::Ready
        };
        (stage, self.qemu)
    }

    /// Returns whether the daemon has exited or QEMU has lost its connection to the daemon. QEMU never reconnects.
    async fn has_lost_device(&self) -> bool {
        let control = {
            // If another task holds the daemon's lock or has taken the daemon, that task is stopping the daemon.
            let Ok(mut daemon) = self.daemon.try_lock() else { return false };
            let Some(daemon) = daemon.as_mut() else { return false };
            if !matches!(daemon.process().status(), Ok(None)) {
                return true;
            }
            daemon.controls()
        };
        // A daemon that does not respond may be overloaded or suspended, and its device may still work.
        matches!(timeout(DEVICE_TIMEOUT, control.has_vmm()).await, Ok(Ok(false)))
    }

    /// Checks that the agent responds.
    ///
    /// # Errors
    /// Fails if the agent does not respond within [`ANSWER_TIMEOUT`], or QEMU has exited.
    pub(super) async fn check(&self) -> Result<(), Unresponsive> {
        let ping = async {
            let mut vm = self.vm.lock().await;
            let has_answered = vm.ping(ANSWER_TIMEOUT).await.is_ok();
            (has_answered, !has_answered && vm.has_ended().await)
        };
        let cause = match timeout(ANSWER_TIMEOUT, ping).await {
            Ok((true, _)) => return Ok(()),
            Ok((false, true)) => Cause::Ended,
            _ => match self.qemu.filter(|id| is_suspended(*id)) {
                Some(qemu) => Cause::Suspended { qemu },
                None => Cause::Silent,
            },
        };
        Err(Unresponsive { target: self.target.clone(), silence: ANSWER_TIMEOUT, cause })
    }

    /// Waits until the guest is unresponsive. The caller cancels the future when it receives data from the guest.
    pub(super) async fn until_unresponsive(&self) -> Unresponsive {
        loop {
            sleep(QUIET).await;
            if let Err(error) = self.check().await {
                return Unresponsive { silence: QUIET + error.silence, ..error };
            }
        }
    }

    /// Returns all kernel messages.
    ///
    /// # Errors
    /// Fails if the guest does not respond.
    pub(super) async fn messages(&self) -> Result<Vec<String>> {
        self.check().await?;
        Ok(self.vm.lock().await.call(Dmesg { level: None }).await?.lines)
    }

    /// Kills QEMU without giving the guest a chance to react.
    pub(super) async fn kill(&self) {
        // If QEMU has already exited, nothing is left to kill.
        let _ = self.vm.lock().await.kill().await;
    }

    /// Shuts the daemon down cleanly, with SIGTERM.
    ///
    /// # Errors
    /// Fails if the daemon does not exit or exits with an error, or the driver has violated strict rules.
    pub(super) async fn stop_daemon(&self) -> Result<()> {
        match self.daemon.lock().await.take() {
            Some(daemon) => daemon.stop().await,
            None => Ok(()),
        }
    }
}

/// Error for a request to a guest whose agent does not respond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unresponsive {
    target: Target,
    /// How long the guest has been silent.
    silence: Duration,
    cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// QEMU is suspended by a signal or a debugger.
    Suspended { qemu: u32 },
    /// QEMU is running, but the guest's kernel or its agent has hung.
    Silent,
    /// QEMU has exited, and the guest with it.
    Ended,
}

impl fmt::Display for Unresponsive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, silence, cause } = self;
        let Target { testbed, guest } = target;
        let seconds = silence.as_secs();
        match cause {
            Cause::Suspended { qemu } => write!(
                f,
                "guest {target} has not answered for {seconds} s: its QEMU process {qemu} is suspended; \
                 'kill -CONT {qemu}' resumes it, and 'guest-lab down {testbed}' stops all guests"
            ),
            Cause::Silent => write!(
                f,
                "guest {target} has not answered for {seconds} s, although QEMU is running; 'guest-lab logs \
                 {testbed}' prints the path of its console output (guest-{guest}.console), and 'guest-lab \
                 down {testbed}' stops all guests"
            ),
            Cause::Ended => write!(
                f,
                "guest {target} has ended; 'guest-lab logs {testbed}' prints the path of its console output \
                 (guest-{guest}.console)"
            ),
        }
    }
}

impl std::error::Error for Unresponsive {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unresponsive_error_mentions_cause_and_remedy() {
        let text = |cause| {
            let target = "lab:a".parse().unwrap();
            Unresponsive { target, silence: ANSWER_TIMEOUT, cause }.to_string()
        };
        let silent = text(Cause::Silent);
        assert!(silent.starts_with("guest lab:a has not answered for 30 s"), "{silent}");
        for part in ["'guest-lab logs lab'", "guest-a.console", "'guest-lab down lab'"] {
            assert!(silent.contains(part), "{part}: {silent}");
        }
        let suspended = text(Cause::Suspended { qemu: 4711 });
        assert!(suspended.contains("for 30 s: its QEMU process 4711 is suspended"), "{suspended}");
        assert!(suspended.contains("'kill -CONT 4711'"), "{suspended}");
        assert!(text(Cause::Ended).starts_with("guest lab:a has ended;"));
    }
}
