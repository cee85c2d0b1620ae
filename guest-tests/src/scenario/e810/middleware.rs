//! Middleware over RDMA between two E810s with `irdma`.

use anyhow::{Context as _, Result};

use super::super::middleware::{ALL_RANKS, MPI_OVER_LIBFABRIC, Pair, mpi_over_ucx};
use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::extent::Extent;
use crate::scenario::nic::roce::{self, DEVICE, Gid};

/// Setting that disables UCX's GID check, which would drop all datagrams over IPv4 on an E810. The check reads the
/// destination GID from the header that precedes a datagram. UCX takes the length of that header from the completion's
/// `sl` field (`uct_ud_iface_check_grh` in UCX's `ud_iface.h`). Only Mellanox's libraries set this field;
/// `irdma_process_cqe` in libirdma's `uverbs.c` does not.
const NO_GID_CHECK: &str = "UCX_UD_VERBS_ETH_DGID_CHECK=n";

/// Arguments for UCX transport tests. `ud_verbs` supports only active messages.
const TRANSPORT: &[&str] = &["-t am_lat -D zcopy -s 2048 -n 500", "-t am_bw -D bcopy -s 2048 -n 2000"];

/// More UCX transport tests, for the remaining copy methods.
const MORE_TRANSPORT: &[&str] = &["-t am_lat -D short -s 8 -n 500", "-t am_lat -D bcopy -s 2048 -n 500"];

/// Arguments for UCX protocol tests over the same transport.
const PROTOCOL: &[&str] =
    &["-t tag_lat -s 65536 -n 50", "-t ucp_put_bw -s 65536 -n 50", "-t ucp_get -s 65536 -n 20"];

/// More UCX protocol tests, for the remaining protocols and sizes.
const MORE_PROTOCOL: &[&str] = &[
    "-t tag_lat -s 8 -n 500",
    "-t tag_bw -s 65536 -n 200",
    "-t tag_bw -s 4194304 -n 5",
    "-t ucp_am_bw -s 65536 -n 100",
    "-t stream_bw -s 65536 -n 100",
];

/// libfabric's providers and endpoint types, with the largest message size in the form that `fi_pingpong` prints.
const FABRIC: &[(&str, &str, &str)] =
    &[("verbs", "msg", "6m"), ("verbs;ofi_rxm", "rdm", "6m"), ("verbs", "dgram", "4k")];

/// The only UCX transport on an E810. UCX offers reliable connections only on devices with shared receive queues
/// (`uct_rc_verbs_query_tl_devices` in UCX's `rc_verbs_iface.c` checks `UCT_IB_DEVICE_FLAG_SRQ`, which is set if
/// `max_srq` is above 0). `irdma` does not support shared receive queues on an E810. The libfabric tests cover RC
/// instead.
const UD: &str = "ud_verbs";

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let run = lab.new_run(extent.select("e810-middleware", "e810-middleware-full"))?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    let [a, b] = roce::pair(lab, &run, &image).await.context(hint.clone())?;
    let mut pair = Pair { a, b, device: DEVICE, settings: &[NO_GID_CHECK] };
    let start = async {
        roce::start(&mut pair.a).await?;
        roce::start(&mut pair.b).await?;
        roce::jumbo([&mut pair.a, &mut pair.b]).await
    };
    report.case("both ports are active", &hint, start).await?;
    for test in extent.select([TRANSPORT, &[]], [TRANSPORT, MORE_TRANSPORT]).iter().copied().flatten() {
        let name = format!("ucx_perftest -x {UD} {test}");
        report.case(&name, &hint, pair.ucx_transport(UD, Some(Gid::V4), test)).await?;
    }
    for test in extent.select([PROTOCOL, &[]], [PROTOCOL, MORE_PROTOCOL]).iter().copied().flatten() {
        let name = format!("ucx_perftest {test} over {UD}");
        report.case(&name, &hint, pair.ucx(UD, Some(Gid::V4), test)).await?;
    }
    let test = "-t tag_bw -s 65536 -n 50";
    report.case("ucx_perftest over IPv6", &hint, pair.ucx(UD, Some(Gid::V6), test)).await?;
    report.case("UCX does not offer rc_verbs", &hint, pair.ucx_offers(&[UD])).await?;
    for &(provider, endpoint, largest) in FABRIC {
        let name = format!("fi_pingpong -p {provider} -e {endpoint} up to {largest}, verified content");
        report.case(&name, &hint, pair.fi_pingpong(provider, endpoint, largest)).await?;
    }
    report.case("remote shells for Open MPI", &hint, pair.prepare_mpi()).await?;
    let shell = pair.spawn_shell().await?;
    for (name, arguments) in [("UCX", mpi_over_ucx(UD)), ("libfabric", MPI_OVER_LIBFABRIC.to_owned())] {
        let name = format!("Open MPI over {name}: ring and all-to-all with {ALL_RANKS} ranks");
        report.case(&name, &hint, pair.exchange(&arguments)).await?;
    }
    pair.stop_shell(shell).await?;
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}
