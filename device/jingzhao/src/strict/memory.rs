//! Checks the commands SW2HW_MPT, HW2SW_MPT and WRITE_MTT.

use card::memory::translate::PageTable;
use hcr::strict::mtt_entries;
use protocol::hca::jingzhao::cmd::Command;
use protocol::hca::jingzhao::mpt::Mpt;
use protocol::hca::jingzhao::mtt::{self, WriteMtt};
use protocol::ids::Lkey;

use super::rules::{KEY_REUSE, MPT_IN_USE, MPT_PAGES, MTT_COUNT, MTT_IN_USE};
use super::{Findings, Strict, View};
use crate::mpt::region;
use crate::resources::Resources;

pub(super) fn sw2hw_mpt(view: View<'_>, strict: &Strict, mpt: &Mpt, found: &mut Findings) {
    let regions = &view.resources.regions;
    let index = regions.keys.index(mpt.key);
    let last = strict.freed.iter().rev().find(|key| regions.keys.index(**key) == index);
    if last == Some(&mpt.key) {
        found.add(&KEY_REUSE, format!("SW2HW_MPT reuses key {}", mpt.key));
    }
    if let Some(entries) = mtt_entries(&region(mpt)) {
        // Check at most as many entries as one WRITE_MTT can write. This is enough to detect a driver that omitted the
        // command.
        let missing =
            entries.clone().take(mtt::MAX_ENTRIES).find(|entry| (&regions.mtt).page(*entry).is_none());
        if let Some(entry) = missing {
            found.add(
                &MPT_PAGES,
                format!("MTT entry {entry:#x} of the memory region with key {} was never written", mpt.key),
            );
        }
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
    let qp = resources.qps.iter().find(|(_, qp)| {
        let image = &qp.key.context().image;
        (image.sq_lkey == key && image.sq_len != 0) || (image.rq_lkey == key && image.rq_len != 0)
    });
    let cq = || resources.cqs.iter().find(|(_, cq)| cq.buffer().lkey == key);
    let eq = || resources.eqs.iter_from(0).find(|(_, eq)| eq.buffer().lkey == key);
    qp.map(|(_, qp)| format!("QP {}", qp.qpn))
        .or_else(|| cq().map(|(_, cq)| format!("CQ {}", cq.cqn())))
        .or_else(|| eq().map(|(index, _)| format!("EQ {index:#x}")))
}

pub(super) fn write_mtt(resources: &Resources, command: &Command, write: &WriteMtt, found: &mut Findings) {
    if command.in_modifier as usize > mtt::MAX_ENTRIES {
        found.add(
            &MTT_COUNT,
            format!("WRITE_MTT has {} entries, maximum is {}", command.in_modifier, mtt::MAX_ENTRIES),
        );
    }
    let written = write.start..write.start.saturating_add(write.pages.len() as u64);
    let in_use = resources.regions.keys.iter().find(|region| {
        mtt_entries(region).is_some_and(|used| used.start < written.end && written.start < used.end)
    });
    if let Some(region) = in_use {
        found.add(
            &MTT_IN_USE,
            format!(
                "WRITE_MTT at entry {:#x} overwrites entries of the memory region with key {}",
                write.start, region.key
            ),
        );
    }
}
