//! Checks that no packet crosses a partition boundary.
//!
//! # Spec
//! IBTA volume 1, sections 9.6.1.1.3 and 10.9.3.

use protocol::ids::Pkey;

use super::{Checker, SideId};

impl Checker<'_> {
    /// Records a change to a side's P_Key. From then on, the checker assumes that packets of the pair may be lost, even
    /// if the new P_Keys match.
    pub fn on_partition(&mut self, pair: usize, side: usize, pkey: Pkey) {
        self.pkeys[pair][side] = pkey;
        self.on_blackhole(pair, side);
    }

    pub(super) fn pkey(&self, id: SideId) -> Pkey {
        self.pkeys[id.pair][id.side]
    }

    /// Returns whether a side accepts packets with P_Key `other`. Both P_Keys must name the same valid partition, and
    /// at least one side must be a full member.
    pub(super) fn is_member(&self, id: SideId, other: Pkey) -> bool {
        let (mine, other) = (self.pkey(id).get(), other.get());
        let partition = mine & 0x7fff;
        partition != 0 && other & 0x7fff == partition && (mine >= 0x8000 || other >= 0x8000)
    }
}
