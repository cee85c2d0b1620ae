//! CPU time and wake-ups of guests and daemons. Unlike rates, they depend little on the host's load and show where time
//! is spent.

use std::fs;
use std::ops::{Add, Sub};
use std::time::Duration;

use anyhow::{Context, Result};

/// Name prefix of the QEMU threads that execute guest code.
const VCPU: &str = "CPU ";

/// Scheduling statistics of a set of threads. Each value is a sum over all threads, counted from each thread's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::scenario) struct Effort {
    /// Time that the threads spent on a CPU.
    pub(in crate::scenario) ran: Duration,
    /// Time during which the threads were runnable but waiting for a CPU.
    pub(super) waited: Duration,
    /// Number of voluntary context switches, each of which ends with a wake-up.
    pub(super) wakeups: u64,
}

impl Effort {
    /// Reads a QEMU process's resource usage, separately for its virtual CPUs and for all other threads.
    pub(super) fn of_guest(process: u32) -> Result<[Self; 2]> {
        let mut sums = [Self::default(); 2];
        for (name, effort) in threads(process)? {
            let [vcpus, others] = &mut sums;
            let sum = if name.starts_with(VCPU) { vcpus } else { others };
            *sum = *sum + effort;
        }
        Ok(sums)
    }

    /// Reads a process's resource usage.
    pub(in crate::scenario) fn of_process(process: u32) -> Result<Self> {
        Ok(threads(process)?.into_iter().fold(Self::default(), |sum, (_, effort)| sum + effort))
    }

    fn parse(schedstat: &str, status: &str) -> Option<Self> {
        let mut numbers = schedstat.split_whitespace().map(|word| word.parse().ok());
        let (ran, waited) = (numbers.next()??, numbers.next()??);
        let wakeups = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        let wakeups = wakeups.trim().parse().ok()?;
        Some(Self { ran: Duration::from_nanos(ran), waited: Duration::from_nanos(waited), wakeups })
    }
}

impl Add for Effort {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            ran: self.ran + other.ran,
            waited: self.waited + other.waited,
            wakeups: self.wakeups + other.wakeups,
        }
    }
}

/// Computes the increase since `before`. The result saturates at zero, since a sum decreases when a thread exits.
impl Sub for Effort {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            ran: self.ran.saturating_sub(before.ran),
            waited: self.waited.saturating_sub(before.waited),
            wakeups: self.wakeups.saturating_sub(before.wakeups),
        }
    }
}

/// Returns the name and the resource usage of each thread in a process.
fn threads(process: u32) -> Result<Vec<(String, Effort)>> {
    let tasks =
        fs::read_dir(format!("/proc/{process}/task")).with_context(|| format!("process {process}"))?;
    let mut found = Vec::new();
    for task in tasks {
        let folder = task?.path();
        let read = |name: &str| fs::read_to_string(folder.join(name));
        // Skip threads that have exited since they were listed.
        let (Ok(name), Ok(schedstat), Ok(status)) = (read("comm"), read("schedstat"), read("status")) else {
            continue;
        };
        let effort = Effort::parse(&schedstat, &status).with_context(|| format!("{schedstat}{status}"))?;
        found.push((name, effort));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_and_wakeups_are_parsed() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t7\n";
        let effort = Effort::parse("1500 300 4\n", status).unwrap();
        let nanos = Duration::from_nanos;
        assert_eq!(effort, Effort { ran: nanos(1500), waited: nanos(300), wakeups: 12 });
        assert_eq!(Effort::parse("1500\n", status), None);
    }

    #[test]
    fn own_cpu_time_is_read_from_proc() {
        let effort = Effort::of_process(std::process::id()).unwrap();
        assert!(effort.ran > Duration::ZERO);
    }
}
