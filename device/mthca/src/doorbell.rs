//! UAR pages: the doorbells in BAR2 and their effects.
//!
//! # Spec
//! mthca interface, sections 5.1 to 5.3.

use card::frontend::Context;
use card::frontend::reason::NO_REGISTER;
use card::telemetry::monitor::Monitor;
use card::telemetry::reason::IgnoreReason;
use engine::State;
use hcr::doorbell::SplitDoorbells;
use hcr::host::notify_send;
use hcr::notify::Notify;
use hcr::reason::{FOREIGN_PAGE, NO_CQ, OVERFLOW, QP_INIT, QP_RESET, QP_RTR};
use protocol::describe::Field as _;
use protocol::hca::mthca::doorbell::{ArmCq, SendDoorbell, UAR_PAGE, UarRegister};

use super::observed::Observed;
use super::regions::DeviceMemory;
use super::resources::Resources;
use crate::reason::ALREADY_TAKEN;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    Send { page: u32, doorbell: SendDoorbell },
    Arm { page: u32, arm: ArmCq },
}

impl Doorbell {
    pub fn ignore(&self, monitor: &mut Monitor, reason: IgnoreReason) {
        match self {
            Self::Send { page, doorbell: SendDoorbell { qpn, .. } } => {
                monitor.ignored(reason, Some(*qpn), format_args!("UAR[{page}].send"), |_| {});
            }
            Self::Arm { page, arm } => {
                monitor
                    .ignored(reason, None, format_args!("UAR[{page}].arm_cq"), |to| arm.cqn.show("cqn", to));
            }
        }
    }
}

/// All UAR pages. They are write-only; reads return 0.
#[derive(Debug)]
pub struct Doorbells {
    split: SplitDoorbells<2>,
}

impl Doorbells {
    /// Creates the pages for a BAR of `bar_len` bytes.
    pub fn new(bar_len: u64) -> Self {
        Self { split: SplitDoorbells::new(bar_len / UAR_PAGE) }
    }

    /// Discards pending first halves of doorbells, as a device reset requires.
    pub fn reset(&mut self) {
        self.split.reset();
    }

    /// Handles a store to BAR2 that contains a whole doorbell or half of one. Returns `None` for a first half. A UAR
    /// page is 2^`log_uar_page` times 4 KiB long. Its registers are in the first 4 KiB.
    ///
    /// # Errors
    /// The store is ignored if the register does not exist or does not support this width.
    pub fn write(
        &mut self,
        log_uar_page: u8,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<Doorbell>, IgnoreReason> {
        let page_len = UAR_PAGE << log_uar_page;
        let page = u32::try_from(offset / page_len).map_err(|_| NO_REGISTER)?;
        let (register, second) = UarRegister::at(offset % page_len).ok_or(NO_REGISTER)?;
        let place = match register {
            UarRegister::Send => 0,
            UarRegister::ArmCq => 1,
        };
        let whole = self.split.store(page, place, second, data)?;
        Ok(whole.map(|whole| match register {
            UarRegister::Send => Doorbell::Send { page, doorbell: SendDoorbell::parse(whole) },
            UarRegister::ArmCq => Doorbell::Arm { page, arm: ArmCq::parse(whole) },
        }))
    }
}

impl Resources {
    /// Handles a doorbell. Section 5.1: a doorbell for an unknown object, or for an object on another UAR page, is
    /// ignored. The error cannot be reported to software.
    pub fn handle_doorbell(&mut self, cx: &mut Context<'_>, doorbell: Doorbell) {
        let handled = match &doorbell {
            Doorbell::Send { page, doorbell } => self.handle_send_doorbell(cx, *page, doorbell),
            Doorbell::Arm { page, arm } => self.arm_cq(cx, *page, arm),
        };
        if let Err(reason) = handled {
            doorbell.ignore(cx.monitor, reason);
        }
    }

    fn handle_send_doorbell(
        &mut self,
        cx: &mut Context<'_>,
        page: u32,
        doorbell: &SendDoorbell,
    ) -> Result<(), IgnoreReason> {
        let Self { layout, regions, qps, .. } = self;
        let memory = DeviceMemory { layout, regions, dma: cx.dma };
        let state = cx.engine.query_qp(doorbell.qpn).map(|live| live.state);
        let qp = qps.get_mut(layout.qpc.index(doorbell.qpn.get())).filter(|qp| qp.qpn == doorbell.qpn);
        let named = qp.as_deref().map(|qp| &**qp);
        cx.monitor.observe(Observed::SendDoorbell { qp: named, state, page, doorbell, memory });
        let qp = qp.ok_or(QP_RESET)?;
        if qp.qpc.page != page {
            return Err(FOREIGN_PAGE);
        }
        qp.announced = doorbell.producer();
        // Section 5.2: a QP accepts send requests in RTS, SQD, SQE and ERR. Requests posted in earlier states are lost
        // without a completion.
        match state {
            None | Some(State::Reset) => return Err(QP_RESET),
            Some(State::Init) => return Err(QP_INIT),
            Some(State::Rtr) => return Err(QP_RTR),
            Some(State::Rts | State::Sqd | State::Sqe | State::Err) => {}
        }
        let record = memory.record(page, qp.qpc.sq_record);
        qp.counters.doorbells += 1;
        match qp.send.accept_doorbell(doorbell, record) {
            Ok(true) => cx.monitor.count_doorbell("send"),
            Ok(false) => return Err(ALREADY_TAKEN),
            Err(_) => return Err(OVERFLOW),
        }
        let qpn = qp.qpn;
        notify_send(cx, self, qpn);
        Ok(())
    }

    fn arm_cq(&mut self, cx: &mut Context<'_>, page: u32, arm: &ArmCq) -> Result<(), IgnoreReason> {
        let Self { layout, regions, cqs, eqs, .. } = self;
        let memory = DeviceMemory { layout, regions, dma: cx.dma };
        let cq = cqs.get_mut(layout.cqc.index(arm.cqn.get())).filter(|cq| cq.cqn() == arm.cqn);
        let mut cq = cq.map(|cq| &mut **cq);
        cx.monitor.observe(Observed::ArmDoorbell { cq: cq.as_deref_mut(), eqs, page, arm, memory });
        let cq = cq.ok_or(NO_CQ)?;
        if cq.page() != page {
            return Err(FOREIGN_PAGE);
        }
        cx.monitor.count_doorbell("arm_cq");
        if let Notify::Yes(eqn) = cq.arm(arm) {
            self.notify(cx, eqn, arm.cqn);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use card::frontend::reason::WIDTH;
    use protocol::hca::mthca::doorbell::ArmFor;
    use protocol::ids::{Cqn, Qpn};

    use super::*;

    /// The first send doorbell in section 13.3.
    const SEND: [u8; 8] = [0x01, 0x00, 0x00, 0x0a, 0x00, 0x00, 0x14, 0x02];
    const ARM: [u8; 8] = [0x12, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00, 0x05];

    fn sent(page: u32) -> Result<Option<Doorbell>, IgnoreReason> {
        let doorbell =
            SendDoorbell { count: 1, first: 0, fence: false, opcode: 0x0a, qpn: Qpn::new(0x14), size: 2 };
        Ok(Some(Doorbell::Send { page, doorbell }))
    }

    fn armed(page: u32) -> Result<Option<Doorbell>, IgnoreReason> {
        let arm = ArmCq { arm_for: Some(ArmFor::Any), cqn: Cqn::new(0x11), consumer: 5, sequence: 1 };
        Ok(Some(Doorbell::Arm { page, arm }))
    }

    fn pages() -> Doorbells {
        Doorbells::new(8 << 20)
    }

    #[test]
    fn documented_doorbells_are_decoded() {
        assert_eq!(pages().write(0, 0x2010, &SEND), sent(2));
        assert_eq!(pages().write(0, 0x2020, &ARM), armed(2));
    }

    #[test]
    fn second_half_completes_doorbell() {
        let mut pages = pages();
        assert_eq!(pages.write(0, 0x3010, &SEND[..4]), Ok(None));
        assert_eq!(pages.write(0, 0x3020, &ARM[..4]), Ok(None));
        assert_eq!(pages.write(0, 0x3014, &SEND[4..]), sent(3));
        assert_eq!(pages.write(0, 0x3024, &ARM[4..]), armed(3));
    }

    #[test]
    fn first_half_is_kept_per_uar_page() {
        let mut pages = pages();
        assert_eq!(pages.write(0, 0x3010, &SEND[..4]), Ok(None));
        assert_eq!(pages.write(0, 0x4010, &[0xff; 4]), Ok(None));
        assert!(matches!(pages.write(0, 0x3010, &[0xff; 8]), Ok(Some(_))));
        assert_eq!(pages.write(0, 0x3014, &SEND[4..]), sent(3));
    }

    #[test]
    fn uar_pages_of_16_kib_are_decoded() {
        assert_eq!(pages().write(2, 0x8010, &SEND), sent(2));
        assert_eq!(pages().write(2, 0x9010, &SEND), Err(NO_REGISTER));
        assert_eq!(pages().write(2, (8 << 20) - 0x4000 + 0x10, &SEND), sent(511));
    }

    #[test]
    fn invalid_doorbell_stores_are_ignored() {
        let mut pages = pages();
        for (offset, len, reason) in [
            (0x2018, 8, NO_REGISTER),
            (0x2028, 8, NO_REGISTER),
            (0x2000, 8, NO_REGISTER),
            (0x2010, 2, WIDTH),
            (0x2012, 4, NO_REGISTER),
            (0x2014, 8, WIDTH),
            (8 << 20, 8, NO_REGISTER),
        ] {
            assert_eq!(pages.write(0, offset, &SEND[..len]), Err(reason), "{len} bytes at {offset:#x}");
        }
        assert_eq!(pages.write(0, u64::MAX - 7, &SEND), Err(NO_REGISTER));
        assert_eq!(pages.write(0, (8 << 20) - 4096 + 0x10, &SEND), sent(2047));
    }
}
