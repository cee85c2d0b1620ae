//! Sockets whose kernels carry their bytes by RDMA: RDS, and SMC where the kernel has it.

use std::time::Duration;

use agent::wire::Spawn;
use anyhow::{Result, ensure};

use super::super::station::{Address, Station};
use super::Pair;
use super::kernel::Config;
use super::target::received;
use crate::report::Report;
use crate::tools::{line, stop, wait};

/// The program at both ends.
const PROGRAM: &str = include_str!("../../../../guest/sockets.py");
const BYTES: u64 = 32 << 20;
/// For an interpreter to start in an emulated guest on a busy host.
const START: Duration = Duration::from_secs(60);
/// For all bytes to come over.
const LIMIT: Duration = Duration::from_secs(300);

/// A family of sockets.
#[derive(Clone, Copy, Debug)]
struct Family {
    name: &'static str,
    /// Options of the kernel, the one that is missing most often first.
    options: &'static [&'static str],
    modules: &'static str,
    /// Its peers are routers to each other.
    routed: bool,
    /// What it tells at the level of a warning.
    tells: &'static [&'static str],
}

const FAMILIES: &[Family] = &[
    Family { name: "rds", options: &["CONFIG_RDS_RDMA"], modules: "rds_rdma", routed: false, tells: &[] },
    // Since 6.17 it depends on DIBS. Its version 2, which is the one for RoCEv2, takes the MAC of a client that it need not
    // route to out of the proposal of version 1 (smc_find_rdma_v2_device_serv, af_smc.c), which devices without RoCEv1
    // addresses do not make: the server would connect its queue pair to a MAC of zeros.
    Family { name: "smc", options: &["CONFIG_SMC"], modules: "smc", routed: true, tells: SMC_TELLS },
];

const SMC_TELLS: &[&str] = &[
    "smc: ",
    // For a second link the server makes a queue pair, finds no second device, and destroys it, which the driver does by way
    // of its error state, also from RESET, which the core does not let it.
    "old_state=0x0, new_state=0x6",
];

/// Each that the kernel has.
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

/// The server's checksum of what came must be the client's of what it sent.
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
    let before = received(server).await?;
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
    let by_rdma = received(server).await? - before;
    ensure!(by_rdma >= BYTES, "{by_rdma} of {BYTES} bytes arrived over RDMA");
    client.no_warnings_but(family.tells).await?;
    server.no_warnings_but(family.tells).await
}

/// Makes a station send what is for another to a router, which is an address of the other in a network of its own.
async fn route(from: &mut Station, to: &Station) -> Result<()> {
    const ROUTERS: u16 = 0x100;
    let (own, router) = (Address::on(ROUTERS, from.id).ipv4, Address::on(ROUTERS, to.id).ipv4);
    let (device, to) = (&from.device, to.address(0).ipv4);
    let line = format!("ip address add {own}/24 dev {device} && ip route add {to}/32 via {router}");
    from.sh(&line).await.map(drop)
}
