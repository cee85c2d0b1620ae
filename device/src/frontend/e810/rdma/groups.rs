//! Multicast groups and the queue pairs in them.
//!
//! # Spec
//! E810 interface, sections 10.3 and 13.8.

use std::collections::BTreeMap;
use std::net::IpAddr;

use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::group::{GroupCommand, MAX_MEMBERS, Member};
use protocol::ids::{Iova, MacAddr, Qpn};
use protocol::net::ether::group_mac;
use smallvec::SmallVec;

use super::dispatch::Outcome;
use super::fpm;
use crate::frontend::e810::limits::Limits;
use crate::frontend::snapshot::GroupRow;
use crate::memory::GuestMemory;

/// Queue pairs of a group.
pub(super) type Members = SmallVec<[Qpn; MAX_MEMBERS]>;

/// Multicast groups.
#[derive(Debug)]
pub(in super::super) struct Groups {
    /// How many there can be, which bounds both tables.
    most: u32,
    groups: BTreeMap<u16, Group>,
    /// What groups that are not there were modified to: see [`modify`](Self::modify).
    modified: BTreeMap<u16, Group>,
}

#[derive(Debug)]
struct Group {
    address: IpAddr,
    /// MAC that the driver has programmed.
    mac: MacAddr,
    /// VLAN of its datagrams. Software that names none means all: it has one group for an address, whatever networks its
    /// members are in.
    vlan: Option<u16>,
    members: Members,
}

impl Groups {
    /// No groups yet.
    pub(super) const fn new(limits: &Limits) -> Self {
        Self { most: fpm::groups(limits), groups: BTreeMap::new(), modified: BTreeMap::new() }
    }

    /// Queue pairs that get what goes to an address in a VLAN, or outside of any.
    ///
    /// A group's MAC is the one that its driver has programmed: irdma makes that of an IPv6 group, and the one in the path
    /// of what it sends there, of the first four bytes of the address. Peers that make it of the last four (RFC 2464,
    /// section 7) are heard too.
    pub(super) fn members(&self, address: IpAddr, mac: MacAddr, vlan: Option<u16>) -> Members {
        let by_rule = group_mac(address) == Some(mac);
        let takes = |group: &&Group| {
            group.address == address
                && (by_rule || group.mac == mac)
                && (group.vlan.is_none() || group.vlan == vlan)
        };
        let groups = self.groups.values().filter(takes);
        groups.flat_map(|group| group.members.iter().copied()).collect()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.groups.len()
    }

    /// Groups from one on, as an operator sees them.
    pub(super) fn rows(&self, from: u32) -> impl Iterator<Item = (u32, GroupRow)> {
        let groups = u16::try_from(from).into_iter().flat_map(|from| self.groups.range(from..));
        groups.map(|(number, Group { address, vlan, members, .. })| {
            let members = members.iter().map(|qpn| qpn.get()).collect();
            let row = GroupRow { group: *number, address: *address, vlan: *vlan, members };
            (u32::from(*number), row)
        })
    }

    /// "Create multicast group". It has the members it was modified to before, if those it is created with are among them.
    ///
    /// # Errors
    /// There is no such group, or its members cannot be read.
    pub(super) fn create(&mut self, dma: &GuestMemory, command: &GroupCommand) -> Outcome {
        let created = self.read(dma, command)?;
        let modified = self.modified.remove(&command.group).filter(|modified| modified.succeeds(&created));
        self.groups.insert(command.group, modified.unwrap_or(created));
        Ok(0)
    }

    /// "Modify multicast group", which says all of it.
    ///
    /// Drivers decide under a lock whether a group is created, modified or destroyed, and ask after they let go of it. Of two
    /// members that join at once the second can come first, and of two that leave at once the first can come last: a group
    /// that is not there is modified without an error, and without effect until it is created.
    ///
    /// # Errors
    /// There is no such group, or its members cannot be read.
    pub(super) fn modify(&mut self, dma: &GuestMemory, command: &GroupCommand) -> Outcome {
        let modified = self.read(dma, command)?;
        let is_there = self.groups.contains_key(&command.group);
        let place = if is_there { &mut self.groups } else { &mut self.modified };
        place.insert(command.group, modified);
        Ok(0)
    }

    /// "Destroy multicast group".
    ///
    /// # Errors
    /// It is not there.
    pub(super) fn destroy(&mut self, command: &GroupCommand) -> Outcome {
        let unknown = CqpError::no_object("multicast group", command.group.into());
        self.groups.remove(&command.group).map(|_| 0).ok_or(unknown)
    }

    fn read(&self, dma: &GuestMemory, command: &GroupCommand) -> Result<Group, CqpError> {
        if u32::from(command.group) >= self.most {
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
    /// Whether it can be what another became when more joined.
    fn succeeds(&self, earlier: &Self) -> bool {
        let is_same = self.address == earlier.address && self.vlan == earlier.vlan;
        is_same && earlier.members.iter().all(|member| self.members.contains(member))
    }
}
