//! The multicast table: MGID_HASH, READ_MGM, WRITE_MGM.
//!
//! # Spec
//! mthca interface, sections 3.5 and 6.7.

use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::mgm::{self, Mgm};
use protocol::hca::status::{CmdError, CmdStatus};

use super::Answer;
use crate::frontend::Context;
use crate::frontend::command::fixed;
use crate::frontend::mthca::device::Setup;
use crate::frontend::mthca::resources::Resources;

pub(super) fn hash(
    resources: &mut Resources,
    _: &Setup,
    _: &mut Context<'_>,
    _: &Command,
    inbox: &[u8],
) -> Result<Answer, CmdError> {
    let bucket = mgm::hash(fixed(inbox)?, resources.layout.group_buckets);
    Ok(Answer::Immediate(bucket.into()))
}

pub(super) fn read(
    resources: &mut Resources,
    _: &Setup,
    _: &mut Context<'_>,
    command: &Command,
    _: &[u8],
) -> Result<Answer, CmdError> {
    let index = index(resources, command)?;
    Ok(Answer::Mailbox(resources.groups.read(index).bytes().to_vec()))
}

pub(super) fn write(
    resources: &mut Resources,
    _: &Setup,
    _: &mut Context<'_>,
    command: &Command,
    inbox: &[u8],
) -> Result<Answer, CmdError> {
    let index = index(resources, command)?;
    resources.groups.write(index, Mgm::new(*fixed(inbox)?));
    Ok(Answer::Nothing)
}

fn index(resources: &Resources, command: &Command) -> Result<u32, CmdError> {
    let index = command.in_modifier;
    if index >> resources.layout.log_groups != 0 {
        return Err(CmdError::new(CmdStatus::BadIndex, "multicast table index", index.into()));
    }
    Ok(index)
}
