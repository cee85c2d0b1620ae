//! Properties that drivers rely on beyond data transfer: queue formats, kinds of memory regions, local errors, register
//! rules, contexts in guest memory, and driver restarts.

mod failures;
mod queues;
mod regions;
mod registers;
mod restarts;

use agent::wire::{Data, SendOp, SendRequest, Sge};
use anyhow::Result;

use super::pair::Pair;
use crate::lab::Lab;
use crate::report::Report;

/// Timeout for completions that are expected immediately.
const SOON_MS: u32 = 10_000;

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let mut pair = Pair::start_open(lab, "jingzhao-interface").await?;
    let hint = pair.hint();
    queues::run(&mut pair, report, &hint).await?;
    regions::run(&mut pair, report, &hint).await?;
    failures::run(&mut pair, report, &hint).await?;
    registers::run(&mut pair, report, &hint).await?;
    restarts::run(&mut pair, report, &hint).await?;
    report.case("daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

/// Returns a request with one scatter/gather element.
fn request(op: SendOp, sge: Sge) -> SendRequest {
    SendRequest { op, data: Data::Sges(vec![sge]), ..SendRequest::default() }
}
