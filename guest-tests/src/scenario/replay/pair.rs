//! Two guests with recorded devices. Both use the same driver, `ib_mthca` or `irdma`.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use agent::wire::{ExitStatus, ProgramEnd};
use anyhow::{Context, Result, ensure};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::super::failing::{PeerAddress, Side, SideOptions};
use super::super::impairments::Impairments;
use super::super::nic::roce::{Gid, gid_index_of, irdma_guest};
use super::super::stock_pair::{MTHCA, StockPair};
use super::verdict::Files;
use crate::daemon::{Daemon, HcaSpec, Interface};
use crate::lab::Lab;
use crate::run_dir::RunDir;
use crate::tools::{Ends, Exchange, Ready, await_text};
use crate::vm::Vm;

/// Programs that every pair can run. The ping-pong programs check the content of every message.
const CORE: &[&str] = &[
    "ibv_rc_pingpong -n 200",
    "ibv_rc_pingpong -n 100 -s 65537 -m 1024 -e",
    "ib_write_bw -s 65536 -n 500",
    "ib_send_bw -s 4096 -n 1000",
    "ib_read_bw -s 65536 -n 300",
    "ib_write_lat -s 64 -n 500",
];

/// Programs for devices that support atomics. The E810 with `irdma` does not.
const ATOMICS: &[&str] = &["ib_atomic_bw -A FETCH_AND_ADD -n 300", "ib_atomic_bw -A CMP_AND_SWAP -n 300"];

const PORT: u16 = 18515;
const LIMIT: Duration = Duration::from_secs(120);
const PORT_TIMEOUT: Duration = Duration::from_secs(240);
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(240);

pub(super) struct Pair {
    kind: Kind,
    rules: [Impairments; 2],
}

enum Kind {
    Mthca(Box<StockPair>),
    E810(Box<[Card; 2]>),
}

/// A guest whose E810 is driven by `irdma`.
struct Card {
    vm: Vm,
    daemon: Daemon,
    device: &'static str,
    ip: Ipv4Addr,
    /// The run directory that contains the sockets.
    _run: Option<RunDir>,
}

pub(super) enum Drawn {
    Program(String),
    /// Causes one error of each kind.
    Storm,
}

impl Drawn {
    pub(super) fn draw(dice: &mut ChaCha8Rng, pair: &Pair) -> Self {
        let atomic = pair.programs().last().copied().unwrap_or_default();
        let size = 1_u32 << dice.random_range(0..=16);
        let size = size + dice.random_range(0..size);
        let few = (1 << 22) / size.max(16 << 10);
        let count = dice.random_range(few / 4..=few).max(5);
        Self::Program(match dice.random_range(0..8) {
            0 => return Self::Storm,
            1 => format!("ibv_rc_pingpong -n {count} -s {size}"),
            2 => format!("ibv_rc_pingpong -n {count} -s {size} -m 512 -e"),
            3 => format!("ib_write_bw -n {count} -s {size}"),
            4 => format!("ib_send_bw -n {count} -s {size} -m 1024"),
            5 => format!("ib_read_bw -n {count} -s {size} -b"),
            6 => atomic.to_owned(),
            _ => format!("ib_send_lat -n {count} -s {size}"),
        })
    }
}

impl Pair {
    pub(super) async fn start(lab: &Lab, run: RunDir, interface: Interface, trace: bool) -> Result<Self> {
        let recorded = |spec| HcaSpec { record: true, capture: false, trace, interface, ..spec };
        let kind = match interface {
            Interface::E810 => {
                let [a, b] = HcaSpec::pair()?.map(recorded);
                let (mut a, b) = tokio::try_join!(Card::start(lab, &run, &a), Card::start(lab, &run, &b))?;
                a._run = Some(run);
                Kind::E810(Box::new([a, b]))
            }
            _ => {
                let mut pair = StockPair::start_with(lab, run, recorded).await?;
                pair.load().await?;
                Kind::Mthca(Box::new(pair))
            }
        };
        Ok(Self { kind, rules: Default::default() })
    }

    /// Returns the programs that the pair can run. The last one uses atomics if the devices support them.
    pub(super) fn programs(&self) -> Vec<&'static str> {
        let atomics = match self.kind {
            Kind::Mthca(_) => ATOMICS,
            Kind::E810(_) => &[],
        };
        [CORE, atomics].concat()
    }

    fn daemons(&self) -> [&Daemon; 2] {
        match &self.kind {
            Kind::Mthca(pair) => [&pair.a.daemon, &pair.b.daemon],
            Kind::E810(cards) => cards.each_ref().map(|card| &card.daemon),
        }
    }

    pub(super) fn vms(&mut self) -> [&mut Vm; 2] {
        match &mut self.kind {
            Kind::Mthca(pair) => [&mut pair.a.vm, &mut pair.b.vm],
            Kind::E810(cards) => cards.each_mut().map(|card| &mut card.vm),
        }
    }

    /// Returns the paths of both devices' recordings and traces. The files are complete once the daemons have exited.
    pub(super) fn files(&self) -> [Files; 2] {
        self.daemons().map(|daemon| Files { record: daemon.record(), trace: daemon.trace() })
    }

    /// Adds each impairment at both ends and in both directions.
    pub(super) async fn make_wire_bad(&mut self, probability: &str, seed: u32) -> Result<()> {
        let seed = seed.to_string();
        let mut rules = std::mem::take(&mut self.rules);
        for (rules, daemon) in rules.iter_mut().zip(self.daemons()) {
            for direction in ["tx", "rx"] {
                let common = [direction, "--probability", probability, "--seed", &seed];
                for evil in
                    [&["drop"][..], &["duplicate"], &["delay", "50", "--jitter-us", "200"], &["reorder", "3"]]
                {
                    rules.add(daemon, &[&common, evil].concat()).await?;
                }
            }
        }
        self.rules = rules;
        Ok(())
    }

    /// Removes the impairments. Each of them must have affected at least one frame.
    pub(super) async fn make_wire_good(&mut self) -> Result<()> {
        let rules = std::mem::take(&mut self.rules);
        for (rules, daemon) in rules.into_iter().zip(self.daemons()) {
            let hits = rules.hits_of_each(daemon).await?;
            ensure!(hits.len() == 8 && hits.iter().all(|&hits| hits > 0), "hits by rule: {hits:?}");
            rules.clear(daemon).await?;
        }
        Ok(())
    }

    pub(super) fn is_wire_bad(&self) -> bool {
        self.rules.iter().any(|rules| !rules.is_empty())
    }

    pub(super) async fn run(&mut self, program: &str) -> Result<()> {
        let (common, gid) = match program.starts_with("ibv_") {
            true => (format!("{program} -c"), "-g"),
            false => (format!("{program} -F"), "-x"),
        };
        let (server, client) = match &mut self.kind {
            Kind::Mthca(pair) => {
                let server = format!("{common} -d {MTHCA}");
                let client = format!("{server} {}", pair.b.ip);
                (server, client)
            }
            Kind::E810(cards) => {
                let [a, b] = cards.each_mut();
                let (of_a, of_b) = (a.gid().await?, b.gid().await?);
                let client = format!("{common} -d {} {gid} {of_a} {}", a.device, b.ip);
                (format!("{common} -d {} {gid} {of_b}", b.device), client)
            }
        };
        let is_bad = self.is_wire_bad();
        let [a, b] = self.vms();
        let exchange = Exchange { server, client, ready: Ready::Tcp(PORT), limit: LIMIT };
        let ends = exchange.ends(b, a).await?;
        if !(is_bad && missed_last_ack(&ends)) {
            exchange.succeeded(&ends)?;
        }
        for end in [&ends.client, &ends.server] {
            // Ping-pong programs exit with status 0 even if they report invalid data.
            ensure!(!end.stdout.contains("invalid data"), "{}", end.stdout);
        }
        Ok(())
    }

    /// Starts a program in each guest and connects their queue pairs.
    pub(super) async fn sides(&mut self) -> Result<[Side; 2]> {
        let [of_a, of_b] = match &mut self.kind {
            Kind::Mthca(pair) => {
                [&pair.a, &pair.b].map(|node| SideOptions::new(MTHCA, PeerAddress::Lid(node.id)))
            }
            Kind::E810(cards) => {
                let [a, b] = cards.each_mut();
                [a.wanted().await?, b.wanted().await?]
            }
        };
        let [a, b] = self.vms();
        Side::pair((a, of_a), (b, of_b)).await
    }

    /// Takes guest `a`'s link down and brings it back up.
    pub(super) async fn toggle_link(&mut self) -> Result<()> {
        self.daemons()[0].control(&["port", "down"]).await?;
        self.port_of_a_is("1: DOWN").await?;
        self.daemons()[0].control(&["port", "up"]).await?;
        self.port_of_a_is("4: ACTIVE").await
    }

    async fn port_of_a_is(&mut self, state: &str) -> Result<()> {
        let device = match &self.kind {
            Kind::Mthca(_) => MTHCA,
            Kind::E810(cards) => cards[0].device,
        };
        let path = format!("/sys/class/infiniband/{device}/ports/1/state");
        let [a, _] = self.vms();
        await_text(a, &[&path], &[state], PORT_TIMEOUT).await
    }

    /// Unloads and reloads guest `a`'s RDMA driver, but not the modules that it depends on.
    pub(super) async fn reload(&mut self) -> Result<()> {
        let module = match &self.kind {
            Kind::Mthca(_) => "ib_mthca",
            Kind::E810(_) => "irdma",
        };
        let [a, _] = self.vms();
        a.run_within(UNLOAD_TIMEOUT, &["rmmod", module]).await?;
        a.run_within(UNLOAD_TIMEOUT, &["modprobe", module]).await?;
        self.port_of_a_is("4: ACTIVE").await
    }

    /// Kills the guests, then shuts the daemons down cleanly.
    pub(super) async fn stop(self) -> Result<()> {
        match self.kind {
            Kind::Mthca(pair) => pair.stop().await,
            Kind::E810(cards) => {
                for mut card in *cards {
                    card.vm.kill().await?;
                    card.daemon.stop().await?;
                }
                Ok(())
            }
        }
    }
}

/// Returns whether one end exited successfully while the other was still waiting for an acknowledgement of its last
/// message. The ping-pong programs do not synchronise before they exit.
fn missed_last_ack(ends: &Ends) -> bool {
    let is_done = |end: &ProgramEnd| end.status == ExitStatus::Code(0) && end.stdout.contains(" iters in ");
    let is_alone = |end: &ProgramEnd| {
        [&end.stdout, &end.stderr].iter().any(|said| said.contains("transport retry counter exceeded"))
    };
    let Ends { server, client } = ends;
    [(server, client), (client, server)].iter().any(|(done, alone)| is_done(done) && is_alone(alone))
}

impl Card {
    async fn start(lab: &Lab, run: &RunDir, spec: &HcaSpec) -> Result<Self> {
        let [high, low] = spec.id.to_be_bytes();
        let ip = Ipv4Addr::new(192, 168, high, low);
        let (vm, device, daemon) = irdma_guest(lab, run, spec, IpAddr::V4(ip)).await?;
        Ok(Self { vm, daemon, device, ip, _run: None })
    }

    async fn gid(&mut self) -> Result<usize> {
        gid_index_of(&mut self.vm, self.device, Gid::V4).await.context("the card's GID")
    }

    async fn wanted(&mut self) -> Result<SideOptions> {
        Ok(SideOptions::new(self.device, PeerAddress::Gid(self.gid().await?)))
    }
}
