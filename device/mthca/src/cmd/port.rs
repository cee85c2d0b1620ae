//! Port and management commands: INIT_IB, CLOSE_IB, SET_IB and MAD_IFC.
//!
//! # Spec
//! mthca interface, sections 3.5, 8.2 and 8.5.

use card::management::MkeyCheck;
use hcr::command::fixed;
use protocol::hca::mthca::eqe::Eqe;
use protocol::hca::mthca::port::{self, SetIb};
use protocol::hca::status::{CmdError, CmdStatus};

use super::{Answer, Call};

/// Bit in MAD_IFC's op_modifier that disables the M_Key check.
const IGNORE_M_KEY: u8 = 1;

pub(super) fn init(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, cx, command, .. } = call;
    port::check(command.in_modifier)?;
    let was_active = cx.is_port_active();
    cx.open_port();
    if cx.is_port_active() != was_active {
        resources.raise(cx, &Eqe::PortChange { port: 1, active: true });
    }
    Ok(Answer::Nothing)
}

pub(super) fn close(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { resources, cx, command, .. } = call;
    port::check(command.in_modifier)?;
    let was_active = cx.is_port_active();
    cx.close_port();
    if was_active {
        resources.raise(cx, &Eqe::PortChange { port: 1, active: false });
    }
    Ok(Answer::Nothing)
}

pub(super) fn set(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { cx, command, inbox, .. } = call;
    port::check(command.in_modifier)?;
    let SetIb { reset_qkey_violations, capabilities } = SetIb::parse(fixed(inbox)?);
    let counters = cx.view().counters;
    if let Some(management) = &mut cx.management {
        management.set_capabilities(capabilities);
        if reset_qkey_violations {
            management.reset_qkey_violations(&counters);
        }
    }
    Ok(Answer::Nothing)
}

pub(super) fn mad_ifc(call: Call<'_, '_>) -> Result<Answer, CmdError> {
    let Call { cx, command, inbox, .. } = call;
    // Only the lower half of in_modifier contains the port. The upper half may contain the source LID of a MAD from the
    // fabric.
    port::check(command.in_modifier & 0xffff)?;
    let m_key = match command.op_modifier & IGNORE_M_KEY {
        0 => MkeyCheck::Enforce,
        _ => MkeyCheck::Ignore,
    };
    let answer = cx.mad_ifc(fixed(inbox)?, m_key);
    let discarded =
        CmdError::new(CmdStatus::BadPacket, "no response to MAD, in_modifier", command.in_modifier.into());
    answer.map(|mad| Answer::Mailbox(mad.to_vec())).ok_or(discarded)
}
