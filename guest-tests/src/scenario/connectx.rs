//! Tests a ConnectX in guests, using the stock drivers `mlx5_core` and `mlx5_ib` and Debian's RDMA tools.

pub(super) mod cm;
pub(super) mod errors;
pub(super) mod many;
pub(super) mod messages;
pub(super) mod middleware;
pub(super) mod nixl;
pub(super) mod perftest;
pub(super) mod pingpong;
pub(super) mod probe;
pub(super) mod pyverbs;
pub(super) mod strict;
pub(super) mod strict_kernel;
pub(super) mod vfio;

use anyhow::Result;

use super::stock_pair::StockPair;
use crate::daemon::{Explained, HcaSpec};
use crate::lab::Lab;
use crate::testbed::kind::Device;

/// Starts two guests in strict mode, each with a ConnectX that has an InfiniBand port. The violations in `explained` do
/// not fail the scenario.
async fn start(lab: &Lab, scenario: &str, explained: &'static [Explained]) -> Result<StockPair> {
    start_of(Device::ConnectxIb, lab, scenario, explained).await
}

/// Like [`start`], for either kind of port.
async fn start_of(
    hca: Device,
    lab: &Lab,
    scenario: &str,
    explained: &'static [Explained],
) -> Result<StockPair> {
    let strict = |spec| HcaSpec { strict: true, explained, ..spec };
    StockPair::start_of(hca, lab, lab.new_run(scenario)?, strict).await
}

/// Returns a scenario's name for the port type of `hca`.
fn scenario(hca: Device, part: &str) -> String {
    match hca {
        Device::Connectx => format!("connectx-roce-{part}"),
        _ => format!("connectx-{part}"),
    }
}
