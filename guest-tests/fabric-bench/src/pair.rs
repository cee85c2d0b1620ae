//! Two HCAs wired to each other, each driven by the userspace driver over its vfio-user socket.

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::thread;

use agent::serve::Agent;
use agent::wire::{
    Call, CreateCq, CreateMr, CreateQp, DeviceSelector, Flow, ModifyQp, MrInfo, OpenHca, Path as QpPath,
    PingPong, QpId, RoundTrips, Traffic, TrafficReport, Transition,
};
use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::processors;

/// Memory lent to each device, MiB: buffers of 8 MiB and everything around them.
const ARENA_MIB: u32 = 64;
/// Completions of all queue pairs that wait to be taken, log2.
const CQ_LOG_ENTRIES: u8 = 14;
/// Longest wait for one measurement.
const TIMEOUT_MS: u32 = 60_000;

/// How frames travel between the HCAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wire {
    /// UDP, between two processes
    Udp,
    /// Memory that two processes share
    Ring,
    /// Both HCAs in one process
    Local,
}

impl Wire {
    /// What names of figures begin with.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Udp => "",
            Self::Ring => "ring_",
            Self::Local => "local_",
        }
    }

    /// The HCAs of each daemon.
    fn daemons(self) -> &'static [&'static [usize]] {
        match self {
            Self::Udp | Self::Ring => &[&[0], &[1]],
            Self::Local => &[&[0, 1]],
        }
    }
}

/// Where everything of a pair is.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// For sockets and configurations.
    pub(crate) folder: &'a Path,
    pub(crate) wire: Wire,
    /// For records of the devices, if there are to be any.
    pub(crate) records: Option<&'a Path>,
    /// Port of the first daemon's metrics, if they are served.
    pub(crate) metrics: Option<u16>,
}

impl Place<'_> {
    fn socket(self, own: usize) -> PathBuf {
        self.folder.join(format!("hcad-{own}.sock"))
    }

    /// The entry of an HCA.
    fn device(self, own: usize, ports: [u16; 2]) -> Value {
        let fabric = match self.wire {
            Wire::Udp => json!({ "udp": {
                "bind": format!("127.0.0.1:{}", ports[own]),
                "peers": [{ "addr": format!("127.0.0.1:{}", ports[1 - own]) }],
            }}),
            Wire::Ring => json!({ "ring": { "folder": self.folder.join("ring") } }),
            Wire::Local => json!({ "local": {} }),
        };
        let mut device = json!({
            "id": own + 1,
            "socket_path": self.socket(own),
            "frontend": { "jingzhao": {} },
            "default_peer": { "id": 2 - own },
            "fabric": fabric,
        });
        if let Some(records) = self.records {
            let file = format!("{}hca{}.record", self.wire.prefix(), own + 1);
            device["record"] = json!(records.join(file));
        }
        device
    }
}

/// One HCA and its driver.
pub(crate) struct Node {
    agent: Agent,
    // After the agent: the driver lets go of its device before the daemon ends.
    _daemon: Arc<Daemon>,
}

/// A queue pair of a node, connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qp {
    pub(crate) id: QpId,
    qpn: u32,
}

impl Node {
    /// Two nodes that are each other's peers.
    pub(crate) fn pair(place: Place<'_>) -> Result<[Self; 2]> {
        let ports = {
            let any = ("127.0.0.1", 0);
            let held = [UdpSocket::bind(any)?, UdpSocket::bind(any)?];
            [held[0].local_addr()?.port(), held[1].local_addr()?.port()]
        };
        let daemons = place.wire.daemons().iter().map(|devices| Daemon::start(place, devices, ports));
        let daemons = daemons.map(|daemon| daemon.map(Arc::new)).collect::<Result<Vec<_>>>()?;
        let node = |own: usize| -> Result<Self> {
            let daemon = daemons.get(own).or_else(|| daemons.last()).context("there is a daemon")?;
            let mut agent = Agent::default();
            let socket = place.socket(own).display().to_string();
            call(
                &mut agent,
                OpenHca {
                    device: DeviceSelector::Socket(socket),
                    arena_mib: ARENA_MIB,
                    huge_pages: true,
                    ..OpenHca::default()
                },
            )?;
            Ok(Self { agent, _daemon: daemon.clone() })
        };
        Ok([node(0)?, node(1)?])
    }

    /// A region of `len` bytes with all rights.
    pub(crate) fn region(&mut self, len: u64) -> Result<MrInfo> {
        call(&mut self.agent, CreateMr { len, scattered: false, ..CreateMr::default() })
    }

    /// Runs flows to their end.
    pub(crate) fn run(&mut self, flows: Vec<Flow>) -> Result<TrafficReport> {
        call(&mut self.agent, Traffic { flows, timeout_ms: TIMEOUT_MS })
    }

    /// Exchanges messages with the other node.
    pub(crate) fn ping_pong(&mut self, step: PingPong) -> Result<RoundTrips> {
        call(&mut self.agent, step)
    }

    /// Queue pairs with `2^log_slots` work requests each way, that share two completion queues.
    fn queue_pairs(&mut self, count: usize, log_slots: u8) -> Result<Vec<Qp>> {
        let cq = CreateCq { log_entries: CQ_LOG_ENTRIES, ..CreateCq::default() };
        let (send_cq, recv_cq) = (call(&mut self.agent, cq)?.id, call(&mut self.agent, cq)?.id);
        let step = CreateQp {
            send_cq,
            recv_cq,
            log_sq_slots: log_slots,
            log_sq_slot_bytes: 7,
            log_rq_slots: log_slots,
            log_rq_slot_bytes: 7,
            ..CreateQp::default()
        };
        let create = |_| {
            let info = call(&mut self.agent, step)?;
            Ok(Qp { id: info.id, qpn: info.qpn })
        };
        (0..count).map(create).collect()
    }

    fn connect(&mut self, qp: Qp, peer: Qp) -> Result<()> {
        let path = QpPath::default();
        for transition in [
            Transition::ToInit { pkey_index: 0, qkey: 0 },
            Transition::ToRtr { remote_qpn: peer.qpn, mtu: 4096, psn: 0, rnr_timer: 1, path },
            Transition::ToRts { psn: 0, timeout: 14, retry: 7, rnr_retry: 7 },
        ] {
            call(&mut self.agent, ModifyQp { qp: qp.id, transition })?;
        }
        Ok(())
    }
}

/// Connections: the queue pairs of each, at either node.
pub(crate) fn connections(nodes: &mut [Node; 2], count: usize, log_slots: u8) -> Result<Vec<[Qp; 2]>> {
    let [a, b] = nodes;
    let near = a.queue_pairs(count, log_slots)?;
    let far = b.queue_pairs(count, log_slots)?;
    let connect = |(near, far): (Qp, Qp)| {
        a.connect(near, far)?;
        b.connect(far, near)?;
        Ok([near, far])
    };
    near.into_iter().zip(far).map(connect).collect()
}

/// Runs flows on both nodes at once.
pub(crate) fn run_both(nodes: &mut [Node; 2], near: Vec<Flow>, far: Vec<Flow>) -> Result<[TrafficReport; 2]> {
    both(nodes, [near, far], Node::run)
}

/// Does something on both nodes at once.
pub(crate) fn both<S: Send, T: Send>(
    nodes: &mut [Node; 2],
    [near, far]: [S; 2],
    run: impl Fn(&mut Node, S) -> Result<T> + Sync,
) -> Result<[T; 2]> {
    let [a, b] = nodes;
    thread::scope(|scope| {
        let far = scope.spawn(|| run(b, far));
        let near = run(a, near)?;
        let Ok(far) = far.join() else { bail!("the far node's thread panicked") };
        Ok([near, far?])
    })
}

fn call<C: Call>(agent: &mut Agent, step: C) -> Result<C::Answer> {
    Ok(agent.call(step)?)
}

/// A running hcad, stopped when dropped.
struct Daemon {
    child: Child,
    _stderr: BufReader<ChildStderr>,
}

impl Daemon {
    /// A daemon with these HCAs. One with a single HCA has a processor of its own.
    fn start(place: Place<'_>, devices: &[usize], ports: [u16; 2]) -> Result<Self> {
        let first = devices.first().copied().unwrap_or_default();
        let config = place.folder.join(format!("hcad-{first}.json"));
        let mut text = json!({
            "control_socket": place.folder.join(format!("hcad-{first}.control")),
            "devices": devices.iter().map(|&own| place.device(own, ports)).collect::<Vec<_>>(),
        });
        if let Some(port) = place.metrics {
            text["metrics"] = json!(format!("127.0.0.1:{}", usize::from(port) + first));
        }
        std::fs::write(&config, text.to_string())?;
        let program = std::env::current_exe()?.with_file_name("hcad");
        let mut command = Command::new(&program);
        command.arg("--config").arg(&config).env("RUST_LOG", "info").stderr(Stdio::piped());
        let spawned = match devices {
            [own] => processors::bound(&processors::two()?[*own], || command.spawn())?,
            _ => command.spawn(),
        };
        let mut child = spawned.with_context(|| {
            format!("cannot start {}: cargo build --release builds it", program.display())
        })?;
        let stderr = child.stderr.take().context("standard error is a pipe")?;
        let mut stderr = BufReader::new(stderr);
        let mut said = String::new();
        while !said.contains("ready") {
            ensure!(stderr.read_line(&mut said)? > 0, "hcad ended before it was ready: {said}");
        }
        Ok(Self { child, _stderr: stderr })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
