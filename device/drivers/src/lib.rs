//! Test drivers, one per device interface. They replace the guest's driver in unit tests, fuzz targets and scale tests.
//!
//! A driver implements one device interface: byte order, registers, commands, contexts and work requests. It accesses
//! the device only through a [`Bus`]. The device can be in the same process or behind a socket. A driver has no clock
//! and no threads. Instead, the owner of the device moves frames and advances time. A register write has taken effect
//! by the time the call returns. Most functions do not check results, which lets them work on a device whose memory is
//! unmapped.
//!
//! An encoding error in the `protocol` crate could go unnoticed, since drivers and devices share it. To catch such
//! errors, tests spell out the bytes that they expect from the device.
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

mod bus;
mod cqe;
pub mod e810;
pub mod hcr;
pub mod jingzhao;
pub mod mlx5;
pub mod mthca;

use std::ops::{Deref, DerefMut};

pub use bus::Bus;
pub use cqe::syndrome;

/// A driver for one device: the bus and the state that the device interface requires.
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
