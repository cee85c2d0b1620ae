//! Benchmarks many HCAs on one network, either all in one process or each in its own. Measures their total message rate
//! while each HCA sends to the next, and the CPU time of idle daemons.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use agent::wire::{Flow, IcmOptions, MrInfo, SendOp};
use anyhow::{Context as _, Result, bail};

use crate::Cli;
use crate::daemon::Daemon;
use crate::flows::{self, Buffers, Plan};
use crate::node::{self, Node, Qp, Rings, Sizes};
use crate::pair::Wire;
use crate::report::{Figure, Figures, Reference};
use crate::runs::{nanos_each, repeated, runs};
use crate::scale::wanted;

/// Numbers of HCAs to measure. The first is the reference for the others.
const HCAS: [usize; 3] = [2, 8, MOST];
/// Largest number of HCAs. Idle daemons are measured only with this many HCAs.
const MOST: usize = 64;
/// Number of messages per run, across all HCAs.
const MESSAGES: u32 = 100_000;
const RINGS: Rings = Rings { log_slots: 7, log_slot_bytes: 7 };
const DEPTH: u32 = 64;
/// How long to measure idle daemons.
const WATCH: Duration = Duration::from_secs(1);

/// How HCAs are distributed across processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processes {
    /// One daemon runs all devices.
    One,
    /// Each device has its own daemon.
    Many,
}

impl Processes {
    const fn name(self) -> &'static str {
        match self {
            Self::One => "one_process",
            Self::Many => "processes",
        }
    }
}

pub(crate) fn measure(cli: &Cli, wire: Wire, figures: &mut Figures) -> Result<()> {
    for processes in [Processes::One, Processes::Many] {
        // A `local` network cannot extend beyond one process.
        if wire == Wire::Local && processes == Processes::Many {
            continue;
        }
        let prefix = format!("{}scale_{}", wire.prefix(), processes.name());
        let name = |count: usize| format!("{prefix}_rc_send_64b_rate_{count}hca");
        let idle = |count: usize| format!("{prefix}_idle_{count}hca_cpu");
        let counts = if cli.wants(&idle(MOST)) { HCAS.to_vec() } else { wanted(cli, &HCAS, name) };
        let mut references = None;
        for count in counts {
            let folder = tempfile::tempdir().context("cannot create a directory for sockets")?;
            let mut network = Network::start(folder.path(), wire, processes, count)
                .with_context(|| format!("{count} HCAs, {}", processes.name()))?;
            let ran = repeated(cli.runs, || network.rate())?;
            let cost = |count| format!("{prefix}_rc_send_64b_{count}hca_device_ns");
            let [of_rate, of_cost] = references.get_or_insert_with(|| {
                [Reference::of(name(count), &ran[0]), Reference::of(cost(count), &ran[1])]
            });
            figures.add(Figure::new(name(count), "1/s", &ran[0], of_rate));
            figures.add(Figure::new(cost(count), "ns", &ran[1], of_cost));
            if count == MOST {
                let whole = Reference { name: "one_processor".into(), value: 100.0 };
                let taken = runs(cli.runs, || network.idle())?;
                figures.add(Figure::new(idle(count), "%", &taken, &whole));
            }
        }
    }
    Ok(())
}

/// HCAs that are connected in a cycle: each has one queue pair to the next HCA and one to the previous HCA.
struct Network {
    members: Vec<Member>,
    daemons: Vec<Arc<Daemon>>,
}

struct Member {
    node: Node,
    to_next: Qp,
    from_last: Qp,
    region: MrInfo,
}

impl Network {
    fn start(folder: &Path, wire: Wire, processes: Processes, count: usize) -> Result<Self> {
        let addresses = node::free_addresses(count)?;
        let socket = |own: usize| folder.join(format!("hcad-{own}.sock"));
        let device =
            |own: usize| node::device(own + 1, &socket(own), &node::fabric(wire, folder, &addresses, own));
        let daemons: Vec<_> = match processes {
            Processes::One => {
                let devices: Vec<_> = (0..count).map(device).collect();
                vec![Arc::new(Daemon::start(folder, "hcad", &devices, None, None)?)]
            }
            Processes::Many => (0..count)
                .map(|own| {
                    Daemon::start(folder, &format!("hcad-{own}"), &[device(own)], None, None).map(Arc::new)
                })
                .collect::<Result<_>>()?,
        };
        let icm = IcmOptions { log_qps: 4, log_cqs: 4, log_mpts: 5, log_mtts: 8, ..IcmOptions::default() };
        let sizes = Sizes { arena_mib: 2, icm, log_cq: RINGS.log_slots + 1 };
        let member = |own: usize| {
            let daemon = daemons.get(own).or_else(|| daemons.last()).context("there is a daemon")?;
            let mut node = Node::open(own + 1, &socket(own), daemon.clone(), &sizes)?;
            let region = node.region(4096)?;
            let [to_next, from_last] = node.queue_pairs(2, RINGS)?[..] else { bail!("not two queue pairs") };
            Ok(Member { node, to_next, from_last, region })
        };
        let mut members = (0..count).map(member).collect::<Result<Vec<_>>>()?;
        for own in 0..count {
            let next = (own + 1) % count;
            let (qp, peer) = (members[own].to_next, members[next].from_last);
            members[own].node.connect(qp, peer, Some(u16::try_from(next + 1)?))?;
            members[next].node.connect(peer, qp, Some(u16::try_from(own + 1)?))?;
        }
        let mut network = Self { members, daemons };
        // Switches flood frames until they have learned all addresses, so send one message per HCA first.
        network.exchange(1)?;
        Ok(network)
    }

    /// Returns the total message rate of all HCAs, in messages per second, and the daemons' total CPU time per message,
    /// in nanoseconds.
    fn rate(&mut self) -> Result<[f64; 2]> {
        let share = MESSAGES / u32::try_from(self.members.len())?;
        let before = self.device_time()?;
        let begun = Instant::now();
        self.exchange(share)?;
        let elapsed = begun.elapsed();
        let messages = u64::from(share) * self.members.len() as u64;
        thread::sleep(Duration::from_millis(2));
        let device = self.device_time()?.saturating_sub(before);
        Ok([1e9 / nanos_each(elapsed, messages), nanos_each(device, messages)])
    }

    /// Has each HCA send `count` messages to the next HCA.
    fn exchange(&mut self, count: u32) -> Result<()> {
        thread::scope(|scope| {
            let spawn = |member| scope.spawn(move || exchange(member, count));
            let all: Vec<_> = self.members.iter_mut().map(spawn).collect();
            all.into_iter().try_for_each(|running| match running.join() {
                Ok(result) => result,
                Err(_) => bail!("a driver's thread panicked"),
            })
        })
    }

    /// Returns the total CPU usage of all idle daemons, as a percentage of one CPU.
    fn idle(&self) -> Result<f64> {
        // Wait until the daemons have finished processing the last messages.
        thread::sleep(WATCH);
        let (begun, before) = (Instant::now(), self.device_time()?);
        thread::sleep(WATCH);
        let taken = self.device_time()?.saturating_sub(before);
        Ok(taken.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0)
    }

    /// Returns the total CPU time of all daemons.
    fn device_time(&self) -> Result<Duration> {
        self.daemons.iter().map(|daemon| daemon.time(None)).sum()
    }
}

fn exchange(member: &mut Member, count: u32) -> Result<()> {
    let Member { node, to_next, from_last, region } = member;
    let plan = Plan { op: SendOp::Send, len: 64, count, depth: DEPTH, buffers: Buffers::One };
    let send = flows::send_flow(*to_next, *region, plan);
    let receive = flows::receive(*from_last, *region, &send);
    node.run(vec![receive, Flow::Send(send)])?;
    Ok(())
}
