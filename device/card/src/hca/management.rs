//! Moves datagrams between the wire, the guest's QP0 and QP1, and the built-in management agents.

use protocol::ids::{FlowLabel, MacAddr, Qpn};
use protocol::net::icmpv6;
use protocol::net::ipv4::Fragmentation;
use protocol::roce::{Encap, IpAddrs, Offload, RoceFrame, Transport};

use super::Hca;
use crate::capture::{About, Direction};
use crate::frontend::{Frontend, PortNumber};
use crate::identity::Identity;
use crate::management::{
    Admitted, Counters, Datagram, Management, NodeProfile, Output, PERMISSIVE_LID, QP0, QP1, View,
};
use crate::net::DropReason;
use crate::net::lid::Route;

/// Hop limit of packets that stay on the link.
const HOP_LIMIT: u8 = 64;
/// UDP source port of management datagrams.
const SOURCE_PORT: u16 = 0xc000;

impl<F: Frontend> Hca<F> {
    /// Limits the path MTU that the port reports. `most` is the largest MTU that the fabric carries. Must not be called
    /// while a client is connected.
    pub fn limit_path_mtu(&mut self, most: engine::Mtu) {
        let own = self.port.addresses().own;
        let limited = |node: NodeProfile| NodeProfile { mtu: node.mtu.min(most.code()), ..node };
        let node = self.frontend.port_kind(PortNumber::ONE).node();
        self.management = node.map(|node| Management::new(own, limited(node)));
    }

    pub(super) fn view(&self) -> View {
        View { now: self.now, counters: Counters::of(self.port.stats(), self.engine.stats()) }
    }

    /// Handles a frame that the guest sent to the management agents.
    pub(super) fn manage(&mut self, frame: &[u8]) {
        let Ok(frame) = RoceFrame::parse(frame) else { return };
        let own = self.port.addresses().own.lid;
        let Some(sent) = Datagram::of(&frame.packet, own, Identity::lid_of(frame.encap.dst_mac)) else {
            return;
        };
        let view = self.view();
        if let Some(management) = &mut self.management {
            management.handle_guest(&view, self.port.addresses(), &sent);
        }
        self.serve_management();
    }

    /// Returns whether the management agents may handle a packet for the given QP.
    pub(super) fn is_for_management(&self, qpn: Qpn) -> bool {
        self.management.is_some() && (qpn == QP0 || qpn == QP1)
    }

    /// Passes a packet from the wire to the management agents if it may be a management datagram. Returns whether the
    /// engine should process it.
    pub(super) fn admit(&mut self, received: &RoceFrame<'_>) -> bool {
        if !self.is_for_management(received.packet.bth.dest_qp) {
            return true;
        }
        let qpn = received.packet.bth.dest_qp;
        let special = if qpn == QP0 { self.engine.smi() } else { self.engine.gsi() };
        // If the front-end has not registered a special QP0 or QP1, an ordinary QP may have this number.
        let qp = special.or_else(|| self.engine.query_qp(qpn).map(|_| qpn));
        let source = self.port.addresses().lid_of(received.encap.src_mac);
        let destination =
            if self.is_for_all(received) { PERMISSIVE_LID } else { self.port.addresses().own.lid };
        let Some(datagram) = Datagram::of(&received.packet, source, destination) else {
            // Software reads every datagram that QP0 receives as a MAD, whatever its length. A datagram that is not a
            // MAD must not reach it, because the agents have not checked its M_Key.
            let is_admitted = qpn != QP0 || received.packet.bth.opcode.transport != Transport::Ud;
            if !is_admitted {
                self.port.refuse(DropReason::Invalid);
                self.report_refused(qpn);
            }
            return is_admitted;
        };
        // IBTA 9.6.1.1.3: QP1 accepts only the P_Keys in the port's table. The engine drops and counts other packets.
        let pkeys = self.management.as_ref().map(Management::pkeys).unwrap_or_default();
        if qpn == QP1 && !pkeys.iter().any(|own| own.matches(received.packet.bth.pkey)) {
            return true;
        }
        // At start-up, software opens the port before it posts receives. Until software has posted a receive, the
        // management agents handle requests themselves.
        let is_answer = protocol::mad::header(&datagram.mad).method.is_response();
        let listening = qp.is_some_and(|qp| is_answer || self.frontend.can_receive(qp, &self.memory));
        let view = self.view();
        let Self { management, port, outbound, now, .. } = self;
        let Some(management) = management else { return true };
        let mut allow = || port.allow_management(*now, received.encap.src_mac, outbound);
        let admitted = management.handle_wire(&view, &datagram, listening, &mut allow);
        self.report_refused(qpn);
        match admitted {
            Admitted::Unchanged => return true,
            Admitted::From(source) => {
                self.deliver_to_guest(&Datagram {
                    source,
                    destination: self.port.addresses().own.lid,
                    ..datagram
                });
            }
            Admitted::Taken => {}
        }
        self.serve_management();
        false
    }

    /// Reports why the port refused a management datagram, if it did.
    fn report_refused(&mut self, qpn: Qpn) {
        if let Some(reason) = self.port.take_drop() {
            self.monitor.ignored_packet(reason, qpn, None, |_| {});
        }
    }

    /// Handles a packet that the guest has addressed to itself. The management agents answer some datagrams even if a
    /// guest QP could receive them. If the packet is such a datagram, passes it to the agents. Returns whether the
    /// engine should process the packet.
    pub(super) fn admit_own(&mut self, received: &RoceFrame<'_>) -> bool {
        if received.packet.bth.dest_qp != QP1 {
            return true;
        }
        let own = self.port.addresses().own.lid;
        let Some(datagram) = Datagram::of(&received.packet, own, own) else { return true };
        let view = self.view();
        let Some(management) = self.management.as_mut().filter(|all| all.answers_always(&datagram)) else {
            return true;
        };
        management.handle_wire(&view, &datagram, true, &mut || true);
        self.serve_management();
        false
    }

    /// Performs the actions that the management agents have queued.
    pub(super) fn serve_management(&mut self) {
        while let Some(output) = self.management.as_mut().and_then(Management::poll_output) {
            match output {
                Output::ToGuest(datagram) => self.deliver_to_guest(&datagram),
                Output::ToFabric(datagram) => self.send_out(&datagram),
                Output::Link(up) => self.set_enabled(up),
            }
        }
        if let Some(management) = &mut self.management
            && management.take_pkey_change()
        {
            self.engine.set_pkeys(management.pkeys());
        }
    }

    pub(super) fn management_deadline(&mut self) {
        let view = self.view();
        if let Some(management) = &mut self.management {
            management.handle_deadline(&view);
        }
        self.serve_management();
    }

    /// Delivers a datagram in the next turn of the device thread, as if it had arrived from the wire.
    fn deliver_to_guest(&mut self, datagram: &Datagram) {
        let source = Identity::from_lid(datagram.source);
        let encap = Encap {
            src_mac: source.mac,
            dst_mac: self.port.addresses().own.mac,
            ip: IpAddrs::V4 { src: source.ipv4, dst: self.port.addresses().own.ipv4 },
            traffic_class: 0,
            flow_label: FlowLabel::default(),
            hop_limit: HOP_LIMIT,
            fragment: Fragmentation::default(),
            tag: None,
            src_port: SOURCE_PORT,
        };
        let mut frame = Vec::new();
        datagram.emit(&encap, &mut frame);
        self.record(Direction::Inbound, &frame, || About::note("management"));
        self.looped.push(&frame, Offload::None);
    }

    fn send_out(&mut self, datagram: &Datagram) {
        if !self.is_port_active() {
            return;
        }
        let encap = match datagram.destination {
            PERMISSIVE_LID => Some(self.encap_for_all()),
            destination => {
                let to = Route { dlid: destination, ..Route::default() };
                self.port.addresses().route(&to, datagram.source_qp, datagram.destination_qp)
            }
        };
        let Some(encap) = encap else { return };
        datagram.emit(&encap, self.outbound.buffer());
        self.outbound.commit(encap.dst_mac);
        // Unicast datagrams go only to nodes that have sent a datagram before, so they need not be flooded.
        if datagram.destination != PERMISSIVE_LID {
            self.outbound.mark_answer();
        }
        self.count_sent_frame();
        self.send_frame(|| About::note("management"));
    }

    /// Returns the headers of a packet addressed to QP0 of every node on the link (RFC 4291, section 2.7.1).
    fn encap_for_all(&self) -> Encap {
        Encap {
            src_mac: self.port.addresses().own.mac,
            dst_mac: all_nodes(),
            ip: IpAddrs::V6 { src: self.port.addresses().own.link_local(), dst: icmpv6::ALL_NODES },
            traffic_class: 0,
            flow_label: FlowLabel::default(),
            hop_limit: HOP_LIMIT,
            fragment: Fragmentation::default(),
            tag: None,
            src_port: SOURCE_PORT,
        }
    }

    fn is_for_all(&self, received: &RoceFrame<'_>) -> bool {
        received.encap.dst_mac == all_nodes()
    }
}

fn all_nodes() -> MacAddr {
    icmpv6::multicast_mac(icmpv6::ALL_NODES)
}
