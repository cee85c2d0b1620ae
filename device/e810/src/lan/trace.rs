//! Trace records of fetched and completed descriptors.

use card::telemetry::monitor::Monitor;
use card::telemetry::trace::Kind;
use protocol::describe::{Describe as _, Field as _};
use protocol::hca::e810::rx_descriptor::{RxBuffers, RxWriteBack};
use protocol::hca::e810::tx_descriptor::TxDescriptor;

pub(super) fn transmit(monitor: &mut Monitor, (queue, index): (u16, u16), descriptor: &TxDescriptor) {
    if let Some(trace) = monitor.trace() {
        trace.record(Kind::Wqe, "transmit", |to| {
            queue.show("queue", to);
            index.show("index", to);
            descriptor.name().show("kind", to);
            descriptor.describe(to);
        });
    }
}

pub(super) fn transmit_done(monitor: &mut Monitor, (queue, index): (u16, u16)) {
    if let Some(trace) = monitor.trace() {
        trace.record(Kind::Cqe, "transmit", |to| {
            queue.show("queue", to);
            index.show("index", to);
        });
    }
}

pub(super) fn receive(monitor: &mut Monitor, (queue, index): (u16, u16), buffers: &RxBuffers) {
    if let Some(trace) = monitor.trace() {
        trace.record(Kind::Wqe, "receive", |to| {
            queue.show("queue", to);
            index.show("index", to);
            buffers.describe(to);
        });
    }
}

pub(super) fn receive_done(monitor: &mut Monitor, (queue, index): (u16, u16), entry: &RxWriteBack) {
    if let Some(trace) = monitor.trace() {
        trace.record(Kind::Cqe, "receive", |to| {
            queue.show("queue", to);
            index.show("index", to);
            entry.describe(to);
        });
    }
}
