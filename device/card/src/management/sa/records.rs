//! Records of nodes, ports and links.

use protocol::ids::{Lid, MacAddr};
use protocol::mad::node::guid_of_mac;
use protocol::mad::port::PortInfo;
use protocol::mad::record::PORT_INFO;

use super::{Request, SaContext};
use crate::management::SM_LID;
use crate::management::subnet::switch_port;
use crate::management::subnet_switch;

/// Bit in the attribute modifier of PortInfoRecord: match only the capability bits that are set in the request (IBTA
/// volume 1, section 15.2.5.3).
const MATCH_CAPABILITY_BITS: u32 = 1 << 31;
/// Component mask bit of the capability mask in PortInfoRecord.
const CAPABILITIES: u64 = 1 << 7;
/// Number of GUIDs in a GUID block.
const GUIDS_PER_BLOCK: usize = 8;
/// Number of P_Keys in a P_Key block.
const PKEYS_PER_BLOCK: usize = 32;

pub(super) fn nodes(context: &SaContext<'_>) -> Vec<Vec<u8>> {
    let record = |lid: Lid, info: [u8; 40], description: [u8; 64]| {
        [&lid.get().to_be_bytes()[..], &[0; 2], &info, &description].concat()
    };
    let own = (context.port.lid(), context.port.node_info().emit(), context.port.description());
    let switch = (SM_LID, context.switch().node_info().emit(), subnet_switch::description());
    let others = context.subnet.nodes().map(|(lid, node)| (lid, node.info.emit(), node.description));
    [own]
        .into_iter()
        .chain(others)
        .chain([switch])
        .map(|(lid, info, description)| record(lid, info, description))
        .collect()
}

pub(super) fn ports(context: &SaContext<'_>) -> Vec<Vec<u8>> {
    let record = |(lid, port, info): (Lid, u8, PortInfo)| {
        [&lid.get().to_be_bytes()[..], &[port, 0], &info.emit()].concat()
    };
    let own = (context.port.lid(), 1, context.port.port_info(context.view));
    let others = context.subnet.nodes().filter_map(|(lid, node)| Some((lid, 1, node.port?)));
    let switch = context.switch();
    let of_switch = (0..=switch.ports()).filter_map(|port| Some((SM_LID, port, switch.port_info(port)?)));
    [own].into_iter().chain(others).chain(of_switch).map(record).collect()
}

/// If the request selects matching by capability bits, keeps only the records that have all requested bits set. Returns
/// the mask of the components that remain to be compared.
pub(super) fn filter_capabilities(all: &mut Vec<Vec<u8>>, request: &Request<'_>) -> u64 {
    let mask = request.sa.component_mask();
    if request.header.modifier & MATCH_CAPABILITY_BITS == 0 || mask & CAPABILITIES == 0 {
        return mask;
    }
    let at = PORT_INFO.len - PortInfo::LEN;
    let of = |record: &[u8]| {
        let info = record.get(at..).and_then(|info| info.first_chunk()).map(PortInfo::parse);
        info.map_or(0, |info| info.capabilities)
    };
    let wanted = of(&request.sa.data);
    all.retain(|record| of(record) & wanted == wanted);
    mask & !CAPABILITIES
}

pub(super) fn switches() -> Vec<Vec<u8>> {
    vec![[&SM_LID.get().to_be_bytes()[..], &[0; 2], &subnet_switch::info().emit()].concat()]
}

pub(super) fn subnet_managers(context: &SaContext<'_>) -> Vec<Vec<u8>> {
    let info = subnet_switch::sm_info(context.subnet).emit();
    vec![[&SM_LID.get().to_be_bytes()[..], &[0; 2], &info].concat()]
}

pub(super) fn links(context: &SaContext<'_>) -> Vec<Vec<u8>> {
    let record = |from: Lid, from_port: u8, to_port: u8, to: Lid| {
        [&from.get().to_be_bytes()[..], &[from_port, to_port], &to.get().to_be_bytes()].concat()
    };
    let attached =
        context.subnet.lids().filter(|lid| context.subnet.attached(switch_port(*lid)) == Some(*lid));
    attached
        .flat_map(|lid| {
            let port = switch_port(lid);
            [record(lid, 1, port, SM_LID), record(SM_LID, port, 1, lid)]
        })
        .collect()
}

/// Returns the GUID records. For HCAs other than this one, returns only the first block, because the rest are empty.
pub(super) fn guids(context: &SaContext<'_>) -> Vec<Vec<u8>> {
    let record = |lid: Lid, block: u8, guid: u64| {
        [&lid.get().to_be_bytes()[..], &[block, 0, 0, 0, 0, 0], &guid.to_be_bytes(), &[0; 56]].concat()
    };
    let blocks = u8::try_from(context.port.gids().div_ceil(GUIDS_PER_BLOCK)).unwrap_or(u8::MAX);
    let own = (0..blocks)
        .map(|block| record(context.port.lid(), block, if block == 0 { context.port.guid() } else { 0 }));
    let others = context.subnet.nodes().map(|(lid, node)| record(lid, 0, node.info.port_guid));
    let switch = record(SM_LID, 0, guid_of_mac(MacAddr::from_lid(SM_LID)));
    own.chain(others).chain([switch]).collect()
}

/// Returns the P_Key records of this HCA's own port. Other ports have no records, because their tables are not queried.
pub(super) fn pkeys(context: &SaContext<'_>) -> Vec<Vec<u8>> {
    let blocks = context.port.pkeys().chunks(PKEYS_PER_BLOCK);
    let record = |(number, block): (u16, &[protocol::ids::Pkey])| {
        let mut record =
            [&context.port.lid().get().to_be_bytes()[..], &number.to_be_bytes(), &[1, 0, 0, 0]].concat();
        record.extend(block.iter().flat_map(|pkey| pkey.get().to_be_bytes()));
        record
    };
    (0..).zip(blocks).map(record).collect()
}
