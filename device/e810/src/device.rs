//! The device: BAR0 register decoding, resets, and the front-end interface.
//!
//! # Spec
//! E810 interface, sections 1 and 2.

use std::mem;

use card::frontend::reason::{NO_REGISTER, WIDTH};
use card::frontend::table::Table;
use card::frontend::{Context, Frontend, HostContext, Interface, PortKind, PortNumber, RegisterAccess};
use card::limited;
use card::net::PortStats;
use card::telemetry::monitor::Rule;
use card::telemetry::reason::IgnoreReason;
use card::vfio::{Bar, Bars, MemoryBar, MsixLayout, PciFunction};
use engine::{Event, Instant};
use protocol::describe::Visitor;
use protocol::hca::e810::interrupt::OtherCauses;
use protocol::hca::e810::pci;
use protocol::hca::e810::regs::Register;
use protocol::hca::words;
use serde::Serialize;

use super::admin::ring::{RingName, RingRegister};
use super::admin::{dispatch, post_link_event};
use super::function::Function;
use super::options::{Options, Setup};
use super::rdma::RdmaHost;
use super::reason;
use super::state::{ResetType, State};
use super::vectors::RouteRegister;
use super::{lan, rdma, registers, snapshot, strict, trace};
use crate::reason::NO_QUEUE;

/// PFGEN_CTRL.PFSWR: requests a function reset.
const FUNCTION_RESET: u32 = 1;
/// GLGEN_RTRIG.CORER: requests a core reset.
const CORE_RESET: u32 = 1 << 0;
/// GLGEN_RTRIG.GLOBR: requests a global reset.
const GLOBAL_RESET: u32 = 1 << 1;
/// Position of the field RESET_TYPE in GLGEN_RSTAT.
const RESET_TYPE: u32 = 2;

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

#[derive(Debug)]
pub struct E810 {
    pub(super) state: State,
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
        Self { state: State::new(setup), counters: Counters::default() }
    }
}

impl E810 {
    /// Reads 32 bits of BAR0. Reading PFINT_OICR clears it.
    fn read_register(&mut self, port: &PortStats, offset: u64) -> u32 {
        let Some((register, half)) = Register::at(offset) else {
            self.counters.unknown_registers += 1;
            limited!(debug, offset, "driver accessed an unknown register");
            return 0;
        };
        let State { setup, function, lan, reset_type, .. } = &mut self.state;
        if let Some((ring, register)) = RingRegister::of(register) {
            return function.rings.get(ring).read(register);
        }
        if let Some(route) = RouteRegister::of(register) {
            return function.vectors.route(route);
        }
        if let Some(value) = rdma::read(&function.rdma, register) {
            return value;
        }
        if let Some(value) = lan.read(register) {
            let [a, b, c, d, e, ..] = lan::add_roce(value, register, port).to_le_bytes();
            return if half == 0 { u32::from_le_bytes([a, b, c, d]) } else { e.into() };
        }
        match register {
            // A reset completes before the register write returns, so these registers read as 0.
            Register::PfgenCtrl | Register::GlgenRtrig => 0,
            // The state of the device, bits 1:0, is 0 (active).
            Register::GlgenRstat => (*reset_type as u32) << RESET_TYPE,
            Register::PflanRxQalloc => registers::receive_queues(setup.options.queues.get()),
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
        if registers::is_past_limit(register, &self.state.setup.options) {
            return cx.monitor.ignored_store(NO_REGISTER, Bar::Bar0.number(), offset);
        }
        if let Some((ring, register)) = RingRegister::of(register) {
            self.state.function.rings.write(ring, register, value);
            if (ring, register) == (RingName::Send, RingRegister::Tail) {
                dispatch::run(&mut self.state, cx);
            }
            return;
        }
        let State { setup, function, lan, .. } = &mut self.state;
        if let Some(route) = RouteRegister::of(register) {
            return function.vectors.set_route(route, value);
        }
        if rdma::write(&mut function.rdma, setup, cx, register, value) {
            return;
        }
        if cx.monitor.is_strict() {
            lan.check_write(register, value, cx.monitor);
        }
        if lan.write(register, value) {
            match register {
                Register::QtxCommDbell(queue) if !lan.has_transmit(queue) => {
                    let what = format_args!("qtx_comm_dbell[{queue}]");
                    cx.monitor.ignored(NO_QUEUE, None, what, |_| {});
                }
                Register::QtxCommDbell(_) => cx.monitor.count_doorbell("transmit"),
                Register::QrxTail(_) => cx.monitor.count_doorbell("receive"),
                _ => {}
            }
            return;
        }
        let vectors = &mut function.vectors;
        match register {
            Register::PfgenCtrl if value & FUNCTION_RESET != 0 => {
                limited!(info, "driver requested a function reset");
                self.counters.function_resets += 1;
                self.state.reset_function(cx);
            }
            Register::GlgenRtrig if value & (CORE_RESET | GLOBAL_RESET) != 0 => {
                limited!(info, "driver requested a device reset");
                self.counters.device_resets += 1;
                let global = value & GLOBAL_RESET != 0;
                self.state.reset_device(cx, if global { ResetType::Global } else { ResetType::Core });
            }
            Register::PfintOicrEna => vectors.enable_other(cx, value),
            Register::GlintDynCtl(vector) => vectors.set_control(cx, vector, value),
            Register::GlintItr(index, vector) => vectors.set_interval(index, vector, value),
            Register::GlintRate(vector) => {
                vectors.set_rate_limit(vector, value);
                function.stored.write(register, value);
            }
            _ => {
                function.stored.write(register, value);
            }
        }
    }
}

impl AsRef<State> for E810 {
    fn as_ref(&self) -> &State {
        &self.state
    }
}

impl Frontend for E810 {
    type Host<'a> = RdmaHost<'a>;
    type Counters = Counters;

    const KEY: &'static str = "e810";
    // Section 1.2: `ice` does not write the MAC again when it recovers.
    const FLR_KEEPS_MAC: bool = true;
    const IGNORE_REASONS: &'static [&'static [IgnoreReason]] = &[reason::ALL];
    const TABLES: &'static [Table<Self>] = &snapshot::tables();

    fn pci(&self) -> PciFunction {
        let [a, b, c, d, e, f] = self.state.setup.mac.0;
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
                vectors: self.state.setup.options.vectors.get(),
                table: (Bar::Bar3, pci::MSIX_TABLE),
                pending: (Bar::Bar3, pci::MSIX_PBA),
            },
            // `ice` shares state among functions that have the same serial number, so each device in a guest must
            // have a unique one.
            serial_number: Some(u64::from_be_bytes([a, b, c, 0xff, 0xff, d, e, f])),
        }
    }

    fn port_kind(&self, _: PortNumber) -> PortKind {
        PortKind::Nic
    }

    fn bar_read(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &mut [u8]) {
        if cx.monitor.is_strict() {
            strict::read(&mut self.state.function.strict, bar, offset);
        }
        match bar {
            Bar::Bar0 => {
                let port = cx.port.stats();
                words::read(offset, data, |word| self.read_register(port, word).to_le_bytes());
            }
            // The MSI-X structures in BAR3 are handled by the VMM; the rest of the BAR is empty.
            _ => data.fill(0),
        }
    }

    fn bar_write(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &[u8]) {
        if bar == Bar::Bar0 {
            let State { setup, function: Function { strict, rings, .. }, .. } = &mut self.state;
            let view = strict::View { options: &setup.options, rings };
            cx.monitor.check(|| strict::write(strict, view, offset, data));
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
        RdmaHost { rdma: &mut self.state.function.rdma, cx }
    }

    fn work_request(&self, wr_id: u64) -> u64 {
        rdma::work_request(wr_id)
    }

    fn handle_event(&mut self, cx: &mut Context<'_>, event: &Event) {
        rdma::handle_event(&mut self.state.function.rdma, cx, event);
    }

    fn receive_frame(&mut self, cx: &mut Context<'_>, frame: &[u8]) {
        self.state.handle_frame(cx, frame);
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> bool {
        self.state.next_frame(cx, out)
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> bool {
        let State { function, lan, more_frames, .. } = &mut self.state;
        // Raise interrupts at the end of the worker thread's turn. All frames of the turn then share an interrupt.
        for cause in lan.take_causes() {
            function.vectors.fire(cx, cause);
        }
        for cause in function.rdma.take_causes() {
            function.vectors.fire(cx, cause);
        }
        if lan.take_malicious() {
            function.vectors.fire_other(cx, OtherCauses::MALICIOUS_DRIVER);
        }
        function.vectors.retry_blocked(cx);
        // Report remaining work if a poll stopped at its limit.
        mem::take(more_frames)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let Function { vectors, rdma, .. } = &self.state.function;
        [vectors.next_deadline(), rdma::next_deadline(rdma)].into_iter().flatten().min()
    }

    fn handle_deadline(&mut self, cx: &mut Context<'_>) {
        let Function { vectors, rdma, .. } = &mut self.state.function;
        vectors.handle_deadline(cx);
        rdma::flush_late(rdma, cx);
    }

    fn link_changed(&mut self, cx: &mut Context<'_>, _: bool) {
        post_link_event(&mut self.state, cx);
    }

    /// Reports an uncorrectable ECC error, which makes `ice` reset the function.
    fn fail(&mut self, cx: &mut Context<'_>) {
        self.state.function.vectors.fire_other(cx, OtherCauses::ECC);
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn reset(&mut self) {
        self.state.reset();
    }
}
