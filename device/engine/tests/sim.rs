//! Seeded simulation: `HCAD_SIM_SEEDS` worlds (default 400), from seed `HCAD_SIM_FIRST` on (default 0).

use std::sync::atomic::{AtomicU64, Ordering};

fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

#[test]
fn every_request_completes_once_in_order_with_its_bytes() {
    let first = from_env("HCAD_SIM_FIRST", 0);
    let end = first + from_env("HCAD_SIM_SEEDS", 400);
    let next = AtomicU64::new(first);
    let failed = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    // A panic names no seed by itself.
                    let result = std::panic::catch_unwind(|| engine::sim::run(seed, false));
                    let failure = match result {
                        Ok(Ok(_)) => continue,
                        Ok(Err(violation)) => violation,
                        Err(_) => format!("seed {seed} panicked"),
                    };
                    failed.fetch_add(1, Ordering::Relaxed);
                    eprintln!("{failure}");
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0, "failed seeds of {first}..{end}, see above");
}
