//! The vfio ioctls used by the agent, with the argument layouts and request numbers of `linux/vfio.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const fn request(number: u64) -> u64 {
    // This is _IO(';', 100 + n), which encodes neither a direction nor a size.
    (b';' as u64) << 8 | (100 + number)
}

const GET_API_VERSION: u64 = request(0);
const CHECK_EXTENSION: u64 = request(1);
const SET_IOMMU: u64 = request(2);
const GROUP_GET_STATUS: u64 = request(3);
const GROUP_SET_CONTAINER: u64 = request(4);
const GROUP_GET_DEVICE_FD: u64 = request(6);
const DEVICE_GET_REGION_INFO: u64 = request(8);
const DEVICE_SET_IRQS: u64 = request(10);
const IOMMU_MAP_DMA: u64 = request(13);

/// VFIO_TYPE1v2_IOMMU: the second version of the type 1 IOMMU interface.
const TYPE1V2_IOMMU: u64 = 3;

#[repr(C)]
#[derive(Default)]
struct GroupStatus {
    argsz: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct RawRegionInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    cap_offset: u32,
    size: u64,
    offset: u64,
}

#[repr(C)]
struct DmaMap {
    argsz: u32,
    flags: u32,
    vaddr: u64,
    iova: u64,
    size: u64,
}

/// Constants for the argument of VFIO_DEVICE_SET_IRQS.
pub(super) mod irqs {
    /// Index that selects the MSI-X vectors.
    pub(in super::super) const MSIX: u32 = 2;
    /// The argument carries no data; the action applies to all vectors in the range. With TRIGGER and no vectors, the
    /// ioctl disables interrupts.
    pub(in super::super) const NONE: u32 = 1;
    /// The argument carries an eventfd for each vector.
    pub(in super::super) const EVENTFD: u32 = 1 << 2;
    /// VFIO_IRQ_SET_ACTION_MASK: interrupts stay pending.
    pub(in super::super) const MASK: u32 = 1 << 3;
    /// VFIO_IRQ_SET_ACTION_UNMASK: pending interrupts are delivered.
    pub(in super::super) const UNMASK: u32 = 1 << 4;
    /// Triggers interrupts or, if eventfds are given, connects the eventfds to the vectors.
    pub(in super::super) const TRIGGER: u32 = 1 << 5;
}

#[expect(clippy::cast_possible_truncation, reason = "these structures are smaller than a hundred bytes")]
const fn argsz<T>() -> u32 {
    size_of::<T>() as u32
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RegionInfo {
    pub(super) size: u64,
    /// Offset of the region's first byte in the device file.
    pub(super) offset: u64,
    /// Whether the region supports mmap(2).
    pub(super) mappable: bool,
}

/// Checks that the kernel provides the expected version of the interface and supports type1v2.
pub(super) fn check_container(container: BorrowedFd<'_>) -> io::Result<()> {
    if call(container, GET_API_VERSION, 0)? != 0 {
        return Err(io::Error::other("unsupported vfio API version"));
    }
    if call(container, CHECK_EXTENSION, TYPE1V2_IOMMU)? == 0 {
        return Err(io::Error::other("vfio does not support the type1v2 IOMMU"));
    }
    Ok(())
}

/// Returns whether the group can be used, which requires every function in it to be bound to vfio.
pub(super) fn group_is_viable(group: BorrowedFd<'_>) -> io::Result<bool> {
    let mut status = GroupStatus { argsz: argsz::<GroupStatus>(), flags: 0 };
    call(group, GROUP_GET_STATUS, (&raw mut status).addr() as u64)?;
    Ok(status.flags & 1 != 0)
}

/// Adds the group to the container and selects the IOMMU interface.
pub(super) fn attach(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let fd = container.as_raw_fd();
    call(group, GROUP_SET_CONTAINER, (&raw const fd).addr() as u64)?;
    call(container, SET_IOMMU, TYPE1V2_IOMMU)?;
    Ok(())
}

pub(super) fn device_fd(group: BorrowedFd<'_>, address: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(address)?;
    let fd = call(group, GROUP_GET_DEVICE_FD, name.as_ptr().addr() as u64)?;
    // SAFETY: the kernel has just created this descriptor, and no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn region_info(device: BorrowedFd<'_>, index: u32) -> io::Result<RegionInfo> {
    let mut info = RawRegionInfo { argsz: argsz::<RawRegionInfo>(), index, ..RawRegionInfo::default() };
    call(device, DEVICE_GET_REGION_INFO, (&raw mut info).addr() as u64)?;
    Ok(RegionInfo { size: info.size, offset: info.offset, mappable: info.flags & 4 != 0 })
}

/// Applies `flags` to `count` MSI-X vectors starting at `start`. With [`irqs::EVENTFD`], connects the given eventfds to
/// the vectors.
pub(super) fn set_irqs(
    device: BorrowedFd<'_>,
    flags: u32,
    start: u32,
    count: u32,
    eventfds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let too_many = |_| io::Error::other("too many vectors");
    // The argument consists of argsz, flags, index, start and count, followed by a descriptor for each eventfd.
    let mut set = vec![0, flags, irqs::MSIX, start, count];
    set.extend(eventfds.iter().map(|fd| fd.as_raw_fd().cast_unsigned()));
    set[0] = u32::try_from(size_of_val(set.as_slice())).map_err(too_many)?;
    call(device, DEVICE_SET_IRQS, set.as_ptr().addr() as u64)?;
    Ok(())
}

/// Maps `size` bytes at process address `vaddr` to bus address `iova`. The device may read and write them.
pub(super) fn map_dma(container: BorrowedFd<'_>, vaddr: u64, iova: u64, size: u64) -> io::Result<()> {
    let map = DmaMap { argsz: argsz::<DmaMap>(), flags: 3, vaddr, iova, size };
    call(container, IOMMU_MAP_DMA, (&raw const map).addr() as u64)?;
    Ok(())
}

fn call(fd: BorrowedFd<'_>, request: u64, argument: u64) -> io::Result<i32> {
    // SAFETY: every caller passes a request defined in this file and an argument of the matching type: a number, or the
    // address of a live value, which the kernel accesses only during the call.
    // The system call takes the same types with every libc, unlike the function `ioctl`.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, fd.as_raw_fd(), request, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { i32::try_from(result).map_err(io::Error::other) }
}
