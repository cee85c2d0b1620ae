//! Runs seeded simulations: `sim --seed N [--trace]` or `sim --seeds A..B`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const USAGE: &str = "usage: sim --seed N [--trace] | sim --seeds A..B";

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (first, end, trace) = match args.as_slice() {
        ["--seed", seed, rest @ ..] if matches!(rest, [] | ["--trace"]) => match seed.parse::<u64>() {
            Ok(seed) => (seed, seed + 1, !rest.is_empty()),
            Err(error) => return usage(&error.to_string()),
        },
        ["--seeds", range] => match range.split_once("..").map(|(a, b)| (a.parse(), b.parse())) {
            Some((Ok(first), Ok(end))) => (first, end, false),
            _ => return usage("invalid range of seeds, expected A..B"),
        },
        _ => return usage("missing or unknown arguments"),
    };
    let started = Instant::now();
    let next = AtomicU64::new(first);
    let threads = if trace { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    let (mut failures, mut frames, mut requests) = (Vec::new(), 0, 0);
    std::thread::scope(|scope| {
        let worker = || {
            let (mut failures, mut frames, mut requests) = (Vec::new(), 0, 0);
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end {
                    return (failures, frames, requests);
                }
                match sim::run(seed, trace) {
                    Ok(report) => {
                        frames += report.net.sent;
                        requests += report.requests;
                        if trace {
                            println!("{report:#?}");
                        }
                    }
                    Err(failure) => failures.push(failure),
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            match worker.join() {
                Ok((found, sent, done)) => {
                    failures.extend(found);
                    frames += sent;
                    requests += done;
                }
                Err(_) => failures.push("a run panicked".to_owned()),
            }
        }
    });
    for failure in failures.iter().take(10) {
        eprintln!("{failure}");
    }
    let (seeds, seconds) = (end.saturating_sub(first), started.elapsed().as_secs_f64());
    println!(
        "{seeds} seeds, {} failed, {requests} requests, {frames} frames, {seconds:.1} s, {:.0} seeds/s",
        failures.len(),
        f64::from(u32::try_from(seeds).unwrap_or(u32::MAX)) / seconds
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[expect(clippy::print_stderr, reason = "a program for the terminal")]
fn usage(problem: &str) -> ExitCode {
    eprintln!("{problem}\n{USAGE}");
    ExitCode::from(2)
}
