//! Multicast groups. The creator of a group specifies its parameters.
//!
//! # Spec
//! IBTA volume 1, section 15.2.5.17; mthca interface, section 9.3.

use std::collections::BTreeMap;

use protocol::ids::{Lid, Pkey, Qkey};
use protocol::mad::MadStatus;
use protocol::mad::record::mc_member::{
    FLOW_LABEL, HOP_LIMIT, JOIN_STATE, LIFE_TIME, LIFE_TIME_SELECTOR, MGID, MTU, MTU_SELECTOR, PKEY,
    PORT_GID, QKEY, RATE, RATE_SELECTOR, SL, TRAFFIC_CLASS,
};
use protocol::mad::record::{EXACTLY, McMemberRecord};

use super::selector::{Bound, Quantity};
use super::{Answer, Request, SaContext};
use crate::management::gid;

const MAX_GROUPS: usize = 4096;

/// GID of the group that every IPoIB interface in the default partition joins first (RFC 4391, section 4).
const BROADCAST: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

/// MGID in a request to create a group whose MGID the SA assigns (IBTA volume 1, section 15.2.5.17).
const UNSPECIFIED: [u8; 16] = [0; 16];

/// Upper 32 bits of assigned MGIDs: transient, with link-local scope (IBTA volume 1, section 4.1.1). Linux recognises
/// assigned MGIDs by the signature A01Bh (`cma_set_mgid`). Without it, programs on other hosts could not join.
const ASSIGNED: u32 = 0xff12_a01b;

/// First multicast LID (IBTA volume 1, section 4.1.3), which belongs to the broadcast group.
const FIRST_MLID: u16 = 0xc000;
const LAST_MLID: u16 = 0xfffe;

/// Rate code for 20 Gb/s, the port's rate (four DDR lanes).
pub(super) const RATE_20: u8 = 6;
/// Packet lifetime code for about one second (4.096 us * 2^18).
pub(super) const ONE_SECOND: u8 = 18;

/// All groups. The join state in a group's record is that of the guest's own port.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    all: BTreeMap<[u8; 16], McMemberRecord>,
    /// Defaults for the parameters that creators leave unspecified.
    defaults: McMemberRecord,
    /// Number of MGIDs assigned so far.
    assigned: u32,
}

impl Groups {
    /// Creates the broadcast group, without members.
    pub(super) fn new(mtu: u8) -> Self {
        let defaults = McMemberRecord {
            qkey: Qkey::new(0x0b1b),
            mtu_selector: EXACTLY,
            // Limited to 2048 bytes. Otherwise, IPoIB would use a larger MTU than some ports support.
            mtu: mtu.min(4),
            pkey: Pkey::DEFAULT,
            rate_selector: EXACTLY,
            rate: RATE_20,
            life_time_selector: EXACTLY,
            life_time: ONE_SECOND,
            ..McMemberRecord::default()
        };
        let broadcast = McMemberRecord { mgid: BROADCAST, mlid: mlid(&BROADCAST), scope: 2, ..defaults };
        Self { all: [(BROADCAST, broadcast)].into(), defaults, assigned: 0 }
    }

    pub(super) fn records(&self) -> Vec<Vec<u8>> {
        self.all.values().map(|group| group.emit().to_vec()).collect()
    }

    /// Joins the guest's port to a group, creating the group if necessary.
    pub(super) fn join(
        &mut self,
        context: &SaContext<'_>,
        request: &Request<'_>,
    ) -> Result<Answer, MadStatus> {
        let mut wanted = member(context, request)?;
        if wanted.mgid == UNSPECIFIED {
            wanted.mgid = self.assign_mgid(context.port.guid());
        }
        let group = match self.all.get(&wanted.mgid) {
            Some(group) => {
                if !agrees(group, &wanted, request) {
                    return Err(MadStatus::REQUEST_INVALID);
                }
                *group
            }
            None if self.all.len() >= MAX_GROUPS => return Err(MadStatus::NO_RESOURCES),
            None => self.create(&wanted, request)?,
        };
        let group = McMemberRecord {
            port_gid: wanted.port_gid,
            join_state: group.join_state | wanted.join_state,
            ..group
        };
        self.all.insert(group.mgid, group);
        Ok(Answer::Attribute(group.emit().to_vec()))
    }

    /// Clears the requested JoinState bits of the guest's port in a group. Deletes the group if no bit remains set,
    /// unless it is the broadcast group.
    pub(super) fn leave(
        &mut self,
        context: &SaContext<'_>,
        request: &Request<'_>,
    ) -> Result<Answer, MadStatus> {
        let wanted = member(context, request)?;
        let group = self.all.get_mut(&wanted.mgid).ok_or(MadStatus::REQUEST_INVALID)?;
        if group.join_state & wanted.join_state != wanted.join_state {
            return Err(MadStatus::REQUEST_INVALID);
        }
        let left = McMemberRecord { join_state: wanted.join_state, ..*group };
        group.join_state &= !wanted.join_state;
        if group.join_state == 0 {
            group.port_gid = [0; 16];
            if wanted.mgid != BROADCAST {
                self.all.remove(&wanted.mgid);
            }
        }
        Ok(Answer::Attribute(left.emit().to_vec()))
    }

    /// Returns an unused MGID. It contains the port's GUID, so it differs from those that other HCAs assign.
    fn assign_mgid(&mut self, guid: u64) -> [u8; 16] {
        loop {
            self.assigned = self.assigned.wrapping_add(1);
            let [prefix, number] = [ASSIGNED, self.assigned].map(u128::from);
            let mgid = (prefix << 96 | u128::from(guid) << 32 | number).to_be_bytes();
            // The loop is bounded, because at most `MAX_GROUPS` MGIDs are in use.
            if !self.all.contains_key(&mgid) {
                return mgid;
            }
        }
    }

    /// Creates a group with the parameters of its first member.
    fn create(&self, wanted: &McMemberRecord, request: &Request<'_>) -> Result<McMemberRecord, MadStatus> {
        let has = |component| request.has(component);
        let chosen = |quantity, best| match bound(quantity, wanted, request) {
            Some(bound) => bound.select(best).ok_or(MadStatus::REQUEST_INVALID),
            None => Ok(best),
        };
        let defaults = self.defaults;
        Ok(McMemberRecord {
            mgid: wanted.mgid,
            mlid: mlid(&wanted.mgid),
            qkey: if has(QKEY) { wanted.qkey } else { defaults.qkey },
            mtu: chosen(Quantity::Mtu, defaults.mtu)?,
            traffic_class: if has(TRAFFIC_CLASS) { wanted.traffic_class } else { 0 },
            pkey: if has(PKEY) { wanted.pkey } else { defaults.pkey },
            rate: chosen(Quantity::Rate, defaults.rate)?,
            life_time: chosen(Quantity::LifeTime, defaults.life_time)?,
            sl: if has(SL) { wanted.sl } else { 0 },
            flow_label: if has(FLOW_LABEL) { wanted.flow_label } else { 0 },
            hop_limit: if has(HOP_LIMIT) { wanted.hop_limit } else { 0 },
            scope: wanted.mgid[1] & 0xf,
            ..defaults
        })
    }
}

/// Parses a request to join or leave a group.
fn member(context: &SaContext<'_>, request: &Request<'_>) -> Result<McMemberRecord, MadStatus> {
    if !request.has(MGID | PORT_GID | JOIN_STATE) {
        return Err(MadStatus::INSUFFICIENT_COMPONENTS);
    }
    let wanted = McMemberRecord::parse(request.attribute());
    // A port may join only on its own behalf because every other port has its own SA.
    let is_valid = wanted.mgid[0] == 0xff || wanted.mgid == UNSPECIFIED;
    if !is_valid || wanted.port_gid != gid(context.port.guid()) {
        return Err(MadStatus::INVALID_GID);
    }
    if wanted.join_state == 0 {
        return Err(MadStatus::REQUEST_INVALID);
    }
    Ok(wanted)
}

/// Returns the bound that a request places on a quantity, if any.
fn bound(quantity: Quantity, wanted: &McMemberRecord, request: &Request<'_>) -> Option<Bound> {
    let (components, values) = match quantity {
        Quantity::Mtu => ([MTU_SELECTOR, MTU], [wanted.mtu_selector, wanted.mtu]),
        Quantity::Rate => ([RATE_SELECTOR, RATE], [wanted.rate_selector, wanted.rate]),
        Quantity::LifeTime => {
            ([LIFE_TIME_SELECTOR, LIFE_TIME], [wanted.life_time_selector, wanted.life_time])
        }
    };
    Bound::of(request, quantity, components, values)
}

/// Returns whether a group has the parameters that the request specifies.
fn agrees(group: &McMemberRecord, wanted: &McMemberRecord, request: &Request<'_>) -> bool {
    let same = |component, equal: bool| !request.has(component) || equal;
    let admits = |quantity, is| bound(quantity, wanted, request).is_none_or(|bound| bound.admits(is));
    same(QKEY, group.qkey == wanted.qkey)
        // Full and limited members of a partition have P_Keys that differ only in bit 15.
        && same(PKEY, group.pkey.get() & 0x7fff == wanted.pkey.get() & 0x7fff)
        && same(TRAFFIC_CLASS, group.traffic_class == wanted.traffic_class)
        && same(SL, group.sl == wanted.sl)
        && same(FLOW_LABEL, group.flow_label == wanted.flow_label)
        && same(HOP_LIMIT, group.hop_limit == wanted.hop_limit)
        && admits(Quantity::Mtu, group.mtu)
        && admits(Quantity::Rate, group.rate)
        && admits(Quantity::LifeTime, group.life_time)
}

/// Returns the LID of a group. Groups may share a LID, since only switches use it and the virtual switch floods
/// multicast packets.
pub(super) fn mlid(mgid: &[u8; 16]) -> Lid {
    if *mgid == BROADCAST {
        return Lid::new(FIRST_MLID);
    }
    let words = mgid.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let mixed = words.fold(0_u32, |mixed, word| mixed.rotate_left(5) ^ word.wrapping_mul(0x9e37_79b1));
    let span = u32::from(LAST_MLID - FIRST_MLID);
    Lid::new(FIRST_MLID + 1 + u16::try_from(mixed % span).unwrap_or(0))
}
