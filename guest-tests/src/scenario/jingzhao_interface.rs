//! What drivers rely on beyond moving data: dialects of queues, kinds of regions, completions of what fails locally,
//! register rules, contexts in guest memory, and drivers that come and go.

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

/// For completions that are due at once.
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

/// A request with one element.
fn request(op: SendOp, sge: Sge) -> SendRequest {
    SendRequest { op, data: Data::Sges(vec![sge]), ..SendRequest::default() }
}
