//! Tests DPDK's drivers `net_ice` and `net_mlx5`. In one guest, `testpmd` forwards frames between two E810s or two
//! ConnectX cards. Each card is connected to a card in another guest, which uses Linux's driver.

use std::time::{Duration, Instant};

use agent::wire::ProgramId;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::content;
use super::flows;
use super::net::Wire;
use super::ping;
use super::station::{Station, shape, strict_card};
use super::streams::{Amount, Protocol, Streams};
use super::vlan;
use crate::daemon::{Daemon, Explained, HcaSpec};
use crate::lab::{Guest, Lab};
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::scenario::e810::package::Package;
use crate::testbed::kind::Device;
use crate::tools::{line, signal, spawn, wait};
use crate::vm::Vm;

/// Number of 2 MiB pages for DPDK's buffers.
const HUGE_PAGES: u32 = 100;
const MEMORY_MIB: u32 = 1024;
/// Number of entries in each queue. All receive queues together need fewer buffers than `testpmd` has.
const ENTRIES: u32 = 512;
/// Timeout for starting `testpmd`, which probes every PCI device and sets up both ports.
const START_TIMEOUT: Duration = Duration::from_secs(180);
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// How long `testpmd` may take to forward the last frames.
const COUNTED_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum number of frames, such as ARP requests, that a NIC may receive before `testpmd` starts to count.
const MAX_EARLY: u64 = 100;
/// Longest payload of a TCP segment.
const MAX_SEGMENT: u64 = 1460;

const FILE_MIB: u64 = 32;

/// Number of flows that `testpmd` must spread over its queues, and number of datagrams per flow. With 64 flows and four
/// queues, any given queue stays empty once in a hundred million runs.
const FLOWS: u32 = 64;
const DATAGRAMS: u32 = 4;

/// TCP in both directions, and UDP.
const STREAMS: &[(&str, Streams)] = &[
    ("TCP", stream(Protocol::Tcp, 1, false, false)),
    ("TCP over IPv6, reverse", stream(Protocol::Tcp, 1, true, true)),
    ("8 UDP streams", stream(Protocol::Udp, 8, false, false)),
];

/// Known interface violations by `net_ice`.
const EXPLAINED: &[Explained] = &[Explained {
    rule: "doorbell_no_queue",
    why: "net_ice clears the tail of a transmit queue before it adds the queue",
}];

const fn stream(protocol: Protocol, count: u32, back: bool, ipv6: bool) -> Streams {
    Streams { protocol, count, back, ipv6, amount: Amount::Seconds(2) }
}

/// The DPDK driver that `testpmd` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Driver {
    /// `net_ice` on an E810.
    Ice,
    /// `net_mlx5` on a ConnectX, creating queues through DevX.
    Mlx5,
    /// `net_mlx5` on a ConnectX without DevX, creating queues through verbs.
    Mlx5WithoutDevx,
}

impl Driver {
    const fn scenario(self) -> &'static str {
        match self {
            Self::Ice => "dpdk",
            Self::Mlx5 => "connectx-dpdk",
            Self::Mlx5WithoutDevx => "connectx-dpdk-verbs",
        }
    }

    const fn hca(self) -> Device {
        match self {
            Self::Ice => Device::E810,
            Self::Mlx5 | Self::Mlx5WithoutDevx => Device::Connectx,
        }
    }

    /// Returns the options for the forwarder's NICs.
    fn options(self) -> Value {
        if self == Self::Mlx5WithoutDevx { json!({"devx": false}) } else { json!({}) }
    }
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, driver: Driver) -> Result<()> {
    let run = lab.new_run(driver.scenario())?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut bench = Bench::start(lab, &run, driver).await.context(hint.clone())?;
    report
        .case_within(START_TIMEOUT * 2, "testpmd starts both ports", &hint, bench.start_forwarder())
        .await?;
    let Bench { a, b, .. } = &mut bench;
    let address = b.address(0);
    report.case("ping over IPv4", &hint, ping::some_sizes(a, &address.ipv4, Wire::Good)).await?;
    report.case("ping over IPv6", &hint, ping::some_sizes(a, &address.ipv6, Wire::Good)).await?;
    for &(name, streams) in STREAMS {
        report.case(name, &hint, streams.arrive(a, b, 0, Wire::Good)).await?;
    }
    report.case("VLANs 1 and 4094", &hint, vlan::customer(a, b, Wire::Good)).await?;
    let checksum = content::make_of(a, 30, FILE_MIB).await?;
    let file = content::send(a, b, &checksum, Wire::Good);
    report.case_within(content::limit(Wire::Good), "a file with verified content", &hint, file).await?;
    report.case("flows of random ports arrive", &hint, flows::send(a, b, FLOWS, DATAGRAMS)).await?;
    report
        .case_within(
            COUNTED_TIMEOUT * 2,
            "counters of testpmd and of its NICs match",
            &hint,
            bench.counters(),
        )
        .await?;
    report.case("testpmd exits; flows were spread over its queues", &hint, bench.end_forwarder()).await?;
    report.case("no kernel warnings", &hint, bench.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, bench.stop()).await
}

/// Counters of a `testpmd` port, in frames.
#[derive(Clone, Copy, Debug)]
struct Statistics {
    received: u64,
    /// Frames dropped because no receive buffer was free.
    missed: u64,
    sent: u64,
}

/// Returns the number that follows `name` in a line.
fn value(line: &str, name: &str) -> Result<u64> {
    let (_, rest) = line.split_once(name).with_context(|| format!("no {name} in {line:?}"))?;
    let number = rest.split_whitespace().next().unwrap_or_default();
    number.parse().with_context(|| format!("the value of {name} in {line:?}"))
}

/// Two guests with Linux's driver, and the forwarder between them.
struct Bench {
    a: Station,
    b: Station,
    forwarder: Vm,
    /// Daemons of the forwarder's NICs. The first NIC is connected to station `a`, and the second is connected to
    /// station `b`.
    daemons: [Daemon; 2],
    testpmd: Option<ProgramId>,
    hca: Device,
}

impl Bench {
    async fn start(lab: &Lab, run: &RunDir, driver: Driver) -> Result<Self> {
        let hca = driver.hca();
        let image = lab.debian_image(run).await?;
        let dpdk = lab.dpdk_image(run).await?;
        let facing =
            |name: &str, spec: HcaSpec, id| HcaSpec { name: name.into(), id, ..strict_card(hca, lab, spec) };
        let [a, to_a] = HcaSpec::pair()?;
        let [to_b, b] = HcaSpec::pair()?;
        let (a, b) = (facing("a", a, 1), facing("b", b, 2));
        let [to_a, to_b] = [facing("to-a", to_a, 3), facing("to-b", to_b, 4)]
            .map(|spec| HcaSpec { explained: if hca == Device::E810 { EXPLAINED } else { &[] }, ..spec })
            .map(|spec| HcaSpec { options: driver.options(), ..spec });
        let hcad = lab.hcad()?;
        let daemons = [Daemon::start(&hcad, &to_a, run).await?, Daemon::start(&hcad, &to_b, run).await?];
        let cards = daemons.iter().map(|daemon| daemon.socket().to_owned()).collect();
        let shape_of_forwarder = Guest { cards, least_memory_mib: MEMORY_MIB, ..shape("forwarder") };
        let (a, b, forwarder) = tokio::try_join!(
            Station::with_hca(hca, lab, run, &image, &a, shape(&a.name)),
            Station::with_hca(hca, lab, run, &image, &b, shape(&b.name)),
            lab.boot(run, &dpdk, shape_of_forwarder),
        )?;
        Ok(Self { a, b, forwarder, daemons, testpmd: None, hca })
    }

    /// Returns the number of queues per port. The lab's guests with an E810 have two CPUs, and thus two queues.
    const fn queues(&self) -> u32 {
        match self.hca {
            Device::E810 => 2,
            _ => 4,
        }
    }

    /// Prepares both NICs for DPDK and starts forwarding. `net_ice` replaces Linux's driver, whereas `net_mlx5` uses
    /// the verbs of Linux's driver. In the latter case, the driver's network devices must be up but must not send, or
    /// the counters would not match.
    async fn start_forwarder(&mut self) -> Result<()> {
        let queues = self.queues();
        let vm = &mut self.forwarder;
        let drivers = if self.hca == Device::E810 {
            Package::Synthetic.install(vm).await?;
            "modprobe uio_pci_generic && echo 8086 1592 > /sys/bus/pci/drivers/uio_pci_generic/new_id"
        } else {
            "sysctl -qw net.ipv6.conf.default.disable_ipv6=1 && modprobe -a mlx5_core mlx5_ib ib_uverbs && \
             for d in /sys/class/net/eth*; do ip link set ${d##*/} up; done"
        };
        let prepare = format!(
            "{drivers} && \
             echo {HUGE_PAGES} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages && \
             mkdir -p /dev/hugepages && mount -t hugetlbfs none /dev/hugepages"
        );
        vm.run(&["sh", "-c", &prepare]).await?;
        let command = format!(
            "dpdk-testpmd -l 0,1 --in-memory -- --forward-mode=io --auto-start --total-num-mbufs=8192 \
             --rss-udp --rxq={queues} --txq={queues} --rxd={ENTRIES} --txd={ENTRIES} --nb-cores=1 --stats-period=1"
        );
        let testpmd = spawn(vm, &command).await?;
        self.testpmd = Some(testpmd);
        match line(vm, testpmd, "NIC statistics for port 1 ", START_TIMEOUT).await {
            Ok(_) => Ok(()),
            Err(error) => {
                signal(vm, testpmd, libc::SIGKILL).await?;
                let end = wait(vm, testpmd, END_TIMEOUT).await?;
                Err(error.context(format!("testpmd printed:\n{}{}", end.stdout, end.stderr)))
            }
        }
    }

    /// Checks that `testpmd` and its NICs count the same frames.
    async fn counters(&mut self) -> Result<()> {
        // Take the links down to keep the guests from sending more frames.
        for station in [&mut self.a, &mut self.b] {
            station.sh(&format!("ip link set {} down", station.device)).await?;
        }
        let deadline = Instant::now() + COUNTED_TIMEOUT;
        loop {
            let ports = [self.statistics(0).await?, self.statistics(1).await?];
            let nics = [self.nic_frames(0).await?, self.nic_frames(1).await?];
            // testpmd drops frames while its transmit queue is full, so it may send fewer than it has received.
            let are_forwarded = ports[1].sent <= ports[0].received && ports[0].sent <= ports[1].received;
            let are_counted = ports.iter().zip(nics).all(|(port, (received, sent))| {
                let counted = port.received + port.missed;
                port.sent == sent && (counted..counted + MAX_EARLY).contains(&received)
            });
            if are_forwarded && are_counted && ports[0].received > (FILE_MIB << 20) / MAX_SEGMENT {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "testpmd counted {ports:?}, and its NICs received and sent {nics:?} frames"
            );
        }
    }

    /// Returns the numbers of frames that one of the forwarder's NICs has received and sent.
    async fn nic_frames(&self, port: usize) -> Result<(u64, u64)> {
        let daemon = &self.daemons[port];
        let received = daemon.counter("/port/nic_receive/packets").await?;
        Ok((received, daemon.counter("/port/nic_transmit/packets").await?))
    }

    /// Reads the next statistics that `testpmd` prints for a port. It prints them every second.
    async fn statistics(&mut self, port: u8) -> Result<Statistics> {
        let vm = &mut self.forwarder;
        let testpmd = self.testpmd.context("testpmd did not start")?;
        line(vm, testpmd, &format!("NIC statistics for port {port} "), COUNTED_TIMEOUT).await?;
        let receive = line(vm, testpmd, "RX-packets:", COUNTED_TIMEOUT).await?;
        let transmit = line(vm, testpmd, "TX-packets:", COUNTED_TIMEOUT).await?;
        Ok(Statistics {
            received: value(&receive, "RX-packets:")?,
            missed: value(&receive, "RX-missed:")?,
            sent: value(&transmit, "TX-packets:")?,
        })
    }

    async fn end_forwarder(&mut self) -> Result<()> {
        let testpmd = self.testpmd.take().context("testpmd did not start")?;
        signal(&mut self.forwarder, testpmd, libc::SIGINT).await?;
        let end = wait(&mut self.forwarder, testpmd, END_TIMEOUT).await?;
        let text = end.stdout + &end.stderr;
        ensure!(text.contains("Bye"), "{text}");
        for queue in 0..self.queues() {
            let heading = format!("Forward Stats for RX Port= 0/Queue= {queue} ");
            let (_, of_queue) =
                text.split_once(&heading).with_context(|| format!("no {heading:?} in {text}"))?;
            ensure!(value(of_queue, "RX-packets:")? > 0, "queue {queue} received nothing: {text}");
        }
        Ok(())
    }

    async fn no_warnings(&mut self) -> Result<()> {
        self.a.no_warnings().await?;
        self.b.no_warnings().await
    }

    async fn stop(mut self) -> Result<()> {
        self.a.stop().await?;
        self.b.stop().await?;
        self.forwarder.kill().await?;
        for daemon in self.daemons {
            daemon.stop().await?;
        }
        Ok(())
    }
}
