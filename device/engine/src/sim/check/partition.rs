//! Who is in which partition.
//!
//! # Spec
//! IBTA volume 1, sections 9.6.1.1.3 and 10.9.3.

use protocol::ids::Pkey;

use super::{Checker, Place};

impl Checker<'_> {
    /// A side's key was replaced. To the connected ones nobody talks any more.
    pub fn on_partition(&mut self, pair: usize, side: usize, pkey: Pkey) {
        self.pkeys[pair][side] = pkey;
        self.on_silence(pair, side);
    }

    pub(super) fn pkey(&self, place: Place) -> Pkey {
        self.pkeys[place.pair][place.side]
    }

    /// Whether `place` hears who has `other`: the same partition, that exists, and one of the two a full member.
    pub(super) fn is_member(&self, place: Place, other: Pkey) -> bool {
        let (mine, other) = (self.pkey(place).get(), other.get());
        let partition = mine & 0x7fff;
        partition != 0 && other & 0x7fff == partition && (mine >= 0x8000 || other >= 0x8000)
    }
}
