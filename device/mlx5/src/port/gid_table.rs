//! The GID table of an Ethernet port.
//!
//! # Spec
//! mlx5 interface, section 15.3.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use card::net::RoceAddress;
use protocol::hca::mlx5::roce_address::{L3Type, RoceEntry, RoceVersion};

use crate::check::{Check, Rejection};
use crate::limits::ROCE_GIDS;

/// GID table. Each entry is an address at which the port receives packets. Software selects the source address of a
/// packet by specifying the index of an entry.
#[derive(Debug)]
pub struct GidTable([Option<RoceAddress>; ROCE_GIDS as usize]);

impl Default for GidTable {
    fn default() -> Self {
        Self([None; ROCE_GIDS as usize])
    }
}

impl GidTable {
    /// Returns the entry at an index, or `None` if the entry is empty or does not exist.
    pub fn get(&self, index: u16) -> Option<&RoceAddress> {
        self.0.get(usize::from(index))?.as_ref()
    }

    pub fn addresses(&self) -> impl Iterator<Item = RoceAddress> {
        self.0.iter().copied().flatten()
    }

    /// Sets an entry, or deletes it if the address is zero.
    ///
    /// # Errors
    /// Fails if the index is beyond the end of the table, or if the entry is not a valid RoCEv2 address.
    pub fn set(&mut self, index: u16, entry: &RoceEntry) -> Result<(), Rejection> {
        let place = self.0.get_mut(usize::from(index)).ok_or_else(|| Check::GidIndex.rejects(index))?;
        *place = if entry.is_empty() { None } else { Some(parse(entry)?) };
        Ok(())
    }

    /// Returns the entry at an index, in the layout of the query command. An empty entry is all zeros.
    ///
    /// # Errors
    /// Fails if the index is beyond the end of the table.
    pub fn query(&self, index: u16) -> Result<RoceEntry, Rejection> {
        let entry = self.0.get(usize::from(index)).ok_or_else(|| Check::GidIndex.rejects(index))?;
        Ok(entry.as_ref().map_or_else(RoceEntry::default, emit))
    }
}

fn parse(entry: &RoceEntry) -> Result<RoceAddress, Rejection> {
    if RoceVersion::from_code(entry.version) != Some(RoceVersion::V2) {
        return Err(Check::GidVersion.rejects(entry.version));
    }
    if entry.mac.is_multicast() || entry.mac.0 == [0; 6] {
        return Err(Check::GidMac.rejects(entry.mac.0[0]));
    }
    let ip = match L3Type::from_code(entry.l3_type) {
        Some(L3Type::Ipv4) => {
            let [.., a, b, c, d] = entry.gid;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        Some(L3Type::Ipv6) => IpAddr::V6(Ipv6Addr::from(entry.gid)),
        None => return Err(Check::GidType.rejects(entry.l3_type)),
    };
    Ok(RoceAddress { mac: entry.mac, ip, vlan: entry.vlan_valid.then_some(entry.vlan) })
}

fn emit(address: &RoceAddress) -> RoceEntry {
    let (l3_type, gid) = match address.ip {
        IpAddr::V4(ip) => (L3Type::Ipv4, ip.to_ipv6_mapped()),
        IpAddr::V6(ip) => (L3Type::Ipv6, ip),
    };
    RoceEntry {
        gid: gid.octets(),
        vlan_valid: address.vlan.is_some(),
        vlan: address.vlan.unwrap_or_default(),
        mac: address.mac,
        l3_type: l3_type.code(),
        version: RoceVersion::V2.code(),
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::MacAddr;

    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0x55, 0, 1]);

    fn ipv4() -> RoceEntry {
        let gid = Ipv4Addr::new(10, 8, 0, 1).to_ipv6_mapped().octets();
        RoceEntry { gid, vlan_valid: true, vlan: 5, mac: MAC, l3_type: 0, version: 2 }
    }

    #[test]
    fn query_returns_entry_that_was_set() {
        let mut gids = GidTable::default();
        let ipv6 = RoceEntry { gid: [0xfe; 16], mac: MAC, l3_type: 1, version: 2, ..RoceEntry::default() };
        gids.set(0, &ipv6).unwrap();
        gids.set(127, &ipv4()).unwrap();
        assert_eq!((gids.query(0), gids.query(127)), (Ok(ipv6), Ok(ipv4())));
        let address = RoceAddress { mac: MAC, ip: Ipv4Addr::new(10, 8, 0, 1).into(), vlan: Some(5) };
        assert_eq!(gids.get(127), Some(&address));
        assert_eq!(gids.addresses().count(), 2);
        // The driver leaves the version and the type of a deleted entry in place.
        gids.set(0, &RoceEntry { gid: [0; 16], mac: MacAddr::default(), ..ipv6 }).unwrap();
        assert_eq!((gids.query(0), gids.get(0)), (Ok(RoceEntry::default()), None));
    }

    #[test]
    fn rejects_invalid_entries() {
        let mut gids = GidTable::default();
        for (index, entry, check) in [
            (128, ipv4(), Check::GidIndex),
            (0, RoceEntry { version: 0, ..ipv4() }, Check::GidVersion),
            (0, RoceEntry { l3_type: 2, ..ipv4() }, Check::GidType),
            (0, RoceEntry { mac: MacAddr::BROADCAST, ..ipv4() }, Check::GidMac),
            (0, RoceEntry { mac: MacAddr::default(), ..ipv4() }, Check::GidMac),
        ] {
            assert_eq!(gids.set(index, &entry).unwrap_err().check, check);
        }
        assert_eq!(gids.query(128).unwrap_err().check, Check::GidIndex);
        assert_eq!(gids.addresses().count(), 0);
    }
}
