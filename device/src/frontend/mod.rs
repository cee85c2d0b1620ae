//! The seam between a device interface and everything below it.
//!
//! A front-end speaks its device's registers, mailboxes, contexts, descriptors and event formats. Towards the engine
//! it speaks verbs. It owns no socket, thread or clock: [`Context`] lends it what it needs for one turn.

pub mod address;
pub mod command;
pub mod doorbell;
pub mod entry_ring;
pub mod hcr;
pub mod host;
pub mod icm;
pub mod jingzhao;
pub mod lid;
pub mod limits;
pub mod list;
pub mod mthca;
pub mod mtt;
pub mod notify;
pub mod snapshot;
#[cfg(test)]
pub(crate) mod testing;
pub mod verbs;

use engine::{Engine, Event, Instant};
use protocol::describe::{Field as _, Visitor};
use protocol::ids::Qpn;
use protocol::mad::Mad;

use self::address::Addresses;
pub use self::list::{FrontendCounters, FrontendEntry, Interface, Taker};
use self::snapshot::{Page, Table};
use crate::management::{Counters, Management, MkeyCheck, NodeProfile, View};
use crate::memory::GuestMemory;
use crate::net::Port;
use crate::telemetry::monitor::Monitor;
use crate::telemetry::trace::Kind;
use crate::vfio::msix::Interrupts;
use crate::vfio::{Bar, PciIdentity};

/// What a device is given at its creation and keeps.
#[derive(Clone, Debug)]
pub struct Setup<Options> {
    /// What its interface lets the configuration choose.
    pub options: Options,
    /// Who is where on the fabric.
    pub addresses: Addresses,
    /// Of the engine; INIT_HCA sets the number of QPs.
    pub engine: engine::Config,
}

impl<Options> Setup<Options> {
    /// The same with other options.
    pub fn with<Other>(&self, options: Other) -> Setup<Other> {
        Setup { options, addresses: self.addresses.clone(), engine: self.engine }
    }
}

/// What a front-end borrows for the time of one input.
pub struct Context<'a> {
    /// When the input came.
    pub now: Instant,
    /// Transport.
    pub engine: &'a mut Engine,
    /// Memory the guest lets the device reach.
    pub dma: &'a GuestMemory,
    /// The port on the fabric.
    pub port: &'a Port,
    /// Agents of the port.
    pub management: &'a mut Management,
    /// MSI-X vectors.
    pub interrupts: &'a mut Interrupts,
    /// Who looks on.
    pub monitor: &'a mut Monitor,
}

impl Context<'_> {
    /// Has a MAD answered that software gave to the device itself; `None` if it is to be discarded.
    pub fn mad_ifc(&mut self, mad: &Mad, m_key: MkeyCheck) -> Option<Mad> {
        let answer = self.management.mad_ifc(&self.view(), mad, m_key);
        if self.management.take_pkey_change() {
            self.engine.set_pkeys(self.management.pkeys());
        }
        answer
    }

    /// Software wants the port to be up.
    pub fn open_port(&mut self) {
        self.management.open_port(&self.view());
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
/// before the call returns. After any input it drains the engine: every [`Event`] goes to `handle_event`, then
/// `end_turn` is called once.
pub trait Frontend {
    /// Work queues and memory as the engine wants them.
    type Host<'a>: engine::Host
    where
        Self: 'a;

    /// Identity in PCI config space; constant.
    fn pci_identity(&self) -> PciIdentity;

    /// The node that management shows; constant.
    fn node(&self) -> NodeProfile;

    /// Serves a read of 1 to 8 bytes inside one BAR. Bytes without a register read 0.
    fn bar_read(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &mut [u8]);

    /// Serves a write of 1 to 8 bytes inside one BAR.
    fn bar_write(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &[u8]);

    /// Name of the register that an access begins at, if there is one.
    fn register_name(&self, access: &RegisterAccess<'_>) -> Option<String>;

    /// Tells the fields of the register's value, if it has any that have names.
    fn describe_access(&self, access: &RegisterAccess<'_>, to: &mut dyn Visitor);

    /// The view the engine works through.
    fn host<'a>(&'a mut self, now: Instant, dma: &'a GuestMemory, monitor: &'a mut Monitor)
    -> Self::Host<'a>;

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
    fn snapshot(&self, engine: &Engine, table: Table, from: u64) -> Page;

    /// What the interface has counted since the device was made.
    fn counters(&self) -> FrontendCounters;

    /// Function level reset, or the client is gone: back to power-on, and no DMA after this returns. The engine has
    /// been reset by the caller.
    fn reset(&mut self);
}
