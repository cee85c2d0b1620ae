//! Events and the interrupts they raise.
//!
//! # Spec
//! mthca interface, sections 7.7 and 7.8.

use card::frontend::Context;
use card::limited;
use protocol::hca::mthca::eqc::Interrupt;
use protocol::hca::mthca::eqe::Eqe;
use protocol::ids::{Cqn, Eqn};

use super::observed::Observed;
use super::regions::DeviceMemory;
use super::resources::Resources;

impl Resources {
    /// Writes an asynchronous event to the EQ that the event's type is mapped to. If the type is not mapped, the event
    /// is dropped.
    pub fn raise(&mut self, cx: &mut Context<'_>, event: &Eqe) {
        self.report(cx, self.eqs.taker(event), event);
    }

    /// Writes a completion event to the EQ of a CQ, if that EQ exists.
    pub fn notify(&mut self, cx: &mut Context<'_>, eqn: Eqn, cqn: Cqn) {
        let place = self.report(cx, Some(eqn), &Eqe::Completion(cqn));
        let index = self.cq_index(cqn);
        if let (Some(place), Some(cq)) = (place, self.cqs.get_mut(index)) {
            cq.event_written(place);
        }
    }

    /// Handles a write to the arm register: bit n arms EQ `first + n`. Bits for unknown EQs have no effect.
    pub fn arm_eqs(&mut self, cx: &mut Context<'_>, first: Eqn, mask: u32) {
        for bit in (0..u32::BITS).filter(|bit| mask >> bit & 1 != 0) {
            let Some(queue) = self.eqs.get_mut(Eqn::new(first.get() + bit)) else { continue };
            cx.monitor.count_doorbell("arm_eq");
            if let Some(interrupt) = queue.arm() {
                interrupt_by(cx, interrupt);
            }
        }
    }

    /// Writes an event and returns the free-running index of its entry, or `None` if the event was lost.
    fn report(&mut self, cx: &mut Context<'_>, eqn: Option<Eqn>, event: &Eqe) -> Option<u32> {
        let Self { layout, regions, eqs, .. } = self;
        let memory = DeviceMemory { layout, regions, dma: cx.dma };
        let (place, result) = match eqn.and_then(|eqn| Some((eqn, eqs.get_mut(eqn)?))) {
            Some((eqn, queue)) => {
                cx.monitor.observe(Observed::EqSlot { eqn, queue, memory });
                (Some((eqn, queue.ring().producer())), queue.push(event, &memory.access()))
            }
            None => (None, Ok(None)),
        };
        cx.monitor.observe(Observed::Eqe { place, event, lost: result.as_ref().err() });
        match result {
            Ok(Some(interrupt)) => interrupt_by(cx, interrupt),
            Ok(None) => {}
            Err(error) => {
                limited!(warn, ?eqn, ?event, "event lost: {error}");
                return None;
            }
        }
        place.map(|(_, place)| place)
    }
}

/// Raises an MSI-X interrupt. The device does not implement INTx, which is optional (section 1.7), so a driver that
/// falls back to INTx receives no interrupts.
fn interrupt_by(cx: &mut Context<'_>, interrupt: Interrupt) {
    match interrupt {
        Interrupt::MsiX(vector) => cx.interrupt(vector),
        Interrupt::Pin => {
            limited!(warn, "driver requested INTx, which the device does not support; use MSI-X")
        }
    }
}
