//! Runs perftest between two guests. Every operation of every service must work.

use anyhow::Result;

use super::super::extent::Extent;
use super::super::perftest;
use crate::lab::Lab;
use crate::report::Report;
use crate::testbed::kind::Device;

/// Command lines, each with the number of message sizes in its results.
const CORE: &[(&str, usize)] = &[
    ("ib_write_bw -s 65536 -n 200", 1),
    ("ib_read_bw -s 65536 -n 200", 1),
    ("ib_send_bw -s 65536 -n 200", 1),
    ("ib_write_bw -s 1048576 -n 20 -q 4 -b", 1),
    ("ib_write_bw -s 64 -n 2000 -I 64", 1),
    ("ib_send_bw -s 64 -n 2000 -q 64", 1),
    ("ib_send_bw -s 4096 -n 500 -e", 1),
    ("ib_send_bw -s 4096 -n 500 -r 4", 1),
    ("ib_write_bw -c UC -s 4096 -n 500", 1),
    ("ib_send_bw -c UD -s 2048 -n 500 -q 2", 1),
    ("ib_write_bw -c XRC -s 65536 -n 100", 1),
    ("ib_send_bw -c XRC -s 4096 -n 500", 1),
    ("ib_atomic_bw -A FETCH_AND_ADD -n 500", 1),
    ("ib_atomic_bw -A CMP_AND_SWAP -n 500 -q 2 -b", 1),
    ("ib_write_lat -s 64 -n 500 -I 64", 1),
    ("ib_read_lat -s 64 -n 500", 1),
    ("ib_send_lat -s 64 -n 500", 1),
    ("ib_atomic_lat -A FETCH_AND_ADD -n 500", 1),
];

const FULL: &[(&str, usize)] = &[
    ("ib_write_bw -a -n 50", 23),
    ("ib_read_bw -a -n 20", 23),
    ("ib_send_bw -a -n 20", 23),
    ("ib_write_bw -a -n 20 -b", 23),
    ("ib_read_bw -a -n 10 -b", 23),
    ("ib_send_bw -a -n 10 -b", 23),
    ("ib_write_bw -a -n 20 -c XRC", 23),
    ("ib_read_bw -a -n 10 -c XRC", 23),
    ("ib_send_bw -a -n 10 -c XRC", 23),
    ("ib_write_bw -s 4096 -n 1000 -q 16", 1),
    ("ib_read_bw -s 4096 -n 200 -q 64", 1),
    ("ib_send_bw -s 4096 -n 200 -q 64 -b", 1),
    ("ib_write_bw -s 4096 -n 1000 -m 256", 1),
    ("ib_send_bw -s 4096 -n 1000 -m 1024 -x 0", 1),
    // Packets are lost when a socket buffer on the host is full, and UC does not retransmit them. The number of
    // outstanding messages and the rate are therefore limited.
    ("ib_send_bw -c UC -a -n 5 -t 1 --rate_limit=100 --rate_units=M --rate_limit_type=SW", 23),
    ("ib_write_bw -c UC -a -n 20", 23),
    ("ib_send_bw -c UD -a -n 100", 12),
    ("ib_read_bw -s 4096 -n 1000 -e", 1),
    ("ib_write_lat -a -n 20", 23),
    ("ib_read_lat -a -n 20", 23),
    ("ib_send_lat -a -n 20", 23),
    ("ib_write_lat -c UC -a -n 20", 23),
    ("ib_send_lat -c UD -a -n 50", 12),
    ("ib_send_lat -c XRC -s 64 -n 500", 1),
    ("ib_atomic_lat -A CMP_AND_SWAP -n 500", 1),
];

/// Command lines for an Ethernet port. The connections are set up by `rdma_cm`, using the network devices' addresses.
const BY_CM: &[(&str, usize)] = &[
    ("ib_write_bw -R -s 65536 -n 200", 1),
    ("ib_send_bw -R -s 4096 -n 500 -q 4", 1),
    ("ib_write_bw -R -s 4096 -n 500 -b", 1),
    ("ib_send_bw -R -c UD -s 2048 -n 500", 1),
    ("ib_read_lat -R -s 64 -n 200", 1),
    ("ib_send_lat -R -s 64 -n 500", 1),
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, hca: Device, extent: Extent) -> Result<()> {
    let (part, more) = extent.select(("perftest", &[][..]), ("perftest-full", FULL));
    let mut pair = super::start_of(hca, lab, &super::scenario(hca, part), &[]).await?;
    let hint = pair.hint();
    report.case("both ports are active", &hint, pair.load()).await?;
    let device = pair.perftest_device();
    for &(case, sizes) in CORE.iter().chain(more) {
        report.case(case, &hint, perftest::complete(&mut pair.ends(), case, sizes, &device)).await?;
    }
    if hca == Device::Connectx {
        let device = pair.perftest_device_by_cm();
        for &(case, sizes) in BY_CM {
            report.case(case, &hint, perftest::complete(&mut pair.ends(), case, sizes, &device)).await?;
        }
    }
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}
