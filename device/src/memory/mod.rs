//! Guest memory: what the client mapped for DMA, and what keys make of it.

pub mod dma;

pub use dma::{DmaError, GuestMemory, MapError, Permissions};
