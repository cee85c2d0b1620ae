//! Queue pairs: the MODIFY_QP family and QUERY_QP.
//!
//! # Spec
//! JingZhao interface, sections 3.12, 3.13 and 10.

use card::frontend::Context;
use hcr::command::{Outbox, fixed};
use hcr::host::modify_qp;
use protocol::hca::jingzhao::cmd::{CmdError, CmdStatus, Command};
use protocol::hca::jingzhao::modify::StoredQpc;
use protocol::hca::jingzhao::qpc::{self, QpState, Qpc};
use protocol::hca::jingzhao::transition::Transition;

use crate::options::Setup;
use crate::qp::{self, QueuePair, attributes, modification};
use crate::resources::Resources;

pub(super) fn modify(
    resources: &mut Resources,
    setup: &Setup,
    cx: &mut Context<'_>,
    command: &Command,
    transition: Transition,
    inbox: &[u8],
) -> Result<(), CmdError> {
    let number = command.qpn()?;
    let index = resources.ctx.qp_index(number);
    let mailbox = if inbox.is_empty() { Qpc::default() } else { Qpc::parse(fixed(inbox)?) };
    resources.observe(cx, number);
    let current = resources.qps.get(index).map_or_else(StoredQpc::default, |qp| *qp.key.context());
    let next = current.modify(transition, &mailbox)?;
    let pkey_index = next.image.pkey_index;
    if u16::from(pkey_index) >= setup.options.limits.pkeys() {
        return Err(CmdError::new(CmdStatus::BadIndex, "P_Key index", pkey_index.into()));
    }

    match (resources.qps.get_mut(index), transition) {
        (None, Transition::ToRst) => return Ok(()),
        (Some(_), Transition::ToRst) => {
            destroy(resources, cx, index);
            return Ok(());
        }
        (Some(qp), _) => qp.key.load(next),
        (None, _) => {
            let mut qp = QueuePair::new(number, next, &setup.options);
            let written = resources.ctx.wr_qp_all(cx.dma, index, &mut qp.key);
            // Only RST2INIT requires the context's ICM page to be mapped. For a transition from RESET to ERR, software
            // provides no context and need not have mapped the page, so a failed write is ignored.
            if transition == Transition::Rst2Init {
                written?;
            }
            create(resources, setup, cx, index, qp)?;
        }
    }

    let Resources { ctx, regions, qps, watch, .. } = resources;
    let Some(qp) = qps.get_mut(index) else { return Ok(()) };
    qp.configure_queues(&regions.access(cx.dma));
    if transition == Transition::Rst2Init {
        qp.recv.prepare(&regions.access(cx.dma));
    }
    if transition == Transition::Init2Rtr {
        watch.insert(index, cx.now);
    }
    // Ignore a failed write: software may have unmapped the page since RST2INIT.
    let _ = ctx.wr_qp_all(cx.dma, index, &mut qp.key);
    let qpn = qp.qpn;
    let attrs = attributes(qpn, &qp.key, cx.port.addresses(), &setup.options);
    let modification = modification(transition, &qp.key, attrs, &mailbox);
    modify_qp(cx, resources, qpn, &modification)
}

fn create(
    resources: &mut Resources,
    setup: &Setup,
    cx: &mut Context<'_>,
    index: u32,
    qp: QueuePair,
) -> Result<(), CmdError> {
    let exceeded = CmdError::new(CmdStatus::ExceedLim, "limit of QPs reached at index", index.into());
    let attrs = attributes(qp.qpn, &qp.key, cx.port.addresses(), &setup.options);
    let qpn = qp.qpn;
    resources.qps.insert(index, Box::new(qp)).map_err(|_| exceeded)?;
    cx.engine.create_qp(qpn, attrs).map_err(|_| {
        resources.qps.remove(index);
        exceeded
    })
}

/// Destroys a QP without generating completions or events. Its context in ICM keeps the last PSNs and is set to state
/// RESET.
fn destroy(resources: &mut Resources, cx: &mut Context<'_>, index: u32) {
    let Some(mut qp) = resources.qps.remove(index) else { return };
    resources.watch.remove(index);
    cx.engine.destroy_qp(qp.qpn);
    cx.monitor.forget_qp(qp.qpn);
    resources.doorbells.update(qp.send.pooled_doorbells(), 0);
    let mut last = *qp.key.context();
    last.image.state = QpState::Reset.code();
    qp.key.load(last);
    let _ = resources.ctx.wr_qp_all(cx.dma, index, &mut qp.key);
}

/// Executes QUERY_QP. Returns zeros for a QP that is in RESET or never existed.
pub(super) fn query(
    resources: &mut Resources,
    setup: &Setup,
    cx: &mut Context<'_>,
    command: &Command,
) -> Result<Outbox, CmdError> {
    let number = command.qpn()?;
    let index = resources.ctx.qp_index(number);
    resources.observe(cx, number);
    let Some(qp) = resources.qps.get_mut(index) else { return Ok(vec![0; qpc::LEN]) };
    let context = resources.ctx.rd_qp_all(cx.dma, index, &mut qp.key);
    Ok(qp::query(context, &setup.options).emit().to_vec())
}
