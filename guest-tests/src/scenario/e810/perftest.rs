//! Runs perftest between two E810s with `irdma`. Every operation, service and size must work, including over
//! connections set up by `rdma_cm`. For the comparison in `speed-guests`, each guest also has an HCA for `ib_mthca`,
//! a ConnectX, and soft-RoCE on virtio-net.

use anyhow::{Context, Result, anyhow};

use crate::daemon::{Daemon, HcaSpec, Interface, free_udp_ports};
use crate::lab::{Guest, Lab};
use crate::qemu::{Nic, NicModel};
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::scenario::extent::Extent;
use crate::scenario::nic::roce::{self, DEVICE, Gid, gid_index_of};
use crate::scenario::nic::station::{self, Address, Station, e810_without_strict, load};
use crate::scenario::perftest::{self, Device, Ends};
use crate::scenario::rxe_interop::mac;
use crate::scenario::stock_pair::{self, CONNECTX, ETHERNET_MTU, MTHCA, add_soft_roce, load_mthca};
use crate::testbed::kind;
use crate::vm::Image;

/// Command lines, each with the number of message sizes in its results.
const CASES: &[(&str, usize)] = &[
    ("ib_write_bw -a -n 20", 23),
    ("ib_read_bw -a -n 10", 23),
    ("ib_send_bw -a -n 10", 23),
    ("ib_write_bw -s 4096 -n 1000 -q 8", 1),
    ("ib_read_bw -s 65536 -n 100 -q 4", 1),
    ("ib_send_bw -s 4096 -n 1000 -q 8", 1),
    ("ib_write_bw -s 65536 -n 200 -b", 1),
    ("ib_read_bw -s 65536 -n 100 -b", 1),
    ("ib_send_bw -s 4096 -n 1000 -q 4 -b", 1),
    ("ib_write_bw -s 64 -n 5000 -I 64", 1),
    // At most 101 bytes can be sent inline (E810 interface, section 13.4).
    ("ib_send_bw -s 101 -n 5000 -I 101", 1),
    ("ib_send_bw -s 4096 -n 1000 -e", 1),
    ("ib_read_bw -s 4096 -n 1000 -e", 1),
    ("ib_send_bw -s 4096 -n 1000 -r 4", 1),
    ("ib_write_bw -s 4096 -n 1000 -m 256", 1),
    ("ib_send_bw -c UD -a -n 100", 12),
    ("ib_send_bw -c UD -s 2048 -n 500 -q 2", 1),
    ("ib_send_bw -c UD -s 64 -n 2000 -I 64", 1),
    ("ib_send_lat -s 64 -n 500 -I 0", 1),
    ("ib_write_lat -s 64 -n 500 -I 64", 1),
    ("ib_send_lat -c UD -a -n 20", 12),
    // These connections are set up by rdma_cm, using the interface's addresses.
    ("ib_write_bw -R -s 65536 -n 200", 1),
    ("ib_send_bw -R -s 4096 -n 500 -q 4", 1),
    ("ib_write_bw -R -s 4096 -n 500 -b", 1),
    ("ib_send_bw -R -c UD -s 2048 -n 500", 1),
    ("ib_read_lat -R -s 64 -n 200", 1),
    ("ib_send_lat -R -s 64 -n 500", 1),
    ("ib_send_lat -R -c UD -s 1024 -n 200", 1),
];

/// Additional cases: all sizes for the remaining operations.
const MORE_CASES: &[(&str, usize)] = &[
    ("ib_write_bw -a -n 20 -b", 23),
    ("ib_read_bw -a -n 10 -b", 23),
    ("ib_send_bw -a -n 10 -b", 23),
    ("ib_write_lat -a -n 50", 23),
    ("ib_read_lat -a -n 20", 23),
    ("ib_send_lat -a -n 50", 23),
    ("ib_write_bw -R -a -n 20", 23),
    ("ib_read_bw -R -a -n 10", 23),
    ("ib_send_bw -R -a -n 10", 23),
    ("ib_write_lat -R -a -n 20", 23),
];

/// Network that the virtio NICs are on. The E810s are on network 0.
const VIRTIO: u16 = 1;
const MEMORY_MIB: u32 = 1024;

/// Two guests, each with all devices.
pub(in super::super) struct Bench {
    a: Station,
    b: Station,
    /// Daemons that serve the InfiniBand HCAs of each guest.
    daemons: [Vec<Daemon>; 2],
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let run = lab.new_run(extent.select("e810-perftest", "e810-perftest-full"))?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut bench = Bench::start(lab, &run).await.context(hint.clone())?;
    let by_gid = bench.e810().await.context(hint.clone())?;
    let by_address = Device { names: [DEVICE.into(), DEVICE.into()], ..by_gid.clone() };
    for &(case, sizes) in extent.select([CASES, &[]], [CASES, MORE_CASES]).iter().copied().flatten() {
        let device = if perftest::is_by_cm(case) { &by_address } else { &by_gid };
        report.case(case, &hint, perftest::complete(&mut bench.ends(), case, sizes, device)).await?;
    }
    report.case("no kernel warnings", &hint, bench.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, bench.stop()).await
}

impl Bench {
    /// Starts guests with all devices and brings the E810s up.
    pub(in super::super) async fn start(lab: &Lab, run: &RunDir) -> Result<Self> {
        let image = lab.debian_image(run).await?;
        let cards = HcaSpec::pair()?.map(|spec| e810_without_strict(lab, spec));
        let mut daemons = [Vec::new(), Vec::new()];
        for interface in [Interface::Mthca, Interface::ConnectxIb] {
            for (spec, daemons) in HcaSpec::pair()?.into_iter().zip(&mut daemons) {
                let name = format!("{}-{}", spec.name, interface.name());
                let spec = HcaSpec { name, interface, capture: false, trace: lab.trace(), ..spec };
                daemons.push(Daemon::start(&lab.hcad()?, &spec, run).await?);
            }
        }
        let [one, other] = free_udp_ports()?;
        let (a, b) = tokio::try_join!(
            boot(lab, run, &image, &cards[0], &daemons[0], nic(1, [one, other])),
            boot(lab, run, &image, &cards[1], &daemons[1], nic(2, [other, one])),
        )?;
        let mut bench = Self { a, b, daemons };
        for station in [&mut bench.a, &mut bench.b] {
            roce::start(station).await?;
        }
        roce::jumbo([&mut bench.a, &mut bench.b]).await?;
        Ok(bench)
    }

    pub(in super::super) fn ends(&mut self) -> Ends<'_> {
        Ends { a: &mut self.a.vm, b: &mut self.b.vm }
    }

    /// Returns the E810s of both guests.
    pub(in super::super) async fn e810(&mut self) -> Result<Device> {
        let names = self.by_gid(DEVICE).await?;
        Ok(Device { title: "E810", names, server: self.b.address(0).ipv4, slow: false })
    }

    /// Brings up the `ib_mthca` HCA, the ConnectX and soft-RoCE, and returns all three.
    pub(in super::super) async fn others(&mut self) -> Result<[Device; 3]> {
        for station in [&mut self.a, &mut self.b] {
            load_mthca(&mut station.vm).await?;
            stock_pair::load(&mut station.vm, kind::Device::ConnectxIb).await?;
            load(&mut station.vm, &["virtio_net"]).await?;
            let id = number(station.id);
            let device = station::device(&mut station.vm, id).await?;
            station::bring_up(&mut station.vm, &device, &Address::on(VIRTIO, id)).await?;
            station.sh(&format!("ip link set {device} mtu {ETHERNET_MTU}")).await?;
            add_soft_roce(&mut station.vm, &device).await?;
        }
        let server = Address::on(VIRTIO, number(self.b.id)).ipv4;
        let infiniband = |title, name: &str| {
            let names = [name.into(), name.into()];
            Device { title, names, server: server.clone(), slow: false }
        };
        let (mthca, connectx) = (infiniband("ib_mthca", MTHCA), infiniband("ConnectX", CONNECTX));
        let names = self.by_gid("rxe0").await?;
        Ok([mthca, connectx, Device { title: "soft-RoCE", names, server, slow: true }])
    }

    /// Returns the device name and the option that selects the IPv4 GID, for each guest.
    async fn by_gid(&mut self, device: &str) -> Result<[String; 2]> {
        let mut names = Vec::new();
        for station in [&mut self.a, &mut self.b] {
            let index = gid_index_of(&mut station.vm, device, Gid::V4).await?;
            names.push(format!("{device} -x {index}"));
        }
        names.try_into().map_err(|names| anyhow!("expected two devices, found {names:?}"))
    }

    async fn no_warnings(&mut self) -> Result<()> {
        self.a.no_warnings().await?;
        self.b.no_warnings().await
    }

    pub(in super::super) async fn stop(self) -> Result<()> {
        self.a.stop().await?;
        self.b.stop().await?;
        for daemon in self.daemons.into_iter().flatten() {
            daemon.stop().await?;
        }
        Ok(())
    }
}

async fn boot(
    lab: &Lab,
    run: &RunDir,
    image: &Image,
    spec: &HcaSpec,
    others: &[Daemon],
    nic: Nic,
) -> Result<Station> {
    let hcas = others.iter().map(|daemon| daemon.socket().to_owned()).collect();
    let least_memory_mib = MEMORY_MIB;
    let guest = Guest { name: &spec.name, hcas, nics: vec![nic], least_memory_mib, ..Guest::default() };
    Station::with_e810_in(lab, run, image, spec, guest).await
}

/// Returns the station number of a guest's virtio NIC.
const fn number(guest: u16) -> u16 {
    10 + guest
}

fn nic(guest: u16, [bind, peer]: [std::net::SocketAddr; 2]) -> Nic {
    Nic { model: NicModel::Virtio, mac: mac(number(guest)), bind, peer }
}
