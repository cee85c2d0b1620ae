//! Receive queue tables (RQT), which spread frames across RQs.
//!
//! # Spec
//! mlx5 interface, section 16.3.

use protocol::hca::mlx5::rqt::{RqNumbers, RqtContext};
use protocol::ids::Rqn;

use crate::check::{Check, Rejection};
use crate::limits::netdev::MAX_RQT_ENTRIES;
use crate::uses::{Object, Used};

/// An RQT with at least one entry.
#[derive(Debug, PartialEq, Eq)]
pub struct Rqt {
    max_entries: u16,
    queues: Box<[Rqn]>,
}

impl Rqt {
    /// Creates a table from its context and its list of entries.
    ///
    /// # Errors
    /// Fails if the table is too large, its number of entries is 0 or exceeds the table's maximum, or the list is too
    /// short.
    pub fn new(context: &RqtContext, list: RqNumbers<'_>) -> Result<Self, Rejection> {
        let max_entries = context.max_entries;
        if max_entries > MAX_RQT_ENTRIES {
            return Err(Check::RqtSize.rejects(max_entries));
        }
        Ok(Self { max_entries, queues: entries(context.entries, max_entries, list)? })
    }

    /// Returns a copy of the table with new entries.
    ///
    /// # Errors
    /// Fails if the number of entries is 0 or exceeds the table's maximum, or the list is too short.
    pub fn with_entries(&self, context: &RqtContext, list: RqNumbers<'_>) -> Result<Self, Rejection> {
        let max_entries = self.max_entries;
        Ok(Self { max_entries, queues: entries(context.entries, max_entries, list)? })
    }

    pub fn context(&self) -> RqtContext {
        // Cannot fail: the number of entries does not exceed `max_entries`.
        let entries = u16::try_from(self.queues.len()).unwrap_or(self.max_entries);
        RqtContext { max_entries: self.max_entries, entries }
    }

    pub fn queues(&self) -> &[Rqn] {
        &self.queues
    }

    pub fn uses(&self) -> Used {
        self.queues.iter().map(|rqn| Object::Rq(rqn.get())).collect()
    }

    /// Returns the RQ for frames with hash `hash`.
    pub fn select(&self, hash: u32) -> Option<Rqn> {
        let place = (hash as usize).checked_rem(self.queues.len())?;
        self.queues.get(place).copied()
    }
}

fn entries(count: u16, most: u16, list: RqNumbers<'_>) -> Result<Box<[Rqn]>, Rejection> {
    if count == 0 || count > most {
        return Err(Check::RqtEntries.rejects(count));
    }
    if usize::from(count) > list.len() {
        return Err(Check::RqtList.rejects(count));
    }
    Ok(list.iter().take(count.into()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: [u8; 12] = [0, 0, 0x40, 1, 0, 0, 0x40, 2, 0, 0, 0x40, 3];

    fn context(max_entries: u16, entries: u16) -> RqtContext {
        RqtContext { max_entries, entries }
    }

    #[test]
    fn hash_modulo_size_selects_entry() {
        let table = Rqt::new(&context(256, 3), RqNumbers::parse(&LIST)).unwrap();
        let of = |hash| table.select(hash).unwrap().get();
        assert_eq!([0, 1, 2, 3, u32::MAX].map(of), [0x4001, 0x4002, 0x4003, 0x4001, 0x4001]);
    }

    #[test]
    fn rejects_rqt_with_invalid_size_or_entry_list() {
        let list = RqNumbers::parse(&LIST);
        let of = |max, count| Rqt::new(&context(max, count), list).map(drop).unwrap_err().check;
        assert_eq!(of(257, 1), Check::RqtSize);
        assert_eq!([of(2, 3), of(256, 0)], [Check::RqtEntries; 2]);
        assert_eq!(of(256, 4), Check::RqtList);
        let table = Rqt::new(&context(2, 1), list).unwrap();
        assert_eq!(table.with_entries(&context(0, 2), list).unwrap().context(), context(2, 2));
        assert!(table.with_entries(&context(256, 3), list).is_err());
    }
}
