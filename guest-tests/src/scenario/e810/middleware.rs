//! Middleware over RDMA: Debian's UCX, libfabric and Open MPI between two E810s with `irdma`. The MPI program and
//! `fi_pingpong` check all data; `ucx_perftest` does not.

use std::time::Duration;

use agent::wire::ExitStatus;
use anyhow::{Context, Result, ensure};

use super::roce::{self, DEVICE, Gid, gid_index};
use super::station::Station;
use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::extent::Extent;
use crate::tools::{Exchange, Ready, spawn, stop};

const LIMIT: Duration = Duration::from_secs(60);
/// Ports on which `ucx_perftest` and `fi_pingpong` listen.
const UCX_PORT: u16 = 13337;
const PINGPONG_PORT: u16 = 47592;
const SHELL_PORT: u16 = 5140;

/// Setting that disables UCX's GID check, which would drop all datagrams over IPv4 on an E810. The check reads the
/// destination GID from the header that precedes a datagram. UCX takes the length of this header from the completion's
/// `sl` field (`uct_ud_iface_check_grh` in UCX's `ud_iface.h`). Only Mellanox's libraries set this field;
/// `irdma_process_cqe` in libirdma's `uverbs.c` does not.
const NO_GID_CHECK: &str = "UCX_UD_VERBS_ETH_DGID_CHECK=n";

/// Arguments for UCX transport tests. `ud_verbs` supports only active messages.
const TRANSPORT: &[&str] = &["-t am_lat -D zcopy -s 2048 -n 500", "-t am_bw -D bcopy -s 2048 -n 2000"];

/// Arguments for more UCX transport tests, with the remaining copy methods.
const MORE_TRANSPORT: &[&str] = &["-t am_lat -D short -s 8 -n 500", "-t am_lat -D bcopy -s 2048 -n 500"];

/// Arguments for UCX protocol tests over the same transport.
const PROTOCOL: &[&str] =
    &["-t tag_lat -s 65536 -n 50", "-t ucp_put_bw -s 65536 -n 50", "-t ucp_get -s 65536 -n 20"];

/// Arguments for more UCX protocol tests, with the remaining protocols and sizes.
const MORE_PROTOCOL: &[&str] = &[
    "-t tag_lat -s 8 -n 500",
    "-t tag_bw -s 65536 -n 200",
    "-t tag_bw -s 4194304 -n 5",
    "-t ucp_am_bw -s 65536 -n 100",
    "-t stream_bw -s 65536 -n 100",
];

/// libfabric's providers and endpoint types. The third value is the size of the largest message, as printed by
/// `fi_pingpong`.
const FABRIC: &[(&str, &str, &str)] =
    &[("verbs", "msg", "6m"), ("verbs;ofi_rxm", "rdm", "6m"), ("verbs", "dgram", "4k")];

/// Settings that select Open MPI's transport to the other guest. Each setting permits only one transport.
///
/// With libfabric, Open MPI also loads UCX. UCX must not monitor the program's memory, because it would replace libc's
/// `sbrk` with its own (`ucm_orig_sbrk` in UCX's `replace.c`). Open MPI would then not notice when the heap shrinks,
/// and would not notify libfabric. libfabric would keep using stale registrations, and data received into the affected
/// pages would be lost. This problem affects every card for which libfabric caches registrations.
const MPI: &[(&str, &str)] = &[
    (
        "UCX",
        "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any -x UCX_TLS=ud_verbs,sm,self",
    ),
    ("libfabric", "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs -x UCX_MEM_EVENTS=n"),
];

/// Number of messages of each size, in each direction.
const PINGPONGS: usize = 2;

/// Number of MPI ranks in each guest.
const RANKS: usize = 2;

const EXCHANGE: &str = include_str!("../../../guest/mpi_exchange.py");
const REMOTE_SHELL: &str = include_str!("../../../guest/remote_shell.py");

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let run = lab.new_run(extent.select("e810-middleware", "e810-middleware-full"))?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    let [mut a, mut b] = roce::pair(lab, &run, &image).await.context(hint.clone())?;
    let start = async {
        roce::start(&mut a).await?;
        roce::start(&mut b).await?;
        roce::jumbo([&mut a, &mut b]).await
    };
    report.case("both ports are active", &hint, start).await?;
    for test in extent.select([TRANSPORT, &[]], [TRANSPORT, MORE_TRANSPORT]).iter().copied().flatten() {
        let name = format!("ucx_perftest -x ud_verbs {test}");
        let test = format!("-d {DEVICE}:1 -x ud_verbs {test}");
        report.case(&name, &hint, ucx(&mut a, &mut b, Gid::V4, &test)).await?;
    }
    for test in extent.select([PROTOCOL, &[]], [PROTOCOL, MORE_PROTOCOL]).iter().copied().flatten() {
        let name = format!("ucx_perftest {test} over ud_verbs");
        report.case(&name, &hint, ucx(&mut a, &mut b, Gid::V4, test)).await?;
    }
    let test = "-t tag_bw -s 65536 -n 50";
    report.case("ucx_perftest over IPv6", &hint, ucx(&mut a, &mut b, Gid::V6, test)).await?;
    report.case("UCX does not offer rc_verbs", &hint, no_rc(&mut a)).await?;
    for &(provider, endpoint, largest) in FABRIC {
        let name = format!("fi_pingpong -p {provider} -e {endpoint} up to {largest}, verified content");
        report.case(&name, &hint, fi_pingpong(&mut a, &mut b, provider, endpoint, largest)).await?;
    }
    report.case("remote shells for Open MPI", &hint, prepare(&mut a, &mut b)).await?;
    let shell = spawn_shell(&mut b).await?;
    for &(name, arguments) in MPI {
        let name = format!("Open MPI over {name}: ring and all-to-all with {} ranks", 2 * RANKS);
        report.case(&name, &hint, exchange(&mut a, arguments)).await?;
    }
    stop(&mut b.vm, shell).await?;
    let ends = async {
        a.no_warnings().await?;
        b.no_warnings().await
    };
    report.case("no kernel warnings", &hint, ends).await?;
    let ends = async {
        a.stop().await?;
        b.stop().await
    };
    report.case("the daemons exit cleanly on SIGTERM", &hint, ends).await
}

/// Runs `ucx_perftest` on both sides, using GIDs of the given kind.
async fn ucx(a: &mut Station, b: &mut Station, gid: Gid, test: &str) -> Result<()> {
    let (of_a, of_b) = (gid_index(a, gid).await?, gid_index(b, gid).await?);
    let program = |gid: usize| {
        format!(
            "env UCX_TLS=ud_verbs UCX_NET_DEVICES={DEVICE}:1 UCX_IB_GID_INDEX={gid} {NO_GID_CHECK} ucx_perftest -P 0"
        )
    };
    // The server learns from the client which test to run, but not which transport to use. Without the option `-P 0`,
    // client and server would run as MPI ranks, because their input is not a terminal.
    let transport = test.split_once(" -t ").map_or("", |(transport, _)| transport);
    let server = format!("{} {transport}", program(of_b));
    let client = format!("{} {} {test} -f", program(of_a), b.address(0).ipv4);
    let exchange = Exchange { server, client, ready: Ready::Tcp(UCX_PORT), limit: LIMIT };
    let ends = exchange.run(&mut b.vm, &mut a.vm).await?;
    // A result line consists of eight numbers: the number of messages, times and rates.
    let result = |line: &str| {
        line.split_whitespace().count() == 8
            && line.split_whitespace().all(|word| word.parse::<f64>().is_ok())
    };
    ensure!(
        ends.client.stdout.lines().any(result),
        "no result: {}{}",
        ends.client.stdout,
        ends.client.stderr
    );
    Ok(())
}

/// Checks that UCX does not offer reliable connections. UCX offers them only on devices with shared receive queues:
/// `uct_rc_verbs_query_tl_devices` in UCX's `rc_verbs_iface.c` requires `UCT_IB_DEVICE_FLAG_SRQ`, which is set if
/// `max_srq` is above 0. `irdma` does not support shared receive queues on an E810. The libfabric tests cover RC
/// instead.
async fn no_rc(station: &mut Station) -> Result<()> {
    let text = station.sh("ucx_info -d").await?;
    let device = format!("{DEVICE}:1");
    let (mut transport, mut of_device) = ("", Vec::new());
    for line in text.lines() {
        match line.trim_start_matches(['#', ' ']).split_once(':') {
            Some(("Transport", name)) => transport = name.trim(),
            Some(("Device", name)) if name.trim() == device => of_device.push(transport),
            _ => {}
        }
    }
    ensure!(of_device == ["ud_verbs"], "{of_device:?} of {text}");
    Ok(())
}

async fn fi_pingpong(
    a: &mut Station,
    b: &mut Station,
    provider: &str,
    endpoint: &str,
    largest: &str,
) -> Result<()> {
    let server = format!("fi_pingpong -p {provider} -e {endpoint} -c -I {PINGPONGS} -S all");
    let client = format!("{server} {}", b.address(0).ipv4);
    let exchange = Exchange { server, client, ready: Ready::Tcp(PINGPONG_PORT), limit: LIMIT };
    let ends = exchange.run(&mut b.vm, &mut a.vm).await?;
    for end in [&ends.client, &ends.server] {
        let came_to = end.stdout.lines().any(|line| line.split_whitespace().next() == Some(largest));
        ensure!(came_to, "no result for {largest} bytes: {}{}", end.stdout, end.stderr);
    }
    Ok(())
}

/// Installs programs and host names in both guests.
async fn prepare(a: &mut Station, b: &mut Station) -> Result<()> {
    let agent =
        format!("#!/bin/sh\nhost=$1\nshift\nprintf '%s\\n' \"$*\" | nc.openbsd -N $host {SHELL_PORT}\n");
    let names = format!("{} a\n{} b\n", a.address(0).ipv4, b.address(0).ipv4);
    for (name, station) in [("a", &mut *a), ("b", b)] {
        let line = format!(
            "echo {name} > /proc/sys/kernel/hostname && cat >> /etc/hosts <<'END' && cat > /tmp/exchange.py <<'END2' && \
             cat > /tmp/shell <<'END3' && chmod +x /tmp/shell\n{names}END\n{EXCHANGE}END2\n{agent}END3\n"
        );
        station.sh(&line).await?;
    }
    Ok(())
}

async fn spawn_shell(station: &mut Station) -> Result<agent::wire::ProgramId> {
    let address = station.address(0).ipv4;
    station.sh(&format!("cat > /tmp/remote_shell.py <<'END'\n{REMOTE_SHELL}END\n")).await?;
    let line = format!("python3 /tmp/remote_shell.py {address} {SHELL_PORT}");
    let program = spawn(&mut station.vm, &line).await?;
    Ready::Tcp(SHELL_PORT).wait(&mut station.vm, program, &line).await?;
    Ok(program)
}

/// Runs the MPI program with half of its ranks in each guest.
async fn exchange(a: &mut Station, arguments: &str) -> Result<()> {
    let ranks = 2 * RANKS;
    let line = format!(
        "env HOME=/tmp mpirun.openmpi --allow-run-as-root --map-by slot:OVERSUBSCRIBE --bind-to none -np {ranks} \
         --host a:{RANKS},b:{RANKS} --prtemca plm_ssh_agent /tmp/shell {arguments} \
         -x UCX_NET_DEVICES={DEVICE}:1 -x {NO_GID_CHECK} python3 /tmp/exchange.py"
    );
    let end = a.vm.program(LIMIT, &line).await?;
    let printed = format!("{}{}", end.stdout, end.stderr);
    ensure!(end.status == ExitStatus::Code(0), "{line} failed with {:?}: {printed}", end.status);
    for rank in 0..ranks {
        let guest = if rank < RANKS { "a" } else { "b" };
        let said = format!("rank {rank} of {ranks} on {guest} received everything as sent");
        ensure!(end.stdout.contains(&said), "{said:?} is missing in the output: {printed}");
    }
    Ok(())
}
