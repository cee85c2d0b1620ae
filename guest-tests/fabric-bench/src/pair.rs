//! Two connected HCAs, each driven by the user-space driver over its vfio-user socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde_json::json;

use crate::daemon::Daemon;
use crate::node::{self, Node, Qp, Rings, Sizes, Spent};
use crate::processors;
use agent::wire::{Flow, TrafficReport};

/// How frames travel between the HCAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wire {
    /// UDP, between two processes
    Udp,
    /// Shared memory between two processes
    Ring,
    /// Both HCAs in one process
    Local,
}

impl Wire {
    /// Returns the prefix for the names of results and recordings.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Udp => "",
            Self::Ring => "ring_",
            Self::Local => "local_",
        }
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Ring => "ring",
            Self::Local => "local, one process",
        }
    }
}

/// Fabric, directories and metrics port of a pair.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// Directory for sockets and configurations.
    pub(crate) folder: &'a Path,
    pub(crate) wire: Wire,
    /// Directory for recordings, if enabled.
    pub(crate) records: Option<&'a Path>,
    /// Port of the first daemon's metrics, if enabled.
    pub(crate) metrics: Option<u16>,
}

impl Place<'_> {
    fn socket(self, own: usize) -> PathBuf {
        self.folder.join(format!("hcad-{own}.sock"))
    }
}

/// Starts two nodes that are each other's peers. If each node has its own daemon, the two daemons run on different
/// CPUs where possible.
pub(crate) fn start(place: Place<'_>, sizes: &Sizes) -> Result<[Node; 2]> {
    let addresses = node::free_addresses(2)?;
    let device = |own: usize| {
        let fabric = node::fabric(place.wire, place.folder, &addresses, own);
        let mut device = node::device(own + 1, &place.socket(own), &fabric);
        device["default_peer"] = json!({ "id": 2 - own });
        if let Some(records) = place.records {
            let file = format!("{}hca{}.record", place.wire.prefix(), own + 1);
            device["record"] = json!(records.join(file));
        }
        device
    };
    let daemons = if place.wire == Wire::Local {
        let both =
            Arc::new(Daemon::start(place.folder, "hcad", &[device(0), device(1)], place.metrics, None)?);
        [both.clone(), both]
    } else {
        let cpus = processors::two()?;
        let single = |own: usize| {
            let name = format!("hcad-{own}");
            let metrics = place.metrics.map(|port| port + u16::from(own > 0));
            Daemon::start(place.folder, &name, &[device(own)], metrics, Some(&cpus[own])).map(Arc::new)
        };
        [single(0)?, single(1)?]
    };
    let [near, far] = daemons;
    Ok([Node::open(1, &place.socket(0), near, sizes)?, Node::open(2, &place.socket(1), far, sizes)?])
}

/// Connects `count` queue pairs on one node to the same number of queue pairs on the other node.
pub(crate) fn connections(nodes: &mut [Node; 2], count: usize, rings: Rings) -> Result<Vec<[Qp; 2]>> {
    let made = both(nodes, [(), ()], |node, ()| node.queue_pairs(count, rings))?;
    let [near, far] = made;
    let pairs = |own: Vec<Qp>, other: &[Qp]| own.into_iter().zip(other.to_vec()).collect::<Vec<_>>();
    let steps = [pairs(near.clone(), &far), pairs(far.clone(), &near)];
    both(nodes, steps, |node, pairs| {
        pairs.into_iter().try_for_each(|(own, peer)| node.connect(own, peer, None))
    })?;
    Ok(near.into_iter().zip(far).map(|(near, far)| [near, far]).collect())
}

/// Runs flows on both nodes. The near node starts once the far node has posted its receives.
pub(crate) fn run_both(nodes: &mut [Node; 2], near: Vec<Flow>, far: Vec<Flow>) -> Result<[TrafficReport; 2]> {
    let posted = nodes[1].announce()?;
    both(nodes, [(near, Some(posted)), (far, None)], |node, (flows, posted)| {
        if let Some(posted) = posted {
            // An error means that the far node has failed. The failure is reported with that node's result.
            let _ = posted.recv();
        }
        node.run(flows)
    })
}

/// Calls a function for both nodes concurrently.
pub(crate) fn both<S: Send, T: Send>(
    nodes: &mut [Node; 2],
    [near, far]: [S; 2],
    run: impl Fn(&mut Node, S) -> Result<T> + Sync,
) -> Result<[T; 2]> {
    let [a, b] = nodes;
    thread::scope(|scope| {
        // Name the thread so that profiles show the two drivers separately.
        let far = thread::Builder::new().name("driver2".into()).spawn_scoped(scope, || run(b, far))?;
        let near = run(a, near)?;
        let Ok(far) = far.join() else { bail!("the far node's thread panicked") };
        Ok([near, far?])
    })
}

/// Measures the CPU time that both nodes spend while a function runs.
pub(crate) fn measured<T>(
    nodes: &mut [Node; 2],
    run: impl FnOnce(&mut [Node; 2]) -> Result<T>,
) -> Result<(T, [Spent; 2])> {
    let before = [nodes[0].spent()?, nodes[1].spent()?];
    let result = run(nodes)?;
    // The CPU time of a running thread may not be accounted for until it sleeps, so give the measured threads time to
    // go idle.
    thread::sleep(Duration::from_millis(2));
    let after = [nodes[0].spent()?, nodes[1].spent()?];
    Ok((result, [after[0] - before[0], after[1] - before[1]]))
}
