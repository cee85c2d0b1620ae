//! Boots a guest with iPXE over its only network device. iPXE has its own drivers for the E810 and the InfiniHost. The
//! guest gets an address by DHCP and a kernel by TFTP from another guest. Linux's stock driver then takes over the
//! device.

use std::time::Duration;

use agent::wire::ProgramId;
use anyhow::{Context as _, Result, ensure};

use super::nic::station;
use super::stock_pair::load_mthca;
use crate::daemon::{Daemon, HcaSpec, Interface};
use crate::lab::{BOOT_SCRIPT, Guest, Lab};
use crate::qemu::Share;
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::tools::{await_text, spawn, stop};
use crate::vm::{Image, Vm};

/// Directory that the server serves over TFTP.
const TFTP_ROOT: &str = "/srv/tftp";
const TFTP_TAG: &str = "tftp";
/// Prefix of the network's addresses. The server is .1, and DHCP assigns .100 to .200.
const NETWORK: &str = "10.82.0";
const SERVER_TIMEOUT: Duration = Duration::from_secs(20);
const CARRIER_TIMEOUT: Duration = Duration::from_secs(20);

/// A network device that both iPXE and Linux have drivers for.
#[derive(Clone, Copy, Debug)]
struct Card {
    interface: Interface,
    name: &'static str,
    modules: &'static [&'static str],
}

const CARDS: [Card; 2] = [
    Card { interface: Interface::E810, name: "the E810", modules: &["ice"] },
    Card { interface: Interface::Mthca, name: "the InfiniHost", modules: &["ib_ipoib"] },
];

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("netboot")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    for card in CARDS {
        let mut network = Network::start(lab, &run, &image, card).await.context(hint.clone())?;
        let name = format!("iPXE boots a kernel over {}", card.name);
        report.case(&name, &hint, network.boot_client(lab, &run, &image)).await?;
        let name = format!("{} works under Linux after iPXE", card.name);
        report.case(&name, &hint, network.client_pings()).await?;
        network.stop().await?;
    }
    Ok(())
}

/// A server that provides DHCP and TFTP, and a client that boots from it.
#[derive(Debug)]
struct Network {
    card: Card,
    server: Vm,
    dnsmasq: ProgramId,
    client: Option<Vm>,
    daemons: [Daemon; 2],
}

impl Network {
    async fn start(lab: &Lab, run: &RunDir, image: &Image, card: Card) -> Result<Self> {
        let specs = HcaSpec::pair()?.map(|spec| HcaSpec {
            name: format!("{}-{}", card.interface.name(), spec.name),
            interface: card.interface,
            capture: false,
            trace: lab.trace(),
            ..spec
        });
        let hcad = lab.hcad()?;
        let daemons =
            [Daemon::start(&hcad, &specs[0], run).await?, Daemon::start(&hcad, &specs[1], run).await?];
        let share = Share { folder: lab.boot_files(run, image)?, tag: TFTP_TAG.into(), read_only: true };
        let guest = Guest {
            name: &specs[0].name,
            hcas: vec![daemons[0].socket().to_owned()],
            shares: vec![share],
            ..Guest::default()
        };
        let mut server = lab.boot(run, image, guest).await?;
        let device = bring_up(&mut server, card, 1).await?;
        sh(
            &mut server,
            &format!(
                "modprobe -a 9pnet_virtio 9p && mkdir -p {TFTP_ROOT} && \
             mount -t 9p -o trans=virtio,version=9p2000.L,ro {TFTP_TAG} {TFTP_ROOT}"
            ),
        )
        .await?;
        let dnsmasq = spawn(&mut server, &format!(
            "dnsmasq --keep-in-foreground --log-facility=- --log-dhcp --conf-file=/dev/null --user=root --port=0 \
             --interface={device} --bind-interfaces --leasefile-ro --dhcp-range={NETWORK}.100,{NETWORK}.200 \
             --dhcp-boot={BOOT_SCRIPT} --enable-tftp --tftp-root={TFTP_ROOT}"
        ))
        .await?;
        // Port 67 (DHCP) in hexadecimal.
        await_text(&mut server, &["/proc/net/udp"], &[":0043 "], SERVER_TIMEOUT).await.context("dnsmasq")?;
        Ok(Self { card, server, dnsmasq, client: None, daemons })
    }

    /// Boots the client. The agent is part of the initramfs that the client fetches over the network, so its reply
    /// proves that the boot succeeded.
    async fn boot_client(&mut self, lab: &Lab, run: &RunDir, image: &Image) -> Result<()> {
        let name = format!("{}-b", self.card.interface.name());
        let guest = Guest {
            name: &name,
            hcas: vec![self.daemons[1].socket().to_owned()],
            boot_loader: Some(lab.ipxe().await?),
            least_memory_mib: 1024,
            ..Guest::default()
        };
        match lab.boot(run, image, guest).await {
            Ok(client) => self.client = Some(client),
            Err(error) => {
                let end = stop(&mut self.server, self.dnsmasq).await?;
                return Err(error.context(format!("output of dnsmasq:\n{}{}", end.stdout, end.stderr)));
            }
        }
        Ok(())
    }

    async fn client_pings(&mut self) -> Result<()> {
        let client = self.client.as_mut().context("the guest did not boot")?;
        bring_up(client, self.card, 2).await?;
        let answer =
            client.run(&["ping", "-c", "5", "-i", "0.2", "-s", "1400", &format!("{NETWORK}.1")]).await?;
        ensure!(answer.contains(" 0% packet loss"), "{answer}");
        Ok(())
    }

    /// Kills the guests, then shuts the daemons down cleanly.
    async fn stop(mut self) -> Result<()> {
        for vm in std::iter::once(&mut self.server).chain(&mut self.client) {
            vm.kill().await?;
        }
        for daemon in self.daemons {
            daemon.stop().await?;
        }
        Ok(())
    }
}

/// Loads the stock driver, configures an address on its network device, and returns the device's name.
async fn bring_up(vm: &mut Vm, card: Card, host: u16) -> Result<String> {
    if let Interface::Mthca = card.interface {
        load_mthca(vm).await?;
    }
    station::load(vm, card.modules).await?;
    let device = match card.interface {
        Interface::Mthca => "ib0".to_owned(),
        _ => station::device(vm, host).await?,
    };
    sh(vm, &format!("ip link set {device} up && ip address add {NETWORK}.{host}/24 dev {device}")).await?;
    let carrier = format!("/sys/class/net/{device}/carrier");
    await_text(vm, &[&carrier], &["1"], CARRIER_TIMEOUT).await.context("no carrier")?;
    Ok(device)
}

async fn sh(vm: &mut Vm, line: &str) -> Result<String> {
    vm.run(&["sh", "-c", line]).await
}
