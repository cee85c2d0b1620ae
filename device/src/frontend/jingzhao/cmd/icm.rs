//! MAP_ICM and UNMAP_ICM.
//!
//! # Spec
//! JingZhao interface, sections 3.5 and 3.6.

use protocol::hca::jingzhao::PAGE;
use protocol::hca::jingzhao::cmd::{CmdError, Command};
use protocol::hca::jingzhao::icm::{self, IcmTable};
use protocol::ids::IcmAddr;

use crate::frontend::icm::page_of;
use crate::frontend::jingzhao::ctxmgt::ctxmdata::ranges;
use crate::frontend::jingzhao::resources::Resources;

pub(super) fn map(resources: &mut Resources, command: &Command, inbox: &[u8]) -> Result<(), CmdError> {
    let table = IcmTable::from_op_modifier(command.op_modifier)?;
    let entries = icm::parse(inbox, command.in_modifier)?;
    match table {
        IcmTable::Context => resources.ctx.map_icm_en(&entries),
        IcmTable::Tpt => resources.regions.icm.map(&ranges(&entries)),
    }
}

/// Pages that are not mapped are no error: the public driver unmaps whole chunks whatever it mapped of them.
pub(super) fn unmap(resources: &mut Resources, command: &Command) -> Result<(), CmdError> {
    const LAST_PAGE: u64 = u64::MAX / PAGE as u64;
    let table = IcmTable::from_op_modifier(command.op_modifier)?;
    let virt = command.in_param;
    if !virt.is_multiple_of(PAGE as u64) {
        return Err(CmdError::param("unaligned ICM address", virt));
    }
    let Some(more) = u64::from(command.in_modifier).checked_sub(1) else {
        return Err(CmdError::param("UNMAP_ICM page count", 0));
    };
    let first = page_of(IcmAddr::new(virt));
    let pages = first..=LAST_PAGE.min(first + more);
    match table {
        IcmTable::Context => resources.ctx.map_icm_dis(pages),
        IcmTable::Tpt => {
            resources.regions.icm.unmap(pages.clone())?;
            resources.regions.mtt.forget(pages);
            Ok(())
        }
    }
}
