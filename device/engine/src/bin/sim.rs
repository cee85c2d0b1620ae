//! Replays simulated runs.
fn main() {}
