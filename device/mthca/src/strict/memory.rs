//! Checks SW2HW_MPT and HW2SW_MPT commands.

use card::frontend::strict::Findings;
use card::memory::translate::PageTable as _;
use hcr::strict::mtt_entries;
use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::mpt::Mpt;
use protocol::ids::Lkey;

use super::icm::{self, Context};
use super::rules::{MPT_IN_USE, MPT_PAGES};
use crate::resources::Resources;

pub(super) fn sw2hw_mpt(resources: &Resources, mpt: &Mpt, found: &mut Findings) {
    let index = resources.regions.keys.index(mpt.key);
    icm::context(resources, Context::Mpt(index), &format!("the memory region with key {}", mpt.key), found);
}

/// Checks the page table entries of a region that has just become valid.
pub(super) fn registered(resources: &Resources, key: Lkey, found: &mut Findings) {
    /// Maximum number of entries checked: one ICM page. This is enough to detect a driver that has not written any.
    const CHECKED: usize = 512;
    let regions = &resources.regions;
    let Some(entries) = regions.keys.find(key).ok().and_then(mtt_entries) else { return };
    if let Some(missing) = entries.take(CHECKED).find(|entry| (&regions.mtt).page(*entry).is_none()) {
        let place = regions.mtt.addr(missing).unwrap_or_default();
        found.add(
            &MPT_PAGES,
            format!("the page table entry at ICM address {place} of the memory region with key {key} was never written"),
        );
    }
}

pub(super) fn hw2sw_mpt(resources: &Resources, command: &Command, found: &mut Findings) {
    let Some(region) = resources.regions.keys.get(command.in_modifier) else { return };
    if let Some(user) = user_of(resources, region.key) {
        found.add(&MPT_IN_USE, format!("the memory region with key {} is the buffer of {user}", region.key));
    }
}

/// Returns the name of a queue whose buffer is the region with key `key`, if any.
fn user_of(resources: &Resources, key: Lkey) -> Option<String> {
    let Resources { qps, cqs, srqs, eqs, .. } = resources;
    let qp = qps.iter().find(|(_, qp)| qp.qpc.wqe_lkey == key).map(|(_, qp)| format!("QP {}", qp.qpn));
    let cq = || {
        let found = cqs.iter().find(|(_, cq)| cq.ring().buffer().lkey == key);
        found.map(|(_, cq)| format!("CQ {}", cq.cqn()))
    };
    let srq = || srqs.iter().find(|(_, srq)| srq.lkey() == key).map(|(_, srq)| format!("SRQ {}", srq.srqn()));
    let eq = || {
        let found = eqs.iter_from(0).find(|(_, eq)| eq.ring().buffer().lkey == key);
        found.map(|(eqn, _)| format!("EQ {eqn:#x}"))
    };
    qp.or_else(cq).or_else(srq).or_else(eq)
}
