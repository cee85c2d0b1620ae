//! A test bench for the NIC without the HCA around it. A test can choose the TIRs that receive a frame.

use card::frontend::table::{Page, TableContext};
use card::frontend::{Context, Frontend as _};
use card::memory::GuestMemory;
use card::net::Port;
use card::telemetry::monitor::Monitor;
use card::vfio::Bar;
use card::vfio::msix::Interrupts;
use card::vfio::pci::ConfigSpace;
use engine::{Engine, Instant};
use protocol::ids::Tirn;
use protocol::net::layers::Layers;

use super::*;
use crate::limits::netdev::MAX_FRAME;
use crate::netdev::steer::{Deliveries, Delivery, Link};
use crate::resources::Resources;

pub(super) const UP: Link = Link { is_up: true, max_frame: MAX_FRAME };

pub(super) struct Bench {
    mlx5: Mlx5,
    engine: Engine,
    config: ConfigSpace,
    pub(super) dma: GuestMemory,
    port: Port,
    interrupts: Interrupts,
    pub(super) monitor: Monitor,
    pub(super) link: Link,
    /// TIRs that receive every frame. Not used if the flow tables select the TIRs.
    pub(super) tirs: Vec<Tirn>,
    pub(super) uses_flow_tables: bool,
    now: Instant,
}

macro_rules! context {
    ($bench:ident) => {
        Context {
            now: $bench.now,
            config: &$bench.config,
            engine: &mut $bench.engine,
            dma: &$bench.dma,
            port: &mut $bench.port,
            management: None,
            interrupts: &mut $bench.interrupts,
            monitor: &mut $bench.monitor,
        }
    };
}

/// Returns deliveries that pass the unmodified frame to each TIR once.
pub(super) fn to(tirs: &[Tirn]) -> Deliveries {
    tirs.iter().map(|tirn| Delivery { tirn: *tirn, tag: 0x0012_3456, edited: None }).collect()
}

impl Bench {
    pub(super) fn new() -> Self {
        let mlx5 = Mlx5::new(setup(1, Options::default()));
        let mut dma = GuestMemory::default();
        dma.map_zeros(0, 1 << 30);
        Self {
            engine: Engine::new(engine::Config::default()),
            config: ConfigSpace::new(&mlx5.pci()),
            dma,
            port: Port::of_nic(Identity::from_lid(Lid::new(1))),
            interrupts: Interrupts::new(64),
            monitor: Monitor::default(),
            link: UP,
            tirs: Vec::new(),
            uses_flow_tables: false,
            now: Instant::ZERO,
            mlx5,
        }
    }

    /// Creates a device with mapped doorbells.
    pub(super) fn mapped() -> Self {
        let mut bench = Self::new();
        bench.mlx5.map_doorbells().unwrap();
        bench
    }

    pub(super) fn resources(&mut self) -> &mut Resources {
        self.mlx5.resources_mut().unwrap()
    }

    /// Advances the clock to the next deadline and handles it. Panics if there is no deadline.
    pub(super) fn expire(&mut self) {
        self.now = self.next_deadline().unwrap();
        let cx = &mut context!(self);
        self.mlx5.handle_deadline(cx);
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.mlx5.next_deadline()
    }

    pub(super) fn explain(&self, number: u32) -> Vec<String> {
        self.mlx5.explain_queue(Qpn::new(number)).unwrap_or_default()
    }

    /// Returns one page of a table, starting at row `from`.
    pub(super) fn page(&self, name: &str, from: u64) -> Page {
        let table = Mlx5::TABLES.iter().find(|table| table.spec.name == name).unwrap();
        let Self { engine, monitor, port, .. } = self;
        (table.page)(&self.mlx5, &TableContext { engine, addresses: port.addresses(), monitor, from })
    }

    /// Returns the first page of a table, as one string per row with the cells separated by spaces.
    pub(super) fn table(&self, name: &str) -> Vec<String> {
        self.page(name, 0).rows.cells().iter().map(|row| row.join(" ")).collect()
    }

    fn steering(&self) -> impl Fn(&mut Resources, &[u8], &Layers) -> Deliveries + use<> {
        let deliveries = (!self.uses_flow_tables).then(|| to(&self.tirs));
        move |resources: &mut Resources, frame: &[u8], layers: &Layers| match &deliveries {
            Some(deliveries) => deliveries.clone(),
            None => resources.steer(frame, layers),
        }
    }

    /// Receives a frame from the wire.
    pub(super) fn receive(&mut self, frame: &[u8]) {
        let Self { link, .. } = *self;
        let (steer, cx) = (self.steering(), &mut context!(self));
        self.mlx5.resources_mut().unwrap().receive_frame(cx, frame, link, steer);
    }

    /// Receives a frame from the wire, delivered as `delivery` specifies.
    pub(super) fn receive_as(&mut self, frame: &[u8], delivery: &Delivery) {
        let (link, cx) = (self.link, &mut context!(self));
        let steer = |_: &mut Resources, _: &[u8], _: &Layers| Deliveries::from_iter([delivery.clone()]);
        self.mlx5.resources_mut().unwrap().receive_frame(cx, frame, link, steer);
    }

    /// Passes a frame from the wire to the device. The flow tables select the TIRs.
    pub(super) fn receive_from_wire(&mut self, frame: &[u8]) {
        let cx = &mut context!(self);
        self.mlx5.receive_frame(cx, frame);
    }

    /// Injects a device failure, as `hcactl fail` does.
    pub(super) fn fail(&mut self) {
        let cx = &mut context!(self);
        self.mlx5.fail(cx);
    }

    /// Returns the device's next frame to transmit.
    pub(super) fn poll_frame(&mut self) -> Option<Vec<u8>> {
        let (cx, mut out) = (&mut context!(self), Vec::new());
        self.mlx5.poll_frame(cx, &mut out).then_some(out)
    }

    /// Returns the next frame to transmit.
    pub(super) fn next_frame(&mut self) -> Option<Vec<u8>> {
        let (link, mut out) = (self.link, Vec::new());
        let (steer, cx) = (self.steering(), &mut context!(self));
        self.mlx5.resources_mut()?.next_frame(cx, &mut out, link, steer).then_some(out)
    }

    /// Returns all frames to transmit.
    pub(super) fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            match self.next_frame() {
                Some(frame) => frames.push(frame),
                None if !self.resources().netdev.has_more() => return frames,
                None => {}
            }
        }
    }
}

impl drivers::Bus for Bench {
    fn configure(&mut self, offset: u64, bytes: &[u8]) {
        // The bench has no MSI-X gate, so ignore the effect of the write.
        let _effect = self.config.write(offset, bytes);
    }

    fn store(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        let cx = &mut context!(self);
        self.mlx5.bar_write(cx, Bar::ALL[usize::from(bar)], offset, bytes);
    }

    fn load<const LEN: usize>(&mut self, bar: u8, offset: u64) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let cx = &mut context!(self);
        self.mlx5.bar_read(cx, Bar::ALL[usize::from(bar)], offset, &mut bytes);
        bytes
    }

    fn poke(&mut self, at: u64, bytes: &[u8]) {
        self.dma.poke(at, bytes);
    }

    fn peek(&mut self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.dma.look(at, &mut bytes);
        bytes
    }
}
