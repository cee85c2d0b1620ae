//! Tests UC, UD and atomics between two guests. Also checks the contexts in the guests' memory and the effects of
//! packet loss.

mod atomics;
mod connected;
mod contexts;
mod datagrams;
mod lossy;
mod message;
mod order;

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use tokio::time::Instant;

use super::pair::{Node, Pair};
use crate::lab::Lab;
use crate::report::Report;

/// Timeout for completions that are expected immediately.
const SOON_MS: u32 = 10_000;
/// Immediate data whose bytes are nonzero and all different.
const FIRST_IMM: [u8; 4] = [0xe1, 0xc3, 0x42, 0x81];

/// Runs all cases. Guest `b` reserves space for the GRH before received datagrams; guest `a` does not.
pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let options = [json!({}), json!({ "ud_grh": true })];
    let mut pair = Pair::start_open_as(lab, "jingzhao-services", options).await?;
    let hint = pair.hint();
    connected::run(&mut pair, report, &hint).await?;
    datagrams::run(&mut pair, report, &hint).await?;
    atomics::run(&mut pair, report, &hint).await?;
    order::run(&mut pair, report, &hint).await?;
    contexts::run(&mut pair, report, &hint).await?;
    lossy::run(&mut pair, report, &hint).await?;
    report.case("daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

/// A daemon's counter, and its value when the measurement began.
struct Growth {
    place: &'static str,
    before: u64,
}

impl Growth {
    async fn of(node: &Node, place: &'static str) -> Result<Self> {
        Ok(Self { place, before: node.daemon.counter(place).await? })
    }

    async fn so_far(&self, node: &Node) -> Result<u64> {
        Ok(node.daemon.counter(self.place).await? - self.before)
    }

    /// Waits until the counter has grown by exactly `by`.
    async fn await_growth(&self, node: &Node, by: u64) -> Result<()> {
        let deadline = Instant::now() + Duration::from_millis(SOON_MS.into());
        loop {
            let growth = self.so_far(node).await?;
            if growth == by {
                return Ok(());
            }
            ensure!(growth < by, "{} grew by {growth}, expected {by}", self.place);
            ensure!(
                Instant::now() < deadline,
                "{} grew by {growth} within {SOON_MS} ms, expected {by}",
                self.place
            );
        }
    }
}
