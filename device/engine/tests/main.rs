//! Tests the engine through its public interface. All tests share one binary, because each binary links the whole
//! crate.

mod amplification;
mod answers;
mod bounds;
mod bursts;
mod common;
mod congestion;
mod credits;
mod errors;
mod explain;
mod figures;
mod groups;
mod keys;
mod loopback;
mod loss;
mod management;
mod numbers;
mod recovery;
mod requests;
mod rnr;
mod segments;
mod srq;
mod states;
mod transfer;
mod unreliable;
mod xrc;
