//! Applies the switch rules to frames.

use protocol::ids::MacAddr;
use protocol::net::layers::{Layers, TagKind};

use super::rule::{Action, Cast, Direction, Key, Origin, Target};
use super::{Rule, Switch, VsiSet};
use crate::vsi::{Vsi, VsiNumber, Vsis};

/// Destination of a frame as requested in a context descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Destination {
    /// The destinations selected by the rules.
    Rules,
    /// Only the wire, regardless of the rules.
    Wire,
    /// Only other VSIs, as selected by the rules.
    Local,
    Vsi(VsiNumber),
}

/// Destinations of a transmitted frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Route {
    pub(in super::super) wire: bool,
    pub(in super::super) vsis: VsiSet,
}

/// Reason for discarding a transmitted frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum DiscardError {
    NoVsi,
    /// The frame is tagged but the VSI's VLAN mode permits only untagged frames, or the reverse.
    VlanMode,
    /// The source MAC address does not belong to the VSI (anti-spoofing).
    Spoofed,
    /// The VSI is not a member of the VLAN.
    VlanPruned,
    Rule,
}

/// Fields of a frame that are compared with rules.
#[derive(Clone, Copy, Debug)]
struct FrameFields {
    origin: Origin,
    dst: MacAddr,
    ether_type: u16,
    vid: u16,
}

/// Combined result of all matching rules.
#[derive(Clone, Copy, Debug, Default)]
struct Verdict {
    vsis: VsiSet,
    /// Whether any rule forwards the frame.
    forwarded: bool,
    /// Whether a matching rule also sends the frame to the wire (LAN enable).
    lan: bool,
    dropped: bool,
}

impl Switch {
    /// Returns the VSIs that receive a frame from the wire.
    pub(in super::super) fn receive(&self, vsis: &Vsis, layers: &Layers) -> VsiSet {
        let fields = FrameFields::new(Origin::Port, layers, vid(layers));
        let verdict = self.verdict(&fields);
        if verdict.dropped {
            return VsiSet::default();
        }
        let mut receivers = verdict.vsis;
        receivers
            .retain(|number| vsis.get(number).is_some_and(|vsi| self.accepts_vlan(number, vsi, fields.vid)));
        receivers
    }

    /// Selects the destinations of a frame sent by a VSI. `layers` describes the frame after VLAN insertion.
    ///
    /// # Errors
    /// Returns the reason if the frame is discarded.
    pub(in super::super) fn transmit(
        &self,
        vsis: &Vsis,
        from: VsiNumber,
        layers: &Layers,
        to: Destination,
    ) -> Result<Route, DiscardError> {
        let sender = vsis.get(from).ok_or(DiscardError::NoVsi)?;
        if !sender.may_send(layers.outer_tag.is_some()) {
            return Err(DiscardError::VlanMode);
        }
        let vid = sender.port_tag().map_or_else(|| vid(layers), |tag| tag.vid());
        if sender.security.mac_anti_spoof && !self.is_own_address(from, layers.src, vid) {
            return Err(DiscardError::Spoofed);
        }
        if sender.security.vlan_prune && !self.is_in_vlan(from, vid, Direction::Transmit) {
            return Err(DiscardError::VlanPruned);
        }
        let no_vsis = VsiSet::default();
        let fields = FrameFields::new(Origin::Vsi(from), layers, vid);
        let mut route = match to {
            Destination::Wire if sender.security.destination_override => Route { wire: true, vsis: no_vsis },
            Destination::Vsi(vsi) if sender.security.destination_override => {
                let mut vsis = no_vsis;
                vsis.insert(vsi);
                Route { wire: false, vsis }
            }
            Destination::Local if sender.security.destination_override => {
                Route { wire: false, vsis: self.verdict(&fields).vsis }
            }
            _ => {
                let verdict = self.verdict(&fields);
                if verdict.dropped {
                    return Err(DiscardError::Rule);
                }
                let local = sender.switch.allow_loopback;
                Route {
                    // A frame that no rule forwards goes to the wire.
                    wire: !local || !verdict.forwarded || verdict.lan,
                    vsis: if local { verdict.vsis } else { no_vsis },
                }
            }
        };
        route.wire &= sender.switch.lan;
        route.vsis.retain(|number| {
            let is_sender = number == from;
            vsis.get(number).is_some_and(|vsi| {
                let accepts_own = vsi.switch.local_loopback && !vsi.switch.source_prune;
                (!is_sender || accepts_own) && self.accepts_vlan(number, vsi, vid)
            })
        });
        Ok(route)
    }

    fn verdict(&self, fields: &FrameFields) -> Verdict {
        let FrameFields { origin, dst, ether_type, vid } = *fields;
        let (direction, cast) = (origin.direction(), Cast::of(dst));
        let mut verdict = Verdict::default();
        for key in [
            Key::EtherType(origin, ether_type),
            Key::EtherTypeMac(origin, ether_type, dst),
            Key::Mac(dst),
            Key::MacVlan(dst, vid),
            Key::Promiscuous(direction, cast),
            Key::PromiscuousVlan(direction, cast, vid),
        ] {
            self.apply(key, origin, &mut verdict);
        }
        // If no other rule forwards the frame to a VSI, the default VSI receives it.
        if verdict.vsis.is_empty() {
            self.apply(Key::Default(direction), origin, &mut verdict);
        }
        verdict
    }

    fn apply(&self, key: Key, origin: Origin, verdict: &mut Verdict) {
        let Some(Rule { action, .. }) = self.find(&key) else { return };
        let mut forward = |loopback: bool, lan: bool, targets: &[Target]| {
            if origin == Origin::Port || loopback {
                verdict.forwarded = true;
                verdict.lan |= lan;
                targets.iter().for_each(|target| self.extend(&mut verdict.vsis, *target));
            }
        };
        match *action {
            Action::Forward { to, loopback, lan } => forward(loopback, lan, &[to]),
            Action::Large { index, loopback, lan } => {
                forward(loopback, lan, self.large_actions.get(&index).map_or(&[], Vec::as_slice));
            }
            Action::Drop => verdict.dropped = true,
            Action::Prune { .. } | Action::Inactive => {}
        }
    }

    pub(super) fn extend(&self, vsis: &mut VsiSet, target: Target) {
        match target {
            Target::Vsi(vsi) => vsis.insert(vsi),
            Target::List(list) => {
                if let Some(members) = self.vsi_lists.get(&list) {
                    vsis.extend(members);
                }
            }
        }
    }

    fn find(&self, key: &Key) -> Option<&Rule> {
        self.tables[key.recipe() as usize].get(key)
    }

    fn accepts_vlan(&self, number: VsiNumber, vsi: &Vsi, vid: u16) -> bool {
        !vsi.switch.vlan_prune || self.is_in_vlan(number, vid, Direction::Receive)
    }

    /// Returns whether the VLAN rules make a VSI a member of VLAN `vid` in the given direction.
    fn is_in_vlan(&self, vsi: VsiNumber, vid: u16, direction: Direction) -> bool {
        let Some(Rule { action: Action::Prune { by, ingress, egress }, .. }) = self.find(&Key::Vlan(vid))
        else {
            return false;
        };
        let is_member = match by {
            Target::Vsi(only) => *only == vsi,
            Target::List(list) => self.prune_lists.get(list).is_some_and(|members| members.contains(vsi)),
        };
        let applies = match direction {
            Direction::Receive => *ingress,
            Direction::Transmit => *egress,
        };
        applies && is_member
    }

    /// Returns whether a MAC rule forwards frames for the address `mac` to the VSI.
    fn is_own_address(&self, vsi: VsiNumber, mac: MacAddr, vid: u16) -> bool {
        let mut receivers = Verdict::default();
        for key in [Key::Mac(mac), Key::MacVlan(mac, vid)] {
            self.apply(key, Origin::Port, &mut receivers);
        }
        receivers.vsis.contains(vsi)
    }
}

impl FrameFields {
    fn new(origin: Origin, layers: &Layers, vid: u16) -> Self {
        Self { origin, dst: layers.dst, ether_type: layers.ether_type.number(), vid }
    }
}

/// Returns the VLAN ID in a frame's outer customer tag, or 0 if the frame has no such tag or is priority-tagged. A
/// service tag is ignored, because the device is in single VLAN mode, in which the switch parses only customer tags.
fn vid(layers: &Layers) -> u16 {
    match layers.outer_tag {
        Some(tag) if tag.kind == TagKind::Customer => tag.tci.vid(),
        _ => 0,
    }
}
