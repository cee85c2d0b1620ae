//! Engines on a simulated net, with nothing random but one seed.
//!
//! [`run`] draws a world from a seed: two engines, queue pairs of all services, work in both directions, software that
//! drains, breaks and resets queue pairs in the middle of it, and a net that loses, corrupts, duplicates, reorders and
//! delays, while READs of former connections reach the responders. First it runs with faults, then the net is healed and everything must drain within a bound of simulated time.
//! The [checker](check) stands outside of the engines: it knows what was posted, sees every access to memory, every
//! completion and every frame, and believes nothing else.
//!
//! A failing seed is replayed by `cargo run -p engine --features sim --release --bin sim -- --seed N`, with `--trace` to
//! see every packet.

pub mod check;
pub mod host;
pub mod net;
pub mod plan;
mod stale;
pub mod trace;
mod world;

pub use world::{Report, run};
