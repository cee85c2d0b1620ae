//! Multicast groups and their member queue pairs.
//!
//! # Spec
//! E810 interface, sections 10.3 and 13.8.

use std::collections::BTreeMap;
use std::net::IpAddr;

use card::frontend::snapshot::GroupRow;
use card::memory::GuestMemory;
use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::group::{GroupCommand, MAX_MEMBERS, Member};
use protocol::ids::{Iova, MacAddr, Qpn};
use protocol::net::ether::group_mac;
use smallvec::SmallVec;

use super::dispatch::{Done, Outcome};
use super::fpm;
use crate::limits::Limits;

pub(super) type Members = SmallVec<[Qpn; MAX_MEMBERS]>;

#[derive(Debug)]
pub(in super::super) struct Groups {
    /// Group indices are below this number. No index is in both `groups` and `modified`, so the number also limits the
    /// total size of the two tables.
    max_groups: u32,
    groups: BTreeMap<u16, Group>,
    /// Contents of groups that were modified before their creation; see [`modify`](Self::modify).
    modified: BTreeMap<u16, Group>,
}

#[derive(Debug)]
struct Group {
    address: IpAddr,
    /// MAC address programmed by the driver.
    mac: MacAddr,
    /// VLAN of the group, or `None` for any VLAN. With `None`, members in all VLANs share the group.
    vlan: Option<u16>,
    members: Members,
}

impl Groups {
    /// Creates an empty table.
    pub(super) const fn new(limits: &Limits) -> Self {
        Self { max_groups: fpm::groups(limits), groups: BTreeMap::new(), modified: BTreeMap::new() }
    }

    /// Returns the members that receive datagrams to `address` in `vlan`. `vlan` is `None` for untagged
    /// datagrams.
    ///
    /// A group accepts datagrams to the MAC address that the driver programmed. For IPv6, irdma derives this address
    /// from the first four bytes of the group's IP address, and sends datagrams to the same address. RFC 2464, section
    /// 7, uses the last four bytes instead, so the MAC address derived by that rule is accepted too.
    pub(super) fn members(&self, address: IpAddr, mac: MacAddr, vlan: Option<u16>) -> Members {
        let by_rule = group_mac(address) == Some(mac);
        let accepts = |group: &&Group| {
            group.address == address
                && (by_rule || group.mac == mac)
                && (group.vlan.is_none() || group.vlan == vlan)
        };
        let groups = self.groups.values().filter(accepts);
        groups.flat_map(|group| group.members.iter().copied()).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.groups.len()
    }

    /// Returns snapshot rows for the groups, starting at index `from`.
    pub(super) fn rows(&self, from: u32) -> impl Iterator<Item = (u32, GroupRow)> {
        let groups = u16::try_from(from).into_iter().flat_map(|from| self.groups.range(from..));
        groups.map(|(number, Group { address, vlan, members, .. })| {
            let members = members.iter().map(|qpn| qpn.get()).collect();
            let row = GroupRow { group: *number, address: *address, vlan: *vlan, members };
            (u32::from(*number), row)
        })
    }

    /// Executes "Create multicast group". If an earlier modify operation has stored a group that includes all of this
    /// command's members, that group is used instead.
    ///
    /// # Errors
    /// Fails if the index is out of range, or the member list is not in mapped memory.
    pub(super) fn create(&mut self, dma: &GuestMemory, command: &GroupCommand) -> Outcome {
        let created = self.read(dma, command)?;
        let modified = self.modified.remove(&command.group).filter(|modified| modified.extends(&created));
        self.groups.insert(command.group, modified.unwrap_or(created));
        Ok(Done::Plain)
    }

    /// Executes "Modify multicast group", which replaces the whole group.
    ///
    /// irdma decides under a lock whether to create, modify or destroy a group, but issues the operation after
    /// releasing the lock. If two members join concurrently, the modify operation can precede the create operation; if
    /// they leave concurrently, it can follow the destroy operation. For this reason, modifying a group that does not
    /// exist succeeds, and the modification takes effect when the group is created.
    ///
    /// # Errors
    /// Fails if the index is out of range, or the member list is not in mapped memory.
    pub(super) fn modify(&mut self, dma: &GuestMemory, command: &GroupCommand) -> Outcome {
        let modified = self.read(dma, command)?;
        let exists = self.groups.contains_key(&command.group);
        let place = if exists { &mut self.groups } else { &mut self.modified };
        place.insert(command.group, modified);
        Ok(Done::Plain)
    }

    /// Executes "Destroy multicast group".
    ///
    /// # Errors
    /// Fails if the group does not exist.
    pub(super) fn destroy(&mut self, command: &GroupCommand) -> Outcome {
        let unknown = CqpError::no_object("multicast group", command.group.into());
        self.groups.remove(&command.group).map(|_| Done::Plain).ok_or(unknown)
    }

    fn read(&self, dma: &GuestMemory, command: &GroupCommand) -> Result<Group, CqpError> {
        if u32::from(command.group) >= self.max_groups {
            return Err(CqpError::invalid("multicast group", command.group.into()));
        }
        let mut places = [[0; Member::LEN]; MAX_MEMBERS];
        let unreachable =
            |_| CqpError::new(CqpErrorCode::Unreachable, "multicast member list at", command.members.get());
        dma.read(Iova::new(command.members.get()), places.as_flattened_mut()).map_err(unreachable)?;
        let members = places.iter().map(Member::parse).filter(|member| member.valid);
        Ok(Group {
            address: command.address.address(command.ipv4),
            mac: command.mac.0,
            vlan: command.vlan_valid.then_some(command.vlan),
            members: members.map(|member| member.qpn).collect(),
        })
    }
}

impl Group {
    /// Returns whether this group has the same address and VLAN as `earlier` and includes all its members.
    fn extends(&self, earlier: &Self) -> bool {
        let is_same = self.address == earlier.address && self.vlan == earlier.vlan;
        is_same && earlier.members.iter().all(|member| self.members.contains(member))
    }
}
