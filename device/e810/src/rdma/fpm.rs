//! Function private memory (FPM): the limits on context memory objects and their placement.
//!
//! The device itself stores all objects except PBLEs. For most of them, it declares a size of one byte, so that the
//! host needs to map only a few segments.
//!
//! # Spec
//! E810 interface, section 11.2.

use card::memory::GuestMemory;
use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::hmc::{
    BASE_UNIT, BlockLimit, ENTRY_LEN, FpmCommand, FpmLimits, Limit, Placement, SEGMENT_LEN,
};

use super::dispatch::{Done, Outcome};
use super::hmc::{Hmc, Pbles};
use crate::limits::{Limits, MAX_CEQS, MAX_TIMERS};

/// Number of segments for objects other than PBLEs. The objects that the device offers need at most ten segments. The
/// remaining segments are a reserve for drivers that commit more objects of some kinds than the device offers.
const OTHER_SEGMENTS: u16 = 63;
/// Number of context memory objects per multicast group.
const OBJECTS_PER_GROUP: u32 = 8;

/// Returns the limit for a kind of object that the device stores itself. Each object occupies one byte of context
/// memory.
const fn own(max: u32) -> Limit {
    Limit { max, exponent: 0 }
}

/// Returns the limit for a free list. The block size is 1, the smallest valid value.
const fn list(max: u32) -> BlockLimit {
    BlockLimit { max, block: 1 }
}

/// Returns the maximum number of multicast groups. irdma uses one group index per queue pair.
pub(super) const fn groups(limits: &Limits) -> u32 {
    limits.max_qps.get()
}

/// Returns the number of segment descriptors.
pub(super) fn segments(limits: &Limits) -> u16 {
    let pbles = u64::from(limits.max_pbles.get()) * ENTRY_LEN;
    u16::try_from(pbles.div_ceil(SEGMENT_LEN)).unwrap_or(u16::MAX).saturating_add(OTHER_SEGMENTS)
}

fn offered(limits: &Limits) -> FpmLimits {
    let qps = limits.max_qps.get();
    // irdma needs 512 read responses, plus 254 per queue pair. If the device offers fewer, irdma reduces the
    // number of queue pairs.
    let responses = (254 * qps + 512).next_power_of_two();
    let transmit_buffers = 8 * qps;
    FpmLimits {
        first_segment: 0,
        max_segments: segments(limits),
        qps: own(qps),
        cqs: own(limits.max_cqs.get()),
        srqs: own(0),
        hash_entries: own(4 * qps),
        arp_entries: own(limits.max_arp_entries.get()),
        regions: own(limits.max_regions.get()),
        transmit_buffers: own(transmit_buffers),
        transmit_free: list(transmit_buffers),
        responses: own(responses),
        responses_free: list(responses),
        timers: own(MAX_TIMERS),
        groups: own(groups(limits) * OBJECTS_PER_GROUP),
        address_handles: own(limits.max_ahs.get()),
        pbles: limits.max_pbles.get(),
        max_ceqs: MAX_CEQS,
        hash_multiplier: 1,
        timer_buckets: 1,
        read_requests: own(0),
        read_requests_free: list(0),
        headers: own(qps),
        metadata: own(1),
        out_of_order: own(0),
        out_of_order_free: list(0),
    }
}

/// An object kind that "commit FPM" reserves addresses for.
struct Object {
    /// Byte offset of the kind's word in the "commit FPM" buffer.
    at: usize,
    /// Number of bytes per object.
    len: u64,
}

const fn object(at: usize, len: u64) -> Object {
    Object { at, len }
}

/// Length of a free-list entry in bytes.
const FREE_ENTRY_LEN: u64 = 4;
/// Length of the port bitmap in bytes.
const PORTS_LEN: u64 = 8192;

/// All object kinds except PBLEs, in buffer order: QPs, CQs, SRQs, hash entries, ARP entries, port bitmap, regions,
/// transmit buffers and their free list, read responses and their free list, timers, multicast groups, address handles,
/// read requests and their free list, headers, metadata.
const OBJECTS: [Object; 18] = [
    object(0, 1),
    object(8, 1),
    object(16, 1),
    object(24, 1),
    object(32, 1),
    object(40, PORTS_LEN),
    object(48, 1),
    object(56, 1),
    object(64, FREE_ENTRY_LEN),
    object(72, 1),
    object(80, FREE_ENTRY_LEN),
    object(88, 1),
    object(96, 1),
    object(104, 1),
    object(128, 1),
    object(136, FREE_ENTRY_LEN),
    object(144, 1),
    object(152, 1),
];

/// The PBLE array, which is placed after all other objects.
const PBLES: Object = object(112, ENTRY_LEN);

/// Minimum length of the "commit FPM" buffer in bytes.
const COMMIT_LEN: usize = 176;

/// Executes "Query FPM".
///
/// # Errors
/// Fails if the buffer is not in mapped memory.
pub(super) fn query(limits: &Limits, dma: &GuestMemory, command: &FpmCommand) -> Outcome {
    dma.write(command.buffer, &offered(limits).emit()).map_err(|_| unreachable(command))?;
    Ok(Done::Plain)
}

/// Executes "Commit FPM": returns the base address for each kind of object.
///
/// # Errors
/// Fails if the objects do not fit in the address space, or the buffer is too short or not in mapped memory.
pub(super) fn commit(limits: &Limits, hmc: &mut Hmc, dma: &GuestMemory, command: &FpmCommand) -> Outcome {
    if command.len < u32::try_from(COMMIT_LEN).unwrap_or(u32::MAX) {
        return Err(CqpError::invalid("buffer length", command.len.into()));
    }
    let mut buffer = [0; COMMIT_LEN];
    dma.read(command.buffer, &mut buffer).map_err(|_| unreachable(command))?;
    let end = hmc.len();
    let mut free = 0;
    for object in &OBJECTS {
        free = place(&mut buffer, object, free, end)?.1;
    }
    // PBLEs start on a segment boundary, so the host maps whole segments for them.
    let (Placement { count, base }, _) = place(&mut buffer, &PBLES, free.next_multiple_of(SEGMENT_LEN), end)?;
    if count > limits.max_pbles.get() {
        return Err(CqpError::new(CqpErrorCode::NoRoom, "too many PBLEs:", count.into()));
    }
    dma.write(command.buffer, &buffer).map_err(|_| unreachable(command))?;
    hmc.place_pbles(Pbles { base, count });
    Ok(Done::Plain)
}

/// Places objects at the address `free`. Returns the placement and the next free address. The address space
/// ends at `limit`.
fn place(
    buffer: &mut [u8; COMMIT_LEN],
    object: &Object,
    free: u64,
    limit: u64,
) -> Result<(Placement, u64), CqpError> {
    let Some(word) = buffer.get_mut(object.at..).and_then(|bytes| bytes.first_chunk_mut()) else {
        return Err(CqpError::invalid("buffer word", object.at as u64));
    };
    let Placement { count, .. } = Placement::parse(word);
    let end = free + u64::from(count) * object.len;
    if end > limit {
        return Err(CqpError::new(CqpErrorCode::NoRoom, "too many context memory objects:", count.into()));
    }
    let base = u32::try_from(free / BASE_UNIT).unwrap_or(u32::MAX);
    let placement = Placement { count, base };
    *word = placement.emit();
    Ok((placement, end.next_multiple_of(BASE_UNIT)))
}

fn unreachable(command: &FpmCommand) -> CqpError {
    CqpError::new(CqpErrorCode::Unreachable, "buffer at", command.buffer.get())
}
