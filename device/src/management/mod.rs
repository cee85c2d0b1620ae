//! Management: what InfiniBand software expects of the fabric it is on, though there is only Ethernet.
//!
//! Each HCA has agents that answer for its port (subnet management, SMA, in `port`, performance management, PMA, in
//! `perf`) and, for its own guest, the subnet around it: one switch to which every HCA is attached, and in it the
//! subnet manager and the subnet administration (`sa`). No HCA is special, none keeps state for another, and none is
//! asked for anything a rule can tell. How they agree nevertheless:
//!
//! - **Addresses.** A LID is the `id` of the configuration. The GUID of node and port is the modified EUI-64 of the
//!   port's MAC, so a GID tells the MAC, and the MAC the LID: by the table of configured peers, else by the LID rule. A
//!   path is answered by rule whether anybody is there or not; soft-RoCE, whose default GID follows the same rule, is
//!   reached so too.
//! - **The switch** has LID [`SM_LID`] and the GUID of that LID's MAC. The HCA of LID n is at port 1 + (n - 1) mod 254,
//!   the lowest known one where several share a port. Every HCA computes that alike, so return paths that one switch
//!   wrote are understood by another.
//! - **Groups.** Each administration keeps the groups its own guest joined. The LID of a group follows from its GID (it
//!   does not travel). Who creates a group says what it is like; what a member leaves open is as in the broadcast group,
//!   with which all begin alike.
//! - **Who is there** is found out as subnet managers do it: a Get(NodeInfo) to QP0 of everybody, by Ethernet multicast,
//!   a few times when the port comes up, every ten seconds from then on, and when the guest asks for something that depends
//!   on it, at most once a second. Who answers is known, and asked for NodeDescription and then for PortInfo; who does not
//!   for `subnet::PATIENCE` times is forgotten. An answer is believed if it is to a question that is open, and once.
//! - **What a peer gets** for a datagram is one datagram at most, no longer than its own: an answer, or the next question.
//! - **Who answers** a request from the wire: software of the guest, if it has a queue pair for QP0 or QP1 and has given it
//!   a buffer; else, and in the first second of an open port, the agents. Directed routes go through the switch of the
//!   sender's HCA, then as a frame to the HCA at the end; the answer goes through the switch of that one.
//! - **Who may set** something over the wire: the subnet manager, which is built in; so nobody, unless the guest gave its
//!   port an M_Key and the request carries it. A port that is down, or that software has not opened, answers nothing.
//!
//! Nothing here owns a socket or a clock. A MAD comes in by MAD_IFC, or as a frame to the MAC of one of the two LIDs that
//! [`Management::serves`]; what goes out is polled.
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
use protocol::mad::port::PortInfo;
use protocol::mad::smp::{Smp, attribute};
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

/// LID of the switch, and so of the subnet manager and the subnet administration: the last unicast one.
pub const SM_LID: Lid = Lid::new(0xbfff);

/// The LID that stands for whoever is at the other end.
pub const PERMISSIVE_LID: Lid = Lid::new(0xffff);

/// Upper half of all GIDs: link-local.
pub const GID_PREFIX: u64 = 0xfe80_0000_0000_0000;

/// Number of QP0 on the wire.
pub const QP0: Qpn = Qpn::new(0);
/// Number of QP1 on the wire.
pub const QP1: Qpn = Qpn::new(1);

/// Bound: datagrams that wait to be sent or delivered, which the owner polls after each call.
const MAX_OUTPUTS: usize = 128;

/// What the port counts, as of the moment of a request. Octets are those of a packet from BTH to ICRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
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
    /// Those of an HCA.
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

    /// What was counted since.
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

/// What else is to be known of the HCA for the time of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// When.
    pub now: Instant,
    /// What the port has counted.
    pub counters: Counters,
}

/// Something to do for the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// To be delivered to a queue pair of the own guest.
    ToGuest(Datagram),
    /// To be sent to another HCA, or to all for LID [`PERMISSIVE_LID`].
    ToFabric(Datagram),
    /// The port is to be enabled or disabled, until the next reset.
    Link(bool),
}

/// What becomes of a MAD that came from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It is for a queue pair of the guest, as it came.
    Unchanged,
    /// It is for a queue pair of the guest, as one from this LID.
    From(Lid),
    /// It is done.
    Taken,
}

/// Whose business a MAD from the wire is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concern {
    /// It says to answer a question of ours.
    Known,
    /// Somebody looks around: not the guest's business.
    Everybody,
    /// Of software of the guest.
    Guest,
    /// The same, and it came on a directed route.
    GuestAtEndOfRoute,
    /// Of the agents.
    Agent,
    /// The same, and it came on a directed route.
    AgentAtEndOfRoute,
}

impl Concern {
    fn of(received: &Datagram, listening: bool) -> Self {
        let header = protocol::mad::header(&received.mad);
        match (received.destination_qp, header.class) {
            (QP0, Class::SUBN) if Subnet::asked(&header) => Self::Known,
            (QP0, Class::SUBN) if !header.method.is_response() && received.destination == PERMISSIVE_LID => {
                Self::Everybody
            }
            (QP0, Class::SUBN_DIRECTED) if listening => Self::GuestAtEndOfRoute,
            (QP0, Class::SUBN_DIRECTED) => Self::AgentAtEndOfRoute,
            _ if listening => Self::Guest,
            _ => Self::Agent,
        }
    }
}

/// How long the agents answer alone once software has opened the port. Software gives its queue pairs buffers before it is
/// ready to answer what comes in them, and Linux warns of what it cannot answer yet.
const SETTLING: Duration = Duration::from_secs(1);

/// Management of one HCA.
#[derive(Clone, Debug)]
pub struct Management {
    port: ManagedPort,
    subnet: Subnet,
    administration: SubnetAdministration,
    outputs: VecDeque<Output>,
    /// Until then software that opened the port may not be ready.
    settled: Instant,
}

impl Management {
    /// As after power-on. LID and GUID of the node are those of `own` for good.
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

    /// Back to power-on, but for counters and what is known of others.
    pub fn reset(&mut self) {
        self.port.reset();
        self.administration = SubnetAdministration::new(self.port.mtu());
        self.outputs.clear();
    }

    /// LID of the port.
    pub fn lid(&self) -> Lid {
        self.port.lid()
    }

    /// An entry of the GID table: the first is of the port's GUID, others are empty. `None` beyond the table.
    pub fn gid(&self, index: usize) -> Option<[u8; 16]> {
        let guid = if index == 0 { self.port.guid() } else { 0 };
        (index < self.port.gids()).then_some(gid(guid))
    }

    /// An entry of the P_Key table, `None` beyond it.
    pub fn pkey(&self, index: usize) -> Option<Pkey> {
        self.port.pkeys().get(index).copied()
    }

    /// The P_Key table.
    pub fn pkeys(&self) -> &[Pkey] {
        self.port.pkeys()
    }

    /// PortInfo, as the agent answers it.
    pub fn port_info(&self, view: &View) -> PortInfo {
        self.port.port_info(view)
    }

    /// Software wants the port to be up (INIT_IB). Whoever else is on the fabric is looked for.
    pub fn open_port(&mut self, view: &View) {
        self.port.set_opened(true);
        self.settled = view.now + SETTLING;
        self.begin(view);
    }

    /// Software wants the port to be down (CLOSE_IB, reset).
    pub fn close_port(&mut self) {
        self.port.set_opened(false);
    }

    /// Whether the port is ACTIVE: opened, with its link up.
    pub fn is_active(&self) -> bool {
        self.port.is_active()
    }

    /// The link went up or down.
    pub fn set_link(&mut self, up: bool, view: &View) {
        self.port.set_link(up);
        self.begin(view);
    }

    /// Replaces the capability mask of PortInfo (SET_IB).
    pub fn set_capabilities(&mut self, mask: u32) {
        self.port.set_capabilities(mask);
    }

    /// Counts Q_Key violations anew (SET_IB).
    pub fn reset_qkey_violations(&mut self, counters: &Counters) {
        self.port.reset_qkey_violations(counters);
    }

    /// A MAD that software has for the device itself. `None` if it is to be discarded. In the answer to an SMP of a
    /// directed route nothing of the route is changed: that is the business of who moves it.
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

    /// Whether the P_Key table was changed since this was asked last.
    pub fn take_pkey_change(&mut self) -> bool {
        self.port.take_pkey_change()
    }

    /// Whether frames to a MAC are for management: of the subnet manager, or of whoever is at the other end of the
    /// cable. They never reach the fabric.
    pub fn serves(&self, mac: MacAddr) -> bool {
        mac == MacAddr::from_lid(SM_LID) || mac == MacAddr::from_lid(PERMISSIVE_LID)
    }

    /// Takes a MAD that the guest sent to one of these. `addresses` says who is where.
    pub fn handle_guest(&mut self, view: &View, addresses: &Addresses, sent: &Datagram) {
        if !self.is_active() {
            return;
        }
        let class = protocol::mad::header(&sent.mad).class;
        match (sent.destination_qp, class) {
            (QP0, Class::SUBN_DIRECTED) => {
                // Whoever explores wants to see who is there.
                self.look_around(view);
                self.through_switch(sent.mad);
            }
            (QP0, Class::SUBN) => {
                let answer = self.switch().answer(&sent.mad, sent.destination_qp);
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

    /// Looks at a MAD from the wire for QP0 or QP1. `listening` says whether the guest has a queue pair for it, `allow`
    /// whether its sender may have one answer of ours more.
    pub fn handle_wire(
        &mut self,
        view: &View,
        received: &Datagram,
        listening: bool,
        allow: &mut dyn FnMut() -> bool,
    ) -> Admitted {
        if !self.is_active() || !self.is_permitted(received) {
            return Admitted::Taken;
        }
        let class = protocol::mad::header(&received.mad).class;
        let by_agents = class.is_smp() || class == Class::PERF;
        let listening = listening && (!by_agents || view.now >= self.settled);
        match Concern::of(received, listening) {
            Concern::Known => {
                let next = self.subnet.handle_answer(view.now, received.source, &received.mad);
                next.into_iter().for_each(|question| self.push(Output::ToFabric(question)));
            }
            Concern::Guest => return Admitted::Unchanged,
            // The answer has to go back the way it came, so the source is the other end of the cable.
            Concern::GuestAtEndOfRoute => return Admitted::From(PERMISSIVE_LID),
            Concern::AgentAtEndOfRoute if allow() => self.end_of_route(view, received.mad),
            Concern::Agent | Concern::Everybody if allow() => self.answer_wire(view, received),
            Concern::AgentAtEndOfRoute | Concern::Agent | Concern::Everybody => {}
        }
        Admitted::Taken
    }

    /// Whether an SMP from the wire may do what it wants to. The subnet manager is built in and no peer is: what is set
    /// over the wire has to carry an M_Key that the guest gave to its port. Without one nothing can be set. SMInfo is of
    /// subnet managers' software, which keys of ports do not protect.
    fn is_permitted(&mut self, received: &Datagram) -> bool {
        let header = protocol::mad::header(&received.mad);
        let sets = received.destination_qp == QP0
            && header.class.is_smp()
            && header.method == Method::SET
            && header.attribute != attribute::SM_INFO;
        !sets || self.port.is_manager(Smp::of(&received.mad).m_key())
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Management::handle_deadline`] is wanted next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let sweep = self.subnet.next_sweep().filter(|_| self.is_active());
        self.administration.next_deadline().into_iter().chain(sweep).min()
    }

    /// The deadline may have passed.
    pub fn handle_deadline(&mut self, view: &View) {
        if self.is_active() && self.subnet.next_sweep().is_some_and(|at| at <= view.now) {
            self.look_around(view);
        }
        let mut again = Vec::new();
        self.administration.handle_deadline(view.now, &mut again);
        let own = self.port.lid();
        again.into_iter().for_each(|(qpn, mad)| self.push(to_guest(own, SM_LID, QP1, qpn, mad)));
    }

    /// An SMP of a directed route arrives at the switch, from the own port.
    fn through_switch(&mut self, mad: Mad) {
        let own = self.port.lid();
        let ingress = subnet::switch_port(own);
        match route::at_switch(mad, ingress) {
            Hop::Here(mad) => {
                let Some(mut answer) = self.switch().answer(&mad, QP0) else { return };
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

    /// An SMP of a directed route arrives at the own port, where no software listens.
    fn end_of_route(&mut self, view: &View, mad: Mad) {
        let Some(mad) = route::at_end(mad) else { return };
        let Some(mut answer) = self.mad_ifc(view, &mad, MkeyCheck::Enforce) else { return };
        if route::turn(&mut answer) {
            self.through_switch(answer);
        }
    }

    /// Answers a request from the wire that is not of a directed route.
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
            self.push(Output::ToFabric(Datagram {
                source: self.port.lid(),
                source_qp: received.destination_qp,
                destination: received.source,
                destination_qp: received.source_qp,
                mad,
            }));
        }
    }

    fn administer(&mut self, view: &View, addresses: &Addresses, sent: &Datagram) {
        let Self { administration, port, subnet, .. } = self;
        let world = sa::World { view, port, subnet, addresses };
        let mut answers = Vec::new();
        administration.handle(&world, sent, &mut answers);
        if administration.wants_subnet() {
            self.look_around(view);
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

    /// The port may have come up. Only software that has to open it looks at a subnet.
    fn begin(&mut self, view: &View) {
        if self.is_active() && self.port.is_opened_by_software() {
            self.subnet.begin();
            self.look_around(view);
        }
    }

    fn look_around(&mut self, view: &View) {
        if let Some(question) = self.subnet.sweep(view.now) {
            self.push(Output::ToFabric(question));
        }
    }

    fn switch(&self) -> subnet_switch::SubnetSwitch<'_> {
        subnet_switch::SubnetSwitch { subnet: &self.subnet, port: &self.port }
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

/// The GID of a GUID.
fn gid(guid: u64) -> [u8; 16] {
    (u128::from(GID_PREFIX) << 64 | u128::from(guid)).to_be_bytes()
}
