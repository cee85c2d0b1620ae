//! The partitions a port is in.

use protocol::ids::Pkey;

/// The P_Key table of a port. QPs name its entries by their place.
///
/// # Spec
/// IBTA volume 1, section 10.9.
#[derive(Clone, Debug)]
pub(crate) struct Pkeys {
    entries: Vec<Pkey>,
}

impl Default for Pkeys {
    /// As after power-on: the default partition (section 10.9.2).
    fn default() -> Self {
        Self { entries: vec![Pkey::DEFAULT] }
    }
}

impl Pkeys {
    pub(crate) fn set(&mut self, entries: &[Pkey]) {
        self.entries.clear();
        self.entries.extend_from_slice(entries);
    }

    /// The key at a place; an invalid one, which matches none, where there is no entry.
    pub(crate) fn get(&self, index: u16) -> Pkey {
        self.entries.get(usize::from(index)).copied().unwrap_or_default()
    }

    /// The first place whose key may talk to `other`.
    pub(crate) fn find(&self, other: Pkey) -> Option<u16> {
        let place = self.entries.iter().position(|entry| entry.matches(other))?;
        u16::try_from(place).ok()
    }
}
