//! JingZhao (HanGu) HCA front-end.

pub mod address;
pub mod doorbell;
pub mod options;
pub mod queue_memory;
pub mod recv_queue;
pub mod ring;
pub mod send_queue;
