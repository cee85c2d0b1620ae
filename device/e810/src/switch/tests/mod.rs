//! Tests for switch rules and forwarding. Rules are encoded the way drivers encode them.

mod rules;
mod snapshot;
mod traffic;

use protocol::hca::e810::admin::switch::LookupHeader;
use protocol::hca::e810::admin::vsi::{Sections, SwitchSection, VsiContext, VsiParameters};
use protocol::ids::MacAddr;
use protocol::net::layers::Layers;

use super::*;
use crate::pf_config::PfConfig;

const ME: MacAddr = MacAddr([0x02, 0xe8, 0x10, 0, 0, 0x01]);
const PEER: MacAddr = MacAddr([0x02, 0xe8, 0x10, 0, 0, 0x02]);
const STRANGER: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x77]);
const GROUP: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 0x01]);
/// Destination address in a promiscuous rule that covers all unicast addresses.
const ANY_UNICAST: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0]);
/// Destination address in a promiscuous rule that covers all multicast addresses.
const ANY_MULTICAST: MacAddr = MacAddr([0x03, 0, 0, 0, 0, 0]);

const FROM_PORT: u16 = 0;
const FROM_VSI: u16 = 1;

const DROP: u32 = 0x6_0000;
const LOOPBACK: u32 = 1 << 2;
const LAN: u32 = 1 << 3;

const fn to_vsi(vsi: u16) -> u32 {
    0x2_0000 | (vsi as u32) << 4
}

const fn to_list(list: u16) -> u32 {
    to_vsi(list) | 1 << 14
}

/// Returns the action for a VLAN rule that admits the VSIs in a list.
const fn prune(list: u16) -> u32 {
    0x1_c00a | (list as u32) << 4
}

const ETHER_TYPE: u16 = 0;
const MAC: u16 = 1;
const MAC_VLAN: u16 = 2;
const PROMISCUOUS: u16 = 3;
const VLAN: u16 = 4;
const DEFAULT: u16 = 5;
const ETHER_TYPE_MAC: u16 = 8;
const PROMISCUOUS_VLAN: u16 = 9;

/// A lookup rule. In rules for transmitted frames, the source is VSI 1.
#[derive(Clone, Copy)]
struct Rule {
    kind: u16,
    source: u16,
    recipe: u16,
    action: u32,
    dst: MacAddr,
    ether_type: u16,
    vid: u16,
}

impl Rule {
    fn new(kind: u16, recipe: u16, action: u32) -> Self {
        let source = if kind == FROM_VSI { 1 } else { 0 };
        Self { kind, source, recipe, action, dst: MacAddr([0; 6]), ether_type: 0x8100, vid: 0 }
    }

    fn mac(dst: MacAddr, action: u32) -> Self {
        Self { dst, ..Self::new(FROM_VSI, MAC, action) }
    }

    fn dst(self, dst: MacAddr) -> Self {
        Self { dst, ..self }
    }

    fn ether_type(self, ether_type: u16) -> Self {
        Self { ether_type, ..self }
    }

    fn vid(self, vid: u16) -> Self {
        Self { vid, ..self }
    }

    fn bytes(&self, index: u16) -> Vec<u8> {
        let header = LookupHeader {
            dst: self.dst.0,
            src: [2, 0, 0, 0, 0, 0],
            ether_type: self.ether_type.to_be_bytes(),
            tci: self.vid.to_be_bytes(),
        };
        let lookup =
            Lookup { recipe: self.recipe, source: self.source, action: self.action, index, header_len: 16 };
        let kind = RuleKind::from(self.kind);
        [&RuleHeader { kind, status: 0 }.emit()[..], &lookup.emit(), &header.emit()].concat()
    }
}

/// A minimal driver that executes commands directly on a function's configuration.
#[derive(Default)]
struct Driver(PfConfig);

impl Driver {
    /// Creates a driver with VSIs 1 and 2, configured as a real driver would configure them.
    fn new() -> Self {
        let mut driver = Self::default();
        driver.add_vsi();
        driver.add_vsi();
        driver
    }

    fn add_vsi(&mut self) -> u16 {
        let switch =
            SwitchSection { allow_loopback: true, source_prune: true, lan: true, ..SwitchSection::default() };
        let mut context = VsiContext { switch, ..VsiContext::default() };
        context.vlan.transmit = 3;
        let parameters = VsiParameters { kind: 2, ..VsiParameters::default() };
        self.0.vsis.add(&parameters, &mut context.emit()).unwrap().number
    }

    fn update(&mut self, vsi: u16, change: impl FnOnce(&mut VsiContext)) {
        let old = self.0.vsis.get(VsiNumber::new(vsi)).unwrap();
        let mut context = VsiContext { switch: old.switch, security: old.security, ..VsiContext::default() };
        context.vlan = old.vlan;
        context.sections = Sections::SWITCH | Sections::SECURITY | Sections::VLAN;
        change(&mut context);
        let parameters = VsiParameters { number: vsi, number_valid: true, ..VsiParameters::default() };
        self.0.vsis.update(&parameters, &mut context.emit()).unwrap();
    }

    fn free_vsi(&mut self, vsi: u16) {
        let parameters = VsiParameters { number: vsi, number_valid: true, ..VsiParameters::default() };
        self.0.free_vsi(&parameters).unwrap();
    }

    fn command(&mut self, command: RuleCommand, mut buffer: Vec<u8>) -> Result<Vec<u8>, AdminStatus> {
        self.0.rules(command, 1, &mut buffer).map(|()| buffer).map_err(|error| error.status)
    }

    /// Adds a rule and returns its index.
    fn try_add(&mut self, rule: Rule) -> Result<u16, AdminStatus> {
        let answer = self.command(RuleCommand::Add, rule.bytes(0))?;
        Ok(Lookup::parse_prefix(&answer[4..]).unwrap().index)
    }

    #[track_caller]
    fn add(&mut self, rule: Rule) -> u16 {
        self.try_add(rule).unwrap()
    }

    fn remove(&mut self, index: u16) -> Result<(), AdminStatus> {
        // Drivers do not specify the recipe or the header of a rule that they remove.
        let lookup = Lookup { index, ..Lookup::default() };
        let rule = [&RuleHeader::default().emit()[..], &lookup.emit()].concat();
        self.command(RuleCommand::Remove, rule).map(drop)
    }

    /// Allocates a list of resource type `kind` and returns its number.
    fn allocate(&mut self, kind: u8) -> u16 {
        let mut buffer = [kind, 0, 1, 0, 0, 0];
        self.0.allocate(&mut buffer).unwrap();
        u16::from_le_bytes([buffer[4], buffer[5]])
    }

    fn list(&mut self, kind: u16, list: u16, members: &[u16]) -> Result<(), AdminStatus> {
        let header = RuleHeader { kind: RuleKind::from(kind), status: 0 };
        let count = u16::try_from(members.len()).unwrap();
        let members: Vec<u8> = members.iter().flat_map(|vsi| vsi.to_le_bytes()).collect();
        let rule = [&header.emit()[..], &RuleList { index: list, count }.emit(), &members].concat();
        self.command(RuleCommand::Update, rule).map(drop)
    }

    /// Makes VSIs members of a VLAN. Returns the prune list's ID.
    fn admit(&mut self, vid: u16, vsis: &[u16]) -> u16 {
        let list = self.allocate(0x84);
        self.list(5, list, vsis).unwrap();
        self.add(Rule::new(FROM_VSI, VLAN, prune(list)).vid(vid));
        list
    }

    /// Returns the VSIs that receive a frame from the wire.
    fn receivers(&self, frame: &Frame) -> Vec<u16> {
        self.0.receive(&frame.layers()).iter().map(VsiNumber::get).collect()
    }

    /// Sends a frame from VSI 1. Returns whether the frame goes to the wire, and the VSIs that receive it.
    fn send(&self, frame: &Frame) -> Result<(bool, Vec<u16>), DiscardError> {
        self.send_to(frame, Destination::Rules)
    }

    fn send_to(&self, frame: &Frame, to: Destination) -> Result<(bool, Vec<u16>), DiscardError> {
        let route = self.0.transmit(VsiNumber::new(1), &frame.layers(), to)?;
        Ok((route.wire, route.vsis.iter().map(VsiNumber::get).collect()))
    }
}

/// A frame. Its source address is [`PEER`] unless [`Frame::from`] changes it.
#[derive(Clone)]
struct Frame {
    dst: MacAddr,
    src: MacAddr,
    tag: Vec<u8>,
    ether_type: u16,
}

impl Frame {
    fn to(dst: MacAddr) -> Self {
        Self { dst, src: PEER, tag: vec![], ether_type: 0x0800 }
    }

    fn from(self, src: MacAddr) -> Self {
        Self { src, ..self }
    }

    fn vlan(self, tci: u16) -> Self {
        Self { tag: [[0x81, 0x00], tci.to_be_bytes()].concat(), ..self }
    }

    fn service_vlan(self, tci: u16) -> Self {
        Self { tag: [[0x88, 0xa8], tci.to_be_bytes()].concat(), ..self }
    }

    fn ether_type(self, ether_type: u16) -> Self {
        Self { ether_type, ..self }
    }

    fn layers(&self) -> Layers {
        let ether_type = self.ether_type.to_be_bytes();
        let bytes = [&self.dst.0[..], &self.src.0, &self.tag, &ether_type, &[0; 46]].concat();
        Layers::parse(&bytes).unwrap()
    }
}
