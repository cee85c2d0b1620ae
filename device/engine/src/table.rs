//! Table of QPs, indexed by number.

use protocol::ids::Qpn;

use crate::qp::Qp;

const LEAF_BITS: u32 = 8;
const LEAF: usize = 1 << LEAF_BITS;

type Leaf = Box<[Option<Box<Qp>>; LEAF]>;

/// Two-level table indexed by the low bits of QP numbers. The upper level is allocated at creation (8 bytes per 256
/// QPs). A leaf is allocated when its first QP is created.
pub(crate) struct Table {
    leaves: Vec<Option<Leaf>>,
    mask: u32,
}

impl Table {
    /// Creates a table indexed by the low `bits` bits of a QP number. `bits` is capped at 24.
    pub(crate) fn new(bits: u8) -> Self {
        let bits = u32::from(bits.min(24));
        let mut leaves = Vec::new();
        leaves.resize_with(1 << bits.saturating_sub(LEAF_BITS), || None);
        Self { leaves, mask: (1 << bits) - 1 }
    }

    pub(crate) fn index(&self, qpn: Qpn) -> u32 {
        qpn.get() & self.mask
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Qp> {
        let (leaf, slot) = split(index);
        self.leaves.get(leaf)?.as_ref()?.get(slot)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Qp> {
        let (leaf, slot) = split(index);
        self.leaves.get_mut(leaf)?.as_mut()?.get_mut(slot)?.as_deref_mut()
    }

    /// Inserts `qp` at `index`. Returns false if the index is in use or outside the table.
    pub(crate) fn insert(&mut self, index: u32, qp: Qp) -> bool {
        let (leaf, slot) = split(index);
        let Some(leaf) = self.leaves.get_mut(leaf) else { return false };
        let leaf = leaf.get_or_insert_with(|| Box::new([const { None }; LEAF]));
        match leaf.get_mut(slot) {
            Some(place @ None) => {
                *place = Some(Box::new(qp));
                true
            }
            _ => false,
        }
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Box<Qp>> {
        let (leaf, slot) = split(index);
        self.leaves.get_mut(leaf)?.as_mut()?.get_mut(slot)?.take()
    }
}

fn split(index: u32) -> (usize, usize) {
    ((index >> LEAF_BITS) as usize, (index as usize) & (LEAF - 1))
}
