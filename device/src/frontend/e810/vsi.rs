//! Virtual station interfaces: what connects queues to the switch.
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
use super::numbers::Numbers;
use super::rss::profiles::Profiles;
use super::rss::{FunctionTable, VsiRss};

/// VSIs of the device, which is one function's alone.
///
/// Bound: of what a driver can make the device keep, about 300 bytes each. Drivers read it in capability 0017.
pub(super) const MAX_VSIS: u16 = 768;

/// Kinds of VSIs that a driver may add: VMDq (of subfunctions), and those of the physical function.
const KINDS: std::ops::RangeInclusive<u8> = 1..=2;

/// The VSI that a reset leaves behind, for boot loaders, which add none: behind the numbers of those that drivers add.
const DEFAULT: VsiNumber = VsiNumber(MAX_VSIS + 1);

/// Number of a VSI that there is or was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct VsiNumber(u16);

impl VsiNumber {
    /// From the ten bits that commands and contexts have for it.
    pub(super) const fn new(raw: u16) -> Self {
        Self(raw & 0x3ff)
    }

    /// The plain number.
    pub(super) const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Debug for VsiNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vsi:{}", self.0)
    }
}

/// A VSI.
#[derive(Clone, Debug)]
pub(super) struct Vsi {
    /// Its place in the switch.
    pub(super) switch: SwitchSection,
    /// What it must not send.
    pub(super) security: SecuritySection,
    /// Its VLAN tags.
    pub(super) vlan: VlanSection,
    /// Its queues.
    pub(super) queues: QueueMap,
    /// How frames find their queue; whether RDMA takes its packets.
    pub(super) options: OptionsSection,
    /// Its key and table of receive side scaling.
    pub(super) rss: VsiRss,
}

/// Receive queues of a VSI.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueMap(QueueSection);

impl QueueMap {
    /// The receive queue of the device that is the `index`th of the VSI's first traffic class, in which all priorities
    /// are. An index past its end begins anew, as the bits above its size do not count.
    pub(super) fn receive_queue(&self, index: u16) -> u16 {
        let class = self.0.classes[0];
        let nth = class.first.wrapping_add(index & self.mask());
        let first = self.0.mapping[0];
        match self.0.mapping.get(usize::from(nth)) {
            Some(queue) if self.0.scattered => *queue,
            _ => first.wrapping_add(nth),
        }
    }

    /// How many queues there are.
    pub(super) fn len(&self) -> u16 {
        self.mask().saturating_add(1)
    }

    fn mask(&self) -> u16 {
        // Four bits.
        (1 << self.0.classes[0].log2_count) - 1
    }
}

impl Vsi {
    /// A VSI as it is added. Which sections are marked does not matter then: the driver marks few of them and means all.
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

    /// The tag that every frame sent gets besides its own.
    pub(super) fn port_tag(&self) -> Option<Tci> {
        self.vlan.insert_port_tag.then(|| Tci::from_bits(self.vlan.port_tag))
    }

    /// Whether software may send frames with a tag (or, if not `tagged`, without one).
    pub(super) const fn may_send(&self, tagged: bool) -> bool {
        let bit = if tagged { 0b10 } else { 0b01 };
        // No bit at all is a reserved value; a VSI that could send nothing would make no sense.
        self.vlan.transmit == 0 || self.vlan.transmit & bit != 0
    }

    /// Whether RDMA takes its packets out of what the VSI receives.
    pub(super) const fn has_rdma_filter(&self) -> bool {
        self.options.rdma_filter
    }
}

/// All VSIs.
#[derive(Debug)]
pub(super) struct Vsis {
    numbers: Numbers,
    vsis: BTreeMap<VsiNumber, Vsi>,
    /// The function's table of receive side scaling.
    pub(super) function_table: FunctionTable,
    /// What of a frame is hashed.
    pub(super) profiles: Profiles,
}

impl Default for Vsis {
    fn default() -> Self {
        Self {
            numbers: Numbers::new(1, MAX_VSIS),
            vsis: BTreeMap::from([(DEFAULT, default_vsi())]),
            function_table: FunctionTable::default(),
            profiles: Profiles::default(),
        }
    }
}

impl Vsis {
    /// "Add VSI".
    ///
    /// # Errors
    /// EINVAL for a kind that this function cannot have or a buffer that is too short; ENOSPC.
    pub(super) fn add(
        &mut self,
        parameters: &VsiParameters,
        buffer: &mut [u8],
    ) -> Result<VsiResponse, AdminError> {
        if !KINDS.contains(&parameters.kind) {
            return Err(AdminError::invalid("VSI type", parameters.kind.into()));
        }
        let context = VsiContext::parse(Buffer::new(buffer).next()?);
        let Some(number) = self.numbers.take() else {
            return Err(AdminError::new(
                AdminStatus::NoSpace,
                "limit of VSIs reached at",
                self.numbers.used().into(),
            ));
        };
        self.vsis.insert(VsiNumber::new(number), Vsi::new(&context));
        Ok(self.answer(number))
    }

    /// "Update VSI".
    ///
    /// # Errors
    /// ENOENT for an unknown one; EINVAL for a buffer that is too short.
    pub(super) fn update(
        &mut self,
        parameters: &VsiParameters,
        buffer: &mut [u8],
    ) -> Result<VsiResponse, AdminError> {
        let context = VsiContext::parse(Buffer::new(buffer).next()?);
        self.named(parameters)?.update(&context);
        Ok(self.answer(parameters.number))
    }

    /// "Free VSI".
    ///
    /// # Errors
    /// ENOENT for an unknown one; EPERM for the default VSI.
    pub(super) fn free(&mut self, parameters: &VsiParameters) -> Result<VsiResponse, AdminError> {
        self.named(parameters)?;
        if VsiNumber::new(parameters.number) == DEFAULT {
            let status = AdminStatus::NotPermitted;
            return Err(AdminError::new(status, "cannot free the default VSI", parameters.number.into()));
        }
        self.vsis.remove(&VsiNumber::new(parameters.number));
        self.numbers.give_back(parameters.number);
        // The number is answered as it was asked for, with the bit that makes it valid.
        let [low, high, ..] = parameters.emit();
        Ok(self.answer(u16::from_le_bytes([low, high])))
    }

    /// A VSI.
    pub(super) fn get(&self, number: VsiNumber) -> Option<&Vsi> {
        self.vsis.get(&number)
    }

    /// The same, to be changed.
    pub(super) fn get_mut(&mut self, number: VsiNumber) -> Option<&mut Vsi> {
        self.vsis.get_mut(&number)
    }

    /// Whether a driver has added some that it has not freed.
    pub(super) fn has_added(&self) -> bool {
        self.numbers.used() > 0
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (VsiNumber, &Vsi)> {
        self.vsis.iter().map(|(number, vsi)| (*number, vsi))
    }

    fn named(&mut self, parameters: &VsiParameters) -> Result<&mut Vsi, AdminError> {
        let vsi = self.vsis.get_mut(&VsiNumber::new(parameters.number)).filter(|_| parameters.number_valid);
        vsi.ok_or(AdminError::no_entry("VSI", parameters.number.into()))
    }

    fn answer(&self, number: u16) -> VsiResponse {
        VsiResponse { number, used: self.numbers.used(), free: self.numbers.free() }
    }
}

/// The VSI of a boot loader: its one queue is the function's first, it reaches the wire, and no rule names it yet.
fn default_vsi() -> Vsi {
    let switch = SwitchSection { lan: true, ..SwitchSection::default() };
    Vsi::new(&VsiContext { switch, ..VsiContext::default() })
}

#[cfg(test)]
mod tests;
