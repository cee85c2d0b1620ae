//! HCAs on three hosts find their peers through DNS. The DNS records change during traffic.

mod name_server;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use agent::wire::Service;
use anyhow::{Context as _, Result, bail, ensure};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use self::name_server::NameServer;
use super::endpoint::connect;
use super::site::host::{Host, exchange, talk};
use super::site::{self, HOSTS, Site};
use crate::daemon::{Control, Fabric, HcaSpec};
use crate::lab::Lab;
use crate::report::{Report, Skip};
use crate::run_dir::RunDir;

/// UDP port of the HCAs, as in the book.
const HCA_PORT: u16 = 47911;
/// Path MTU whose packets fit into a standard Ethernet frame.
const PATH_MTU: u16 = 1024;
/// Number that determines the third host's new address.
const NEW_NUMBER: u8 = 13;
/// Number of message rounds that two hosts must complete in each phase of a test.
const ROUNDS: u64 = 2;
/// Timeout for a DNS change to take effect and for a traffic phase.
const PHASE: Duration = Duration::from_secs(120);

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("hosts-dns")?;
    let hint = format!("see {}", run.path().display());
    let missing = async |report: &mut Report, why: String| {
        report.case("hosts that find each other", &hint, async { Err(Skip(why).into()) }).await
    };
    let site = match Site::create("dns").await {
        Ok(site) => site,
        Err(error) => return missing(report, format!("{error:#}")).await,
    };
    if let Err(error) = NameServer::find().await {
        return missing(report, format!("dnsmasq does not work on this host: {error:#}")).await;
    }
    let mut server = NameServer::start(&site, &run).await.context(hint.clone())?;
    let mut hosts = Vec::new();
    report
        .case("hosts with the same list of one name find each other", &hint, async {
            hosts = by_name(lab, &run, &site, &server).await?;
            Ok(())
        })
        .await?;
    report
        .case("a host returns under another address during traffic", &hint, async {
            change(lab, &run, &site, &mut server, &mut hosts).await
        })
        .await?;
    report
        .case("peers are kept while the name server is down", &hint, without_server(&mut server, &mut hosts))
        .await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, Host::stop_all(hosts)).await?;
    report.case("SRV and AAAA records lead to IPv6 peers", &hint, by_service(lab, &run, &site, &server)).await
}

/// Returns the settings of an HCA that looks up its peers under `name`.
fn named(mut spec: HcaSpec, bind: IpAddr, name: String, server: &NameServer<'_>) -> HcaSpec {
    spec.name = format!("{}-{}", if bind.is_ipv4() { "ipv4" } else { "ipv6" }, spec.id);
    spec.bind = SocketAddr::new(bind, HCA_PORT);
    spec.fabric = Fabric::Named { name, server: server.addr() };
    spec
}

/// Returns the configuration from the book, where hosts differ only in the HCA's number.
fn by_host_name(spec: HcaSpec, server: &NameServer<'_>) -> HcaSpec {
    named(spec, Ipv4Addr::UNSPECIFIED.into(), format!("{}:{HCA_PORT}", name_server::ALL), server)
}

async fn by_name(lab: &Lab, run: &RunDir, site: &Site, server: &NameServer<'_>) -> Result<Vec<Host>> {
    let numbers = (0..HOSTS).map(site::number).collect::<Vec<_>>();
    server.set_ipv4(&numbers)?;
    let mut hosts =
        Host::start_all(lab, run, site, |spec| *spec = by_host_name(spec.clone(), server)).await?;
    for (host, own) in hosts.iter().zip(&numbers) {
        let others = numbers.iter().filter(|number| *number != own);
        await_peers(&host.daemon.controls(), others.map(|number| site::ipv4(*number).into())).await?;
    }
    talk(&mut hosts, PATH_MTU).await?;
    Ok(hosts)
}

/// Kills the third host's daemon and restarts it with another address, while the first two hosts keep exchanging
/// messages on one connection.
async fn change(
    lab: &Lab,
    run: &RunDir,
    site: &Site,
    server: &mut NameServer<'_>,
    hosts: &mut Vec<Host>,
) -> Result<()> {
    let mut last = hosts.pop().context("the first case failed")?;
    let [a, b] = hosts.as_mut_slice() else { bail!("three hosts") };
    let controls = [a.daemon.controls(), b.daemon.controls()];
    let numbers = [0, 1].map(site::number);
    let mut spec = HcaSpec::mesh_of(HOSTS)?.pop().context("three hosts")?;
    let before = frames_from(&controls[0], site::ipv4(numbers[1])).await?;
    // Waits until the peers of each of the first two hosts are exactly the other one and, if given, the third host.
    let await_third = async |third: Option<u8>| {
        for (control, other) in controls.iter().zip(numbers.iter().rev()) {
            let peers = third.iter().chain([other]).map(|number| site::ipv4(*number).into());
            await_peers(control, peers).await?;
        }
        anyhow::Ok(())
    };
    let changes = async |progress: &mut Progress| {
        progress.wait().await.context("before the change")?;
        last.daemon.process().kill().await?;
        drop(last);
        server.set_ipv4(&numbers)?;
        await_third(None).await.context("after the third host was killed")?;
        progress.wait().await.context("while the third host was gone")?;
        site.renumber(HOSTS - 1, NEW_NUMBER).await?;
        spec = by_host_name(spec, server);
        spec.name += "-returned";
        let returned = Host::start(lab, run, site, HOSTS - 1, &spec).await?;
        server.set_ipv4(&[numbers[0], numbers[1], NEW_NUMBER])?;
        await_third(Some(NEW_NUMBER)).await.context("after the third host returned")?;
        await_peers(&returned.daemon.controls(), numbers.map(|number| site::ipv4(number).into())).await?;
        progress.wait().await.context("after the third host returned")?;
        Ok(returned)
    };
    let returned = during_traffic(a, b, changes).await?;
    let after = frames_from(&controls[0], site::ipv4(numbers[1])).await?;
    ensure!(
        after > before,
        "the peer that stayed was replaced: its frame counter went from {before} to {after}"
    );
    hosts.push(returned);
    talk(hosts, PATH_MTU).await
}

/// Stops the name server during traffic and restarts it with different records. Peers must be kept while it is down.
async fn without_server(server: &mut NameServer<'_>, hosts: &mut [Host]) -> Result<()> {
    let [a, b, _] = hosts else { bail!("an earlier case failed") };
    let control = a.daemon.controls();
    let all = [site::number(1), NEW_NUMBER].map(|number| IpAddr::from(site::ipv4(number)));
    server.stop().await?;
    a.daemon.process().line("cannot look up a peer in DNS", PHASE).await?;
    let changes = async |progress: &mut Progress| {
        progress.wait().await?;
        await_peers(&control, all).await?;
        server.set_ipv4(&[0, 1].map(site::number))?;
        server.restart().await?;
        await_peers(&control, all.into_iter().take(1))
            .await
            .context("after the name server was restarted")?;
        progress.wait().await
    };
    during_traffic(a, b, changes).await?;
    a.daemon.process().line("DNS lookup of a peer works again", PHASE).await.map(drop)
}

/// Checks that HCAs find their peers through SRV records whose targets have IPv6 addresses.
async fn by_service(lab: &Lab, run: &RunDir, site: &Site, server: &NameServer<'_>) -> Result<()> {
    site.add_ipv6().await?;
    server.set_ipv6(&[0, 1, 2].map(site::number))?;
    let service = |spec: &HcaSpec| {
        named(spec.clone(), Ipv6Addr::UNSPECIFIED.into(), name_server::SERVICE.to_owned(), server)
    };
    let mut hosts = Host::start_all(lab, run, site, |spec| *spec = service(spec)).await?;
    for (index, host) in hosts.iter().enumerate() {
        let others = (0..HOSTS).filter(|other| *other != index);
        let peers = others.map(|other| site::ipv6(site::number(other)).into());
        await_peers(&host.daemon.controls(), peers).await?;
    }
    talk(&mut hosts, PATH_MTU).await?;
    Host::stop_all(hosts).await
}

/// Number of message rounds that two hosts have completed.
struct Progress(watch::Receiver<u64>);

impl Progress {
    /// Waits for [`ROUNDS`] more rounds.
    async fn wait(&mut self) -> Result<()> {
        let goal = *self.0.borrow() + ROUNDS;
        timeout(PHASE, self.0.wait_for(|done| *done >= goal))
            .await
            .with_context(|| format!("the other hosts did not complete {ROUNDS} rounds within {PHASE:?}"))?
            .context("the traffic has stopped")
            .map(drop)
    }
}

/// Connects two hosts and exchanges messages between them until `changes` completes.
async fn during_traffic<T>(
    a: &mut Host,
    b: &mut Host,
    changes: impl AsyncFnOnce(&mut Progress) -> Result<T>,
) -> Result<T> {
    connect(&mut a.hca, &mut b.hca, Service::Rc, PATH_MTU).await?;
    let (stop, stopped) = watch::channel(false);
    let (count, progress) = watch::channel(0);
    let traffic = async {
        let mut seed = 0x5d_0000 << 32;
        while !*stopped.borrow() {
            exchange(a, b, &mut seed).await.context("the traffic of the other hosts was disturbed")?;
            count.send_modify(|done| *done += 1);
        }
        Ok(())
    };
    let changed = async {
        let result = changes(&mut Progress(progress)).await;
        stop.send_replace(true);
        result
    };
    let (changed, ()) = tokio::try_join!(changed, traffic)?;
    Ok(changed)
}

/// Waits until the device has exactly the peers `wanted`.
async fn await_peers(control: &Control, wanted: impl IntoIterator<Item = IpAddr>) -> Result<()> {
    let wanted: BTreeSet<String> =
        wanted.into_iter().map(|ip| SocketAddr::new(ip, HCA_PORT).to_string()).collect();
    let deadline = Instant::now() + PHASE;
    loop {
        let rows = control.ask(&["peer", "list"]).await?;
        let rows = rows.as_array().context("'hcactl peer list' did not print a JSON array")?;
        let peers: BTreeSet<String> =
            rows.iter().filter_map(|row| row["addr"].as_str()).map(str::to_owned).collect();
        if peers == wanted {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the peers are {peers:?} after {PHASE:?}, expected {wanted:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Returns the number of frames that the device has received from a peer.
async fn frames_from(control: &Control, peer: Ipv4Addr) -> Result<u64> {
    let addr = SocketAddr::new(peer.into(), HCA_PORT).to_string();
    let rows = control.ask(&["peer", "list"]).await?;
    let row = rows.as_array().and_then(|rows| rows.iter().find(|row| row["addr"] == addr));
    row.and_then(|row| row["rx_frames"].as_u64()).with_context(|| format!("{addr} is not a peer: {rows}"))
}
