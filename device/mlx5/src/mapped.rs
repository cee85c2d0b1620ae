//! Doorbells in UAR pages that are mapped into the guest. Stores to these pages do not trap.
//!
//! A doorbell in a mapped page is a word in memory that the device finds later. By then, another queue's doorbell may
//! have overwritten it, so a word shows only that software has used the page. The device polls the doorbell records of
//! all queues in the page that share the word, starting with the queue that the word names, and relies only on the
//! records. If software copies a whole WQE to a BlueFlame register, only the first eight bytes matter: they are taken
//! as a doorbell. The device reads the WQE from the queue.
//!
//! No doorbell is lost:
//! - Software writes the WQE, then the record, then the doorbell. The device reads and clears the word with acquire
//!   ordering before it reads a record, and loads the record with acquire ordering before it reads a WQE. If the
//!   device reads a record too early, the doorbell has not been stored yet, and a later poll finds the doorbell.
//! - A doorbell that overwrites an earlier one was stored after the earlier one's record was written. The device polls
//!   the earlier doorbell's record too, as it polls all queues that share the word.
//! - A send counter that differs from the last one read means new requests, no matter how many doorbells the device has
//!   missed.
//! - Arm requests are level-triggered. A request raises an event immediately if the CQ has a matching entry at or after
//!   its consumer index. An entry written between the request and the poll therefore raises the event too.
//! - An arm request that equals the last one can be ignored. Its sequence number counts the events that software has
//!   received. If the number has not changed, either the CQ is still armed, or software has not received the event yet.
//!
//! No request is executed twice. Software clears the record of a QP when it resets the QP. The driver does not clear
//! the record of an SQ that it resets after a failure, so MODIFY_SQ clears the send counter.
//!
//! No event is raised without an arm request. An all-zero record would be ambiguous: either the CQ was never armed, or
//! the record holds its first arm request, of the kind that any completion (not only a solicited one) satisfies.
//! CREATE_CQ therefore marks the record of a new CQ as never armed.
//!
//! # Spec
//! mlx5 interface, sections 7.2 to 7.4 and 9.2.

use card::frontend::Context;
use card::frontend::poll_rounds::{POLLS_AT_ONCE, POLLS_PER_TURN, PollRounds};
use protocol::hca::mlx5::PAGE;
use protocol::hca::mlx5::doorbell::UarRegister;
use protocol::hca::mlx5::qp::QpState;
use protocol::hca::mlx5::sq::WorkQueueState;
use protocol::ids::{Qpn, Sqn, UarIndex};

use super::doorbell::Doorbell;
use super::host;
use super::reason::OVERFLOW;
use super::resources::Resources;
use super::strict;
use super::work_queue::Advance;

/// A group of doorbells in a mapped page that serve the same queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    /// The register that arms CQs.
    ArmCq,
    /// All send registers. Software may use any of them for any QP or SQ of the page. SQs and QPs share one number
    /// space.
    Send,
}

/// Queues with doorbells in mapped pages.
pub type PolledQueues = PollRounds<(UarIndex, Word)>;

/// Appends the BAR0 offset of each doorbell that has queues, in all mapped pages.
pub fn words(queues: &PolledQueues, words: &mut Vec<u64>) {
    for (page, word) in queues.slots() {
        let start = u64::from(page.get()) * PAGE as u64;
        match word {
            Word::ArmCq => words.push(start + UarRegister::ARM_CQ),
            Word::Send => words.extend(UarRegister::sends().map(|offset| start + offset)),
        }
    }
}

impl Resources {
    /// Starts polling the doorbell record of a new queue, if the queue's UAR page is mapped.
    pub fn poll_queue(&mut self, page: UarIndex, word: Word, number: u32) {
        if self.uars.is_mapped(page) {
            self.polled.add((page, word), number);
        }
    }

    /// Handles a doorbell found in a mapped page.
    pub fn handle_mapped_doorbell(&mut self, cx: &mut Context<'_>, page: UarIndex, doorbell: &Doorbell) {
        let (word, number, own) = match *doorbell {
            Doorbell::ArmCq(arm) => {
                let number = arm.cqn.get();
                (Word::ArmCq, number, self.cqs.get(number).map(|cq| cq.uar()))
            }
            Doorbell::Send { qpn, .. } => (Word::Send, qpn.get(), self.sender_page(qpn)),
            // No EQ may use a mapped page, so the device does not poll EQ doorbells. A client can still send one, as a
            // message instead of a store to the mapping.
            Doorbell::ArmEq(_) | Doorbell::UpdateEq(_) => return self.handle_doorbell(cx, page, doorbell),
        };
        let slot = (page, word);
        let named = (own == Some(page)).then_some(number);
        if let Some(number) = named {
            self.poll_record(cx, slot, number);
        }
        self.polled.begin(slot, named);
        for _ in 0..POLLS_AT_ONCE {
            let Some(number) = self.polled.next_of(slot) else { return };
            self.poll_record(cx, slot, number);
        }
    }

    /// Continues the active polling rounds. Returns true if there were any, in which case the event loop must run
    /// another iteration.
    pub fn poll_rounds(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.polled.is_active() {
            return false;
        }
        for _ in 0..POLLS_PER_TURN {
            let Some((slot, number)) = self.polled.next_active() else { break };
            self.poll_record(cx, slot, number);
        }
        self.polled.rotate();
        true
    }

    /// Returns the UAR page of QP or SQ number `qpn`.
    fn sender_page(&self, qpn: Qpn) -> Option<UarIndex> {
        let sq = self.netdev.sq(Sqn::new(qpn.get())).map(|sq| sq.uar());
        sq.or_else(|| self.qps.get(qpn.get()).map(|qp| qp.context.uar))
    }

    fn poll_record(&mut self, cx: &mut Context<'_>, (page, word): (UarIndex, Word), number: u32) {
        let advance = match word {
            Word::ArmCq => return self.poll_arm_record(cx, number),
            Word::Send if self.netdev.sq(Sqn::new(number)).is_some() => {
                self.poll_sq_record(cx, Sqn::new(number))
            }
            Word::Send => self.poll_qp_record(cx, Qpn::new(number)),
        };
        match advance {
            Advance::Nothing => {}
            Advance::More => cx.monitor.count_doorbell("send"),
            Advance::TooMany => {
                let page = page.get();
                cx.monitor.ignored(
                    OVERFLOW,
                    Some(Qpn::new(number)),
                    format_args!("UAR[{page}].send"),
                    |_| {},
                );
            }
        }
    }

    fn poll_sq_record(&mut self, cx: &mut Context<'_>, sqn: Sqn) -> Advance {
        let Some(sq) = self.netdev.sq_mut(sqn) else { return Advance::Nothing };
        // In the reset state, the record is ignored because its counter may be stale.
        let record = sq.record(cx.dma).filter(|_| sq.state() != WorkQueueState::Reset);
        let Some(record) = record else { return Advance::Nothing };
        let advance = sq.poll_record(record);
        if advance == Advance::Nothing {
            return advance;
        }
        cx.monitor.check(|| strict::sq_record(sq, record));
        if advance == Advance::More {
            self.netdev.schedule(sqn.get());
        }
        advance
    }

    fn poll_qp_record(&mut self, cx: &mut Context<'_>, qpn: Qpn) -> Advance {
        self.observe(cx.engine, qpn);
        let Some(qp) = self.qps.get_mut(qpn.get()) else { return Advance::Nothing };
        // Software posts nothing before RTS. Until then, the record is ignored, because it may still contain the
        // counter from before a reset.
        if !matches!(
            qp.context.state(),
            Some(QpState::Rts | QpState::SqError | QpState::SqDrain | QpState::Error)
        ) {
            return Advance::Nothing;
        }
        let Some(record) = qp.record(cx.dma) else { return Advance::Nothing };
        let advance = qp.poll(record);
        if advance == Advance::Nothing {
            return advance;
        }
        cx.monitor.check(|| strict::send_record(qp, record));
        if advance == Advance::More {
            qp.counters.doorbells += 1;
            host::notify_send(cx, self, qpn);
        }
        advance
    }

    fn poll_arm_record(&mut self, cx: &mut Context<'_>, number: u32) {
        let dma = cx.dma;
        let Some(arm) = self.cqs.get_mut(number).and_then(|cq| cq.rearmed(dma)) else { return };
        cx.monitor.check(|| strict::arm_record(self, &arm, dma));
        cx.monitor.count_doorbell("arm_cq");
        self.arm(cx, &arm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_doorbells_with_queues_are_listed() {
        let mut queues = PolledQueues::default();
        let page = UarIndex::new(0x20);
        queues.add((page, Word::Send), 0x80);
        queues.add((page, Word::Send), 0x81);
        queues.add((UarIndex::new(0x21), Word::ArmCq), 0x40);
        let mut found = Vec::new();
        words(&queues, &mut found);
        let sends = (0..8).map(|buffer| 0x2_0800 + buffer * 0x100);
        assert_eq!(found, sends.chain([0x2_1020]).collect::<Vec<u64>>());
        queues.remove((page, Word::Send), 0x80);
        queues.remove((page, Word::Send), 0x81);
        found.clear();
        words(&queues, &mut found);
        assert_eq!(found, [0x2_1020]);
    }
}
