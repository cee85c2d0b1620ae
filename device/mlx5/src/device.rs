//! The PCI function: BAR0 and the effects of its registers.
//!
//! # Spec
//! mlx5 interface, sections 1, 2, 3.2 and 18.

use std::time::{Duration, Instant as Clock};

use card::frontend::reason::{NO_REGISTER, WIDTH};
use card::frontend::table::Table;
use card::frontend::{Context, Frontend, HostContext, Interface, PortKind, PortNumber, RegisterAccess};
use card::limited;
use card::management::NodeProfile;
use card::telemetry::monitor::Rule;
use card::telemetry::reason::IgnoreReason;
use card::vfio::{Bar, BarRange, Bars, MemoryBar, MsixLayout, PciFunction};
use engine::{Event, Instant};
use protocol::describe::Visitor;
use protocol::hca::mlx5::eqe::{Eqe, EventMask};
use protocol::hca::mlx5::input::Command;
use protocol::hca::mlx5::pci;
use protocol::hca::mlx5::regs::{MSIX_PENDING, MSIX_TABLE, NicState, Register};
use protocol::hca::words;
use protocol::ids::{Eqn, Qpn};
use serde::Serialize;

use super::check::Rejection;
use super::command_queue::{PendingSlots, Request, SlotFault};
use super::commands::{self, device as commands_device};
use super::doorbell::{self, Doorbell, Doorbells};
use super::function::Function;
use super::host::Mlx5Host;
use super::init_segment::{Effect, InitSegment};
use super::limits::{GIDS, PKEYS};
use super::netdev::steer::Link;
use super::options::{self, Options, Port, Setup};
use super::port::EthernetPort;
use super::reason::{self, NO_COMMAND_QUEUE, NO_UAR, NOT_INITIALISED, SLOT_NOT_OWNED};
use super::resources::Resources;
use super::send_queue::SendTag;
use super::snapshot;
use super::strict::{self, Strict};
use super::trace::{self, Executed};
use super::{mapped, uar};

/// Number of bytes in long commands after which further commands wait for the next turn. A driver can post 1 GiB with one
/// doorbell, which takes several seconds. 4 MiB take about 20 ms.
const COMMAND_BYTES_PER_TURN: usize = 4 << 20;

/// Maximum number of bytes of input and output in a command that does not count as long. The limit on messages per turn
/// is sufficient for short commands.
const SHORT_COMMAND: usize = 16 << 10;

/// Counters specific to this interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    pub starts: u64,
    /// Number of resets that the driver requested by writing the NIC state.
    pub resets: u64,
    pub unknown_registers: u64,
}

/// A ConnectX with an Ethernet or InfiniBand port.
#[derive(Debug)]
pub struct Mlx5 {
    setup: Setup,
    segment: InitSegment,
    doorbells: Doorbells,
    /// Commands that wait for a later turn.
    pending: PendingSlots,
    /// Bytes of input and output of the long commands that have been executed in this turn.
    command_bytes: usize,
    function: Function,
    counters: Counters,
    strict: Strict,
}

impl Interface for Mlx5 {
    type Options = Options;

    const NAME: &'static str = "mlx5";
    const DRIVERS: &'static [&'static str] = &["mlx5_core", "mlx5_ib"];
    const RULES: &'static [&'static Rule] = strict::rules::ALL;
    const NEEDS_TRAPS: Option<&'static str> = None;

    fn new(setup: Setup) -> Self {
        Self {
            setup,
            segment: InitSegment::default(),
            doorbells: Doorbells::default(),
            pending: PendingSlots::default(),
            command_bytes: 0,
            function: Function::default(),
            counters: Counters::default(),
            strict: Strict::default(),
        }
    }
}

impl AsRef<Function> for Mlx5 {
    fn as_ref(&self) -> &Function {
        &self.function
    }
}

impl Mlx5 {
    /// Returns the objects of an initialised device. Tests use this method to fill large tables.
    #[cfg(test)]
    pub(crate) fn resources_mut(&mut self) -> Option<&mut super::resources::Resources> {
        self.function.resources_mut()
    }

    /// Returns the objects, unless the data path must not use them. Section 18.2: once the driver has read a failure,
    /// it frees all queues and buffers without destroying them.
    fn running(&self) -> Option<&Resources> {
        self.function.resources().filter(|_| !self.segment.health.is_failure_read())
    }

    /// Like [`Self::running`], but returns a mutable reference.
    fn running_mut(&mut self) -> Option<&mut Resources> {
        self.function.resources_mut().filter(|_| !self.segment.health.is_failure_read())
    }

    /// Returns the port state that the netdev needs.
    fn link(&self, cx: &Context<'_>) -> Link {
        let port = self.function.resources().and_then(|resources| resources.port.ethernet());
        Link { is_up: cx.port.is_up(), max_frame: port.map_or(0, EthernetPort::max_frame) }
    }

    fn read_register(&mut self, cx: &mut Context<'_>, offset: u64) -> u32 {
        match Register::at(offset) {
            None => self.counters.unknown_registers += 1,
            Some((Register::QueueAddressLow, _)) if self.segment.health.mark_state_read() => self.stop(cx),
            Some(_) => {}
        }
        self.segment.read(offset, cx.now)
    }

    /// Stops the data path of a failed device. Commands still execute, because the driver may not yet have abandoned
    /// those that it has already issued.
    fn stop(&mut self, cx: &mut Context<'_>) {
        limited!(info, "data path stopped: the driver has detected the injected failure");
        if let Some(resources) = self.function.resources_mut() {
            resources.reset_qps(cx);
            resources.drop_held_events();
        }
    }

    fn write_register(&mut self, cx: &mut Context<'_>, offset: u64, value: u32) {
        let Some((register, _)) = Register::at(offset) else {
            return cx.monitor.ignored_store(NO_REGISTER, Bar::Bar0.number(), offset);
        };
        if register == Register::QueueAddressLow {
            self.strict = Strict::default();
            self.pending = PendingSlots::default();
        }
        match self.segment.write(register, value) {
            Effect::None => {}
            Effect::Commands(slots) => {
                self.pending.add(slots);
                self.execute_pending(cx);
            }
            Effect::Reset => {
                limited!(info, "driver requested a reset");
                self.counters.resets += 1;
                self.reset_function(cx);
            }
            // The driver has abandoned all objects.
            Effect::Restart => self.reset_function(cx),
        }
    }

    fn reset_function(&mut self, cx: &mut Context<'_>) {
        commands_device::reset(&mut self.function, &self.setup, cx);
        self.doorbells = Doorbells::default();
        self.pending = PendingSlots::default();
    }

    /// Executes pending commands in order, until the long commands of this turn reach [`COMMAND_BYTES_PER_TURN`].
    fn execute_pending(&mut self, cx: &mut Context<'_>) {
        while self.command_bytes < COMMAND_BYTES_PER_TURN
            && let Some(slot) = self.pending.take_next()
        {
            self.execute(cx, slot);
        }
    }

    /// Executes the command in a slot and returns the slot to the driver.
    fn execute(&mut self, cx: &mut Context<'_>, slot: usize) {
        let begun = Clock::now();
        let began = cx.monitor.trace().map(|trace| trace.now());
        let request = match Request::take(cx.dma, self.segment.slot(slot)) {
            Ok(request) => request,
            Err(fault) => return self.report_fault(cx, slot, &fault),
        };
        let bytes = request.input.len() + request.output_len;
        if bytes > SHORT_COMMAND {
            self.command_bytes += bytes;
        }
        cx.monitor.check(|| self.strict.command(slot, request.token));
        let event_eq = self.command_eq();
        let command = commands::parse(&request.input);
        let Self { function, setup, .. } = self;
        let checked = command.as_ref().ok().filter(|_| cx.monitor.is_strict());
        let checked = checked.map(|(_, command)| strict::command(function, command, cx.dma));
        let result = command.and_then(|(user, command)| {
            commands::execute(function, setup, cx, user, &command, request.output_len)
        });
        let command = command.ok().map(|(_, command)| command);
        let name = command.map_or("unknown", |command| command.opcode().name());
        match &result {
            Ok(_) => limited!(debug, command = name, "command completed"),
            Err(rejection) => {
                // In hexadecimal, as in the messages that `mlx5_core` logs.
                let syndrome = format_args!("{:#x}", rejection.check.syndrome());
                limited!(warn, command = name, %syndrome, "command rejected: {rejection}");
            }
        }
        // Violations found in a rejected command are not reported, since the command already returns an error status.
        if let (Some(found), Ok(_)) = (checked, &result) {
            found.report(cx.monitor);
        }
        if let (Some(Command::EnableHca(_)), Ok(_)) = (&command, &result) {
            self.counters.starts += 1;
            // Section 20, M-21: the command resets the device. The UAR pages may have a different size afterwards.
            self.doorbells = Doorbells::default();
        }
        let status = trace::status_name(result.as_ref().err());
        cx.monitor.count_command(name, status, begun.elapsed());
        if let (Some(trace), Some(began)) = (cx.monitor.trace(), began) {
            let result = result.as_deref();
            let (input, command) = (&request.input[..], command.as_ref());
            trace::command(trace, &Executed { slot, input, command, result, began });
        }
        let header = result.as_ref().err().map(|rejection| rejection.header().emit());
        let output = match (&result, &header) {
            (Ok(output), _) => &output[..],
            (Err(_), header) => header.as_ref().map_or(&[][..], |header| &header[..]),
        };
        if !request.finish(cx.dma, output) {
            limited!(
                warn,
                command = name,
                "cannot write the command output: its buffer is not in mapped memory"
            );
        }
        self.complete(cx, slot, event_eq);
    }

    /// Returns the EQ that receives command events.
    fn command_eq(&self) -> Option<Eqn> {
        self.function.resources().and_then(|resources| resources.taker(EventMask::COMMAND))
    }

    /// Raises a command event, unless the command has created or destroyed the EQ for command events. The driver polls
    /// for the completion of those two commands (section 20, M-7).
    fn complete(&mut self, cx: &mut Context<'_>, slot: usize, before: Option<Eqn>) {
        if before.is_some()
            && before == self.command_eq()
            && let Some(resources) = self.function.resources_mut()
        {
            resources.raise(cx, &Eqe::Command(1 << slot));
        }
    }

    fn report_fault(&mut self, cx: &mut Context<'_>, slot: usize, fault: &SlotFault) {
        let what = format_args!("cmd_dbell[{slot}]");
        match fault {
            SlotFault::Unmapped => cx.monitor.ignored(NO_COMMAND_QUEUE, None, what, |_| {}),
            SlotFault::NotOwned => cx.monitor.ignored(SLOT_NOT_OWNED, None, what, |_| {}),
            SlotFault::Undelivered(undelivered) => {
                let Rejection { check, .. } = undelivered.rejection;
                let delivery = undelivered.delivery.name();
                limited!(warn, slot, delivery, "command delivery failed: {}", undelivered.rejection);
                cx.monitor.count_command("unknown", check.status().name(), Duration::ZERO);
                let event_eq = self.command_eq();
                self.complete(cx, slot, event_eq);
            }
        }
    }

    /// Returns the log2 of the UAR page size, in units of 4 KiB.
    fn log_uar_page(&self) -> u16 {
        self.function.resources().map_or(0, |resources| resources.uars.log_page())
    }

    fn write_uar(&mut self, cx: &mut Context<'_>, bar_offset: u64, data: &[u8]) {
        let Some((page, offset)) = doorbell::place(self.log_uar_page(), bar_offset) else { return };
        let resources = self.function.resources_mut();
        // Writes to a stopped device are not checked, since a driver may still arm its event queues once after stopping
        // the device.
        if self.segment.health.nic_state() == NicState::Normal.code() {
            cx.monitor.check(|| strict::uar_write(resources.as_deref(), page));
        }
        let Some(resources) = resources else {
            return cx.monitor.ignored_store(NOT_INITIALISED, Bar::Bar0.number(), bar_offset);
        };
        if !resources.uars.contains(page.get()) {
            return cx.monitor.ignored_store(NO_UAR, Bar::Bar0.number(), bar_offset);
        }
        match self.doorbells.store(page, offset, data) {
            // Doorbells of EQs do not access memory, and the driver may still wait for the event of a command.
            Ok(Some(Doorbell::ArmCq(_) | Doorbell::Send { .. })) if self.segment.health.is_failure_read() => {
            }
            Ok(Some(doorbell)) if resources.uars.is_mapped(page) => {
                resources.handle_mapped_doorbell(cx, page, &doorbell);
            }
            Ok(Some(doorbell)) => resources.handle_doorbell(cx, page, &doorbell),
            Ok(None) => {}
            Err(reason) => cx.monitor.ignored_store(reason, Bar::Bar0.number(), bar_offset),
        }
    }
}

impl Frontend for Mlx5 {
    type Host<'a> = Mlx5Host<'a>;
    type Counters = Counters;

    const KEY: &'static str = "connectx";
    const IGNORE_REASONS: &'static [&'static [IgnoreReason]] = &[reason::ALL];
    const TABLES: &'static [Table<Self>] = &snapshot::tables();

    fn pci(&self) -> PciFunction {
        PciFunction {
            vendor: pci::VENDOR_ID,
            device: self.setup.options.device_id(),
            subsystem_vendor: pci::VENDOR_ID,
            subsystem: pci::SUBSYSTEM_ID,
            revision: pci::REVISION,
            class: match self.setup.options.port {
                Port::Ethernet => pci::ETHERNET_CLASS,
                Port::InfiniBand => pci::INFINIBAND_CLASS,
            },
            bars: Bars::new([(
                Bar::Bar0,
                MemoryBar { len: self.setup.options.limits.bar_len(), prefetchable: true },
            )]),
            msix: MsixLayout {
                vectors: self.setup.options.vectors.get(),
                table: (Bar::Bar0, MSIX_TABLE),
                pending: (Bar::Bar0, MSIX_PENDING),
            },
            serial_number: None,
        }
    }

    fn port_kind(&self, _: PortNumber) -> PortKind {
        if self.setup.options.port == Port::Ethernet {
            return PortKind::Nic;
        }
        PortKind::InfiniBand(NodeProfile {
            vendor_id: 0x0002c9,
            device_id: self.setup.options.device_id(),
            revision: pci::REVISION.into(),
            gids: GIDS,
            pkeys: PKEYS,
            mtu: 5,
            capabilities: 0x0251_0a68,
            // Section 14.1: the port is always open; no command opens it.
            opened_by_software: false,
            // Section 14.1: the agents answer performance MADs even if the driver listens. mlx5_ib itself would answer
            // a request for ClassPortInfo with a header of zeros.
            always_answers_perf: true,
        })
    }

    fn map_doorbells(&mut self) -> Option<BarRange> {
        self.setup.options.doorbells = options::Doorbells::Mapped;
        Some(BarRange { bar: Bar::Bar0, offsets: uar::mapped_offsets(&self.setup.options) })
    }

    fn doorbell_words(&self, words: &mut Vec<u64>) {
        if let Some(resources) = self.running() {
            mapped::words(&resources.polled, words);
        }
    }

    fn bar_read(&mut self, cx: &mut Context<'_>, _: Bar, offset: u64, data: &mut [u8]) {
        match doorbell::place(self.log_uar_page(), offset) {
            // Doorbells are write-only and read as 0.
            Some(_) => data.fill(0),
            None => words::read(offset, data, |word| self.read_register(cx, word).to_be_bytes()),
        }
    }

    fn bar_write(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &[u8]) {
        let log_uar_page = self.log_uar_page();
        cx.monitor.check(|| strict::write(log_uar_page, offset, data));
        if doorbell::place(log_uar_page, offset).is_some() {
            return self.write_uar(cx, offset, data);
        }
        if !words::is_word_write(offset, data) {
            cx.monitor.ignored_store(WIDTH, bar.number(), offset);
        }
        for (offset, word) in words::writes(offset, data) {
            self.write_register(cx, offset, u32::from_be_bytes(word));
        }
    }

    fn register_name(&self, access: &RegisterAccess<'_>) -> Option<String> {
        trace::register_name(self.log_uar_page(), access)
    }

    fn describe_access(&self, access: &RegisterAccess<'_>, to: &mut dyn Visitor) {
        trace::describe_access(self.log_uar_page(), access, to);
    }

    fn host<'a>(&'a mut self, cx: HostContext<'a>) -> Self::Host<'a> {
        Mlx5Host { resources: self.running_mut(), cx }
    }

    /// Returns the index of a send WQE's first block, or the entry number of a receive.
    fn work_request(&self, wr_id: u64) -> u64 {
        SendTag::from_bits(wr_id).index().into()
    }

    fn can_receive(&mut self, qpn: Qpn, dma: &card::memory::GuestMemory) -> bool {
        self.running_mut().is_some_and(|resources| resources.can_receive(qpn, dma))
    }

    fn explain_queue(&self, number: Qpn) -> Option<Vec<String>> {
        self.function.resources()?.explain_queue(number.get())
    }

    fn handle_event(&mut self, cx: &mut Context<'_>, event: &Event) {
        let Some(resources) = self.running_mut() else { return };
        match event {
            Event::Completion(completion) => resources.complete(cx, completion),
            Event::Async { qpn, event } => resources.qp_event(cx, *qpn, *event),
        }
    }

    fn receive_frame(&mut self, cx: &mut Context<'_>, frame: &[u8]) {
        let link = self.link(cx);
        if let Some(resources) = self.running_mut() {
            resources.receive_frame(cx, frame, link, Resources::steer);
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> bool {
        let link = self.link(cx);
        let resources = self.running_mut();
        resources.is_some_and(|resources| resources.next_frame(cx, out, link, Resources::steer))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let resources = self.running()?;
        let deadlines = [resources.netdev.flushed.deadline(), resources.delayed.deadline()];
        deadlines.into_iter().flatten().min()
    }

    fn handle_deadline(&mut self, cx: &mut Context<'_>) {
        if let Some(resources) = self.running_mut() {
            resources.netdev.poll_flushed(cx.now);
            resources.write_expired_events(cx);
        }
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> bool {
        // Changed QPs need no action, since a QP's context is updated from the engine when software queries it.
        while cx.engine.poll_dirty().is_some() {}
        self.command_bytes = 0;
        let has_executed = !self.pending.is_empty();
        self.execute_pending(cx);
        let Some(resources) = self.running_mut() else { return has_executed };
        resources.report_reregistration(cx);
        resources.end_turn(cx);
        resources.poll_rounds(cx) || resources.netdev.has_more() || has_executed
    }

    fn link_changed(&mut self, cx: &mut Context<'_>, up: bool) {
        if let Some(resources) = self.running_mut() {
            resources.report_link(cx, up);
        }
    }

    /// Injects a failure. Section 18.2: the driver polls the health buffer every two seconds and restarts the device
    /// after a failure.
    fn fail(&mut self, _: &mut Context<'_>) {
        self.segment.health.fail();
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn reset(&mut self) {
        self.strict = Strict::default();
        self.segment = InitSegment::default();
        self.doorbells = Doorbells::default();
        self.pending = PendingSlots::default();
        self.function.disable();
    }
}
