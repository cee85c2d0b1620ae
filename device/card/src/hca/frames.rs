//! Moves frames between the port and the fabric, applying capture, impairments and neighbour resolution on the way.

use engine::{ReceivedPacket, Room, Transmit, TxOffloads};
use protocol::WireError;
use protocol::describe::Field as _;
use protocol::ids::{MacAddr, Qpn};
use protocol::net::ether::EtherFrame;
use protocol::roce::{Encap, Offload, PacketPayload as _, RoceFrame, RoceHeaders, for_each_frame, seal};

use super::Hca;
use crate::capture::{About, Direction};
use crate::fabric::impair::{self, Verdict};
use crate::fabric::{Arrival, MEMORY_TURN_BYTES, Origin};
use crate::frontend::{Context, Frontend, HostContext};
use crate::net::classify::destination;
use crate::net::{DropReason, UNRESOLVED};
use crate::record::Input;

/// Maximum number of frames sent in one turn. Arriving frames and register accesses wait until the turn ends. On a
/// socket, the frames of one turn add up to about half a megabyte at the largest path MTU, or to about 1.2 megabytes if
/// a NIC sends jumbo frames. Shared-memory fabrics, whose frames can be longer, also limit the bytes per turn.
const FRAMES_PER_TURN: usize = 128;

/// Maximum number of frames that the engine builds before the NIC may build frames, and vice versa. Equal to the number
/// of packets in a QP's turn, so that one system call can send a QP's equal-length frames.
const FRAMES_PER_SENDER: usize = 32;

/// The part of a device that builds frames. A device without a NIC has only the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Sender {
    #[default]
    Engine,
    Nic,
}

impl Sender {
    const COUNT: usize = 2;

    fn next(self) -> Self {
        match self {
            Self::Engine => Self::Nic,
            Self::Nic => Self::Engine,
        }
    }
}

impl<F: Frontend> Hca<F> {
    /// Handles a frame from the fabric.
    pub fn handle_arrival(&mut self, arrival: Arrival<'_>) {
        let offload = arrival.offload();
        if offload == Offload::None || self.shows_frames() {
            let frame = &arrival.contents();
            let handled = for_each_wire_frame(frame, offload, |frame| self.handle_frame(frame));
            return self.report_error(frame, handled);
        }
        self.expect_doorbells();
        if !self.handle_in_flow(&arrival) {
            self.deliver_with(&arrival.contents(), offload);
        }
    }

    /// Handles a frame of the last received flow. Parses only the headers, so a payload in shared memory is not copied
    /// to private memory. Returns false, without any effect, if the caller must handle the frame.
    fn handle_in_flow(&mut self, arrival: &Arrival<'_>) -> bool {
        let (head, frame) = arrival.parts();
        let offload = arrival.offload();
        if self.port.is_looped_back() || !self.is_port_active() {
            return false;
        }
        let Some(headers) = self.port.headers_in_flow(head, frame.len(), offload) else { return false };
        let RoceHeaders { encap, packet, payload_at } = &headers;
        if self.is_for_management(packet.bth.dest_qp) {
            return false;
        }
        self.port.accept_headers(&headers, offload);
        let payload = frame.slice(*payload_at..payload_at + packet.payload.len());
        self.execute(encap, &packet.with_payload(payload), offload);
        true
    }

    /// Handles a frame that arrived from the fabric in wire format, including its ICRC.
    pub fn handle_frame(&mut self, frame: &[u8]) {
        self.step(Input::Frame(frame.into()));
        self.expect_doorbells();
        if !self.is_port_active() || self.impairments.is_idle() {
            self.record(Direction::Inbound, frame, About::default);
            self.deliver(frame);
            return;
        }
        match self.impairments.apply_rules(self.now, impair::Direction::Rx, frame, Origin::Own) {
            Verdict::Pass => {
                self.record(Direction::Inbound, frame, About::default);
                self.deliver(frame);
            }
            Verdict::Modified { note, frames } => {
                self.record(Direction::Inbound, frame, || About::note(note));
                frames.iter().for_each(|frame| self.deliver(frame));
            }
        }
        self.release_inbound();
    }

    /// Fills the batch, alternating between the engine and the NIC. Returns whether more frames may follow.
    pub(super) fn transmit(&mut self) -> bool {
        if !self.is_nic {
            return self.transmit_roce(FRAMES_PER_TURN) == FRAMES_PER_TURN || !self.has_room();
        }
        let mut left = FRAMES_PER_TURN;
        let mut exhausted = 0;
        while exhausted < Sender::COUNT {
            if left == 0 || !self.has_room() {
                return true;
            }
            let quota = left.min(FRAMES_PER_SENDER);
            let made = match self.sender {
                Sender::Engine => self.transmit_roce(quota),
                Sender::Nic => self.transmit_nic(quota),
            };
            self.sender = self.sender.next();
            left -= made;
            exhausted = if made < quota { exhausted + 1 } else { 0 };
        }
        // The last sender may have stopped because the batch was full.
        !self.has_room()
    }

    fn has_room(&self) -> bool {
        let Room { frames, bytes } = self.room();
        frames > 0 && bytes > 0
    }

    /// Returns how much the batch and the queues of looped-back frames can still take in this turn.
    fn room(&self) -> Room {
        // A replay has no fabric. Recording and replay both use the shared-memory limit so that their turns are the
        // same.
        let turn_bytes = if self.sink.is_some() { MEMORY_TURN_BYTES } else { self.turn_bytes };
        let frames = self.outbound.len().max(self.looped.len()).max(self.looped_back.len());
        let bytes = turn_bytes.saturating_sub(self.outbound.bytes());
        let looped_bytes = MEMORY_TURN_BYTES.saturating_sub(self.looped.bytes());
        Room { frames: FRAMES_PER_TURN.saturating_sub(frames), bytes: bytes.min(looped_bytes) }
    }

    /// Collects up to `quota` frames from the NIC while the batch has room. Returns the number of frames.
    fn transmit_nic(&mut self, quota: usize) -> usize {
        for made in 0..quota {
            if !self.has_room() {
                return made;
            }
            let cx = &mut context!(self);
            if !self.frontend.poll_frame(cx, self.outbound.buffer()) {
                return made;
            }
            if self.outbound.commit_nic() {
                if let Some(frame) = self.outbound.last().filter(|_| self.is_port_active()) {
                    self.port.count_nic_sent(frame);
                }
                self.send_frame(About::default);
            } else {
                self.port.count_malformed();
            }
        }
        quota
    }

    /// Returns whether frames are captured, recorded or impaired, and must therefore be in wire format.
    fn shows_frames(&self) -> bool {
        self.capture.is_some() || self.sink.is_some() || !self.impairments.is_idle()
    }

    /// Collects up to `quota` frames from the engine while the batch has room. Returns the number of frames,
    /// including those that an impairment rule drops or holds.
    fn transmit_roce(&mut self, quota: usize) -> usize {
        let in_wire_format = self.needs_icrc || self.shows_frames() || self.port.is_looped_back();
        self.engine.set_offloads(if in_wire_format { TxOffloads::None } else { TxOffloads::Segmentation });
        // Impairments, captures and loopback mode handle one frame at a time.
        let most = if self.shows_frames() || self.port.is_looped_back() { 1 } else { quota };
        let mut made = 0;
        while made < quota {
            let Room { frames, bytes } = self.room();
            if frames == 0 || bytes == 0 {
                break;
            }
            let room = Room { frames: frames.min(most).min(quota - made), bytes };
            let mut host = self.frontend.host(host_context!(self));
            let (frames, ranges) = self.outbound.detached_buffer();
            let ranges = self.detaches_payload.then_some(ranges);
            let sent = self.engine.poll_burst(self.now, &mut host, frames, ranges, room);
            drop(host);
            let Some(sent) = sent else { break };
            made += sent.frames as usize;
            if sent.frames > 1 { self.send_burst(&sent) } else { self.send_from_engine(&sent) }
        }
        made
    }

    /// Sends the frames that the engine has appended to the buffer of the batch. Their destination is resolved and
    /// unicast, and they do not need to be captured, impaired or looped back by the port.
    fn send_burst(&mut self, burst: &Transmit) {
        if !self.is_own_destination(burst.dst_mac) {
            self.outbound.commit_burst(burst.len, burst.dst_mac, Origin::Own, burst.offload);
            return self.count_sent(burst);
        }
        let frames = self.outbound.take_uncommitted();
        let (packets, octets) = (burst.packets / burst.frames, burst.octets / burst.frames);
        for frame in frames.chunks_exact(burst.len) {
            self.outbound.buffer().extend_from_slice(frame);
            self.send_from_engine(&Transmit { frames: 1, packets, octets, ..*burst });
        }
    }

    /// Returns whether this HCA or its management receives frames to `mac`, so that they do not reach the fabric.
    fn is_own_destination(&self, mac: MacAddr) -> bool {
        self.port.is_own_mac(mac) || self.management.as_ref().is_some_and(|management| management.serves(mac))
    }

    /// Sends the frame that the engine has appended to the buffer of the batch.
    fn send_from_engine(&mut self, sent: &Transmit) {
        // A packet without a work request is a response.
        let origin = if sent.wr_id.is_none() { Origin::Answer } else { Origin::Own };
        match sent.detached {
            Some(payload) => self.outbound.commit_detached(sent.dst_mac, origin, sent.offload, payload),
            None => self.outbound.commit_with(sent.dst_mac, origin, sent.offload),
        }
        let to_self = self.port.is_own_mac(sent.dst_mac);
        let for_management =
            self.management.as_ref().is_some_and(|management| management.serves(sent.dst_mac));
        if (to_self || for_management) && !self.outbound.settle_last() {
            return;
        }
        // Frames to a group may reach a wire, and frames that are queued or passed to management must be in wire
        // format. They need an ICRC even if the fabric requires none.
        if sent.dst_mac.is_multicast() || for_management || sent.dst_mac == UNRESOLVED {
            self.outbound.seal_last();
        }
        let wr = sent.wr_id.map(|wr_id| self.frontend.work_request(wr_id));
        // The device's own QPs may also be members of the group.
        if sent.dst_mac.is_multicast()
            && let Some(frame) = self.outbound.last()
        {
            self.looped.push(frame, Offload::None);
        }
        if for_management {
            let Some(frame) = self.outbound.take_last() else { return };
            self.record(Direction::Outbound, &frame, || about(sent.qpn, wr));
            self.port.count_sent(sent);
            // Management handles only datagrams, which are never segmented.
            if !matches!(sent.offload, Offload::Segmentation(_)) {
                self.manage(&frame);
            }
        } else if to_self {
            self.loop_last(sent.offload, || about(sent.qpn, wr));
        } else if sent.dst_mac == UNRESOLVED {
            self.count_sent(sent);
            self.resolve_and_send(|| about(sent.qpn, wr));
        } else {
            self.count_sent(sent);
            self.send_frame(|| about(sent.qpn, wr));
        }
    }

    pub(super) fn deliver(&mut self, frame: &[u8]) {
        self.deliver_with(frame, Offload::None);
    }

    fn deliver_with(&mut self, frame: &[u8], offload: Offload) {
        if self.port.is_looped_back() {
            self.port.refuse(DropReason::Loopback);
            return self.report_drop(frame);
        }
        self.handle_inbound(frame, offload);
    }

    /// Handles a frame that arrives at the port, either from the fabric or through loopback.
    pub(super) fn handle_inbound(&mut self, frame: &[u8], offload: Offload) {
        if !self.is_port_active() {
            self.port.refuse(DropReason::LinkDown);
            return self.report_drop(frame);
        }
        if let Some(received) = self.port.receive_in_flow(frame, offload) {
            return self.handle_packet(frame, &received, offload);
        }
        if self.is_nic && self.port.is_for_nic(frame) {
            let delivered = for_each_wire_frame(frame, offload, |frame| self.deliver_to_nic(frame));
            return self.report_error(frame, delivered);
        }
        let whole = frame;
        let Some(frame) = self.port.untag(whole) else { return self.report_drop(whole) };
        let frame = &*frame;
        let waiting = self.outbound.len();
        let received = self.port.receive(self.now, frame, offload, &mut self.outbound);
        if self.outbound.len() > waiting {
            self.send_frame(About::default);
        }
        while let Some(frame) = self.port.next_resolved() {
            self.outbound.push(&frame);
            self.send_frame(|| About::note("delayed until its destination MAC was resolved"));
        }
        let Some(received) = received else { return self.report_drop(frame) };
        self.handle_packet(frame, &received, offload);
    }

    /// Handles a packet that arrived at the port and was accepted.
    fn handle_packet(&mut self, frame: &[u8], received: &RoceFrame<'_>, offload: Offload) {
        self.port.count_received(frame, received, offload);
        if self.admit(received) {
            self.accept(received, offload);
        }
    }

    fn deliver_to_nic(&mut self, frame: &[u8]) {
        if !self.port.admit_nic_frame(frame) {
            return self.report_drop(frame);
        }
        let cx = &mut context!(self);
        self.frontend.receive_frame(cx, frame);
        self.report_events();
    }

    /// Moves the last frame in the batch to the queue of frames that this HCA sends to itself.
    fn loop_last(&mut self, offload: Offload, about: impl FnOnce() -> About) {
        let is_active = self.is_port_active();
        let Some(frame) = self.outbound.last() else { return };
        if let Some(capture) = self.capture.as_mut().filter(|_| is_active) {
            capture.record(Direction::Outbound, frame, about());
        }
        self.looped.push(frame, offload);
        self.outbound.drop_last();
    }

    /// Delivers the frames that this HCA or its management sent to the HCA itself.
    pub(super) fn deliver_looped(&mut self) {
        if self.looped.is_empty() {
            return;
        }
        let mut frames = std::mem::take(&mut self.looped);
        for (frame, offload) in frames.iter() {
            match self.port.receive_own(frame, offload) {
                Some(received) if self.admit_own(&received) => self.accept(&received, offload),
                Some(_) => {}
                None => self.report_drop(frame),
            }
        }
        if self.looped.is_empty() {
            frames.clear();
            self.looped = frames;
        }
    }

    /// Counts and reports a frame that [`for_each_wire_frame`] failed to divide, if `result` is an error.
    fn report_error(&mut self, frame: &[u8], result: Result<(), WireError>) {
        if let Err(error) = result {
            self.port.refuse(error.into());
            self.report_drop(frame);
        }
    }

    /// Reports why the port dropped a frame, if it did. Frames that the port replied to have no drop reason.
    #[cold]
    fn report_drop(&mut self, frame: &[u8]) {
        let Some(reason) = self.port.take_drop() else { return };
        self.monitor.ignored_frame(reason, |to| {
            frame.len().show("len", to);
            if let Ok(ether) = EtherFrame::parse(frame) {
                format_args!("{}", ether.src).show("smac", to);
                format_args!("{}", ether.dst).show("dmac", to);
            }
        });
    }

    pub(super) fn accept(&mut self, received: &RoceFrame<'_>, offload: Offload) {
        self.execute(&received.encap, &received.packet.convert(), offload);
    }

    fn execute(&mut self, encap: &Encap, packet: &ReceivedPacket<'_>, offload: Offload) {
        let mut host = self.frontend.host(host_context!(self));
        match offload {
            Offload::Segmentation(mtu) => {
                self.engine.handle_segments(self.now, encap, packet, mtu, &mut host);
            }
            Offload::None | Offload::Icrc => self.engine.handle_packet(self.now, encap, packet, &mut host),
        }
        drop(host);
        self.report_events();
    }

    /// Counts the last frame in the batch, which the management agents have built.
    pub(super) fn count_sent_frame(&mut self) {
        if let Some(frame) = self.outbound.last().filter(|_| self.is_port_active()) {
            self.port.count_sent_frame(frame);
        }
    }

    fn count_sent(&mut self, sent: &Transmit) {
        if self.is_port_active() {
            self.port.count_sent(sent);
        }
    }

    /// Captures the last frame in the batch, applies the impairments to it, and sends it to the fabric. In loopback,
    /// returns the frame to the port instead.
    pub(super) fn send_frame(&mut self, about: impl FnOnce() -> About) {
        if self.port.is_looped_back() {
            self.outbound.seal_last();
            self.looped_back.extend(self.outbound.take_last());
            return;
        }
        let Some(frame) = self.outbound.last().filter(|_| self.is_port_active()) else { return };
        let origin = self.outbound.last_origin();
        let is_unimpaired = self.impairments.is_idle();
        let verdict = match is_unimpaired {
            true => Verdict::Pass,
            false => self.impairments.apply_rules(self.now, impair::Direction::Tx, frame, origin),
        };
        if let Some(capture) = &mut self.capture {
            let mut about = about();
            if let Verdict::Modified { note, .. } = &verdict {
                let notes: Vec<_> = about.note.iter().chain([note]).map(String::as_str).collect();
                about.note = Some(notes.join("; "));
            }
            capture.record(Direction::Outbound, frame, about);
        }
        if let Verdict::Modified { frames, .. } = verdict {
            self.outbound.take_last();
            frames.iter().for_each(|frame| self.push_out(frame, origin));
        }
        if !is_unimpaired {
            self.release_outbound();
        }
    }

    /// Resolves the destination IP address of the last frame to a MAC and sends the frame. If the MAC is not known yet,
    /// queues the frame until it is.
    fn resolve_and_send(&mut self, about: impl FnOnce() -> About) {
        let ip = self
            .outbound
            .last()
            .and_then(|frame| destination(&EtherFrame::parse(frame).ok()?))
            .filter(|ip| !ip.is_unspecified());
        let Some(ip) = ip else {
            self.outbound.take_last();
            self.port.count_unresolvable();
            return;
        };
        let neighbour = self.port.resolve(self.now, ip);
        if let Some(mac) = neighbour.mac {
            self.outbound.readdress_last(mac);
            self.send_frame(about);
        } else if let Some(frame) = self.outbound.take_last() {
            self.port.wait(self.now, ip, frame);
        }
        if neighbour.request {
            self.port.send_request(ip, &mut self.outbound);
            self.send_frame(About::default);
        }
    }

    /// Sends the held outbound frames that are due.
    pub(super) fn release_outbound(&mut self) {
        while let Some(frame) = self.impairments.release(self.now, impair::Direction::Tx) {
            self.push_out(&frame.bytes, frame.origin);
        }
    }

    fn push_out(&mut self, frame: &[u8], origin: Origin) {
        self.outbound.push(frame);
        self.outbound.mark(origin);
    }

    /// Delivers the held inbound frames that are due.
    pub(super) fn release_inbound(&mut self) {
        while let Some(frame) = self.impairments.release(self.now, impair::Direction::Rx) {
            self.deliver(&frame.bytes);
        }
    }

    pub(super) fn record(&mut self, direction: Direction, frame: &[u8], about: impl FnOnce() -> About) {
        if !self.is_port_active() {
            return;
        }
        if let Some(capture) = &mut self.capture {
            capture.record(direction, frame, about());
        }
    }
}

/// Calls `act` with the frame in wire format, or with one frame per packet if the frame carries several.
///
/// # Errors
/// Fails if the frame is marked for segmentation but cannot be divided into packets.
fn for_each_wire_frame(frame: &[u8], offload: Offload, mut act: impl FnMut(&[u8])) -> Result<(), WireError> {
    match offload {
        Offload::None => act(frame),
        Offload::Icrc => {
            let mut frame = frame.to_vec();
            // This fails for non-RoCE frames, which have no ICRC.
            let _ = seal(&mut frame);
            act(&frame);
        }
        Offload::Segmentation(mtu) => for_each_frame(frame, mtu, act)?,
    }
    Ok(())
}

fn about(qpn: Qpn, wr: Option<u64>) -> About {
    About { qpn: Some(qpn), wr, note: None }
}
