//! Doorbells in UAR pages that are mapped into the guest. Stores to these pages do not trap.
//!
//! Software first updates a doorbell record in memory and then stores a doorbell with the same content. In a mapped
//! page, that store just writes a word in memory. The device finds it later, or not at all if another queue's doorbell
//! has overwritten it. A 32-bit guest stores the word in two halves, and the device may find only one of them. A word
//! therefore proves only that its page has been used, and the queue number in it is no more than a hint. The device
//! first polls the doorbell record of the queue with that number. It then polls the records of all queues that share
//! the doorbell register, in a polling round. The rest of the word is ignored.
//!
//! # Spec
//! mthca interface, sections 5.1 to 5.4.

use card::frontend::Context;
use card::frontend::poll_rounds::{POLLS_AT_ONCE, POLLS_PER_TURN, PollRounds};
use engine::State;
use hcr::host::notify_send;
use hcr::notify::Notify;
use hcr::reason::OVERFLOW;
use protocol::hca::mthca::doorbell::{RECORD_LEN, UAR_PAGE, UarRegister};

use super::doorbell::Doorbell;
use super::observed::Observed;
use super::resources::Resources;
use super::work_queue::Advance;

/// A register in a UAR page. Each register has its own set of queues.
type UarSlot = (u32, UarRegister);

pub type UarQueues = PollRounds<UarSlot>;

/// Appends to `words` the BAR2 offset of each doorbell register that has queues. BAR2 consists of `pages` 4 KiB pages,
/// and a UAR page consists of 2^`log_uar_page` of them.
pub fn words(queues: &UarQueues, log_uar_page: u8, pages: u32, words: &mut Vec<u64>) {
    let page_len = UAR_PAGE << log_uar_page;
    let slots = queues.slots().take_while(|(page, _)| *page < pages >> log_uar_page);
    words.extend(slots.map(|(page, register)| u64::from(page) * page_len + register.offset()));
}

impl Resources {
    /// Handles a doorbell found in a mapped page.
    pub fn handle_mapped_doorbell(&mut self, cx: &mut Context<'_>, doorbell: &Doorbell) {
        let (place, index, of_page) = match *doorbell {
            Doorbell::Send { page, doorbell } => {
                let index = self.qp_index(doorbell.qpn);
                ((page, UarRegister::Send), index, self.qps.get(index).map(|qp| qp.qpc.page))
            }
            Doorbell::Arm { page, arm } => {
                let index = self.cq_index(arm.cqn);
                ((page, UarRegister::ArmCq), index, self.cqs.get(index).map(|cq| cq.page()))
            }
        };
        let named = (of_page == Some(place.0)).then_some(index);
        if let Some(index) = named {
            self.poll_record(cx, place.1, index);
        }
        self.uar.begin(place, named);
        for _ in 0..POLLS_AT_ONCE {
            let Some(index) = self.uar.next_of(place) else { return };
            self.poll_record(cx, place.1, index);
        }
    }

    /// Continues the active polling rounds. Returns whether a round was active, in which case another turn is needed.
    pub fn poll_rounds(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.uar.is_active() {
            return false;
        }
        for _ in 0..POLLS_PER_TURN {
            let Some(((_, register), index)) = self.uar.next_active() else { break };
            self.poll_record(cx, register, index);
        }
        self.uar.rotate();
        true
    }

    fn poll_record(&mut self, cx: &mut Context<'_>, register: UarRegister, index: u32) {
        match register {
            UarRegister::Send => self.poll_send_record(cx, index),
            UarRegister::ArmCq => self.poll_arm_record(cx, index),
        }
    }

    fn poll_send_record(&mut self, cx: &mut Context<'_>, index: u32) {
        let Self { layout, regions, qps, .. } = self;
        let Some(qp) = qps.get_mut(index) else { return };
        // Software posts no send requests before RTS. Until then, ignore the record, which may still contain an
        // earlier QP's counter.
        let state = cx.engine.query_qp(qp.qpn).map(|live| live.state);
        let Some(State::Rts | State::Sqd | State::Sqe | State::Err) = state else { return };
        let record = regions.whole_record(layout, cx.dma, qp.qpc.page, qp.qpc.sq_record);
        let Some(record) = record else { return };
        let learned = qp.send.learn(record.counter);
        if learned == Advance::Nothing {
            return;
        }
        cx.monitor.observe(Observed::SendRecord { qp, record });
        let qpn = qp.qpn;
        if learned == Advance::TooMany {
            let what = format_args!("UAR[{}].send", qp.qpc.page);
            return cx.monitor.ignored(OVERFLOW, Some(qpn), what, |_| {});
        }
        qp.counters.doorbells += 1;
        cx.monitor.count_doorbell("send");
        notify_send(cx, self, qpn);
    }

    fn poll_arm_record(&mut self, cx: &mut Context<'_>, index: u32) {
        let Self { layout, regions, cqs, eqs, .. } = self;
        let Some(cq) = cqs.get_mut(index) else { return };
        let mut record = [0; RECORD_LEN];
        if regions.icm.read(cx.dma, layout.record(cq.page(), cq.arm_record()), &mut record).is_err() {
            return;
        }
        let Some(arm) = cq.rearmed(record) else { return };
        cx.monitor.observe(Observed::ArmRecord { cq, eqs, arm: &arm });
        cx.monitor.count_doorbell("arm_cq");
        if let Notify::Yes(eqn) = cq.arm(&arm) {
            self.notify(cx, eqn, arm.cqn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_doorbell_words_with_queues_are_polled() {
        let mut queues = UarQueues::default();
        for slot in [(2, UarRegister::Send), (7, UarRegister::ArmCq), (8, UarRegister::Send)] {
            queues.add(slot, 1);
        }
        let mut found = Vec::new();
        words(&queues, 0, 8, &mut found);
        assert_eq!(found, [0x2010, 0x7020]);
        found.clear();
        words(&queues, 2, 32, &mut found);
        assert_eq!(found, [0x8010, 0x1_c020]);
    }
}
