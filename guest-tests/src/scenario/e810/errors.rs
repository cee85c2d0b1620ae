//! Checks that errors are reported as section 14 of the E810 interface specifies: by a completion status, an
//! asynchronous event, or a kernel message with the code and source of the device event.

use std::time::Duration;

use agent::wire::{ExitStatus, ProgramId};
use anyhow::{Context, Result, ensure};
use tokio::time::{Instant, sleep};

use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::failing::{EVENT_LIMIT, PeerAddress, Side, SideOptions, event, status};
use crate::scenario::nic::roce::{self, DEVICE, Gid, gid_index, port_is_active};
use crate::scenario::nic::station::Station;
use crate::stock_verbs::StockSend;
use crate::tools::{self, Exchange, Ready};

const LIMIT: Duration = Duration::from_secs(60);
const PERFTEST_PORT: u16 = 18515;
/// Polling interval while waiting.
const POLL: Duration = Duration::from_millis(50);

/// Size of a long request in bytes.
const LONG: u32 = 4 << 20;
/// Number of requests posted at once. With requests of [`LONG`] bytes, this is half a gigabyte, most of which is still
/// in flight when the test takes its next step.
const MANY: usize = 120;

/// A device event, identified by its code and source (section 14.1).
type DeviceEvent = (u16, u8);
const KEY_INBOUND: DeviceEvent = (0x102, 9);
const KEY_SEND: DeviceEvent = (0x102, 5);
const BOUNDS_INBOUND: DeviceEvent = (0x108, 9);
const REMOTE_ACCESS: DeviceEvent = (0x20d, 5);
const REMOTE_REQUEST: DeviceEvent = (0x208, 5);
const TOO_LONG: DeviceEvent = (0x303, 1);
const RETRIES: DeviceEvent = (0x50a, 5);
const RNR_RETRIES: DeviceEvent = (0x50f, 5);

struct Pair {
    a: Station,
    b: Station,
}

/// Verbs programs, one in each guest, whose queue pairs are connected.
struct Ends {
    a: Side,
    b: Side,
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("e810-errors")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    let [a, b] = roce::pair(lab, &run, &image).await.with_context(|| hint.clone())?;
    let mut pair = Pair { a, b };
    report.case("both ports are active", &hint, pair.start()).await?;
    pair.capture(true).await?;
    report.case("a WRITE with a wrong key", &hint, wrong_key(&mut pair)).await?;
    report.case("requests posted after a failure are flushed", &hint, posted_afterwards(&mut pair)).await?;
    report.case("a WRITE beyond the region", &hint, out_of_bounds(&mut pair)).await?;
    report.case("a SEND with a wrong L_Key", &hint, wrong_local_key(&mut pair)).await?;
    report.case("a SEND longer than the receive request", &hint, too_long(&mut pair)).await?;
    report.case("no receive request, RNR retries exhausted", &hint, receiver_not_ready(&mut pair)).await?;
    report.case("the peer's QP does not exist", &hint, peer_gone(&mut pair)).await?;
    report.case("CQ overflow", &hint, overrun(&mut pair)).await?;
    // Most of the following cases generate more traffic than can be captured.
    pair.capture(false).await?;
    report
        .case("the peer deregisters its region during traffic", &hint, target_deregistered(&mut pair))
        .await?;
    report
        .case("the sender deregisters its region during traffic", &hint, source_deregistered(&mut pair))
        .await?;
    // Only the driver in kernel 6.12 supports memory windows (section 15.2).
    if is_old(&mut pair).await? {
        report
            .case("the peer invalidates a memory window during traffic", &hint, window_unbound(&mut pair))
            .await?;
    }
    report.case("kill -9 of the server during traffic", &hint, server_killed(&mut pair)).await?;
    report.case("kill -9 of the client during traffic", &hint, client_killed(&mut pair)).await?;
    report.case("both devices still work", &hint, still_works(&mut pair)).await?;
    report.case("the interface goes down and up during traffic", &hint, interface_down(&mut pair)).await?;
    report.case("function-level reset during traffic", &hint, function_reset(&mut pair)).await?;
    report.case("the drivers are unloaded during traffic", &hint, unloaded(&mut pair)).await?;
    report.case("the peer's guest is killed", &hint, guest_dies(&mut pair)).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

impl Pair {
    async fn start(&mut self) -> Result<()> {
        roce::start(&mut self.a).await?;
        roce::start(&mut self.b).await?;
        self.expect_events(&[], &[]).await
    }

    /// Checks that the kernels have logged exactly the given device events since the last check.
    async fn expect_events(&mut self, of_a: &[DeviceEvent], of_b: &[DeviceEvent]) -> Result<()> {
        for (station, expected) in [(&mut self.a, of_a), (&mut self.b, of_b)] {
            let lines = station.new_warnings().await?;
            let found: Option<Vec<DeviceEvent>> = lines.iter().map(|line| parse_event(line)).collect();
            let name = station.vm.name();
            ensure!(
                found.as_deref() == Some(expected),
                "guest {name} logged the warnings {lines:#?}, expected {expected:x?}"
            );
        }
        Ok(())
    }

    async fn capture(&self, on: bool) -> Result<()> {
        self.a.capture(on).await?;
        self.b.capture(on).await
    }

    /// Shuts the guests down, then stops the daemons cleanly.
    async fn stop(self) -> Result<()> {
        self.a.stop().await?;
        self.b.stop().await
    }
}

/// Parses the code and source of a device event from a kernel message.
fn parse_event(line: &str) -> Option<DeviceEvent> {
    let (_, rest) = line.split_once("abnormal ae_id = 0x")?;
    let code = rest.split(' ').next()?;
    let (_, source) = rest.rsplit_once("ae_src=")?;
    Some((u16::from_str_radix(code, 16).ok()?, source.trim().parse().ok()?))
}

impl Ends {
    async fn open(pair: &mut Pair) -> Result<Self> {
        Self::open_with(pair, |_| {}).await
    }

    /// Connects the ends after applying `change` to guest `a`'s options.
    async fn open_with(pair: &mut Pair, change: impl FnOnce(&mut SideOptions)) -> Result<Self> {
        let mut wanted_a = wanted(&mut pair.a).await?;
        let mut wanted_b = wanted(&mut pair.b).await?;
        change(&mut wanted_a);
        wanted_b.region = wanted_a.region;
        let [a, b] = Side::pair((&mut pair.a.vm, wanted_a), (&mut pair.b.vm, wanted_b)).await?;
        Ok(Self { a, b })
    }

    async fn close(self, pair: &mut Pair) -> Result<()> {
        self.a.verbs.close(&mut pair.a.vm).await?;
        self.b.verbs.close(&mut pair.b.vm).await
    }

    /// Returns a WRITE of `len` bytes from guest `a` to the start of guest `b`'s region.
    fn write(&self, len: u32) -> StockSend {
        self.a.write(self.b.region.addr, self.b.region.rkey, len)
    }
}

async fn wanted(station: &mut Station) -> Result<SideOptions> {
    Ok(SideOptions::new(DEVICE, PeerAddress::Gid(gid_index(station, Gid::V4).await?)))
}

/// Checks that a request with a wrong key fails and that the requests after it are flushed.
async fn wrong_key(pair: &mut Pair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    let (good, mut bad) = (ends.write(4096), ends.write(4096));
    bad.rkey ^= 0x100;
    let vm = &mut pair.a.vm;
    ends.a.post(vm, &[good.clone(), bad, good]).await?;
    ends.a.expect(vm, &[status::SUCCESS, status::REM_ACCESS_ERR, status::WR_FLUSH_ERR]).await?;
    ends.a.expect_event(vm, event::QP_ACCESS_ERR).await?;
    ends.b.expect_event(&mut pair.b.vm, event::QP_ACCESS_ERR).await?;
    pair.expect_events(&[REMOTE_ACCESS], &[KEY_INBOUND]).await?;
    ends.close(pair).await
}

/// Checks that requests posted after an error are flushed (IBTA volume 1, section 10.3.1.8). The program must not move
/// the QP to the error state itself, because libirdma would then request the flush (section 14.2).
async fn posted_afterwards(pair: &mut Pair) -> Result<()> {
    const SENDS: usize = 5;
    let ends = Ends::open(pair).await?;
    let (good, mut bad) = (ends.write(4096), ends.write(4096));
    bad.rkey ^= 0x100;
    let vm = &mut pair.a.vm;
    ends.a.post(vm, &[bad]).await?;
    ends.a.expect(vm, &[status::REM_ACCESS_ERR]).await?;
    ends.a.expect_event(vm, event::QP_ACCESS_ERR).await?;
    for _ in 0..2 {
        for _ in 0..SENDS {
            ends.a.post(vm, std::slice::from_ref(&good)).await?;
        }
        ends.a.receive(vm, 4096).await?;
        ends.a.expect(vm, &[status::WR_FLUSH_ERR; SENDS + 1]).await?;
    }
    let vm = &mut pair.b.vm;
    ends.b.expect_event(vm, event::QP_ACCESS_ERR).await?;
    ends.b.receive(vm, 4096).await?;
    ends.b.post(vm, &[ends.b.send(64)]).await?;
    ends.b.expect(vm, &[status::WR_FLUSH_ERR; 2]).await?;
    pair.expect_events(&[REMOTE_ACCESS], &[KEY_INBOUND]).await?;
    ends.close(pair).await
}

async fn out_of_bounds(pair: &mut Pair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    let mut beyond = ends.write(4096);
    beyond.va += u64::from(crate::scenario::failing::REGION) - 4095;
    ends.a.post(&mut pair.a.vm, &[beyond]).await?;
    ends.a.expect(&mut pair.a.vm, &[status::REM_ACCESS_ERR]).await?;
    ends.b.expect_event(&mut pair.b.vm, event::QP_ACCESS_ERR).await?;
    pair.expect_events(&[REMOTE_ACCESS], &[BOUNDS_INBOUND]).await?;
    ends.close(pair).await
}

async fn wrong_local_key(pair: &mut Pair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    ends.b.receive(&mut pair.b.vm, 4096).await?;
    let vm = &mut pair.a.vm;
    let mut bad = ends.a.send(4096);
    bad.sges[0].2 ^= 0x100;
    ends.a.post(vm, &[bad, ends.a.send(16)]).await?;
    ends.a.expect(vm, &[status::LOC_PROT_ERR, status::WR_FLUSH_ERR]).await?;
    ends.a.expect_event(vm, event::QP_ACCESS_ERR).await?;
    pair.expect_events(&[KEY_SEND], &[]).await?;
    ends.close(pair).await
}

async fn too_long(pair: &mut Pair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    ends.b.receive(&mut pair.b.vm, 4000).await?;
    ends.b.receive(&mut pair.b.vm, 4000).await?;
    ends.a.post(&mut pair.a.vm, &[ends.a.send(4096)]).await?;
    ends.a.expect(&mut pair.a.vm, &[status::REM_INV_REQ_ERR]).await?;
    ends.b.expect(&mut pair.b.vm, &[status::LOC_LEN_ERR, status::WR_FLUSH_ERR]).await?;
    ends.b.expect_event(&mut pair.b.vm, event::QP_FATAL).await?;
    pair.expect_events(&[REMOTE_REQUEST], &[TOO_LONG]).await?;
    ends.close(pair).await
}

/// Returns whether guest `a` runs kernel 6.12, whose driver differs from later ones in its features (section 15.2) and
/// its error reports (section 14.1).
async fn is_old(pair: &mut Pair) -> Result<bool> {
    Ok(pair.a.sh("uname -r").await?.starts_with("6.12."))
}

/// Checks the error reported after the RNR retries are exhausted. The completion status depends on the driver and on
/// libirdma (section 14.1).
async fn receiver_not_ready(pair: &mut Pair) -> Result<()> {
    let first = if is_old(pair).await? { status::WR_FLUSH_ERR } else { status::FATAL_ERR };
    let ends = Ends::open(pair).await?;
    let vm = &mut pair.a.vm;
    ends.a.post(vm, &[ends.a.send(64), ends.a.send(64)]).await?;
    ends.a.expect(vm, &[first, status::WR_FLUSH_ERR]).await?;
    ends.a.expect_event(vm, event::QP_FATAL).await?;
    pair.expect_events(&[RNR_RETRIES], &[]).await?;
    ends.close(pair).await
}

async fn peer_gone(pair: &mut Pair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    ends.b.verbs.destroy(&mut pair.b.vm, ends.b.qp).await?;
    let vm = &mut pair.a.vm;
    ends.a.post(vm, &[ends.a.send(64), ends.a.send(64)]).await?;
    ends.a.expect(vm, &[status::RETRY_EXC_ERR, status::WR_FLUSH_ERR]).await?;
    ends.a.expect_event(vm, event::QP_FATAL).await?;
    pair.expect_events(&[RETRIES], &[]).await?;
    ends.close(pair).await
}

/// Overruns a completion queue. The driver allocates slightly more than twice the requested number of entries, which is
/// far fewer than [`MANY`].
async fn overrun(pair: &mut Pair) -> Result<()> {
    let ends = Ends::open_with(pair, |a| a.completions = Some(7)).await?;
    let vm = &mut pair.a.vm;
    ends.a.post(vm, &vec![ends.write(64); MANY]).await?;
    let events = ends.a.verbs.events(vm, EVENT_LIMIT).await?;
    ensure!(events.contains(&event::CQ_ERR), "events {events:?} without CQ_ERR");
    ends.close(pair).await?;
    let warnings = pair.a.new_warnings().await?;
    ensure!(
        warnings.iter().any(|line| line.contains("CQ")),
        "the driver logged no warning about the CQ: {warnings:?}"
    );
    pair.expect_events(&[], &[]).await
}

/// Checks that one of guest `a`'s posted requests fails with the status `first` and that all later requests are
/// flushed.
async fn fails_in_between(pair: &mut Pair, ends: &Ends, first: u32) -> Result<()> {
    let found = ends.a.statuses(&mut pair.a.vm, u32::try_from(MANY)?).await?;
    let good = found.iter().take_while(|&&status| status == status::SUCCESS).count();
    let expected: Vec<u32> =
        (good..MANY).map(|n| if n == good { first } else { status::WR_FLUSH_ERR }).collect();
    ensure!(good < MANY && found[good..] == expected, "statuses {found:?}");
    Ok(())
}

async fn target_deregistered(pair: &mut Pair) -> Result<()> {
    let ends = Ends::open_with(pair, |a| a.region = LONG).await?;
    ends.a.post(&mut pair.a.vm, &vec![ends.write(LONG); MANY]).await?;
    ends.b.verbs.deregister(&mut pair.b.vm, ends.b.region).await?;
    fails_in_between(pair, &ends, status::REM_ACCESS_ERR).await?;
    ends.b.expect_event(&mut pair.b.vm, event::QP_ACCESS_ERR).await?;
    pair.expect_events(&[REMOTE_ACCESS], &[KEY_INBOUND]).await?;
    ends.close(pair).await
}

async fn source_deregistered(pair: &mut Pair) -> Result<()> {
    let ends = Ends::open_with(pair, |a| a.region = LONG).await?;
    ends.a.post(&mut pair.a.vm, &vec![ends.write(LONG); MANY]).await?;
    ends.a.verbs.deregister(&mut pair.a.vm, ends.a.region).await?;
    fails_in_between(pair, &ends, status::LOC_PROT_ERR).await?;
    ends.a.expect_event(&mut pair.a.vm, event::QP_ACCESS_ERR).await?;
    pair.expect_events(&[KEY_SEND], &[]).await?;
    ends.close(pair).await
}

/// Unbinds a memory window while WRITEs use its key and checks that later WRITEs fail. Each bind assigns a new key and
/// thus invalidates the old one.
async fn window_unbound(pair: &mut Pair) -> Result<()> {
    let ends = Ends::open_with(pair, |a| a.region = LONG).await?;
    let window = ends.b.verbs.window(&mut pair.b.vm, ends.b.qp, ends.b.region).await?;
    let write = ends.a.write(ends.b.region.addr, window.rkey, LONG);
    ends.a.post(&mut pair.a.vm, &vec![write; MANY]).await?;
    ends.b.verbs.unbind(&mut pair.b.vm, ends.b.qp, window).await?;
    fails_in_between(pair, &ends, status::REM_ACCESS_ERR).await?;
    ends.b.expect_event(&mut pair.b.vm, event::QP_ACCESS_ERR).await?;
    pair.expect_events(&[REMOTE_ACCESS], &[KEY_INBOUND]).await?;
    ends.close(pair).await
}

/// Starts long-running programs and waits until traffic flows.
async fn traffic(pair: &mut Pair) -> Result<[ProgramId; 2]> {
    let of_a = gid_index(&mut pair.a, Gid::V4).await?;
    let of_b = gid_index(&mut pair.b, Gid::V4).await?;
    let line = |gid: usize| format!("ib_write_bw -F -d {DEVICE} -x {gid} -s 65536 -D 120");
    let server = tools::spawn(&mut pair.b.vm, &line(of_b)).await?;
    Ready::Tcp(PERFTEST_PORT).wait(&mut pair.b.vm, server, &line(of_b)).await?;
    let address = pair.b.address(0).ipv4;
    let client = tools::spawn(&mut pair.a.vm, &format!("{} {address}", line(of_a))).await?;
    wait_for_traffic(pair).await?;
    Ok([server, client])
}

/// Waits until guest `b` has received at least 1000 more packets.
async fn wait_for_traffic(pair: &Pair) -> Result<()> {
    let before = received(pair).await?;
    let deadline = Instant::now() + LIMIT;
    while received(pair).await? < before + 1000 {
        ensure!(Instant::now() < deadline, "no traffic started within {LIMIT:?}");
        sleep(POLL).await;
    }
    Ok(())
}

/// Returns the number of RoCE packets that guest `b` has received.
async fn received(pair: &Pair) -> Result<u64> {
    pair.b.daemon.as_ref().context("the guest has no daemon")?.counter("/port/roce").await
}

async fn server_killed(pair: &mut Pair) -> Result<()> {
    let [server, client] = traffic(pair).await?;
    tools::stop(&mut pair.b.vm, server).await?;
    let end = tools::wait(&mut pair.a.vm, client, LIMIT).await.context("the client did not exit")?;
    let text = format!("{}{}", end.stdout, end.stderr);
    ensure!(
        end.status != ExitStatus::Code(0) && text.contains("Failed status 12"),
        "{:?}: {text}",
        end.status
    );
    pair.expect_events(&[RETRIES], &[]).await
}

/// Kills the client of a WRITE test. The server has no outstanding requests, but must exit with an error when its
/// connection to the client closes.
async fn client_killed(pair: &mut Pair) -> Result<()> {
    let [server, client] = traffic(pair).await?;
    tools::stop(&mut pair.a.vm, client).await?;
    let end = tools::wait(&mut pair.b.vm, server, LIMIT).await.context("the server did not exit")?;
    ensure!(end.status != ExitStatus::Code(0), "the server succeeded, expected a failure: {}", end.stdout);
    pair.expect_events(&[], &[]).await
}

async fn still_works(pair: &mut Pair) -> Result<()> {
    let of_a = gid_index(&mut pair.a, Gid::V4).await?;
    let of_b = gid_index(&mut pair.b, Gid::V4).await?;
    let line = |gid: usize| format!("ibv_rc_pingpong -d {DEVICE} -g {gid} -c");
    let client = format!("{} {}", line(of_a), pair.b.address(0).ipv4);
    let exchange = Exchange { server: line(of_b), client, ready: Ready::Tcp(PERFTEST_PORT), limit: LIMIT };
    exchange.run(&mut pair.b.vm, &mut pair.a.vm).await?;
    pair.expect_events(&[], &[]).await
}

async fn stop(pair: &mut Pair, [server, client]: [ProgramId; 2]) -> Result<()> {
    tools::stop(&mut pair.a.vm, client).await?;
    tools::stop(&mut pair.b.vm, server).await.map(drop)
}

/// Checks that queue pairs survive the interface going down and that lost packets are retransmitted once it is back up
/// (section 14.4).
async fn interface_down(pair: &mut Pair) -> Result<()> {
    let programs = traffic(pair).await?;
    let device = pair.a.device.clone();
    pair.a.sh(&format!("ip link set {device} down && ip link set {device} up")).await?;
    port_is_active(&mut pair.a).await?;
    wait_for_traffic(pair).await?;
    pair.expect_events(&[], &[]).await?;
    stop(pair, programs).await?;
    still_works(pair).await
}

/// Removes guest `a`'s device with the shell command `line`. The program in guest `a` must receive a fatal device
/// event, and its peer's requests must exhaust their retries.
async fn device_removed(pair: &mut Pair, line: &str) -> Result<()> {
    let programs = traffic(pair).await?;
    let ends = Ends::open(pair).await?;
    pair.a.vm.run_within(LIMIT, &["sh", "-c", line]).await?;
    let events = ends.a.verbs.events(&mut pair.a.vm, EVENT_LIMIT).await?;
    ensure!(events.contains(&event::DEVICE_FATAL), "events {events:?} without DEVICE_FATAL");
    let vm = &mut pair.b.vm;
    ends.b.post(vm, &[ends.b.send(64), ends.b.send(64)]).await?;
    ends.b.expect(vm, &[status::RETRY_EXC_ERR, status::WR_FLUSH_ERR]).await?;
    ends.b.expect_event(vm, event::QP_FATAL).await?;
    stop(pair, programs).await?;
    ends.close(pair).await
}

async fn function_reset(pair: &mut Pair) -> Result<()> {
    let line = format!("echo 1 > /sys/class/net/{}/device/reset", pair.a.device);
    device_removed(pair, &line).await?;
    port_is_active(&mut pair.a).await?;
    pair.expect_events(&[], &[RETRIES]).await?;
    still_works(pair).await
}

async fn unloaded(pair: &mut Pair) -> Result<()> {
    device_removed(pair, "modprobe -r irdma; ! lsmod | grep -q '^ice ' || modprobe -r ice").await?;
    pair.a.restart().await?;
    roce::start(&mut pair.a).await?;
    pair.expect_events(&[], &[RETRIES]).await?;
    still_works(pair).await
}

async fn guest_dies(pair: &mut Pair) -> Result<()> {
    let ends = Ends::open(pair).await?;
    pair.b.die().await?;
    let vm = &mut pair.a.vm;
    ends.a.post(vm, &[ends.a.send(64), ends.a.send(64)]).await?;
    ends.a.expect(vm, &[status::RETRY_EXC_ERR, status::WR_FLUSH_ERR]).await?;
    ends.a.expect_event(vm, event::QP_FATAL).await?;
    ends.a.verbs.close(vm).await?;
    let warnings = pair.a.new_warnings().await?;
    ensure!(warnings.iter().map(|line| parse_event(line)).eq([Some(RETRIES)]), "{warnings:?}");
    Ok(())
}
