//! Resource usage of the process, under the standard metric names of Prometheus client libraries.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Dir;
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::exposition::{Exposition, Kind};

/// Open files under `/proc/self` (proc(5)). They stay open because the sandbox permits access only to these inodes, and
/// the kernel may later create other inodes at the same paths.
#[derive(Debug)]
pub struct Process {
    began: Duration,
    memory: Option<File>,
    descriptors: Option<Dir>,
}

impl Process {
    /// Opens the files. If one cannot be opened, its metrics are omitted.
    pub fn new() -> Self {
        Self {
            began: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            memory: File::open("/proc/self/statm").ok(),
            descriptors: File::open("/proc/self/fd").ok().and_then(|folder| Dir::new(folder).ok()),
        }
    }

    /// Writes the process's metric families.
    pub fn expose(&mut self, to: &mut Exposition) {
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        let spent = Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0));
        to.family(
            Kind::Counter,
            "process_cpu_seconds_total",
            "User and system CPU time used by the process, in seconds.",
        )
        .seconds(&[], spent.as_secs_f64());
        to.family(
            Kind::Gauge,
            "process_start_time_seconds",
            "Start time of the process, in seconds since the Unix epoch.",
        )
        .seconds(&[], self.began.as_secs_f64());
        if let Some([all, resident]) = self.memory() {
            to.family(
                Kind::Gauge,
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes, including mapped guest memory.",
            )
            .sample(&[], all);
            to.family(
                Kind::Gauge,
                "process_resident_memory_bytes",
                "Resident memory size in bytes, including resident pages of guest memory.",
            )
            .sample(&[], resident);
        }
        if let Some(open) = self.open_descriptors() {
            to.family(Kind::Gauge, "process_open_fds", "Open file descriptors.").sample(&[], open);
        }
        if let Some(most) = getrlimit(Resource::Nofile).current {
            to.family(Kind::Gauge, "process_max_fds", "Maximum number of open file descriptors.")
                .sample(&[], most);
        }
    }

    /// Returns the virtual and resident memory sizes in bytes (proc(5), statm).
    fn memory(&self) -> Option<[u64; 2]> {
        let mut text = [0; 128];
        let len = self.memory.as_ref()?.read_at(&mut text, 0).ok()?;
        let mut pages = std::str::from_utf8(text.get(..len)?).ok()?.split(' ');
        let mut bytes = || pages.next()?.parse::<u64>().ok()?.checked_mul(page_size() as u64);
        Some([bytes()?, bytes()?])
    }

    fn open_descriptors(&mut self) -> Option<u64> {
        let folder = self.descriptors.as_mut()?;
        folder.rewind();
        // The descriptor limit bounds the number of entries. Two of the entries are `.` and `..`.
        let entries = folder.by_ref().take_while(Result::is_ok).count() as u64;
        entries.checked_sub(2)
    }
}

impl Default for Process {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scrape_rereads_proc() {
        let mut process = Process::new();
        // Other tests open and close descriptors concurrently, so a single attempt may fail.
        let are_counted = (0..100).any(|_| {
            let before = process.open_descriptors().unwrap();
            let _more: Vec<_> = (0..50).map(|_| File::open("/dev/null").unwrap()).collect();
            process.open_descriptors().unwrap() > before + 25
        });
        assert!(are_counted);
        let [all, resident] = process.memory().unwrap();
        assert!(all > resident && resident > 100_000);
    }
}
