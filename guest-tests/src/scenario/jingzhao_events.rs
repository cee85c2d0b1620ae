//! Checks every byte of each event type and the delivery of events through MSI-X. Also covers masks, overflow and
//! arming.

mod commands;
mod completions;
mod interrupts;
mod queue_pairs;
mod watch;

use agent::wire::{Data, EnableInterrupts, MrInfo, SendRequest};
use anyhow::Result;

use super::pair::Pair;
use crate::lab::Lab;
use crate::report::Report;

/// Number of MSI-X vectors that the device supports (JingZhao interface, section 1).
const VECTORS: u16 = 64;

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let mut pair = Pair::start_open(lab, "jingzhao-events").await?;
    let hint = pair.hint();
    for vm in [&mut pair.a.vm, &mut pair.b.vm] {
        vm.call(EnableInterrupts { vectors: VECTORS }).await?;
    }
    completions::run(&mut pair, report, &hint).await?;
    queue_pairs::run(&mut pair, report, &hint).await?;
    commands::run(&mut pair, report, &hint).await?;
    interrupts::run(&mut pair, lab, report, &hint).await?;
    report.case("daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

/// Returns a SEND of the first `len` bytes of a region.
fn send(from: &MrInfo, len: u32) -> SendRequest {
    SendRequest { data: Data::Sges(vec![from.sge(0, len)]), ..SendRequest::default() }
}
