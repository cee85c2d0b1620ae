//! Checks that errors are reported as on real hardware: by a completion status, an asynchronous event, or a kernel
//! message.

use std::time::Duration;

use agent::wire::ExitStatus;
use anyhow::{Context, Result, ensure};

use super::super::failing::{EVENT_LIMIT, REGION, Side, SideOptions, event, status};
use super::super::stock_pair::StockPair;
use crate::daemon::Explained;
use crate::lab::Lab;
use crate::report::Report;
use crate::tools::{self, Exchange, Ready};

const LIMIT: Duration = Duration::from_secs(60);
const PERFTEST_PORT: u16 = 18515;

/// Verbs programs in both guests, with connected queue pairs.
pub(in super::super) struct Ends {
    pub(in super::super) a: Side,
    pub(in super::super) b: Side,
}

/// Violations that strict mode may report without failing the scenario.
const EXPLAINED: &[Explained] =
    &[Explained { rule: "wqe_key", why: "the programs post requests with wrong keys, on purpose" }];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let mut pair = StockPair::start_strict(lab, "mthca-errors", EXPLAINED).await?;
    let hint = pair.hint();
    report.case("both ports are active", &hint, pair.load()).await?;
    report.case("the path of a connection is migrated", &hint, migrated(&mut pair)).await?;
    cases(lab, report, &hint, &mut pair, "CQ overrun on CQN").await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

/// Runs the cases on a [`StockPair`] with any HCA. When a CQ overflows, the driver must log exactly one warning, which
/// must contain the value of `overrun`.
pub(in super::super) async fn cases(
    lab: &Lab,
    report: &mut Report,
    hint: &str,
    pair: &mut StockPair,
    overrun: &str,
) -> Result<()> {
    report.case("a WRITE with a wrong key", hint, wrong_key(pair)).await?;
    report.case("a WRITE beyond the region", hint, out_of_bounds(pair)).await?;
    report.case("a SEND with a wrong L_Key", hint, wrong_local_key(pair)).await?;
    report.case("a SEND longer than the receive request", hint, too_long(pair)).await?;
    report.case("no receive request, RNR retries exhausted", hint, receiver_not_ready(pair)).await?;
    report.case("the peer's QP does not exist", hint, peer_gone(pair)).await?;
    report.case("CQ overflow", hint, overflow(pair, overrun)).await?;
    report.case("the port goes down and comes up", hint, port_down(pair)).await?;
    report.case("no kernel warnings", hint, pair.no_warnings()).await?;
    report.case("kill -9 of the server during traffic", hint, server_killed(pair)).await?;
    report.case("kill -9 of the client during traffic", hint, client_killed(pair)).await?;
    report.case("both devices still work", hint, still_works(pair)).await?;
    report.case("no kernel warnings after kills", hint, pair.no_warnings()).await?;
    report.case("the peer's guest is killed", hint, guest_dies(lab, pair)).await
}

impl Ends {
    pub(in super::super) async fn open(pair: &mut StockPair) -> Result<Self> {
        Self::open_with(pair, None).await
    }

    /// Opens both ends and connects them. The completion queue in guest `a` has the given capacity.
    async fn open_with(pair: &mut StockPair, completions: Option<u32>) -> Result<Self> {
        let [wanted_a, wanted_b] =
            [&pair.a, &pair.b].map(|node| SideOptions::new(node.rdma_device(), node.peer_address()));
        let wanted_a = SideOptions { completions, ..wanted_a };
        let [a, b] = Side::pair((&mut pair.a.vm, wanted_a), (&mut pair.b.vm, wanted_b)).await?;
        Ok(Self { a, b })
    }

    pub(in super::super) async fn close(self, pair: &mut StockPair) -> Result<()> {
        self.a.verbs.close(&mut pair.a.vm).await?;
        self.b.verbs.close(&mut pair.b.vm).await
    }
}

/// Checks that QPs report the path migration state MIGRATED, since the device does not support automatic path
/// migration.
async fn migrated(pair: &mut StockPair) -> Result<()> {
    const MIGRATED: u32 = 0;
    let ends = Ends::open(pair).await?;
    for (side, vm) in [(ends.a, &mut pair.a.vm), (ends.b, &mut pair.b.vm)] {
        let state = side.verbs.migration(vm, side.qp).await?;
        ensure!(state == MIGRATED, "path_mig_state {state} in guest {}", vm.name());
    }
    ends.close(pair).await
}

/// Checks that a request with a wrong key fails and that the requests after it are flushed.
async fn wrong_key(pair: &mut StockPair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    let (vm, region) = (&mut pair.a.vm, ends.b.region);
    let good = ends.a.write(region.addr, region.rkey, 4096);
    let bad = ends.a.write(region.addr, region.rkey ^ 0x100, 4096);
    ends.a.post(vm, &[good.clone(), bad, good]).await?;
    ends.a.expect(vm, &[status::SUCCESS, status::REM_ACCESS_ERR, status::WR_FLUSH_ERR]).await?;
    ends.b.expect_event(&mut pair.b.vm, event::QP_ACCESS_ERR).await?;
    ends.close(pair).await
}

async fn out_of_bounds(pair: &mut StockPair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    let (vm, region) = (&mut pair.a.vm, ends.b.region);
    let beyond = ends.a.write(region.addr + u64::from(REGION) - 4095, region.rkey, 4096);
    ends.a.post(vm, &[beyond]).await?;
    ends.a.expect(vm, &[status::REM_ACCESS_ERR]).await?;
    ends.b.expect_event(&mut pair.b.vm, event::QP_ACCESS_ERR).await?;
    ends.close(pair).await
}

async fn wrong_local_key(pair: &mut StockPair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    ends.b.receive(&mut pair.b.vm, 4096).await?;
    let vm = &mut pair.a.vm;
    let mut bad = ends.a.send(4096);
    bad.sges[0].2 ^= 0x100;
    ends.a.post(vm, &[bad, ends.a.send(16)]).await?;
    ends.a.expect(vm, &[status::LOC_PROT_ERR, status::WR_FLUSH_ERR]).await?;
    ends.close(pair).await
}

async fn too_long(pair: &mut StockPair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    ends.b.receive(&mut pair.b.vm, 4000).await?;
    ends.b.receive(&mut pair.b.vm, 4000).await?;
    ends.a.post(&mut pair.a.vm, &[ends.a.send(4096)]).await?;
    ends.a.expect(&mut pair.a.vm, &[status::REM_INV_REQ_ERR]).await?;
    ends.b.expect(&mut pair.b.vm, &[status::LOC_LEN_ERR, status::WR_FLUSH_ERR]).await?;
    ends.close(pair).await
}

async fn receiver_not_ready(pair: &mut StockPair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    let vm = &mut pair.a.vm;
    ends.a.post(vm, &[ends.a.send(64), ends.a.send(64)]).await?;
    ends.a.expect(vm, &[status::RNR_RETRY_EXC_ERR, status::WR_FLUSH_ERR]).await?;
    ends.close(pair).await
}

async fn peer_gone(pair: &mut StockPair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    ends.b.verbs.destroy(&mut pair.b.vm, ends.b.qp).await?;
    let vm = &mut pair.a.vm;
    ends.a.post(vm, &[ends.a.send(64), ends.a.send(64)]).await?;
    ends.a.expect(vm, &[status::RETRY_EXC_ERR, status::WR_FLUSH_ERR]).await?;
    ends.close(pair).await
}

/// Overruns a completion queue. The driver rounds the requested capacity of 7 entries up to 8.
async fn overflow(pair: &mut StockPair, message: &str) -> Result<()> {
    let ends = Ends::open_with(pair, Some(7)).await?;
    let (vm, region) = (&mut pair.a.vm, ends.b.region);
    let requests: Vec<_> = (0..16).map(|_| ends.a.write(region.addr, region.rkey, 64)).collect();
    ends.a.post(vm, &requests).await?;
    let events = ends.a.verbs.events(vm, EVENT_LIMIT).await?;
    ensure!(events.contains(&event::CQ_ERR), "no CQ_ERR among the events {events:?}");
    ends.close(pair).await?;
    let warnings = pair.a.new_warnings().await?;
    ensure!(warnings.len() == 1 && warnings[0].contains(message), "the driver logged warnings: {warnings:?}");
    Ok(())
}

async fn port_down(pair: &mut StockPair) -> Result<()> {
    let device = pair.a.rdma_device();
    if pair.a.omits_first_port_event().await? {
        for (command, state) in [("down", "1: DOWN"), ("up", "4: ACTIVE")] {
            pair.a.daemon.control(&["port", command]).await?;
            pair.a.port_is(state).await?;
        }
    }
    let watch = tools::spawn(&mut pair.a.vm, &format!("ibv_asyncwatch -d {device}")).await?;
    let vm = &mut pair.a.vm;
    tools::line(vm, watch, "async event FD", LIMIT).await?;
    pair.a.daemon.control(&["port", "down"]).await?;
    pair.a.port_is("1: DOWN").await?;
    tools::line(&mut pair.a.vm, watch, "event_type IBV_EVENT_PORT_ERR (10), port 1", EVENT_LIMIT).await?;
    pair.a.daemon.control(&["port", "up"]).await?;
    pair.a.port_is("4: ACTIVE").await?;
    let vm = &mut pair.a.vm;
    tools::line(vm, watch, "event_type IBV_EVENT_PORT_ACTIVE (9), port 1", EVENT_LIMIT).await?;
    tools::stop(vm, watch).await?;
    if !pair.a.logs_port_state().await? {
        return Ok(());
    }
    let messages = pair.a.vm.call(agent::wire::Dmesg { level: None }).await?.lines;
    let about = format!("{device}: Port: 1 Link ");
    let mut states = messages.iter().filter(|line| line.contains(&about));
    ensure!(
        states.next_back().is_some_and(|line| line.ends_with("ACTIVE"))
            && states.next_back().is_some_and(|line| line.ends_with("DOWN")),
        "the kernel did not log that the port went down and came up: {messages:#?}"
    );
    Ok(())
}

/// Starts long-running programs and waits until traffic flows.
pub(in super::super) async fn traffic(pair: &mut StockPair) -> Result<[agent::wire::ProgramId; 2]> {
    let [of_a, of_b] =
        [&pair.a, &pair.b].map(|node| format!("ib_write_bw -F -d {} -s 65536 -D 60", node.selected("-x")));
    let before = sent(pair).await?;
    let server = tools::spawn(&mut pair.b.vm, &of_b).await?;
    Ready::Tcp(PERFTEST_PORT).wait(&mut pair.b.vm, server, &of_b).await?;
    let client = tools::spawn(&mut pair.a.vm, &format!("{of_a} {}", pair.b.ip)).await?;
    let deadline = tokio::time::Instant::now() + LIMIT;
    while sent(pair).await? < before + 1000 {
        ensure!(tokio::time::Instant::now() < deadline, "no traffic started within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok([server, client])
}

/// Returns the number of RoCE packets that guest `b` has received. All of them come from guest `a`.
async fn sent(pair: &StockPair) -> Result<u64> {
    pair.b.daemon.counter("/port/roce").await
}

async fn server_killed(pair: &mut StockPair) -> Result<()> {
    let [server, client] = traffic(pair).await?;
    tools::stop(&mut pair.b.vm, server).await?;
    let end = tools::wait(&mut pair.a.vm, client, LIMIT).await.context("the client did not exit")?;
    let text = format!("{}{}", end.stdout, end.stderr);
    ensure!(
        end.status != ExitStatus::Code(0) && text.contains("Failed status 12"),
        "{:?}: {text}",
        end.status
    );
    Ok(())
}

/// Kills the client of a WRITE test. The server has no outstanding requests, but must exit with an error when its TCP
/// connection to the client closes.
async fn client_killed(pair: &mut StockPair) -> Result<()> {
    let [server, client] = traffic(pair).await?;
    tools::stop(&mut pair.a.vm, client).await?;
    let end = tools::wait(&mut pair.b.vm, server, LIMIT).await.context("the server did not exit")?;
    ensure!(end.status != ExitStatus::Code(0), "the server succeeded, expected a failure: {}", end.stdout);
    Ok(())
}

pub(in super::super) async fn still_works(pair: &mut StockPair) -> Result<()> {
    let server = format!("ibv_rc_pingpong -d {} -c", pair.b.selected("-g"));
    let client = format!("ibv_rc_pingpong -d {} -c {}", pair.a.selected("-g"), pair.b.ip);
    let exchange = Exchange { server, client, ready: Ready::Tcp(PERFTEST_PORT), limit: LIMIT };
    pair.exchange(&exchange).await.map(drop)
}

async fn guest_dies(lab: &Lab, pair: &mut StockPair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    pair.replace_a(lab).await?;
    let vm = &mut pair.b.vm;
    ends.b.post(vm, &[ends.b.send(64), ends.b.send(64)]).await?;
    ends.b.expect(vm, &[status::RETRY_EXC_ERR, status::WR_FLUSH_ERR]).await?;
    ends.b.verbs.close(vm).await?;
    pair.a.load().await?;
    still_works(pair).await
}
