//! Checks that strict mode reports no violations while the stock drivers load, run and unload.

use std::time::Duration;

use anyhow::Result;

use super::super::mthca::pingpong::ping_pong;
use super::super::planted::Violations;
use super::super::stock_pair::StockPair;
use crate::lab::Lab;
use crate::report::Report;

/// Programs that together use every kind of queue and also wait for events.
const CASES: &[&str] = &[
    "ibv_rc_pingpong -e",
    "ibv_rc_pingpong -s 65537 -m 1024 -n 100",
    "ibv_uc_pingpong -s 4096 -m 512 -e",
    "ibv_ud_pingpong -e",
    "ibv_srq_pingpong -s 4096 -q 16 -e",
];
/// Timeout for unloading the drivers. Linux 6.12 destroys about 6,100 keys one by one (mlx5 interface, trap M-17).
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(600);

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let mut pair = super::start(lab, "strict-mlx5", &[]).await?;
    let hint = pair.hint();
    report.case("loading the drivers triggers no reports", &hint, loads(&mut pair)).await?;
    for case in CASES {
        report.case(&format!("{case} triggers no reports"), &hint, exchanges(&mut pair, case)).await?;
    }
    report.case("unloading the drivers triggers no reports", &hint, unloads(&mut pair)).await?;
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

/// Violations that the drivers of both guests have caused so far.
struct Both([Violations; 2]);

impl Both {
    async fn by_now(pair: &mut StockPair) -> Result<Self> {
        Ok(Self([Violations::by_now(&mut pair.a).await?, Violations::by_now(&mut pair.b).await?]))
    }

    async fn expect_none_since(self, pair: &StockPair) -> Result<()> {
        let Self([a, b]) = self;
        a.expect_none_since(&pair.a).await?;
        b.expect_none_since(&pair.b).await
    }
}

async fn loads(pair: &mut StockPair) -> Result<()> {
    let before = Both::by_now(pair).await?;
    pair.load().await?;
    before.expect_none_since(pair).await
}

async fn exchanges(pair: &mut StockPair, case: &str) -> Result<()> {
    let before = Both::by_now(pair).await?;
    let command = format!("{case} -c -d {}", pair.a.rdma_device());
    ping_pong(pair, &command).await?;
    before.expect_none_since(pair).await
}

async fn unloads(pair: &mut StockPair) -> Result<()> {
    let before = Both::by_now(pair).await?;
    for node in [&mut pair.a, &mut pair.b] {
        node.vm.run_within(UNLOAD_TIMEOUT, &["modprobe", "-r", "mlx5_ib", "mlx5_core"]).await?;
    }
    before.expect_none_since(pair).await
}
