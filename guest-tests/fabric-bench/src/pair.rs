//! Two hcad processes wired to each other, each driven by the userspace driver over its vfio-user socket.

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;

use agent::serve::Agent;
use agent::wire::{
    Call, CreateCq, CreateMr, CreateQp, DeviceSelector, Flow, ModifyQp, MrInfo, OpenHca, Path as QpPath,
    PingPong, QpId, RoundTrips, Traffic, TrafficReport, Transition,
};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use crate::processors;

/// Memory lent to each device, MiB: buffers of 8 MiB and everything around them.
const ARENA_MIB: u32 = 64;
/// Completions of all queue pairs that wait to be taken, log2.
const CQ_LOG_ENTRIES: u8 = 14;
/// Longest wait for one measurement.
const TIMEOUT_MS: u32 = 60_000;

/// One daemon and its driver.
pub(crate) struct Node {
    agent: Agent,
    // After the agent: the driver lets go of its device before the daemon ends.
    _daemon: Daemon,
}

/// A queue pair of a node, connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qp {
    pub(crate) id: QpId,
    qpn: u32,
}

impl Node {
    /// Two nodes that are each other's peers, with records of their devices if there is a folder for them.
    pub(crate) fn pair(folder: &Path, records: Option<&Path>) -> Result<[Self; 2]> {
        let ports = {
            let any = ("127.0.0.1", 0);
            let held = [UdpSocket::bind(any)?, UdpSocket::bind(any)?];
            [held[0].local_addr()?.port(), held[1].local_addr()?.port()]
        };
        let node = |own: usize| -> Result<Self> {
            let daemon = Daemon::start(folder, own, ports, records)?;
            let mut agent = Agent::default();
            let socket = daemon.socket.display().to_string();
            call(
                &mut agent,
                OpenHca {
                    device: DeviceSelector::Socket(socket),
                    arena_mib: ARENA_MIB,
                    huge_pages: true,
                    ..OpenHca::default()
                },
            )?;
            Ok(Self { agent, _daemon: daemon })
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
    socket: PathBuf,
    _stderr: BufReader<ChildStderr>,
}

impl Daemon {
    fn start(folder: &Path, own: usize, ports: [u16; 2], records: Option<&Path>) -> Result<Self> {
        let socket = folder.join(format!("hcad-{own}.sock"));
        let config = folder.join(format!("hcad-{own}.json"));
        let text = json!({
            "control_socket": folder.join(format!("hcad-{own}.control")),
            "devices": [{
                "id": own + 1,
                "socket_path": socket,
                "frontend": { "jingzhao": {} },
                "default_peer": { "id": 2 - own },
                "fabric": { "udp": {
                    "bind": format!("127.0.0.1:{}", ports[own]),
                    "peers": [{ "addr": format!("127.0.0.1:{}", ports[1 - own]) }],
                }},
            }],
        });
        std::fs::write(&config, text.to_string())?;
        let program = std::env::current_exe()?.with_file_name("hcad");
        let mut command = Command::new(&program);
        command.arg("--config").arg(&config).env("RUST_LOG", "info").stderr(Stdio::piped());
        if let Some(records) = records {
            command.arg("--record").arg(records.join(format!("hca{}.record", own + 1)));
        }
        let mut child =
            processors::bound(&processors::two()?[own], || command.spawn())?.with_context(|| {
                format!("cannot start {}: cargo build --release builds it", program.display())
            })?;
        let stderr = child.stderr.take().context("standard error is a pipe")?;
        let mut stderr = BufReader::new(stderr);
        let mut said = String::new();
        while !said.contains("ready") {
            ensure!(stderr.read_line(&mut said)? > 0, "hcad ended before it was ready: {said}");
        }
        Ok(Self { child, socket, _stderr: stderr })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
