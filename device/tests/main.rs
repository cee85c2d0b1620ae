//! Tests of the programs and the documentation. They form a single test binary, because each test binary would link the
//! whole crate again. Only `scale`, which measures its own memory use, is separate.

mod book;
mod cli;
mod common;
mod confinement;
mod confinement_probes;
mod control;
mod doorbells;
mod figures;
mod file_size;
mod fleet;
mod hcactl;
mod hostile;
mod layering;
mod log_limits;
mod neighbour;
mod peer_names;
mod replay;
mod ring;
mod service;
mod sessions;
mod supervision;
mod vfio_client;
