//! Two connected devices, each driven by the user-space driver over its vfio-user socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::endpoint::{Endpoint, Spent};
use crate::node::{self, Node, Qp, Rings, Sizes};
use crate::processors;

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
    /// Text between the fabric prefix and the device name in the file names of recordings.
    pub(crate) infix: &'a str,
    /// Port of the first daemon's metrics, if enabled.
    pub(crate) metrics: Option<u16>,
}

impl Place<'_> {
    pub(crate) fn socket(self, own: usize) -> PathBuf {
        self.folder.join(format!("hcad-{own}.sock"))
    }
}

/// Starts two nodes that are each other's peers.
pub(crate) fn start(place: Place<'_>, sizes: &Sizes) -> Result<[Node; 2]> {
    let [near, far] = daemons(place, node::device)?;
    Ok([Node::open(1, &place.socket(0), near, sizes)?, Node::open(2, &place.socket(1), far, sizes)?])
}

/// Starts the daemons of two devices that are each other's peers. `device` returns the configuration entry of a device,
/// given its ID, socket and fabric. If each device has its own daemon, the two daemons run on different CPUs where
/// possible.
pub(crate) fn daemons(
    place: Place<'_>,
    device: impl Fn(usize, &Path, &Value) -> Value,
) -> Result<[Arc<Daemon>; 2]> {
    let addresses = node::free_addresses(2)?;
    let device = |own: usize| {
        let fabric = node::fabric(place.wire, place.folder, &addresses, own);
        let mut device = device(own + 1, &place.socket(own), &fabric);
        device["default_peer"] = json!({ "id": 2 - own });
        if let Some(records) = place.records {
            let file = format!("{}{}hca{}.record", place.wire.prefix(), place.infix, own + 1);
            device["record"] = json!(records.join(file));
        }
        device
    };
    if place.wire == Wire::Local {
        let both =
            Arc::new(Daemon::start(place.folder, "hcad", &[device(0), device(1)], place.metrics, None)?);
        return Ok([both.clone(), both]);
    }
    let cpus = processors::two()?;
    let single = |own: usize| {
        let name = format!("hcad-{own}");
        let metrics = place.metrics.map(|port| port + u16::from(own > 0));
        Daemon::start(place.folder, &name, &[device(own)], metrics, Some(&cpus[own])).map(Arc::new)
    };
    Ok([single(0)?, single(1)?])
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

/// Sends from the near end to the far end. `near` runs once `far` has posted its receives.
pub(crate) fn run_both<N: AsMut<Endpoint> + Send, T: Send>(
    ends: &mut [N; 2],
    near: impl FnOnce(&mut N) -> Result<T>,
    far: impl FnOnce(&mut N) -> Result<T> + Send,
) -> Result<[T; 2]> {
    let posted = ends[1].as_mut().announce()?;
    concurrently(
        ends,
        |end| {
            posted.recv().context("the far end did not post its receives")?;
            near(end)
        },
        far,
    )
}

/// Calls a function for both ends concurrently.
pub(crate) fn both<N: Send, S: Send, T: Send>(
    ends: &mut [N; 2],
    [near, far]: [S; 2],
    run: impl Fn(&mut N, S) -> Result<T> + Sync,
) -> Result<[T; 2]> {
    concurrently(ends, |end| run(end, near), |end| run(end, far))
}

fn concurrently<N: Send, T: Send>(
    [a, b]: &mut [N; 2],
    near: impl FnOnce(&mut N) -> Result<T>,
    far: impl FnOnce(&mut N) -> Result<T> + Send,
) -> Result<[T; 2]> {
    thread::scope(|scope| {
        // Name the thread so that profiles show the two drivers separately.
        let far = thread::Builder::new().name("driver2".into()).spawn_scoped(scope, || far(b))?;
        let near = near(a);
        let Ok(far) = far.join() else { bail!("the far end's thread panicked") };
        match (near, far) {
            (Ok(near), Ok(far)) => Ok([near, far]),
            // If one end fails, the other often fails as a consequence, so report both.
            (Err(near), Err(far)) => bail!("near end: {near:#}; far end: {far:#}"),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
        }
    })
}

/// Measures the CPU time that both ends spend while a function runs.
pub(crate) fn measured<N: AsMut<Endpoint>, T>(
    ends: &mut [N; 2],
    run: impl FnOnce(&mut [N; 2]) -> Result<T>,
) -> Result<(T, [Spent; 2])> {
    let spent =
        |ends: &mut [N; 2]| -> Result<_> { Ok([ends[0].as_mut().spent()?, ends[1].as_mut().spent()?]) };
    let before = spent(ends)?;
    let result = run(ends)?;
    // The CPU time of a running thread may not be accounted for until it sleeps, so give the measured threads time to
    // go idle.
    thread::sleep(Duration::from_millis(2));
    let after = spent(ends)?;
    Ok((result, [after[0] - before[0], after[1] - before[1]]))
}
