//! The multicast table: MGID_HASH, READ_MGM, WRITE_MGM.
//!
//! # Spec
//! mthca interface, sections 3.5 and 6.7.

use hcr::command::fixed;
use protocol::hca::mthca::cmd::Command;
use protocol::hca::mthca::mgm::{self, Mgm};
use protocol::hca::status::{CmdError, CmdStatus};

use super::{Answer, Call};
use crate::resources::Resources;

pub(super) fn hash(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, inbox, .. } = call;
    let bucket = mgm::hash(fixed(inbox)?, resources.layout.group_buckets);
    Ok(Answer::Immediate(bucket.into()))
}

pub(super) fn read(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, command, .. } = call;
    let index = index(resources, command)?;
    Ok(Answer::Mailbox(resources.groups.read(index).bytes().to_vec()))
}

pub(super) fn write(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, command, inbox, .. } = call;
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
