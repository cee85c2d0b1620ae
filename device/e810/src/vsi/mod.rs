//! Virtual station interfaces (VSIs): the connections between queues and the switch.
//!
//! # Spec
//! E810 interface, section 5.7.

use std::collections::BTreeMap;
use std::fmt;

use protocol::hca::e810::admin::vsi::{
    OptionsSection, QueueSection, Sections, SecuritySection, SwitchSection, VlanSection, VsiContext,
    VsiParameters, VsiResponse,
};
use protocol::hca::e810::admin::{AdminError, AdminStatus};
use protocol::net::layers::Tci;

use super::buffer::Buffer;
use super::id_pool::IdPool;
use super::rss::profiles::Profiles;
use super::rss::{FunctionTable, VsiRss};

/// Maximum number of VSIs that the driver can add, as reported in device capability 0017. The limit bounds the memory
/// that a driver can consume.
pub(super) const MAX_VSIS: u16 = 768;

/// VSI types that a driver may add: VMDq (for subfunctions) and physical function.
const KINDS: std::ops::RangeInclusive<u8> = 1..=2;

/// The default VSI, which exists after a reset. Boot loaders use it because they do not add VSIs of their own. Added
/// VSIs get lower numbers.
const DEFAULT: VsiNumber = VsiNumber(MAX_VSIS + 1);

/// A VSI number, which may or may not be in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct VsiNumber(u16);

impl VsiNumber {
    /// Creates a number from the low ten bits of a command or context field.
    pub(super) const fn new(raw: u16) -> Self {
        Self(raw & 0x3ff)
    }

    pub(super) const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Debug for VsiNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vsi:{}", self.0)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Vsi {
    pub(super) switch: SwitchSection,
    /// Security section: transmit restrictions.
    pub(super) security: SecuritySection,
    /// VLAN section: tag handling.
    pub(super) vlan: VlanSection,
    pub(super) queues: QueueMap,
    /// Queueing options: hash and RDMA filter.
    pub(super) options: OptionsSection,
    /// RSS key and lookup table.
    pub(super) rss: VsiRss,
}

/// Receive queue mapping of a VSI.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueMap(QueueSection);

impl QueueMap {
    /// Returns the device-wide number of receive queue `index` in traffic class 0, which all priorities map to. If
    /// `index` exceeds the number of queues in the class, it wraps around.
    pub(super) fn receive_queue(&self, index: u16) -> u16 {
        let class = self.0.classes[0];
        let nth = class.first.wrapping_add(index & self.mask());
        let first = self.0.mapping[0];
        match self.0.mapping.get(usize::from(nth)) {
            Some(queue) if self.0.scattered => *queue,
            _ => first.wrapping_add(nth),
        }
    }

    /// Returns the number of queues in traffic class 0.
    pub(super) fn len(&self) -> u16 {
        self.mask().saturating_add(1)
    }

    fn mask(&self) -> u16 {
        // `log2_count` is four bits wide, so the shift cannot overflow.
        (1 << self.0.classes[0].log2_count) - 1
    }
}

impl Vsi {
    /// Creates a VSI. The valid bits of the sections are ignored, because `ice` marks few sections as valid when it
    /// adds a VSI but relies on all of them.
    fn new(context: &VsiContext) -> Self {
        Self {
            switch: context.switch,
            security: context.security,
            vlan: context.vlan,
            queues: QueueMap(context.queues),
            options: context.options,
            rss: VsiRss::default(),
        }
    }

    fn update(&mut self, context: &VsiContext) {
        let has = |section| context.sections.contains(section);
        if has(Sections::SWITCH) {
            self.switch = context.switch;
        }
        if has(Sections::SECURITY) {
            self.security = context.security;
        }
        if has(Sections::VLAN) {
            self.vlan = context.vlan;
        }
        if has(Sections::QUEUES) {
            self.queues = QueueMap(context.queues);
        }
        if has(Sections::OPTIONS) {
            self.options = context.options;
        }
    }

    /// Returns the port VLAN tag to insert into every transmitted frame, if insertion is enabled.
    pub(super) fn port_tag(&self) -> Option<Tci> {
        self.vlan.insert_port_tag.then(|| Tci::from_bits(self.vlan.port_tag))
    }

    /// Returns whether the VLAN mode allows the VSI to send tagged frames or, if `tagged` is false, untagged frames.
    pub(super) const fn may_send(&self, tagged: bool) -> bool {
        let bit = if tagged { 0b10 } else { 0b01 };
        // Mode 0 is reserved. Allow all frames, since a VSI that cannot send is useless.
        self.vlan.transmit == 0 || self.vlan.transmit & bit != 0
    }

    /// Returns whether the VSI's RoCEv2 packets are diverted to the RDMA half.
    pub(super) const fn has_rdma_filter(&self) -> bool {
        self.options.rdma_filter
    }
}

#[derive(Debug)]
pub(super) struct Vsis {
    numbers: IdPool,
    vsis: BTreeMap<VsiNumber, Vsi>,
    /// RSS lookup table of the function.
    pub(super) function_table: FunctionTable,
    pub(super) profiles: Profiles,
}

impl Default for Vsis {
    fn default() -> Self {
        Self {
            numbers: IdPool::new(1, MAX_VSIS),
            vsis: BTreeMap::from([(DEFAULT, default_vsi())]),
            function_table: FunctionTable::default(),
            profiles: Profiles::default(),
        }
    }
}

impl Vsis {
    /// Executes "Add VSI".
    ///
    /// # Errors
    /// EINVAL for an unsupported type or a short buffer; ENOSPC if no VSI number is free.
    pub(super) fn add(
        &mut self,
        parameters: &VsiParameters,
        buffer: &mut [u8],
    ) -> Result<VsiResponse, AdminError> {
        if !KINDS.contains(&parameters.kind) {
            return Err(AdminError::invalid("VSI type", parameters.kind.into()));
        }
        let context = VsiContext::parse(Buffer::new(buffer).next()?);
        let Some(number) = self.numbers.allocate() else {
            return Err(AdminError::new(
                AdminStatus::NoSpace,
                "limit of VSIs reached at",
                self.numbers.used().into(),
            ));
        };
        self.vsis.insert(VsiNumber::new(number), Vsi::new(&context));
        Ok(self.answer(number))
    }

    /// Executes "Update VSI".
    ///
    /// # Errors
    /// ENOENT for an unknown VSI; EINVAL for a short buffer.
    pub(super) fn update(
        &mut self,
        parameters: &VsiParameters,
        buffer: &mut [u8],
    ) -> Result<VsiResponse, AdminError> {
        let context = VsiContext::parse(Buffer::new(buffer).next()?);
        self.lookup_mut(parameters)?.update(&context);
        Ok(self.answer(parameters.number))
    }

    /// Executes "Free VSI".
    ///
    /// # Errors
    /// ENOENT for an unknown VSI; EPERM for the default VSI.
    pub(super) fn free(&mut self, parameters: &VsiParameters) -> Result<VsiResponse, AdminError> {
        self.lookup_mut(parameters)?;
        if VsiNumber::new(parameters.number) == DEFAULT {
            let status = AdminStatus::NotPermitted;
            return Err(AdminError::new(status, "cannot free the default VSI", parameters.number.into()));
        }
        self.vsis.remove(&VsiNumber::new(parameters.number));
        self.numbers.release(parameters.number);
        // The response echoes the VSI number and its valid bit.
        let [low, high, ..] = parameters.emit();
        Ok(self.answer(u16::from_le_bytes([low, high])))
    }

    pub(super) fn get(&self, number: VsiNumber) -> Option<&Vsi> {
        self.vsis.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: VsiNumber) -> Option<&mut Vsi> {
        self.vsis.get_mut(&number)
    }

    /// Returns whether any VSI added by the driver still exists.
    pub(super) fn has_added(&self) -> bool {
        self.numbers.used() > 0
    }

    /// Returns all VSIs in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (VsiNumber, &Vsi)> {
        self.vsis.iter().map(|(number, vsi)| (*number, vsi))
    }

    fn lookup_mut(&mut self, parameters: &VsiParameters) -> Result<&mut Vsi, AdminError> {
        let vsi = self.vsis.get_mut(&VsiNumber::new(parameters.number)).filter(|_| parameters.number_valid);
        vsi.ok_or(AdminError::no_entry("VSI", parameters.number.into()))
    }

    fn answer(&self, number: u16) -> VsiResponse {
        VsiResponse { number, used: self.numbers.used(), free: self.numbers.free() }
    }
}

/// Returns the default VSI, which boot loaders use. It has the first queue and can send to the wire, but no switch rule
/// refers to it.
fn default_vsi() -> Vsi {
    let switch = SwitchSection { lan: true, ..SwitchSection::default() };
    Vsi::new(&VsiContext { switch, ..VsiContext::default() })
}

#[cfg(test)]
mod tests;
