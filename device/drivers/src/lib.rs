//! A driver for each interface, in place of a guest's: for unit tests, fuzz targets and scale tests of the device.
//!
//! A driver knows its interface: orders of bytes, registers, commands, contexts and work requests. It reaches the device
//! through a [`Bus`] only, so that it works as well on a device in the same process as on one behind a socket. It has
//! neither a clock nor threads: what it stores has happened when the call returns, frames and time are moved by whoever
//! has the device, and it may be put on a device whose memory is gone, since it looks at the outcome only where it
//! says so.
//!
//! Images of contexts are written with `protocol`, as the device reads them; what a test expects of the device is the
//! test's own bytes.
//!
//! # Examples
//! ```no_run
//! use drivers::Bus;
//! use drivers::jingzhao::{Driver, qpc, region};
//! use protocol::hca::jingzhao::mpt::MptFlags;
//!
//! fn connected(device: impl Bus) -> Driver<impl Bus> {
//!     let mut driver = Driver::new(device);
//!     driver.bus.enable();
//!     driver.initialise(1);
//!     driver.write_mtt(0, [0x20_0000]);
//!     driver.register(&region(1, 0, 0, 0x1000, MptFlags::empty()));
//!     driver.connect(5, &qpc(0, [1, 1], 0x800));
//!     driver
//! }
//! ```

#![allow(missing_docs, reason = "most fields and constants have the interface's own names")]

mod bus;
mod cqe;
pub mod e810;
pub mod hcr;
pub mod jingzhao;
pub mod mthca;

use std::ops::{Deref, DerefMut};

pub use bus::Bus;
pub use cqe::syndrome;

/// A driver of one device: where that is, and what the driver of its interface remembers.
pub struct Driver<I, B> {
    pub bus: B,
    pub interface: I,
}

impl<I, B> Deref for Driver<I, B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.bus
    }
}

impl<I, B> DerefMut for Driver<I, B> {
    fn deref_mut(&mut self) -> &mut B {
        &mut self.bus
    }
}
