//! Table rows for the control socket, in ascending numerical order.

use card::frontend::snapshot::{NodeRow, ReceivedTag, RuleRow, SpreadBy, VsiRow};
use protocol::hca::e810::admin::scheduler::Teid;
use protocol::hca::e810::admin::vsi::{Strip, TableKind};

use super::PfConfig;
use crate::vsi::{Vsi, VsiNumber};

impl PfConfig {
    /// Returns the rows for VSIs, starting at number `from`.
    pub(crate) fn vsi_rows(&self, from: u64) -> impl Iterator<Item = (u16, VsiRow)> {
        let all = self.vsis.iter().filter(move |(number, _)| u64::from(number.get()) >= from);
        all.map(|(number, vsi)| (number.get(), vsi_row(number, vsi)))
    }

    /// Returns the rows for switch rules, starting at index `from`.
    pub(crate) fn rule_rows(&self, from: u64) -> impl Iterator<Item = (u16, RuleRow)> {
        self.switch.rows(u16::try_from(from).ok()).map(|row| (row.rule, row))
    }

    /// Returns the rows for scheduler elements, starting at TEID `from`.
    pub(crate) fn node_rows(&self, from: u64) -> impl Iterator<Item = (u32, NodeRow)> {
        self.scheduler.rows(u32::try_from(from).map_or(Teid::NONE, Teid::new)).map(|row| (row.teid, row))
    }
}

fn vsi_row(number: VsiNumber, vsi: &Vsi) -> VsiRow {
    let table = match vsi.options.table {
        TableKind::Vsi => Some(SpreadBy::Vsi),
        TableKind::Function => Some(SpreadBy::Function),
        TableKind::Global | TableKind::Reserved => None,
    };
    VsiRow {
        vsi: number.get(),
        first_queue: vsi.queues.receive_queue(0),
        queues: vsi.queues.len(),
        spread_by: table.filter(|_| vsi.rss.has_key()),
        received_tag: if vsi.vlan.strip == Strip::Keep { ReceivedTag::Kept } else { ReceivedTag::Stripped },
        port_tag: vsi.port_tag().map(u16::from),
        vlan_prune: vsi.switch.vlan_prune,
        source_prune: vsi.switch.source_prune,
        loopback: vsi.switch.allow_loopback,
        lan: vsi.switch.lan,
        anti_spoof: vsi.security.mac_anti_spoof,
        rdma_filter: vsi.has_rdma_filter(),
    }
}
