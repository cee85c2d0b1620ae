//! Measures the rate of 64-byte messages between two HCAs that have many queue pairs or many memory regions. A drop in
//! the rate is a bug unless CPU cache misses explain it.

use agent::wire::{IcmOptions, MrId, Remote, SendOp};
use anyhow::{Context as _, Result};

use crate::Cli;
use crate::fabric::{DEPTH, RINGS, add_costs};
use crate::flows::{self, Buffers, COSTS, Plan};
use crate::node::{Node, Rings, Sizes};
use crate::pair::{self, Place, Wire};
use crate::report::{Figure, Figures, Reference};
use crate::runs::{rate, repeated};

pub(crate) type Measure = fn(&Cli, Wire, &mut Figures) -> Result<()>;

/// Numbers of queue pairs that carry traffic. The first is the reference for the others.
pub(crate) const QPS: [usize; 5] = [16, 1, 256, 4096, 16_384];
/// Numbers of memory regions. The first is the reference for the others.
const MRS: [usize; 4] = [100, 1, 10_000, 100_000];

/// Total number of messages in a memory-region run, across all queue pairs.
const MESSAGES: u32 = 200_000;
/// Ring sizes and number of outstanding messages per queue pair. They do not depend on the number of queue pairs.
const QP_RINGS: Rings = Rings { log_slots: 7, log_slot_bytes: 6 };
const QP_DEPTH: u32 = 64;
/// Number of messages in a run, regardless of the number of queue pairs. With the largest number of queue pairs, each
/// queue pair posts its full depth once.
const QP_MESSAGES: u32 = QP_DEPTH * 16_384;
/// Number of queue pairs in the memory-region measurements.
const MR_QPS: usize = 16;

pub(crate) fn queue_pairs(cli: &Cli, wire: Wire, figures: &mut Figures) -> Result<()> {
    let name = |count: usize| format!("{}scale_rc_send_64b_rate_{count}qp", wire.prefix());
    let costs = |count: usize| format!("{}scale_rc_send_64b_{count}qp", wire.prefix());
    if wanted(cli, &QPS, name).is_empty() {
        return Ok(());
    }
    let folder = tempfile::tempdir().context("cannot create a directory for sockets")?;
    let place = Place { folder: folder.path(), wire, records: None, infix: "", metrics: None };
    let icm = IcmOptions { log_qps: 15, log_mpts: 16, log_mtts: 17, ..IcmOptions::default() };
    let mut nodes = pair::start(place, &Sizes { arena_mib: 480, icm, log_cq: 16 })?;
    let regions = [nodes[0].region(4096)?, nodes[1].region(4096)?];
    let mut qps = Vec::new();
    let mut references = None;
    for count in wanted(cli, &QPS, name) {
        let missing = count.saturating_sub(qps.len());
        qps.extend(pair::connections(&mut nodes, missing, QP_RINGS)?);
        let plan =
            Plan { op: SendOp::Send, len: 64, count: QP_MESSAGES, depth: QP_DEPTH, buffers: Buffers::One };
        let ran = repeated(cli.runs, || {
            Ok(flows::send(&mut nodes, &qps[..count], regions, plan)?.rate_and_costs())
        })?;
        let [reference, cost] = references.get_or_insert_with(|| {
            let cost = format!("{}_{}", costs(count), COSTS[0]);
            [Reference::of(name(count), &ran[0]), Reference::of(cost, &ran[1])]
        });
        figures.add(Figure::new(name(count), "1/s", &ran[0], reference));
        add_costs(figures, &costs(count), &ran[1..], cost);
    }
    Ok(())
}

/// Returns the selected counts together with the first count, which is their reference. Returns an empty list if no
/// count is selected.
pub(crate) fn wanted(cli: &Cli, counts: &[usize], name: impl Fn(usize) -> String) -> Vec<usize> {
    let mut wanted: Vec<_> = counts.iter().copied().filter(|&count| cli.wants(&name(count))).collect();
    if let (Some(&first), true) = (counts.first(), !wanted.is_empty() && wanted.first() != counts.first()) {
        wanted.insert(0, first);
    }
    wanted
}

/// Measures the message rate for different numbers of memory regions at each end. All regions share the same few pages,
/// so that only the device's handling of keys differs, and not the caching of data.
pub(crate) fn regions(cli: &Cli, wire: Wire, figures: &mut Figures) -> Result<()> {
    let name = |count: usize| format!("{}scale_rc_write_64b_rate_{count}mr", wire.prefix());
    let costs = |count: usize| format!("{}scale_rc_write_64b_{count}mr", wire.prefix());
    if wanted(cli, &MRS, name).is_empty() {
        return Ok(());
    }
    let folder = tempfile::tempdir().context("cannot create a directory for sockets")?;
    let place = Place { folder: folder.path(), wire, records: None, infix: "", metrics: None };
    let icm = IcmOptions { log_mpts: 17, ..IcmOptions::default() };
    let mut nodes = pair::start(place, &Sizes { arena_mib: 64, icm, log_cq: 14 })?;
    let qps = pair::connections(&mut nodes, MR_QPS, RINGS)?;
    let region = nodes[0].region(4096)?;
    let far = nodes[1].region(4096)?;
    let mut keys: [Vec<(MrId, Remote)>; 2] =
        [vec![(region.id, region.remote(0))], vec![(far.id, far.remote(0))]];
    let mut references = None;
    for count in wanted(cli, &MRS, name) {
        let missing = count.saturating_sub(keys[0].len());
        let over = [region.id, far.id].map(|over| (over, missing));
        let more = pair::both(&mut nodes, over, |node: &mut Node, (over, missing)| {
            let another = |_| node.region_over(over).map(|made| (made.id, made.remote(0)));
            (0..missing).map(another).collect::<Result<Vec<_>>>()
        })?;
        for (keys, more) in keys.iter_mut().zip(more) {
            keys.extend(more);
        }
        let plan = Plan { op: SendOp::Write, len: 64, count: MESSAGES, depth: DEPTH, buffers: Buffers::One };
        let mut sends = flows::sends(&qps, region, plan);
        for (i, flow) in sends.iter_mut().enumerate() {
            // With at least 16 regions, each queue pair uses every sixteenth region. With fewer, each queue pair uses
            // all regions.
            let step = if count < MR_QPS { 1 } else { MR_QPS };
            let first = if count < MR_QPS { 0 } else { i };
            flow.mrs = keys[0][..count].iter().skip(first).step_by(step).map(|key| key.0).collect();
            flow.remotes = keys[1][..count].iter().skip(first).step_by(step).map(|key| key.1).collect();
        }
        let ran = repeated(cli.runs, || {
            let ran = flows::run_sends(&mut nodes, sends.clone())?;
            let [_, near_device, near_driver, far_device, _] = ran.rate_and_costs();
            Ok([rate(ran.messages, ran.elapsed_ns), near_device, near_driver, far_device])
        })?;
        let [reference, cost] = references.get_or_insert_with(|| {
            let cost = format!("{}_{}", costs(count), COSTS[0]);
            [Reference::of(name(count), &ran[0]), Reference::of(cost, &ran[1])]
        });
        figures.add(Figure::new(name(count), "1/s", &ran[0], reference));
        add_costs(figures, &costs(count), &ran[1..], cost);
    }
    Ok(())
}
