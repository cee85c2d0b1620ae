//! InfiniBand management, emulated on an Ethernet fabric for software that expects it.
//!
//! Each HCA has agents for its port: subnet management (SMA, in `port`) and performance management (PMA, in `perf`).
//! For its own guest, each HCA also emulates the subnet: one switch that every HCA is attached to, the subnet manager,
//! and the subnet administration (`sa`). No HCA is special, and no HCA keeps state for another. All HCAs follow the
//! rules below so that an HCA can derive many attributes of other HCAs instead of querying them:
//!
//! - **Addresses.** The LID of an HCA is its `id` in the configuration. Its node GUID and its port GUID are both the
//!   modified EUI-64 of the port's MAC. A GID therefore determines the MAC, which in turn determines the LID, through
//!   the table of configured peers or else through the LID rule of [`Identity`]. Path queries are answered from these
//!   rules, whether or not the node exists. Soft-RoCE nodes, whose default GID follows the same rule, are reachable as
//!   well.
//! - **The switch** has LID [`SM_LID`] and a GUID derived from the MAC of that LID. The HCA with LID n is attached to
//!   port `(n - 1) mod 254 + 1`. If several HCAs share a port, only one of them is reachable through it, namely this
//!   HCA if it is among them, otherwise the one with the lowest known LID. Since every HCA numbers the ports in the
//!   same way, return paths written by one switch are valid for another.
//! - **Groups.** Each subnet administration keeps the groups that its own guest has joined. HCAs need not exchange
//!   group LIDs, which are derived from the GIDs. The creator of a group specifies the group's parameters. Parameters
//!   that the creator leaves unspecified default to those of the broadcast group, which are the same on every HCA.
//! - **Discovery** sweeps the fabric with a multicast Get(NodeInfo) to QP0 of all nodes. A few sweeps run when the port
//!   comes up, and then one every ten seconds. A sweep also runs, at most once a second, when a request from the guest
//!   depends on the results of discovery. Each node that responds is then queried for NodeDescription and PortInfo. A
//!   node that misses `subnet::MAX_MISSED_SWEEPS` sweeps is removed. A response is accepted only if it matches an
//!   outstanding request, and only once.
//! - **Amplification.** A datagram from a peer triggers at most one datagram in return, a response or the next request.
//!   The returned datagram is never larger than the peer's.
//! - **Requests from the wire** are answered by the guest's software if it has posted a receive buffer to QP0 or QP1.
//!   Otherwise, the agents answer those of subnet and performance management. In the first second after the port is
//!   opened, the agents answer these two classes in any case. Some devices always answer performance management
//!   requests themselves ([`NodeProfile::always_answers_perf`]). A directed-route packet passes through the switch of
//!   the sender's HCA and is then sent as a frame to the HCA at the end of the route. The response passes through the
//!   switch of the responding HCA. If an agent responds, the return path must lead to the sender.
//! - **Setting attributes.** The subnet manager is built in, and no peer may act as one. A remote Set is therefore
//!   rejected unless the guest has configured an M_Key and the request carries it. A port that is down or that software
//!   has not opened does not answer any request.
//!
//! This module does no I/O and does not read the clock. A MAD from the guest arrives through MAD_IFC or as a frame to
//! one of the two MACs accepted by [`Management::serves`]. The owner polls the outputs.
//!
//! # Spec
//! IBTA volume 1, chapters 13 to 16; mthca interface, sections 8 and 9.

mod datagram;
mod perf;
mod port;
mod route;
mod sa;
mod subnet;
mod subnet_switch;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use engine::{Instant, Stats};
use protocol::ids::{Lid, MacAddr, Pkey, Qpn};
use protocol::mad::perf::PortCounters;
use protocol::mad::port::PortInfo;
use protocol::mad::smp::{self, Smp, attribute};
use protocol::mad::{Class, Mad, Method};

pub use self::datagram::Datagram;
use self::port::{Effect, ManagedPort};
pub use self::port::{MkeyCheck, NodeProfile};
use self::route::Hop;
use self::sa::SubnetAdministration;
use self::subnet::Subnet;
use crate::identity::Identity;
use crate::net::address::Addresses;
use crate::net::{DropReason, PortStats};

/// LID of the switch, and thus of the subnet manager and the subnet administration. It is the last unicast
/// LID.
pub const SM_LID: Lid = Lid::new(0xbfff);

/// The permissive LID, which addresses the other end of the link.
pub const PERMISSIVE_LID: Lid = Lid::new(0xffff);

/// Upper half of all GIDs: the link-local prefix.
pub const GID_PREFIX: u64 = 0xfe80_0000_0000_0000;

/// QPN of QP0 on the wire.
pub const QP0: Qpn = Qpn::new(0);
/// QPN of QP1 on the wire.
pub const QP1: Qpn = Qpn::new(1);

/// Maximum number of pending outputs. The owner polls them after each call.
const MAX_OUTPUTS: usize = 128;

/// Port counters at the time of a request. The octets of a packet are counted from the BTH to the ICRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub transmit_packets: u64,
    pub transmit_octets: u64,
    pub transmit_unicast_packets: u64,
    pub transmit_multicast_packets: u64,
    pub receive_packets: u64,
    pub receive_octets: u64,
    pub receive_unicast_packets: u64,
    pub receive_multicast_packets: u64,
    pub link_downed: u64,
    pub receive_errors: u64,
    pub transmit_discards: u64,
    pub vl15_dropped: u64,
    pub pkey_violations: u64,
    pub qkey_violations: u64,
}

impl Counters {
    /// Derives an HCA's port counters from its port and engine statistics.
    pub fn of(port: &PortStats, engine: &Stats) -> Self {
        let errors = [DropReason::Short, DropReason::Invalid, DropReason::Checksum, DropReason::Icrc];
        Self {
            transmit_packets: port.transmit.packets,
            transmit_octets: port.transmit.octets,
            transmit_unicast_packets: port.transmit.packets - port.transmit.multicast_packets,
            transmit_multicast_packets: port.transmit.multicast_packets,
            receive_packets: port.receive.packets,
            receive_octets: port.receive.octets,
            receive_unicast_packets: port.receive.packets - port.receive.multicast_packets,
            receive_multicast_packets: port.receive.multicast_packets,
            link_downed: port.link_downed,
            receive_errors: errors.map(|reason| port.dropped(reason)).iter().sum(),
            transmit_discards: port.lost_unresolved + port.lost_link_down,
            vl15_dropped: engine.drops.vl15_dropped,
            pkey_violations: engine.drops.wrong_pkey,
            qkey_violations: engine.drops.wrong_qkey,
        }
    }

    /// Returns the difference from an earlier snapshot.
    fn since(&self, base: &Self) -> Self {
        Self {
            transmit_packets: self.transmit_packets.wrapping_sub(base.transmit_packets),
            transmit_octets: self.transmit_octets.wrapping_sub(base.transmit_octets),
            transmit_unicast_packets: self
                .transmit_unicast_packets
                .wrapping_sub(base.transmit_unicast_packets),
            transmit_multicast_packets: self
                .transmit_multicast_packets
                .wrapping_sub(base.transmit_multicast_packets),
            receive_packets: self.receive_packets.wrapping_sub(base.receive_packets),
            receive_octets: self.receive_octets.wrapping_sub(base.receive_octets),
            receive_unicast_packets: self.receive_unicast_packets.wrapping_sub(base.receive_unicast_packets),
            receive_multicast_packets: self
                .receive_multicast_packets
                .wrapping_sub(base.receive_multicast_packets),
            link_downed: self.link_downed.wrapping_sub(base.link_downed),
            receive_errors: self.receive_errors.wrapping_sub(base.receive_errors),
            transmit_discards: self.transmit_discards.wrapping_sub(base.transmit_discards),
            vl15_dropped: self.vl15_dropped.wrapping_sub(base.vl15_dropped),
            pkey_violations: self.pkey_violations.wrapping_sub(base.pkey_violations),
            qkey_violations: self.qkey_violations.wrapping_sub(base.qkey_violations),
        }
    }
}

/// Time and counters of the HCA, fixed for the duration of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub now: Instant,
    /// Counters of the port.
    pub counters: Counters,
}

/// An action that the owner must perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Deliver to a guest QP.
    ToGuest(Datagram),
    /// Send to another HCA, or to all HCAs if the destination LID is [`PERMISSIVE_LID`].
    ToFabric(Datagram),
    /// Enable or disable the port until the next reset.
    Link(bool),
}

/// Decision about a MAD from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// Deliver to a guest QP, unchanged.
    Unchanged,
    /// Deliver to a guest QP, with this source LID.
    From(Lid),
    Taken,
}

/// Which component handles a MAD from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handler {
    /// This module. The MAD claims to be a response to one of its requests.
    OwnResponse,
    /// The agents. The MAD is another HCA's sweep, which the guest does not see.
    Sweep,
    /// Guest software that is listening on the QP.
    Guest,
    /// Guest software that is listening on the QP, for an SMP that arrived through a directed route.
    GuestAtEndOfRoute,
    Agent,
    /// The agents, for an SMP that arrived through a directed route.
    AgentAtEndOfRoute,
}

impl Handler {
    fn of(received: &Datagram, listening: bool) -> Self {
        let header = protocol::mad::header(&received.mad);
        match (received.destination_qp, header.class) {
            (QP0, Class::SUBN) if Subnet::is_own_response(&header) => Self::OwnResponse,
            (QP0, Class::SUBN) if !header.method.is_response() && received.destination == PERMISSIVE_LID => {
                Self::Sweep
            }
            (QP0, Class::SUBN_DIRECTED) if listening => Self::GuestAtEndOfRoute,
            (QP0, Class::SUBN_DIRECTED) => Self::AgentAtEndOfRoute,
            _ if listening => Self::Guest,
            _ => Self::Agent,
        }
    }
}

/// Time after the port is opened during which only the agents answer subnet and performance management requests.
/// Software posts receive buffers before it is ready to answer, and Linux logs a warning for requests that it cannot
/// answer yet.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// InfiniBand management for one HCA.
#[derive(Clone, Debug)]
pub struct Management {
    port: ManagedPort,
    subnet: Subnet,
    administration: SubnetAdministration,
    outputs: VecDeque<Output>,
    /// Until this time, the agents answer instead of software; see [`SETTLE_TIME`].
    settled: Instant,
}

impl Management {
    /// Creates the `Management` of an HCA in its power-on state. The node's LID and GUID are those of `own`
    /// and never change.
    pub fn new(own: Identity, profile: NodeProfile) -> Self {
        let port = ManagedPort::new(own, profile);
        let administration = SubnetAdministration::new(port.mtu());
        Self {
            subnet: Subnet::new(own.lid),
            port,
            administration,
            outputs: VecDeque::new(),
            settled: Instant::ZERO,
        }
    }

    /// Restores the power-on state, except for counters and discovered nodes. Enables the port if software has disabled
    /// it.
    pub fn reset(&mut self) {
        let was_disabled = self.port.is_disabled();
        self.port.reset();
        self.administration = SubnetAdministration::new(self.port.mtu());
        self.outputs.clear();
        if was_disabled {
            self.push(Output::Link(true));
        }
    }

    pub fn lid(&self) -> Lid {
        self.port.lid()
    }

    /// Returns an entry of the GID table. The first entry is derived from the port's GUID, and the others are
    /// empty. Returns `None` beyond the end of the table.
    pub fn gid(&self, index: usize) -> Option<[u8; 16]> {
        let guid = if index == 0 { self.port.guid() } else { 0 };
        (index < self.port.gids()).then_some(gid(guid))
    }

    /// Returns an entry of the P_Key table, or `None` beyond its end.
    pub fn pkey(&self, index: usize) -> Option<Pkey> {
        self.port.pkeys().get(index).copied()
    }

    pub fn pkeys(&self) -> &[Pkey] {
        self.port.pkeys()
    }

    /// Returns PortInfo as reported by the agent.
    pub fn port_info(&self, view: &View) -> PortInfo {
        self.port.port_info(view)
    }

    /// Opens the port on behalf of software (INIT_IB) and starts discovery.
    pub fn open_port(&mut self, view: &View) {
        self.port.set_opened(true);
        self.settled = view.now + SETTLE_TIME;
        self.begin(view);
    }

    /// Closes the port on behalf of software (CLOSE_IB, reset).
    pub fn close_port(&mut self) {
        self.port.set_opened(false);
    }

    /// Returns whether the port is ACTIVE: opened, with its link up.
    pub fn is_active(&self) -> bool {
        self.port.is_active()
    }

    /// Handles a change of the link state.
    pub fn set_link(&mut self, up: bool, view: &View) {
        self.port.set_link(up);
        self.begin(view);
    }

    /// Replaces the capability mask in PortInfo (SET_IB).
    pub fn set_capabilities(&mut self, mask: u32) {
        self.port.set_capabilities(mask);
    }

    pub fn description(&self) -> [u8; smp::DATA_LEN] {
        self.port.description()
    }

    /// Replaces the NodeDescription until the next reset.
    pub fn set_description(&mut self, description: [u8; smp::DATA_LEN]) {
        self.port.set_description(description);
    }

    /// Resets the Q_Key violation counter (SET_IB).
    pub fn reset_qkey_violations(&mut self, counters: &Counters) {
        self.port.reset_qkey_violations(counters);
    }

    /// Handles a MAD that software sends to the device itself. Returns `None` if the MAD is discarded. The response to
    /// a directed-route SMP contains the route unchanged, since software itself advances it.
    pub fn mad_ifc(&mut self, view: &View, mad: &Mad, m_key: MkeyCheck) -> Option<Mad> {
        let class = protocol::mad::header(mad).class;
        if class == Class::PERF {
            return self.port.perf.answer(&view.counters, mad);
        }
        if !class.is_smp() {
            return None;
        }
        let mut effects = Vec::new();
        let answer = self.port.answer_smp(view, mad, m_key, &mut effects);
        for Effect::Link(up) in effects {
            self.push(Output::Link(up));
        }
        answer
    }

    /// Returns the PortCounters attribute without its port and its mask. The counters start from 0 when a Set request
    /// resets them.
    pub fn port_counters(&self, counters: &Counters) -> PortCounters {
        self.port.perf.since_reset(counters)
    }

    /// Returns whether the P_Key table has changed since the last call.
    pub fn take_pkey_change(&mut self) -> bool {
        self.port.take_pkey_change()
    }

    /// Returns whether a Set(PortInfo) has requested client reregistration since the last call (IBTA volume 1, section
    /// 14.2.5.6).
    pub fn take_reregistration_request(&mut self) -> bool {
        self.port.take_reregistration_request()
    }

    /// Returns whether management handles frames to `mac` instead of sending them to the fabric. There are two such
    /// MACs: the subnet manager's and that of the link's other end.
    pub fn serves(&self, mac: MacAddr) -> bool {
        mac == MacAddr::from_lid(SM_LID) || mac == MacAddr::from_lid(PERMISSIVE_LID)
    }

    /// Handles a MAD that the guest sent to a MAC accepted by [`Management::serves`]. `addresses` contains the
    /// configured ports.
    pub fn handle_guest(&mut self, view: &View, addresses: &Addresses, sent: &Datagram) {
        if !self.is_active() {
            return;
        }
        let class = protocol::mad::header(&sent.mad).class;
        match (sent.destination_qp, class) {
            (QP0, Class::SUBN_DIRECTED) => {
                // Directed routes are used for discovery, which needs current results.
                self.sweep_subnet(view);
                self.through_switch(sent.mad);
            }
            (QP0, Class::SUBN) => {
                let answer = self.answer_as_switch(&sent.mad, sent.destination_qp);
                self.answer_guest(sent, answer);
            }
            (QP1, Class::SUBN_ADM) => self.administer(view, addresses, sent),
            (QP1, Class::PERF) => {
                let answer = perf::answer_for_switch(self.subnet.switch_ports(), &sent.mad);
                self.answer_guest(sent, answer);
            }
            _ => {}
        }
    }

    /// Returns whether the agents answer a datagram even if guest software is listening.
    pub fn answers_always(&self, received: &Datagram) -> bool {
        let header = protocol::mad::header(&received.mad);
        received.destination_qp == QP1
            && header.class == Class::PERF
            && !header.method.is_response()
            && self.port.always_answers_perf()
    }

    /// Handles a MAD from the wire, or from the guest itself, for QP0 or QP1. `listening` indicates whether a guest QP
    /// can receive the MAD. `allow` returns whether the sender's rate limit permits a response.
    pub fn handle_wire(
        &mut self,
        view: &View,
        received: &Datagram,
        listening: bool,
        allow: &mut dyn FnMut() -> bool,
    ) -> Admitted {
        if !self.is_active() || !self.is_permitted(view.now, received) {
            return Admitted::Taken;
        }
        let class = protocol::mad::header(&received.mad).class;
        let by_agents = class.is_smp() || class == Class::PERF;
        let listening =
            listening && !self.answers_always(received) && (!by_agents || view.now >= self.settled);
        // No node has the permissive LID. A response to it would reach all HCAs.
        let mut may_respond = || received.source != PERMISSIVE_LID && allow();
        match Handler::of(received, listening) {
            Handler::OwnResponse => {
                let next = self.subnet.handle_answer(view.now, received.source, &received.mad);
                next.into_iter().for_each(|question| self.push(Output::ToFabric(question)));
            }
            Handler::Guest => return Admitted::Unchanged,
            // The response must return along the directed route. To the guest, the other end of the link appears as the
            // source.
            Handler::GuestAtEndOfRoute => return Admitted::From(PERMISSIVE_LID),
            Handler::AgentAtEndOfRoute if may_respond() => self.end_of_route(view, received),
            Handler::Agent | Handler::Sweep if may_respond() => self.answer_wire(view, received),
            Handler::AgentAtEndOfRoute | Handler::Agent | Handler::Sweep => {}
        }
        Admitted::Taken
    }

    /// Returns whether an SMP from the wire is permitted. The subnet manager is built in, and no peer may act as one. A
    /// remote Set must therefore carry the M_Key configured by the guest, and is rejected if the guest has configured
    /// none. Set(SMInfo) is exempt. SMInfo belongs to the subnet manager software, which the port's M_Key does not
    /// protect.
    fn is_permitted(&mut self, now: Instant, received: &Datagram) -> bool {
        let header = protocol::mad::header(&received.mad);
        let sets = received.destination_qp == QP0
            && header.class.is_smp()
            && header.method == Method::SET
            && header.attribute != attribute::SM_INFO;
        !sets || self.port.is_manager(now, Smp::of(&received.mad).m_key())
    }

    /// Returns the next action.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the time at which [`Management::handle_deadline`] must be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let sweep = self.subnet.next_sweep().filter(|_| self.is_active());
        self.administration.next_deadline().into_iter().chain(sweep).min()
    }

    /// Handles expired deadlines. If any are left, [`Management::next_deadline`] remains in the past.
    pub fn handle_deadline(&mut self, view: &View) {
        if self.is_active() && self.subnet.next_sweep().is_some_and(|at| at <= view.now) {
            self.sweep_subnet(view);
        }
        let mut again = Vec::new();
        self.administration.handle_deadline(view.now, &mut again);
        let own = self.port.lid();
        again.into_iter().for_each(|(qpn, mad)| self.push(to_guest(own, SM_LID, QP1, qpn, mad)));
    }

    /// Handles a directed-route SMP that arrives at the switch from this HCA's port.
    fn through_switch(&mut self, mad: Mad) {
        let own = self.port.lid();
        let ingress = subnet::switch_port(own);
        match route::at_switch(mad, ingress) {
            Hop::Here(mad) => {
                let Some(mut answer) = self.answer_as_switch(&mad, QP0) else { return };
                if route::turn(&mut answer) {
                    self.push(to_guest(own, PERMISSIVE_LID, QP0, QP0, answer));
                }
            }
            Hop::Port(port, mad) => match self.subnet.attached(port) {
                Some(lid) if lid == own => self.push(to_guest(own, PERMISSIVE_LID, QP0, QP0, mad)),
                Some(lid) => self.push(Output::ToFabric(Datagram {
                    source: own,
                    source_qp: QP0,
                    destination: lid,
                    destination_qp: QP0,
                    mad,
                })),
                None => {}
            },
            Hop::Nowhere => {}
        }
    }

    /// Handles a directed-route SMP that arrives at this HCA's port while no guest software is listening.
    fn end_of_route(&mut self, view: &View, received: &Datagram) {
        let Some(mad) = route::at_end(received.mad) else { return };
        let Some(mut answer) = self.mad_ifc(view, &mad, MkeyCheck::Enforce) else { return };
        if route::turn(&mut answer) {
            self.return_through_switch(answer, received.source);
        }
    }

    /// Sends a directed-route response to the HCA that sent the request. Discards the response if its return path leads
    /// to another switch port, because a peer must not be able to direct responses to third parties.
    fn return_through_switch(&mut self, mad: Mad, requester: Lid) {
        let own = self.port.lid();
        if let Hop::Port(port, mad) = route::at_switch(mad, subnet::switch_port(own))
            && port == subnet::switch_port(requester)
        {
            self.push(Output::ToFabric(Datagram {
                source: own,
                source_qp: QP0,
                destination: requester,
                destination_qp: QP0,
                mad,
            }));
        }
    }

    /// Answers a request that arrived from the wire without a directed route.
    fn answer_wire(&mut self, view: &View, received: &Datagram) {
        let class = protocol::mad::header(&received.mad).class;
        let fits = match received.destination_qp {
            QP0 => class == Class::SUBN,
            _ => class == Class::PERF,
        };
        if !fits {
            return;
        }
        if let Some(mad) = self.mad_ifc(view, &received.mad, MkeyCheck::Enforce) {
            let answer = Datagram {
                source: self.port.lid(),
                source_qp: received.destination_qp,
                destination: received.source,
                destination_qp: received.source_qp,
                mad,
            };
            let is_own = answer.destination == self.port.lid();
            self.push(if is_own { Output::ToGuest(answer) } else { Output::ToFabric(answer) });
        }
    }

    fn administer(&mut self, view: &View, addresses: &Addresses, sent: &Datagram) {
        let Self { administration, port, subnet, .. } = self;
        let context = sa::SaContext { view, port, subnet, addresses };
        let mut answers = Vec::new();
        administration.handle(&context, sent, &mut answers);
        if administration.depends_on_subnet() {
            self.sweep_subnet(view);
        }
        for mad in answers {
            self.answer_guest(sent, Some(mad));
        }
    }

    fn answer_guest(&mut self, request: &Datagram, answer: Option<Mad>) {
        if let Some(mad) = answer {
            let Datagram { source, source_qp, destination, destination_qp, .. } = *request;
            self.push(to_guest(source, destination, destination_qp, source_qp, mad));
        }
    }

    /// Starts discovery if the port is active and was opened by software. Devices whose port is open at power-on do not
    /// need a subnet.
    fn begin(&mut self, view: &View) {
        if self.is_active() && self.port.is_opened_by_software() {
            self.subnet.begin();
            self.sweep_subnet(view);
        }
    }

    fn sweep_subnet(&mut self, view: &View) {
        if let Some(question) = self.subnet.sweep(view.now) {
            self.push(Output::ToFabric(question));
        }
    }

    /// Returns the response of the switch, which hosts the subnet manager, to a subnet management request.
    fn answer_as_switch(&mut self, request: &Mad, qp: Qpn) -> Option<Mad> {
        let switch = subnet_switch::SubnetSwitch { subnet: &self.subnet, port: &self.port };
        let answer = switch.answer(request, qp)?;
        self.subnet.count_activity();
        Some(answer)
    }

    fn push(&mut self, output: Output) {
        if self.outputs.len() < MAX_OUTPUTS {
            self.outputs.push_back(output);
        }
    }
}

fn to_guest(own: Lid, source: Lid, source_qp: Qpn, qpn: Qpn, mad: Mad) -> Output {
    Output::ToGuest(Datagram { source, source_qp, destination: own, destination_qp: qpn, mad })
}

/// Returns the GID that consists of the default prefix and a GUID.
fn gid(guid: u64) -> [u8; 16] {
    (u128::from(GID_PREFIX) << 64 | u128::from(guid)).to_be_bytes()
}
