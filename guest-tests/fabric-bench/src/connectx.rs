//! Benchmarks two connected ConnectX cards: message rate, the CPU time that the device and the driver use per message,
//! and bandwidth.

use agent::wire::{
    ConnectMlx5Qps, CreateMlx5Qps, DeviceSelector, OpenMlx5, ReceiveOverMlx5, Remote, SendOverMlx5,
    VerifyMlx5,
};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::Cli;
use crate::doorbells::Doorbells;
use crate::endpoint::Endpoint;
use crate::fabric::{DEPTH, MANY, RATE_MESSAGES, RUN_BYTES, add_costs};
use crate::flows::{COSTS, RunResult};
use crate::pair::{self, Place, Wire};
use crate::report::{Figure, Figures};
use crate::runs::{repeated, runs, size};
use crate::yardstick::Yardstick;

/// Length of a message in the rate measurements.
const SMALL: u32 = 64;
/// Message sizes in the bandwidth measurements. The largest fits into half of the copy buffer.
const SIZES: [u32; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Size of each driver's copy buffer in MiB. One half is for sending, the other for receiving.
const DATA_MIB: u32 = 2;
/// Number of messages per doorbell.
const BATCH: u32 = DEPTH / 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Send,
    Write,
}

impl Op {
    const fn name(self) -> &'static str {
        match self {
            Self::Send => "rc_send",
            Self::Write => "rc_write",
        }
    }
}

struct Bench {
    ends: [Endpoint; 2],
    /// Destination of RDMA WRITEs at the far end.
    destination: Remote,
    /// Seed of the most recent run's messages. Each run sends different content, so that old content is not mistaken
    /// for new.
    seed: u64,
}

impl Bench {
    fn start(place: Place<'_>, doorbells: Doorbells) -> Result<Self> {
        let daemons = pair::daemons(place, |id, socket, fabric| {
            json!({
                "id": id,
                "socket_path": socket,
                "frontend": { "connectx": { "port": "infiniband" } },
                "fabric": fabric,
                "doorbells": doorbells.key(),
            })
        })?;
        let [near, far] = daemons;
        let open = |own: usize, daemon| {
            let device = DeviceSelector::Socket(place.socket(own).display().to_string());
            let step = OpenMlx5 { device, data_mib: DATA_MIB, huge_pages: true };
            Endpoint::open(own + 1, daemon, step)
        };
        let ((near, near_info), (far, far_info)) = (open(0, near)?, open(1, far)?);
        let mut ends = [near, far];
        let step = CreateMlx5Qps { count: u32::try_from(MANY)?, depth: DEPTH };
        let [near_qps, far_qps] = pair::both(&mut ends, [step; 2], Endpoint::call)?;
        let destination = far_qps.destination;
        let steps = [
            ConnectMlx5Qps { lid: far_info.lid, qpns: far_qps.qpns },
            ConnectMlx5Qps { lid: near_info.lid, qpns: near_qps.qpns },
        ];
        pair::both(&mut ends, steps, Endpoint::call)?;
        Ok(Self { ends, destination, seed: 0 })
    }

    /// Sends `count` messages on the first `qps` queue pairs, and checks the content that has arrived.
    fn run(&mut self, op: Op, len: u32, qps: usize, count: u32) -> Result<RunResult> {
        let share = count / u32::try_from(qps)?.max(1);
        let qps = u32::try_from(qps)?;
        self.seed += 1;
        let send = SendOverMlx5 {
            qps,
            count: share,
            len,
            depth: DEPTH,
            batch: BATCH,
            remote: (op == Op::Write).then_some(self.destination),
            remote_stride: 0,
            seed: self.seed,
        };
        let (streamed, spent) = pair::measured(&mut self.ends, |ends| match op {
            Op::Send => {
                // As in `flows::receive`, double the depth, since the sender may continue before the receiver has
                // reposted its buffers.
                let receive = ReceiveOverMlx5 { qps, count: share, len, depth: 2 * DEPTH, stride: 0 };
                let [sent, _] = pair::run_both(ends, |near| near.timed(send), |far| far.timed(receive))?;
                Ok(sent)
            }
            Op::Write => ends[0].timed(send),
        })?;
        let verified = self.ends[1].call(VerifyMlx5 { off: 0, len, seed: self.seed })?;
        ensure!(
            verified.first_difference.is_none(),
            "a message of {len} bytes arrived with different content: {verified:?}"
        );
        let messages = u64::from(share) * u64::from(qps);
        let bytes = messages * u64::from(len);
        Ok(RunResult { messages, bytes, elapsed_ns: streamed.elapsed_ns, spent })
    }
}

pub(crate) fn measure(cli: &Cli, wire: Wire, yardstick: &Yardstick, figures: &mut Figures) -> Result<()> {
    for doorbells in Doorbells::ALL {
        measure_with(cli, wire, doorbells, yardstick, figures)?;
    }
    Ok(())
}

fn measure_with(
    cli: &Cli,
    wire: Wire,
    doorbells: Doorbells,
    yardstick: &Yardstick,
    figures: &mut Figures,
) -> Result<()> {
    let infix = format!("connectx_{}", doorbells.infix());
    let prefix = format!("{}{infix}", wire.prefix());
    let rates = [Op::Send, Op::Write].into_iter().flat_map(|op| [1, MANY].map(|qps| Rate { op, qps }));
    let rates: Vec<_> = rates.filter(|rate| rate.is_wanted(cli, &prefix)).collect();
    let width = |len: u32| format!("{prefix}rc_write_{}_bw", size(len.into()));
    let sizes: Vec<_> = SIZES.into_iter().filter(|&len| cli.wants(&width(len))).collect();
    if rates.is_empty() && sizes.is_empty() {
        return Ok(());
    }
    let folder = tempfile::tempdir().context("cannot create a directory for sockets")?;
    let records = cli.record.as_deref();
    let place = Place { folder: folder.path(), wire, records, infix: &infix, metrics: cli.metrics };
    let mut bench = Bench::start(place, doorbells)?;
    for rate in rates {
        let Rate { op, qps } = rate;
        let ran = repeated(cli.runs, || Ok(bench.run(op, SMALL, qps, RATE_MESSAGES)?.rate_and_costs()))?;
        figures.add(Figure::new(rate.name(&prefix), "1/s", &ran[0], &yardstick.rate));
        // The receiver's driver does nothing for a WRITE, so its CPU time is omitted.
        let ends = if op == Op::Send { 1..5 } else { 1..4 };
        add_costs(figures, &rate.costs(&prefix), &ran[ends], &yardstick.datagram[0]);
    }
    for len in sizes {
        let count = (RUN_BYTES / len).min(RATE_MESSAGES);
        let widths = runs(cli.runs, || Ok(bench.run(Op::Write, len, 1, count)?.bandwidth()))?;
        figures.add(Figure::new(width(len), "MB/s", &widths, &yardstick.bandwidth));
    }
    Ok(())
}

/// A measurement of the message rate, and of the CPU time per message.
#[derive(Clone, Copy, Debug)]
struct Rate {
    op: Op,
    qps: usize,
}

impl Rate {
    fn name(self, prefix: &str) -> String {
        format!("{prefix}{}_{}_rate_{}qp", self.op.name(), size(SMALL.into()), self.qps)
    }

    /// Returns the common prefix of the names of the CPU times.
    fn costs(self, prefix: &str) -> String {
        format!("{prefix}{}_{}_{}qp", self.op.name(), size(SMALL.into()), self.qps)
    }

    fn is_wanted(self, cli: &Cli, prefix: &str) -> bool {
        let costs = self.costs(prefix);
        cli.wants(&self.name(prefix)) || COSTS.iter().any(|cost| cli.wants(&format!("{costs}_{cost}")))
    }
}
