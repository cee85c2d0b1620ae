//! Compares a ConnectX, an E810 and QEMU's own NICs. Each of two guests has one NIC of each kind, connected to the NIC
//! of the same kind in the other guest. The kinds are measured in turn, and no result counts as a failure. One table
//! shows results and ratios, and another shows the CPU time per round trip.

use std::fmt::Write as _;
use std::fs;
use std::ops::{Add, Sub};
use std::path::PathBuf;
use std::time::Duration;

use agent::wire::ProgramId;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::effort::Effort;
use super::station::{self, Address, strict_card};
use crate::daemon::{Daemon, HcaSpec, free_udp_ports};
use crate::lab::{Guest, Lab};
use crate::qemu::{Nic, NicModel};
use crate::report::{Report, line};
use crate::run_dir::RunDir;
use crate::scenario::e810::package::Package;
use crate::scenario::rxe_interop::mac;
use crate::testbed::kind::Device;
use crate::tools::{Exchange, Ready, spawn, stop};
use crate::vm::{Image, Vm};

/// Selects which measurements are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Extent {
    /// Throughput and round trips.
    All,
    /// Only round trips, with more repetitions.
    RoundTrips,
}

impl Extent {
    const fn name(self) -> &'static str {
        match self {
            Self::All => "nic-speed",
            Self::RoundTrips => "nic-round-trips",
        }
    }

    /// Returns the number of rounds. Each round measures every NIC once.
    const fn rounds(self) -> usize {
        match self {
            Self::All => 5,
            Self::RoundTrips => 11,
        }
    }

    fn takes(self, measure: Measure) -> bool {
        self == Self::All || measure.is_of_round_trips()
    }
}

/// Duration of a measurement in seconds.
const SECONDS: u32 = 2;
/// Timeout for a measurement, including setup and teardown.
const LIMIT: Duration = Duration::from_secs(60);
const IPERF_PORT: u16 = 5201;
const QPERF_PORT: u16 = 19765;
/// Maximum number of echo requests in a flood.
const PINGS: u32 = 2000;

/// The NICs to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Card {
    Hca(Device),
    Qemu(NicModel),
}

/// All NICs. Each HCA is compared with all NICs that follow it.
const CARDS: [Card; 4] =
    [Card::Hca(HCAS[0]), Card::Hca(HCAS[1]), Card::Qemu(NicModel::Virtio), Card::Qemu(NicModel::E1000e)];
const HCAS: [Device; 2] = [Device::Connectx, Device::E810];

impl Card {
    const fn name(self) -> &'static str {
        match self {
            Self::Hca(hca) => hca.name(),
            Self::Qemu(NicModel::Virtio) => "virtio-net",
            Self::Qemu(NicModel::E1000e) => "e1000e",
        }
    }

    const fn module(self) -> &'static str {
        match self {
            Self::Hca(Device::E810) => "ice",
            Self::Hca(_) => "mlx5_core",
            Self::Qemu(model) => model.module(),
        }
    }

    /// Returns the NIC's network number.
    const fn network(self) -> u16 {
        match self {
            Self::Hca(Device::E810) => 0,
            Self::Hca(_) => 3,
            Self::Qemu(NicModel::Virtio) => 1,
            Self::Qemu(NicModel::E1000e) => 2,
        }
    }

    /// Returns the station number of the NIC in guest 1 or 2.
    const fn id(self, guest: u16) -> u16 {
        10 * self.network() + guest
    }
}

/// The measured quantities. Higher is always better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Tcp { streams: u32, back: bool },
    TcpRoundTrips,
    FloodPing,
}

const MEASURES: &[Measure] = &[
    Measure::Tcp { streams: 1, back: false },
    Measure::Tcp { streams: 1, back: true },
    Measure::Tcp { streams: 8, back: false },
    Measure::Tcp { streams: 8, back: true },
    Measure::TcpRoundTrips,
    Measure::FloodPing,
];

impl Measure {
    fn name(self) -> String {
        match self {
            Self::Tcp { streams, back } => {
                format!("tcp_{streams}_stream{}{}_bw", plural(streams), if back { "_back" } else { "" })
            }
            Self::TcpRoundTrips => "tcp_rr_rate".into(),
            Self::FloodPing => "ping_flood_rate".into(),
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Tcp { .. } => "Mbit/s",
            Self::TcpRoundTrips | Self::FloodPing => "round trips/s",
        }
    }

    const fn is_of_round_trips(self) -> bool {
        matches!(self, Self::TcpRoundTrips | Self::FloodPing)
    }

    /// Returns the number of round trips that a result is based on.
    fn round_trips(self, value: f64) -> f64 {
        match self {
            Self::Tcp { .. } => 0.0,
            Self::TcpRoundTrips => value * f64::from(SECONDS),
            Self::FloodPing => f64::from(PINGS),
        }
    }

    /// Measures one NIC, with guest `a` as the client.
    async fn take(self, a: &mut Vm, b: &mut Vm, card: Card) -> Result<f64> {
        let peer = Address::on(card.network(), card.id(2)).ipv4;
        match self {
            Self::Tcp { streams, back } => {
                let back = if back { " -R" } else { "" };
                let exchange = Exchange {
                    server: format!("iperf3 -s -1 -B {peer}"),
                    client: format!("iperf3 -c {peer} -J -t {SECONDS} -P {streams}{back}"),
                    ready: Ready::Tcp(IPERF_PORT),
                    limit: LIMIT,
                };
                let ends = exchange.run(b, a).await?;
                let report: Value = serde_json::from_str(&ends.client.stdout).context("iperf3's report")?;
                let rate = report.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
                Ok(rate.with_context(|| format!("{report:#}"))? / 1e6)
            }
            Self::TcpRoundTrips => {
                let seconds = SECONDS.to_string();
                let text = a.run(&["qperf", "-u", "-uu", "-t", &seconds, &peer, "tcp_lat"]).await?;
                // qperf prints half the round-trip time. The options select nanoseconds as the unit.
                let half = text.lines().find_map(|line| line.split_once('=')?.1.split_whitespace().next());
                let half: f64 = half.and_then(|word| word.parse().ok()).context(text)?;
                Ok(1e9 / (2.0 * half))
            }
            Self::FloodPing => {
                let text = a.run(&["ping", "-n", "-f", "-q", "-c", &PINGS.to_string(), &peer]).await?;
                let number = |before: &str, after: &str| -> Option<f64> {
                    text.split_once(before)?.1.split_once(after)?.0.trim().parse().ok()
                };
                let (answered, ms) = (number("transmitted,", "received"), number("time ", "ms"));
                let (answered, ms) = (answered.context(text.clone())?, ms.context(text.clone())?);
                Ok(answered / ms * 1e3)
            }
        }
    }
}

const fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The guests and their HCAs' daemons.
struct Bench {
    a: Vm,
    b: Vm,
    daemons: Vec<Daemon>,
    run: RunDir,
}

/// Results of one measurement with one NIC.
struct Results {
    measure: Measure,
    card: Card,
    values: Vec<f64>,
    /// CPU time used in all rounds.
    taken: CpuTime,
    /// Number of round trips in all rounds.
    round_trips: f64,
}

/// CPU time used by guests and daemons.
#[derive(Clone, Copy, Debug, Default)]
struct CpuTime {
    vcpus: Effort,
    qemu: Effort,
    hcad: Effort,
    messages: u64,
    interrupts: u64,
}

impl Add for CpuTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            vcpus: self.vcpus + other.vcpus,
            qemu: self.qemu + other.qemu,
            hcad: self.hcad + other.hcad,
            messages: self.messages + other.messages,
            interrupts: self.interrupts + other.interrupts,
        }
    }
}

impl Sub for CpuTime {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            vcpus: self.vcpus - before.vcpus,
            qemu: self.qemu - before.qemu,
            hcad: self.hcad - before.hcad,
            messages: self.messages.saturating_sub(before.messages),
            interrupts: self.interrupts.saturating_sub(before.interrupts),
        }
    }
}

impl Results {
    fn median(&self) -> f64 {
        self.values.get(self.values.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    lab.require_release_build()?;
    let run = lab.new_run(extent.name())?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut bench = Bench::start(lab, run).await.context(hint.clone())?;
    let mut all = Vec::new();
    let rounds = extent.rounds();
    for &measure in MEASURES.iter().filter(|&&measure| extent.takes(measure)) {
        let name = format!("{}, {rounds} runs each", measure.name());
        report.case(&name, &hint, bench.measure(measure, rounds, &mut all)).await?;
    }
    line(&table(&all))?;
    line(&costs(&all))?;
    report
        .case("the results are written", &hint, async { keep(&all, bench.run.file("speed.jsonl")) })
        .await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, bench.stop()).await
}

impl Bench {
    async fn start(lab: &Lab, run: RunDir) -> Result<Self> {
        let image = lab.debian_image(&run).await?;
        let mut daemons = Vec::new();
        for hca in HCAS {
            for spec in HcaSpec::pair()? {
                let name = format!("{}-{}", hca.name(), spec.name);
                let id = Card::Hca(hca).id(spec.id);
                let spec = HcaSpec { name, id, strict: false, ..strict_card(hca, lab, spec) };
                daemons.push(Daemon::start(&lab.hcad()?, &spec, &run).await?);
            }
        }
        let [virtio, virtio_peer, e1000e, e1000e_peer] = free_udp_ports()?;
        let wires = [(NicModel::Virtio, virtio, virtio_peer), (NicModel::E1000e, e1000e, e1000e_peer)];
        let nics = |guest: u16| {
            let nic = |&(model, there, back)| {
                let (bind, peer) = if guest == 1 { (there, back) } else { (back, there) };
                Nic { model, mac: mac(Card::Qemu(model).id(guest)), bind, peer }
            };
            wires.iter().map(nic).collect::<Vec<_>>()
        };
        let cards = |guest: usize| {
            daemons.iter().skip(guest - 1).step_by(2).map(|daemon| daemon.socket().to_owned()).collect()
        };
        let (a, b) = tokio::try_join!(
            boot(lab, &run, &image, "a", nics(1), cards(1), 1),
            boot(lab, &run, &image, "b", nics(2), cards(2), 2),
        )?;
        Ok(Self { a, b, daemons, run })
    }

    /// Measures all NICs in turn.
    async fn measure(&mut self, measure: Measure, rounds: usize, all: &mut Vec<Results>) -> Result<()> {
        let rr = measure == Measure::TcpRoundTrips;
        let server = if rr { Some(qperf(&mut self.b).await?) } else { None };
        let mut found = CARDS.map(|card| Results {
            measure,
            card,
            values: Vec::new(),
            taken: CpuTime::default(),
            round_trips: 0.0,
        });
        for _ in 0..rounds {
            for found in &mut found {
                let before = self.taken().await?;
                let value = measure.take(&mut self.a, &mut self.b, found.card).await;
                let value = value.with_context(|| found.card.name())?;
                found.values.push(value);
                found.taken = found.taken + (self.taken().await? - before);
                found.round_trips += measure.round_trips(value);
            }
        }
        if let Some(server) = server {
            stop(&mut self.b, server).await?;
        }
        for found in &mut found {
            found.values.sort_unstable_by(f64::total_cmp);
        }
        all.extend(found);
        Ok(())
    }

    /// Returns the CPU time used so far.
    async fn taken(&mut self) -> Result<CpuTime> {
        let mut taken = CpuTime::default();
        for vm in [&self.a, &self.b] {
            let [vcpus, qemu] = Effort::of_guest(vm.process_id()?)?;
            taken.vcpus = taken.vcpus + vcpus;
            taken.qemu = taken.qemu + qemu;
        }
        for daemon in &mut self.daemons {
            taken.hcad = taken.hcad + Effort::of_process(daemon.process().id()?)?;
            let counters = daemon.control(&["counters"]).await?;
            let count =
                |place: &str| counters.pointer(place).and_then(Value::as_u64).context(place.to_owned());
            taken.messages += count("/vfio/messages/region_write")?;
            taken.interrupts += count("/vfio/interrupts/sent")?;
        }
        Ok(taken)
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

/// Boots a guest in which all NICs are up, each on its own network.
async fn boot(
    lab: &Lab,
    run: &RunDir,
    image: &Image,
    name: &str,
    nics: Vec<Nic>,
    cards: Vec<PathBuf>,
    number: u16,
) -> Result<Vm> {
    let mut vm = lab.boot(run, image, Guest { name, nics, cards, ..Guest::default() }).await?;
    Package::Synthetic.install(&mut vm).await?;
    for card in CARDS {
        station::load(&mut vm, &[card.module()]).await?;
        let id = card.id(number);
        let device = station::device(&mut vm, id).await?;
        station::bring_up(&mut vm, &device, &Address::on(card.network(), id)).await?;
    }
    Ok(vm)
}

async fn qperf(vm: &mut Vm) -> Result<ProgramId> {
    let server = spawn(vm, "qperf").await?;
    Ready::Tcp(QPERF_PORT).wait(vm, server, "qperf").await?;
    Ok(server)
}

/// Returns a table with one line per measurement. For each NIC, the line shows the rounds' median and spread, and the
/// ratio of the first NIC's median to that NIC's.
fn table(all: &[Results]) -> String {
    let mut text = format!("{:26}", "measure");
    for card in CARDS {
        write!(text, "{:>22}", card.name()).expect("writing to a String cannot fail");
    }
    for found in all.chunks(CARDS.len()) {
        let Some(first) = found.first() else { continue };
        write!(text, "\n{:26}", first.measure.name()).expect("writing to a String cannot fail");
        for found in found {
            let (least, most) = (found.values.first(), found.values.last());
            let spread = least.zip(most).map_or(0.0, |(least, most)| (most - least) / found.median() * 100.0);
            let of_it = if found.card == first.card {
                String::new()
            } else {
                format!(" x{:.2}", first.median() / found.median())
            };
            let cell = format!("{:.0} ±{:.0} %{of_it}", found.median(), spread / 2.0);
            write!(text, "{cell:>22}").expect("writing to a String cannot fail");
        }
        write!(text, "  {}", first.measure.unit()).expect("writing to a String cannot fail");
    }
    text + "\nxN: the value of the first NIC is N times the value of this NIC"
}

/// Returns a table of the CPU time per round trip, with one line per NIC and round-trip measurement.
fn costs(all: &[Results]) -> String {
    let mut text = format!(
        "{:26}{:>12}{:>22}{:>22}{:>22}{:>12}{:>10}{:>10}",
        "per round trip", "", "virtual CPUs", "rest of QEMU", "hcad", "waiting", "MMIO", "MSI-X"
    );
    for found in all.iter().filter(|found| found.measure.is_of_round_trips()) {
        let each = |amount: f64| amount / found.round_trips;
        let micros = |time: Duration| each(time.as_secs_f64() * 1e6);
        let CpuTime { vcpus, qemu, hcad, messages, interrupts } = found.taken;
        write!(text, "\n{:26}{:>12}", found.measure.name(), found.card.name())
            .expect("writing to a String cannot fail");
        for part in [vcpus, qemu, hcad] {
            let cell = format!("{:.0} us {:.1} sleeps", micros(part.ran), each(part.wakeups as f64));
            write!(text, "{cell:>22}").expect("writing to a String cannot fail");
        }
        let waited = format!("{:.0} us", micros((vcpus + qemu + hcad).waited));
        let (messages, interrupts) = (each(messages as f64), each(interrupts as f64));
        write!(text, "{waited:>12}{messages:>10.1}{interrupts:>10.1}")
            .expect("writing to a String cannot fail");
    }
    text + "\nEach value is the sum of both ends. sleeps: wake-ups from sleep. waiting: time spent waiting for a CPU."
}

/// Writes the ratios to a file in the format of `ci/bench`.
fn keep(all: &[Results], file: PathBuf) -> Result<()> {
    let mut lines = String::new();
    for found in all.chunks(CARDS.len()) {
        for (number, hca) in found.iter().take(HCAS.len()).enumerate() {
            for other in found.iter().skip(number + 1) {
                let (value, reference) = (hca.median(), other.median());
                let result = json!({
                    "name": format!("guest_{}_{}", hca.card.name(), hca.measure.name()),
                    "value": value,
                    "unit": hca.measure.unit(),
                    "against": other.card.name(),
                    "reference": reference,
                    "ratio": value / reference,
                });
                writeln!(lines, "{result}")?;
            }
        }
    }
    ensure!(!lines.is_empty(), "nothing was measured");
    fs::write(&file, lines).with_context(|| format!("cannot write {}", file.display()))
}
