//! The few vfio ioctls used here: argument layouts and request numbers of `linux/vfio.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const fn request(number: u64) -> u64 {
    // _IO(';', 100 + n): no direction and no size in the request number.
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

/// The second version of the type 1 IOMMU interface.
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

/// SET_IRQS as numbers: what is done to which vectors.
pub(super) mod irqs {
    /// Index of the MSI-X vectors.
    pub(in super::super) const MSIX: u32 = 2;
    /// No data: the action is for all vectors of the range. With TRIGGER and none of them, interrupts are disabled.
    pub(in super::super) const NONE: u32 = 1;
    /// An eventfd for each vector.
    pub(in super::super) const EVENTFD: u32 = 1 << 2;
    /// Hold back.
    pub(in super::super) const MASK: u32 = 1 << 3;
    /// Let go.
    pub(in super::super) const UNMASK: u32 = 1 << 4;
    /// Interrupt, or with eventfds: tell them of interrupts.
    pub(in super::super) const TRIGGER: u32 = 1 << 5;
}

/// `argsz` of an argument structure.
#[expect(clippy::cast_possible_truncation, reason = "these structures have less than a hundred bytes")]
const fn argsz<T>() -> u32 {
    size_of::<T>() as u32
}

/// Where a region is in the device's file.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionInfo {
    /// Bytes.
    pub(super) size: u64,
    /// Offset of its first byte in the device's file.
    pub(super) offset: u64,
    /// May be mapped.
    pub(super) mappable: bool,
}

/// Is this the interface version these layouts belong to, with type1v2?
pub(super) fn check_container(container: BorrowedFd<'_>) -> io::Result<()> {
    if call(container, GET_API_VERSION, 0)? != 0 {
        return Err(io::Error::other("unsupported vfio API version"));
    }
    if call(container, CHECK_EXTENSION, TYPE1V2_IOMMU)? == 0 {
        return Err(io::Error::other("vfio does not support the type1v2 IOMMU"));
    }
    Ok(())
}

/// Can the group be used, with every function of it bound to vfio?
pub(super) fn group_is_viable(group: BorrowedFd<'_>) -> io::Result<bool> {
    let mut status = GroupStatus { argsz: argsz::<GroupStatus>(), flags: 0 };
    call(group, GROUP_GET_STATUS, (&raw mut status).addr() as u64)?;
    Ok(status.flags & 1 != 0)
}

/// Puts the group into the container and chooses the container's IOMMU interface.
pub(super) fn attach(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let fd = container.as_raw_fd();
    call(group, GROUP_SET_CONTAINER, (&raw const fd).addr() as u64)?;
    call(container, SET_IOMMU, TYPE1V2_IOMMU)?;
    Ok(())
}

/// Opens the function with this address.
pub(super) fn device_fd(group: BorrowedFd<'_>, address: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(address)?;
    let fd = call(group, GROUP_GET_DEVICE_FD, name.as_ptr().addr() as u64)?;
    // SAFETY: the kernel has just created this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Asks for one region of the function.
pub(super) fn region_info(device: BorrowedFd<'_>, index: u32) -> io::Result<RegionInfo> {
    let mut info = RawRegionInfo { argsz: argsz::<RawRegionInfo>(), index, ..RawRegionInfo::default() };
    call(device, DEVICE_GET_REGION_INFO, (&raw mut info).addr() as u64)?;
    Ok(RegionInfo { size: info.size, offset: info.offset, mappable: info.flags & 4 != 0 })
}

/// Does `flags` to the MSI-X vectors from `start` on, `count` of them, which with [`irqs::EVENTFD`] get these eventfds.
pub(super) fn set_irqs(
    device: BorrowedFd<'_>,
    flags: u32,
    start: u32,
    count: u32,
    eventfds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let too_many = |_| io::Error::other("too many vectors");
    // argsz, flags, index, start, count; then a descriptor for each eventfd.
    let mut set = vec![0, flags, irqs::MSIX, start, count];
    set.extend(eventfds.iter().map(|fd| fd.as_raw_fd().cast_unsigned()));
    set[0] = u32::try_from(size_of_val(set.as_slice())).map_err(too_many)?;
    call(device, DEVICE_SET_IRQS, set.as_ptr().addr() as u64)?;
    Ok(())
}

/// Lets the device reach `size` bytes from process address `vaddr` on at bus address `iova`, both ways.
pub(super) fn map_dma(container: BorrowedFd<'_>, vaddr: u64, iova: u64, size: u64) -> io::Result<()> {
    let map = DmaMap { argsz: argsz::<DmaMap>(), flags: 3, vaddr, iova, size };
    call(container, IOMMU_MAP_DMA, (&raw const map).addr() as u64)?;
    Ok(())
}

fn call(fd: BorrowedFd<'_>, request: u64, argument: u64) -> io::Result<i32> {
    // SAFETY: every caller passes a request of this file with the argument its layout above describes: a plain
    // number, or the address of a live value of that layout, which the kernel reads or writes only during the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
