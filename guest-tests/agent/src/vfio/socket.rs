//! A PCI function behind a vfio-user socket. This program acts as the VMM.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, ensure};
use vfio_user::Client;

use super::device::Bar;
use super::ioctl::irqs;
use super::mapped::MappedRegion;
use super::signal::Signal;
use crate::error::bad_step;
use crate::guest::pci::Msix;
use crate::wire::Mask;

/// Offset in configuration space of the command register, which contains the memory space and bus master bits.
const COMMAND: u64 = 4;
const MEMORY_AND_MASTER: [u8; 2] = [6, 0];

pub(crate) struct Function {
    client: Mutex<Client>,
    sizes: [u64; 3],
    /// Parts of BAR0 that the server lets its client map.
    mapped: Option<MappedRegion>,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Function").field("sizes", &self.sizes).finish_non_exhaustive()
    }
}

impl Function {
    /// Connects to the server and enables bus mastering.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let client = Client::new(path).with_context(|| format!("cannot connect to {}", path.display()))?;
        let size = |bar| client.region(number(bar)).map_or(0, |region| region.size);
        let sizes = [size(Bar::Zero), size(Bar::Two), size(Bar::Config)];
        let mapped = client.region(number(Bar::Zero)).and_then(MappedRegion::new).transpose()?;
        let function = Self { client: Mutex::new(client), sizes, mapped };
        function.write(Bar::Config, COMMAND, &MEMORY_AND_MASTER)?;
        Ok(function)
    }

    pub(super) fn reset(&self) -> Result<()> {
        self.client().reset()?;
        self.write(Bar::Config, COMMAND, &MEMORY_AND_MASTER)
    }

    pub(super) fn map_dma(&self, file: Option<(&File, u64)>, iova: u64, len: u64) -> Result<()> {
        let (file, offset) = file.context("only file-backed memory can be mapped over a socket")?;
        Ok(self.client().dma_map(offset, iova, len, file.as_raw_fd())?)
    }

    pub(super) const fn size(&self, bar: Bar) -> u64 {
        match bar {
            Bar::Zero => self.sizes[0],
            Bar::Two => self.sizes[1],
            Bar::Config => self.sizes[2],
        }
    }

    pub(super) fn read(&self, bar: Bar, offset: u64, into: &mut [u8]) -> Result<()> {
        self.check(bar, offset, into.len())?;
        Ok(self.client().region_read(number(bar), offset, into)?)
    }

    pub(super) fn write(&self, bar: Bar, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(bar, offset, bytes.len())?;
        if let (Bar::Zero, Some(mapped), &[a, b, c, d, e, f, g, h]) = (bar, &self.mapped, bytes)
            && mapped.store(offset, [a, b, c, d, e, f, g, h])
        {
            return Ok(());
        }
        Ok(self.client().region_write(number(bar), offset, bytes)?)
    }

    /// Enables interrupts, acting as both VMM and guest kernel: connects eventfds, unmasks table entries and enables
    /// MSI-X.
    pub(super) fn enable_interrupts(&self, signals: &[Signal]) -> Result<()> {
        for (vector, signal) in (0..).zip(signals) {
            // Some servers accept only one descriptor per message, so connect one vector at a time.
            self.set_irqs(irqs::EVENTFD | irqs::TRIGGER, vector, 1, &[signal.as_fd().as_raw_fd()])?;
            self.mask_interrupts(Mask::Entry(vector), false)?;
        }
        self.set_control(Msix::ENABLE, true)
    }

    pub(super) fn disable_interrupts(&self) -> Result<()> {
        self.set_control(Msix::ENABLE, false)?;
        self.set_irqs(irqs::NONE | irqs::TRIGGER, 0, 0, &[])
    }

    pub(super) fn mask_interrupts(&self, mask: Mask, masked: bool) -> Result<()> {
        match mask {
            Mask::Entry(vector) => {
                let at = self.msix()?.vector_control(vector);
                let at = at.ok_or_else(|| bad_step(format!("unknown vector {vector}")))?;
                self.write(Bar::Zero, at, &u32::from(masked).to_le_bytes())
            }
            Mask::Function => self.set_control(Msix::FUNCTION_MASK, masked),
            Mask::Vmm(vector) => {
                self.set_irqs(irqs::NONE | if masked { irqs::MASK } else { irqs::UNMASK }, vector, 1, &[])
            }
        }
    }

    pub(super) fn msix(&self) -> Result<Msix> {
        let mut config = [0; 256];
        self.read(Bar::Config, 0, &mut config)?;
        Msix::find(&config).context("the function has no MSI-X in BAR0")
    }

    /// Sets or clears a bit in the MSI-X Message Control register.
    fn set_control(&self, bit: u16, set: bool) -> Result<()> {
        let at = self.msix()?.control;
        let mut control = [0; 2];
        self.read(Bar::Config, at, &mut control)?;
        let others = u16::from_le_bytes(control) & !bit;
        self.write(Bar::Config, at, &(others | if set { bit } else { 0 }).to_le_bytes())
    }

    fn set_irqs(&self, flags: u32, start: u16, count: u16, eventfds: &[RawFd]) -> Result<()> {
        Ok(self.client().set_irqs(irqs::MSIX, flags, start.into(), count.into(), eventfds)?)
    }

    fn check(&self, bar: Bar, offset: u64, len: usize) -> Result<()> {
        let size = self.size(bar);
        let fits = size.checked_sub(len as u64).is_some_and(|last| offset <= last);
        ensure!(fits, "{len} bytes at {offset:#x} are outside {bar:?} of {size:#x} bytes");
        Ok(())
    }

    /// Locks the client, even if the lock is poisoned. If a thread panicked during a call, requests and replies may be
    /// out of sync, and the next call then fails.
    fn client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn number(bar: Bar) -> u32 {
    match bar {
        Bar::Zero => 0,
        Bar::Two => 2,
        Bar::Config => 7,
    }
}
