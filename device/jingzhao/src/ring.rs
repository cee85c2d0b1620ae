//! The buffer of a work queue: a ring of slots in a memory region.

use card::memory::queue::QueueMemory;
use engine::AccessError;
use protocol::ids::{Lkey, Pdn};

use super::ctxmgt::message::{RdQpRst, RdQpSst};
use super::options::QueueOptions;

/// Geometry of a work queue's ring.
///
/// # Spec
/// JingZhao interface, sections 6.7 and 6.8 (J-08).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ring {
    pd: Pdn,
    lkey: Lkey,
    len: u32,
    log_slot: u8,
}

impl Ring {
    pub fn of_send(sst: &RdQpSst, options: &QueueOptions, mem: &impl QueueMemory) -> Self {
        let len = effective_len(sst.sq_len, sst.sq_lkey, sst.usr_page, options, mem);
        Self { pd: sst.pd, lkey: sst.sq_lkey, len, log_slot: sst.log_sq_slot }
    }

    pub fn of_recv(rst: &RdQpRst, options: &QueueOptions, mem: &impl QueueMemory) -> Self {
        let len = effective_len(rst.rq_len, rst.rq_lkey, rst.usr_page, options, mem);
        Self { pd: rst.pd, lkey: rst.rq_lkey, len, log_slot: rst.log_rq_slot }
    }

    pub fn bytes(&self) -> u32 {
        self.len
    }

    /// Returns the log2 of the slot size in bytes.
    pub fn log_slot(&self) -> u8 {
        self.log_slot
    }

    /// Returns the number of whole slots.
    pub fn slots(&self) -> u32 {
        self.len.checked_shr(self.log_slot.into()).unwrap_or(0)
    }

    /// Copies bytes out of the ring, wrapping around at its end. `at` must be inside the ring.
    pub fn read(&self, mem: &impl QueueMemory, at: u32, out: &mut [u8]) -> Result<(), AccessError> {
        let mut at = at;
        let mut rest = out;
        // The loop is bounded, as a WQE is at most 4096 bytes long and a ring has at least one 32-byte slot.
        while !rest.is_empty() {
            let room = self.len.checked_sub(at).filter(|room| *room != 0).ok_or(AccessError::Bounds)?;
            let (now, later) = rest.split_at_mut(rest.len().min(room as usize));
            mem.read(self.pd, self.lkey, at.into(), now)?;
            rest = later;
            at = 0;
        }
        Ok(())
    }

    /// Writes bytes that do not cross the end of the ring.
    pub fn patch(&self, mem: &impl QueueMemory, at: u32, data: &[u8]) -> Result<(), AccessError> {
        mem.patch(self.pd, self.lkey, at.into(), data)
    }
}

/// Returns the effective length of a queue in bytes. The kernel driver writes the unrounded length to the context, but
/// the user library rounds the queue up to a power of two (J-08). A user queue therefore has the length of its memory
/// region, if that is a power of two and at least the length in the context.
fn effective_len(len: u32, key: Lkey, usr_page: u32, options: &QueueOptions, mem: &impl QueueMemory) -> u32 {
    let of_user = usr_page != 0 && options.queue_len_from_region && len != 0;
    let region =
        if of_user { mem.region_len(key).and_then(|region| u32::try_from(region).ok()) } else { None };
    region.filter(|region| region.is_power_of_two() && *region >= len).unwrap_or(len)
}

#[cfg(test)]
mod tests {
    use card::memory::queue::testing::Region;

    use super::*;

    fn sst(usr_page: u32, sq_len: u32) -> RdQpSst {
        let (pd, sq_lkey) = (Pdn::new(3), Lkey::new(0x21));
        RdQpSst { usr_page, sq_len, pd, sq_lkey, log_sq_slot: 7, ..RdQpSst::default() }
    }

    #[test]
    fn user_queue_has_same_length_as_region() {
        let options = QueueOptions::default();
        let mem = Region::new(1024);
        assert_eq!(Ring::of_send(&sst(1, 640), &options, &mem).bytes(), 1024);
        assert_eq!(Ring::of_send(&sst(1, 640), &options, &mem).slots(), 8);
        assert_eq!(
            Ring::of_send(&sst(0, 640), &options, &mem).bytes(),
            640,
            "a kernel QP keeps the length in its context"
        );
        assert_eq!(
            Ring::of_send(&sst(1, 2048), &options, &mem).bytes(),
            2048,
            "the region is shorter than the queue"
        );
        assert_eq!(Ring::of_send(&sst(1, 0), &options, &mem).bytes(), 0, "a length of 0 is not enlarged");
        assert_eq!(
            Ring::of_send(&sst(1, 640), &options, &Region::new(1000)).bytes(),
            640,
            "the region length is not a power of two"
        );
        let strict = QueueOptions { queue_len_from_region: false, ..options };
        assert_eq!(Ring::of_send(&sst(1, 640), &strict, &mem).bytes(), 640);
    }

    #[test]
    fn read_wraps_to_start_of_ring() {
        let mem = Region::new(256);
        mem.put(0, &[1; 16]);
        mem.put(240, &[2; 16]);
        let ring = Ring::of_send(&sst(0, 256), &QueueOptions::default(), &mem);
        let mut bytes = [0; 32];
        ring.read(&mem, 240, &mut bytes).unwrap();
        assert_eq!(bytes, [[2; 16], [1; 16]].concat()[..]);
    }

    #[test]
    fn read_of_ring_without_slots_fails() {
        let ring = Ring::default();
        assert_eq!(ring.read(&Region::new(16), 0, &mut [0; 16]), Err(AccessError::Bounds));
        assert_eq!(ring.slots(), 0);
    }
}
