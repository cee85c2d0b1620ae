//! Device interfaces, each in an independent folder. The remaining modules are shared by the HCR interfaces
//! JingZhao and mthca.

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
