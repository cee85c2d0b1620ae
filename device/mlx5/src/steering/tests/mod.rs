//! Tests the flow tables without a driver.

mod entries;
pub(crate) mod frames;
mod hostile;
mod parsing;
mod properties;
mod sequences;
pub(in crate::steering) mod steps;
mod tables;

use protocol::hca::mlx5::flow_entry::{Destination, FlowActions, FlowTag};
use protocol::hca::mlx5::flow_group::CreateFlowGroup;
use protocol::hca::mlx5::match_parameters::{MatchParameters, OuterHeaders};
use protocol::ids::Tirn;
use protocol::net::layers::Layers;
use smallvec::smallvec;

use super::evaluate::Verdict;
use super::rule::Fate;
use super::*;

fn tir(number: u32) -> Destination {
    Destination::Tir(Tirn::new(number))
}

fn forward(to: &[Destination]) -> Rule {
    Rule {
        tag: FlowTag::default(),
        fate: Fate::Forward(to.iter().copied().collect()),
        pop_vlan: false,
        push_vlan: None,
        counters: None,
    }
}

fn fate(fate: Fate) -> Rule {
    Rule { fate, ..forward(&[]) }
}

fn context(level: u8, log_size: u8, miss: Option<FlowTableId>) -> FlowTableContext {
    let action = if miss.is_some() { MissAction::Table } else { MissAction::Default };
    let miss_table = miss.unwrap_or_default();
    FlowTableContext { miss_action: action.code(), level, log_size, miss_table }
}

fn group(first: u32, last: u32, outer: OuterHeaders) -> Group {
    let mask = MatchParameters { outer, ..MatchParameters::default() };
    Group::new(&CreateFlowGroup { first, last, criteria: 1, mask, ..CreateFlowGroup::default() }).unwrap()
}

/// Mask and value of an entry that matches every frame.
const ANY: OuterHeaders = OuterHeaders {
    src_mac: protocol::ids::MacAddr([0; 6]),
    ether_type: 0,
    dst_mac: protocol::ids::MacAddr([0; 6]),
    vlan_priority: 0,
    vlan_drop_eligible: false,
    vlan_id: 0,
    ip_protocol: 0,
    dscp: 0,
    ecn: 0,
    customer_tag: false,
    service_tag: false,
    fragment: false,
    ip_version: 0,
    tcp_flags: 0,
    tcp_src_port: 0,
    tcp_dst_port: 0,
    unsupported: 0,
    ttl: 0,
    udp_src_port: 0,
    udp_dst_port: 0,
    src_ip: [0; 16],
    dst_ip: [0; 16],
};

/// Helpers that build flow tables. Each method panics if its operation fails.
trait Build {
    fn table(&mut self, level: u8, log_size: u8, miss: Option<FlowTableId>) -> FlowTableId;
    fn group(&mut self, table: FlowTableId, range: [u32; 2], mask: OuterHeaders) -> FlowGroupId;
    fn set(&mut self, place: Place, value: OuterHeaders, rule: Rule);

    /// Creates a table with a single entry, which matches every frame.
    fn catch_all(&mut self, level: u8, rule: Rule) -> FlowTableId;
}

impl Build for Steering {
    fn table(&mut self, level: u8, log_size: u8, miss: Option<FlowTableId>) -> FlowTableId {
        self.create_table(&context(level, log_size, miss)).unwrap()
    }

    fn group(&mut self, table: FlowTableId, [first, last]: [u32; 2], mask: OuterHeaders) -> FlowGroupId {
        self.create_group(table, self::group(first, last, mask)).unwrap()
    }

    fn set(&mut self, place: Place, value: OuterHeaders, rule: Rule) {
        self.set_entry(place, &Fields::from(&value), rule).unwrap();
    }

    fn catch_all(&mut self, level: u8, rule: Rule) -> FlowTableId {
        let table = Build::table(self, level, 0, None);
        let group = self.group(table, [0, 0], ANY);
        self.set(Place { table, group, index: 0 }, ANY, rule);
        table
    }
}

fn evaluate(steering: &Steering, frame: &[u8]) -> Verdict {
    steering.evaluate(frame, &Layers::parse(frame).unwrap())
}

/// Returns the numbers of the TIRs that receive a frame.
fn tirs(steering: &Steering, frame: &[u8]) -> Vec<u32> {
    evaluate(steering, frame).deliveries.iter().map(|delivery| delivery.tirn.get()).collect()
}
