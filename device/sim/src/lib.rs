//! Deterministic simulation of engines on a faulty network, driven by one seed.
//!
//! [`run`] generates a world from a seed: two engines, queue pairs of all service types, and traffic in both
//! directions. During the run, software drains queue pairs, moves them to ERR and resets them, while the network loses,
//! corrupts, duplicates, reorders and delays packets. READ requests left over from earlier connections are injected
//! into the responders. After some time, the network stops misbehaving, and all work must finish within a limited
//! simulated time. The [checker](check) is independent of the engines: it observes the posted requests, every memory
//! access, every completion and every frame.
//!
//! Replay a failing seed with `cargo run -p sim --release -- --seed N`; add `--trace` to print every packet.

pub mod check;
pub mod host;
pub mod key_op;
mod merge;
pub mod net;
pub mod plan;
mod stale;
pub mod trace;
mod world;

pub use world::{Report, run};
