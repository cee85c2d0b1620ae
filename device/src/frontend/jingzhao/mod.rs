//! JingZhao (HanGu) HCA front-end.

pub mod doorbell;
pub mod options;
pub mod queue_memory;
pub mod ring;
