//! Engines on a simulated net, with nothing random but one seed.
//!
//! [`run`] draws a world from a seed: two engines, connections between them, work in both directions, and a net that
//! loses, corrupts, duplicates, reorders and delays. First it runs with faults, then the net is healed and everything
//! must drain within a bound of simulated time. The [`checker`] stands outside of the engines: it knows what was posted,
//! sees memory, completions and every frame, and believes nothing else.
//!
//! A failing seed is replayed by `cargo run -p engine --features sim --release --bin sim -- --seed N`, with `--trace` to
//! see every packet.

pub mod checker;
pub mod host;
pub mod net;
pub mod trace;
pub mod workload;
mod world;

pub use world::{Report, run};
