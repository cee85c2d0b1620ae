//! A device together with the agent that drives it over its vfio-user socket.

use std::ops::Sub;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use agent::serve::Agent;
use agent::wire::Call;
use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

use crate::daemon::Daemon;

pub(crate) struct Endpoint {
    agent: Agent,
    // Declared after the agent, so that the driver closes its device before the daemon is stopped.
    daemon: Arc<Daemon>,
    /// Name of the device's thread.
    thread: String,
    /// CPU time used by the driver so far.
    driver: Duration,
}

/// CPU time used at one end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// CPU time of the driver, for posting, doorbells and completions.
    pub(crate) driver: Duration,
    /// CPU time of the device's thread.
    pub(crate) device: Duration,
}

impl Sub for Spent {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            driver: self.driver.saturating_sub(before.driver),
            device: self.device.saturating_sub(before.device),
        }
    }
}

impl Endpoint {
    /// Opens device `id` of a daemon by executing `step`. Also returns the answer to the step.
    pub(crate) fn open<C: Call>(id: usize, daemon: Arc<Daemon>, step: C) -> Result<(Self, C::Answer)> {
        let mut agent = Agent::default();
        let answer = agent.call(step)?;
        Ok((Self { agent, daemon, thread: format!("hca{id}"), driver: Duration::ZERO }, answer))
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    pub(crate) fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        Ok(self.agent.call(step)?)
    }

    /// Executes a step and adds its CPU time to that of the driver.
    pub(crate) fn timed<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        let before = thread_time();
        let answer = self.call(step);
        self.driver += thread_time().saturating_sub(before);
        answer
    }

    /// Returns a channel that is notified when the next traffic step has posted its first requests. If the step fails
    /// before then, the channel is closed.
    pub(crate) fn announce(&mut self) -> Result<Receiver<()>> {
        let (posted, waiting) = mpsc::channel();
        self.agent.announce(posted)?;
        Ok(waiting)
    }

    pub(crate) fn spent(&self) -> Result<Spent> {
        Ok(Spent { driver: self.driver, device: self.daemon.time(Some(&self.thread))? })
    }
}

impl AsMut<Self> for Endpoint {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // CPU times are never negative.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
