//! Decoded command and response fields, for traces.

use super::capability::{Capabilities, Capability};
use super::control::{DriverVersion, QueueShutdown, ResourceLock, Version};
use super::link::{
    GetLinkStatus, GetPhyCapabilities, LinkStatus, PhyCapabilities, PhyConfig, RestartNegotiation,
    SetEventMask, SetMacLoopback,
};
use super::mac::{MacConfig, MacEntry, PortParameters, ReadMac, WriteMac};
use super::nvm::{NvmChecksum, ReadNvm};
use super::resource::{AllocatedResources, ResourceHeader, ResourceParameters};
use super::rss::{KeyParameters, TableParameters};
use super::scheduler::{
    Element, Group, ListParameters, Move, PortEts, PortEtsParameters, RateProfile, SchedulerResources, Teid,
    TopologyParameters,
};
use super::switch::{Lookup, RuleHeader, RuleKind, RuleList, SwitchElement, SwitchParameters};
use super::vsi::{VsiContext, VsiParameters, VsiResponse};
use super::{Opcode, PARAMETERS_LEN};
use crate::describe::{Describe, Value, Visitor};
use crate::hca::e810::package::{Download, PackageCount, PackageInfo};
use crate::layout;

/// Parameters of a command or its response.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'a> {
    /// Opcode, or `None` if it is unknown.
    pub opcode: Option<Opcode>,
    /// Whether these are the parameters of the response.
    pub response: bool,
    /// The 16 raw parameter bytes.
    pub bytes: &'a [u8; PARAMETERS_LEN],
}

impl Describe for Parameters<'_> {
    fn describe(&self, to: &mut dyn Visitor) {
        let Self { opcode, response, bytes } = *self;
        let Some(opcode) = opcode else { return to.value("bytes", Value::Bytes(bytes)) };
        match opcode {
            Opcode::GetVersion => Version::parse(bytes).describe(to),
            Opcode::DriverVersion => DriverVersion::parse(bytes).describe(to),
            Opcode::QueueShutdown => QueueShutdown::parse(bytes).describe(to),
            Opcode::RequestResource | Opcode::ReleaseResource => ResourceLock::parse(bytes).describe(to),
            Opcode::FunctionCapabilities | Opcode::DeviceCapabilities => {
                Capabilities::parse(bytes).describe(to);
            }
            Opcode::ReadMac => ReadMac::parse(bytes).describe(to),
            Opcode::WriteMac => WriteMac::parse(bytes).describe(to),
            Opcode::SetPortParameters => PortParameters::parse(bytes).describe(to),
            Opcode::SetMacConfig => MacConfig::parse(bytes).describe(to),
            Opcode::GetSwitchConfig => SwitchParameters::parse(bytes).describe(to),
            Opcode::AllocateResources | Opcode::FreeResources => {
                ResourceParameters::parse(bytes).describe(to);
            }
            Opcode::AllocatedResources => AllocatedResources::parse(bytes).describe(to),
            Opcode::AddVsi | Opcode::UpdateVsi | Opcode::FreeVsi if response => {
                VsiResponse::parse(bytes).describe(to);
            }
            Opcode::AddVsi | Opcode::UpdateVsi | Opcode::FreeVsi => VsiParameters::parse(bytes).describe(to),
            Opcode::GetDefaultTopology => TopologyParameters::parse(bytes).describe(to),
            Opcode::QueryPortEts => PortEtsParameters::parse(bytes).describe(to),
            Opcode::AddRules
            | Opcode::UpdateRules
            | Opcode::RemoveRules
            | Opcode::AddElements
            | Opcode::ConfigureElements
            | Opcode::GetElements
            | Opcode::MoveElements
            | Opcode::SuspendElements
            | Opcode::ResumeElements
            | Opcode::DeleteElements
            | Opcode::AddRateProfiles
            | Opcode::RemoveRateProfiles => ListParameters::parse(bytes).describe(to),
            Opcode::GetPhyCapabilities => GetPhyCapabilities::parse(bytes).describe(to),
            Opcode::RestartNegotiation => RestartNegotiation::parse(bytes).describe(to),
            Opcode::GetLinkStatus => GetLinkStatus::parse(bytes).describe(to),
            Opcode::SetEventMask => SetEventMask::parse(bytes).describe(to),
            Opcode::SetMacLoopback => SetMacLoopback::parse(bytes).describe(to),
            Opcode::ReadNvm => ReadNvm::parse(bytes).describe(to),
            Opcode::NvmChecksum => NvmChecksum::parse(bytes).describe(to),
            Opcode::SetRssKey | Opcode::GetRssKey => KeyParameters::parse(bytes).describe(to),
            Opcode::SetRssTable | Opcode::GetRssTable => TableParameters::parse(bytes).describe(to),
            Opcode::DownloadPackage | Opcode::UpdatePackage => Download::parse(bytes).describe(to),
            _ => to.value("bytes", Value::Bytes(bytes)),
        }
    }
}

/// Buffer of a command or its response.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    /// Opcode, or `None` if it is unknown.
    pub opcode: Option<Opcode>,
    /// Contents of the buffer.
    pub bytes: &'a [u8],
}

impl Describe for Buffer<'_> {
    fn describe(&self, to: &mut dyn Visitor) {
        let bytes = self.bytes;
        let shown = match self.opcode {
            Some(Opcode::FunctionCapabilities | Opcode::DeviceCapabilities) => {
                list("capability", bytes, Capability::parse, to);
                true
            }
            Some(Opcode::ReadMac) => one(bytes, MacEntry::parse_prefix, to),
            Some(Opcode::GetSwitchConfig) => one(bytes, SwitchElement::parse_prefix, to),
            Some(Opcode::AllocateResources | Opcode::FreeResources) => {
                headed(bytes, ResourceHeader::parse_prefix, to, identifiers)
            }
            Some(Opcode::AllocatedResources) => {
                identifiers(bytes, to);
                true
            }
            Some(Opcode::AddVsi | Opcode::UpdateVsi) => one(bytes, VsiContext::parse_prefix, to),
            Some(Opcode::AddRules | Opcode::UpdateRules | Opcode::RemoveRules) => {
                // Show only the first rule: Linux drivers send one rule per command.
                headed(bytes, RuleHeader::parse_prefix, to, |rest, to| rule(bytes, rest, to))
            }
            Some(Opcode::GetDefaultTopology | Opcode::AddElements) => {
                headed(bytes, Group::parse_prefix, to, |rest, to| list("element", rest, Element::parse, to))
            }
            Some(Opcode::GetElements | Opcode::ConfigureElements) => {
                list("element", bytes, Element::parse, to);
                true
            }
            Some(Opcode::MoveElements) => headed(bytes, Move::parse_prefix, to, teids),
            Some(Opcode::DeleteElements) => headed(bytes, Group::parse_prefix, to, teids),
            Some(Opcode::SuspendElements | Opcode::ResumeElements) => {
                teids(bytes, to);
                true
            }
            Some(Opcode::QueryPortEts) => one(bytes, PortEts::parse_prefix, to),
            Some(Opcode::QuerySchedulerResources) => one(bytes, SchedulerResources::parse_prefix, to),
            Some(Opcode::AddRateProfiles | Opcode::RemoveRateProfiles) => {
                list("profile", bytes, RateProfile::parse, to);
                true
            }
            Some(Opcode::GetPhyCapabilities) => one(bytes, PhyCapabilities::parse_prefix, to),
            Some(Opcode::SetPhyConfig) => one(bytes, PhyConfig::parse_prefix, to),
            Some(Opcode::GetLinkStatus) => one(bytes, LinkStatus::parse_prefix, to),
            Some(Opcode::GetPackageInfo) => headed(bytes, PackageCount::parse_prefix, to, |rest, to| {
                list("package", rest, PackageInfo::parse, to);
            }),
            Some(Opcode::DriverVersion) => {
                to.value("version", Value::Text(format_args!("{}", bytes.escape_ascii())));
                true
            }
            _ => false,
        };
        if !shown {
            to.value("bytes", Value::Bytes(bytes));
        }
    }
}

/// Shows the object at the beginning of the buffer. Returns false if the buffer is too short.
fn one<T: Describe + layout::Value>(
    bytes: &[u8],
    parse: fn(&[u8]) -> Option<T>,
    to: &mut dyn Visitor,
) -> bool {
    headed(bytes, parse, to, |_, _| {})
}

/// Shows the object at the beginning of the buffer, then calls `rest` with the remaining bytes.
fn headed<T: Describe + layout::Value>(
    bytes: &[u8],
    parse: fn(&[u8]) -> Option<T>,
    to: &mut dyn Visitor,
    rest: impl FnOnce(&[u8], &mut dyn Visitor),
) -> bool {
    let Some(head) = parse(bytes) else { return false };
    head.describe(to);
    rest(bytes.get(T::WIDTH / 8..).unwrap_or_default(), to);
    true
}

/// Shows consecutive objects, skipping those that are all zeros.
fn list<T: Describe, const LEN: usize>(
    name: &str,
    bytes: &[u8],
    parse: fn(&[u8; LEN]) -> T,
    to: &mut dyn Visitor,
) {
    let (objects, _) = bytes.as_chunks::<LEN>();
    let objects: Vec<T> = objects.iter().filter(|bytes| **bytes != [0; LEN]).map(parse).collect();
    to.objects(name, &mut objects.iter().map(|object| object as &dyn Describe));
}

fn identifiers(bytes: &[u8], to: &mut dyn Visitor) {
    numbers("id", bytes.as_chunks::<2>().0.iter().map(|id| u16::from_le_bytes(*id).into()), to);
}

fn teids(bytes: &[u8], to: &mut dyn Visitor) {
    let teids = bytes.as_chunks::<4>().0.iter().map(|teid| u32::from(Teid::from(u32::from_le_bytes(*teid))));
    numbers("teid", teids.map(u64::from), to);
}

fn numbers(name: &str, mut numbers: impl Iterator<Item = u64>, to: &mut dyn Visitor) {
    to.addresses(name, &mut numbers);
}

fn rule(bytes: &[u8], rest: &[u8], to: &mut dyn Visitor) {
    match RuleHeader::parse_prefix(bytes).map(|header| header.kind) {
        Some(RuleKind::LookupReceive | RuleKind::LookupTransmit) => {
            headed(rest, Lookup::parse_prefix, to, |header, to| to.value("header", Value::Bytes(header)));
        }
        _ => {
            headed(rest, RuleList::parse_prefix, to, |list, to| {
                let vsis = list.as_chunks::<2>().0.iter().map(|vsi| u16::from_le_bytes(*vsi).into());
                numbers("vsi", vsis, to);
            });
        }
    }
}
