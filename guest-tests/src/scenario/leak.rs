//! Detects whether a guest's kernel leaks memory when a driver is loaded and unloaded repeatedly.
//!
//! Free memory varies by many megabytes for other reasons: slabs fill up, and freed pages are kept in per-CPU lists. A
//! leak recurs in every batch, so it shows up in the median loss per batch.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::vm::Vm;

/// Base page size of x86 guests, in KiB.
const PAGE_KIB: u64 = 4;
/// Smallest median loss per batch, in KiB, that is reported as a leak.
const LEAK_KIB: i64 = 1 << 10;

/// Commands to run in repeated cycles, grouped into batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cycles<'a> {
    /// Shell commands for one cycle, without a trailing newline.
    pub(super) commands: &'a str,
    pub(super) batches: u32,
    /// Number of cycles in a batch.
    pub(super) batch: u32,
    /// Timeout for a batch.
    pub(super) timeout: Duration,
}

impl Cycles<'_> {
    /// Returns the same cycles with fewer and smaller batches, which detect only leaks that are larger per cycle.
    pub(super) const fn fewer(self) -> Self {
        Self { batches: 3, batch: 1, ..self }
    }

    /// Returns the total number of cycles, including the first one, which is not measured.
    pub(super) const fn times(&self) -> u32 {
        1 + self.batches * self.batch
    }

    /// Runs all batches. Fails if a command fails or memory is leaked.
    pub(super) async fn run(&self, vm: &mut Vm) -> Result<()> {
        // The first cycle fills the kernel's caches, which must not count as a leak.
        vm.run_within(self.timeout, &["sh", "-c", &self.script(1)]).await?;
        let mut free = vec![free_memory(vm).await?];
        for _ in 0..self.batches {
            vm.run_within(self.timeout, &["sh", "-c", &self.script(self.batch)]).await?;
            free.push(free_memory(vm).await?);
        }
        let taken = taken(&free);
        ensure!(
            taken < LEAK_KIB,
            "{} cycles leak {taken} KiB; free memory in KiB over time: {free:?}",
            self.batch
        );
        Ok(())
    }

    fn script(&self, cycles: u32) -> String {
        format!(
            "i=0; while [ $i -lt {cycles} ]; do {} || exit 1; i=$((i + 1)); done; sync; echo 3 > /proc/sys/vm/drop_caches",
            self.commands
        )
    }
}

/// Returns the median loss per batch in KiB.
fn taken(free: &[u64]) -> i64 {
    let mut steps: Vec<_> =
        free.windows(2).map(|pair| pair[0].cast_signed().saturating_sub(pair[1].cast_signed())).collect();
    steps.sort_unstable();
    steps.get(steps.len() / 2).copied().unwrap_or(0)
}

/// Returns the free memory in KiB.
async fn free_memory(vm: &mut Vm) -> Result<u64> {
    let text = vm.run(&["cat", "/proc/meminfo", "/proc/zoneinfo"]).await?;
    parse(&text).with_context(|| format!("no free memory in {text}"))
}

/// Returns the sum of the free memory and the pages in per-CPU lists, which are also free.
fn parse(text: &str) -> Option<u64> {
    let number = |line: &str, key: &str| -> Option<u64> {
        line.trim_start().strip_prefix(key)?.split_whitespace().next()?.parse().ok()
    };
    let free = text.lines().find_map(|line| number(line, "MemFree:"))?;
    let listed: u64 = text.lines().filter_map(|line| number(line, "count:")).sum();
    Some(free + listed * PAGE_KIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_includes_per_cpu_lists() {
        let text = "MemTotal:  506384 kB\nMemFree:  100 kB\nNode 0, zone DMA\n  pagesets\n    cpu: 0\n              \
                    count:    3\n              high:     14\n    cpu: 1\n              count:    2\n";
        assert_eq!(parse(text), Some(120));
        assert_eq!(parse("MemTotal: 5 kB"), None);
    }

    #[test]
    fn leak_estimate_is_median_loss_per_batch() {
        assert_eq!(taken(&[438_060, 428_340, 428_400, 428_300, 428_310, 428_290]), 20);
        assert_eq!(taken(&[438_000, 436_000, 434_000, 435_000, 432_000, 430_000]), 2000);
        assert_eq!(taken(&[1, 2]), -1);
        assert_eq!(taken(&[1]), 0);
    }
}
