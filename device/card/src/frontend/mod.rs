//! The boundary between device interfaces and the rest of the HCA.
//!
//! A front-end implements the registers, mailboxes, contexts, descriptors and event formats of its device, and
//! translates them to verbs for the engine. It does not own sockets, threads or clocks. For each input, a [`Context`]
//! supplies the time and all other resources.

pub mod arm_sequence;
pub mod count;
pub mod observe;
pub mod poll_rounds;
pub mod poll_set;
pub mod reason;
pub mod snapshot;
pub mod strict;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use engine::{Engine, Event, Instant};
use protocol::describe::{Field as _, Visitor};
use protocol::ids::{MacAddr, Qpn};
use protocol::mad::Mad;
use protocol::mad::perf::PortCounters;
use protocol::mad::port::PortInfo;
use serde::Serialize;

use self::table::Table;
use crate::management::{Counters, Management, MkeyCheck, NodeProfile, View};
use crate::memory::{GuestMemory, GuestRange};
use crate::net::Port;
use crate::net::address::Addresses;
use crate::telemetry::monitor::{Monitor, Rule};
use crate::telemetry::reason::IgnoreReason;
use crate::telemetry::trace::Kind;
use crate::vfio::msix::Interrupts;
use crate::vfio::pci::ConfigSpace;
use crate::vfio::{Bar, BarRange, PciFunction};

/// Parameters of a device, fixed when it is created.
#[derive(Clone, Debug)]
pub struct Setup<Options> {
    /// Configurable options of the interface.
    pub options: Options,
    /// MAC of the port at power-on.
    pub mac: MacAddr,
    /// Configuration of the engine. On interfaces with an INIT_HCA command, that command sets the number of QPs.
    pub engine: engine::Config,
}

impl<Options> Setup<Options> {
    /// Returns the same setup with different options.
    pub fn with<Other>(&self, options: Other) -> Setup<Other> {
        Setup { options, mac: self.mac, engine: self.engine }
    }
}

/// Port number. As in InfiniBand, ports are numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortNumber(u8);

impl PortNumber {
    /// The only port of a device.
    pub const ONE: Self = Self(1);

    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Link layer of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Ethernet port without management agents or a subnet. It is active while its link is up, and it responds to ARP,
    /// neighbour discovery and ICMP echo requests itself.
    Ethernet,
    /// Ethernet port of a NIC. The port leaves ARP, neighbour discovery and ICMP to the guest's kernel. Every frame
    /// that is not for the RDMA engine goes to [`Frontend::receive_frame`].
    Nic,
    /// InfiniBand port with management agents, which present it as a port of this node.
    InfiniBand(NodeProfile),
}

impl PortKind {
    /// Returns whether the port belongs to a NIC.
    pub const fn is_nic(&self) -> bool {
        matches!(self, Self::Nic)
    }

    /// Returns the InfiniBand node, or `None` for Ethernet.
    pub fn node(self) -> Option<NodeProfile> {
        match self {
            Self::Ethernet | Self::Nic => None,
            Self::InfiniBand(node) => Some(node),
        }
    }
}

/// Resources that a front-end borrows while it handles one input.
pub struct Context<'a> {
    /// Time of the input.
    pub now: Instant,
    /// PCI configuration space, as software has programmed it.
    pub config: &'a ConfigSpace,
    pub engine: &'a mut Engine,
    /// Guest memory that is mapped for DMA.
    pub dma: &'a GuestMemory,
    /// The port on the fabric: its link, addresses and counters.
    pub port: &'a mut Port,
    /// Management agents of the port, if it is an InfiniBand port.
    pub management: Option<&'a mut Management>,
    pub interrupts: &'a mut Interrupts,
    /// Trace, strict rules and counters of the interface.
    pub monitor: &'a mut Monitor,
}

impl Context<'_> {
    /// Splits the context into the engine and the resources that the engine's view of the device borrows.
    pub fn split(&mut self) -> (&mut Engine, HostContext<'_>) {
        let Self { now, engine, dma, port, monitor, .. } = self;
        (engine, HostContext { now: *now, addresses: port.addresses(), dma, monitor })
    }

    /// Processes a MAD that software sent with MAD_IFC. Returns the response, or `None` if the MAD is discarded.
    pub fn mad_ifc(&mut self, mad: &Mad, m_key: MkeyCheck) -> Option<Mad> {
        let view = self.view();
        let management = self.management.as_deref_mut()?;
        let answer = management.mad_ifc(&view, mad, m_key);
        if management.take_pkey_change() {
            self.engine.set_pkeys(management.pkeys());
        }
        answer
    }

    /// Brings the port up on behalf of software.
    pub fn open_port(&mut self) {
        let view = self.view();
        if let Some(management) = &mut self.management {
            management.open_port(&view);
        }
    }

    /// Brings the port down on behalf of software.
    pub fn close_port(&mut self) {
        if let Some(management) = &mut self.management {
            management.close_port();
        }
    }

    /// Returns whether the port passes frames. The link must be up. On some interfaces, software must also have
    /// opened the port.
    pub fn is_port_active(&self) -> bool {
        self.management.as_ref().map_or(self.port.is_up(), |management| management.is_active())
    }

    /// Returns the PortInfo reported by the port's agent, or `None` if the port has no agent.
    pub fn port_info(&self) -> Option<PortInfo> {
        Some(self.management.as_ref()?.port_info(&self.view()))
    }

    /// Returns the time and the counters needed by the management agents.
    pub fn view(&self) -> View {
        View { now: self.now, counters: Counters::of(self.port.stats(), self.engine.stats()) }
    }

    /// Returns the PortCounters attribute of the port, without its port and its mask. Ports without an agent have these
    /// counters too.
    pub fn port_counters(&self) -> PortCounters {
        let counters = self.view().counters;
        match &self.management {
            Some(management) => management.port_counters(&counters),
            None => counters.attribute(),
        }
    }

    /// Raises an MSI-X vector.
    pub fn interrupt(&mut self, vector: u16) {
        let delivery = self.interrupts.raise(vector);
        if let Some(trace) = self.monitor.trace() {
            trace.record(Kind::Interrupt, &format!("MSIX[{vector}]"), |to| {
                delivery.name().show("delivery", to);
            });
        }
    }
}

/// Resources that the engine's view of a device borrows.
#[derive(Debug)]
pub struct HostContext<'a> {
    pub now: Instant,
    /// Addresses of the fabric's ports.
    pub addresses: &'a Addresses,
    /// Guest memory that is mapped for DMA.
    pub dma: &'a GuestMemory,
    /// Trace, strict rules and counters of the interface.
    pub monitor: &'a mut Monitor,
}

/// A read or write of 1 to 8 bytes within one BAR, for a trace.
#[derive(Clone, Copy, Debug)]
pub struct RegisterAccess<'a> {
    /// The BAR being accessed.
    pub bar: Bar,
    /// Offset of the first byte in the BAR.
    pub offset: u64,
    /// The value read or written.
    pub data: &'a [u8],
    /// Whether the access is a write.
    pub write: bool,
}

/// A device interface.
///
/// An HCA calls `bar_read` and `bar_write` in the order of the client's accesses, one at a time. After any input, it
/// drains the engine and passes each [`Event`] to `handle_event`. At the end of a turn, which is one iteration of the
/// event loop, it polls the engine and `poll_frame` alternately for frames, and then calls `end_turn` once.
pub trait Frontend: Sized + 'static {
    /// The engine's view of the device: its work queues and memory.
    type Host<'a>: engine::Host<Range = GuestRange>
    where
        Self: 'a;

    /// Counters specific to the interface. Their field names are part of the public interface: `hcactl counters` shows
    /// them under the interface's key.
    type Counters: Serialize;

    /// Key of the interface in the configuration and in the counters.
    const KEY: &'static str;

    /// Whether a MAC that software has set for the port survives a function-level reset. Resets by the VMM restore the
    /// permanent MAC.
    const FLR_KEEPS_MAC: bool = false;

    /// Reasons why the device ignores doorbells, register writes and frames, in addition to [`reason::ALL`]. There is
    /// one list for each module that declares reasons.
    const IGNORE_REASONS: &'static [&'static [IgnoreReason]];

    /// Tables that show the device's objects to an operator.
    const TABLES: &'static [Table<Self>];

    /// Returns the PCI function, which never changes.
    fn pci(&self) -> PciFunction;

    /// Returns the kind of a port, which never changes. Front-ends have one port, [`PortNumber::ONE`].
    fn port_kind(&self, port: PortNumber) -> PortKind;

    /// Receives any frame that is not for the RDMA engine, regardless of its destination. The frame starts at the
    /// destination MAC, includes VLAN tags, and has no frame check sequence. Only called if the port is
    /// [`PortKind::Nic`].
    fn receive_frame(&mut self, cx: &mut Context<'_>, frame: &[u8]) {
        let _ = (cx, frame);
    }

    /// Appends the next outbound frame to `out`, in the format of [`Frontend::receive_frame`]. Returns false if there
    /// are no more frames until the next input. The HCA calls this a bounded number of times at the end of a turn. If
    /// there are frames left, the next turn follows immediately.
    fn poll_frame(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> bool {
        let _ = (cx, out);
        false
    }

    /// Returns the time of the next call to [`Frontend::handle_deadline`]. A time in the past means that the
    /// call is due immediately.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Handles the expiry of [`Frontend::next_deadline`].
    fn handle_deadline(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Prepares for doorbells that do not trap. Returns the part of a BAR that the client may map, or `None` if the
    /// interface must process every store. Called once, after power-on.
    ///
    /// Once a client has mapped this range, the guest stores to it without a VM exit. The HCA polls for these stores
    /// and may notice one late or miss one that has been overwritten. The interface must therefore treat a doorbell in
    /// this range only as a hint that guest memory has changed. Stores to the rest of the BAR still trap.
    fn map_doorbells(&mut self) -> Option<BarRange> {
        None
    }

    /// Appends the BAR offsets of existing queues' eight-byte doorbells.
    fn doorbell_words(&self, words: &mut Vec<u64>) {
        let _ = words;
    }

    /// Handles a read of 1 to 8 bytes within one BAR. Bytes outside registers read as 0.
    fn bar_read(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &mut [u8]);

    /// Handles a write of 1 to 8 bytes within one BAR.
    fn bar_write(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &[u8]);

    /// Returns the name of the register at the start of an access, if there is one.
    fn register_name(&self, access: &RegisterAccess<'_>) -> Option<String>;

    /// Describes the named fields of a register value.
    fn describe_access(&self, access: &RegisterAccess<'_>, to: &mut dyn Visitor);

    /// Creates the engine's view of the device.
    fn host<'a>(&'a mut self, cx: HostContext<'a>) -> Self::Host<'a>;

    /// Converts the `wr_id` that the engine uses for a work request to the number used in traces and completions, such
    /// as the request's position in the queue.
    fn work_request(&self, wr_id: u64) -> u64 {
        wr_id
    }

    /// Returns whether a QP has a posted receive request, as far as the device can determine without consuming
    /// the request.
    fn can_receive(&mut self, qpn: Qpn, dma: &GuestMemory) -> bool {
        let _ = (qpn, dma);
        true
    }

    /// Explains the state of a NIC queue in lines of text. NIC queues share a number space with QPs. Returns `None` if
    /// `number` is not a NIC queue.
    fn explain_queue(&self, number: Qpn) -> Option<Vec<String>> {
        let _ = number;
        None
    }

    /// Reports an engine event to the guest.
    fn handle_event(&mut self, cx: &mut Context<'_>, event: &Event);

    /// Performs deferred work, such as writing contexts back. Returns true if any work is left, in which case the next
    /// turn follows immediately.
    fn end_turn(&mut self, cx: &mut Context<'_>) -> bool;

    /// Reports a link change on an open port to the guest, if software has enabled such events. The port itself stops
    /// and resumes traffic.
    fn link_changed(&mut self, cx: &mut Context<'_>, up: bool);

    /// Reports an internal error to the guest, at an operator's request. The device keeps working until its driver
    /// resets it.
    fn fail(&mut self, cx: &mut Context<'_>);

    /// Returns the interface's counters, which start at zero when the device is created and survive resets.
    fn counters(&self) -> Self::Counters;

    /// Resets the device to its power-on state, after a function-level reset or when the client disconnects. No DMA
    /// happens after this returns. The caller has already reset the engine.
    fn reset(&mut self);
}

/// A front-end that can be selected in the configuration.
pub trait Interface: Frontend + Send {
    /// Options that can be set in the configuration.
    type Options;

    /// Name used in documentation, as in "mthca interface".
    const NAME: &'static str;

    /// Guest drivers that support the interface.
    const DRIVERS: &'static [&'static str];

    /// Requirements that software must meet. In strict mode, the device reports violations.
    const RULES: &'static [&'static Rule];

    /// Why the doorbells must trap, phrased to continue a sentence after "its doorbells". `None` if the interface
    /// supports [`Frontend::map_doorbells`].
    const NEEDS_TRAPS: Option<&'static str>;

    /// Creates a device in its power-on state.
    fn new(setup: Setup<Self::Options>) -> Self;
}

/// Code that is generic over the front-end selected by the configuration.
pub trait FrontendVisitor {
    /// Result of the visit.
    type Output;

    /// Visits a front-end. Each call to `frontend` creates a device in its power-on state.
    fn visit<F: Interface>(self, frontend: impl Fn() -> F + Send + 'static) -> Self::Output;
}
