//! Tests NIXL, a library that moves data between inference servers. Its bundled UCX runs over two ConnectX cards, each
//! with an Ethernet port. NIXL's example connects two agents in one guest, and the lab's program connects two guests.
//!
//! NIXL's UCX is newer than Debian's and uses its own copies of libibverbs and libmlx5.

use std::time::Duration;

use agent::wire::ExitStatus;
use anyhow::{Context as _, Result, ensure};

use super::super::nic::roce::{self, Gid};
use super::super::nic::station::Station;
use crate::lab::Lab;
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::testbed::kind::Device;
use crate::tools::{Exchange, Ready};

/// TCP port for NIXL agent metadata.
const PORT: u16 = 8888;
/// Timeout for a program. The longest takes a minute in emulated guests on an idle host.
const LIMIT: Duration = Duration::from_secs(900);

/// Directory where the guests mount the disk with NIXL.
const FOLDER: &str = "/mnt";
const PROGRAM: &str = include_str!("../../../guest/nixl_transfer.py");

/// Minimum number of bytes transferred in each direction. Two of the transfers in each direction are 64 MiB long.
const BYTES: u64 = 128 << 20;
/// Number of transfers, five in each direction.
const TRANSFERS: usize = 10;

/// Number of bytes that NIXL's example writes from one agent to the other.
const EXAMPLE_BYTES: u64 = 8;

/// Setting that keeps UCX from loading its module for EFA. The module needs libefa, which is not in the wheel. Debian's
/// libefa would load a second copy of libnl, and the two copies would make the program crash on exit.
const WITHOUT_EFA: &str = "UCX_MODULES=^efa";

struct Transport {
    name: &'static str,
    /// UCX settings. UCX sets up reliable connections over a datagram transport, which must be listed with `:aux`.
    settings: &'static str,
}

const TRANSPORTS: &[Transport] = &[
    Transport { name: "rc_mlx5", settings: "UCX_TLS=rc_mlx5,ud_mlx5:aux" },
    Transport { name: "rc_mlx5 without DevX", settings: "UCX_TLS=rc_mlx5,ud_mlx5:aux UCX_IB_MLX5_DEVX=n" },
    Transport { name: "rc_verbs", settings: "UCX_TLS=rc_verbs,ud_verbs:aux" },
];

struct Pair {
    a: Station,
    b: Station,
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("connectx-nixl")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut pair = Pair::start(lab, &run).await.context(hint.clone())?;
    for transport in TRANSPORTS {
        let name = format!("nixl_example over {} in one guest", transport.name);
        report.case(&name, &hint, pair.example(transport)).await?;
    }
    for transport in TRANSPORTS {
        let name = format!("NIXL WRITE and READ from 1 byte to 64 MiB over {}", transport.name);
        report.case(&name, &hint, pair.transfer(transport)).await?;
    }
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

impl Pair {
    async fn start(lab: &Lab, run: &RunDir) -> Result<Self> {
        let disks = [lab.nixl().await?];
        let image = lab.debian_image(run).await?;
        let [mut a, mut b] = roce::pair_with(Device::Connectx, lab, run, &image, &[], &disks).await?;
        for station in [&mut a, &mut b] {
            roce::start(station).await?;
            let line = format!(
                "mkdir -p {FOLDER} && mount -o ro /dev/vdc {FOLDER} && cat > /tmp/transfer.py <<'END'\n{PROGRAM}END\n"
            );
            station.sh(&line).await?;
        }
        roce::jumbo([&mut a, &mut b]).await?;
        Ok(Self { a, b })
    }

    /// Runs NIXL's example, whose two agents connect through the card's loopback.
    async fn example(&mut self, transport: &Transport) -> Result<()> {
        let before = self.a.rdma_received().await?;
        let environment = environment(&mut self.a, transport).await?;
        // The wheel's programs are not marked executable, so run them through the dynamic loader. Add
        // `.nixl_cu12.mesonpy.libs` to the search path, since the programs do not find its libraries on their own.
        let line = format!(
            "{environment} LD_LIBRARY_PATH={FOLDER}/.nixl_cu12.mesonpy.libs /lib64/ld-linux-x86-64.so.2 \
             {FOLDER}/nixl_cu12.scripts/nixl_example UCX"
        );
        let end = self.a.vm.program(LIMIT, &line).await?;
        let printed = format!("{}{}", end.stdout, end.stderr);
        ensure!(end.status == ExitStatus::Code(0), "{line} failed with {:?}: {printed}", end.status);
        for text in ["Transfer verified", "Test done"] {
            ensure!(end.stdout.contains(text), "{text:?} is missing in the output: {printed}");
        }
        self.a.has_received(before, EXAMPLE_BYTES).await
    }

    /// Runs the lab's program with its target in guest `b` and compares both ends' digests.
    async fn transfer(&mut self, transport: &Transport) -> Result<()> {
        let before = [self.a.rdma_received().await?, self.b.rdma_received().await?];
        let [of_a, of_b] =
            [environment(&mut self.a, transport).await?, environment(&mut self.b, transport).await?]
                .map(|environment| format!("{environment} PYTHONPATH={FOLDER} python3 /tmp/transfer.py"));
        let exchange = Exchange {
            server: format!("{of_b} target {PORT}"),
            client: format!("{of_a} initiator {PORT} {}", self.b.address(0).ipv4),
            ready: Ready::Tcp(PORT),
            limit: LIMIT,
        };
        let ends = exchange.run(&mut self.b.vm, &mut self.a.vm).await?;
        let [initiator, target] = [&ends.client.stdout, &ends.server.stdout].map(|text| digests(text));
        ensure!(
            initiator.len() == TRANSFERS,
            "the initiator printed {} transfers: {initiator:#?}",
            initiator.len()
        );
        ensure!(initiator == target, "the digests differ: {initiator:#?} and {target:#?}");
        for (station, before) in [&self.a, &self.b].into_iter().zip(before) {
            station.has_received(before, BYTES).await?;
        }
        Ok(())
    }

    async fn no_warnings(&mut self) -> Result<()> {
        self.a.no_warnings().await?;
        self.b.no_warnings().await
    }

    async fn stop(self) -> Result<()> {
        self.a.stop().await?;
        self.b.stop().await
    }
}

/// Returns the part of a command line that sets a NIXL program's environment.
async fn environment(station: &mut Station, transport: &Transport) -> Result<String> {
    let device = station.rdma_device()?;
    let gid = roce::gid_index(station, Gid::V4).await?;
    Ok(format!("env {WITHOUT_EFA} {} UCX_NET_DEVICES={device}:1 UCX_IB_GID_INDEX={gid}", transport.settings))
}

/// Returns the lines that the program prints about transfers. NIXL logs to the same stream.
fn digests(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("WRITE ") || line.starts_with("READ ")).collect()
}
