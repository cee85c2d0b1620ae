//! HCAs on tap interfaces. They communicate with each other and with the host over a bridge and across a VXLAN.
//!
//! All interfaces are in network namespaces that this scenario creates. The host's own network is not changed.
//!
//! ```text
//!   namespace near                                namespace far
//!   br0: tap1 = HCA 1, tap2 = HCA 2, vx0 --(veth, VXLAN)-- br0: vx0, tap3 = HCA 3
//! ```

use anyhow::{Context as _, Result, ensure};

use super::endpoint::jingzhao::{InProcess, Jingzhao};
use super::endpoint::{Endpoint as _, connect};
use super::namespace::Namespace;
use super::rxe_interop::ip;
use crate::daemon::{Daemon, Fabric, HcaSpec};
use crate::lab::Lab;
use crate::report::{Report, Skip};
use crate::run_dir::RunDir;
use crate::scenario::cell::{Cell, Operation};

use agent::wire::Service;

/// MTU of all tap interfaces. It leaves room for a path MTU of 4096 and the packet headers.
const MTU: &str = "4200";
/// MTU of the network under the VXLAN. It also leaves room for the VXLAN headers.
const OUTER_MTU: &str = "4300";

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("fabric-tap")?;
    let hint = format!("see {}", run.path().display());
    let networks = match Networks::create().await {
        Ok(networks) => networks,
        Err(error) => {
            let why = format!("{error:#}");
            return report.case("HCAs on tap interfaces", &hint, async { Err(Skip(why).into()) }).await;
        }
    };
    let mut hosts = Vec::new();
    for (id, namespace) in [(1, &networks.near), (2, &networks.near), (3, &networks.far)] {
        hosts.push(Host::start(lab, &run, namespace, id).await.context(hint.clone())?);
    }
    networks.settle().await.context(hint.clone())?;
    let [one, two, three] = hosts.as_mut_slice() else { anyhow::bail!("three HCAs") };
    report.case("HCAs on one bridge communicate", &hint, talk(one, two, 1)).await?;
    report.case("HCAs on both ends of a VXLAN communicate", &hint, talk(two, three, 2)).await?;
    for (from, name) in [(&networks.near, "the bridge's host"), (&networks.far, "the host beyond the VXLAN")]
    {
        let case = format!("{name} pings each HCA over IPv4 and IPv6");
        report.case(&case, &hint, pinged(from, &hosts)).await?;
    }
    for host in hosts {
        let case = format!("the daemon of HCA {} exits cleanly on SIGTERM", host.id);
        report.case(&case, &hint, host.daemon.stop()).await?;
    }
    Ok(())
}

struct Host {
    id: u16,
    hca: Jingzhao<InProcess>,
    daemon: Daemon,
}

impl Host {
    async fn start(lab: &Lab, run: &RunDir, namespace: &Namespace, id: u16) -> Result<Self> {
        let [example, _] = HcaSpec::pair()?;
        let spec = HcaSpec {
            name: format!("tap{id}"),
            id,
            default_peer: 1 + u16::from(id == 1),
            fabric: Fabric::Tap(format!("tap{id}")),
            ..example
        };
        let command = namespace.command(lab.hcad()?);
        let daemon = Daemon::start_by(command, std::slice::from_ref(&spec), run).await?;
        let hca = Jingzhao::attach(daemon.socket(), ip(id), ip(spec.default_peer)).await?;
        Ok(Self { id, hca, daemon })
    }
}

struct Networks {
    near: Namespace,
    far: Namespace,
}

impl Networks {
    async fn create() -> Result<Self> {
        ensure!(std::path::Path::new("/dev/net/tun").exists(), "/dev/net/tun does not exist");
        let (near, far) = (Namespace::create("near").await?, Namespace::create("far").await?);
        let peer = far.name();
        near.ip(&["link", "add", "wire", "mtu", OUTER_MTU, "type", "veth", "peer", "wire", "netns", peer])
            .await?;
        for (space, own, other, taps) in
            [(&near, "192.0.2.1", "192.0.2.2", &[1, 2][..]), (&far, "192.0.2.2", "192.0.2.1", &[3])]
        {
            space.ip(&["address", "add", &format!("{own}/24"), "dev", "wire"]).await?;
            space.ip(&["link", "set", "wire", "mtu", OUTER_MTU, "up"]).await?;
            space.ip(&["link", "add", "br0", "mtu", MTU, "type", "bridge"]).await?;
            let vxlan = ["type", "vxlan", "id", "7", "dstport", "4789", "local", own, "remote", other];
            space.ip(&[&["link", "add", "vx0", "mtu", MTU][..], &vxlan].concat()).await?;
            space.ip(&["link", "set", "vx0", "master", "br0", "up"]).await?;
            for tap in taps {
                let tap = format!("tap{tap}");
                space.ip(&["tuntap", "add", "dev", &tap, "mode", "tap"]).await?;
                space.ip(&["link", "set", &tap, "mtu", MTU, "master", "br0", "up"]).await?;
            }
            let host = format!("10.77.255.{}/16", own.rsplit('.').next().unwrap_or_default());
            space.ip(&["address", "add", &host, "dev", "br0"]).await?;
            space.ip(&["link", "set", "br0", "up"]).await?;
        }
        Ok(Self { near, far })
    }

    /// Waits until links and addresses are ready, which takes the kernel a second or two.
    async fn settle(&self) -> Result<()> {
        self.near.settle().await?;
        self.far.settle().await
    }
}

/// Runs every operation in both directions with the largest path MTU.
async fn talk(a: &mut Host, b: &mut Host, seed: u64) -> Result<()> {
    connect(&mut a.hca, &mut b.hca, Service::Rc, 4096).await?;
    for (n, (operation, len)) in (0..).step_by(2).zip([
        (Operation::Send, 20_011),
        (Operation::Write, 1 << 20),
        (Operation::Read, 1 << 20),
        (Operation::FetchAdd, 8),
    ]) {
        let cell = |n: u64| Cell { service: Service::Rc, operation, len, seed: seed << 48 | n << 32 };
        cell(n)
            .run(&mut a.hca, &mut b.hca)
            .await
            .with_context(|| format!("{}, forward", operation.name()))?;
        cell(n + 1)
            .run(&mut b.hca, &mut a.hca)
            .await
            .with_context(|| format!("{}, backward", operation.name()))?;
    }
    Ok(())
}

/// Checks that each HCA replies to all pings from a namespace. Before the first ping, the namespace's kernel resolves
/// the HCA's MAC address, so this check also covers address resolution.
async fn pinged(from: &Namespace, hosts: &[Host]) -> Result<()> {
    for host in hosts {
        let before = host.daemon.counter("/port/echo").await?;
        let ipv6 = format!("fe80::ff:fe00:{:x}%br0", host.id);
        for address in [host.hca.ip().to_string(), ipv6] {
            let ping = ["ping", "-n", "-c", "3", "-i", "0.2", "-W", "5", "-s", "4000", &address];
            from.exec(&ping).await.with_context(|| format!("HCA {}", host.id))?;
        }
        let answered = host.daemon.counter("/port/echo").await? - before;
        ensure!(answered == 6, "HCA {} answered {answered} of 6 requests", host.id);
    }
    Ok(())
}
