//! The PCI function: BAR0 and BAR2, and the effects of their registers.
//!
//! # Spec
//! mthca interface, sections 1 and 2.

use card::frontend::reason::{NO_REGISTER, WIDTH};
use card::frontend::snapshot::IcmRow;
use card::frontend::table::Table;
use card::frontend::{Context, Frontend, HostContext, Interface, PortKind, PortNumber, RegisterAccess};
use card::limited;
use card::management::NodeProfile;
use card::memory::GuestMemory;
use card::telemetry::monitor::Rule;
use card::telemetry::reason::IgnoreReason;
use card::vfio::{Bar, BarRange, Bars, MemoryBar, MsixLayout, PciFunction};
use engine::Event;
use hcr::command::{self, CommandSet};
use hcr::host::DeviceHost;
use hcr::reason::{NO_EQ, NOT_INITIALISED};
use hcr::registers::Hcr;
use hcr::snapshot::{HcrDevice, tables};
use hcr::verbs::WorkTag;
use protocol::describe::Visitor;
use protocol::hca::hcr::PendingCommand;
use protocol::hca::mthca::cmd::Op;
use protocol::hca::mthca::eqe::Eqe;
use protocol::hca::mthca::pci;
use protocol::hca::mthca::regs::{RESET_VALUE, Register};
use protocol::hca::status::CmdStatus;
use protocol::hca::words;
use protocol::ids::Qpn;
use serde::Serialize;

use super::cmd::{self, Answer};
use super::doorbell::Doorbells;
use super::options::{Options, Setup};
use super::reason;
use super::resources::{DeviceState, Resources};
use super::snapshot::icm_rows;
use super::strict::{self, Strict};
use super::{trace, uar};

/// First dword of the catastrophic error buffer. Section 2.6: it must not be 0. Its top byte is the error type, which
/// is 0 for an internal error.
const INTERNAL_ERROR: u32 = 1;

/// Counters specific to this interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Number of device resets requested through the reset register.
    pub resets: u64,
}

#[derive(Debug)]
pub struct Mthca {
    setup: Setup,
    hcr: Hcr,
    doorbells: Doorbells,
    state: DeviceState,
    strict: Strict,
    counters: Counters,
    failed: bool,
    /// Whether the UAR pages are mapped into the guest. If so, stores to them do not trap, and the device may
    /// miss doorbells.
    mapped: bool,
}

impl Interface for Mthca {
    type Options = Options;

    const NAME: &'static str = "mthca";
    const DRIVERS: &'static [&'static str] = &["ib_mthca"];
    const RULES: &'static [&'static Rule] = strict::rules::ALL;
    const NEEDS_TRAPS: Option<&'static str> = None;

    fn new(setup: Setup) -> Self {
        let doorbells = Doorbells::new(setup.options.limits.bar2_len());
        Self {
            setup,
            hcr: Hcr::default(),
            doorbells,
            state: DeviceState::default(),
            strict: Strict::default(),
            counters: Counters::default(),
            failed: false,
            mapped: false,
        }
    }
}

impl Mthca {
    #[cfg(test)]
    pub(super) fn resources_mut(&mut self) -> Option<&mut Resources> {
        self.state.resources_mut()
    }

    fn read_register(&self, offset: u64) -> u32 {
        match Register::at(offset) {
            Some(Register::Hcr(word)) => self.hcr.read(word),
            Some(Register::Catastrophe) if self.failed => INTERNAL_ERROR,
            _ => 0,
        }
    }

    fn write_register(&mut self, cx: &mut Context<'_>, offset: u64, value: u32) {
        cx.monitor.check(|| strict::write_register(&self.state, offset, value));
        let resources = self.state.resources_mut();
        match (Register::at(offset), resources) {
            (Some(Register::Hcr(word)), _) => {
                if let Some(pending) = self.hcr.write(word, value) {
                    self.execute(cx, &pending);
                }
            }
            (Some(Register::EqArm(first)), Some(resources)) => resources.arm_eqs(cx, first, value),
            (Some(Register::EqSetCi(eqn)), Some(resources)) => match resources.eqs.get_mut(eqn) {
                Some(queue) => queue.set_consumer(value),
                None => {
                    let what = format_args!("eq_set_ci[{eqn}]");
                    cx.monitor.ignored(NO_EQ, None, what, |_| {});
                }
            },
            (Some(Register::EqArm(_) | Register::EqSetCi(_)), None) => {
                cx.monitor.ignored_store(NOT_INITIALISED, Bar::Bar0.number(), offset);
            }
            (None, _) => cx.monitor.ignored_store(NO_REGISTER, Bar::Bar0.number(), offset),
            (Some(Register::Reset), _) if value == RESET_VALUE => {
                limited!(info, "driver requested a device reset");
                self.counters.resets += 1;
                cx.engine.reset(self.setup.engine);
                cx.monitor.forget_qps();
                if let Some(management) = &mut cx.management {
                    management.reset();
                }
                self.reset();
            }
            _ => {}
        }
    }

    /// Executes a command. The command is complete when the store that started it returns (section 2.2, execution
    /// model).
    fn execute(&mut self, cx: &mut Context<'_>, pending: &PendingCommand) {
        const COMMANDS: CommandSet = CommandSet {
            name: |code| Op::from_code(code).map(Op::name),
            describe: trace::describe_command,
            reported_status: |status| status,
            // The device rejects commands for device-local memory, which it does not have, and MADs that do not get a
            // response. The driver issues both even in normal operation, so they do not deserve a warning.
            expected: &[CmdStatus::NoLocalMemory, CmdStatus::BadPacket],
        };
        let Self { state, strict, setup, .. } = self;
        let result = command::run(cx, &COMMANDS, pending, |cx, mailboxes| {
            cmd::execute(state, strict, setup, cx, pending, mailboxes)
        });
        let (status, out_param) = match result {
            Ok(Answer::Immediate(value)) => {
                self.hcr.answer(value);
                (CmdStatus::Ok, value)
            }
            Ok(Answer::Nothing | Answer::Mailbox(_)) => (CmdStatus::Ok, pending.out_param),
            Err(status) => (status, pending.out_param),
        };
        self.hcr.finish(status);
        if pending.command.event()
            && let Some(resources) = self.state.resources_mut()
        {
            let token = pending.token;
            resources.raise(cx, &Eqe::Command { token, status: status.code(), out_param });
        }
    }
}

impl Frontend for Mthca {
    type Host<'a> = DeviceHost<'a, Resources>;
    type Counters = Counters;

    const KEY: &'static str = "mthca";
    const IGNORE_REASONS: &'static [&'static [IgnoreReason]] = &[hcr::reason::ALL, reason::ALL];
    const TABLES: &'static [Table<Self>] = &tables();

    fn pci(&self) -> PciFunction {
        let memory = |len| MemoryBar { len, prefetchable: false };
        PciFunction {
            vendor: pci::VENDOR_ID,
            device: pci::DEVICE_ID,
            subsystem_vendor: pci::VENDOR_ID,
            subsystem: pci::DEVICE_ID,
            revision: pci::REVISION,
            class: pci::CLASS_CODE,
            bars: Bars::new([
                (Bar::Bar0, memory(pci::BAR0_LEN)),
                (Bar::Bar2, memory(self.setup.options.limits.bar2_len())),
            ]),
            msix: MsixLayout {
                vectors: pci::MSIX_VECTORS,
                table: (Bar::Bar0, pci::MSIX_TABLE),
                pending: (Bar::Bar0, pci::MSIX_PBA),
            },
            serial_number: None,
        }
    }

    fn port_kind(&self, _: PortNumber) -> PortKind {
        PortKind::InfiniBand(NodeProfile {
            vendor_id: 0x0002c9,
            device_id: pci::DEVICE_ID,
            revision: 0xa0,
            gids: self.setup.options.limits.gids(),
            pkeys: self.setup.options.limits.pkeys(),
            mtu: 4,
            capabilities: 0x0251_0a68,
            opened_by_software: true,
            always_answers_perf: false,
        })
    }

    fn map_doorbells(&mut self) -> Option<BarRange> {
        self.mapped = true;
        Some(BarRange { bar: Bar::Bar2, offsets: 0..self.setup.options.limits.bar2_len() })
    }

    fn doorbell_words(&self, words: &mut Vec<u64>) {
        if let Some(resources) = self.state.resources() {
            let pages = self.setup.options.limits.uar_pages();
            uar::words(&resources.uar, resources.layout.log_uar_page, pages, words);
        }
    }

    fn bar_read(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &mut [u8]) {
        cx.monitor.check(|| strict::read(&mut self.strict, bar, offset, data.len()));
        match bar {
            Bar::Bar0 => words::read(offset, data, |word| self.read_register(word).to_be_bytes()),
            // Doorbells are write-only and read as 0.
            _ => data.fill(0),
        }
    }

    fn bar_write(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &[u8]) {
        cx.monitor.check(|| strict::write(&mut self.strict, bar, offset, data));
        match bar {
            Bar::Bar0 => {
                if !words::is_word_write(offset, data) {
                    cx.monitor.ignored_store(WIDTH, bar.number(), offset);
                }
                for (offset, word) in words::writes(offset, data) {
                    self.write_register(cx, offset, u32::from_be_bytes(word));
                }
            }
            _ => match (
                self.doorbells.write(self.state.log_uar_page(), offset, data),
                self.state.resources_mut(),
            ) {
                (Ok(Some(doorbell)), Some(resources)) if self.mapped => {
                    resources.handle_mapped_doorbell(cx, &doorbell)
                }
                (Ok(Some(doorbell)), Some(resources)) => resources.handle_doorbell(cx, doorbell),
                (Ok(Some(doorbell)), None) => doorbell.ignore(cx.monitor, NOT_INITIALISED),
                (Ok(None), _) => {}
                (Err(reason), _) => cx.monitor.ignored_store(reason, bar.number(), offset),
            },
        }
    }

    fn register_name(&self, access: &RegisterAccess<'_>) -> Option<String> {
        trace::register_name(access)
    }

    fn describe_access(&self, access: &RegisterAccess<'_>, to: &mut dyn Visitor) {
        trace::describe_access(access, to);
    }

    fn host<'a>(&'a mut self, cx: HostContext<'a>) -> Self::Host<'a> {
        DeviceHost { queues: self.state.resources_mut(), cx }
    }

    fn can_receive(&mut self, qpn: Qpn, dma: &GuestMemory) -> bool {
        self.state.resources_mut().is_some_and(|resources| resources.can_receive(qpn, dma))
    }

    fn work_request(&self, wr_id: u64) -> u64 {
        WorkTag::from_bits(wr_id).wqe().into()
    }

    fn handle_event(&mut self, cx: &mut Context<'_>, event: &Event) {
        let Some(resources) = self.state.resources_mut() else { return };
        match event {
            Event::Completion(completion) => resources.complete(cx, completion),
            Event::Async { qpn, event } => resources.qp_event(cx, *qpn, *event),
        }
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> bool {
        self.state.resources_mut().is_some_and(|resources| resources.end_turn(cx))
    }

    fn link_changed(&mut self, cx: &mut Context<'_>, up: bool) {
        if let Some(resources) = self.state.resources_mut() {
            resources.raise(cx, &Eqe::PortChange { port: PortNumber::ONE.get(), active: up });
        }
    }

    /// Reports an internal error. Section 2.6: the driver polls the catastrophic error buffer every five seconds and
    /// resets the device on an error.
    fn fail(&mut self, _: &mut Context<'_>) {
        self.failed = true;
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn reset(&mut self) {
        self.hcr.reset();
        self.failed = false;
        self.doorbells.reset();
        self.state = DeviceState::default();
        self.strict = Strict::default();
    }
}

impl HcrDevice for Mthca {
    type Objects = Resources;

    fn objects(&self) -> Option<&Resources> {
        self.state.resources()
    }

    fn icm_rows(&self, from: u64) -> impl Iterator<Item = (u64, IcmRow)> {
        icm_rows(self.state.page_map(), from)
    }
}
