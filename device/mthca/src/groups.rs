//! The multicast table: hash buckets, each with a chain of entries.
//!
//! Software maintains the chains and may leave a copy of an entry in a slot that no longer belongs to any chain. To
//! find the members of a group, the device must therefore walk the chain of the group's bucket.
//!
//! # Spec
//! mthca interface, sections 3.5 (MGID_HASH) and 6.7.

use std::collections::BTreeMap;

use protocol::hca::mthca::mgm::{self, GID_LEN, Mgm};
use protocol::ids::Qpn;
use smallvec::SmallVec;

/// Maximum number of entries visited for one packet. A limit is needed because software can link a chain to itself.
/// Hash collisions among 2^12 groups are unlikely to produce chains anywhere near this long.
const MAX_CHAIN: usize = 256;

/// Entries of the multicast table.
///
/// The table has at most 2^16 entries, which occupy 16 MiB. INIT_HCA rejects a larger table.
#[derive(Debug, Default)]
pub struct Groups(BTreeMap<u32, Box<Mgm>>);

impl Groups {
    /// Returns the entry at an index, or an empty entry if none has been written there.
    pub fn read(&self, index: u32) -> &Mgm {
        self.0.get(&index).map_or(&Mgm::EMPTY, |entry| entry)
    }

    pub fn write(&mut self, index: u32, entry: Mgm) {
        if entry == Mgm::EMPTY {
            self.0.remove(&index);
        } else {
            self.0.insert(index, Box::new(entry));
        }
    }

    /// Returns the QPs attached to a group. `buckets` is the number of hash buckets.
    pub fn members(&self, buckets: u16, gid: &[u8; GID_LEN]) -> SmallVec<[Qpn; 8]> {
        let mut index = u32::from(mgm::hash(gid, buckets));
        for _ in 0..MAX_CHAIN {
            let entry = self.read(index);
            if entry.gid() == *gid {
                return entry.qpns().collect();
            }
            match entry.next() {
                Some(next) => index = next,
                None => break,
            }
        }
        SmallVec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GID: [u8; GID_LEN] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

    /// Another group in the same bucket. Its GID has the words of [`GID`] in a different order. The hash is the same
    /// because it is the XOR of the words.
    const SAME_BUCKET: [u8; GID_LEN] =
        [0xff, 0x12, 0xff, 0xff, 0x40, 0x1b, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

    fn entry(next: u32, gid: &[u8; GID_LEN], qpns: &[u32]) -> Mgm {
        let mut bytes = [0; Mgm::LEN];
        bytes[..4].copy_from_slice(&(next << 6).to_be_bytes());
        bytes[0x10..0x20].copy_from_slice(gid);
        for (place, qpn) in bytes[0x20..].chunks_exact_mut(4).zip(qpns) {
            place.copy_from_slice(&(1 << 31 | qpn).to_be_bytes());
        }
        Mgm::new(bytes)
    }

    fn members(groups: &Groups, gid: &[u8; GID_LEN]) -> Vec<u32> {
        groups.members(4096, gid).iter().map(|qpn| qpn.get()).collect()
    }

    #[test]
    fn members_are_found_along_bucket_chain() {
        let bucket = mgm::hash(&GID, 4096).into();
        assert_eq!(bucket, u32::from(mgm::hash(&SAME_BUCKET, 4096)));
        let mut groups = Groups::default();
        assert!(members(&groups, &GID).is_empty());
        groups.write(bucket, entry(4096, &SAME_BUCKET, &[0x16]));
        groups.write(4096, entry(0, &GID, &[0x14, 0x1_0015]));
        assert_eq!(members(&groups, &GID), [0x14, 0x1_0015]);
        assert_eq!(members(&groups, &SAME_BUCKET), [0x16]);
        // A detach moves the overflow entry into the bucket and leaves an unlinked copy.
        groups.write(bucket, entry(0, &GID, &[0x14]));
        assert_eq!(members(&groups, &GID), [0x14]);
        assert!(members(&groups, &SAME_BUCKET).is_empty());
        groups.write(bucket, Mgm::EMPTY);
        assert!(members(&groups, &GID).is_empty());
        assert_eq!(groups.read(4096).qpns().count(), 2);
    }

    #[test]
    fn circular_chain_is_abandoned() {
        let bucket = mgm::hash(&GID, 4096).into();
        let mut groups = Groups::default();
        groups.write(bucket, entry(4096, &SAME_BUCKET, &[0x16]));
        groups.write(4096, entry(4096, &SAME_BUCKET, &[0x16]));
        assert!(members(&groups, &GID).is_empty());
    }
}
