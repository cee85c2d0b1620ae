//! JingZhao (HanGu) HCA front-end.

pub mod address;
pub mod completion;
pub mod completion_queue;
pub mod doorbell;
pub mod entry_ring;
pub mod event_queue;
pub mod options;
pub mod queue_memory;
pub mod recv_queue;
pub mod ring;
pub mod send_queue;
