//! Receive WQEs. All WQEs in a queue have the same length: 1, 2, 4 or 8 quanta.
//!
//! # Spec
//! E810 interface, section 13.5.

use super::fragment::Fragment;
use super::send_wqe::{Fragments, QUANTUM};

/// A parsed receive WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveWqe {
    /// Fragments with a nonzero length.
    pub fragments: Fragments,
}

impl ReceiveWqe {
    /// Parses the WQE in `slot`. `more` is the number of fragments after the first, taken from the control word.
    /// Fragments beyond the slot are ignored.
    pub fn parse(slot: &[u8], more: u8) -> Self {
        let rest = slot.get(QUANTUM..).unwrap_or_default().as_chunks().0;
        let all = slot.first_chunk().into_iter().chain(rest.iter().take(more.into())).map(Fragment::parse);
        Self { fragments: all.filter(|fragment| fragment.len != 0).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::e810::rdma::testing::words;
    use crate::ids::{Lkey, Va};

    fn fragment(va: u64, key: u32, len: u32) -> Fragment {
        Fragment { va: Va::new(va), key: Lkey::new(key), len }
    }

    /// Example "RQ, 1 SGE" from section 16.3.
    #[test]
    fn parses_receive_example() {
        let slot: [u8; QUANTUM] = words(&[(0, 0x55ec_bd10_3000), (8, 0x8000_1000_9132_58d1), (24, 1 << 63)]);
        let wqe = ReceiveWqe::parse(&slot, 0);
        assert_eq!(wqe.fragments.as_slice(), [fragment(0x55ec_bd10_3000, 0x9132_58d1, 4096)]);
    }

    #[test]
    fn empty_and_excess_fragments_are_skipped() {
        let mut slot = [0; 2 * QUANTUM];
        slot[..16].copy_from_slice(&fragment(1, 1, 8).emit());
        slot[32..48].copy_from_slice(&fragment(2, 2, 0).emit());
        slot[48..64].copy_from_slice(&fragment(3, 3, 8).emit());
        assert_eq!(ReceiveWqe::parse(&slot, 15).fragments.as_slice(), [fragment(1, 1, 8), fragment(3, 3, 8)]);
        assert_eq!(ReceiveWqe::parse(&slot, 1).fragments.as_slice(), [fragment(1, 1, 8)]);
    }
}
