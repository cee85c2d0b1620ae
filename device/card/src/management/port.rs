//! A port's management attributes and its subnet management agent (SMA).
//!
//! # Spec
//! IBTA volume 1, sections 14.2 and 14.3; mthca interface, section 8.5.

use std::time::Duration;

use engine::Instant;
use protocol::ids::{Lid, Pkey};
use protocol::mad::header::Header;
use protocol::mad::node::{self, NodeInfo};
use protocol::mad::port::{LinkState, PhysicalState, PortInfo};
use protocol::mad::smp::{DATA_LEN, Smp, attribute};
use protocol::mad::{Mad, MadStatus, Method};

use super::perf::Perf;
use super::{Counters, SM_LID, View};
use crate::identity::Identity;

/// Number of GUIDs in a GuidInfo block.
const GUIDS_PER_BLOCK: usize = 8;
/// Number of P_Keys in a P_KeyTable block.
const PKEYS_PER_BLOCK: usize = 32;
const VL_ARBITRATION_BLOCKS: u32 = 4;

/// Node attributes of a device interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeProfile {
    /// OUI of the vendor.
    pub vendor_id: u32,
    /// Device ID, assigned by the vendor.
    pub device_id: u16,
    /// Revision, assigned by the vendor.
    pub revision: u32,
    /// Number of entries in the GID table. Must be a multiple of 8.
    pub gids: u8,
    /// Number of entries in the P_Key table. Must be a multiple of 32.
    pub pkeys: u16,
    /// Code of the largest MTU (1 is 256 bytes, 5 is 4096 bytes).
    pub mtu: u8,
    /// PortInfo capability mask at power-on.
    pub capabilities: u32,
    /// Whether the port is down until software opens it.
    pub opened_by_software: bool,
    /// Whether the agent answers performance management requests to QP1 even if guest software listens on QP1. This
    /// includes requests from the guest itself.
    pub always_answers_perf: bool,
}

/// Whether to check the M_Key in a request. With `Ignore`, software can manage its own port without the M_Key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MkeyCheck {
    Enforce,
    Ignore,
}

/// Side effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Enable or disable the link.
    Link(bool),
}

#[derive(Clone, Debug)]
pub(super) struct ManagedPort {
    profile: NodeProfile,
    identity: Identity,
    opened: bool,
    link_up: bool,
    /// Whether software has disabled the port with Set(PortInfo).
    disabled: bool,
    pkeys_changed: bool,
    reregistration_requested: bool,
    /// The fields of PortInfo that Set can change. All other fields are filled in for each request.
    settings: PortInfo,
    description: [u8; DATA_LEN],
    pkeys: Vec<Pkey>,
    sl_to_vl: [u8; 8],
    vl_arbitration: [[u8; DATA_LEN]; VL_ARBITRATION_BLOCKS as usize],
    m_key_violations: u16,
    /// Time at which the lease period of the M_Key ends. Set while the period is running.
    m_key_lease_end: Option<Instant>,
    /// Values of the device's P_Key and Q_Key violation counters when software last reset PortInfo's counters. The
    /// device's own counters keep running, and PortInfo reports the difference.
    violations_base: (u64, u64),
    pub(super) perf: Perf,
}

impl ManagedPort {
    pub(super) fn new(identity: Identity, profile: NodeProfile) -> Self {
        let mut pkeys = vec![Pkey::default(); usize::from(profile.pkeys)];
        if let Some(first) = pkeys.first_mut() {
            *first = Pkey::DEFAULT;
        }
        Self {
            profile,
            identity,
            opened: !profile.opened_by_software,
            link_up: true,
            disabled: false,
            pkeys_changed: false,
            reregistration_requested: false,
            settings: Self::settings(&profile),
            description: node::description(&format!("hcad {}", identity.lid.get())),
            pkeys,
            // SLs 0 to 7 and SLs 8 to 15 are both mapped to VLs 0 to 7.
            sl_to_vl: [0x01, 0x23, 0x45, 0x67, 0x01, 0x23, 0x45, 0x67],
            vl_arbitration: [[0; DATA_LEN]; VL_ARBITRATION_BLOCKS as usize],
            m_key_violations: 0,
            m_key_lease_end: None,
            violations_base: (0, 0),
            perf: Perf::default(),
        }
    }

    /// Returns the power-on values of the fields that Set can change.
    fn settings(profile: &NodeProfile) -> PortInfo {
        PortInfo {
            sm_lid: SM_LID,
            capabilities: profile.capabilities,
            width_enabled: 3,
            speed_enabled: 3,
            down_default: PhysicalState::POLLING,
            neighbour_mtu: profile.mtu,
            operational_vls: 4,
            subnet_timeout: 18,
            ..PortInfo::default()
        }
    }

    /// Restores the power-on state, except for the link state and the counters.
    pub(super) fn reset(&mut self) {
        *self = Self {
            link_up: self.link_up,
            m_key_violations: self.m_key_violations,
            violations_base: self.violations_base,
            perf: self.perf.clone(),
            ..Self::new(self.identity, self.profile)
        };
    }

    pub(super) fn set_opened(&mut self, opened: bool) {
        self.opened = opened;
    }

    pub(super) fn is_opened_by_software(&self) -> bool {
        self.profile.opened_by_software
    }

    pub(super) fn always_answers_perf(&self) -> bool {
        self.profile.always_answers_perf
    }

    pub(super) fn set_link(&mut self, up: bool) {
        self.link_up = up;
    }

    pub(super) fn is_active(&self) -> bool {
        self.opened && self.link_up
    }

    pub(super) fn is_disabled(&self) -> bool {
        self.disabled
    }

    pub(super) fn take_pkey_change(&mut self) -> bool {
        std::mem::take(&mut self.pkeys_changed)
    }

    pub(super) fn take_reregistration_request(&mut self) -> bool {
        std::mem::take(&mut self.reregistration_requested)
    }

    pub(super) fn lid(&self) -> Lid {
        self.identity.lid
    }

    pub(super) fn guid(&self) -> u64 {
        node::guid_of_mac(self.identity.mac)
    }

    pub(super) fn gids(&self) -> usize {
        usize::from(self.profile.gids)
    }

    pub(super) fn pkeys(&self) -> &[Pkey] {
        &self.pkeys
    }

    pub(super) fn mtu(&self) -> u8 {
        self.profile.mtu
    }

    pub(super) fn set_capabilities(&mut self, mask: u32) {
        self.settings.capabilities = mask;
    }

    pub(super) fn reset_qkey_violations(&mut self, counters: &Counters) {
        self.violations_base.1 = counters.qkey_violations;
    }

    pub(super) fn node_info(&self) -> NodeInfo {
        NodeInfo {
            base_version: Header::BASE_VERSION,
            class_version: 1,
            node_type: node::CHANNEL_ADAPTER,
            ports: 1,
            system_image_guid: self.guid(),
            node_guid: self.guid(),
            port_guid: self.guid(),
            partition_cap: self.profile.pkeys,
            device_id: self.profile.device_id,
            revision: self.profile.revision,
            local_port: 1,
            vendor_id: self.profile.vendor_id,
        }
    }

    pub(super) fn description(&self) -> [u8; DATA_LEN] {
        self.description
    }

    pub(super) fn set_description(&mut self, description: [u8; DATA_LEN]) {
        self.description = description;
    }

    pub(super) fn port_info(&self, view: &View) -> PortInfo {
        let (state, physical_state) = match (self.disabled, self.is_active()) {
            (true, _) => (LinkState::DOWN, PhysicalState::DISABLED),
            (false, true) => (LinkState::ACTIVE, PhysicalState::LINK_UP),
            (false, false) => (LinkState::DOWN, PhysicalState::POLLING),
        };
        let since = |now: u64, base: u64| u16::try_from(now.saturating_sub(base)).unwrap_or(u16::MAX);
        PortInfo {
            gid_prefix: super::GID_PREFIX,
            lid: self.identity.lid,
            local_port: 1,
            width_supported: 3,
            width_active: 2,
            speed_supported: 3,
            speed_active: 2,
            state,
            physical_state,
            vl_cap: 4,
            mtu_cap: self.profile.mtu,
            m_key_violations: self.m_key_violations,
            p_key_violations: since(view.counters.pkey_violations, self.violations_base.0),
            q_key_violations: since(view.counters.qkey_violations, self.violations_base.1),
            guid_cap: self.profile.gids,
            resp_time: 16,
            ..self.settings
        }
    }

    /// Returns whether an M_Key permits its sender to manage the port. A wrong key is counted as a violation.
    pub(super) fn is_manager(&mut self, now: Instant, m_key: u64) -> bool {
        let is_manager = m_key != 0 && m_key == self.settings.m_key;
        if !is_manager {
            self.count_m_key_violation(now);
        }
        is_manager
    }

    /// Counts an SMP that failed the M_Key check. The first one starts the lease period (IBTA volume 1, section
    /// 14.2.4).
    fn count_m_key_violation(&mut self, now: Instant) {
        self.m_key_violations = self.m_key_violations.saturating_add(1);
        if self.m_key_lease_end.is_none() && self.settings.m_key_lease > 0 {
            self.m_key_lease_end = Some(now + Duration::from_secs(self.settings.m_key_lease.into()));
        }
    }

    /// Removes the protection of the M_Key if its lease period has ended. A new subnet manager can then read the key of
    /// one that has failed (IBTA volume 1, section 14.2.4).
    fn expire_m_key(&mut self, now: Instant) {
        if self.m_key_lease_end.is_some_and(|end| end <= now) {
            self.m_key_lease_end = None;
            self.settings.m_key_protect = 0;
        }
    }

    /// Answers a subnet management request. Returns `None` if the request must be discarded.
    pub(super) fn answer_smp(
        &mut self,
        view: &View,
        request: &Mad,
        m_key: MkeyCheck,
        effects: &mut Vec<Effect>,
    ) -> Option<Mad> {
        let header = protocol::mad::header(request);
        if !header.method.is_request() {
            return None;
        }
        let mut answer = *request;
        self.expire_m_key(view.now);
        let status = if header.base_version != Header::BASE_VERSION || header.class_version != 1 {
            MadStatus::BAD_VERSION
        } else if !matches!(header.method, Method::GET | Method::SET) {
            MadStatus::BAD_METHOD
        } else {
            let smp = Smp::of_mut(&mut answer);
            let trusted =
                m_key == MkeyCheck::Ignore || self.settings.m_key == 0 || smp.m_key() == self.settings.m_key;
            // Table 120: without the key, Get is permitted at protection levels 0 and 1.
            if !trusted && (header.method == Method::SET || self.settings.m_key_protect > 1) {
                self.count_m_key_violation(view.now);
                return None;
            }
            if smp.m_key() == self.settings.m_key {
                self.m_key_lease_end = None;
            }
            let set = header.method == Method::SET;
            let result = self.attribute(view, &header, set, trusted, &mut smp.data, effects);
            result.err().unwrap_or(MadStatus::OK)
        };
        protocol::mad::set_header(&mut answer, &response(&header, status));
        Some(answer)
    }

    fn attribute(
        &mut self,
        view: &View,
        header: &Header,
        set: bool,
        trusted: bool,
        data: &mut [u8; DATA_LEN],
        effects: &mut Vec<Effect>,
    ) -> Result<(), MadStatus> {
        let block = header.modifier & 0xffff;
        match (header.attribute, set) {
            (attribute::NODE_DESCRIPTION, false) => *data = self.description(),
            (attribute::NODE_INFO, false) => put(data, &self.node_info().emit()),
            (attribute::GUID_INFO, false) => self.guid_info(block, data)?,
            (attribute::PORT_INFO, _) => {
                if header.modifier > 1 {
                    return Err(MadStatus::BAD_VALUE);
                }
                if set {
                    self.set_port_info(view, &PortInfo::parse(data), effects)?;
                }
                let mut info = self.port_info(view);
                if !trusted && info.m_key_protect > 0 {
                    info.m_key = 0;
                }
                *data = info.emit();
            }
            (attribute::PKEY_TABLE, _) => self.pkey_table(block, set, data)?,
            (attribute::SL_TO_VL, _) => {
                if set {
                    self.sl_to_vl.copy_from_slice(&data[..8]);
                }
                put(data, &self.sl_to_vl);
            }
            (attribute::VL_ARBITRATION, _) => {
                // The block number is in the upper half of the modifier and counts from 1.
                let table = (header.modifier >> 16).checked_sub(1).and_then(|at| usize::try_from(at).ok());
                let table =
                    table.and_then(|table| self.vl_arbitration.get_mut(table)).ok_or(MadStatus::BAD_VALUE)?;
                if set {
                    *table = *data;
                }
                *data = *table;
            }
            _ => return Err(MadStatus::BAD_ATTRIBUTE),
        }
        Ok(())
    }

    fn guid_info(&self, block: u32, data: &mut [u8; DATA_LEN]) -> Result<(), MadStatus> {
        if usize::try_from(block).map_or(true, |block| block * GUIDS_PER_BLOCK >= self.gids()) {
            return Err(MadStatus::BAD_VALUE);
        }
        *data = [0; DATA_LEN];
        if block == 0 {
            put(data, &self.guid().to_be_bytes());
        }
        Ok(())
    }

    fn pkey_table(&mut self, block: u32, set: bool, data: &mut [u8; DATA_LEN]) -> Result<(), MadStatus> {
        let block = usize::try_from(block).ok().and_then(|at| self.pkeys.chunks_mut(PKEYS_PER_BLOCK).nth(at));
        let block = block.ok_or(MadStatus::BAD_VALUE)?;
        if set {
            self.pkeys_changed = true;
            for (pkey, bytes) in block.iter_mut().zip(data.as_chunks().0) {
                *pkey = Pkey::new(u16::from_be_bytes(*bytes));
            }
        }
        *data = [0; DATA_LEN];
        for (pkey, bytes) in block.iter().zip(data.as_chunks_mut().0) {
            *bytes = pkey.get().to_be_bytes();
        }
        Ok(())
    }

    /// Executes Set(PortInfo) (section 14.2.5.6). Fields determined by the fabric cannot be set, and a LID other than
    /// the configured one is rejected. PortInfo keeps the LID and the service level of the built-in subnet manager,
    /// even if the guest runs its own subnet manager.
    fn set_port_info(
        &mut self,
        view: &View,
        wanted: &PortInfo,
        effects: &mut Vec<Effect>,
    ) -> Result<(), MadStatus> {
        let active = self.is_active() && !self.disabled;
        let is_code = |code: u8| (1..=self.profile.mtu).contains(&code);
        if wanted.lid != self.identity.lid
            || wanted.lmc != 0
            || wanted.gid_prefix != super::GID_PREFIX
            || !is_unicast(wanted.sm_lid)
            || !is_code(wanted.neighbour_mtu)
            || wanted.operational_vls > 4
        {
            return Err(MadStatus::BAD_VALUE);
        }
        // DISABLED disables the link until POLLING enables it. POLLING takes an active link down and back up, as does
        // DOWN without a physical state.
        match (wanted.state, wanted.physical_state) {
            (LinkState::NO_CHANGE | LinkState::DOWN, PhysicalState::DISABLED) => {
                self.disabled = true;
                effects.push(Effect::Link(false));
            }
            (LinkState::NO_CHANGE | LinkState::DOWN, PhysicalState::POLLING)
            | (LinkState::DOWN, PhysicalState::NO_CHANGE)
                if active =>
            {
                effects.extend([Effect::Link(false), Effect::Link(true)]);
            }
            (LinkState::NO_CHANGE | LinkState::DOWN, PhysicalState::POLLING) => {
                self.disabled = false;
                effects.push(Effect::Link(true));
            }
            (LinkState::NO_CHANGE, PhysicalState::NO_CHANGE) => {}
            (LinkState::DOWN, PhysicalState::NO_CHANGE) => {}
            (LinkState::ACTIVE, PhysicalState::NO_CHANGE) if active => {}
            _ => return Err(MadStatus::BAD_VALUE),
        }
        let kept = self.settings;
        // The value 0 keeps the current setting. All ones enable every width or speed that the port supports.
        let or_kept = |value: u8, kept: u8| if value == 0 { kept } else { value };
        self.settings = PortInfo {
            m_key: wanted.m_key,
            m_key_lease: wanted.m_key_lease,
            m_key_protect: wanted.m_key_protect,
            width_enabled: if wanted.width_enabled == 0xff {
                3
            } else {
                or_kept(wanted.width_enabled & 3, kept.width_enabled)
            },
            speed_enabled: if wanted.speed_enabled == 0xf {
                3
            } else {
                or_kept(wanted.speed_enabled & 3, kept.speed_enabled)
            },
            neighbour_mtu: wanted.neighbour_mtu,
            init_type: wanted.init_type,
            vl_high_limit: wanted.vl_high_limit,
            operational_vls: or_kept(wanted.operational_vls, kept.operational_vls),
            subnet_timeout: wanted.subnet_timeout,
            local_phy_errors: wanted.local_phy_errors,
            overrun_errors: wanted.overrun_errors,
            ..kept
        };
        // Software resets a violation counter by writing 0. Other values are ignored.
        if wanted.m_key_violations == 0 {
            self.m_key_violations = 0;
        }
        if wanted.p_key_violations == 0 {
            self.violations_base.0 = view.counters.pkey_violations;
        }
        if wanted.q_key_violations == 0 {
            self.violations_base.1 = view.counters.qkey_violations;
        }
        self.reregistration_requested |= wanted.client_reregister;
        Ok(())
    }
}

/// Returns the header of the response to a request.
pub(super) fn response(header: &Header, status: MadStatus) -> Header {
    Header { method: header.method.response(), status, ..*header }
}

/// Stores an attribute that is shorter than the data section, padded with zeros.
pub(super) fn put(data: &mut [u8; DATA_LEN], attribute: &[u8]) {
    *data = [0; DATA_LEN];
    for (to, from) in data.iter_mut().zip(attribute) {
        *to = *from;
    }
}

/// Returns whether a LID is unicast (IBTA volume 1, section 4.1.3).
fn is_unicast(lid: Lid) -> bool {
    (1..=0xbfff).contains(&lid.get())
}
