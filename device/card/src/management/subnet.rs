//! Discovery of the other HCAs on the fabric.

mod requests;

use std::collections::BTreeMap;
use std::time::Duration;

use engine::Instant;
use protocol::ids::Lid;
use protocol::mad::header::Header;
use protocol::mad::node::NodeInfo;
use protocol::mad::port::PortInfo;
use protocol::mad::smp::{DATA_LEN, Smp, attribute};
use protocol::mad::{Class, Mad, MadStatus, Method};

use self::requests::OpenRequests;
use super::{Datagram, PERMISSIVE_LID, QP0};

/// Number of switch ports that HCAs can be attached to.
const SWITCH_PORTS: u16 = 254;

/// Maximum number of known HCAs. A limit is needed because a peer can claim any number of LIDs. At the limit, a new HCA
/// replaces a known one so that no HCA is locked out.
const MAX_NODES: usize = 1024;

/// Minimum time between sweeps.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// Number of sweeps at intervals of `SWEEP_PERIOD` after the port has come up. One sweep is not enough, because frames
/// may be lost and other HCAs may still be starting.
const FIRST_SWEEPS: u8 = 3;

/// Interval between sweeps when the guest does not trigger any. OpenSM uses the same interval.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Number of consecutive unanswered sweeps after which an HCA is removed.
pub(super) const MAX_MISSED_SWEEPS: u8 = 3;

/// Returns the switch port that an HCA is attached to.
pub(super) const fn switch_port(lid: Lid) -> u8 {
    let [_, port] = ((lid.get().wrapping_sub(1)) % SWITCH_PORTS + 1).to_be_bytes();
    port
}

/// Upper half of the transaction IDs in this module's requests. It cannot be confused with the upper half of software's
/// transaction IDs, which is an agent ID and therefore a small number.
const TID: u64 = 0x6863_6164 << 32;

/// Another HCA, with the attributes that it has returned.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) info: NodeInfo,
    pub(super) description: [u8; DATA_LEN],
    pub(super) port: Option<PortInfo>,
    /// Number of sweeps since the node's last NodeInfo arrived.
    unanswered: u8,
    /// Time at which the node's last NodeInfo arrived.
    last_seen: Instant,
}

#[derive(Clone, Debug)]
pub(super) struct Subnet {
    own: Lid,
    nodes: BTreeMap<Lid, Node>,
    last_sweep: Option<Instant>,
    /// Number of sweeps left at the initial interval.
    first_sweeps: u8,
    requests: OpenRequests,
    /// Number of SMPs that the subnet manager has sent.
    activity: u32,
}

impl Subnet {
    pub(super) fn new(own: Lid) -> Self {
        Self {
            own,
            nodes: BTreeMap::new(),
            last_sweep: None,
            first_sweeps: 0,
            requests: OpenRequests::default(),
            activity: 0,
        }
    }

    /// Returns the ActCount of the subnet manager. Other subnet managers poll it to check that this one is alive (IBTA
    /// volume 1, section 14.4.1).
    pub(super) fn activity(&self) -> u32 {
        self.activity
    }

    /// Counts an SMP that the subnet manager sends.
    pub(super) fn count_activity(&mut self) {
        self.activity = self.activity.wrapping_add(1);
    }

    pub(super) fn own(&self) -> Lid {
        self.own
    }

    /// Returns the known HCAs with their LIDs, in ascending order of LID.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (Lid, &Node)> {
        self.nodes.iter().map(|(lid, node)| (*lid, node))
    }

    /// Returns the LIDs of all HCAs, including this one.
    pub(super) fn lids(&self) -> impl Iterator<Item = Lid> {
        [self.own].into_iter().chain(self.nodes.keys().copied())
    }

    /// Returns the HCA attached to a switch port. If several HCAs share the port, returns this HCA if it is one
    /// of them, or else the HCA with the lowest LID.
    pub(super) fn attached(&self, port: u8) -> Option<Lid> {
        if switch_port(self.own) == port {
            return Some(self.own);
        }
        self.nodes.keys().copied().find(|lid| switch_port(*lid) == port)
    }

    /// Returns the number of switch ports, which is the highest port number with an HCA attached.
    pub(super) fn switch_ports(&self) -> u8 {
        self.lids().map(switch_port).max().unwrap_or(1)
    }

    /// Starts the initial sweeps after the port has come up.
    pub(super) fn begin(&mut self) {
        self.first_sweeps = FIRST_SWEEPS;
    }

    /// Returns the time of the next periodic sweep.
    pub(super) fn next_sweep(&self) -> Option<Instant> {
        let pause = if self.first_sweeps > 0 { SWEEP_PERIOD } else { SWEEP_INTERVAL };
        self.last_sweep.map(|last| last + pause)
    }

    /// Returns a Get(NodeInfo) to all HCAs, or `None` if less than [`SWEEP_PERIOD`] has passed since the last sweep.
    pub(super) fn sweep(&mut self, now: Instant) -> Option<Datagram> {
        if self.last_sweep.is_some_and(|last| now.saturating_since(last) < SWEEP_PERIOD) {
            return None;
        }
        self.last_sweep = Some(now);
        self.first_sweeps = self.first_sweeps.saturating_sub(1);
        self.nodes.retain(|_, node| {
            node.unanswered = node.unanswered.saturating_add(1);
            node.unanswered <= MAX_MISSED_SWEEPS
        });
        let tid = self.requests.start_sweep();
        Some(self.build_request(PERMISSIVE_LID, attribute::NODE_INFO, tid))
    }

    /// Returns whether an SMP is a response to a request from this module rather than from the guest.
    pub(super) fn is_own_response(header: &Header) -> bool {
        header.method.is_response() && header.tid >> 32 == TID >> 32
    }

    /// Handles a response to one of this module's requests and returns the next request. A response is accepted only
    /// once and only from the HCA that was queried. It triggers at most one request so that no peer can make this HCA
    /// send more than the peer itself sends.
    pub(super) fn handle_answer(&mut self, now: Instant, from: Lid, mad: &Mad) -> Option<Datagram> {
        let header = protocol::mad::header(mad);
        let tid = u32::try_from(header.tid ^ TID).ok()?;
        if !self.may_insert(from)
            || !self.requests.take(from, header.attribute, tid)
            || header.status != MadStatus::OK
        {
            return None;
        }
        let data = &Smp::of(mad).data;
        match (header.attribute, self.nodes.get_mut(&from)) {
            (attribute::NODE_INFO, node) => {
                let info = NodeInfo::parse(data.first_chunk().unwrap_or(&[0; NodeInfo::LEN]));
                match node {
                    Some(node) => (node.info, node.unanswered, node.last_seen) = (info, 0, now),
                    None => self.insert(now, from, info),
                }
                self.request(now, from, attribute::NODE_DESCRIPTION)
            }
            (attribute::NODE_DESCRIPTION, Some(node)) => {
                node.description = *data;
                self.request(now, from, attribute::PORT_INFO)
            }
            (attribute::PORT_INFO, Some(node)) => {
                node.port = Some(PortInfo::parse(data));
                None
            }
            _ => None,
        }
    }

    /// Inserts a node. If the table is full, first evicts the node that responded least recently. Nodes with incomplete
    /// attributes are evicted before complete ones.
    fn insert(&mut self, now: Instant, lid: Lid, info: NodeInfo) {
        if self.nodes.len() >= MAX_NODES
            && let Some((least, _)) =
                self.nodes.iter().min_by_key(|(_, node)| (node.port.is_some(), node.last_seen))
        {
            let least = *least;
            self.nodes.remove(&least);
        }
        let node = Node { info, description: [0; DATA_LEN], port: None, unanswered: 0, last_seen: now };
        self.nodes.insert(lid, node);
    }

    fn may_insert(&self, lid: Lid) -> bool {
        lid != self.own && (1..super::SM_LID.get()).contains(&lid.get())
    }

    /// Returns a request to one HCA, or `None` if the same request or too many requests are outstanding.
    fn request(&mut self, now: Instant, lid: Lid, attribute: u16) -> Option<Datagram> {
        let tid = self.requests.open(now, lid, attribute)?;
        Some(self.build_request(lid, attribute, tid))
    }

    fn build_request(&mut self, lid: Lid, attribute: u16, tid: u32) -> Datagram {
        self.count_activity();
        let header = Header {
            base_version: Header::BASE_VERSION,
            class: Class::SUBN,
            class_version: 1,
            method: Method::GET,
            tid: TID | u64::from(tid),
            attribute,
            modifier: u32::from(attribute == attribute::PORT_INFO),
            ..Header::default()
        };
        let mut mad = [0; 256];
        protocol::mad::set_header(&mut mad, &header);
        Datagram { source: self.own, source_qp: QP0, destination: lid, destination_qp: QP0, mad }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switch_port_is_derived_from_lid() {
        for (lid, port) in [(1, 1), (2, 2), (254, 254), (255, 1), (0xbffe, 128)] {
            assert_eq!(switch_port(Lid::new(lid)), port, "LID {lid}");
        }
    }

    #[test]
    fn full_node_table_evicts_stalest_incomplete_node() {
        let mut subnet = Subnet::new(Lid::new(1));
        let at = |seconds: usize| Instant::from_nanos(seconds as u64 * 1_000_000_000);
        let lid = |n: usize| Lid::new(u16::try_from(n).unwrap());
        subnet.insert(at(0), lid(4999), NodeInfo::default());
        subnet.nodes.get_mut(&lid(4999)).unwrap().port = Some(PortInfo::default());
        for n in 1..MAX_NODES {
            subnet.insert(at(n), lid(4000 - n), NodeInfo::default());
        }
        subnet.insert(at(MAX_NODES), lid(2), NodeInfo::default());
        assert_eq!(subnet.nodes.len(), MAX_NODES);
        assert!(subnet.nodes.contains_key(&lid(4999)), "a complete node is kept even if it is the stalest");
        assert!(!subnet.nodes.contains_key(&lid(3999)), "the stalest incomplete node is evicted");
        assert!(subnet.nodes.contains_key(&lid(3998)));
    }
}
