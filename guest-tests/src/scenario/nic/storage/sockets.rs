//! Sockets over RDMA: RDS and SMC, where the kernel supports them.

use std::time::Duration;

use agent::wire::Spawn;
use anyhow::{Result, ensure};

use super::super::station::{Address, Station};
use super::Pair;
use super::kernel::Config;
use crate::report::Report;
use crate::tools::{line, stop, wait};

/// The program that runs at both ends.
const PROGRAM: &str = include_str!("../../../../guest/sockets.py");
const BYTES: u64 = 32 << 20;
/// Timeout for starting the interpreter.
const START: Duration = Duration::from_secs(60);
/// Timeout for the transfer.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug)]
struct Family {
    name: &'static str,
    /// Required kernel options, starting with the one most likely to be missing.
    options: &'static [&'static str],
    modules: &'static str,
    /// Whether the peers must be connected through a router.
    routed: bool,
    /// Substrings of informational messages that the kernel logs at warning level.
    tells: &'static [&'static str],
}

const FAMILIES: &[Family] = &[
    Family { name: "rds", options: &["CONFIG_RDS_RDMA"], modules: "rds_rdma", routed: false, tells: &[] },
    // RoCEv2 requires version 2 of SMC-R. Without a router, the server would take the client's MAC address from the
    // version 1 proposal (smc_find_rdma_v2_device_serv, af_smc.c). A client whose device has no RoCEv1 addresses omits
    // that MAC address, so the server would connect its queue pair to the MAC address 00:00:00:00:00:00.
    Family { name: "smc", options: &["CONFIG_SMC"], modules: "smc", routed: true, tells: SMC_TELLS },
];

const SMC_TELLS: &[&str] = &[
    "smc: ",
    // For a second link, the server creates a queue pair, does not find a second device, and destroys the queue pair.
    // Before the RDMA driver destroys a queue pair in RESET, it requests a transition to the error state, although the
    // RDMA core does not permit this transition.
    "old_state=0x0, new_state=0x6",
];

/// Runs a case for each socket family that the kernel supports.
pub(super) async fn cases(report: &mut Report, hint: &str, pair: &mut Pair, config: &Config) -> Result<()> {
    for family in FAMILIES {
        if let Some(option) = config.lacks(family.options) {
            let name = format!("{}: this kernel was built without {option}", family.name);
            report.case(&name, hint, async { Ok(()) }).await?;
            continue;
        }
        let name = format!("{}: {} MiB arrive intact over RDMA", family.name, BYTES >> 20);
        report.case_within(LIMIT * 2, &name, hint, transfer(pair, *family)).await?;
    }
    Ok(())
}

/// Transfers data and checks that it arrives over RDMA and that the server computes the same checksum as the client.
async fn transfer(pair: &mut Pair, family: Family) -> Result<()> {
    let Pair { client, server } = pair;
    for station in [&mut *client, &mut *server] {
        station.sh(&format!("modprobe {}", family.modules)).await?;
    }
    if family.routed {
        route(client, server).await?;
        route(server, client).await?;
    }
    let (from, to) = (client.address(0).ipv4, server.address(0).ipv4);
    let bytes = BYTES.to_string();
    let words = |role: &str| -> Vec<String> {
        let all = ["python3", "-u", "-c", PROGRAM, family.name, role, &from, &to, &bytes];
        all.map(str::to_owned).to_vec()
    };
    let before = server.rdma_received().await?;
    let waiting = server.vm.call(Spawn { argv: words("receive") }).await?.program;
    let sent = async {
        line(&mut server.vm, waiting, "ready", START).await?;
        let words = words("send");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        client.vm.run_within(LIMIT, &words).await
    }
    .await;
    let sent = match sent {
        Ok(sent) => sent,
        Err(error) => {
            let end = stop(&mut server.vm, waiting).await?;
            return Err(error.context(format!("server: {}{}", end.stdout, end.stderr)));
        }
    };
    let end = wait(&mut server.vm, waiting, LIMIT).await?;
    ensure!(end.stdout.contains(sent.trim()), "sent {sent}, received {}{}", end.stdout, end.stderr);
    let by_rdma = server.rdma_received().await? - before;
    ensure!(by_rdma >= BYTES, "{by_rdma} of {BYTES} bytes arrived over RDMA");
    client.no_warnings_but(family.tells).await?;
    server.no_warnings_but(family.tells).await
}

/// Routes packets from one station to another through a router. The second station itself acts as the router, with an
/// address in a separate network.
async fn route(from: &mut Station, to: &Station) -> Result<()> {
    const ROUTERS: u16 = 0x100;
    let (own, router) = (Address::on(ROUTERS, from.id).ipv4, Address::on(ROUTERS, to.id).ipv4);
    let (device, to) = (&from.device, to.address(0).ipv4);
    let line = format!("ip address add {own}/24 dev {device} && ip route add {to}/32 via {router}");
    from.sh(&line).await.map(drop)
}
