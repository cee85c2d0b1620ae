//! Intel E810-C, driven by `ice` in Linux. All fields are little-endian unless stated otherwise.
//!
//! # Spec
//! E810 interface; each file cites its sections.

pub mod admin;
pub mod hash_profile;
pub mod interrupt;
pub mod nvm;
pub mod package;
pub mod packet_type;
pub mod pci;
pub mod rdma;
pub mod regs;
pub mod ring_address;
pub mod rx_context;
pub mod rx_descriptor;
pub mod tx_context;
pub mod tx_descriptor;
