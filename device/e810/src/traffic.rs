//! Moves frames between the wire, the switch and the queues.
//!
//! # Spec
//! E810 interface, sections 5.7, 5.8 and 8.

use card::frontend::Context;
use card::memory::GuestMemory;
use card::telemetry::monitor::Monitor;
use card::telemetry::reason::{FrameReason, Reason};
use protocol::describe::Field as _;
use protocol::hca::e810::admin::vsi::Strip;
use protocol::hca::e810::tx_descriptor;
use protocol::net::layers::Layers;

use super::lan::{Lan, OutgoingFrame, RxOffload};
use super::pf_config::PfConfig;
use super::state::State;
use super::switch::{Destination, VsiSet};
use super::vsi::VsiNumber;
use crate::reason::{MAY_NOT_SEND, NO_TAKER, OVERSIZE, UNPARSED};

/// Maximum number of frames that a poll discards or delivers locally before it returns.
const MAX_LOCAL_FRAMES: usize = 32;

impl State {
    /// Appends the next frame for the wire to `out`. Returns whether a frame was appended.
    pub(super) fn next_frame(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        let link_is_up = cx.port.is_up();
        self.more_frames = false;
        for _ in 0..MAX_LOCAL_FRAMES {
            let Some(sent) = self.lan.poll_frame((cx.dma, cx.monitor), out) else { break };
            let frame = out.get(start..).unwrap_or_default();
            if self.forward((cx.dma, cx.monitor), sent, frame) {
                if link_is_up {
                    self.lan.count_sent(frame);
                    return true;
                }
                self.lan.count_lost_with_link_down();
                discard(cx.monitor, FrameReason::LinkDown, frame);
            }
            out.truncate(start);
        }
        self.more_frames = self.lan.has_work();
        false
    }

    /// Handles a frame from the wire.
    pub(super) fn handle_frame(&mut self, cx: &mut Context<'_>, frame: &[u8]) {
        if !cx.port.is_up() {
            return discard(cx.monitor, FrameReason::LinkDown, frame);
        }
        if !self.lan.accept_from_port(frame) {
            return discard(cx.monitor, OVERSIZE, frame);
        }
        let Ok(layers) = Layers::parse(frame) else {
            return discard(cx.monitor, UNPARSED, frame);
        };
        let receivers = self.function.pf_config.receive(&layers);
        if receivers.is_empty() {
            return discard(cx.monitor, NO_TAKER, frame);
        }
        deliver(&mut self.lan, &self.function.pf_config, (cx.dma, cx.monitor), frame, &layers, &receivers);
    }

    /// Delivers a frame from a VSI to its local receivers. Returns whether it also goes to the wire.
    fn forward(&mut self, guest: (&GuestMemory, &mut Monitor), sent: OutgoingFrame, frame: &[u8]) -> bool {
        let pf_config = &self.function.pf_config;
        let to = match sent.destination {
            tx_descriptor::Destination::Rules => Destination::Rules,
            tx_descriptor::Destination::Wire => Destination::Wire,
            tx_descriptor::Destination::Local => Destination::Local,
            tx_descriptor::Destination::Vsi(vsi) => Destination::Vsi(VsiNumber::new(vsi)),
        };
        let route = Layers::parse(frame).ok().and_then(|layers| {
            Some((pf_config.transmit(VsiNumber::new(sent.vsi), &layers, to).ok()?, layers))
        });
        let Some((route, layers)) = route else {
            self.lan.count_rejected(sent.vsi);
            discard(guest.1, MAY_NOT_SEND, frame);
            return false;
        };
        deliver(&mut self.lan, pf_config, guest, frame, &layers, &route.vsis);
        route.wire
    }
}

#[cold]
fn discard(monitor: &mut Monitor, reason: impl Into<Reason>, frame: &[u8]) {
    monitor.ignored_frame(reason, |to| frame.len().show("len", to));
}

fn deliver(
    lan: &mut Lan,
    pf_config: &PfConfig,
    (memory, monitor): (&GuestMemory, &mut Monitor),
    frame: &[u8],
    layers: &Layers,
    receivers: &VsiSet,
) {
    for number in receivers.iter() {
        let Some(vsi) = pf_config.vsis.get(number) else { continue };
        let steering = pf_config.vsis.steer(number, vsi, layers);
        let offload = RxOffload { strip_tag: vsi.vlan.strip != Strip::Keep, hash: steering.hash };
        lan.receive((memory, &mut *monitor), (number.get(), steering.queue), frame, layers, offload);
    }
}
