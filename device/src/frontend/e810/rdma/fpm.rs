//! How much context memory there can be, and where in the function's own address space its objects are.
//!
//! Objects that the device keeps itself have a byte each, so that the guest lends one segment for all of them.
//!
//! # Spec
//! E810 interface, section 11.2.

use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::hmc::{
    BASE_UNIT, BlockLimit, ENTRY_LEN, FpmCommand, FpmLimits, Limit, Placement, SEGMENT_LEN,
};

use super::dispatch::Outcome;
use super::hmc::{Hmc, Pbles};
use crate::frontend::e810::limits::{Limits, MAX_CEQS};
use crate::memory::GuestMemory;

/// Segments beside those of PBLEs. All other objects together take at most ten; drivers commit more objects of some kinds than
/// they are offered.
const OTHER_SEGMENTS: u16 = 63;
/// Timers.
const MAX_TIMERS: u32 = 4096;
/// A multicast group takes eight objects.
const OBJECTS_PER_GROUP: u32 = 8;

/// Of objects that the device keeps itself: a byte of context memory each.
const fn own(max: u32) -> Limit {
    Limit { max, exponent: 0 }
}

/// Of free lists, whose blocks must not be empty.
const fn list(max: u32) -> BlockLimit {
    BlockLimit { max, block: 1 }
}

/// Multicast groups: drivers number as many as there are queue pairs.
pub(super) const fn groups(limits: &Limits) -> u32 {
    limits.max_qps.get()
}

/// Segment descriptors.
pub(super) fn segments(limits: &Limits) -> u16 {
    let pbles = u64::from(limits.max_pbles.get()) * ENTRY_LEN;
    u16::try_from(pbles.div_ceil(SEGMENT_LEN)).unwrap_or(u16::MAX).saturating_add(OTHER_SEGMENTS)
}

fn offered(limits: &Limits) -> FpmLimits {
    let qps = limits.max_qps.get();
    // Drivers want 254 for each queue pair and 512, and have fewer queue pairs where there are less.
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

/// An object of which the device says where it is.
struct Object {
    /// Its word in the buffer of "commit FPM", bytes.
    at: usize,
    /// Bytes of one.
    len: u64,
}

const fn object(at: usize, len: u64) -> Object {
    Object { at, len }
}

/// Bytes of an entry of a free list.
const FREE_ENTRY_LEN: u64 = 4;
/// Bytes of the bitmap of ports.
const PORTS_LEN: u64 = 8192;

/// All objects but PBLEs: queue pairs, completion queues, shared receive queues, hash entries, ARP entries, the bitmap of
/// ports, regions, transmit buffers and their free list, read responses and theirs, timers, groups, address handles, read
/// requests and their free list, headers, metadata.
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

/// PBLEs, which come last in the address space.
const PBLES: Object = object(112, ENTRY_LEN);

/// Bytes of "commit FPM" that drivers give, at the least.
const COMMIT_LEN: usize = 176;

/// "Query FPM".
///
/// # Errors
/// The buffer cannot be reached.
pub(super) fn query(limits: &Limits, dma: &GuestMemory, command: &FpmCommand) -> Outcome {
    dma.write(command.buffer, &offered(limits).emit()).map_err(|_| unreachable(command))?;
    Ok(0)
}

/// "Commit FPM": the device says where the objects are that software wants.
///
/// # Errors
/// More objects than there is room for; the buffer is too short or cannot be reached.
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
    // They begin with a segment, so that drivers lend whole ones for them.
    let (Placement { count, base }, _) = place(&mut buffer, &PBLES, free.next_multiple_of(SEGMENT_LEN), end)?;
    if count > limits.max_pbles.get() {
        return Err(CqpError::new(CqpErrorCode::NoRoom, "too many PBLEs:", count.into()));
    }
    dma.write(command.buffer, &buffer).map_err(|_| unreachable(command))?;
    hmc.place_pbles(Pbles { base, count });
    Ok(0)
}

/// Puts objects at the first free address, and gives the next. The address space ends at `most`.
fn place(
    buffer: &mut [u8; COMMIT_LEN],
    object: &Object,
    free: u64,
    most: u64,
) -> Result<(Placement, u64), CqpError> {
    let Some(word) = buffer.get_mut(object.at..).and_then(|bytes| bytes.first_chunk_mut()) else {
        return Err(CqpError::invalid("buffer word", object.at as u64));
    };
    let Placement { count, .. } = Placement::parse(word);
    let end = free + u64::from(count) * object.len;
    if end > most {
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
