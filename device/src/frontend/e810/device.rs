//! The device: register decoding of BAR0, resets, and the front-end interface.
//!
//! # Spec
//! E810 interface, sections 1 and 2.

use std::mem;

use engine::{Event, Instant};
use protocol::describe::Visitor;
use protocol::hca::e810::interrupt::OtherCauses;
use protocol::hca::e810::pci;
use protocol::hca::e810::regs::Register;
use protocol::hca::words;
use serde::Serialize;

use super::admin::dispatch;
use super::admin::post_link_event;
use super::admin::ring::{RingName, RingRegister};
use super::function::{Function, Leaves};
use super::lan::Lan;
use super::link::Link;
use super::nvm::Nvm;
use super::options::Options;
use super::package::Package;
use super::pf_config::PfConfig;
use super::rdma::{Rdma, RdmaHost};
use super::reason;
use super::vectors::RouteRegister;
use super::{rdma, registers, snapshot, strict, trace};
use crate::frontend::e810::reason::NO_QUEUE;
use crate::frontend::reason::{NO_REGISTER, WIDTH};
use crate::frontend::table::Table;
use crate::frontend::{
    self, Context, Frontend, HostContext, Interface, PortKind, PortNumber, RegisterAccess,
};
use crate::limited;
use crate::telemetry::monitor::Rule;
use crate::telemetry::reason::IgnoreReason;
use crate::vfio::{Bar, Bars, MemoryBar, MsixLayout, PciFunction};

/// PFGEN_CTRL.PFSWR: function reset.
const FUNCTION_RESET: u32 = 1;
/// GLGEN_RTRIG.CORER and GLOBR: core or global reset.
const DEVICE_RESETS: u32 = 0b11;

/// Configuration of a device, fixed at its creation.
pub type Setup = frontend::Setup<Options>;

/// Counters specific to this front-end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Function resets through PFGEN_CTRL.
    pub function_resets: u64,
    /// Core or global resets through GLGEN_RTRIG.
    pub device_resets: u64,
    /// Accesses to unknown registers.
    pub unknown_registers: u64,
}

/// An E810-C.
#[derive(Debug)]
pub struct E810 {
    pub(super) setup: Setup,
    pub(super) nvm: Nvm,
    pub(super) package: Package,
    pub(super) link: Link,
    pub(super) function: Function,
    /// Its statistics survive resets.
    pub(super) lan: Lan,
    /// The last poll for a frame stopped at its bound, so more frames may be pending.
    pub(super) more_frames: bool,
    counters: Counters,
}

impl Interface for E810 {
    type Options = Options;

    const NAME: &'static str = "E810";
    const DRIVERS: &'static [&'static str] = &["ice", "irdma"];
    const RULES: &'static [&'static Rule] = strict::rules::ALL;
    const NEEDS_TRAPS: Option<&'static str> =
        Some("share one page among all guest processes, and a doorbell can overwrite an earlier one");

    fn new(setup: Setup) -> Self {
        let function = Function::new(&setup);
        Self {
            nvm: Nvm::default(),
            package: Package::default(),
            link: Link::new(setup.options.link_speed),
            function,
            lan: Lan::new(setup.options.queues.get()),
            more_frames: false,
            counters: Counters::default(),
            setup,
        }
    }
}

impl E810 {
    /// Reads 32 bits of BAR0. Some reads have side effects.
    fn read_register(&mut self, offset: u64) -> u32 {
        let Some((register, half)) = Register::at(offset) else {
            self.counters.unknown_registers += 1;
            limited!(debug, offset, "driver accessed an unknown register");
            return 0;
        };
        let function = &mut self.function;
        if let Some((ring, register)) = RingRegister::of(register) {
            return function.rings.get(ring).read(register);
        }
        if let Some(route) = RouteRegister::of(register) {
            return function.vectors.route(route);
        }
        if let Some(value) = rdma::read(self, register) {
            return value;
        }
        let function = &mut self.function;
        if let Some(value) = self.lan.read(register) {
            let [a, b, c, d, e, ..] = value.to_le_bytes();
            return if half == 0 { u32::from_le_bytes([a, b, c, d]) } else { e.into() };
        }
        match register {
            // Resets complete before the write returns.
            Register::PfgenCtrl | Register::GlgenRtrig => 0,
            Register::PflanRxQalloc => registers::receive_queues(self.setup.options.queues.get()),
            Register::PfintOicr => function.vectors.read_other(),
            Register::PfintOicrEna => function.vectors.other_enabled(),
            Register::GlintDynCtl(vector) => function.vectors.control(vector),
            Register::GlintItr(index, vector) => function.vectors.interval(index, vector),
            _ => registers::constant(register).unwrap_or_else(|| function.stored.read(register)),
        }
    }

    fn write_register(&mut self, cx: &mut Context<'_>, offset: u64, value: u32) {
        let Some((register, 0)) = Register::at(offset) else {
            self.counters.unknown_registers += 1;
            return cx.monitor.ignored_store(NO_REGISTER, Bar::Bar0.number(), offset);
        };
        if let Some((ring, register)) = RingRegister::of(register) {
            self.function.rings.write(ring, register, value);
            if (ring, register) == (RingName::Send, RingRegister::Tail) {
                dispatch::run(self, cx);
            }
            return;
        }
        if let Some(route) = RouteRegister::of(register) {
            return self.function.vectors.set_route(route, value);
        }
        if rdma::write(self, cx, register, value) {
            return;
        }
        if cx.monitor.is_strict() {
            self.lan.check_write(register, value, cx.monitor);
        }
        if self.lan.write(register, value) {
            match register {
                Register::QtxCommDbell(queue) if !self.lan.has_transmit(queue) => {
                    let what = format_args!("qtx_comm_dbell[{queue}]");
                    cx.monitor.ignored(NO_QUEUE, None, what, |_| {});
                }
                Register::QtxCommDbell(_) => cx.monitor.count_doorbell("transmit"),
                Register::QrxTail(_) => cx.monitor.count_doorbell("receive"),
                _ => {}
            }
            return;
        }
        let vectors = &mut self.function.vectors;
        match register {
            Register::PfgenCtrl if value & FUNCTION_RESET != 0 => {
                limited!(info, "driver requested a function reset");
                self.counters.function_resets += 1;
                self.reset_function(cx);
            }
            Register::GlgenRtrig if value & DEVICE_RESETS != 0 => self.reset_device(cx),
            Register::PfintOicrEna => vectors.enable_other(cx, value),
            Register::GlintDynCtl(vector) => vectors.set_control(cx, vector, value),
            Register::GlintItr(index, vector) => vectors.set_interval(index, vector, value),
            _ => {
                self.function.stored.write(register, value);
            }
        }
    }

    /// Core or global reset: a function reset that also drops the package. The driver is notified first,
    /// while its interrupt configuration is still in place.
    fn reset_device(&mut self, cx: &mut Context<'_>) {
        limited!(info, "driver requested a device reset");
        self.counters.device_resets += 1;
        self.function.vectors.fire_other(cx, OtherCauses::GLOBAL_RESET);
        self.reset_function(cx);
        self.function.vectors.set_other(OtherCauses::GLOBAL_RESET);
        self.package = Package::default();
    }

    fn reset_function(&mut self, cx: &mut Context<'_>) {
        self.clear_configuration(cx);
        self.function = Function::new(&self.setup);
        cx.port.reset();
    }

    /// Drops VSIs, rules and queues of the function, for "clear PF configuration" (02A4) and every reset.
    pub(super) fn clear_configuration(&mut self, cx: &mut Context<'_>) {
        self.reset_rdma(cx);
        cx.port.set_rdma(false);
        self.function.pf_config = PfConfig::default();
        self.function.leaves = Leaves::default();
        self.lan.reset();
    }

    /// Resets the RDMA half: drops all objects and stops writing to their queues.
    pub(super) fn reset_rdma(&mut self, cx: &mut Context<'_>) {
        cx.engine.reset(self.setup.engine);
        cx.monitor.forget_qps();
        self.function.rdma = Rdma::new(self.setup.options.limits);
    }

    /// Enables or disables the link on behalf of the driver. A link event is posted in any case.
    pub(super) fn set_link_enabled(&mut self, cx: &mut Context<'_>, enabled: bool) {
        if self.link.set_enabled(enabled) {
            limited!(info, enabled, "driver enabled or disabled the link");
        }
        post_link_event(self, cx);
    }
}

impl Frontend for E810 {
    type Host<'a> = RdmaHost<'a>;
    type Counters = Counters;

    const KEY: &'static str = "e810";
    const IGNORE_REASONS: &'static [&'static [IgnoreReason]] = &[reason::ALL];
    const TABLES: &'static [Table<Self>] = snapshot::TABLES;

    const NIC: bool = true;

    fn pci(&self) -> PciFunction {
        let [a, b, c, d, e, f] = self.setup.mac.0;
        PciFunction {
            vendor: pci::VENDOR_ID,
            device: pci::DEVICE_ID,
            subsystem_vendor: pci::VENDOR_ID,
            subsystem: pci::SUBSYSTEM_ID,
            revision: pci::REVISION,
            class: pci::CLASS_CODE,
            bars: Bars::new([
                (Bar::Bar0, MemoryBar { len: pci::BAR0_LEN, prefetchable: true }),
                (Bar::Bar3, MemoryBar { len: pci::MSIX_BAR_LEN, prefetchable: true }),
            ]),
            msix: MsixLayout {
                vectors: self.setup.options.vectors.get(),
                table: (Bar::Bar3, pci::MSIX_TABLE),
                pending: (Bar::Bar3, pci::MSIX_PBA),
            },
            // `ice` shares state among functions with equal serial numbers, so they must differ within a guest.
            serial_number: Some(u64::from_be_bytes([a, b, c, 0xff, 0xff, d, e, f])),
        }
    }

    fn port_kind(&self, _: PortNumber) -> PortKind {
        PortKind::Ethernet
    }

    fn bar_read(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &mut [u8]) {
        if cx.monitor.is_strict() {
            strict::read(&mut self.function.strict, bar, offset);
        }
        match bar {
            Bar::Bar0 => words::read(offset, data, |word| self.read_register(word).to_le_bytes()),
            // The MSI-X structures in BAR3 are handled by the VMM; the rest of the BAR is empty.
            _ => data.fill(0),
        }
    }

    fn bar_write(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &[u8]) {
        if bar == Bar::Bar0 {
            if cx.monitor.is_strict() {
                let Function { strict, rings, .. } = &mut self.function;
                let view = strict::View { options: &self.setup.options, rings };
                strict::write(strict, view, offset, data).report(cx.monitor);
            }
            if !words::is_word_write(offset, data) {
                cx.monitor.ignored_store(WIDTH, bar.number(), offset);
            }
            for (offset, word) in words::writes(offset, data) {
                self.write_register(cx, offset, u32::from_le_bytes(word));
            }
        }
    }

    fn register_name(&self, access: &RegisterAccess<'_>) -> Option<String> {
        trace::register_name(access)
    }

    fn describe_access(&self, access: &RegisterAccess<'_>, to: &mut dyn Visitor) {
        trace::describe_access(access, to);
    }

    fn host<'a>(&'a mut self, cx: HostContext<'a>) -> Self::Host<'a> {
        RdmaHost { rdma: &mut self.function.rdma, cx }
    }

    fn work_request(&self, wr_id: u64) -> u64 {
        rdma::work_request(wr_id)
    }

    fn handle_event(&mut self, cx: &mut Context<'_>, event: Event) {
        rdma::handle_event(&mut self.function.rdma, cx, event);
    }

    fn receive_frame(&mut self, cx: &mut Context<'_>, frame: &[u8]) {
        self.handle_frame(cx, frame);
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> bool {
        self.next_frame(cx, out)
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> bool {
        // Fire causes at the end of a turn, so that many frames share one interrupt.
        for cause in self.lan.take_causes() {
            self.function.vectors.fire(cx, cause);
        }
        for cause in self.function.rdma.take_causes() {
            self.function.vectors.fire(cx, cause);
        }
        if self.lan.take_malicious() {
            self.function.vectors.fire_other(cx, OtherCauses::MALICIOUS_DRIVER);
        }
        self.function.vectors.retry_blocked(cx);
        // Frames that wait for room towards the wire are the caller's responsibility.
        mem::take(&mut self.more_frames)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.function.vectors.next_deadline(), rdma::next_deadline(&self.function.rdma)];
        deadlines.into_iter().flatten().min()
    }

    fn handle_deadline(&mut self, cx: &mut Context<'_>) {
        self.function.vectors.handle_deadline(cx);
        rdma::flush_late(&mut self.function.rdma, cx);
    }

    fn link_changed(&mut self, cx: &mut Context<'_>, _: bool) {
        post_link_event(self, cx);
    }

    /// Reports an uncorrectable ECC error, on which `ice` resets the function.
    fn fail(&mut self, cx: &mut Context<'_>) {
        self.function.vectors.fire_other(cx, OtherCauses::ECC);
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn reset(&mut self) {
        self.lan.reset();
        self.function = Function::new(&self.setup);
        self.package = Package::default();
        self.link = Link::new(self.setup.options.link_speed);
    }
}
