//! The PCI function: BAR0 and BAR2, and the effects of their registers.
//!
//! # Spec
//! JingZhao interface, section 1.

use card::frontend::reason::{NO_REGISTER, WIDTH};
use card::frontend::snapshot::IcmRow;
use card::frontend::table::Table;
use card::frontend::{Context, Frontend, HostContext, Interface, PortKind, PortNumber, RegisterAccess};
use card::limited;
use card::management::NodeProfile;
use card::telemetry::monitor::Rule;
use card::telemetry::reason::IgnoreReason;
use card::vfio::{Bar, Bars, MemoryBar, MsixLayout, PciFunction};
use engine::{Event, Instant};
use hcr::command::{self, CommandSet};
use hcr::host::{DeviceHost, notify_send};
use hcr::reason::{FOREIGN_PAGE, NO_CQ, NO_EQ, NOT_INITIALISED, OVERFLOW, QP_INIT, QP_RESET, QP_RTR};
use hcr::registers::Hcr;
use hcr::snapshot::{HcrDevice, tables};
use hcr::verbs::WorkTag;
use protocol::describe::Visitor;
use protocol::hca::jingzhao::cmd::{CmdStatus, Op, PendingCommand};
use protocol::hca::jingzhao::doorbell::SendDoorbell;
use protocol::hca::jingzhao::eqe::Eqe;
use protocol::hca::jingzhao::pci;
use protocol::hca::jingzhao::qpc::QpState;
use protocol::hca::jingzhao::regs::{self, HcrWord, Register};
use protocol::hca::words;
use serde::Serialize;

use super::cmd;
use super::ctxmgt::message::{RdQpSst, RdQpState};
use super::ctxmgt::stats::CtxStats;
use super::doorbell::{Doorbell, Doorbells};
use super::observed::Observed;
use super::options::{Options, Setup};
use super::reason;
use super::resources::{DeviceState, Resources};
use super::snapshot::icm_rows;
use super::strict::{self, Strict};
use super::trace;
use crate::reason::STALE_QPN;

/// Counters specific to this interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    pub ctxmgt: CtxStats,
}

#[derive(Debug)]
pub struct JingZhao {
    setup: Setup,
    hcr: Hcr,
    doorbells: Doorbells,
    state: DeviceState,
    strict: Strict,
}

impl Interface for JingZhao {
    type Options = Options;

    const NAME: &'static str = "JingZhao";
    const DRIVERS: &'static [&'static str] = &["hgrnic"];
    const RULES: &'static [&'static Rule] = strict::rules::ALL;
    const NEEDS_TRAPS: Option<&'static str> = Some("carry information that is not in guest memory");

    fn new(setup: Setup) -> Self {
        let doorbells = Doorbells::new(setup.options.uar_pages.bar_len());
        let (state, strict) = (DeviceState::default(), Strict::default());
        Self { setup, hcr: Hcr::default(), doorbells, state, strict }
    }
}

impl JingZhao {
    #[cfg(test)]
    pub(super) fn resources_mut(&mut self) -> Option<&mut Resources> {
        self.state.resources.as_mut()
    }

    fn read_register(&self, offset: u64) -> u32 {
        match Register::at(offset) {
            Some(Register::Hcr(HcrWord::Command)) => regs::command_word(self.hcr.state()),
            Some(Register::Hcr(word)) => self.hcr.read(word),
            Some(Register::InitDone) => 1,
            Some(Register::Reset) | None => 0,
        }
    }

    fn write_register(&mut self, cx: &mut Context<'_>, offset: u64, value: u32) {
        match Register::at(offset) {
            Some(Register::Hcr(word)) => {
                if let Some(pending) = self.hcr.write(word, value) {
                    self.execute(cx, &pending);
                }
            }
            Some(Register::Reset) if value & 1 != 0 => {
                limited!(info, "driver requested a device reset");
                cx.engine.reset(self.setup.engine);
                cx.monitor.forget_qps();
                self.reset();
            }
            // Section 1.5: only a store with bit 0 set resets the device, and init_done is read-only.
            Some(Register::Reset | Register::InitDone) => {}
            None => cx.monitor.ignored_store(NO_REGISTER, Bar::Bar0.number(), offset),
        }
    }

    /// Executes a command to completion during the store that starts it, as the public driver expects (section 1.3).
    fn execute(&mut self, cx: &mut Context<'_>, pending: &PendingCommand) {
        let commands = CommandSet {
            name: |code| Op::from_code(code).map(Op::name),
            describe: trace::describe_command,
            expected: &[],
            reported_status: if self.setup.options.extended_status {
                |status| status
            } else {
                CmdStatus::basic
            },
        };
        let Self { state, strict, setup, .. } = self;
        let result = command::run(cx, &commands, pending, |cx, mailboxes| {
            cmd::execute(state, strict, setup, cx, pending, mailboxes)
        });
        let status = result.err().unwrap_or(CmdStatus::Ok);
        self.hcr.finish(status);
        if pending.command.event()
            && let Some(resources) = &mut self.state.resources
        {
            let PendingCommand { token, out_param, .. } = *pending;
            resources.raise(cx, &Eqe::Command { token, status: status.code(), out_param });
        }
    }

    /// Handles a send doorbell. Section 1.6: a doorbell for a QP that has not reached RTS is discarded. No error is
    /// reported to the guest, whose verbs layer already rejects requests for such a QP.
    fn handle_send_doorbell(
        &mut self,
        cx: &mut Context<'_>,
        page: u32,
        doorbell: SendDoorbell,
    ) -> Result<(), IgnoreReason> {
        let resources = self.state.resources.as_mut().ok_or(NOT_INITIALISED)?;
        // Update the QP's state, which the engine may have changed in this iteration of the event loop.
        resources.observe(cx, doorbell.qpn);
        let index = resources.ctx.qp_index(doorbell.qpn);
        let qp = resources.qps.get_mut(index);
        let named = qp.as_deref().map(|qp| &**qp);
        cx.monitor.observe(Observed::SendDoorbell { qp: named, page, doorbell: &doorbell });
        let Some(RdQpSst { usr_page, .. }) = resources.ctx.read(qp.as_ref().map(|qp| &qp.key)) else {
            return Err(QP_RESET);
        };
        let qp = qp.ok_or(QP_RESET)?;
        if self.setup.options.uar_check && usr_page != page {
            return Err(FOREIGN_PAGE);
        }
        if self.setup.options.qpn_check && qp.qpn != doorbell.qpn {
            return Err(STALE_QPN);
        }
        // Section 1.6: a doorbell before RTS is discarded. In SQE and ERR, the posted requests are flushed. In SQD,
        // they wait for RTS.
        let RdQpState { state, .. } = resources.ctx.read_of(&qp.key);
        match state {
            None | Some(QpState::Reset) => return Err(QP_RESET),
            Some(QpState::Init) => return Err(QP_INIT),
            Some(QpState::Rtr) => return Err(QP_RTR),
            Some(QpState::Rts | QpState::Sqd | QpState::Draining | QpState::Sqe | QpState::Err) => {}
        }
        let qpn = qp.qpn;
        qp.counters.doorbells += 1;
        let before = qp.send.pooled_doorbells();
        let queued = qp.send.queue_doorbell(doorbell, &resources.doorbells).map_err(|_| OVERFLOW);
        if queued.is_ok() {
            cx.monitor.count_doorbell("send");
        }
        resources.doorbells.update(before, qp.send.pooled_doorbells());
        notify_send(cx, resources, qpn);
        queued
    }

    fn handle_doorbell(&mut self, cx: &mut Context<'_>, doorbell: Doorbell) -> Result<(), IgnoreReason> {
        match doorbell {
            Doorbell::Send { page, doorbell } => self.handle_send_doorbell(cx, page, doorbell),
            Doorbell::ArmCq(cqn) => {
                let resources = self.state.resources.as_mut();
                let cq = resources.map(|all| all.cq_mut(cqn).ok_or(NO_CQ));
                if !matches!(cq, Some(Ok(_))) {
                    cx.monitor.observe(Observed::ArmNothing { queue: "CQ", number: cqn.get() });
                }
                cq.unwrap_or(Err(NOT_INITIALISED))?.arm();
                cx.monitor.count_doorbell("arm_cq");
                Ok(())
            }
            Doorbell::ArmEq(eqn) => {
                let resources = self.state.resources.as_mut();
                let eq = resources.map(|all| all.eqs.get_mut(eqn.get()).ok_or(NO_EQ));
                if !matches!(eq, Some(Ok(_))) {
                    cx.monitor.observe(Observed::ArmNothing { queue: "EQ", number: eqn.get() });
                }
                eq.unwrap_or(Err(NOT_INITIALISED))?.arm();
                cx.monitor.count_doorbell("arm_eq");
                Ok(())
            }
        }
    }
}

impl Frontend for JingZhao {
    type Host<'a> = DeviceHost<'a, Resources>;
    type Counters = Counters;

    const KEY: &'static str = "jingzhao";
    const IGNORE_REASONS: &'static [&'static [IgnoreReason]] = &[hcr::reason::ALL, reason::ALL];
    const TABLES: &'static [Table<Self>] = &tables();

    fn pci(&self) -> PciFunction {
        let memory = |len| MemoryBar { len, prefetchable: false };
        PciFunction {
            vendor: pci::VENDOR_ID,
            device: pci::DEVICE_ID,
            subsystem_vendor: pci::SUBSYSTEM_VENDOR_ID,
            subsystem: pci::SUBSYSTEM_ID,
            revision: pci::REVISION,
            class: pci::CLASS_CODE,
            bars: Bars::new([
                (Bar::Bar0, memory(pci::BAR0_LEN)),
                (Bar::Bar2, memory(self.setup.options.uar_pages.bar_len())),
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
            vendor_id: u32::from(pci::VENDOR_ID),
            device_id: pci::DEVICE_ID,
            revision: u32::from(pci::REVISION),
            gids: self.setup.options.limits.gids(),
            pkeys: self.setup.options.limits.pkeys(),
            mtu: 5,
            capabilities: 0,
            opened_by_software: false,
            always_answers_perf: false,
        })
    }

    fn bar_read(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &mut [u8]) {
        cx.monitor.check(|| strict::read(&mut self.strict, bar, offset, data.len()));
        match bar {
            Bar::Bar0 => regs::read(offset, data, |word| self.read_register(word)),
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
                for (offset, value) in regs::writes(offset, data) {
                    self.write_register(cx, offset, value);
                }
            }
            _ => match self.doorbells.write(offset, data) {
                Ok(Some(doorbell)) => {
                    if let Err(reason) = self.handle_doorbell(cx, doorbell) {
                        doorbell.ignore(cx.monitor, reason);
                    }
                }
                Ok(None) => {}
                Err(reason) => cx.monitor.ignored_store(reason, bar.number(), offset),
            },
        }
    }

    fn register_name(&self, access: &RegisterAccess<'_>) -> Option<String> {
        trace::register_name(access)
    }

    fn describe_access(&self, access: &RegisterAccess<'_>, to: &mut dyn Visitor) {
        trace::describe_access(access, &self.doorbells, to);
    }

    fn host<'a>(&'a mut self, cx: HostContext<'a>) -> Self::Host<'a> {
        DeviceHost { queues: self.state.resources.as_mut(), cx }
    }

    fn work_request(&self, wr_id: u64) -> u64 {
        WorkTag::from_bits(wr_id).wqe().into()
    }

    fn handle_event(&mut self, cx: &mut Context<'_>, event: &Event) {
        let Some(resources) = &mut self.state.resources else { return };
        match event {
            Event::Completion(completion) => resources.complete(&self.setup, cx, completion),
            Event::Async { qpn, event } => resources.qp_event(cx, *qpn, *event),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.state.resources.as_ref().and_then(|resources| resources.watch.deadline())
    }

    fn handle_deadline(&mut self, cx: &mut Context<'_>) {
        if let Some(resources) = &mut self.state.resources {
            resources.watch_receives(cx);
        }
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> bool {
        self.state.resources.as_mut().is_some_and(|resources| resources.write_back_some(cx))
    }

    fn link_changed(&mut self, cx: &mut Context<'_>, up: bool) {
        if let Some(resources) = &mut self.state.resources {
            resources.raise(cx, &Eqe::PortChange { port: PortNumber::ONE.get(), active: up });
        }
    }

    fn fail(&mut self, cx: &mut Context<'_>) {
        if let Some(resources) = &mut self.state.resources {
            resources.raise(cx, &Eqe::LocalCatastrophic);
        }
    }

    fn counters(&self) -> Counters {
        Counters { ctxmgt: *self.state.stats() }
    }

    fn reset(&mut self) {
        self.hcr.reset();
        self.doorbells.reset();
        self.state.close();
        self.strict = Strict::default();
    }
}

impl HcrDevice for JingZhao {
    type Objects = Resources;

    fn objects(&self) -> Option<&Resources> {
        self.state.resources.as_ref()
    }

    fn icm_rows(&self, from: u64) -> impl Iterator<Item = (u64, IcmRow)> {
        self.objects().into_iter().flat_map(move |all| icm_rows(all, from))
    }
}
