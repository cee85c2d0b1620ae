//! A table that is indexed by guest-chosen numbers and uses memory only for existing entries.
//!
//! Software sizes its tables (QPs, CQs, keys) for up to 2^32 entries and may use any of them. Neither an array of all
//! entries nor one up to the highest index in use is feasible. Three fixed levels give constant-time look-ups. A leaf
//! is freed when its last entry is removed.

use thiserror::Error;

const LEAF_BITS: u32 = 6;
const NODE_BITS: u32 = 10;
const LEAF_LEN: usize = 1 << LEAF_BITS;
const NODE_LEN: usize = 1 << NODE_BITS;

/// Limits on the size of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub entries: usize,
    /// Maximum number of leaves. A leaf covers 64 consecutive indices and exists if at least one of them has an entry.
    /// The limit bounds the memory used by scattered entries: 64 slots per leaf and up to 8 KiB for the node above it.
    pub leaves: usize,
}

/// The insertion would exceed the table's [`Capacity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the resource table is full")]
pub struct TableFull;

#[derive(Debug)]
pub struct SparseTable<T> {
    nodes: Vec<Option<Box<Node<T>>>>,
    len: usize,
    leaves: usize,
    capacity: Capacity,
}

#[derive(Debug)]
struct Node<T> {
    used: usize,
    leaves: [Option<Box<Leaf<T>>>; NODE_LEN],
}

#[derive(Debug)]
struct Leaf<T> {
    used: usize,
    slots: [Option<T>; LEAF_LEN],
}

/// Position of an index in the three levels.
struct Path {
    root: usize,
    node: usize,
    leaf: usize,
}

impl Path {
    fn of(index: u32) -> Self {
        // usize is at least 32 bits wide on every host with vfio.
        let index = index as usize;
        Self {
            root: index >> (LEAF_BITS + NODE_BITS),
            node: (index >> LEAF_BITS) % NODE_LEN,
            leaf: index % LEAF_LEN,
        }
    }
}

impl<T> SparseTable<T> {
    pub fn new(capacity: Capacity) -> Self {
        Self { nodes: Vec::new(), len: 0, leaves: 0, capacity }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, index: u32) -> Option<&T> {
        let path = Path::of(index);
        let node = self.nodes.get(path.root)?.as_ref()?;
        node.leaves[path.node].as_ref()?.slots[path.leaf].as_ref()
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let path = Path::of(index);
        let node = self.nodes.get_mut(path.root)?.as_mut()?;
        node.leaves[path.node].as_mut()?.slots[path.leaf].as_mut()
    }

    /// Stores `value` at `index` and returns the previous entry.
    ///
    /// # Errors
    /// Fails if the entry is new and the table is full. The table is then unchanged.
    pub fn insert(&mut self, index: u32, value: T) -> Result<Option<T>, TableFull> {
        if let Some(old) = self.get_mut(index) {
            return Ok(Some(std::mem::replace(old, value)));
        }
        let path = Path::of(index);
        let new_leaf = !matches!(
            self.nodes.get(path.root),
            Some(Some(node)) if node.leaves[path.node].is_some()
        );
        if self.len >= self.capacity.entries || (new_leaf && self.leaves >= self.capacity.leaves) {
            return Err(TableFull);
        }
        if self.nodes.len() <= path.root {
            // The vector has at most 2^16 pointers, since indices are 32 bits wide and each node covers 2^16 of them.
            self.nodes.resize_with(path.root + 1, || None);
        }
        let node = self.nodes[path.root].get_or_insert_with(Box::default);
        let leaf = node.leaves[path.node].get_or_insert_with(Box::default);
        leaf.slots[path.leaf] = Some(value);
        leaf.used += 1;
        node.used += usize::from(new_leaf);
        self.leaves += usize::from(new_leaf);
        self.len += 1;
        Ok(None)
    }

    /// Removes the entry at `index` and returns it.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let path = Path::of(index);
        let node_slot = self.nodes.get_mut(path.root)?;
        let node = node_slot.as_mut()?;
        let leaf_slot = &mut node.leaves[path.node];
        let leaf = leaf_slot.as_mut()?;
        let value = leaf.slots[path.leaf].take()?;
        self.len -= 1;
        leaf.used -= 1;
        if leaf.used == 0 {
            *leaf_slot = None;
            self.leaves -= 1;
            node.used -= 1;
            if node.used == 0 {
                *node_slot = None;
            }
        }
        Some(value)
    }

    /// Drops every entry from `first` to `last`, inclusive. The running time depends on the number of existing entries
    /// and leaves, not on the width of the range.
    pub fn remove_range(&mut self, first: u32, last: u32) {
        let indices: Vec<u32> =
            self.iter_from(first).map(|(index, _)| index).take_while(|index| *index <= last).collect();
        for index in indices {
            self.remove(index);
        }
    }

    /// Returns all entries in ascending order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.iter_from(0)
    }

    pub fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    /// Returns the entries at index `first` and above, in ascending order of their indices. The running time depends on
    /// the number of existing entries and leaves.
    pub fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &T)> {
        let start = Path::of(first);
        self.nodes
            .iter()
            .enumerate()
            .skip(start.root)
            .filter_map(|(root, node)| Some((root, node.as_ref()?)))
            .flat_map(move |(root, node)| {
                let passed = if root == start.root { start.node } else { 0 };
                let leaves = node.leaves.iter().enumerate().skip(passed);
                leaves.filter_map(|(mid, leaf)| Some((mid, leaf.as_ref()?))).flat_map(move |(mid, leaf)| {
                    let slots = leaf.slots.iter().enumerate();
                    slots.filter_map(move |(slot, value)| Some((index_of(root, mid, slot), value.as_ref()?)))
                })
            })
            .skip_while(move |(index, _)| *index < first)
    }
}

fn index_of(root: usize, node: usize, leaf: usize) -> u32 {
    let index = (root << (LEAF_BITS + NODE_BITS)) | (node << LEAF_BITS) | leaf;
    u32::try_from(index).expect("the parts are those of a u32 index")
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Self { used: 0, leaves: [const { None }; NODE_LEN] }
    }
}

impl<T> Default for Leaf<T> {
    fn default() -> Self {
        Self { used: 0, slots: [const { None }; LEAF_LEN] }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const ROOMY: Capacity = Capacity { entries: 1 << 20, leaves: 1 << 20 };

    #[test]
    fn whole_index_range_is_usable() {
        let mut table = SparseTable::new(ROOMY);
        for index in [0, 63, 64, 0xffff, 0x1_0000, u32::MAX] {
            assert_eq!(table.insert(index, index), Ok(None));
        }
        assert_eq!(table.get(u32::MAX), Some(&u32::MAX));
        assert_eq!(table.get(1), None);
        let indices: Vec<u32> = table.iter().map(|(index, _)| index).collect();
        assert_eq!(indices, [0, 63, 64, 0xffff, 0x1_0000, u32::MAX]);
    }

    #[test]
    fn removal_frees_capacity() {
        let mut table = SparseTable::new(Capacity { entries: 3, leaves: 2 });
        table.insert(0, ()).unwrap();
        table.insert(1000, ()).unwrap();
        assert_eq!(table.insert(2000, ()), Err(TableFull), "the table has room for only two leaves");
        table.insert(1, ()).unwrap();
        assert_eq!(table.insert(2, ()), Err(TableFull), "the table has room for only three entries");
        table.remove(1000).unwrap();
        assert_eq!(table.insert(2000, ()), Ok(None));
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn sparse_table_behaves_like_ordered_map() {
        let mut table = SparseTable::new(ROOMY);
        let mut model = BTreeMap::new();
        let mut state = 1u32;
        for step in 0..20_000 {
            state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
            let index = (state >> 8) % 5000 * 77;
            match step % 4 {
                0 => assert_eq!(table.remove(index), model.remove(&index)),
                1 if step % 64 == 1 => {
                    table.remove_range(index, index + 300);
                    model.retain(|key, _| !(index..=index + 300).contains(key));
                }
                _ => assert_eq!(table.insert(index, step).unwrap(), model.insert(index, step)),
            }
        }
        assert_eq!(table.len(), model.len());
        assert!(table.iter().eq(model.iter().map(|(key, value)| (*key, value))));
    }
}
