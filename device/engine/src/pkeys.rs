//! A port's P_Key table.

use protocol::ids::Pkey;

/// A port's P_Key table. QPs refer to its entries by index.
///
/// # Spec
/// IBTA volume 1, section 10.9.
#[derive(Clone, Debug)]
pub(crate) struct Pkeys {
    entries: Vec<Pkey>,
}

impl Default for Pkeys {
    /// Returns the power-on table, which holds only the default partition's P_Key (section 10.9.2).
    fn default() -> Self {
        Self { entries: vec![Pkey::DEFAULT] }
    }
}

impl Pkeys {
    pub(crate) fn set(&mut self, entries: &[Pkey]) {
        self.entries.clear();
        self.entries.extend_from_slice(entries);
    }

    /// Returns the entry at `index`. An index beyond the end of the table yields an invalid P_Key, which matches
    /// nothing.
    pub(crate) fn get(&self, index: u16) -> Pkey {
        self.entries.get(usize::from(index)).copied().unwrap_or_default()
    }

    /// Returns the index of the first entry that matches `other`.
    pub(crate) fn find(&self, other: Pkey) -> Option<u16> {
        let place = self.entries.iter().position(|entry| entry.matches(other))?;
        u16::try_from(place).ok()
    }
}
