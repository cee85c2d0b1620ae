//! Events and the interrupts they raise.
//!
//! # Spec
//! mlx5 interface, sections 3.2 and 8.

use card::frontend::Context;
use card::limited;
use protocol::hca::mlx5::eqe::{Eqe, EventMask};
use protocol::ids::{Cqn, Eqn};

use super::completion_queue::EventTime;
use super::event_queue::EventQueue;
use super::resources::Resources;
use super::trace;

impl Resources {
    /// Returns the EQ whose mask contains all of `events`.
    pub fn taker(&self, events: EventMask) -> Option<Eqn> {
        let mut queues = self.eqs.iter_from(0);
        queues.find(|(_, queue)| queue.mask().contains(events)).map(|(eqn, _)| Eqn::new(eqn))
    }

    /// Writes an asynchronous event to the EQ that receives events of its type. If no EQ does, the event is dropped.
    pub fn raise(&mut self, cx: &mut Context<'_>, event: &Eqe) {
        let taker = self.taker(event.mask());
        if !self.hold(taker, event) {
            self.report(cx, taker, event);
        }
    }

    /// Reports new entries in a CQ, immediately or after a delay.
    pub fn notify(&mut self, cx: &mut Context<'_>, cqn: Cqn, time: EventTime) {
        let Some(eqn) = self.cqs.get(cqn.get()).map(|cq| cq.eqn()) else { return };
        if time == EventTime::Delayed && self.delayed.delay(eqn, cqn, cx.now) {
            return;
        }
        if time == EventTime::Now {
            self.delayed.resume(eqn);
        }
        self.write_completion_event(cx, eqn, cqn);
        for delayed in self.delayed.take(eqn) {
            self.write_delayed_event(cx, delayed);
        }
    }

    /// Writes the events whose delay has expired.
    pub fn write_expired_events(&mut self, cx: &mut Context<'_>) {
        for cqn in self.delayed.take_expired(cx.now) {
            self.write_delayed_event(cx, cqn);
        }
    }

    /// Writes a CQ's delayed event, unless it has been written in the meantime or the CQ has been destroyed.
    fn write_delayed_event(&mut self, cx: &mut Context<'_>, cqn: Cqn) {
        if let Some(cq) = self.cqs.get(cqn.get()).filter(|cq| cq.has_due_event()) {
            self.write_completion_event(cx, cq.eqn(), cqn);
        }
    }

    /// Writes the events that an EQ holds because its ring was full, as far as the ring has room for them.
    pub fn write_held_events(&mut self, cx: &mut Context<'_>, eqn: Eqn) {
        while let Some(event) = self.eqs.get_mut(eqn.get()).and_then(EventQueue::take_held) {
            match event {
                Eqe::Completion(cqn) => self.write_delayed_event(cx, cqn),
                other => {
                    self.report(cx, Some(eqn), &other);
                }
            }
        }
    }

    /// Drops the events that EQs hold, except those of commands. Called when the data path stops.
    pub fn drop_held_events(&mut self) {
        let eqns: Vec<_> = self.eqs.iter_from(0).map(|(eqn, _)| eqn).collect();
        for eqn in eqns {
            if let Some(queue) = self.eqs.get_mut(eqn) {
                queue.drop_held();
            }
        }
    }

    /// Writes a completion event to a CQ's EQ. If the EQ is full, it holds the event, and the CQ stays armed.
    fn write_completion_event(&mut self, cx: &mut Context<'_>, eqn: Eqn, cqn: Cqn) {
        if self.hold(Some(eqn), &Eqe::Completion(cqn)) {
            return;
        }
        if let Some(queue) = self.cqs.get_mut(cqn.get()) {
            queue.disarm();
        }
        if let Some(place) = self.report(cx, Some(eqn), &Eqe::Completion(cqn))
            && let Some(queue) = self.cqs.get_mut(cqn.get())
        {
            queue.event_written(place);
        }
    }

    /// Holds an event if its EQ is full. Returns whether the event is held.
    fn hold(&mut self, eqn: Option<Eqn>, event: &Eqe) -> bool {
        let Some(queue) = eqn.and_then(|eqn| self.eqs.get_mut(eqn.get())) else { return false };
        let is_held = queue.hold(event);
        if is_held {
            limited!(debug, ?eqn, ?event, "event held: the event queue is full");
        }
        is_held
    }

    /// Writes an event to an EQ. Returns the entry's free-running index, or `None` if no entry was written.
    fn report(&mut self, cx: &mut Context<'_>, eqn: Option<Eqn>, event: &Eqe) -> Option<u32> {
        let queue = eqn.and_then(|eqn| self.eqs.get_mut(eqn.get()));
        let place = eqn.zip(queue.as_ref().map(|queue| queue.producer()));
        let result = queue.map_or(Ok(None), |queue| queue.push(event, cx.dma));
        if let Some(trace) = cx.monitor.trace() {
            trace::eqe(trace, place, event, result.as_ref().err());
        }
        match result {
            Ok(Some(vector)) => cx.interrupt(vector),
            Ok(None) => {}
            Err(error) => {
                limited!(warn, ?eqn, ?event, "event lost: {error}");
                return None;
            }
        }
        place.map(|(_, index)| index)
    }
}
