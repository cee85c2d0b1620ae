//! Engines on a simulated net, with nothing random but one seed.
//!
//! [`run`] draws a world from a seed: two engines, connections between them, work on both sides, and a net that loses,
//! duplicates, reorders and delays. It first runs with faults until the work is posted and mostly done, then heals the
//! net and demands that everything drains within a bound of simulated time. The [checker](checker) stands outside of the
//! engines: it knows what was posted and sees memory, completions and every frame, and trusts nothing else.

pub mod host;
