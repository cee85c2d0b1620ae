//! Frames between the port and the fabric, with everything that stands between: capture, impairments, the search for
//! MACs.

use std::net::IpAddr;

use protocol::ids::Qpn;
use protocol::net::ether::{EtherFrame, EtherType};
use protocol::net::ipv4::Ipv4;
use protocol::net::ipv6::Ipv6;
use protocol::roce::RoceFrame;

use super::Hca;
use crate::capture::Direction;
use crate::fabric::impair::{self, Verdict};
use crate::frontend::Frontend;
use crate::net::{DropReason, UNRESOLVED};

/// Bound: frames that leave in one turn, so that arrivals and accesses are looked at in between. At the largest MTU a
/// turn's frames are half a megabyte.
const FRAMES_PER_TURN: usize = 128;

impl<F: Frontend> Hca<F> {
    /// A frame arrived from the fabric.
    pub fn handle_frame(&mut self, frame: &[u8]) {
        if !self.is_port_active() || self.impairments.is_idle() {
            self.record(Direction::Inbound, frame, || None);
            self.deliver(frame);
            return;
        }
        match self.impairments.judge(self.now, impair::Direction::Rx, frame, false) {
            Verdict::Untouched => {
                self.record(Direction::Inbound, frame, || None);
                self.deliver(frame);
            }
            Verdict::Touched { note, frames } => {
                self.record(Direction::Inbound, frame, || Some(note));
                frames.iter().for_each(|frame| self.deliver(frame));
            }
        }
        self.release_inbound();
    }

    /// Fills the batch. Whether there may be more.
    pub(super) fn transmit(&mut self) -> bool {
        // Frames that a rule drops or holds back count too.
        for _ in 0..FRAMES_PER_TURN {
            if self.outbound.len() >= FRAMES_PER_TURN || self.looped.len() >= FRAMES_PER_TURN {
                break;
            }
            let mut host = self.frontend.host(self.now, &self.memory, &mut self.monitor);
            let Some(sent) = self.engine.poll_transmit(self.now, &mut host, self.outbound.buffer()) else {
                return false;
            };
            drop(host);
            self.outbound.commit(sent.dst_mac);
            if sent.wr_id.is_none() {
                self.outbound.mark_answer();
            }
            // Our own QPs are members of the group like any others'.
            if sent.dst_mac.is_multicast()
                && let Some(frame) = self.outbound.last()
            {
                self.looped.push(frame.to_vec());
            }
            if self.management.serves(sent.dst_mac) {
                let Some(frame) = self.outbound.take_last() else { continue };
                self.record(Direction::Outbound, &frame, || comment(sent.qpn, sent.wr_id));
                self.port.count_sent(&frame);
                self.manage(&frame);
            } else if sent.dst_mac == self.identity.mac {
                let Some(frame) = self.outbound.take_last() else { continue };
                self.record(Direction::Outbound, &frame, || comment(sent.qpn, sent.wr_id));
                self.looped.push(frame);
            } else if sent.dst_mac == UNRESOLVED {
                self.count_sent();
                self.resolve_and_leave(|| comment(sent.qpn, sent.wr_id));
            } else {
                self.count_sent();
                self.leave(|| comment(sent.qpn, sent.wr_id));
            }
        }
        true
    }

    pub(super) fn deliver(&mut self, frame: &[u8]) {
        if !self.is_port_active() {
            self.port.refuse(DropReason::LinkDown);
            return;
        }
        let Some(frame) = self.port.untag(frame) else { return };
        let frame = &*frame;
        let waiting = self.outbound.len();
        let received = self.port.receive(self.now, frame, &mut self.outbound);
        if self.outbound.len() > waiting {
            self.leave(|| None);
        }
        while let Some(frame) = self.port.next_resolved() {
            self.outbound.push(&frame);
            self.leave(|| Some("waited for the MAC of its destination".to_owned()));
        }
        let Some(received) = received else { return };
        self.port.count_received(frame);
        if self.admit(&received) {
            self.accept(&received);
        }
    }

    /// A frame of this HCA for itself, or of its management.
    pub(super) fn deliver_looped(&mut self, frame: &[u8]) {
        if let Some(received) = self.port.receive_own(frame) {
            self.accept(&received);
        }
    }

    /// Hands a packet to the engine.
    pub(super) fn accept(&mut self, received: &RoceFrame<'_>) {
        let mut host = self.frontend.host(self.now, &self.memory, &mut self.monitor);
        self.engine.handle_packet(self.now, &received.shell, &received.packet, &mut host);
        drop(host);
        self.report_events();
    }

    pub(super) fn count_sent(&mut self) {
        if let Some(frame) = self.outbound.last().filter(|_| self.is_port_active()) {
            self.port.count_sent(frame);
        }
    }

    /// The frame committed last is on its way to the fabric.
    pub(super) fn leave(&mut self, comment: impl FnOnce() -> Option<String>) {
        let Some(frame) = self.outbound.last().filter(|_| self.is_port_active()) else { return };
        let answer = self.outbound.last_is_answer();
        let verdict = match self.impairments.is_idle() {
            true => Verdict::Untouched,
            false => self.impairments.judge(self.now, impair::Direction::Tx, frame, answer),
        };
        if let Some(capture) = &mut self.capture {
            let note = match &verdict {
                Verdict::Untouched => None,
                Verdict::Touched { note, .. } => Some(note.clone()),
            };
            let comment: Vec<_> = comment().into_iter().chain(note).collect();
            capture.record(
                Direction::Outbound,
                frame,
                Some(comment.join("; ")).filter(|text| !text.is_empty()),
            );
        }
        if let Verdict::Touched { frames, .. } = verdict {
            self.outbound.take_last();
            frames.iter().for_each(|frame| self.push_out(frame, answer));
        }
        self.release_outbound();
    }

    /// The frame committed last has an IP address for destination, and no MAC yet.
    fn resolve_and_leave(&mut self, comment: impl FnOnce() -> Option<String>) {
        let ip = self.outbound.last().and_then(destination).filter(|ip| !ip.is_unspecified());
        let Some(ip) = ip else {
            self.outbound.take_last();
            self.port.count_unresolvable();
            return;
        };
        let neighbour = self.port.resolve(self.now, ip);
        if let Some(mac) = neighbour.mac {
            self.outbound.readdress_last(mac);
            self.leave(comment);
        } else if let Some(frame) = self.outbound.take_last() {
            self.port.wait(self.now, ip, frame);
        }
        if neighbour.ask {
            self.port.ask(ip, &mut self.outbound);
            self.leave(|| None);
        }
    }

    /// Frames that were held back on their way out.
    pub(super) fn release_outbound(&mut self) {
        while let Some(frame) = self.impairments.release(self.now, impair::Direction::Tx) {
            self.push_out(&frame.bytes, frame.answer);
        }
    }

    fn push_out(&mut self, frame: &[u8], answer: bool) {
        self.outbound.push(frame);
        if answer {
            self.outbound.mark_answer();
        }
    }

    /// Frames that were held back on their way in.
    pub(super) fn release_inbound(&mut self) {
        while let Some(frame) = self.impairments.release(self.now, impair::Direction::Rx) {
            self.deliver(&frame.bytes);
        }
    }

    pub(super) fn record(
        &mut self,
        direction: Direction,
        frame: &[u8],
        comment: impl FnOnce() -> Option<String>,
    ) {
        if let Some(capture) = &mut self.capture
            && self.management.is_active()
        {
            capture.record(direction, frame, comment());
        }
    }
}

/// Where the IP header of a frame says it goes.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    let ether = EtherFrame::parse(frame).ok()?;
    match ether.ether_type {
        EtherType::Ipv4 => Ipv4::parse(ether.payload).ok().map(|(ip, _)| ip.dst.into()),
        EtherType::Ipv6 => Ipv6::parse(ether.payload).ok().map(|(ip, _)| ip.dst.into()),
        EtherType::Arp | EtherType::Other(_) => None,
    }
}

fn comment(qpn: Qpn, wr_id: Option<u64>) -> Option<String> {
    Some(match wr_id {
        Some(wr_id) => format!("QP {qpn}, work request {wr_id:#x}"),
        None => format!("QP {qpn}"),
    })
}
