//! Device interfaces: `e810`, `jingzhao`, `mlx5` and `mthca`. The other modules hold definitions shared by several of
//! them.

pub mod e810;
pub mod event;
pub mod hcr;
pub mod jingzhao;
pub mod mlx5;
pub mod mthca;
pub mod opcode;
pub mod operation;
pub mod qp;
pub mod segment;
pub mod status;
pub mod syndrome;
pub mod table;
pub mod words;
