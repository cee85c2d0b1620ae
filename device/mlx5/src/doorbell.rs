//! Doorbells in UAR pages.
//!
//! # Spec
//! mlx5 interface, section 7.

use std::collections::BTreeMap;

use card::frontend::Context;
use card::frontend::reason::{NO_REGISTER, WIDTH};
use card::telemetry::reason::IgnoreReason;
use protocol::hca::mlx5::PAGE;
use protocol::hca::mlx5::doorbell::{ArmCq, EqDoorbell, UarRegister};
use protocol::hca::mlx5::qp::QpState;
use protocol::hca::mlx5::regs::FIRST_UAR;
use protocol::ids::{Qpn, Sqn, UarIndex};

use super::host;
use super::reason::{FOREIGN_PAGE, NO_CQ, NO_EQ, NO_QP, OVERFLOW, QP_STATE};
use super::resources::Resources;
use super::strict;

/// First bytes of a send doorbell's WQE.
pub type WqeHead = [u8; 8];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    ArmCq(ArmCq),
    /// Reports the consumer index of an EQ and arms the EQ.
    ArmEq(EqDoorbell),
    /// Reports the consumer index of an EQ.
    UpdateEq(EqDoorbell),
    /// Signals a new send counter in a QP's or SQ's doorbell record.
    Send {
        qpn: Qpn,
        /// First bytes of the last WQE; `None` if software rings the doorbell with two 4-byte stores.
        head: Option<WqeHead>,
    },
}

/// Splits a BAR offset into a UAR page and the offset within the page. Returns `None` for an offset below the first UAR
/// page. The size of a UAR page is 2^`log_uar_page` times 4 KiB.
pub fn place(log_uar_page: u16, offset: u64) -> Option<(UarIndex, u64)> {
    let page_len = (PAGE as u64) << log_uar_page;
    let page = u32::try_from(offset / page_len).ok().filter(|page| *page >= FIRST_UAR)?;
    Some((UarIndex::new(page), offset % page_len))
}

/// First halves of CQ doorbells, by UAR page. 32-bit software writes a CQ doorbell with two stores. The first half is
/// kept until the second arrives.
///
/// The map has at most one entry for each UAR page.
#[derive(Debug, Default)]
pub struct Doorbells(BTreeMap<UarIndex, [u8; 4]>);

impl Doorbells {
    /// Handles a store at an offset in a page. Returns the doorbell if the store completes one.
    ///
    /// # Errors
    /// Fails if the register does not exist or if the store has the wrong width.
    pub fn store(
        &mut self,
        page: UarIndex,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<Doorbell>, IgnoreReason> {
        let register = UarRegister::at(offset).ok_or(NO_REGISTER)?;
        Ok(match (register, data) {
            (UarRegister::ArmCq(false), &[a, b, c, d, e, f, g, h]) => {
                Some(Doorbell::ArmCq(ArmCq::parse(&[a, b, c, d, e, f, g, h])))
            }
            (UarRegister::ArmCq(false), &[a, b, c, d]) => {
                self.0.insert(page, [a, b, c, d]);
                None
            }
            (UarRegister::ArmCq(true), &[e, f, g, h]) => {
                let first = self.0.remove(&page);
                first.map(|[a, b, c, d]| Doorbell::ArmCq(ArmCq::parse(&[a, b, c, d, e, f, g, h])))
            }
            (UarRegister::ArmEq, &[a, b, c, d]) => Some(Doorbell::ArmEq(EqDoorbell::parse(&[a, b, c, d]))),
            (UarRegister::UpdateEq, &[a, b, c, d]) => {
                Some(Doorbell::UpdateEq(EqDoorbell::parse(&[a, b, c, d])))
            }
            // Section 20, M-16: the queue number is in the second word. The rest of the WQE is ignored here and read
            // from guest memory.
            (UarRegister::Send { offset: 0, .. }, &[_, _, _, _, a, b, c, _]) => {
                Some(Doorbell::Send { qpn: qpn([a, b, c]), head: data.first_chunk().copied() })
            }
            (UarRegister::Send { offset: 4, .. }, &[a, b, c, _]) => {
                Some(Doorbell::Send { qpn: qpn([a, b, c]), head: None })
            }
            (UarRegister::Send { .. }, [..]) if matches!(data.len(), 4 | 8) => None,
            _ => return Err(WIDTH),
        })
    }
}

fn qpn([a, b, c]: [u8; 3]) -> Qpn {
    Qpn::new(u32::from_be_bytes([0, a, b, c]))
}

impl Resources {
    /// Handles a doorbell in an allocated UAR page. Section 20, M-20: the object that the doorbell names must use the
    /// same page.
    pub fn handle_doorbell(&mut self, cx: &mut Context<'_>, page: UarIndex, doorbell: &Doorbell) {
        let done = match doorbell {
            Doorbell::ArmCq(arm) => self.arm_cq(cx, page, arm),
            Doorbell::ArmEq(doorbell) => self.update_eq(cx, page, doorbell, true),
            Doorbell::UpdateEq(doorbell) => self.update_eq(cx, page, doorbell, false),
            Doorbell::Send { qpn, head } => self.send(cx, page, *qpn, *head),
        };
        let (name, qpn) = match doorbell {
            Doorbell::ArmCq(_) => ("arm_cq", None),
            Doorbell::ArmEq(_) => ("arm_eq", None),
            Doorbell::UpdateEq(_) => ("update_eq", None),
            Doorbell::Send { qpn, .. } => ("send", Some(*qpn)),
        };
        match done {
            Ok(()) => cx.monitor.count_doorbell(name),
            Err(reason) => {
                let page = page.get();
                cx.monitor.ignored(reason, qpn, format_args!("UAR[{page}].{name}"), |_| {});
            }
        }
    }

    fn update_eq(
        &mut self,
        cx: &mut Context<'_>,
        page: UarIndex,
        doorbell: &EqDoorbell,
        arm: bool,
    ) -> Result<(), IgnoreReason> {
        cx.monitor.check(|| strict::eq_doorbell(&self.eqs, page, doorbell));
        let queue = self.eqs.get_mut(doorbell.eqn.get()).ok_or(NO_EQ)?;
        if queue.context().uar != page {
            return Err(FOREIGN_PAGE);
        }
        if !arm {
            queue.set_consumer(doorbell.consumer);
        } else if let Some(vector) = queue.arm(doorbell.consumer) {
            cx.interrupt(vector);
        }
        self.write_held_events(cx, doorbell.eqn);
        Ok(())
    }

    fn arm_cq(&mut self, cx: &mut Context<'_>, page: UarIndex, arm: &ArmCq) -> Result<(), IgnoreReason> {
        let dma = cx.dma;
        cx.monitor.check(|| strict::arm_doorbell(self, page, arm, dma));
        let queue = self.cqs.get(arm.cqn.get()).ok_or(NO_CQ)?;
        if queue.uar() != page {
            return Err(FOREIGN_PAGE);
        }
        self.arm(cx, arm);
        Ok(())
    }

    /// Executes a request to arm a CQ.
    pub(super) fn arm(&mut self, cx: &mut Context<'_>, arm: &ArmCq) {
        let Some(queue) = self.cqs.get_mut(arm.cqn.get()) else { return };
        match queue.arm(arm) {
            Some(time) => self.notify(cx, arm.cqn, time),
            None => self.delayed.cancel(queue.eqn(), arm.cqn),
        }
    }

    /// Handles a send doorbell for a QP or SQ, which share one number space. Reads the send counter from the doorbell
    /// record and notifies the engine or schedules the SQ.
    fn send(
        &mut self,
        cx: &mut Context<'_>,
        page: UarIndex,
        qpn: Qpn,
        head: Option<WqeHead>,
    ) -> Result<(), IgnoreReason> {
        let (sqn, dma) = (Sqn::new(qpn.get()), cx.dma);
        if self.netdev.sq(sqn).is_some() {
            cx.monitor.check(|| strict::sq_doorbell(&self.netdev, page, sqn, head, dma));
            return self.send_frames(cx, page, sqn);
        }
        self.observe(cx.engine, qpn);
        cx.monitor.check(|| strict::send_doorbell(&self.qps, page, qpn, head, dma));
        let qp = self.qps.get_mut(qpn.get()).ok_or(NO_QP)?;
        if qp.context.uar != page {
            return Err(FOREIGN_PAGE);
        }
        // A QP in the error state accepts requests and flushes them.
        if !matches!(
            qp.context.state(),
            Some(QpState::Rts | QpState::SqError | QpState::SqDrain | QpState::Error)
        ) {
            return Err(QP_STATE);
        }
        qp.learn(cx.dma).map_err(|_| OVERFLOW)?;
        qp.counters.doorbells += 1;
        host::notify_send(cx, self, qpn);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::{Cqn, Eqn};

    use super::*;

    const PAGE_16: UarIndex = UarIndex::new(16);

    #[test]
    fn offsets_below_first_uar_page_are_not_doorbells() {
        assert_eq!(place(0, 0xffff), None);
        assert_eq!(place(0, 0x1_0040), Some((PAGE_16, 0x40)));
        assert_eq!(place(0, u64::MAX), None);
        assert_eq!(place(2, 0x3_ffff), None);
        assert_eq!(place(2, 0x4_1040), Some((PAGE_16, 0x1040)));
    }

    #[test]
    fn two_halves_in_same_uar_page_form_one_doorbell() {
        let mut doorbells = Doorbells::default();
        let arm = ArmCq { sequence: 2, solicited_only: true, consumer: 5, cqn: Cqn::new(0x43) };
        let bytes = arm.emit();
        assert_eq!(doorbells.store(PAGE_16, 0x20, &bytes), Ok(Some(Doorbell::ArmCq(arm))));
        assert_eq!(doorbells.store(PAGE_16, 0x20, &bytes[..4]), Ok(None));
        assert_eq!(
            doorbells.store(UarIndex::new(17), 0x24, &bytes[4..]),
            Ok(None),
            "a different page has no first half"
        );
        assert_eq!(doorbells.store(PAGE_16, 0x24, &bytes[4..]), Ok(Some(Doorbell::ArmCq(arm))));
        assert_eq!(doorbells.store(PAGE_16, 0x24, &bytes[4..]), Ok(None));
    }

    /// Section 20, M-16: stores to the rest of the register carry parts of a WQE and do not ring the doorbell.
    #[test]
    fn blueflame_bytes_after_first_eight_are_not_doorbells() {
        let mut doorbells = Doorbells::default();
        let head = 0x0000_0325_0000_8209_u64.to_be_bytes();
        let send = |head| Ok(Some(Doorbell::Send { qpn: Qpn::new(0x82), head }));
        assert_eq!(doorbells.store(PAGE_16, 0x800, &head), send(Some(head)));
        assert_eq!(doorbells.store(PAGE_16, 0xd00, &head), send(Some(head)));
        assert_eq!(doorbells.store(PAGE_16, 0xc00, &head[..4]), Ok(None));
        assert_eq!(doorbells.store(PAGE_16, 0xc04, &head[4..]), send(None));
        for offset in [0x808, 0x8f8, 0xff8] {
            assert_eq!(doorbells.store(PAGE_16, offset, &head), Ok(None), "{offset:#x}");
        }
    }

    #[test]
    fn stores_with_wrong_width_or_offset_are_ignored() {
        let mut doorbells = Doorbells::default();
        let eq = EqDoorbell { eqn: Eqn::new(1), consumer: 7 };
        assert_eq!(doorbells.store(PAGE_16, 0x40, &eq.emit()), Ok(Some(Doorbell::ArmEq(eq))));
        assert_eq!(doorbells.store(PAGE_16, 0x48, &eq.emit()), Ok(Some(Doorbell::UpdateEq(eq))));
        for (offset, len, reason) in
            [(0x40, 8, WIDTH), (0x20, 2, WIDTH), (0x24, 8, WIDTH), (0x800, 1, WIDTH), (0, 8, NO_REGISTER)]
        {
            assert_eq!(doorbells.store(PAGE_16, offset, &[0; 8][..len]), Err(reason), "{offset:#x}");
        }
    }
}
