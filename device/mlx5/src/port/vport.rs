//! The NIC vport context of an Ethernet port.
//!
//! The device stores the address lists and promiscuous modes, but leaves filtering to the flow tables.
//!
//! # Spec
//! mlx5 interface, section 15.2.

use card::identity::Identity;
use protocol::hca::mlx5::nic_vport::{
    LIST_ENTRY_LEN, ListType, ModifyNicVport, NicVportContext, VportFields,
};
use protocol::ids::{Lid, MacAddr};

use crate::check::{Check, Rejection};
use crate::limits::MAX_LIST;

type ListEntry = [u8; LIST_ENTRY_LEN];

/// NIC vport context and its lists, which have at most 128 eight-byte entries.
#[derive(Debug)]
pub struct NicVport {
    /// Context, without the fields that describe a list.
    context: NicVportContext,
    unicast: Vec<ListEntry>,
    multicast: Vec<ListEntry>,
    vlans: Vec<ListEntry>,
}

impl NicVport {
    /// Creates the power-on context of a port with MAC `mac`.
    pub fn new(mac: MacAddr) -> Self {
        let guid = Identity { mac, ..Identity::from_lid(Lid::default()) }.guid();
        let context = NicVportContext {
            min_inline_mode: 1,
            mtu: 1500,
            system_guid: guid,
            port_guid: guid,
            node_guid: guid,
            permanent_mac: mac,
            ..NicVportContext::default()
        };
        Self { context, unicast: Vec::new(), multicast: Vec::new(), vlans: Vec::new() }
    }

    pub const fn context(&self) -> &NicVportContext {
        &self.context
    }

    /// Returns whether frames from the network device also pass through its own receive tables.
    pub const fn loops_back(&self, is_multicast: bool) -> bool {
        match is_multicast {
            true => !self.context.disable_multicast_loopback,
            false => !self.context.disable_unicast_loopback,
        }
    }

    /// Returns the MAC of the network device, or `None` if the driver has not set one. The MAC is the first entry of
    /// the unicast list.
    pub fn mac(&self) -> Option<MacAddr> {
        let [_, _, mac @ ..] = self.unicast.first()?;
        Some(MacAddr(*mac)).filter(|mac| !mac.is_multicast() && *mac != MacAddr::default())
    }

    /// Returns the list of type `list_type`, and the context with the list's type and length filled in.
    ///
    /// # Errors
    /// Fails if the list type is unknown.
    pub fn query(&self, list_type: u8) -> Result<(NicVportContext, &[u8]), Rejection> {
        let list = match ListType::from_code(list_type) {
            Some(ListType::Unicast) => &self.unicast,
            Some(ListType::Multicast) => &self.multicast,
            Some(ListType::Vlan) => &self.vlans,
            None => return Err(Check::VportList.rejects(list_type)),
        };
        let list_len = u16::try_from(list.len()).unwrap_or(u16::MAX);
        Ok((NicVportContext { list_type, list_len, ..self.context }, list.as_flattened()))
    }

    /// Changes the selected fields.
    ///
    /// # Errors
    /// Fails if the list type is unknown, or the list is too long or incomplete.
    pub fn modify(&mut self, modify: &ModifyNicVport, list: &[u8]) -> Result<(), Rejection> {
        let fields = VportFields::from_bits_retain(modify.fields);
        let (old, new) = (self.context, modify.context);
        if fields.contains(VportFields::LIST) {
            self.set_list(&new, list)?;
        }
        let select = |field| fields.contains(field);
        let pick = |field, new, old| if select(field) { new } else { old };
        let promiscuous = select(VportFields::PROMISCUOUS);
        self.context = NicVportContext {
            roce: pick(VportFields::ROCE, new.roce, old.roce),
            disable_multicast_loopback: pick(
                VportFields::MULTICAST_LOOPBACK,
                new.disable_multicast_loopback,
                old.disable_multicast_loopback,
            ),
            disable_unicast_loopback: pick(
                VportFields::UNICAST_LOOPBACK,
                new.disable_unicast_loopback,
                old.disable_unicast_loopback,
            ),
            promiscuous_unicast: if promiscuous { new.promiscuous_unicast } else { old.promiscuous_unicast },
            promiscuous_multicast: pick(
                VportFields::PROMISCUOUS,
                new.promiscuous_multicast,
                old.promiscuous_multicast,
            ),
            promiscuous_all: if promiscuous { new.promiscuous_all } else { old.promiscuous_all },
            min_inline_mode: if select(VportFields::MIN_INLINE_MODE) {
                new.min_inline_mode
            } else {
                old.min_inline_mode
            },
            event_arming: if select(VportFields::EVENT_ARMING) { new.event_arming } else { old.event_arming },
            mtu: if select(VportFields::MTU) { new.mtu } else { old.mtu },
            port_guid: if select(VportFields::PORT_GUID) { new.port_guid } else { old.port_guid },
            node_guid: if select(VportFields::NODE_GUID) { new.node_guid } else { old.node_guid },
            permanent_mac: if select(VportFields::PERMANENT_MAC) {
                new.permanent_mac
            } else {
                old.permanent_mac
            },
            ..old
        };
        Ok(())
    }

    fn set_list(&mut self, new: &NicVportContext, list: &[u8]) -> Result<(), Rejection> {
        let place = match ListType::from_code(new.list_type) {
            Some(ListType::Unicast) => &mut self.unicast,
            Some(ListType::Multicast) => &mut self.multicast,
            Some(ListType::Vlan) => &mut self.vlans,
            None => return Err(Check::VportList.rejects(new.list_type)),
        };
        if new.list_len > MAX_LIST {
            return Err(Check::VportListLimit.rejects(new.list_len));
        }
        let entries = list.as_chunks().0.get(..usize::from(new.list_len));
        *place = entries.ok_or_else(|| Check::VportListLength.rejects(list.len() as u64))?.to_vec();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0x55, 0, 1]);

    fn modify(fields: VportFields, context: NicVportContext) -> ModifyNicVport {
        ModifyNicVport { fields: fields.bits(), context }
    }

    #[test]
    fn only_selected_fields_change() {
        let mut vport = NicVport::new(MAC);
        let before = *vport.context();
        let all = NicVportContext { mtu: 9022, roce: true, promiscuous_all: true, ..before };
        vport.modify(&modify(VportFields::empty(), all), &[]).unwrap();
        assert_eq!(*vport.context(), before);
        vport.modify(&modify(VportFields::ROCE, all), &[]).unwrap();
        assert_eq!(*vport.context(), NicVportContext { roce: true, ..before });
        vport.modify(&modify(VportFields::MTU | VportFields::PROMISCUOUS, all), &[]).unwrap();
        assert_eq!(*vport.context(), all);
    }

    #[test]
    fn lists_are_stored_and_bounded() {
        let mut vport = NicVport::new(MAC);
        let list = |list_type, list_len| {
            modify(VportFields::LIST, NicVportContext { list_type, list_len, ..NicVportContext::default() })
        };
        assert_eq!(vport.mac(), None);
        vport.modify(&list(0, 1), &[0, 0, 2, 0, 0, 0x55, 0, 7]).unwrap();
        assert_eq!(vport.mac(), Some(MacAddr([2, 0, 0, 0x55, 0, 7])));
        vport.modify(&list(2, 2), &[0; 24]).unwrap();
        let (context, entries) = vport.query(2).unwrap();
        assert_eq!((context.list_type, context.list_len, entries.len()), (2, 2, 16));
        assert_eq!(vport.query(1).unwrap().1.len(), 0);
        vport.modify(&list(1, 128), &[0; 1024]).unwrap();
        for (wrong, bytes, check) in [
            (list(3, 0), 0, Check::VportList),
            (list(1, 129), 1032, Check::VportListLimit),
            (list(1, 2), 15, Check::VportListLength),
        ] {
            assert_eq!(vport.modify(&wrong, &vec![0; bytes]).unwrap_err().check, check);
        }
        assert_eq!(vport.query(3).unwrap_err().check, Check::VportList);
    }
}
