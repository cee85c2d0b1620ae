//! XDP programs in a driver's receive path, and AF_XDP sockets used by DPDK's `testpmd`. Debian's `xdp-bench` cannot be
//! used because it needs a tracepoint that kernel 7.3 no longer has.

use std::time::{Duration, Instant};

use agent::wire::Spawn;
use anyhow::{Context as _, Result, ensure};
use tokio::time::sleep;

use super::flows::{self, statistics};
use super::net::Wire;
use super::ping;
use super::station::{Station, carrier, mac_text};
use crate::tools::{line, signal, spawn, wait};

/// Timeout for starting or stopping a program in an emulated guest.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long it may take for all packets to be counted.
const COUNTED_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for a case that starts `testpmd`.
pub(super) const SOCKET_LIMIT: Duration = Duration::from_secs(400);
/// Interval between polls of a driver counter.
const POLL: Duration = Duration::from_millis(200);

/// Number of flows and number of datagrams per flow.
const FLOWS: u32 = 32;
const DATAGRAMS: u32 = 8;
/// Number of echo requests for AF_XDP.
const ECHOES: u32 = 50;

/// Python script that attaches an XDP program to a device.
const PROGRAM: &str = include_str!("../../../guest/xdp.py");

/// An XDP program that takes the same action on every packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    /// Value of [`PROGRAM`]'s ACTION argument.
    action: &'static str,
    /// Name of the driver's counter for packets that the program handles.
    counter: &'static str,
    /// Whether the kernel still receives the packets.
    passes: bool,
    /// Whether the packets return to their sender.
    returns: bool,
}

pub(super) const PROGRAMS: &[Program] = &[
    Program { name: "XDP_PASS", action: "pass", counter: "rx_packets", passes: true, returns: false },
    Program { name: "XDP_DROP", action: "drop", counter: "rx_xdp_drop", passes: false, returns: false },
    Program { name: "XDP_TX", action: "tx", counter: "rx_xdp_tx_xmit", passes: false, returns: true },
];

/// A mode of AF_XDP sockets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Socket {
    pub(super) name: &'static str,
    /// Arguments for the DPDK device. Busy polling is disabled, as it keeps arming the CQs.
    arguments: &'static str,
    /// Names of the driver's counters for the echo requests and, if the driver sends the replies, for the replies.
    counters: &'static [&'static str],
}

pub(super) const SOCKETS: &[Socket] = &[
    Socket {
        name: "AF_XDP, copied packets",
        arguments: ",force_copy=1,busy_budget=0",
        counters: &["rx_xdp_redirect"],
    },
    Socket {
        name: "AF_XDP, zero copy",
        arguments: ",busy_budget=0",
        counters: &["rx_xsk_xdp_redirect", "tx_xsk_xmit"],
    },
];

/// Mounts the file systems needed by the programs.
pub(super) async fn prepare(b: &mut Station) -> Result<()> {
    b.sh("mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf").await.map(drop)
}

impl Program {
    /// Runs the program in guest `b` and checks that it handles all datagrams from guest `a`.
    pub(super) async fn counts(&self, a: &mut Station, b: &mut Station) -> Result<()> {
        // Guest `a` needs a permanent neighbour entry because the XDP program may prevent replies to ARP requests.
        let (device, address) = (a.device.clone(), b.address(0).ipv4);
        let neighbour = format!("{address} lladdr {} dev {device}", mac_text(b.id));
        a.sh(&format!("ip neighbour replace {neighbour} nud permanent")).await?;
        let own = b.device.clone();
        let argv = ["python3", "-c", PROGRAM, self.action, &own].map(str::to_owned).to_vec();
        let program = b.vm.call(Spawn { argv }).await?.program;
        let result = async {
            line(&mut b.vm, program, "attached", START_TIMEOUT).await?;
            self.observed(a, b).await
        }
        .await;
        signal(&mut b.vm, program, libc::SIGINT).await?;
        let end = wait(&mut b.vm, program, START_TIMEOUT).await?;
        a.sh(&format!("ip neighbour del {neighbour}")).await?;
        result.with_context(|| format!("the program printed {}{}", end.stdout, end.stderr))?;
        carrier(&mut b.vm, &own, true).await?;
        ping::some_sizes(a, &address, Wire::Good).await
    }

    async fn observed(&self, a: &mut Station, b: &mut Station) -> Result<()> {
        let own = b.device.clone();
        carrier(&mut b.vm, &own, true).await?;
        let (before, returned) = (count(b, self.counter).await?, count(a, "rx_packets_phy").await?);
        flows::cast(a, b, FLOWS, DATAGRAMS).await?;
        at_least(b, self.counter, before + u64::from(FLOWS * DATAGRAMS)).await?;
        if self.returns {
            at_least(a, "rx_packets_phy", returned + u64::from(FLOWS * DATAGRAMS)).await?;
        }
        let address = b.address(0).ipv4;
        let answered = a.sh(&format!("ping -n -q -c 3 -i 0.2 -W 1 {address}")).await.is_ok();
        ensure!(answered == self.passes, "replies to pings: {answered}, expected {}", self.passes);
        Ok(())
    }
}

impl Socket {
    /// Has `testpmd` answer echo requests through an AF_XDP socket in guest `b`.
    pub(super) async fn answers(&self, a: &mut Station, b: &mut Station) -> Result<()> {
        let own = b.device.clone();
        b.sh(&format!("ethtool -L {own} combined 1")).await?;
        b.sh(
            "echo 100 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages && mkdir -p /dev/hugepages && \
             { mountpoint -q /dev/hugepages || mount -t hugetlbfs none /dev/hugepages; }",
        )
        .await?;
        let command = format!(
            "dpdk-testpmd -l 0,1 --in-memory --no-pci --vdev net_af_xdp0,iface={own}{} -- \
             --forward-mode=icmpecho --auto-start --total-num-mbufs=8192 --stats-period=1",
            self.arguments
        );
        let program = spawn(&mut b.vm, &command).await?;
        let result = async {
            line(&mut b.vm, program, "NIC statistics", START_TIMEOUT).await?;
            attached(b).await?;
            self.observed(a, b).await
        }
        .await;
        signal(&mut b.vm, program, libc::SIGINT).await?;
        let end = wait(&mut b.vm, program, START_TIMEOUT).await?;
        result.with_context(|| format!("testpmd printed {}{}", end.stdout, end.stderr))?;
        b.sh(&format!("ethtool -L {own} combined 2")).await?;
        carrier(&mut b.vm, &own, true).await?;
        ping::some_sizes(a, &b.address(0).ipv4, Wire::Good).await
    }

    async fn observed(&self, a: &mut Station, b: &mut Station) -> Result<()> {
        let (own, device, address) = (b.device.clone(), a.device.clone(), b.address(0).ipv4);
        carrier(&mut b.vm, &own, true).await?;
        let mut before = Vec::new();
        for counter in self.counters {
            before.push(count(b, counter).await?);
        }
        // Make guest `a` resolve the address again, because testpmd must also answer ARP requests.
        a.sh(&format!("ip neighbour flush dev {device}")).await?;
        ping::until_answered(a, &address).await?;
        let text = a.sh(&format!("ping -n -q -c {ECHOES} -i 0.05 -W 5 -s 1400 {address}")).await?;
        ensure!(text.contains(" 0% packet loss"), "{text}");
        for (counter, before) in self.counters.iter().zip(before) {
            at_least(b, counter, before + u64::from(ECHOES)).await?;
        }
        Ok(())
    }
}

/// Waits until an XDP program is attached to the device.
async fn attached(station: &mut Station) -> Result<()> {
    let device = station.device.clone();
    let until = format!("until ip -d link show {device} | grep -q 'prog/xdp'; do sleep 0.2; done");
    station.within(START_TIMEOUT, &until).await.context("no XDP program was attached").map(drop)
}

/// Returns a driver counter's value.
async fn count(station: &mut Station, counter: &str) -> Result<u64> {
    let device = station.device.clone();
    let all = statistics(&mut station.vm, &device).await?;
    all.get(counter).copied().with_context(|| format!("no {counter} in {all:#?}"))
}

/// Waits until a driver counter is at least `least`.
async fn at_least(station: &mut Station, counter: &str, least: u64) -> Result<()> {
    let deadline = Instant::now() + COUNTED_TIMEOUT;
    loop {
        let now = count(station, counter).await?;
        if now >= least {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{counter} is {now}, expected at least {least}");
        sleep(POLL).await;
    }
}
