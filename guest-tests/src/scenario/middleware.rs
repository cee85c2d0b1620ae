//! Middleware over RDMA: Debian's UCX, libfabric and Open MPI between two guests. The MPI program and `fi_pingpong`
//! check all data; `ucx_perftest` does not.

use std::time::Duration;

use agent::wire::{ExitStatus, ProgramId};
use anyhow::{Result, ensure};

use super::nic::roce::{Gid, gid_index_of};
use super::nic::station::Station;
use crate::services::remote_shell;
use crate::tools::{Exchange, Ready, spawn, stop};

const LIMIT: Duration = Duration::from_secs(60);
/// Ports that `ucx_perftest` and `fi_pingpong` listen on.
const UCX_PORT: u16 = 13337;
const PINGPONG_PORT: u16 = 47592;

/// Number of messages per size and direction.
const PINGPONGS: usize = 2;

/// Number of MPI ranks in each guest.
const RANKS: usize = 2;
/// Total number of MPI ranks.
pub(super) const ALL_RANKS: usize = 2 * RANKS;

const EXCHANGE: &str = include_str!("../../guest/mpi_exchange.py");

/// Arguments that select libfabric as Open MPI's only transport to the other guest.
///
/// With libfabric, Open MPI also loads UCX. UCX must not monitor the program's memory. If it did, it would replace
/// libc's `sbrk` with its own (`ucm_orig_sbrk` in UCX's `replace.c`). Open MPI would then not detect that the heap
/// shrinks and would not notify libfabric, which would keep using stale registrations and lose the data received into
/// the affected pages. The problem occurs with every card whose registrations libfabric caches.
pub(super) const MPI_OVER_LIBFABRIC: &str =
    "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs -x UCX_MEM_EVENTS=n";

/// Returns arguments that select UCX as Open MPI's only transport to the other guest.
pub(super) fn mpi_over_ucx(transports: &str) -> String {
    format!(
        "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any -x UCX_TLS={transports},sm,self"
    )
}

pub(super) struct Pair {
    pub(super) a: Station,
    pub(super) b: Station,
    /// Name of the RDMA device in both guests.
    pub(super) device: &'static str,
    /// UCX settings needed by the card, as `NAME=VALUE`.
    pub(super) settings: &'static [&'static str],
}

impl Pair {
    /// Runs `ucx_perftest` over one of UCX's transports. `gid` selects the type of GID on a RoCE device.
    pub(super) async fn ucx(&mut self, transport: &str, gid: Option<Gid>, test: &str) -> Result<()> {
        let device = self.device;
        let mut settings = [String::new(), String::new()];
        if let Some(gid) = gid {
            for (settings, station) in settings.iter_mut().zip([&mut self.a, &mut self.b]) {
                *settings = format!("UCX_IB_GID_INDEX={}", gid_index_of(&mut station.vm, device, gid).await?);
            }
        }
        let [of_a, of_b] = settings.map(|own| {
            format!(
                "env UCX_TLS={transport} UCX_NET_DEVICES={device}:1 {own} {} ucx_perftest -P 0",
                self.settings.join(" ")
            )
        });
        // The client sends the server the test parameters, but not the transport. Without `-P 0`, client and server
        // would run as MPI ranks, since their input is not a terminal.
        let transport = test.split_once(" -t ").map_or("", |(transport, _)| transport);
        let server = format!("{of_b} {transport}");
        let client = format!("{of_a} {} {test} -f", self.b.address(0).ipv4);
        let exchange = Exchange { server, client, ready: Ready::Tcp(UCX_PORT), limit: LIMIT };
        let ends = exchange.run(&mut self.b.vm, &mut self.a.vm).await?;
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

    /// Runs a UCT test, which uses a transport directly, without UCX's protocol layer (UCP).
    pub(super) async fn ucx_transport(
        &mut self,
        transport: &str,
        gid: Option<Gid>,
        test: &str,
    ) -> Result<()> {
        let test = format!("-d {}:1 -x {transport} {test}", self.device);
        self.ucx(transport, gid, &test).await
    }

    /// Checks which of UCX's transports are available on guest `a`'s RDMA device.
    pub(super) async fn ucx_offers(&mut self, expected: &[&str]) -> Result<()> {
        let text = self.a.sh("ucx_info -d").await?;
        let device = format!("{}:1", self.device);
        let (mut transport, mut of_device) = ("", Vec::new());
        for line in text.lines() {
            match line.trim_start_matches(['#', ' ']).split_once(':') {
                Some(("Transport", name)) => transport = name.trim(),
                Some(("Device", name)) if name.trim() == device => of_device.push(transport),
                _ => {}
            }
        }
        of_device.sort_unstable();
        ensure!(of_device == expected, "{of_device:?} of {text}");
        Ok(())
    }

    pub(super) async fn fi_pingpong(&mut self, provider: &str, endpoint: &str, largest: &str) -> Result<()> {
        let server = format!("fi_pingpong -p {provider} -e {endpoint} -c -I {PINGPONGS} -S all");
        let client = format!("{server} {}", self.b.address(0).ipv4);
        let exchange = Exchange { server, client, ready: Ready::Tcp(PINGPONG_PORT), limit: LIMIT };
        let ends = exchange.run(&mut self.b.vm, &mut self.a.vm).await?;
        for end in [&ends.client, &ends.server] {
            let came_to = end.stdout.lines().any(|line| line.split_whitespace().next() == Some(largest));
            ensure!(came_to, "no result for {largest} bytes: {}{}", end.stdout, end.stderr);
        }
        Ok(())
    }

    /// Installs programs and host names in both guests.
    pub(super) async fn prepare_mpi(&mut self) -> Result<()> {
        let names = format!("{} a\n{} b\n", self.a.address(0).ipv4, self.b.address(0).ipv4);
        for (name, station) in [("a", &mut self.a), ("b", &mut self.b)] {
            let line = format!(
                "set -e\necho {name} > /proc/sys/kernel/hostname\ncat >> /etc/hosts <<'END'\n{names}END\n\
                 cat > /tmp/exchange.py <<'END'\n{EXCHANGE}END\n{}",
                remote_shell::install_client()
            );
            station.sh(&line).await?;
        }
        Ok(())
    }

    /// Starts the remote shell server that Open MPI uses to start its daemons in guest `b`.
    pub(super) async fn spawn_shell(&mut self) -> Result<ProgramId> {
        let station = &mut self.b;
        let address = station.address(0).ipv4;
        station.sh(&remote_shell::install_server()).await?;
        let line = remote_shell::serve(&address);
        let program = spawn(&mut station.vm, &line).await?;
        Ready::Tcp(remote_shell::PORT).wait(&mut station.vm, program, &line).await?;
        Ok(program)
    }

    /// Stops the program started by [`Self::spawn_shell`].
    pub(super) async fn stop_shell(&mut self, shell: ProgramId) -> Result<()> {
        stop(&mut self.b.vm, shell).await.map(drop)
    }

    /// Runs the MPI program with half of its ranks in each guest.
    pub(super) async fn exchange(&mut self, arguments: &str) -> Result<()> {
        let settings: String = self.settings.iter().map(|setting| format!(" -x {setting}")).collect();
        let line = format!(
            "env HOME=/tmp mpirun.openmpi --allow-run-as-root --map-by slot:OVERSUBSCRIBE --bind-to none -np \
             {ALL_RANKS} --host a:{RANKS},b:{RANKS} --prtemca plm_ssh_agent {} {arguments} \
             -x UCX_NET_DEVICES={}:1{settings} python3 /tmp/exchange.py",
            remote_shell::CLIENT,
            self.device
        );
        let end = self.a.vm.program(LIMIT, &line).await?;
        let printed = format!("{}{}", end.stdout, end.stderr);
        ensure!(end.status == ExitStatus::Code(0), "{line} failed with {:?}: {printed}", end.status);
        for rank in 0..ALL_RANKS {
            let guest = if rank < RANKS { "a" } else { "b" };
            let said = format!("rank {rank} of {ALL_RANKS} on {guest} received everything as sent");
            ensure!(end.stdout.contains(&said), "{said:?} is missing from the output: {printed}");
        }
        Ok(())
    }

    pub(super) async fn no_warnings(&mut self) -> Result<()> {
        self.a.no_warnings().await?;
        self.b.no_warnings().await
    }

    pub(super) async fn stop(self) -> Result<()> {
        self.a.stop().await?;
        self.b.stop().await
    }
}
