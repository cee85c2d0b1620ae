//! Many HCAs on one network, in one process and each in its own: what they move together, each sending to the next, and
//! what they take of the processors when nothing is moved.

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

/// HCAs on the network. The first is what the others are held against.
const HCAS: [usize; 3] = [2, 8, MOST];
/// So many are watched when they are idle, too.
const MOST: usize = 64;
/// Messages of a run, of all HCAs together.
const MESSAGES: u32 = 100_000;
const RINGS: Rings = Rings { log_slots: 7, log_slot_bytes: 7 };
const DEPTH: u32 = 64;
/// How long an idle daemon is watched in a run.
const WATCH: Duration = Duration::from_secs(1);

/// Which process has which HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processes {
    /// One has all.
    One,
    /// Each has one.
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

/// By number of HCAs.
pub(crate) fn measure(cli: &Cli, wire: Wire, figures: &mut Figures) -> Result<()> {
    for processes in [Processes::One, Processes::Many] {
        // A local network is one of a process.
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

/// HCAs, each with a queue pair to the next and one to the one before.
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
        // Switches learn who is where; until then they flood.
        network.exchange(1)?;
        Ok(network)
    }

    /// Messages a second of all together, and what one takes of both its devices, nanoseconds.
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

    /// Has each send so many messages to the next.
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

    /// Percent of a processor that all daemons together take while nothing happens.
    fn idle(&self) -> Result<f64> {
        // What the last messages left behind is done then.
        thread::sleep(WATCH);
        let (begun, before) = (Instant::now(), self.device_time()?);
        thread::sleep(WATCH);
        let taken = self.device_time()?.saturating_sub(before);
        Ok(taken.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0)
    }

    /// Of all daemons.
    fn device_time(&self) -> Result<Duration> {
        self.daemons.iter().map(|daemon| daemon.time(None)).sum()
    }
}

/// One HCA's part of a run.
fn exchange(member: &mut Member, count: u32) -> Result<()> {
    let Member { node, to_next, from_last, region } = member;
    let plan = Plan { op: SendOp::Send, len: 64, count, depth: DEPTH, buffers: Buffers::One };
    let send = flows::send_flow(*to_next, *region, plan);
    let receive = flows::receive(*from_last, *region, &send);
    node.run(vec![receive, Flow::Send(send)])?;
    Ok(())
}
