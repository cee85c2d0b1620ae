//! Two guests, each with one card of the tested kind, and a third guest that runs soft-RoCE on an emulated NIC. The
//! third guest is connected to the first. If the tested cards are ConnectX cards, there is a fourth guest with an E810.

use std::fmt;
use std::time::Duration;

use agent::wire::ExitStatus;
use anyhow::{Context as _, Result, anyhow, ensure};

use super::super::station::{Station, bring_up, load, shape, strict_card};
use super::super::{ping, roce};
use super::programs::Program;
use crate::daemon::{HcaSpec, Peer, free_udp_ports};
use crate::lab::Lab;
use crate::qemu::{Nic, NicModel};
use crate::run_dir::RunDir;
use crate::scenario::rxe_interop::mac;
use crate::testbed::kind::Device;
use crate::tools::Exchange;

/// The soft-RoCE module, and the modules that RDMA programs need.
const SOFT_MODULES: &[&str] = &["rdma_rxe", "ib_uverbs", "rdma_ucm"];
/// Timeout for each program.
const LIMIT: Duration = Duration::from_secs(60);
/// ID of the VLAN that all guests use in addition to the untagged network.
const VLAN: u16 = 100;

/// IP version of a connection and whether it uses the VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    V4,
    V6,
    VlanV4,
    VlanV6,
}

impl Network {
    pub(super) const ALL: [Self; 4] = [Self::V4, Self::V6, Self::VlanV4, Self::VlanV6];

    /// Returns a multicast group address for the network's IP version.
    pub(super) const fn group(self) -> &'static str {
        match self {
            Self::V4 | Self::VlanV4 => "239.1.1.1",
            Self::V6 | Self::VlanV6 => "ff0e::1:7",
        }
    }

    pub(super) const fn is_ipv6(self) -> bool {
        matches!(self, Self::V6 | Self::VlanV6)
    }

    fn address(self, station: &Station) -> String {
        match self {
            Self::V4 => station.address(0).ipv4,
            Self::V6 => station.address(0).ipv6,
            Self::VlanV4 => station.address(VLAN).ipv4,
            Self::VlanV6 => station.address(VLAN).ipv6,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
            Self::VlanV4 => "IPv4 in a VLAN",
            Self::VlanV6 => "IPv6 in a VLAN",
        })
    }
}

/// A station. `A` and `B` have cards of the tested kind, and `C` runs soft-RoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Station `a`, whose card is also connected to station `c`.
    A,
    B,
    C,
    /// Station `d` with an E810, present only if the tested cards are of a different kind.
    D,
}

#[derive(Debug)]
pub(super) struct Bench {
    /// Stations in the order of [`Side`].
    stations: Vec<Station>,
}

impl Bench {
    pub(super) async fn start(lab: &Lab, run: &RunDir, hca: Device) -> Result<Self> {
        let image = lab.debian_image(run).await?;
        let has_d = hca != Device::E810;
        let mut specs = HcaSpec::mesh_of(if has_d { 3 } else { 2 })?.into_iter();
        let mut spec = |name: &str, hca| -> Result<HcaSpec> {
            let spec = strict_card(hca, lab, specs.next().context("too few devices")?);
            Ok(HcaSpec { name: name.into(), ..spec })
        };
        let (mut a, b) = (spec("a", hca)?, spec("b", hca)?);
        let d = if has_d { Some(spec("d", Device::E810)?) } else { None };
        let [bind] = free_udp_ports()?;
        a.peers.push(Peer { addr: bind, leaf: true, id: None });
        let c = if has_d { 4 } else { 3 };
        let nic = Nic { model: NicModel::Virtio, mac: mac(c), bind, peer: a.bind };
        let (a, b, c) = tokio::try_join!(
            Station::with_hca(hca, lab, run, &image, &a, shape(&a.name)),
            Station::with_hca(hca, lab, run, &image, &b, shape(&b.name)),
            Station::with_nic(lab, run, &image, "c", c, nic),
        )?;
        let mut stations = vec![a, b, c];
        if let Some(d) = d {
            stations.push(Station::with_e810(lab, run, &image, &d, Vec::new()).await?);
        }
        let mut bench = Self { stations };
        let sides = [Side::A, Side::B, Side::C, Side::D];
        let sides = sides.get(..bench.stations.len()).unwrap_or(&sides);
        for &side in sides {
            bench.open(side).await?;
        }
        // Resolve neighbours before starting programs that measure time.
        for &side in sides.iter().skip(1) {
            for network in Network::ALL {
                let address = network.address(bench.station(side)?);
                ping::until_answered(bench.station(Side::A)?, &address).await?;
            }
        }
        Ok(bench)
    }

    fn station(&mut self, side: Side) -> Result<&mut Station> {
        self.stations.get_mut(side as usize).with_context(|| format!("there is no station {side:?}"))
    }

    /// Loads a station's RDMA driver and adds the station to the VLAN.
    async fn open(&mut self, side: Side) -> Result<()> {
        let station = self.station(side)?;
        let device = station.device.clone();
        if side == Side::C {
            load(&mut station.vm, SOFT_MODULES).await?;
            station.sh(&format!("rdma link add rxe0 type rxe netdev {device}")).await?;
        } else {
            roce::start(station).await?;
        }
        station.sh(&format!("ip link add link {device} name vlan{VLAN} type vlan id {VLAN}")).await?;
        let address = station.address(VLAN);
        bring_up(&mut station.vm, &format!("vlan{VLAN}"), &address).await
    }

    /// Runs a program between a client and a server.
    pub(super) async fn connect(
        &mut self,
        program: &Program,
        network: Network,
        (client, server): (Side, Side),
    ) -> Result<()> {
        let of_client = &network.address(self.station(client)?);
        let of_server = &network.address(self.station(server)?);
        let [server_line, client_line] = program.lines(network, of_client, of_server);
        let exchange =
            Exchange { server: server_line, client: client_line, ready: program.ready, limit: LIMIT };
        let ends = self.stations.get_disjoint_mut([client as usize, server as usize]);
        let [client, server] = ends.map_err(|error| anyhow!("{client:?} and {server:?}: {error}"))?;
        program.judge(&exchange.run(&mut server.vm, &mut client.vm).await?)
    }

    /// Checks that the program's server fails and prints the kernel's error `reason`.
    pub(super) async fn refuse(
        &mut self,
        program: &Program,
        network: Network,
        server: Side,
        reason: &str,
    ) -> Result<()> {
        let address = network.address(self.station(server)?);
        let [line, _] = program.lines(network, &address, &address);
        let end = self.station(server)?.vm.program(LIMIT, &line).await?;
        ensure!(end.status != ExitStatus::Code(0) && end.stderr.contains(reason), "{line}: {end:?}");
        Ok(())
    }

    /// Starts or stops capturing the cards' frames.
    pub(super) async fn capture(&mut self, on: bool) -> Result<()> {
        for station in &self.stations {
            station.capture(on).await?;
        }
        Ok(())
    }

    pub(super) async fn no_warnings(&mut self) -> Result<()> {
        for station in &mut self.stations {
            station.no_warnings().await?;
        }
        Ok(())
    }

    pub(super) async fn stop(self) -> Result<()> {
        for station in self.stations {
            station.stop().await?;
        }
        Ok(())
    }
}
