//! Multicast groups and their members.
//!
//! # Spec
//! mlx5 interface, section 5.4.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use protocol::ids::Qpn;
use smallvec::SmallVec;

use super::check::{Check, Rejection};
use super::limits::MAX_GROUP_QPS;

/// Multicast groups, indexed by GID.
///
/// Holds at most 2^13 groups with 56 QPs each, which occupy 2 MiB.
#[derive(Debug)]
pub struct Groups {
    members: BTreeMap<[u8; 16], SmallVec<[Qpn; 8]>>,
    most: usize,
}

impl Groups {
    /// Creates an empty table for up to `2^log` groups.
    pub fn new(log: u8) -> Self {
        Self { members: BTreeMap::new(), most: 1_usize.checked_shl(log.into()).unwrap_or(0) }
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
        Ok(())
    }

    /// Removes a QP from all groups.
    pub fn forget(&mut self, qpn: Qpn) {
        self.members.retain(|_, members| {
            members.retain(|member| *member != qpn);
            !members.is_empty()
        });
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
