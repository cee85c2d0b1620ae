//! Flow table evaluation for a frame.
//!
//! # Spec
//! mlx5 interface, section 16.4.

use protocol::hca::mlx5::flow_entry::{Destination, FlowTag};
use protocol::ids::{FlowCounterId, FlowTableId, Tirn};
use protocol::net::layers::Layers;
use smallvec::SmallVec;

use super::Steering;
use super::fields::Fields;
use super::rule::Fate;
use super::vlan::VlanEdits;
use crate::limits::flow::{MAX_DELIVERIES, MAX_HOPS};

/// Result of evaluating the flow tables for a frame. A frame without deliveries is dropped.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Verdict {
    /// At most [`MAX_DELIVERIES`]. Further deliveries are dropped.
    pub deliveries: SmallVec<[Delivery; 1]>,
    /// Counters of all entries that the frame matched.
    pub counters: SmallVec<[FlowCounterId; 4]>,
}

/// A copy of the frame for a TIR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub tirn: Tirn,
    /// Tag of the last matching entry whose tag is not 0. The CQE reports it.
    pub tag: FlowTag,
    /// VLAN edits to apply to this copy.
    pub edits: VlanEdits,
}

/// A copy of the frame that enters a table.
#[derive(Clone)]
struct Branch {
    table: FlowTableId,
    fields: Fields,
    tag: FlowTag,
    edits: VlanEdits,
}

impl Steering {
    /// Evaluates the tables for a frame, starting at the root. `layers` must describe the same frame.
    ///
    /// The evaluation ends after [`MAX_HOPS`] tables. Table levels rule out loops, but not long chains.
    pub fn evaluate(&self, frame: &[u8], layers: &Layers) -> Verdict {
        let mut verdict = Verdict::default();
        let mut pending: SmallVec<[Branch; 1]> = SmallVec::new();
        if let Some(table) = self.root {
            let fields = Fields::of(frame, layers);
            pending.push(Branch { table, fields, tag: FlowTag::default(), edits: VlanEdits::default() });
        }
        for _ in 0..MAX_HOPS {
            let Some(branch) = pending.pop() else { break };
            self.visit(branch, frame, &mut pending, &mut verdict);
        }
        verdict
    }

    fn visit(
        &self,
        mut branch: Branch,
        frame: &[u8],
        pending: &mut SmallVec<[Branch; 1]>,
        verdict: &mut Verdict,
    ) {
        let Ok(table) = self.table(branch.table) else { return };
        let Some(rule) = table.find(&branch.fields) else {
            pending.extend(table.miss.map(|table| Branch { table, ..branch }));
            return;
        };
        verdict.counters.extend(rule.counters().iter().copied());
        let Fate::Forward(destinations) = &rule.fate else { return };
        // Section 16.4: tag 0 means none. The driver tags frames in its table for `tc` and forwards them to tables
        // whose entries have no tags.
        if rule.tag != FlowTag::default() {
            branch.tag = rule.tag;
        }
        if rule.pop_vlan || rule.push_vlan.is_some() {
            branch.edits.extend(rule.vlan_edits());
            let edited = branch.edits.apply(frame);
            let Ok(layers) = Layers::parse(&edited) else { return };
            branch.fields = Fields::of(&edited, &layers);
        }
        pending.extend(rule.tables().map(|table| Branch { table, ..branch.clone() }));
        for destination in destinations {
            if let Destination::Tir(tirn) = *destination
                && verdict.deliveries.len() < MAX_DELIVERIES
            {
                let edits = branch.edits.clone();
                verdict.deliveries.push(Delivery { tirn, tag: branch.tag, edits });
            }
        }
    }

    /// Adds a frame of `len` bytes to the counters of its verdict.
    pub fn count(&mut self, verdict: &Verdict, len: usize) {
        for counter in &verdict.counters {
            if let Some(counter) = self.counters.get_mut(counter.get()) {
                counter.traffic.packets = counter.traffic.packets.wrapping_add(1);
                counter.traffic.bytes = counter.traffic.bytes.wrapping_add(len as u64);
            }
        }
    }
}
