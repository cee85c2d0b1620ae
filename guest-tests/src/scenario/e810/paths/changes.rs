//! Changes to the network while connections are active.

use std::time::Duration;

use agent::wire::ProgramEnd;
use anyhow::{Context, Result, ensure};
use tokio::time::{sleep, timeout};

use super::traffic::Traffic;
use super::{SECOND, gids};
use crate::scenario::nic::roce::{self, DEVICE};
use crate::scenario::nic::station::{Station, bring_up, carrier};
use crate::tools::{stop, wait};

/// How long the kernel may take to apply a change.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may take to fail when its peer does not respond. The connection's timeouts add up to 4.3 s,
/// but the host may be busy.
const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);
const JUMBO: u32 = 9000;
const USUAL: u32 = 1500;

/// Changes that a connection survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The interface's address is removed and then restored.
    Address,
    Mtu,
    /// The operator takes the port down and brings it back up.
    Cable,
    /// The guest's interface is taken down and brought back up.
    Interface,
}

impl Change {
    pub(super) const ALL: &[(&str, Self)] = &[
        ("a connection survives the removal of its address", Self::Address),
        ("a connection survives MTU changes", Self::Mtu),
        ("a connection survives hcactl taking the link down and up", Self::Cable),
        ("a connection survives ip taking the interface down and up", Self::Interface),
    ];

    pub(super) async fn happen(self, a: &mut Station, b: &mut Station) -> Result<()> {
        match self {
            Self::Address => address(a, b).await,
            Self::Mtu => mtu(a, b).await,
            Self::Cable => cable(a, b).await,
            Self::Interface => interface(a, b).await,
        }
    }
}

async fn address(a: &mut Station, b: &mut Station) -> Result<()> {
    let (device, own) = (a.device.clone(), a.address(SECOND));
    let traffic = Traffic::start(a, b, &b.address(SECOND).ipv4).await?;
    a.sh(&format!("ip address del {}/24 dev {device}", own.ipv4)).await?;
    traffic.moves_on(a, b).await.context("after its address was removed")?;
    traffic.end(a, b).await?;
    let gid = gids::text(own.ipv4.parse()?);
    gid_is_there(a, &gid, false).await?;
    a.sh(&format!("ip address add {}/24 dev {device}", own.ipv4)).await?;
    gid_is_there(a, &gid, true).await?;
    Traffic::start(a, b, &b.address(SECOND).ipv4).await.context("afterwards")?.end(a, b).await
}

async fn gid_is_there(station: &mut Station, gid: &str, wanted: bool) -> Result<()> {
    let settled = async {
        while gids::all(station).await?.contains(gid) != wanted {
            sleep(POLL).await;
        }
        anyhow::Ok(())
    };
    timeout(FOLLOW_TIMEOUT, settled).await.with_context(|| {
        format!("the presence of GID {gid} did not become {wanted} within {FOLLOW_TIMEOUT:?}")
    })?
}

async fn mtu(a: &mut Station, b: &mut Station) -> Result<()> {
    let traffic = Traffic::start(a, b, &b.address(0).ipv4).await?;
    for (mtu, active) in [(JUMBO, "4096"), (USUAL, "1024")] {
        for station in [&mut *a, &mut *b] {
            let device = station.device.clone();
            station.sh(&format!("ip link set {device} mtu {mtu}")).await?;
            let text = station.sh(&format!("ibv_devinfo -d {DEVICE} | grep active_mtu")).await?;
            ensure!(text.contains(active), "at {mtu}: {text}");
        }
        traffic.moves_on(a, b).await.with_context(|| format!("at {mtu}"))?;
        Traffic::start(a, b, &b.address(0).ipv6).await.context("over another connection")?.end(a, b).await?;
    }
    traffic.end(a, b).await
}

async fn cable(a: &mut Station, b: &mut Station) -> Result<()> {
    let traffic = Traffic::start(a, b, &b.address(0).ipv4).await?;
    let daemon = a.daemon.as_ref().context("the guest has no daemon")?;
    let lost = async || {
        anyhow::Ok(
            daemon.counter("/port/lost_link_down").await? + daemon.counter("/port/dropped/link_down").await?,
        )
    };
    let before = lost().await?;
    daemon.control(&["port", "down"]).await?;
    let felt = async {
        while lost().await? == before {
            sleep(POLL).await;
        }
        anyhow::Ok(())
    };
    timeout(FOLLOW_TIMEOUT, felt).await.context("no frame was lost")??;
    daemon.control(&["port", "up"]).await?;
    traffic.moves_on(a, b).await.context("afterwards")?;
    roce::port_is_active(a).await?;
    traffic.end(a, b).await
}

async fn interface(a: &mut Station, b: &mut Station) -> Result<()> {
    let traffic = Traffic::start(a, b, &b.address(0).ipv4).await?;
    let device = a.device.clone();
    a.sh(&format!("ip link set {device} down && ip link set {device} up")).await?;
    traffic.moves_on(a, b).await.context("afterwards")?;
    carrier(&mut a.vm, &device, true).await?;
    roce::port_is_active(a).await?;
    // The interface lost its IPv6 addresses when it was taken down.
    for network in [0, SECOND] {
        let own = a.address(network).ipv6;
        a.sh(&format!("ip address add {own}/64 dev {device} nodad")).await?;
    }
    traffic.end(a, b).await
}

/// Takes the port down and checks that an outstanding request fails after seven retries. The timeout doubles with each
/// retry.
pub(super) async fn given_up(a: &mut Station, b: &mut Station) -> Result<()> {
    const RETRIES_EXCEEDED: &str = "cq completion failed status 12";
    let traffic = Traffic::start(a, b, &b.address(0).ipv4).await?;
    let daemon = a.daemon.as_ref().context("the guest has no daemon")?.controls();
    daemon.ask(&["port", "down"]).await?;
    // Only the end with an outstanding request fails. The other end keeps waiting for its peer.
    let end = first_to_end(a, b, traffic).await;
    daemon.ask(&["port", "up"]).await?;
    let end = end?;
    ensure!(end.stderr.contains(RETRIES_EXCEEDED), "{end:?}");
    roce::port_is_active(a).await?;
    for station in [&mut *a, &mut *b] {
        station.no_warnings_but(&["abnormal ae_id = 0x50a "]).await?;
    }
    Traffic::start(a, b, &b.address(0).ipv4).await.context("afterwards")?.end(a, b).await
}

/// Waits until one of the two programs exits, then kills the other. Returns how the first program ended.
async fn first_to_end(a: &mut Station, b: &mut Station, traffic: Traffic) -> Result<ProgramEnd> {
    let [client, server] = traffic.programs();
    let is_client = async {
        loop {
            for (station, is_client) in [(&mut *a, true), (&mut *b, false)] {
                // List only live processes, because an exited one stays in the process table until it is reaped.
                if station.sh("pgrep -r D,R,S -x rping || true").await?.is_empty() {
                    return anyhow::Ok(is_client);
                }
            }
            sleep(POLL).await;
        }
    };
    let is_client = timeout(GIVE_UP_TIMEOUT, is_client).await;
    let is_client =
        is_client.with_context(|| format!("the program did not exit within {GIVE_UP_TIMEOUT:?}"))??;
    let ends = (stop(&mut a.vm, client).await?, stop(&mut b.vm, server).await?);
    Ok(if is_client { ends.0 } else { ends.1 })
}

/// Unloads both drivers of guest `a`. The running program must lose its device, its peer must be notified, and new
/// connections must work once the drivers are loaded again.
pub(super) async fn driver_removed(a: &mut Station, b: &mut Station) -> Result<()> {
    let traffic = Traffic::start(a, b, &b.address(0).ipv4).await?;
    let [client, server] = traffic.programs();
    a.sh("modprobe -r irdma; ! lsmod | grep -q '^ice ' || modprobe -r ice").await?;
    let ends =
        [wait(&mut a.vm, client, FOLLOW_TIMEOUT).await?, wait(&mut b.vm, server, FOLLOW_TIMEOUT).await?];
    ensure!(ends[0].stderr.contains("cma detected device removal"), "{ends:?}");
    ensure!(ends[1].stderr.contains("DISCONNECT EVENT"), "{ends:?}");
    a.restart().await?;
    roce::start(a).await?;
    let device = a.device.clone();
    let second = a.address(SECOND);
    bring_up(&mut a.vm, &device, &second).await?;
    Traffic::start(a, b, &b.address(0).ipv4).await.context("afterwards")?.end(a, b).await
}
