//! User memory objects (UMEM): guest pages that the kernel has pinned for a DevX user. A queue can reside in a UMEM
//! rather than in pages listed by the command that creates the queue.
//!
//! # Spec
//! mlx5 interface, section 23.

use crate::ids::UmemId;
use crate::layout;

layout! {
    /// Fixed part of the CREATE_UMEM input. The page addresses follow.
    pub struct CreateUmem[0x30] big_endian {
        /// The pages are `4096 << log_page_size` bytes long.
        @0x20[4:0]  log_page_size: u8,
        /// Offset of the first byte within the first page.
        @0x24       page_offset: u32 => Hex,
        /// Number of page addresses that follow.
        @0x28       count: u64,
    }
}

layout! {
    /// Output of CREATE_UMEM and input of DESTROY_UMEM.
    pub struct UmemNumber[16] big_endian {
        /// UMEM number, 24 bits.
        @0x08[23:0]  umem: UmemId,
    }
}

/// Location of a queue or doorbell record in a UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UmemPlace {
    /// UMEM number as given by the driver. The UMEM need not exist.
    pub umem: UmemId,
    /// Offset in bytes from the start of the UMEM.
    pub offset: u64,
}

impl UmemPlace {
    pub(super) fn new(valid: bool, umem: UmemId, offset: u64) -> Option<Self> {
        valid.then_some(Self { umem, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::super::cq::{CreateCq, ModifyCq};
    use super::super::mkey::CreateMkey;
    use super::super::qp::CreateQp;
    use super::super::srq::WorkQueue;
    use super::super::testing::words;
    use super::*;

    #[test]
    fn user_memory_fields_are_at_specified_offsets() {
        let create = CreateUmem { log_page_size: 9, page_offset: 0x1040, count: 0x1_0000_0002 };
        let input = words(&[(0x20, 9), (0x24, 0x1040), (0x28, 1), (0x2c, 2)]);
        assert_eq!(create.emit(), input);
        assert_eq!(UmemNumber { umem: UmemId::new(7) }.emit(), words(&[(0x08, 7)]));
    }

    /// The offsets are from section 23. If an object's UMEM flag is clear, the object is not in a UMEM.
    #[test]
    fn umem_locations_are_at_specified_offsets() {
        let place = |umem, offset| Some(UmemPlace { umem: UmemId::new(umem), offset });
        let ring = [(0x50, 1), (0x54, 0x40), (0x58, 3)];
        assert_eq!(CreateCq::parse(&words(&ring)).place(), None);
        let ring = [&ring[..], &[(0x5c, 1 << 31)]].concat();
        assert_eq!(CreateCq::parse(&words(&ring)).place(), place(3, 0x1_0000_0040));
        assert_eq!(ModifyCq::parse(&words(&ring)).place(), place(3, 0x1_0000_0040));
        let queues = words(&[(0x104, 0x80), (0x108, 4), (0x10c, 1 << 31)]);
        assert_eq!(CreateQp::parse(&queues).place(), place(4, 0x80));
        let region = words(&[(0x0c, 1 << 30), (0x64, 5), (0x6c, 0x10)]);
        assert_eq!(CreateMkey::parse(&region).place(), place(5, 0x10));
        let flags = |flags| [(0x14, 8), (0x24, flags), (0x28, 6), (0x2c, 7), (0x34, 0x200)];
        let queue = WorkQueue::parse(&words(&flags(1 << 31)));
        assert_eq!((queue.record_place(), queue.place()), (place(6, 8), None));
        let queue = WorkQueue::parse(&words(&flags(1 << 30)));
        assert_eq!((queue.record_place(), queue.place()), (None, place(7, 0x200)));
    }
}
