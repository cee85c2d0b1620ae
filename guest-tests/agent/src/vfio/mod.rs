//! Access to a PCI function's registers and DMA memory.
//!
//! [`bind()`] binds a function to vfio-pci. [`Device`] opens the function through the kernel's group and type1v2
//! interfaces or, without a guest, over a vfio-user socket. [`Arena`] is the memory mapped for DMA.

mod arena;
mod bind;
mod device;
mod ioctl;
mod kernel;
#[cfg(feature = "vfio-user")]
mod mapped;
mod signal;
#[cfg(feature = "vfio-user")]
mod socket;

pub(crate) use arena::{Arena, PAGE};
pub(crate) use bind::{bind, select};
pub(crate) use device::{Bar, Device, Doorbell};
pub(crate) use signal::Signal;
