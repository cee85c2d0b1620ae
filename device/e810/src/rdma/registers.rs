//! RDMA registers and doorbells.
//!
//! # Spec
//! E810 interface, section 9.1.

use card::frontend::Context;
use protocol::hca::e810::rdma::control::{Doorbell, Status};
use protocol::hca::e810::regs::Register;
use protocol::ids::{Cqn, Qpn};

use super::statistics::Counts;
use super::{Rdma, dispatch, queues, strict};
use crate::options::Setup;

/// Reads a register. Returns `None` if the register belongs to another block.
pub(in super::super) fn read(rdma: &Rdma, register: Register) -> Option<u32> {
    let cqp = &rdma.cqp;
    Some(match register {
        Register::PfpeCcqpstatus => u32::from_le_bytes(cqp.status().emit()),
        Register::PfpeCqptail => u32::from_le_bytes(cqp.tail().emit()),
        Register::PfpeCqperrcodes => u32::from_le_bytes(cqp.error_codes().emit()),
        // These registers read as 0. PFHMC_ERRORINFO, PFHMC_ERRORDATA and GLPE_CRITERR report errors that
        // never occur. The other registers in this list are write-only.
        Register::PfpeCcqplow
        | Register::PfpeCcqphigh
        | Register::PfpeCqpdb
        | Register::PfpeCqarm
        | Register::PfpeCqack
        | Register::PfpeAeqalloc
        | Register::PfpeWqealloc
        | Register::UserCqarm
        | Register::UserWqealloc
        | Register::PfhmcPdinv
        | Register::GlhmcVfpdinv(_)
        | Register::PfhmcErrorinfo
        | Register::PfhmcErrordata
        | Register::GlpeCriterr => 0,
        _ => return None,
    })
}

/// Writes a register. Returns false if the register belongs to another block.
pub(in super::super) fn write(
    rdma: &mut Rdma,
    setup: &Setup,
    cx: &mut Context<'_>,
    register: Register,
    value: u32,
) -> bool {
    cx.monitor.check(|| strict::write(rdma, register, value));
    match register {
        Register::PfpeCcqphigh => rdma.cqp.set_context_high(value),
        // If the configuration disables RDMA, the control queue must not start.
        Register::PfpeCcqplow if !setup.options.rdma => {}
        Register::PfpeCcqplow => match rdma.cqp.context(value) {
            Some(context) => {
                // Reset first. Otherwise, objects created through a running control queue would outlive it.
                rdma.reset(setup, cx);
                rdma.counts = Counts::new(cx.engine.stats());
                rdma.cqp.start(cx.dma, context);
            }
            None => rdma.reset(setup, cx),
        },
        Register::PfpeCcqpstatus => rdma.cqp.clear_status(Status::parse(&value.to_le_bytes())),
        Register::PfpeCqpdb => {
            cx.monitor.count_doorbell("cqp");
            dispatch::run(rdma, cx, Doorbell::parse(&value.to_le_bytes()).next);
        }
        Register::PfpeWqealloc | Register::UserWqealloc => {
            queues::notify_send(rdma, cx, Qpn::new(value));
        }
        // The CQ of the control queue does not hold back events, so a program that arms it in a loop could overwrite
        // the unread events of other CQs. irdma arms it only through PFPE_CQARM.
        Register::UserCqarm if Cqn::new(value) == queues::CONTROL_CQ => {}
        Register::PfpeCqarm | Register::UserCqarm => {
            queues::arm(rdma, cx, Cqn::new(value));
        }
        Register::PfpeCqack => queues::acknowledge(rdma, cx, Cqn::new(value)),
        Register::PfpeAeqalloc => rdma.events.return_credits(value),
        // Writes to these registers have no effect. Page directories are not cached (PFHMC_PDINV and GLHMC_VFPDINV).
        // The other registers in this list are read-only.
        Register::PfpeCqptail
        | Register::PfpeCqperrcodes
        | Register::PfhmcPdinv
        | Register::GlhmcVfpdinv(_)
        | Register::PfhmcErrorinfo
        | Register::PfhmcErrordata
        | Register::GlpeCriterr => {}
        _ => return false,
    }
    true
}
