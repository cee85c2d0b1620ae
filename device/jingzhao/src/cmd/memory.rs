//! Memory regions: SW2HW_MPT, HW2SW_MPT, WRITE_MTT.
//!
//! # Spec
//! JingZhao interface, sections 3.7 and 3.8.

use card::memory::GuestMemory;
use protocol::hca::jingzhao::cmd::{CmdError, CmdStatus, Command};
use protocol::hca::jingzhao::mpt::Mpt;
use protocol::hca::jingzhao::mtt::{ENTRY_LEN, WriteMtt};

use crate::mpt::region;
use crate::resources::{Regions, Resources};

pub(super) fn sw2hw_mpt(
    resources: &mut Resources,
    dma: &GuestMemory,
    command: &Command,
    inbox: &[u8; Mpt::LEN],
) -> Result<(), CmdError> {
    let index = command.in_modifier;
    let mpt = Mpt::parse(inbox)?;
    mpt.check_index(index, &resources.regions.mpt)?;
    if resources.regions.keys.get(index).is_some() {
        return Err(CmdError::new(
            CmdStatus::BadResState,
            "already in hardware ownership: MPT entry",
            index.into(),
        ));
    }
    resources.regions.icm.write(dma, resources.regions.mpt_entry(index), inbox)?;
    resources.regions.keys.insert(region(&mpt)).map_err(|_| {
        CmdError::new(CmdStatus::ExceedLim, "limit of MPT entries reached at index", index.into())
    })?;
    Ok(())
}

pub(super) fn hw2sw_mpt(
    resources: &mut Resources,
    dma: &GuestMemory,
    command: &Command,
) -> Result<(), CmdError> {
    let index = command.in_modifier;
    if !resources.regions.keys.contains_index(index) {
        return Err(CmdError::new(CmdStatus::BadIndex, "MPT index", index.into()));
    }
    if resources.regions.keys.remove(index).is_none() {
        return Err(CmdError::new(
            CmdStatus::BadResState,
            "not in hardware ownership: MPT entry",
            index.into(),
        ));
    }
    // The region is removed even if the ICM page of its MPT entry has been unmapped, so a failed write is ignored.
    let _ = resources.regions.icm.write(dma, resources.regions.mpt_entry(index), &[0; Mpt::LEN]);
    Ok(())
}

pub(super) fn write_mtt(
    resources: &mut Resources,
    dma: &GuestMemory,
    command: &Command,
    inbox: &[u8],
) -> Result<(), CmdError> {
    let write = WriteMtt::parse(inbox, command.in_modifier)?;
    let Regions { icm, mtt, .. } = &mut resources.regions;
    let start = write.start;
    let addr = mtt.addr(start).ok_or(CmdError::param("MTT start index", start))?;
    icm.check(addr, write.pages.len() * ENTRY_LEN)?;
    mtt.reserve(start, write.pages.len())
        .map_err(|_| CmdError::new(CmdStatus::ExceedLim, "limit of MTT entries reached at index", start))?;
    let stored: Vec<u8> = write.pages.iter().flat_map(|page| page.get().to_be_bytes()).collect();
    icm.write(dma, addr, &stored)?;
    for (entry, page) in (start..).zip(write.pages) {
        mtt.set(entry, Some(page));
    }
    Ok(())
}
