//! Device interfaces: one folder each, none knows another. What is beside the folders is what interfaces of one lineage
//! have in common.

pub mod e810;
pub mod event;
pub mod hcr;
pub mod jingzhao;
pub mod mthca;
pub mod opcode;
pub mod operation;
pub mod qp;
pub mod segment;
pub mod status;
pub mod syndrome;
pub mod table;
pub mod words;
