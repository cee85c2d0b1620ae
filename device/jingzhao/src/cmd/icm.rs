//! MAP_ICM and UNMAP_ICM.
//!
//! # Spec
//! JingZhao interface, sections 3.5 and 3.6.

use hcr::icm::pages;
use protocol::hca::jingzhao::cmd::{CmdError, Command};
use protocol::hca::jingzhao::icm::{self, IcmTable};

use crate::ctxmgt::ctxmdata::ranges;
use crate::resources::Resources;

pub(super) fn map(resources: &mut Resources, command: &Command, inbox: &[u8]) -> Result<(), CmdError> {
    let table = IcmTable::from_op_modifier(command.op_modifier)?;
    let entries = icm::parse(inbox, command.in_modifier)?;
    match table {
        IcmTable::Context => resources.ctx.map_icm_en(&entries),
        IcmTable::Tpt => resources.regions.icm.map(&ranges(&entries)),
    }
}

/// Executes UNMAP_ICM. Unmapping an unmapped page is not an error, because the public driver unmaps whole chunks even
/// if only parts of them are mapped.
pub(super) fn unmap(resources: &mut Resources, command: &Command) -> Result<(), CmdError> {
    let table = IcmTable::from_op_modifier(command.op_modifier)?;
    let pages = pages(command.in_param, command.in_modifier)?;
    match table {
        IcmTable::Context => resources.ctx.map_icm_dis(pages),
        IcmTable::Tpt => {
            resources.regions.icm.unmap(pages.clone())?;
            resources.regions.mtt.invalidate(pages);
            Ok(())
        }
    }
}
