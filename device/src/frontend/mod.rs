//! The seam between a device interface and everything below it.
//!
//! A front-end speaks its device's registers, mailboxes, contexts, descriptors and event formats. Towards the engine
//! it speaks verbs. It owns no socket, thread or clock: [`Context`] lends it what it needs for one turn.

pub mod count;
pub mod e810;
pub mod jingzhao;
pub mod list;
pub mod mellanox;
pub mod mthca;
pub(crate) mod poll_set;
pub mod snapshot;
pub mod strict;
#[cfg(test)]
pub(crate) mod testing;

use engine::{Engine, Event, Instant};
use protocol::describe::{Field as _, Visitor};
use protocol::ids::{MacAddr, Qpn};
use protocol::mad::Mad;
use protocol::mad::port::PortInfo;

pub use self::list::{FrontendCounters, FrontendEntry, FrontendVisitor, Interface};
use self::snapshot::{Page, Table};
use crate::management::{Counters, Management, MkeyCheck, NodeProfile, View};
use crate::memory::GuestMemory;
use crate::net::Port;
use crate::net::address::Addresses;
use crate::telemetry::monitor::Monitor;
use crate::telemetry::trace::Kind;
use crate::vfio::msix::Interrupts;
use crate::vfio::pci::ConfigSpace;
use crate::vfio::{Bar, PciFunction};

/// What a device is given at its creation and keeps.
#[derive(Clone, Debug)]
pub struct Setup<Options> {
    /// What its interface lets the configuration choose.
    pub options: Options,
    /// MAC of its port at power-on.
    pub mac: MacAddr,
    /// Of the engine; INIT_HCA sets the number of QPs.
    pub engine: engine::Config,
}

impl<Options> Setup<Options> {
    /// The same with other options.
    pub fn with<Other>(&self, options: Other) -> Setup<Other> {
        Setup { options, mac: self.mac, engine: self.engine }
    }
}

/// What a front-end borrows for the time of one input.
pub struct Context<'a> {
    /// When the input came.
    pub now: Instant,
    /// PCI configuration space, as software has programmed it.
    pub config: &'a ConfigSpace,
    /// Transport.
    pub engine: &'a mut Engine,
    /// Memory the guest lets the device reach.
    pub dma: &'a GuestMemory,
    /// The port on the fabric: its link, addresses and counters.
    pub port: &'a mut Port,
    /// Agents of the port, if [`Frontend::node`] wants them.
    pub management: Option<&'a mut Management>,
    /// MSI-X vectors.
    pub interrupts: &'a mut Interrupts,
    /// Trace, strict rules and counters of the interface.
    pub monitor: &'a mut Monitor,
}

impl Context<'_> {
    /// The engine, and what its view of the device borrows.
    pub fn split(&mut self) -> (&mut Engine, HostContext<'_>) {
        let Self { now, engine, dma, port, monitor, .. } = self;
        (engine, HostContext { now: *now, addresses: port.addresses(), dma, monitor })
    }

    /// Has a MAD answered that software gave to the device itself; `None` if it is to be discarded.
    pub fn mad_ifc(&mut self, mad: &Mad, m_key: MkeyCheck) -> Option<Mad> {
        let view = self.view();
        let management = self.management.as_deref_mut()?;
        let answer = management.mad_ifc(&view, mad, m_key);
        if management.take_pkey_change() {
            self.engine.set_pkeys(management.pkeys());
        }
        answer
    }

    /// Software wants the port to be up.
    pub fn open_port(&mut self) {
        let view = self.view();
        if let Some(management) = &mut self.management {
            management.open_port(&view);
        }
    }

    /// Software wants the port to be down.
    pub fn close_port(&mut self) {
        if let Some(management) = &mut self.management {
            management.close_port();
        }
    }

    /// Whether frames pass the port: its link is up, and opened where software has to open it.
    pub fn is_port_active(&self) -> bool {
        self.management.as_ref().map_or(self.port.is_up(), |management| management.is_active())
    }

    /// PortInfo as the agent answers it, if the port has one.
    pub fn port_info(&self) -> Option<PortInfo> {
        Some(self.management.as_ref()?.port_info(&self.view()))
    }

    /// What management is to know of the HCA.
    pub fn view(&self) -> View {
        View { now: self.now, counters: Counters::of(self.port.stats(), self.engine.stats()) }
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

/// What the engine's view of a device borrows.
#[derive(Debug)]
pub struct HostContext<'a> {
    /// What time it is.
    pub now: Instant,
    /// Who is where on the fabric.
    pub addresses: &'a Addresses,
    /// Memory the guest lets the device reach.
    pub dma: &'a GuestMemory,
    /// Trace, strict rules and counters of the interface.
    pub monitor: &'a mut Monitor,
}

/// A read or write of 1 to 8 bytes inside one BAR, for a trace.
#[derive(Clone, Copy, Debug)]
pub struct RegisterAccess<'a> {
    /// The BAR.
    pub bar: Bar,
    /// First byte.
    pub offset: u64,
    /// What was read, or is written.
    pub data: &'a [u8],
    /// Which of them.
    pub write: bool,
}

/// One device interface.
///
/// An HCA calls `bar_read` and `bar_write` in the order the client issued them and does not serve the next access
/// before the call returns. After any input it drains the engine: every [`Event`] goes to `handle_event`. At the end of
/// a turn it takes frames of the engine and of `poll_frame`, in turns, and then calls `end_turn` once.
pub trait Frontend {
    /// Work queues and memory as the engine wants them.
    type Host<'a>: engine::Host
    where
        Self: 'a;

    /// The PCI function; constant.
    fn pci(&self) -> PciFunction;

    /// The node that management shows; constant. `None`: the port is of Ethernet alone, with neither agents nor a subnet,
    /// and is active while its link is up.
    fn node(&self) -> Option<NodeProfile>;

    /// Whether the device is a NIC too, whose driver's kernel speaks ARP, neighbour discovery and ICMP; constant. Then the
    /// port answers nothing by itself, and every frame that is not for the RDMA half goes to
    /// [`Frontend::receive_frame`].
    const NIC: bool = false;

    /// A frame arrived that is not for the RDMA half: from the destination MAC on, as it came, with tags and without
    /// frame check sequence, whatever its destination is.
    fn receive_frame(&mut self, cx: &mut Context<'_>, frame: &[u8]) {
        let _ = (cx, frame);
    }

    /// Appends the next frame that the NIC sends to `out`, from the destination MAC on and without frame check sequence.
    /// False: there is none until the next input. Called at the end of a turn, a bounded number of times; what is left
    /// makes the next turn come at once.
    fn poll_frame(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> bool {
        let _ = (cx, out);
        false
    }

    /// When [`Frontend::handle_deadline`] is wanted next; the past if at once.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// The instant of [`Frontend::next_deadline`] has come.
    fn handle_deadline(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Can do without the stores of software to this BAR from now on, which is called once after power-on: whoever maps its
    /// pages stores there without an exit, and what is stored may be overwritten before it is found, or be found late. So
    /// a store then says no more than that something in the guest's memory has changed, and where to begin to look.
    /// `None`: the interface needs each of them.
    fn map_doorbells(&mut self) -> Option<Bar> {
        None
    }

    /// Appends where in that BAR stores of eight bytes may be found that mean anything, of queues that there are.
    fn doorbell_words(&self, words: &mut Vec<u64>) {
        let _ = words;
    }

    /// Serves a read of 1 to 8 bytes inside one BAR. Bytes without a register read 0.
    fn bar_read(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &mut [u8]);

    /// Serves a write of 1 to 8 bytes inside one BAR.
    fn bar_write(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &[u8]);

    /// Name of the register that an access begins at, if there is one.
    fn register_name(&self, access: &RegisterAccess<'_>) -> Option<String>;

    /// Tells the fields of the register's value, if it has any that have names.
    fn describe_access(&self, access: &RegisterAccess<'_>, to: &mut dyn Visitor);

    /// The view the engine works through.
    fn host<'a>(&'a mut self, cx: HostContext<'a>) -> Self::Host<'a>;

    /// The number by which a trace and completions name the work request that has this `wr_id` in the engine: where it is in
    /// its queue.
    fn work_request(&self, wr_id: u64) -> u64 {
        wr_id
    }

    /// Whether a queue pair has a request to receive, where that can be found out without taking it.
    fn can_receive(&mut self, qpn: Qpn, dma: &GuestMemory) -> bool {
        let _ = (qpn, dma);
        true
    }

    /// Reports an event of the engine to the guest.
    fn handle_event(&mut self, cx: &mut Context<'_>, event: Event);

    /// Does what can wait for the end of a turn, such as writing contexts back. Whether some of it is left for the next
    /// turn, which then comes at once.
    fn end_turn(&mut self, cx: &mut Context<'_>) -> bool;

    /// The link of a port that is open came up or went down: tells the guest, if it wants to know. What crosses the
    /// link is not the front-end's business.
    fn link_changed(&mut self, cx: &mut Context<'_>, up: bool);

    /// The device has an internal error, because an operator says so: tells the guest as such devices do. Until its
    /// driver resets it, it goes on to serve.
    fn fail(&mut self, cx: &mut Context<'_>);

    /// Copies out up to [`snapshot::PAGE_ROWS`] objects of one kind for an operator, the first at place `from`: 0, or
    /// [`Page::next`] of the page before. Values of QPs are those of `engine`, as of this moment. Reads no guest
    /// memory, and the guest notices nothing. Places that software never used cost no time.
    fn snapshot(&self, engine: &Engine, addresses: &Addresses, table: Table, from: u64) -> Page;

    /// What the interface has counted since the device was made.
    fn counters(&self) -> FrontendCounters;

    /// Function level reset, or the client is gone: back to power-on, and no DMA after this returns. The engine has
    /// been reset by the caller.
    fn reset(&mut self);
}
