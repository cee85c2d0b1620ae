//! Tests of the programs and of the documentation. One test program, since each links the whole crate; `scale` is another, as
//! it measures the memory of its process.

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
mod neighbour;
mod replay;
mod ring;
mod service;
mod sessions;
mod supervision;
mod vfio_client;
