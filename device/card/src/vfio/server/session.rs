//! Executes one message and builds its reply.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use protocol::ids::Iova;
use serde::{Deserialize, Serialize};
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_DMA_UNMAP_FLAG_ALL, VFIO_IRQ_INFO_EVENTFD,
    VFIO_IRQ_INFO_MASKABLE, VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS,
    VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_CAP_SPARSE_MMAP, VFIO_REGION_INFO_FLAG_CAPS,
    VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::input::{OutOfDescriptors, ProtocolError};
use super::irqs;
use super::message::{
    Command, DeviceInfo, DmaMap, DmaUnmap, FLAG_ERROR, FLAG_NO_REPLY, FLAG_REPLY, FLAG_TYPE, HEADER_LEN,
    Header, IrqInfo, IrqSet, MAX_FDS, MAX_SMALL_WRITES, MAX_TRANSFER_LEN, Region, RegionAccess, RegionInfo,
    SmallWrite, SparseMmap, Version,
};
use super::stats::MessageStats;
use super::{Device, RegionFile};
use crate::limited;
use crate::memory::dma::PAGE_LEN;
use crate::memory::limits::MAX_WINDOWS;
use crate::memory::{MapError, Permissions};

/// Protocol version of this server.
const MAJOR: u16 = 0;
const MINOR: u16 = 1;

/// DMA_UNMAP flags that unmap all memory: the flag in `linux/vfio.h`, which QEMU sends, and the flag in older
/// versions of the protocol specification.
const UNMAP_ALL: u32 = VFIO_DMA_UNMAP_FLAG_ALL | DmaUnmapFlags::UNMAP_ALL.bits();

/// An errno value to report to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errno(i32);

impl Errno {
    pub(super) const INVALID: Self = Self(libc::EINVAL);
    pub(super) const NOT_SUPPORTED: Self = Self(libc::ENOTSUP);
    const OUT_OF_DESCRIPTORS: Self = Self(libc::EMFILE);
}

impl From<&MapError> for Errno {
    fn from(error: &MapError) -> Self {
        Self(match error {
            MapError::Invalid { .. } | MapError::OutsideFile { .. } => libc::EINVAL,
            MapError::Overlap { .. } => libc::EEXIST,
            MapError::TooManyRanges(_) | MapError::TooManyFiles(_) => libc::ENOSPC,
            MapError::TooManyBytes { .. } => libc::ENOMEM,
            MapError::FileSystem { .. } => libc::ENODEV,
            MapError::File(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
        })
    }
}

/// Protocol state of one client.
#[derive(Debug, Default)]
pub(super) struct Session {
    negotiated: bool,
    pub(super) stats: MessageStats,
}

impl Session {
    /// Handles one complete message and appends its reply, if any, to `out`. Returns the descriptor to send with the
    /// reply, if any.
    ///
    /// # Errors
    /// Fails only on violations that end the connection.
    pub(super) fn handle(
        &mut self,
        header: Header,
        payload: &[u8],
        fds: Result<Vec<OwnedFd>, OutOfDescriptors>,
        device: &mut impl Device,
        out: &mut Vec<u8>,
    ) -> Result<Option<Arc<OwnedFd>>, ProtocolError> {
        if header.flags & FLAG_TYPE != 0 {
            // This server does not send commands, and therefore does not expect replies.
            return Err(ProtocolError::NotACommand { flags: header.flags });
        }
        let command = Command::from_raw(header.command);
        if !self.negotiated && command != Some(Command::Version) {
            return Err(ProtocolError::NoVersion { command: header.command });
        }

        self.stats.count(command);
        let reply = Reply::begin(out);
        let mut file = None;
        let result = match (command, fds) {
            (None, _) => Err(Errno::NOT_SUPPORTED),
            (Some(command), Ok(fds)) => self.execute(command, payload, fds, device, reply.out, &mut file),
            (Some(_), Err(OutOfDescriptors)) => {
                limited!(
                    error,
                    "rejected a message that carried descriptors: the process has no free file descriptors"
                );
                Err(Errno::OUT_OF_DESCRIPTORS)
            }
        };
        if let Err(Errno(errno)) = result {
            self.stats.refused += 1;
            limited!(debug, command = header.command, errno, "rejected a vfio-user message");
        }
        let is_sent = reply.finish(header, result);
        Ok(file.filter(|_| is_sent))
    }

    fn execute(
        &mut self,
        command: Command,
        payload: &[u8],
        fds: Vec<OwnedFd>,
        device: &mut impl Device,
        out: &mut Vec<u8>,
        file: &mut Option<Arc<OwnedFd>>,
    ) -> Result<(), Errno> {
        match command {
            Command::Version => self.version(payload, out),
            Command::DmaMap => dma_map(&parse(payload)?, fds, device),
            Command::DmaUnmap => {
                let request = parse(payload)?;
                dma_unmap(&request, device)?;
                out.extend_from_slice(request.as_bytes());
                Ok(())
            }
            Command::GetInfo => get_info(&parse(payload)?, out),
            Command::GetRegionInfo => {
                *file = get_region_info(&parse(payload)?, device, out)?;
                Ok(())
            }
            Command::GetIrqInfo => get_irq_info(&parse(payload)?, device, out),
            Command::SetIrqs => {
                let (set, booleans) = IrqSet::read_from_prefix(payload).map_err(|_| Errno::INVALID)?;
                irqs::set(&set, booleans, fds, device.interrupts())
            }
            Command::RegionRead => region_read(&parse(payload)?, device, out),
            Command::RegionWrite => {
                let (access, data) = RegionAccess::read_from_prefix(payload).map_err(|_| Errno::INVALID)?;
                region_write(&access, data, device)?;
                out.extend_from_slice(access.as_bytes());
                Ok(())
            }
            Command::RegionWriteMulti => region_write_multi(payload, device, out),
            Command::Reset => {
                device.reset();
                Ok(())
            }
        }
    }

    fn version(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Errno> {
        if self.negotiated {
            return Err(Errno::INVALID);
        }
        let (version, data) = Version::read_from_prefix(payload).map_err(|_| Errno::INVALID)?;
        if version.major != MAJOR {
            limited!(warn, major = version.major, "vfio-user client requested an unsupported major version");
            return Err(Errno::INVALID);
        }
        let proposed = if data.is_empty() {
            VersionData::default()
        } else {
            let text = CStr::from_bytes_until_nul(data).map_err(|_| Errno::INVALID)?;
            serde_json::from_slice(text.to_bytes()).map_err(|error| {
                limited!(warn, %error, "vfio-user client sent invalid version JSON");
                Errno::INVALID
            })?
        };
        let reply = Version { major: MAJOR, minor: version.minor.min(MINOR) };
        out.extend_from_slice(reply.as_bytes());
        let accepted = VersionData { capabilities: proposed.capabilities.accept() };
        serde_json::to_writer(&mut *out, &accepted).map_err(|_| Errno::INVALID)?;
        out.push(0);
        self.negotiated = true;
        limited!(debug, ?proposed, ?accepted, "negotiated vfio-user version");
        Ok(())
    }
}

/// JSON data of a VERSION message. Unknown members are ignored.
#[derive(Debug, Default, Deserialize, Serialize)]
struct VersionData {
    #[serde(default)]
    capabilities: Capabilities,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Capabilities {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_msg_fds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_data_xfer_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_dma_maps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pgsizes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_multiple: Option<bool>,
}

impl Capabilities {
    /// Returns this server's limits for the capabilities that the client sent. A server must not return any other
    /// capabilities.
    fn accept(&self) -> Self {
        Self {
            max_msg_fds: self.max_msg_fds.map(|_| MAX_FDS as u64),
            max_data_xfer_size: self.max_data_xfer_size.map(|_| u64::from(MAX_TRANSFER_LEN)),
            max_dma_maps: self.max_dma_maps.map(|limit| limit.min(MAX_WINDOWS as u64)),
            pgsizes: self.pgsizes.map(|_| PAGE_LEN),
            write_multiple: self.write_multiple,
        }
    }
}

fn dma_map(request: &DmaMap, fds: Vec<OwnedFd>, device: &mut impl Device) -> Result<(), Errno> {
    let flags = DmaMapFlags::from_bits_retain(request.flags);
    if !DmaMapFlags::READ_WRITE.contains(flags) || fds.len() > 1 {
        return Err(Errno::INVALID);
    }
    let permissions =
        Permissions { read: flags.contains(DmaMapFlags::READ), write: flags.contains(DmaMapFlags::WRITE) };
    let backing = fds.into_iter().next().map(|fd| (fd, request.offset));
    device.memory().map(Iova::new(request.address), request.size, permissions, backing).map_err(|error| {
        limited!(warn, address = request.address, size = request.size, %error, "rejected a DMA map request");
        Errno::from(&error)
    })
}

fn dma_unmap(request: &DmaUnmap, device: &mut impl Device) -> Result<(), Errno> {
    match request.flags {
        0 if request.size != 0 => {
            device.memory().unmap(Iova::new(request.address), request.size).map_err(|error| {
                limited!(warn, address = request.address, size = request.size, %error, "rejected a DMA unmap request");
                Errno::from(&error)
            })?;
        }
        flags if flags & !UNMAP_ALL == 0 && flags != 0 && request.address == 0 && request.size == 0 => {
            device.memory().unmap_all();
        }
        _ => return Err(Errno::INVALID),
    }
    Ok(())
}

fn get_info(request: &DeviceInfo, out: &mut Vec<u8>) -> Result<(), Errno> {
    let argsz = reply_len::<DeviceInfo>(request.argsz)?;
    let info = DeviceInfo {
        argsz,
        flags: VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET,
        num_regions: VFIO_PCI_NUM_REGIONS,
        num_irqs: VFIO_PCI_NUM_IRQS,
    };
    out.extend_from_slice(info.as_bytes());
    Ok(())
}

/// Describes a region and returns its file if the client may map it. If any region can be mapped, QEMU does not post
/// writes, because posted writes would not be ordered with stores to the mapping.
///
/// If only part of the region can be mapped, a capability describes that part. If the client's buffer is too small for
/// the capability, the reply contains the required length and does not permit mapping. The client must then repeat the
/// request with a larger buffer.
fn get_region_info(
    request: &RegionInfo,
    device: &mut impl Device,
    out: &mut Vec<u8>,
) -> Result<Option<Arc<OwnedFd>>, Errno> {
    let argsz = reply_len::<RegionInfo>(request.argsz)?;
    if request.index >= VFIO_PCI_NUM_REGIONS {
        return Err(Errno::INVALID);
    }
    let region = Region::from_index(request.index);
    let size = region.map_or(0, |region| device.region_len(region));
    let flags = if size == 0 { 0 } else { VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE };
    let info = RegionInfo { argsz, flags, index: request.index, cap_offset: 0, size, offset: 0 };
    let Some(RegionFile { file, offsets }) = region.and_then(|region| device.region_file(region)) else {
        out.extend_from_slice(info.as_bytes());
        return Ok(None);
    };
    let mappable = RegionInfo { flags: flags | VFIO_REGION_INFO_FLAG_MMAP, ..info };
    if offsets == (0..size) {
        out.extend_from_slice(mappable.as_bytes());
        return Ok(Some(file));
    }
    let with_area = RegionInfo {
        argsz: argsz.saturating_add(length_of::<SparseMmap>()?),
        flags: mappable.flags | VFIO_REGION_INFO_FLAG_CAPS,
        cap_offset: argsz,
        ..mappable
    };
    if request.argsz < with_area.argsz {
        out.extend_from_slice(RegionInfo { argsz: with_area.argsz, ..info }.as_bytes());
        return Ok(None);
    }
    let area = SparseMmap {
        id: u16::try_from(VFIO_REGION_INFO_CAP_SPARSE_MMAP).map_err(|_| Errno::INVALID)?,
        version: 1,
        next: 0,
        areas: 1,
        reserved: 0,
        offset: offsets.start,
        size: offsets.end.saturating_sub(offsets.start),
    };
    out.extend_from_slice(with_area.as_bytes());
    out.extend_from_slice(area.as_bytes());
    Ok(Some(file))
}

fn get_irq_info(request: &IrqInfo, device: &mut impl Device, out: &mut Vec<u8>) -> Result<(), Errno> {
    let argsz = reply_len::<IrqInfo>(request.argsz)?;
    let (flags, count) = match request.index {
        VFIO_PCI_MSIX_IRQ_INDEX => {
            let vectors = u32::try_from(device.interrupts().count()).map_err(|_| Errno::INVALID)?;
            (VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_MASKABLE, vectors)
        }
        // Report an error interrupt, although the device never raises it. Otherwise, QEMU warns that it cannot recover
        // from errors.
        VFIO_PCI_ERR_IRQ_INDEX => (VFIO_IRQ_INFO_EVENTFD, 1),
        index if index < VFIO_PCI_NUM_IRQS => (0, 0),
        _ => return Err(Errno::INVALID),
    };
    out.extend_from_slice(IrqInfo { argsz, flags, index: request.index, count }.as_bytes());
    Ok(())
}

fn region_read(access: &RegionAccess, device: &mut impl Device, out: &mut Vec<u8>) -> Result<(), Errno> {
    let region = check_access(access, device)?;
    out.extend_from_slice(access.as_bytes());
    let data = out.len();
    // `check_access` has checked that the count is at most MAX_TRANSFER_LEN.
    out.resize(data + access.count as usize, 0);
    device.region_read(region, access.offset, &mut out[data..]);
    Ok(())
}

fn region_write(access: &RegionAccess, data: &[u8], device: &mut impl Device) -> Result<(), Errno> {
    let region = check_access(access, device)?;
    let data = data.get(..access.count as usize).ok_or(Errno::INVALID)?;
    device.region_write(region, access.offset, data);
    Ok(())
}

/// Executes the writes in order, stopping at the first invalid one. The reply contains the number of writes executed.
fn region_write_multi(payload: &[u8], device: &mut impl Device, out: &mut Vec<u8>) -> Result<(), Errno> {
    let (count, writes) = u64::read_from_prefix(payload).map_err(|_| Errno::INVALID)?;
    let count = usize::try_from(count).map_err(|_| Errno::INVALID)?;
    if count > MAX_SMALL_WRITES || count > writes.len() / size_of::<SmallWrite>() {
        return Err(Errno::INVALID);
    }
    let mut done = 0_u64;
    for write in writes.chunks_exact(size_of::<SmallWrite>()).take(count) {
        let write = parse::<SmallWrite>(write)?;
        if region_write(&write.access, &write.data, device).is_err() {
            break;
        }
        done += 1;
    }
    out.extend_from_slice(done.as_bytes());
    Ok(())
}

/// Returns the region that an access targets, if the access lies entirely within it.
fn check_access(access: &RegionAccess, device: &impl Device) -> Result<Region, Errno> {
    let region = Region::from_index(access.region).ok_or(Errno::INVALID)?;
    let len = device.region_len(region);
    let inside = access.offset <= len && u64::from(access.count) <= len - access.offset;
    if inside && access.count <= MAX_TRANSFER_LEN { Ok(region) } else { Err(Errno::INVALID) }
}

fn parse<T: FromBytes + KnownLayout + Immutable>(payload: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(payload).map(|(value, _)| value).map_err(|_| Errno::INVALID)
}

fn length_of<T>() -> Result<u32, Errno> {
    u32::try_from(size_of::<T>()).map_err(|_| Errno::INVALID)
}

/// Returns the length of a reply of type `T`, if the client accepts that many bytes.
fn reply_len<T>(argsz: u32) -> Result<u32, Errno> {
    let len = length_of::<T>()?;
    if argsz >= len { Ok(len) } else { Err(Errno::INVALID) }
}

/// A reply under construction at the end of a buffer.
struct Reply<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Reply<'a> {
    fn begin(out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        out.resize(start + HEADER_LEN, 0);
        Self { out, start }
    }

    /// Fills in the header. On error, also removes the payload. If the client does not request a reply, removes the
    /// whole reply and returns false.
    fn finish(self, request: Header, result: Result<(), Errno>) -> bool {
        if request.flags & FLAG_NO_REPLY != 0 {
            self.out.truncate(self.start);
            return false;
        }
        let (flags, error) = match result {
            Ok(()) => (FLAG_REPLY, 0),
            Err(Errno(errno)) => {
                self.out.truncate(self.start + HEADER_LEN);
                (FLAG_REPLY | FLAG_ERROR, errno.unsigned_abs())
            }
        };
        let (_, reply) = self.out.split_at_mut(self.start);
        // A reply is at most MAX_MESSAGE_LEN long, which is far below 4 GiB.
        let size = u32::try_from(reply.len()).unwrap_or(u32::MAX);
        let header = Header { id: request.id, command: request.command, size, flags, error };
        reply[..HEADER_LEN].copy_from_slice(header.as_bytes());
        true
    }
}
