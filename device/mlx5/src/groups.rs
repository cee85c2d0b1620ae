//! Multicast groups and their members.
//!
//! # Spec
//! mlx5 interface, section 5.4.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use protocol::ids::Qpn;
use smallvec::SmallVec;

use super::check::{Check, Rejection};
use super::limits::MAX_GROUP_QPS;

/// Multicast groups, indexed by GID.
///
/// Holds at most 2^13 groups with 56 QPs each. They occupy 2 MiB, and the index of memberships occupies 18 MiB.
#[derive(Debug)]
pub struct Groups {
    members: BTreeMap<[u8; 16], SmallVec<[Qpn; 8]>>,
    /// All memberships, indexed by QP. A user context can destroy 2^17 QPs at once, so [`Groups::forget`] must not
    /// search all groups for each of them.
    joined: BTreeSet<(Qpn, [u8; 16])>,
    most: usize,
}

impl Groups {
    /// Creates an empty table for up to `2^log` groups.
    pub fn new(log: u8) -> Self {
        Self {
            members: BTreeMap::new(),
            joined: BTreeSet::new(),
            most: 1_usize.checked_shl(log.into()).unwrap_or(0),
        }
    }

    /// Adds a QP to a group. Adding a member again has no effect.
    ///
    /// # Errors
    /// Fails if the GID is not a multicast GID or if a limit is reached.
    pub fn attach(&mut self, gid: [u8; 16], qpn: Qpn) -> Result<(), Rejection> {
        // On Ethernet, a group can have an IPv4 address, stored as an IPv4-mapped GID.
        if !IpAddr::from(Ipv6Addr::from(gid)).to_canonical().is_multicast() {
            return Err(Check::GroupGid.rejects(gid[0]));
        }
        if !self.members.contains_key(&gid) && self.members.len() >= self.most {
            return Err(Check::GroupLimit.rejects(qpn.get()));
        }
        let members = self.members.entry(gid).or_default();
        if members.contains(&qpn) {
            return Ok(());
        }
        if members.len() >= MAX_GROUP_QPS {
            return Err(Check::GroupFull.rejects(qpn.get()));
        }
        members.push(qpn);
        self.joined.insert((qpn, gid));
        Ok(())
    }

    /// Removes a QP from a group.
    ///
    /// # Errors
    /// Fails if the QP is not a member.
    pub fn detach(&mut self, gid: &[u8; 16], qpn: Qpn) -> Result<(), Rejection> {
        let absent = Check::GroupMember.rejects(qpn.get());
        let members = self.members.get_mut(gid).ok_or(absent)?;
        let place = members.iter().position(|member| *member == qpn).ok_or(absent)?;
        members.remove(place);
        if members.is_empty() {
            self.members.remove(gid);
        }
        self.joined.remove(&(qpn, *gid));
        Ok(())
    }

    /// Removes a QP from all groups.
    pub fn forget(&mut self, qpn: Qpn) {
        let all = (qpn, [0; 16])..=(qpn, [0xff; 16]);
        let gids: Vec<[u8; 16]> = self.joined.range(all).map(|(_, gid)| *gid).collect();
        for gid in gids {
            // Cannot fail: the index lists only groups that have the QP as a member.
            let _ = self.detach(&gid, qpn);
        }
    }

    pub fn members(&self, gid: &[u8; 16]) -> SmallVec<[Qpn; 8]> {
        self.members.get(gid).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GID: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

    #[test]
    fn attaching_qp_twice_adds_one_member() {
        let mut groups = Groups::new(13);
        for qpn in [0x80, 0x81, 0x80] {
            groups.attach(GID, Qpn::new(qpn)).unwrap();
        }
        assert_eq!(groups.members(&GID)[..], [Qpn::new(0x80), Qpn::new(0x81)]);
        groups.detach(&GID, Qpn::new(0x80)).unwrap();
        assert_eq!(groups.detach(&GID, Qpn::new(0x80)).unwrap_err().check, Check::GroupMember);
        groups.forget(Qpn::new(0x81));
        assert!(groups.members(&GID).is_empty());
        assert_eq!(groups.detach(&GID, Qpn::new(0x81)).unwrap_err().check, Check::GroupMember);
    }

    #[test]
    fn destroyed_qp_leaves_all_its_groups() {
        let mut groups = Groups::new(13);
        let gids = [0, 1, 2].map(|last| [&GID[..15], &[last]].concat().try_into().unwrap());
        for (gid, qpn) in [(gids[0], 0x80), (gids[1], 0x80), (gids[1], 0x81), (gids[2], 0x80)] {
            groups.attach(gid, Qpn::new(qpn)).unwrap();
        }
        groups.detach(&gids[2], Qpn::new(0x80)).unwrap();
        groups.forget(Qpn::new(0x80));
        assert_eq!(gids.map(|gid| groups.members(&gid).len()), [0, 1, 0]);
        groups.forget(Qpn::new(0x81));
        assert!(groups.members.is_empty() && groups.joined.is_empty());
    }

    #[test]
    fn groups_and_members_are_bounded() {
        let mut groups = Groups::new(0);
        assert_eq!(groups.attach([0xfe; 16], Qpn::new(1)).unwrap_err().check, Check::GroupGid);
        for qpn in 0..56 {
            groups.attach(GID, Qpn::new(qpn)).unwrap();
        }
        assert_eq!(groups.attach(GID, Qpn::new(56)).unwrap_err().check, Check::GroupFull);
        assert_eq!(groups.attach([0xff; 16], Qpn::new(1)).unwrap_err().check, Check::GroupLimit);
    }
}
