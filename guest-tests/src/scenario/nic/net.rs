//! Network traffic between two E810s or two ConnectX cards, and between one of them and an emulated NIC. The link is
//! either lossless or loses 1% of the frames.

use anyhow::{Context, Result, ensure};

use super::station::{Station, shape, strict_e810};
use super::streams::{Amount, Protocol, Streams};
use super::{bridge, content, filter, flows, jumbo, ping, vlan};
use crate::daemon::{Daemon, HcaSpec, Peer, free_udp_ports};
use crate::lab::Lab;
use crate::qemu::{Nic, NicModel};
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::scenario::impairments::Impairments;
use crate::scenario::rxe_interop::mac;
use crate::testbed::kind::Device;

/// Frame loss on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scenario) enum Wire {
    Good,
    /// 1% of the frames are lost in each direction.
    Lossy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Extent {
    /// Two devices and a virtio NIC on a lossless link, with one case per kind of traffic. Between a device and the
    /// virtio NIC, only pings, congestion marks, streams and VLANs are tested.
    Core,
    /// Two devices and a virtio NIC on a lossless link.
    Full,
    /// Two devices and a virtio NIC on a lossy link.
    Lossy,
    /// Two virtio NICs without a daemon. If a case fails here as well, the device is not at fault.
    Control,
}

impl Extent {
    /// Returns the scenario's name for the device `hca`.
    fn scenario(self, hca: Device) -> String {
        let part = match self {
            Self::Core => "net",
            Self::Full => "net-full",
            Self::Lossy => "loss",
            Self::Control => "net-control",
        };
        format!("{}-{part}", hca.name())
    }
}

/// Impairments for the lossy link. Applied at station `a`, they affect its traffic with all peers.
const LOSS: &[[&str; 6]] = &[
    ["tx", "--probability", "0.01", "--seed", "7", "drop"],
    ["rx", "--probability", "0.01", "--seed", "8", "drop"],
];

/// TCP and UDP, each with one and with eight streams, in both directions. A single TCP stream also runs over IPv6. A
/// single UDP stream runs forward over IPv4 and in reverse over IPv6.
const STREAMS: &[(&str, Streams)] = &[
    ("TCP", stream(Protocol::Tcp, 1, false, false)),
    ("TCP, reverse", stream(Protocol::Tcp, 1, true, false)),
    ("TCP over IPv6", stream(Protocol::Tcp, 1, false, true)),
    ("TCP over IPv6, reverse", stream(Protocol::Tcp, 1, true, true)),
    ("8 TCP streams", stream(Protocol::Tcp, 8, false, false)),
    ("8 TCP streams, reverse", stream(Protocol::Tcp, 8, true, false)),
    ("UDP", stream(Protocol::Udp, 1, false, false)),
    ("UDP over IPv6, reverse", stream(Protocol::Udp, 1, true, true)),
    ("8 UDP streams", stream(Protocol::Udp, 8, false, false)),
    ("8 UDP streams, reverse", stream(Protocol::Udp, 8, true, false)),
];

const CORE_MTUS: &[u32] = &[9000];

const CORE_STREAMS: &[(&str, Streams)] = &[
    ("TCP", stream(Protocol::Tcp, 1, false, false)),
    ("8 TCP streams over IPv6, reverse", stream(Protocol::Tcp, 8, true, true)),
    ("UDP over IPv6, reverse", stream(Protocol::Udp, 1, true, true)),
];

const fn stream(protocol: Protocol, count: u32, back: bool, ipv6: bool) -> Streams {
    let amount = match protocol {
        Protocol::Tcp => Amount::Mib(8),
        Protocol::Udp => Amount::Seconds(1),
    };
    Streams { protocol, count, back, ipv6, amount }
}

/// Station `a` and its peers.
struct Bench {
    a: Station,
    peers: Vec<(&'static str, Station)>,
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, hca: Device, extent: Extent) -> Result<()> {
    let run = lab.new_run(&extent.scenario(hca))?;
    let hint = format!("console output, logs, captures and command lines: {}", run.path().display());
    let mut bench = Bench::start(lab, &run, hca, extent).await.context(hint.clone())?;
    if extent == Extent::Lossy {
        bench.on_a_lossy_wire(report, &hint).await?;
    } else {
        bench.capture(true).await?;
        bench.packets(report, Wire::Good, extent, &hint).await?;
        bench.capture(false).await?;
        if extent != Extent::Core {
            bench.files(report, Wire::Good, &hint).await?;
        }
    }
    if matches!(extent, Extent::Core | Extent::Full) {
        bench.queues(report, &hint).await?;
    }
    report.case("no kernel warnings", &hint, bench.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, bench.stop()).await
}

impl Bench {
    async fn start(lab: &Lab, run: &RunDir, hca: Device, extent: Extent) -> Result<Self> {
        let image = lab.debian_image(run).await?;
        let [own, peer] = free_udp_ports()?;
        let nic = |id: u16, bind, peer| Nic { model: NicModel::Virtio, mac: mac(id), bind, peer };
        let (a, peers) = match extent {
            Extent::Control => {
                let (a, b) = tokio::try_join!(
                    Station::with_nic(lab, run, &image, "a", 1, nic(1, own, peer)),
                    Station::with_nic(lab, run, &image, "b", 2, nic(2, peer, own)),
                )?;
                (a, vec![("virtio", b)])
            }
            Extent::Core | Extent::Full | Extent::Lossy => {
                let interface = hca.interface().context("the device has no interface")?;
                let [mut a, b] = HcaSpec::pair()?.map(|spec| HcaSpec { interface, ..strict_e810(lab, spec) });
                // Guest `c`'s NIC is connected only to guest `a`'s device, which forwards its frames.
                a.peers.push(Peer { addr: peer, leaf: true, id: None });
                let (a, b, c) = tokio::try_join!(
                    Station::with_hca(hca, lab, run, &image, &a, shape(&a.name)),
                    Station::with_hca(hca, lab, run, &image, &b, shape(&b.name)),
                    Station::with_nic(lab, run, &image, "c", 3, nic(3, peer, a.bind)),
                )?;
                let kind = if hca == Device::E810 { "E810" } else { "ConnectX" };
                (a, vec![(kind, b), ("virtio", c)])
            }
        };
        Ok(Self { a, peers })
    }

    async fn on_a_lossy_wire(&mut self, report: &mut Report, hint: &str) -> Result<()> {
        let mut loss = Impairments::default();
        for rule in LOSS {
            loss.add(self.daemon()?, rule).await?;
        }
        self.packets(report, Wire::Lossy, Extent::Lossy, hint).await?;
        self.files(report, Wire::Lossy, hint).await?;
        let (lost, of) = (loss.hits(self.daemon()?).await?, loss.matched(self.daemon()?).await?);
        let case = async {
            ensure!(lost > 1000 && of > lost, "{lost} of {of} frames were dropped");
            Ok(())
        };
        report.case("the link dropped frames", hint, case).await?;
        loss.clear(self.daemon()?).await
    }

    /// Runs the queue and counter cases.
    async fn queues(&mut self, report: &mut Report, hint: &str) -> Result<()> {
        let Self { a, peers } = self;
        let Some((_, b)) = peers.first_mut() else { return Ok(()) };
        report.case("flows are spread over the queues", hint, flows::spread(a, b)).await?;
        report.case("flows are spread over the queues, reverse", hint, flows::spread(b, a)).await?;
        report.case("NIC and kernel counters match", hint, flows::counted(a)).await
    }

    /// Runs the packet cases with every peer. `wire` is the loss to expect, and `extent` selects the cases.
    async fn packets(&mut self, report: &mut Report, wire: Wire, extent: Extent, hint: &str) -> Result<()> {
        let Self { a, peers, .. } = self;
        let all = extent != Extent::Core;
        let mtus = if all { jumbo::MTUS } else { CORE_MTUS };
        let chosen = if all { STREAMS } else { CORE_STREAMS };
        for (number, (kind, b)) in peers.iter_mut().enumerate() {
            let name = |what: &str| format!("{what}, {kind}");
            let whole = all || number == 0;
            let address = b.address(0);
            let pings = ping::all_sizes(a, &address.ipv4, wire);
            report.case(&name("ping over IPv4"), hint, pings).await?;
            let pings = ping::all_sizes(a, &address.ipv6, wire);
            report.case(&name("ping over IPv6"), hint, pings).await?;
            report.case(&name("congestion marks"), hint, ping::congestion_marks(a, b, wire)).await?;
            for &mtu in if whole { mtus } else { &[] } {
                report.case(&name(&format!("MTU {mtu}")), hint, jumbo::mtu(a, b, mtu, wire)).await?;
            }
            for &(what, streams) in chosen {
                report.case(&name(what), hint, streams.arrive(a, b, 0, wire)).await?;
            }
            report.case(&name("VLANs 1 and 4094"), hint, vlan::customer(a, b, wire)).await?;
            if all {
                report.case(&name("802.1ad with an inner VLAN"), hint, vlan::service(a, b, wire)).await?;
            }
            if wire == Wire::Good && whole {
                report.case(&name("receive filters"), hint, filter::let_in(a, b)).await?;
                report.case(&name("receive filters, reverse"), hint, filter::let_in(b, a)).await?;
            }
            if whole {
                report.case(&name("macvlan"), hint, bridge::macvlan(a, b, wire)).await?;
                report.case(&name("bridge, reverse"), hint, bridge::bridge(b, a, wire)).await?;
            }
            if all {
                report.case(&name("macvlan, reverse"), hint, bridge::macvlan(b, a, wire)).await?;
                report.case(&name("bridge"), hint, bridge::bridge(a, b, wire)).await?;
            }
        }
        let members: Vec<_> = peers.iter().map(|(_, peer)| peer.address(0)).collect();
        report.case("a multicast group responds", hint, ping::group(a, &members, wire)).await?;
        Ok(())
    }

    /// Transfers a large file to each peer.
    async fn files(&mut self, report: &mut Report, wire: Wire, hint: &str) -> Result<()> {
        let Self { a, peers, .. } = self;
        let checksum = content::make(a, 12).await?;
        for (kind, b) in peers {
            let name = format!("a 256 MiB file, {kind}");
            let send = content::send(a, b, &checksum, wire);
            report.case_within(content::limit(wire), &name, hint, send).await?;
        }
        Ok(())
    }

    /// Starts or stops capturing the cards' frames.
    async fn capture(&mut self, on: bool) -> Result<()> {
        for station in std::iter::once(&self.a).chain(self.peers.iter().map(|(_, peer)| peer)) {
            station.capture(on).await?;
        }
        Ok(())
    }

    fn daemon(&self) -> Result<&Daemon> {
        self.a.daemon.as_ref().context("a has no E810")
    }

    async fn no_warnings(&mut self) -> Result<()> {
        self.a.no_warnings().await?;
        for (_, peer) in &mut self.peers {
            peer.no_warnings().await?;
        }
        Ok(())
    }

    async fn stop(self) -> Result<()> {
        self.a.stop().await?;
        for (_, peer) in self.peers {
            peer.stop().await?;
        }
        Ok(())
    }
}
