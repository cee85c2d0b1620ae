//! A PCI function used through the kernel's vfio driver. Registers are accessed with read(2) and write(2); doorbells
//! are accessed through a mapping.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use anyhow::{Context as _, Result, bail, ensure};

use super::device::{Bar, Doorbell};
use super::ioctl::{self, RegionInfo, irqs};
use super::signal::Signal;
use crate::error::bad_step;
use crate::guest::pci::{self, Msix};
use crate::wire::Mask;

/// Index of the configuration space region in vfio-pci.
const CONFIG_REGION: u32 = 7;
/// Offset of the command register, which contains the memory space and bus master bits.
const COMMAND: u64 = 4;
const MEMORY_AND_MASTER: u16 = 0x6;

/// A function opened through its vfio group.
#[derive(Debug)]
pub(crate) struct Function {
    file: File,
    regions: [RegionInfo; 3],
    doorbells: Option<Mapping>,
    container: OwnedFd,
    /// Path of the configuration space in sysfs. MSI-X is masked through this file, since vfio-pci rejects writes to
    /// the MSI-X capability.
    config: PathBuf,
    // The group must stay open for as long as the device is open.
    _group: File,
}

impl Function {
    /// Opens the function, which must be bound to vfio-pci, and enables bus mastering.
    pub(super) fn open(address: &str) -> Result<Self> {
        let group_number = pci::iommu_group(&pci::node(address))
            .with_context(|| format!("{address} is not in an IOMMU group"))?;
        let container = open(Path::new("/dev/vfio/vfio"))?;
        ioctl::check_container(container.as_fd()).context("cannot read the version of vfio")?;
        let group = open(Path::new(&format!("/dev/vfio/{group_number}")))?;
        ensure!(
            ioctl::group_is_viable(group.as_fd()).context("cannot read the status of the IOMMU group")?,
            "IOMMU group {group_number} contains a function that is bound to a different driver"
        );
        ioctl::attach(group.as_fd(), container.as_fd())
            .context("cannot attach the group to the container")?;
        let file: File = ioctl::device_fd(group.as_fd(), address).context("cannot open the function")?.into();
        let info = |index| {
            ioctl::region_info(file.as_fd(), index)
                .with_context(|| format!("cannot read the description of region {index}"))
        };
        let regions = [info(0)?, info(2)?, info(CONFIG_REGION)?];
        let mut device = Self {
            file,
            regions,
            doorbells: None,
            container: container.into(),
            config: pci::node(address).join("config"),
            _group: group,
        };

        let mut command = [0; 2];
        device.read(Bar::Config, COMMAND, &mut command)?;
        let command = u16::from_le_bytes(command) | MEMORY_AND_MASTER;
        device.write(Bar::Config, COMMAND, &command.to_le_bytes())?;
        let doorbells = device.region(Bar::Two);
        if doorbells.mappable {
            device.doorbells = Some(Mapping::new(device.file.as_fd(), doorbells).context("cannot map BAR2")?);
        }
        Ok(device)
    }

    pub(super) fn map_dma(&self, vaddr: u64, iova: u64, len: u64) -> Result<()> {
        Ok(ioctl::map_dma(self.container.as_fd(), vaddr, iova, len)?)
    }

    pub(super) const fn size(&self, bar: Bar) -> u64 {
        self.region(bar).size
    }

    pub(super) fn read(&self, bar: Bar, offset: u64, into: &mut [u8]) -> Result<()> {
        let at = self.locate(bar, offset, into.len())?;
        self.file.read_exact_at(into, at).with_context(|| format!("cannot read {bar:?}+{offset:#x}"))
    }

    pub(super) fn write(&self, bar: Bar, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.locate(bar, offset, bytes.len())?;
        self.file.write_all_at(bytes, at).with_context(|| format!("cannot write {bar:?}+{offset:#x}"))
    }

    pub(super) fn ring(&self, offset: u64, value: Doorbell) -> Result<()> {
        match (&self.doorbells, value) {
            (Some(mapping), value) => mapping.store(offset, value),
            (None, Doorbell::Word(value)) => self.write(Bar::Two, offset, &value.to_le_bytes()),
            (None, Doorbell::Double(value)) => self.write(Bar::Two, offset, &value.to_le_bytes()),
        }
    }

    /// Enables MSI-X. Each vector signals the eventfd with the same index in `signals`.
    pub(super) fn enable_interrupts(&self, signals: &[Signal]) -> Result<()> {
        let eventfds: Vec<_> = signals.iter().map(Signal::as_fd).collect();
        let count = u32::try_from(eventfds.len())?;
        ioctl::set_irqs(self.file.as_fd(), irqs::EVENTFD | irqs::TRIGGER, 0, count, &eventfds)
            .with_context(|| format!("cannot enable {count} vectors"))
    }

    pub(super) fn disable_interrupts(&self) -> Result<()> {
        ioctl::set_irqs(self.file.as_fd(), irqs::NONE | irqs::TRIGGER, 0, 0, &[])
            .context("cannot disable MSI-X")
    }

    /// Masks or unmasks interrupts without vfio-pci, which cannot mask MSI-X vectors. The vector table can be written
    /// only through a mapping of BAR0, and the capability can be written only through sysfs.
    pub(super) fn mask_interrupts(&self, mask: Mask, masked: bool) -> Result<()> {
        let msix = self.msix()?;
        match mask {
            Mask::Entry(vector) => {
                let at = msix
                    .vector_control(vector)
                    .ok_or_else(|| bad_step(format!("unknown vector {vector}")))?;
                let bar =
                    Mapping::new(self.file.as_fd(), self.region(Bar::Zero)).context("cannot map BAR0")?;
                bar.store(at, Doorbell::Word(masked.into()))
            }
            Mask::Function => {
                let config = File::options().read(true).write(true).open(&self.config)?;
                let mut control = [0; 2];
                config.read_exact_at(&mut control, msix.control)?;
                let others = u16::from_le_bytes(control) & !Msix::FUNCTION_MASK;
                let control = others | if masked { Msix::FUNCTION_MASK } else { 0 };
                Ok(config.write_all_at(&control.to_le_bytes(), msix.control)?)
            }
            Mask::Vmm(_) => Err(bad_step("only the VMM can do this")),
        }
    }

    pub(super) fn msix(&self) -> Result<Msix> {
        let mut config = [0; 256];
        self.read(Bar::Config, 0, &mut config)?;
        Msix::find(&config).context("the function has no MSI-X in BAR0")
    }

    const fn region(&self, bar: Bar) -> RegionInfo {
        match bar {
            Bar::Zero => self.regions[0],
            Bar::Two => self.regions[1],
            Bar::Config => self.regions[2],
        }
    }

    fn locate(&self, bar: Bar, offset: u64, len: usize) -> Result<u64> {
        let region = self.region(bar);
        let fits = region.size.checked_sub(len as u64).is_some_and(|last| offset <= last);
        ensure!(fits, "{len} bytes at {offset:#x} are outside {bar:?} of {:#x} bytes", region.size);
        Ok(region.offset + offset)
    }
}

/// A mapping of BAR0 or BAR2 in this process.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is device memory, and any thread may store to it. All accesses are single volatile stores.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(device: BorrowedFd<'_>, region: RegionInfo) -> Result<Self> {
        let len = usize::try_from(region.size)?;
        let offset = libc::off_t::try_from(region.offset)?;
        // SAFETY: a new mapping at an address that the kernel chooses does not affect existing memory. The result is
        // checked.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                device.as_raw_fd(),
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let base = NonNull::new(base.cast()).context("mmap returned address zero")?;
        Ok(Self { base, len })
    }

    fn store(&self, offset: u64, value: Doorbell) -> Result<()> {
        let width = match value {
            Doorbell::Word(_) => 4,
            Doorbell::Double(_) => 8,
        };
        let offset = usize::try_from(offset)?;
        if !offset.is_multiple_of(width) || self.len.checked_sub(width).is_none_or(|last| offset > last) {
            bail!("cannot store {width} bytes at {offset:#x} of BAR2: misaligned or outside the BAR");
        }
        // SAFETY: the store is aligned and inside the page-aligned mapping, as checked above.
        unsafe {
            let at = self.base.as_ptr().add(offset);
            match value {
                Doorbell::Word(value) => at.cast::<u32>().write_volatile(value.to_le()),
                Doorbell::Double(value) => at.cast::<u64>().write_volatile(value.to_le()),
            }
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping created in `new`, and no reference into it exists.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn open(path: &Path) -> Result<File> {
    File::options()
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))
}
