//! A guest with eight ConnectX cards, and a guest whose only network is a bond of two ConnectX cards. All cards have an
//! Ethernet port.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use super::super::nic::station::{Address, bring_up, carrier, device, load, strict_card};
use super::messages;
use crate::daemon::{Daemon, HcaSpec};
use crate::lab::{Guest, Lab};
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::testbed::kind::Device;
use crate::tools::{Exchange, Ready, await_text, spawn, stop, wait};
use crate::vm::Vm;

const HCA: Device = Device::Connectx;
/// Number of cards in guest `a`. The cards are numbered from 1.
const CARDS: u16 = 8;
/// Card numbers of guest `b`.
const PEERS: [u16; 2] = [CARDS + 1, CARDS + 2];
/// ID of the bond's network. Each of guest `a`'s cards has its own network, whose ID is the number of the card.
const BOND: u16 = 100;
/// Prefix of the addresses that the DHCP server assigns.
const DHCP: &str = "10.83.0";
/// Timeout for a program or a state change in emulated guests.
const LIMIT: Duration = Duration::from_secs(90);
/// Number of echo requests sent during a failover, at ten per second.
const ECHOES: u32 = 150;
/// Minimum number of replies to the echo requests. Some requests are lost before the bond, which polls its links ten
/// times a second, detects the failure.
const LEAST_REPLIES: u32 = 120;

/// Descriptions and options of the bonds. The ports either share one MAC address or keep their own.
const BONDS: [(&str, &str); 2] =
    [("with one address", ""), ("whose ports keep their addresses", "fail_over_mac active")];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("connectx-many")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut bench = Bench::start(lab, &run).await.context(hint.clone())?;
    report.case_within(LIMIT * 2, "the drivers bind to all cards", &hint, bench.load()).await?;
    let title = "a guest with only a ConnectX gets an address via DHCP";
    report.case(title, &hint, bench.dhcp()).await?;
    report
        .case_within(LIMIT * 4, "IP and RDMA work over each of the eight cards", &hint, bench.each_card())
        .await?;
    for (name, options) in BONDS {
        let title = format!("failover of a bond {name}");
        report.case_within(LIMIT * 4, &title, &hint, bench.bonded(options)).await?;
    }
    report.case("no kernel warnings", &hint, bench.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, bench.stop()).await
}

struct Bench {
    a: Vm,
    b: Vm,
    /// The daemons behind the cards of guests `a` and `b`, in that order.
    daemons: [Daemon; 2],
    /// Number of warnings that each guest logged before its card drivers were loaded.
    old_warnings: [usize; 2],
}

impl Bench {
    async fn start(lab: &Lab, run: &RunDir) -> Result<Self> {
        let specs: Vec<HcaSpec> = HcaSpec::mesh_of(usize::from(CARDS) + PEERS.len())?
            .into_iter()
            .map(|spec| strict_card(HCA, lab, spec))
            .collect();
        let (of_a, of_b) = specs.split_at(usize::from(CARDS));
        let hcad = lab.hcad()?;
        let daemons = [
            Daemon::start_by(Command::new(&hcad), of_a, run).await?,
            Daemon::start_by(Command::new(&hcad), of_b, run).await?,
        ];
        let image = lab.debian_image(run).await?;
        let (least_cpus, least_memory_mib) = HCA.least();
        let guest = |name, daemon: &Daemon, memory| Guest {
            name,
            cards: daemon.sockets().to_vec(),
            least_cpus,
            least_memory_mib: memory,
            ..Guest::default()
        };
        let (mut a, mut b) = tokio::try_join!(
            lab.boot(run, &image, guest("a", &daemons[0], 2 * least_memory_mib)),
            lab.boot(run, &image, guest("b", &daemons[1], least_memory_mib)),
        )?;
        let old_warnings = [warnings(&mut a).await?.len(), warnings(&mut b).await?.len()];
        Ok(Self { a, b, daemons, old_warnings })
    }

    /// Loads the drivers. The ARP setting makes a guest with several cards reply only from the card that has the
    /// address.
    async fn load(&mut self) -> Result<()> {
        for (vm, cards) in [(&mut self.a, CARDS.into()), (&mut self.b, PEERS.len())] {
            sh(vm, "sysctl -qw net.ipv4.conf.all.arp_ignore=1").await?;
            load(vm, HCA.modules()).await?;
            let found = sh(vm, "ls /sys/class/infiniband").await?;
            ensure!(found.lines().count() == cards, "RDMA devices: {found}");
        }
        Ok(())
    }

    async fn dhcp(&mut self) -> Result<()> {
        let (of_a, of_b) = (device(&mut self.a, 1).await?, device(&mut self.b, PEERS[0]).await?);
        sh(&mut self.a, &format!("ip address add {DHCP}.1/24 dev {of_a} && ip link set {of_a} up")).await?;
        carrier(&mut self.a, &of_a, true).await?;
        let line = format!(
            "dnsmasq --keep-in-foreground --log-facility=- --conf-file=/dev/null --user=root --port=0 \
             --interface={of_a} --bind-interfaces --leasefile-ro --dhcp-range={DHCP}.100,{DHCP}.200"
        );
        let dnsmasq = spawn(&mut self.a, &line).await?;
        // Port 67 (DHCP) in hexadecimal.
        await_text(&mut self.a, &["/proc/net/udp"], &[":0043 "], LIMIT).await.context("dnsmasq")?;
        let client = format!(
            "printf '#!/bin/sh\\n[ $1 != bound ] || ip address add $ip/24 dev $interface\\n' > /tmp/bound && \
             chmod +x /tmp/bound && ip link set {of_b} up && \
             busybox udhcpc -f -n -q -t 20 -T 1 -i {of_b} -s /tmp/bound 2>&1"
        );
        let printed = self.b.run_within(LIMIT, &["sh", "-c", &client]).await;
        let reply = match printed {
            Ok(_) => self.b.run(&["ping", "-c", "5", "-i", "0.2", "-s", "1400", &format!("{DHCP}.1")]).await,
            Err(error) => Err(error),
        };
        let end = stop(&mut self.a, dnsmasq).await?;
        let reply = reply.with_context(|| format!("dnsmasq printed {}{}", end.stdout, end.stderr))?;
        ensure!(reply.contains(" 0% packet loss"), "{reply}");
        for (vm, device) in [(&mut self.a, of_a), (&mut self.b, of_b)] {
            sh(vm, &format!("ip address flush dev {device}")).await?;
        }
        Ok(())
    }

    /// Tests each card of guest `a` against the first card of guest `b`.
    async fn each_card(&mut self) -> Result<()> {
        let of_b = device(&mut self.b, PEERS[0]).await?;
        for card in 1..=CARDS {
            let of_a = device(&mut self.a, card).await?;
            bring_up(&mut self.a, &of_a, &Address::on(card, card)).await?;
            bring_up(&mut self.b, &of_b, &Address::on(card, PEERS[0])).await?;
            let address = Address::on(card, PEERS[0]).ipv4;
            self.ping(&address).await.with_context(|| format!("card {card}"))?;
            self.rping(&address).await.with_context(|| format!("card {card}"))?;
        }
        sh(&mut self.b, &format!("ip address flush dev {of_b}")).await.map(drop)
    }

    async fn ping(&mut self, address: &str) -> Result<()> {
        let line =
            format!("for i in $(seq 20); do ping -n -q -c 3 -i 0.2 -W 1 {address} && exit 0; done; exit 1");
        sh(&mut self.a, &line).await.map(drop)
    }

    async fn rping(&mut self, address: &str) -> Result<()> {
        let server = format!("rping -s -a {address} -C 5 -V");
        let client = format!("rping -c -a {address} -C 5 -V");
        let exchange = Exchange { server, client, ready: Ready::Cm, limit: LIMIT };
        exchange.run(&mut self.b, &mut self.a).await.map(drop)
    }

    /// Bonds guest `b`'s cards and checks that IP and RDMA work before and after each failover.
    async fn bonded(&mut self, options: &str) -> Result<()> {
        let mut ports = Vec::new();
        let line = format!(
            "modprobe bonding max_bonds=0 && ip link add bond0 type bond mode active-backup miimon 100 {options}"
        );
        sh(&mut self.b, &line).await?;
        for id in PEERS {
            let port = device(&mut self.b, id).await?;
            sh(&mut self.b, &format!("ip link set {port} down && ip link set {port} master bond0")).await?;
            ports.push((id, port));
        }
        bring_up(&mut self.b, "bond0", &Address::on(BOND, PEERS[0])).await?;
        let of_a = device(&mut self.a, 1).await?;
        let own = Address::on(BOND, 1).ipv4;
        sh(&mut self.a, &format!("ip address replace {own}/24 dev {of_a}")).await?;
        let result = self.fail_over(&ports).await;
        sh(&mut self.b, "ip link del bond0").await?;
        for id in PEERS {
            self.daemons[1].controls_of(id).ask(&["port", "up"]).await?;
        }
        result
    }

    async fn fail_over(&mut self, ports: &[(u16, String)]) -> Result<()> {
        let address = Address::on(BOND, PEERS[0]).ipv4;
        self.ping(&address).await?;
        self.rping(&address).await.context("before the failover")?;
        for _ in 0..2 {
            let active = self.active().await?;
            let id = ports.iter().find(|(_, port)| *port == active).map(|(id, _)| *id);
            let id = id.with_context(|| format!("{active} is not a port of the bond"))?;
            let pings = spawn(&mut self.a, &format!("ping -n -q -c {ECHOES} -i 0.1 -W 2 {address}")).await?;
            let control = self.daemons[1].controls_of(id);
            control.ask(&["port", "down"]).await?;
            let until = format!(
                "until a=$(cat /sys/class/net/bond0/bonding/active_slave) && [ \"$a\" ] && [ $a != {active} ]; do \
                 sleep 0.05; done"
            );
            self.b.run_within(LIMIT, &["sh", "-c", &until]).await.context("no failover")?;
            let end = wait(&mut self.a, pings, LIMIT).await?;
            let replies = end
                .stdout
                .split_once(" received")
                .and_then(|(before, _)| before.rsplit(' ').next()?.parse::<u32>().ok());
            ensure!(replies.is_some_and(|replies| replies >= LEAST_REPLIES), "{}", end.stdout);
            self.rping(&address).await.context("after the failover")?;
            control.ask(&["port", "up"]).await?;
            carrier(&mut self.b, &active, true).await?;
        }
        Ok(())
    }

    async fn active(&mut self) -> Result<String> {
        Ok(sh(&mut self.b, "cat /sys/class/net/bond0/bonding/active_slave").await?.trim().to_owned())
    }

    async fn no_warnings(&mut self) -> Result<()> {
        for (vm, old) in [&mut self.a, &mut self.b].into_iter().zip(self.old_warnings) {
            let lines: Vec<_> = warnings(vm).await?.into_iter().skip(old).collect();
            ensure!(lines.is_empty(), "the kernel of guest {} logged {lines:#?}", vm.name());
        }
        Ok(())
    }

    async fn stop(mut self) -> Result<()> {
        self.a.kill().await?;
        self.b.kill().await?;
        for daemon in self.daemons {
            daemon.stop().await?;
        }
        Ok(())
    }
}

/// Returns the unexpected kernel warnings.
async fn warnings(vm: &mut Vm) -> Result<Vec<String>> {
    let mut lines = super::super::kernel_log::warnings(vm).await?;
    lines.retain(|line| !messages::is_normal(line));
    Ok(lines)
}

async fn sh(vm: &mut Vm, line: &str) -> Result<String> {
    vm.run(&["sh", "-c", line]).await
}
