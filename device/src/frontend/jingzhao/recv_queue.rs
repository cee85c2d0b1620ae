//! The receive queue of a QP: slots in order, and whether the next one is posted.
//!
//! There is no doorbell, so a slot is looked at only when somebody wants a request, and what is in it decides. A
//! consumed slot must then stop looking posted, or a flush would go round the ring for ever and a message could land
//! in a buffer twice. Where software marks slots with the valid bit, we take the bit away (software would do it when
//! it reads the completion); where it does not, we write a terminator over the first data unit (`rq_clear`).
//!
//! # Spec
//! JingZhao interface, section 6.8 (J-22, J-23).

use engine::{Fetch, RecvRequest, Status};
use protocol::hca::jingzhao::wqe::{GRANULE, Posted, RECV_VALID, RecvWqe, TERMINATOR};
use smallvec::SmallVec;

use super::ctxmgt::message::RdQpRst;
use super::options::QueueOptions;
use super::ring::Ring;
use super::send_queue::sge;
use crate::memory::queue::QueueMemory;

/// How often a slot is read again that is marked as posted but has nothing in it: software marks a slot before it
/// fills it. We cannot sleep here, and must not answer "not posted", since a receive without buffers is legal. So
/// many reads take some microseconds, and software needs a few stores.
const REREADS: u32 = 64;

/// Log2 of the bytes of the largest slot. RTR is refused to a QP with larger ones.
const MAX_LOG_SLOT: u8 = 12;

/// Offset of a slot's first data unit. The smallest slot has 32 bytes.
const FIRST_DATA_UNIT: u32 = 16;

/// Receive queue of one QP.
#[derive(Debug)]
pub struct RecvQueue {
    options: QueueOptions,
    ring: Ring,
    /// Only the valid bit makes a slot a posted one.
    bit_decides: bool,
    /// Next slot.
    slot: u32,
    /// The ring has not been passed once since RESET.
    first_pass: bool,
    /// Slots given in a row that still look posted.
    unreleased: u32,
    /// The last slot given had the valid bit.
    marked: bool,
}

impl RecvQueue {
    /// A queue as after RESET.
    pub fn new(options: QueueOptions) -> Self {
        Self {
            options,
            ring: Ring::default(),
            bit_decides: false,
            slot: 0,
            first_pass: true,
            unreleased: 0,
            marked: false,
        }
    }

    /// Forgets buffer and position (RST2INIT, to RESET).
    pub fn reset(&mut self) {
        *self = Self::new(self.options);
    }

    /// Takes over what a command changed in the QP's context.
    pub fn configure(&mut self, rst: &RdQpRst, mem: &impl QueueMemory) {
        self.ring = Ring::of_recv(rst, &self.options, mem);
        self.bit_decides = self.options.rq_valid_bit && rst.usr_page != 0;
    }

    /// Slots of the queue.
    pub fn slots(&self) -> u32 {
        self.ring.slots()
    }

    /// Whether the WQE that was taken last had the valid bit.
    pub fn was_marked(&self) -> bool {
        self.marked
    }

    /// Takes the WQE of the next slot, if it is posted. `wr_id` is its byte offset.
    pub fn next(&mut self, mem: &impl QueueMemory) -> Fetch<RecvRequest> {
        let slots = self.ring.slots();
        if slots == 0 || self.ring.log_slot() > MAX_LOG_SLOT {
            return Fetch::Empty;
        }
        // Most slots have 128 to 512 bytes; larger ones cost an allocation.
        let mut copy: SmallVec<[u8; 512]> = SmallVec::from_elem(0, 1 << self.ring.log_slot());
        let bytes = &mut copy[..];
        // A queue that became shorter starts anew.
        self.slot = if self.slot < slots { self.slot } else { 0 };
        let at = self.slot << self.ring.log_slot();
        match self.look(mem, at, bytes) {
            Ok(true) => {}
            Ok(false) => {
                self.unreleased = 0;
                return Fetch::Empty;
            }
            Err(_) => return Fetch::Broken,
        }
        if self.release(mem, at, bytes) {
            self.unreleased = 0;
        } else if self.unreleased == slots {
            // Bound: a ring whose slots all keep looking posted is given once round, then it is empty once.
            self.unreleased = 0;
            return Fetch::Empty;
        } else {
            self.unreleased += 1;
        }
        self.slot += 1;
        if self.slot == slots {
            self.slot = 0;
            self.first_pass = false;
        }
        self.marked = bytes.first().is_some_and(|first| first & RECV_VALID != 0);
        let wr_id = u64::from(at);
        match RecvWqe::parse(bytes) {
            Ok(wqe) => Fetch::Ready(RecvRequest { wr_id, sges: wqe.data.iter().map(sge).collect() }),
            Err(_) => Fetch::Refused { wr_id, status: Status::LocalQpOperation },
        }
    }

    /// Copies the slot at `at` and says whether it is posted.
    fn look(&self, mem: &impl QueueMemory, at: u32, bytes: &mut [u8]) -> Result<bool, engine::AccessError> {
        for _ in 0..REREADS {
            self.ring.read(mem, at, bytes)?;
            if self.bit_decides && bytes.first().is_none_or(|first| first & RECV_VALID == 0) {
                return Ok(false);
            }
            match RecvWqe::posted(bytes, self.first_pass) {
                Posted::Yes => return Ok(true),
                Posted::No => return Ok(false),
                Posted::Unsettled => std::hint::spin_loop(),
            }
        }
        Ok(true)
    }

    /// Makes a slot look unposted; `false` if it still looks posted.
    fn release(&self, mem: &impl QueueMemory, at: u32, bytes: &[u8]) -> bool {
        match bytes.first() {
            Some(first) if first & RECV_VALID != 0 => {
                // What remains of a library's slot is a next unit that is not zero if it was linked, with data units
                // behind it: without the bit that is the kernel driver's idea of a posted slot.
                self.ring.patch(mem, at, &[0; GRANULE]).is_ok()
            }
            _ if self.options.rq_clear => self.ring.patch(mem, at + FIRST_DATA_UNIT, &TERMINATOR).is_ok(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
