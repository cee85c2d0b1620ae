//! Guests that use a ConnectX with the stock drivers `mlx5_core` and `mlx5_ib`, and test it with Debian's RDMA tools.

pub(super) mod cm;
pub(super) mod errors;
pub(super) mod messages;
pub(super) mod perftest;
pub(super) mod pingpong;
pub(super) mod probe;
pub(super) mod pyverbs;

use anyhow::Result;

use super::stock_pair::StockPair;
use crate::daemon::HcaSpec;
use crate::lab::Lab;
use crate::testbed::kind::Device;

/// Starts two guests, each with a ConnectX in strict mode.
async fn start(lab: &Lab, scenario: &str) -> Result<StockPair> {
    let strict = |spec| HcaSpec { strict: true, ..spec };
    StockPair::start_of(Device::ConnectxIb, lab, lab.new_run(scenario)?, strict).await
}
