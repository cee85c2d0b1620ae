//! Middleware over RDMA between two ConnectX cards with `mlx5_ib`. UCX's `mlx5` transports build work requests
//! themselves. Its `verbs` transports use libmlx5.

use anyhow::{Context as _, Result};

use super::super::middleware::{ALL_RANKS, MPI_OVER_LIBFABRIC, Pair, mpi_over_ucx};
use super::super::nic::roce::{self, Gid};
use crate::daemon::Explained;
use crate::lab::Lab;
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::testbed::kind::Device;

const DEVICE: &str = "mlx5_0";

struct Transport {
    name: &'static str,
    /// Value of `UCX_TLS` for protocols over the transport. UCX sets up reliable connections over a datagram transport,
    /// which must be listed with `:aux`.
    protocols: &'static str,
    /// Lists of arguments for transport tests.
    tests: &'static [&'static [&'static str]],
}

/// UCX's transports on a ConnectX that does not offer the dynamically connected (DC) transport.
const TRANSPORTS: &[Transport] = &[
    Transport {
        name: "rc_mlx5",
        protocols: "rc_mlx5,ud_mlx5:aux",
        tests: &[MESSAGES, REMOTE_ACCESS, ATOMICS],
    },
    Transport {
        name: "rc_verbs",
        protocols: "rc_verbs,ud_verbs:aux",
        tests: &[MESSAGES, REMOTE_ACCESS, ATOMICS],
    },
    Transport { name: "ud_mlx5", protocols: "ud_mlx5", tests: &[MESSAGES] },
    Transport { name: "ud_verbs", protocols: "ud_verbs", tests: &[MESSAGES] },
];

/// Known interface violations in UCX.
const EXPLAINED: &[Explained] = &[Explained {
    rule: "blue_flame",
    why: "with DevX, UCX assumes that every device has BlueFlame (it passes `UCT_IB_MLX5_BF_REG_SIZE` to \
          `uct_ib_mlx5_get_mmio_mode`)",
}];

/// Arguments for UCX tests of active messages, which every transport supports.
const MESSAGES: &[&str] = &[
    "-t am_lat -D short -s 8 -n 500",
    "-t am_lat -D bcopy -s 2048 -n 500",
    "-t am_bw -D zcopy -s 2048 -n 2000",
];

/// Arguments for UCX tests of RDMA reads and writes, which only reliable connections support.
const REMOTE_ACCESS: &[&str] = &[
    "-t put_lat -D short -s 8 -n 500",
    "-t put_bw -D bcopy -s 2048 -n 1000",
    "-t put_bw -D zcopy -s 65536 -n 200",
    "-t get -D bcopy -s 2048 -n 500",
    "-t get -D zcopy -s 65536 -n 100",
];

/// Setting that keeps UCX from using DevX. Without DevX, atomics over `rc_mlx5` fail, because UCX adds an offset to
/// each address (`uct_ib_resolve_atomic_rkey` in `ib_md.h`), and only the indirect keys that it creates through DevX
/// accept such an address.
const WITHOUT_DEVX: &[&str] = &["UCX_IB_MLX5_DEVX=n"];

/// Arguments for UCX tests of atomics.
const ATOMICS: &[&str] = &["-t fadd -D short -s 8 -n 500", "-t cswap -D short -s 8 -n 500"];

/// Arguments for UCX protocol tests over each transport.
const PROTOCOL: &[&str] = &[
    "-t tag_lat -s 8 -n 500",
    "-t tag_bw -s 65536 -n 100",
    "-t tag_bw -s 4194304 -n 5",
    "-t ucp_put_bw -s 65536 -n 50",
    "-t ucp_get -s 65536 -n 20",
    "-t ucp_am_bw -s 65536 -n 100",
    "-t stream_bw -s 65536 -n 100",
];

/// libfabric's providers and endpoint types, with the largest message size as printed by `fi_pingpong`.
const FABRIC: &[(&str, &str, &str)] =
    &[("verbs", "msg", "6m"), ("verbs;ofi_rxm", "rdm", "6m"), ("verbs", "dgram", "4k")];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, hca: Device) -> Result<()> {
    let run = lab.new_run(&super::scenario(hca, "middleware"))?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut pair = start(hca, lab, &run).await.context(hint.clone())?;
    let gid = (hca == Device::Connectx).then_some(Gid::V4);
    let names: Vec<&str> = TRANSPORTS.iter().map(|transport| transport.name).collect();
    report.case("UCX offers the transports", &hint, pair.ucx_offers(&names)).await?;
    for &Transport { name: transport, protocols, tests } in TRANSPORTS {
        for test in tests.iter().copied().flatten() {
            let name = format!("ucx_perftest -x {transport} {test}");
            report.case(&name, &hint, pair.ucx_transport(transport, gid, test)).await?;
        }
        for test in PROTOCOL {
            let name = format!("ucx_perftest {test} over {transport}");
            report.case(&name, &hint, pair.ucx(protocols, gid, test)).await?;
        }
    }
    pair.settings = WITHOUT_DEVX;
    for test in [MESSAGES, REMOTE_ACCESS].concat() {
        let name = format!("ucx_perftest -x rc_mlx5 {test}, without DevX");
        report.case(&name, &hint, pair.ucx_transport("rc_mlx5", gid, test)).await?;
    }
    pair.settings = &[];
    for &(provider, endpoint, largest) in FABRIC {
        let name = format!("fi_pingpong -p {provider} -e {endpoint} up to {largest}, verified content");
        report.case(&name, &hint, pair.fi_pingpong(provider, endpoint, largest)).await?;
    }
    report.case("remote shells for Open MPI", &hint, pair.prepare_mpi()).await?;
    let shell = pair.spawn_shell().await?;
    let over_ucx = TRANSPORTS.iter().map(|transport| (transport.name, mpi_over_ucx(transport.protocols)));
    for (name, arguments) in over_ucx.chain([("libfabric", MPI_OVER_LIBFABRIC.to_owned())]) {
        let name = format!("Open MPI over {name}: ring and all-to-all with {ALL_RANKS} ranks");
        report.case(&name, &hint, pair.exchange(&arguments)).await?;
    }
    pair.stop_shell(shell).await?;
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

async fn start(hca: Device, lab: &Lab, run: &RunDir) -> Result<Pair> {
    let image = lab.debian_image(run).await?;
    let [a, b] = roce::pair_of(hca, lab, run, &image, EXPLAINED).await?;
    let mut pair = Pair { a, b, device: DEVICE, settings: &[] };
    if hca == Device::Connectx {
        roce::start(&mut pair.a).await?;
        roce::start(&mut pair.b).await?;
        roce::jumbo([&mut pair.a, &mut pair.b]).await?;
    }
    Ok(pair)
}
