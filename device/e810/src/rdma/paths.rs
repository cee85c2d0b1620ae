//! The ARP table, and the address handles that specify the destinations of datagrams.
//!
//! # Spec
//! E810 interface, sections 10.3, 13.6 and 13.9.

use std::collections::BTreeMap;

use card::frontend::snapshot::HandleRow;
use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::index::{AhIndex, ArpIndex};
use protocol::hca::e810::rdma::path::{AddressHandleCommand, DestroyAddressHandle, ManageArp};
use protocol::ids::{FlowLabel, MacAddr, Pdn};
use protocol::net::layers::Tci;
use protocol::roce::IpAddrs;

use super::dispatch::{Done, Outcome};
use crate::limits::Limits;

#[derive(Debug)]
pub(in super::super) struct Paths {
    max_arp_entries: u32,
    max_handles: u32,
    /// ARP table, with at most `max_arp_entries` entries.
    arp: BTreeMap<ArpIndex, MacAddr>,
    /// Last MAC addresses of deleted ARP table entries, for the address handles that use them. No index is in both
    /// `arp` and `deleted`.
    deleted: BTreeMap<ArpIndex, MacAddr>,
    /// Address handles, at most `max_handles` entries.
    handles: BTreeMap<AhIndex, AddressHandle>,
}

/// Address vector for datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressHandle {
    pub(super) pd: Pdn,
    pub(super) source_mac: MacAddr,
    /// ARP table entry with the destination MAC address.
    pub(super) arp: ArpIndex,
    /// Source and destination IP addresses.
    pub(super) addresses: IpAddrs,
    /// VLAN tag to insert.
    pub(super) tag: Option<Tci>,
    pub(super) traffic_class: u8,
    pub(super) flow_label: FlowLabel,
    pub(super) hop_limit: u8,
    /// Whether the device loops datagrams back to itself in addition to sending them.
    pub(super) loopback: bool,
}

impl AddressHandle {
    fn new(command: &AddressHandleCommand) -> Self {
        Self {
            pd: Pdn::new(u32::from(command.pd_high) << 16 | u32::from(command.pd_low)),
            source_mac: command.source_mac.0,
            arp: command.arp,
            addresses: command.addresses(),
            tag: command.insert_vlan.then(|| Tci::from_bits(command.vlan_tag)),
            traffic_class: command.traffic_class,
            flow_label: command.flow_label,
            hop_limit: command.hop_limit,
            loopback: command.loopback,
        }
    }
}

impl Paths {
    pub(super) const fn new(limits: &Limits) -> Self {
        Self {
            max_arp_entries: limits.max_arp_entries.get(),
            max_handles: limits.max_ahs.get(),
            arp: BTreeMap::new(),
            deleted: BTreeMap::new(),
            handles: BTreeMap::new(),
        }
    }

    /// Returns whether the ARP table is full. irdma reserves entry 0, which does not count.
    pub(super) fn arp_table_is_full(&self) -> bool {
        let usable = self.max_arp_entries as usize - 1;
        self.arp.len() - usize::from(self.arp.contains_key(&ArpIndex::new(0))) >= usable
    }

    /// Returns the MAC address of an ARP table entry.
    pub(super) fn neighbour(&self, index: ArpIndex) -> Option<MacAddr> {
        self.arp.get(&index).copied()
    }

    pub(super) fn handle(&self, index: AhIndex) -> Option<&AddressHandle> {
        self.handles.get(&index)
    }

    /// Returns the destination MAC address of a handle. irdma deletes the ARP entry of a peer that the kernel's
    /// neighbour cache declares unreachable, and adds the peer at another index later. The handle, which irdma does not
    /// update, therefore keeps the last MAC address until the entry is reused, as connections do.
    pub(super) fn destination(&self, handle: &AddressHandle) -> Option<MacAddr> {
        self.neighbour(handle.arp).or_else(|| self.deleted.get(&handle.arp).copied())
    }

    /// Returns the number of ARP entries and address handles.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.arp.len(), self.handles.len())
    }

    /// Returns one row per address handle, starting at index `from`.
    pub(super) fn rows(&self, from: u32) -> impl Iterator<Item = (u32, HandleRow)> {
        self.handles.range(AhIndex::new(from)..).map(|(index, handle)| {
            let row = HandleRow {
                handle: index.get(),
                pd: handle.pd.get(),
                destination: handle.addresses.dst(),
                source: handle.addresses.src(),
                mac: self.destination(handle).map(|mac| mac.to_string()),
                tag: handle.tag.map(Tci::into_bits),
                traffic_class: handle.traffic_class,
                hop_limit: handle.hop_limit,
            };
            (index.get(), row)
        })
    }

    /// Executes "Manage ARP".
    ///
    /// # Errors
    /// Fails if the index is out of range, or the entry to delete does not exist.
    pub(super) fn manage_arp(&mut self, command: &ManageArp) -> Outcome {
        let index = command.index;
        if u32::from(index.get()) >= self.max_arp_entries {
            return Err(CqpError::invalid("ARP table entry", index.get().into()));
        }
        if command.valid {
            self.deleted.remove(&index);
            self.arp.insert(index, command.mac.0);
        } else {
            let unknown = CqpError::no_object("ARP table entry", index.get().into());
            let mac = self.arp.remove(&index).ok_or(unknown)?;
            self.deleted.insert(index, mac);
        }
        Ok(Done::Plain)
    }

    /// Executes "Create AH".
    ///
    /// # Errors
    /// Fails if the index is out of range, or the handle already exists.
    pub(super) fn create(&mut self, command: &AddressHandleCommand) -> Outcome {
        let index = command.index;
        if index.get() >= self.max_handles {
            return Err(CqpError::invalid("address handle", index.get().into()));
        }
        if self.handles.contains_key(&index) {
            return Err(CqpError::new(CqpErrorCode::Exists, "address handle", index.get().into()));
        }
        self.handles.insert(index, AddressHandle::new(command));
        Ok(Done::Plain)
    }

    /// Executes "Modify AH".
    ///
    /// # Errors
    /// Fails if the handle does not exist.
    pub(super) fn modify(&mut self, command: &AddressHandleCommand) -> Outcome {
        let handle = self.handles.get_mut(&command.index).ok_or(unknown(command.index))?;
        *handle = AddressHandle::new(command);
        Ok(Done::Plain)
    }

    /// Executes "Destroy AH".
    ///
    /// # Errors
    /// Fails if the handle does not exist.
    pub(super) fn destroy(&mut self, command: &DestroyAddressHandle) -> Outcome {
        self.handles.remove(&command.index).map(|_| Done::Plain).ok_or(unknown(command.index))
    }
}

fn unknown(index: AhIndex) -> CqpError {
    CqpError::no_object("address handle", index.get().into())
}
