//! Runs every perftest operation between two guests. Performance is compared in `speed-guests`.

use anyhow::Result;

use super::super::extent::Extent;
use super::super::perftest;
use super::super::stock_pair::StockPair;
use crate::lab::Lab;
use crate::report::Report;

/// perftest command lines, each with the number of message sizes that it must print a result for. They cover every
/// operation of every service. With `-a`, perftest runs all sizes.
const CASES: &[(&str, usize)] = &[
    ("ib_write_bw -a -n 20", 23),
    ("ib_read_bw -s 65536 -n 100 -q 4", 1),
    ("ib_send_bw -s 4096 -n 1000 -q 4 -b", 1),
    ("ib_write_bw -s 64 -n 2000 -I 64", 1),
    ("ib_send_bw -s 64 -n 2000 -I 64", 1),
    ("ib_send_bw -s 4096 -n 1000 -e", 1),
    ("ib_send_bw -s 4096 -n 1000 -r 4", 1),
    ("ib_write_bw -s 4096 -n 1000 -m 256", 1),
    ("ib_send_bw -s 4096 -n 1000 -m 1024 -x 0", 1),
    // Limit the number of outstanding messages, since UC does not retransmit packets that are lost when a socket buffer
    // on the host is full.
    ("ib_send_bw -c UC -s 4096 -n 500 -t 8 -r 512", 1),
    ("ib_write_bw -c UC -a -n 10", 23),
    ("ib_send_bw -c UD -a -n 50", 11),
    ("ib_send_bw -c UD -s 2048 -n 500 -q 2", 1),
    ("ib_atomic_bw -A FETCH_AND_ADD -n 1000", 1),
    ("ib_atomic_bw -A CMP_AND_SWAP -n 1000 -q 2", 1),
    ("ib_read_lat -s 4096 -n 200", 1),
    // `ib_send_lat -e` is left out because it treats every event as a completion. If a CQ is armed before it is polled,
    // CQEs that it already holds raise another event (mthca interface, section 7.6), as ibv_get_cq_event(3) permits.
    ("ib_send_lat -s 64 -n 500 -I 0", 1),
    ("ib_write_lat -s 64 -n 500 -I 64", 1),
    ("ib_send_lat -c UC -s 2048 -n 200", 1),
    ("ib_send_lat -c UD -s 2048 -n 200", 1),
    ("ib_atomic_lat -A FETCH_AND_ADD -n 500", 1),
];

/// Additional command lines for the full run: all sizes of the other operations, traffic in both directions, and
/// latencies.
const MORE_CASES: &[(&str, usize)] = &[
    ("ib_read_bw -a -n 20", 23),
    ("ib_send_bw -a -n 20", 23),
    ("ib_write_bw -a -n 20 -b", 23),
    ("ib_read_bw -a -n 10 -b", 23),
    ("ib_send_bw -a -n 10 -b", 23),
    ("ib_write_bw -s 4096 -n 1000 -q 8", 1),
    ("ib_send_bw -s 4096 -n 1000 -q 8", 1),
    // The rate limit lets a delayed peer catch up.
    ("ib_send_bw -c UC -a -n 5 -t 1 --rate_limit=100 --rate_units=M --rate_limit_type=SW", 23),
    ("ib_atomic_bw -A FETCH_AND_ADD -n 500 -b", 1),
    ("ib_write_lat -a -n 20", 23),
    ("ib_read_lat -a -n 20", 23),
    ("ib_send_lat -a -n 20", 23),
    ("ib_read_bw -s 4096 -n 1000 -e", 1),
    ("ib_write_lat -c UC -a -n 20", 23),
    ("ib_send_lat -c UC -a -n 20", 23),
    ("ib_send_lat -c UD -a -n 50", 11),
    ("ib_atomic_lat -A CMP_AND_SWAP -n 500", 1),
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let name = extent.select("mthca-perftest", "mthca-perftest-full");
    let mut pair = StockPair::start(lab, name).await?;
    let hint = pair.hint();
    report.case("both ports are active", &hint, pair.load()).await?;
    let mthca = pair.perftest_device();
    for &(case, sizes) in extent.select([CASES, &[]], [CASES, MORE_CASES]).iter().copied().flatten() {
        report.case(case, &hint, perftest::complete(&mut pair.ends(), case, sizes, &mthca)).await?;
    }
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}
