//! Guest memory: the client's DMA map and memory regions accessed by key.

pub mod dma;
pub mod key_op;
pub mod keys;
pub mod limits;
pub mod queue;
pub mod region;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod translate;
mod work;

pub use dma::{DmaError, GuestMemory, GuestRange, MapError, Permissions};
pub use limits::{FileSystems, Limits};
