//! An open PCI function. It is accessed either through the guest kernel's vfio driver or over a vfio-user socket. On a
//! socket, this program acts as the VMM.

use std::fs::File;

use anyhow::Result;

use super::kernel;
use super::signal::Signal;
#[cfg(feature = "vfio-user")]
use super::socket;
use crate::error::bad_step;
use crate::guest::pci::Msix;
use crate::wire::{DeviceSelector, Mask};

/// The regions used by the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bar {
    Zero,
    Two,
    Config,
}

/// The value written by one store to BAR2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbell {
    Word(u32),
    Double(u64),
}

/// An open function with bus mastering enabled.
#[derive(Debug)]
pub(crate) enum Device {
    /// A function accessed through the guest kernel's vfio-pci driver.
    Kernel(kernel::Function),
    /// A function provided by a vfio-user server over a Unix socket.
    #[cfg(feature = "vfio-user")]
    Socket(socket::Function),
}

impl Device {
    /// Opens the selected function. Also returns its PCI address or its socket path.
    pub(crate) fn open(selector: &DeviceSelector) -> Result<(Self, String)> {
        match selector {
            #[cfg(feature = "vfio-user")]
            DeviceSelector::Socket(path) => {
                Ok((Self::Socket(socket::Function::open(path.as_ref())?), path.clone()))
            }
            selector => {
                let address = super::select(selector)?;
                Ok((Self::Kernel(kernel::Function::open(&address)?), address))
            }
        }
    }

    /// Returns whether DMA memory must be backed by a file that a vfio-user server can map.
    pub(super) const fn wants_file(&self) -> bool {
        match self {
            Self::Kernel(_) => false,
            #[cfg(feature = "vfio-user")]
            Self::Socket(_) => true,
        }
    }

    /// Maps `len` bytes for the device at bus address `iova`. The bytes are at `vaddr` in this process and at the given
    /// offset in the file.
    pub(super) fn map_dma(&self, vaddr: u64, file: Option<(&File, u64)>, iova: u64, len: u64) -> Result<()> {
        match self {
            Self::Kernel(function) => {
                // The kernel pins the pages, so no file is needed.
                let _ = file;
                function.map_dma(vaddr, iova, len)
            }
            #[cfg(feature = "vfio-user")]
            Self::Socket(function) => function.map_dma(file, iova, len),
        }
    }

    /// Resets the function and enables bus mastering again. Memory stays mapped.
    pub(crate) fn reset(&self) -> Result<()> {
        match self {
            Self::Kernel(_) => Err(bad_step("a function in a guest is reset by its VMM")),
            #[cfg(feature = "vfio-user")]
            Self::Socket(function) => function.reset(),
        }
    }

    /// Returns the size of a region in bytes.
    pub(crate) const fn size(&self, bar: Bar) -> u64 {
        match self {
            Self::Kernel(function) => function.size(bar),
            #[cfg(feature = "vfio-user")]
            Self::Socket(function) => function.size(bar),
        }
    }

    /// Reads `into.len()` bytes from a region in a single access.
    pub(crate) fn read(&self, bar: Bar, offset: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Self::Kernel(function) => function.read(bar, offset, into),
            #[cfg(feature = "vfio-user")]
            Self::Socket(function) => function.read(bar, offset, into),
        }
    }

    /// Writes `bytes` to a region in a single access.
    pub(crate) fn write(&self, bar: Bar, offset: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Kernel(function) => function.write(bar, offset, bytes),
            #[cfg(feature = "vfio-user")]
            Self::Socket(function) => function.write(bar, offset, bytes),
        }
    }

    /// Stores a little-endian 32-bit or 64-bit number to BAR2, using a mapping if possible.
    pub(crate) fn ring(&self, offset: u64, value: Doorbell) -> Result<()> {
        match self {
            Self::Kernel(function) => function.ring(offset, value),
            #[cfg(feature = "vfio-user")]
            Self::Socket(function) => match value {
                Doorbell::Word(value) => function.write(Bar::Two, offset, &value.to_le_bytes()),
                Doorbell::Double(value) => function.write(Bar::Two, offset, &value.to_le_bytes()),
            },
        }
    }

    /// Enables MSI-X. `signals[v]` counts the interrupts of vector v.
    pub(crate) fn enable_interrupts(&self, signals: &[Signal]) -> Result<()> {
        match self {
            Self::Kernel(function) => function.enable_interrupts(signals),
            #[cfg(feature = "vfio-user")]
            Self::Socket(function) => function.enable_interrupts(signals),
        }
    }

    pub(crate) fn disable_interrupts(&self) -> Result<()> {
        match self {
            Self::Kernel(function) => function.disable_interrupts(),
            #[cfg(feature = "vfio-user")]
            Self::Socket(function) => function.disable_interrupts(),
        }
    }

    pub(crate) fn mask_interrupts(&self, mask: Mask, masked: bool) -> Result<()> {
        match self {
            Self::Kernel(function) => function.mask_interrupts(mask, masked),
            #[cfg(feature = "vfio-user")]
            Self::Socket(function) => function.mask_interrupts(mask, masked),
        }
    }

    /// Returns the pending bits of the first 64 vectors.
    pub(crate) fn pending_interrupts(&self) -> Result<u64> {
        let mut bits = [0; 8];
        self.read(Bar::Zero, self.msix()?.pending, &mut bits)?;
        Ok(u64::from_le_bytes(bits))
    }

    fn msix(&self) -> Result<Msix> {
        match self {
            Self::Kernel(function) => function.msix(),
            #[cfg(feature = "vfio-user")]
            Self::Socket(function) => function.msix(),
        }
    }
}
