//! Runs the simulation with `HCAD_SIM_SEEDS` consecutive seeds (default 400), starting at `HCAD_SIM_FIRST` (default 0).

use std::sync::atomic::{AtomicU64, Ordering};

fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

/// Seeds that once failed. Changes to the plan generator change what a seed simulates, so each engine failure also has
/// its own test: in `device/engine/tests/rnr.rs` for the first four seeds and in `device/engine/tests/congestion.rs`
/// for the fifth. With the last seed, the bug was in the simulation: it injected a READ that repeated part of one of
/// the peer's own READs.
const PINNED: [u64; 6] = [281_947, 366_135, 810_318, 886_846, 1_004_380, 20_261_129_107_040];

#[test]
fn previously_failing_seeds_pass() {
    for seed in PINNED {
        if let Err(failure) = sim::run(seed, false) {
            panic!("{failure}");
        }
    }
}

#[test]
fn consecutive_seeds_pass() {
    let first = from_env("HCAD_SIM_FIRST", 0);
    let end = first + from_env("HCAD_SIM_SEEDS", 400);
    let next = AtomicU64::new(first);
    let (failed, merged) = (AtomicU64::new(0), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    match sim::run(seed, false) {
                        Ok(report) => {
                            merged.fetch_add(report.merged, Ordering::Relaxed);
                        }
                        Err(failure) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            eprintln!("{failure}");
                        }
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0, "some seeds in {first}..{end} failed; see above");
    assert!(end - first < 100 || merged.into_inner() > 0, "no frame carried several packets");
}
