//! Restarts failed devices. A failed device loses its client and its state, but does not affect any other
//! device.
//!
//! Each device has a thread that runs its worker. If the worker fails because of a host error or a panic, the device is
//! dropped. After a pause, the device is re-created from its configuration. Its socket stays open, so a VMM that
//! connects in the meantime waits to be accepted.

use std::any::Any;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use card::limited;
use thiserror::Error;

use crate::control::call::{Mailbox, RunState};
use crate::worker::{Ended, Run};

/// Pause before a device is re-created after its first failure. Each subsequent failure doubles the pause, up to
/// [`LONGEST_PAUSE`]. QEMU waits 5 s for its first reply, so a VMM that connects during the first pause does not notice
/// it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Maximum pause. It limits the CPU time used by a device that fails repeatedly, without delaying recovery for long
/// once the cause has been fixed.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Time after which a running device counts as recovered. Its next failure is then followed by [`FIRST_PAUSE`] again.
const RECOVERED_AFTER: Duration = Duration::from_secs(60);

/// A function that re-creates a device's worker.
pub type Rebuild = Box<dyn FnMut() -> anyhow::Result<Box<dyn Run>> + Send>;

/// Why a device cannot continue.
#[derive(Debug, Error)]
pub enum Failure {
    #[error(transparent)]
    Host(#[from] io::Error),
    /// The device cannot be re-created.
    #[error("{0:#}")]
    Rebuild(anyhow::Error),
    /// A panic, which has been logged.
    #[error("panic: {0} (this is a bug in hcad; please report it)")]
    Panic(String),
}

/// Runs a device until a shutdown is requested or until the client that it inherited disconnects. Without `rebuild`,
/// the first failure is final.
///
/// # Errors
/// Fails if the device has failed and cannot be re-created.
pub fn supervise(
    first: Box<dyn Run>,
    mut rebuild: Option<Rebuild>,
    mailbox: &mut Mailbox,
) -> Result<Ended, Failure> {
    let mut pause = FIRST_PAUSE;
    // The last logged failure. It is not logged again if it recurs.
    let mut logged = None;
    let mut worker = Ok(first);
    loop {
        let failure = match worker {
            Ok(worker) => {
                mailbox.set_run_state(RunState::Running);
                if logged.take().is_some() {
                    limited!(info, "device is running again after a failure");
                }
                let started = Instant::now();
                // Unwind safety: the worker is consumed, and the mailbox contains only complete calls.
                let ran = panic::catch_unwind(AssertUnwindSafe(|| worker.run(mailbox)));
                mailbox.set_connected(false);
                if started.elapsed() >= RECOVERED_AFTER {
                    pause = FIRST_PAUSE;
                }
                match ran {
                    Ok(Ok(ended)) => return Ok(ended),
                    Ok(Err(error)) => Failure::Host(error),
                    Err(payload) => Failure::Panic(panic_message(payload.as_ref())),
                }
            }
            Err(failure) => failure,
        };
        let Some(rebuild) = &mut rebuild else { return Err(failure) };
        let problem = failure.to_string();
        if logged.as_ref() != Some(&problem) {
            limited!(error, %failure, "device failed; disconnecting the VMM and restarting the device");
        }
        logged = Some(problem.clone());
        mailbox.set_run_state(RunState::Restarting(problem));
        if mailbox.is_stopped_within(pause) {
            return Ok(Ended::Shutdown);
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        worker = match panic::catch_unwind(AssertUnwindSafe(rebuild)) {
            Ok(worker) => worker.map_err(Failure::Rebuild),
            Err(payload) => Err(Failure::Panic(panic_message(payload.as_ref()))),
        };
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let panic_message = payload.downcast_ref::<String>().map(String::as_str);
    panic_message.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::control::call::{self, Handle};

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Scripted behaviour of one run of a device.
    #[derive(Clone, Copy)]
    enum Act {
        Panic,
        Fail,
        Serve,
    }

    impl Run for Act {
        fn run(self: Box<Self>, mailbox: &mut Mailbox) -> io::Result<Ended> {
            mailbox.set_connected(true);
            match *self {
                Act::Panic => panic!("no such thing"),
                Act::Fail => Err(io::Error::other("the tap was deleted")),
                Act::Serve => {
                    while !mailbox.is_stopped_within(TIMEOUT) {}
                    Ok(Ended::Shutdown)
                }
            }
        }
    }

    /// Supervises a device that acts out one element of `acts` per run. `None` means that re-creating the device fails.
    /// The receiver yields the time of each attempt to re-create the device.
    fn supervised(
        acts: Vec<Option<Act>>,
    ) -> (Handle, mpsc::Receiver<Instant>, thread::JoinHandle<Result<Ended, Failure>>) {
        let (handle, mut mailbox) = call::mailbox().unwrap();
        let (attempts, attempted) = mpsc::channel();
        let mut acts = acts.into_iter();
        let first = acts.next().unwrap().unwrap();
        let rebuild: Rebuild = Box::new(move || {
            attempts.send(Instant::now()).unwrap();
            match acts.next().unwrap() {
                Some(act) => Ok(Box::new(act)),
                None => anyhow::bail!("no parts left"),
            }
        });
        (handle, attempted, thread::spawn(move || supervise(Box::new(first), Some(rebuild), &mut mailbox)))
    }

    #[test]
    fn failed_device_is_restarted_until_it_runs() {
        let acts = vec![Some(Act::Panic), Some(Act::Fail), None, Some(Act::Serve)];
        let (handle, made, thread) = supervised(acts);
        for _ in 0..3 {
            made.recv_timeout(TIMEOUT).unwrap();
        }
        let end = Instant::now() + TIMEOUT;
        while handle.health().run_state != RunState::Running || !handle.is_connected() {
            assert!(Instant::now() < end, "the device is not running after {TIMEOUT:?}");
            thread::yield_now();
        }
        assert_eq!(handle.health().restarts, 3);
        assert_eq!(handle.health().problem.as_deref(), Some("no parts left"));
        handle.stop();
        assert_eq!(thread.join().unwrap().unwrap(), Ended::Shutdown);
        assert!(!handle.is_connected());
    }

    #[test]
    fn restart_pause_doubles_after_each_failure() {
        let began = Instant::now();
        let (handle, made, thread) = supervised(vec![Some(Act::Panic), Some(Act::Fail), Some(Act::Serve)]);
        let made = [(); 2].map(|()| made.recv_timeout(TIMEOUT).unwrap());
        assert!(made[0].duration_since(began) >= FIRST_PAUSE);
        assert!(made[1].duration_since(made[0]) >= 2 * FIRST_PAUSE);
        handle.stop();
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn shutdown_request_ends_restart_pause() {
        let (handle, mut mailbox) = call::mailbox().unwrap();
        handle.stop();
        let rebuild: Rebuild = Box::new(|| unreachable!("the device is not re-created"));
        let ended = supervise(Box::new(Act::Fail), Some(rebuild), &mut mailbox).unwrap();
        assert_eq!(ended, Ended::Shutdown);
        assert_eq!(handle.health().problem.as_deref(), Some("the tap was deleted"));
    }

    #[test]
    fn failure_is_returned_if_device_cannot_be_recreated() {
        let (_handle, mut mailbox) = call::mailbox().unwrap();
        let failure = supervise(Box::new(Act::Panic), None, &mut mailbox).unwrap_err();
        assert_eq!(failure.to_string(), "panic: no such thing (this is a bug in hcad; please report it)");
    }
}
