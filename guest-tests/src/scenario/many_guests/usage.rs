//! Memory and CPU time of a guest and its daemon.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::scenario::nic::effort::Effort;

/// Resource usage of QEMU and its daemon, in that order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage([Process; 2]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Process {
    id: u32,
    /// Resident memory, including guest memory in use.
    resident_kib: u64,
    cpu: Duration,
}

impl Usage {
    pub(super) fn of(qemu: u32, daemon: u32) -> Result<Self> {
        Ok(Self([Process::read(qemu)?, Process::read(daemon)?]))
    }

    pub(super) fn is_of_same_processes(&self, other: &Self) -> bool {
        self.0.map(|process| process.id) == other.0.map(|process| process.id)
    }

    /// Subtracts the CPU time of an earlier measurement, `begun`. For a process that was started after that
    /// measurement, nothing is subtracted.
    pub(super) fn since(self, begun: &Self) -> Self {
        let mut processes = self.0;
        for (now, before) in processes.iter_mut().zip(&begun.0).filter(|(now, before)| now.id == before.id) {
            now.cpu = now.cpu.saturating_sub(before.cpu);
        }
        Self(processes)
    }

    /// Returns a table row with four cells: QEMU's and the daemon's memory, then QEMU's and the daemon's CPU time.
    pub(super) fn row(&self) -> String {
        let [qemu, daemon] = self.0;
        format!(
            "{:8}  {:8}  {:10.1}  {:10.1}",
            qemu.resident_kib >> 10,
            daemon.resident_kib >> 10,
            qemu.cpu.as_secs_f64(),
            daemon.cpu.as_secs_f64()
        )
    }
}

impl Process {
    fn read(id: u32) -> Result<Self> {
        let status =
            fs::read_to_string(format!("/proc/{id}/status")).with_context(|| format!("process {id}"))?;
        let resident_kib = resident_kib(&status).with_context(|| format!("no VmRSS in {status}"))?;
        Ok(Self { id, resident_kib, cpu: Effort::of_process(id)?.ran })
    }
}

fn resident_kib(status: &str) -> Option<u64> {
    let text = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    text.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_replaced_process_is_not_subtracted() {
        let process = |id, seconds| Process { id, resident_kib: 2048, cpu: Duration::from_secs(seconds) };
        let before = Usage([process(1, 3), process(2, 4)]);
        let now = Usage([process(1, 10), process(7, 2)]);
        assert_eq!(now.since(&before).row(), "       2         2         7.0         2.0");
        assert!(!now.is_of_same_processes(&before) && now.is_of_same_processes(&now));
    }

    #[test]
    fn resident_memory_is_parsed() {
        assert_eq!(resident_kib("Name:\tx\nVmRSS:\t  123456 kB\n"), Some(123_456));
        assert_eq!(resident_kib("Name:\tx\n"), None);
    }
}
