//! Whether a guest's kernel loses memory each time a driver goes and comes.
//!
//! What is free varies by many megabytes for reasons of the kernel's own: slabs fill up, what was freed lies in lists of
//! each processor. A leak differs from that by coming back with each batch, so that the batch in the middle is judged.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::vm::Vm;

/// As most kernels of x86 guests have it.
const PAGE_KIB: u64 = 4;
/// What a batch may take for good.
const LEAK_KIB: i64 = 1 << 10;

/// The same, some times over, in batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cycles<'a> {
    /// Shell commands of one; no newline at the end.
    pub(super) commands: &'a str,
    pub(super) batches: u32,
    /// Number of operations in a batch.
    pub(super) batch: u32,
    /// Time limit of a batch.
    pub(super) timeout: Duration,
}

impl Cycles<'_> {
    /// How many in all.
    pub(super) const fn times(&self) -> u32 {
        1 + self.batches * self.batch
    }

    /// Fails if commands fail or too much memory is gone afterwards.
    pub(super) async fn run(&self, vm: &mut Vm) -> Result<()> {
        // What the first does for good, such as caches of the kernel, is no leak.
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

/// By a batch, in KiB, as the median of what each took.
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

/// What no list has, and what each processor's list of freed pages has.
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
    fn per_cpu_free_pages_count_as_free() {
        let text = "MemTotal:  506384 kB\nMemFree:  100 kB\nNode 0, zone DMA\n  pagesets\n    cpu: 0\n              \
                    count:    3\n              high:     14\n    cpu: 1\n              count:    2\n";
        assert_eq!(parse(text), Some(120));
        assert_eq!(parse("MemTotal: 5 kB"), None);
    }

    #[test]
    fn leak_repeats_in_every_batch() {
        assert_eq!(taken(&[438_060, 428_340, 428_400, 428_300, 428_310, 428_290]), 20);
        assert_eq!(taken(&[438_000, 436_000, 434_000, 435_000, 432_000, 430_000]), 2000);
        assert_eq!(taken(&[1, 2]), -1);
        assert_eq!(taken(&[1]), 0);
    }
}
