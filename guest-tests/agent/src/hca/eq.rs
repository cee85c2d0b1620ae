//! Event queues and their interrupts.
//!
//! # Spec
//! JingZhao interface, sections 1.6, 3.9, 3.10 and 8.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::entries::{ENTRY, EntryRing};
use super::hcr::Op;
use super::layout::Eqc;
use super::open::{Hca, Inbox};
use crate::error::bad_step;
use crate::idle::Idle;
use crate::vfio::{Doorbell, Signal};
use crate::wire::{
    ArmEq, CreateEq, EnableInterrupts, EqId, EqInfo, Eqe, Events, Hex, Interrupts, MapEq, PollEq,
    WaitInterrupt,
};

#[derive(Debug)]
pub(crate) struct Eq {
    eqn: u32,
    ring: EntryRing,
}

impl Hca {
    /// Creates an event queue with the lowest free number.
    pub(crate) fn create_eq(&mut self, step: &CreateEq) -> Result<EqInfo> {
        ensure!(
            step.log_entries <= 16,
            bad_step(format!("too many EQ entries: 2^{} (maximum 2^16)", step.log_entries))
        );
        let eqn = self.eqns.alloc(1, 1).ok_or_else(|| bad_step("no free event queue"))?;
        let buffer_pd = step.buffer_pd.unwrap_or(step.pd);
        let created = self.register_queue(ENTRY << step.log_entries, buffer_pd, true).and_then(|ring| {
            if step.prepared {
                EntryRing::hand_over(&ring, &self.arena);
            }
            let CreateEq { log_entries, vector, pd, armed, .. } = *step;
            let context = Eqc { log_entries, vector, pd, lkey: ring.key, armed };
            match self.command(Op::Sw2HwEq, 0, eqn, Inbox::Bytes(&context.emit())) {
                Ok(()) => Ok(ring),
                Err(error) => {
                    self.unregister(&ring)?;
                    Err(error)
                }
            }
        });
        let ring = match created {
            Ok(ring) => ring,
            Err(error) => {
                self.eqns.free(eqn, 1);
                return Err(error);
            }
        };
        let id = EqId(self.next_id());
        let info = EqInfo { id, eqn, lkey: ring.key };
        self.eqs.insert(id, Eq { eqn, ring: EntryRing::new(ring, step.log_entries) });
        Ok(info)
    }

    pub(crate) fn destroy_eq(&mut self, eq: EqId) -> Result<()> {
        let eqn = self.eqn(eq)?;
        self.command(Op::Hw2SwEq, 0, eqn, Inbox::None)?;
        self.eqns.free(eqn, 1);
        let eq = self.eqs.remove(&eq).ok_or_else(|| bad_step(format!("unknown {eq:?}")))?;
        self.unregister(&eq.ring.region)
    }

    pub(crate) fn map_eq(&mut self, step: &MapEq) -> Result<()> {
        const REMOVE: u32 = 1 << 31;
        let modifier = self.eqn(step.eq)? | if step.remove { REMOVE } else { 0 };
        self.command(Op::MapEq, 0, modifier, Inbox::Value(step.events))
    }

    /// Requests an interrupt for the next event.
    pub(crate) fn arm_eq(&self, step: ArmEq) -> Result<()> {
        const ARM_EQ: u64 = 0x20;
        self.device.ring(ARM_EQ, Doorbell::Word(self.eqn(step.eq)?))
    }

    pub(crate) fn poll_eq(&mut self, step: &PollEq) -> Result<Events> {
        let started = Instant::now();
        let timeout = Duration::from_millis(step.timeout_ms.into());
        let eq = self.eqs.get_mut(&step.eq).ok_or_else(|| bad_step(format!("no {:?}", step.eq)))?;
        let mut idle = Idle::new();
        let mut eqes = Vec::new();
        while eqes.len() < step.count as usize {
            match eq.ring.take(&self.arena) {
                Some(raw) => {
                    eqes.push(parse_eqe(&raw));
                    idle.found();
                }
                None if started.elapsed() >= timeout => break,
                None => idle.pause(step.count as usize - eqes.len()),
            }
        }
        Ok(Events { eqes })
    }

    /// Enables MSI-X and starts counting interrupts on each vector.
    pub(crate) fn enable_interrupts(&mut self, step: EnableInterrupts) -> Result<()> {
        let signals = (0..step.vectors).map(|_| Signal::new()).collect::<std::io::Result<Vec<_>>>();
        let signals = signals.context("cannot create an interrupt counter")?;
        self.device.enable_interrupts(&signals)?;
        self.interrupts = signals;
        Ok(())
    }

    pub(crate) fn disable_interrupts(&mut self) -> Result<()> {
        self.device.disable_interrupts()?;
        self.interrupts.clear();
        Ok(())
    }

    pub(crate) fn wait_interrupt(&self, step: WaitInterrupt) -> Result<Interrupts> {
        let signal = self.interrupts.get(usize::from(step.vector));
        let signal = signal.ok_or_else(|| bad_step(format!("vector {} is not enabled", step.vector)))?;
        let count = signal.wait(Duration::from_millis(step.timeout_ms.into()));
        Ok(Interrupts { count: count.context("cannot wait for an interrupt")? })
    }

    pub(super) fn eqn(&self, eq: EqId) -> Result<u32> {
        Ok(self.eqs.get(&eq).ok_or_else(|| bad_step(format!("unknown {eq:?}")))?.eqn)
    }
}

fn parse_eqe(raw: &[u8; ENTRY]) -> Eqe {
    let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    Eqe {
        event: raw[0x01],
        subtype: raw[0x03],
        number: word(0x04),
        detail: word(0x08),
        param: u64::from(word(0x0c)) | u64::from(word(0x10)) << 32,
        raw: Hex(raw.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_bytes::hex;
    use super::*;

    #[test]
    fn event_queue_entry_is_little_endian() {
        let raw = hex("00 0A 00 00 34 12 00 00 00 00 00 03 88 77 66 55
             44 33 22 11 00 00 00 00 00 00 00 00 00 00 00 00");
        let eqe = parse_eqe(raw.as_slice().try_into().unwrap());
        assert_eq!((eqe.event, eqe.subtype, eqe.number), (0x0a, 0, 0x1234));
        assert_eq!((eqe.detail, eqe.param), (0x0300_0000, 0x1122_3344_5566_7788));
    }
}
