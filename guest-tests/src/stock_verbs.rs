//! Uses the stock verbs stack in a guest. A program in the guest reads one command per line and executes it through
//! rdma-core's Python bindings.
//!
//! The program (`guest/stock_verbs.py`) runs until [`StockVerbs::close`]. It uses the kernel's driver and rdma-core's
//! provider, neither of which is part of the project.

use std::time::Duration;

use agent::wire::{Hex, Service};
use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::line_program::LineProgram;
use crate::vm::Vm;

const PROGRAM: &str = include_str!("../guest/stock_verbs.py");
/// Timeout for starting the Python interpreter and importing the verbs modules in an emulated guest.
const START_TIMEOUT: Duration = Duration::from_secs(240);
/// Timeout for requests that do not wait for an event.
const TIMEOUT: Duration = Duration::from_secs(240);

/// The running verbs program, which has opened one device.
#[derive(Clone, Copy, Debug)]
pub struct StockVerbs {
    program: LineProgram,
}

/// The first port of a device.
#[derive(Clone, Debug, Deserialize)]
pub struct Port {
    /// LID of the port, or 0 on Ethernet.
    pub lid: u16,
    /// GIDs as text, in index order.
    pub gids: Vec<String>,
    /// Active MTU in bytes.
    pub mtu: u32,
    pub active: bool,
}

/// A file in the guest, mapped into the program and registered with all access rights.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct FileRegion {
    id: u32,
    /// Address of the region's first byte.
    pub addr: u64,
    pub lkey: u32,
    pub rkey: u32,
}

/// A type 1 memory window.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct StockWindow {
    id: u32,
    /// Key that peers use for the window.
    pub rkey: u32,
}

/// A queue pair with its own completion queue.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct StockQp {
    id: u32,
    pub qpn: u32,
}

/// The path to a peer's queue pair.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StockPath {
    /// QP number of the peer.
    pub qpn: u32,
    /// GID of the peer, or `None` if the peer is in the same subnet.
    pub gid: Option<String>,
    /// Index of the local GID.
    pub sgid_index: u32,
    pub lid: u16,
}

/// Attributes for all transitions from RESET to RTS.
#[derive(Clone, Debug, Serialize)]
pub struct StockConnect {
    /// The peer of a connected queue pair.
    pub peer: StockPath,
    /// Path MTU in bytes.
    pub mtu: u16,
    /// PSN of the first packet that this side sends.
    pub psn: u32,
    /// PSN of the first packet that this side expects from the peer.
    pub peer_psn: u32,
    /// Q_Key of a UD queue pair.
    pub qkey: u32,
    pub timeout: u8,
    pub retry: u8,
    /// Number of retries after RNR NAKs.
    pub rnr_retry: u8,
    /// Timer code in the RNR NAKs that this side sends.
    pub rnr_timer: u8,
}

/// Address, length and L_Key of a memory segment.
pub type StockSge = (u64, u32, u32);

/// A send work request. Fields that the operation does not use are ignored.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StockSend {
    /// Operation: `send`, `send_imm`, `write`, `write_imm`, `read`, `cmp_swap` or `fetch_add`.
    pub op: &'static str,
    pub sges: Vec<StockSge>,
    /// Immediate data in network byte order.
    pub imm: Hex,
    pub va: u64,
    pub rkey: u32,
    /// Compare value of a compare-and-swap, or addend of a fetch-and-add.
    pub compare_add: u64,
    /// New value of a compare-and-swap.
    pub swap: u64,
    /// Address handle for a datagram.
    pub ah: Option<StockAh>,
    /// Destination queue pair of a datagram.
    pub qpn: u32,
    pub qkey: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StockAh(u32);

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StockCompletion {
    /// Status as a value of rdma-core's `ibv_wc_status`.
    pub status: u32,
    /// Whether this completes a receive request.
    pub received: bool,
    pub bytes: u32,
    /// Immediate data, if the message carries any.
    pub imm: Option<Hex>,
    /// Whether the received message has a GRH.
    pub grh: bool,
    /// Source queue pair of a datagram.
    pub src_qp: u32,
}

impl StockVerbs {
    /// Starts the program in a guest that has a root file system, and opens a device.
    ///
    /// # Errors
    /// Fails if the device does not exist, or the program does not start.
    pub async fn open(vm: &mut Vm, device: &str) -> Result<(Self, Port)> {
        let verbs = Self { program: LineProgram::start(vm, PROGRAM).await? };
        let port = verbs.ask_within(START_TIMEOUT, vm, "open", json!({ "device": device })).await?;
        Ok((verbs, port))
    }

    /// Registers a file of `len` bytes, creating it if it does not exist.
    ///
    /// # Errors
    /// Fails if the kernel rejects the registration.
    pub async fn region(&self, vm: &mut Vm, path: &str, len: u64) -> Result<FileRegion> {
        self.ask(vm, "region", json!({ "path": path, "len": len })).await
    }

    /// Deregisters a file's memory.
    ///
    /// # Errors
    /// Fails if the kernel rejects the request.
    pub async fn deregister(&self, vm: &mut Vm, region: FileRegion) -> Result<()> {
        self.ask(vm, "deregister", json!({ "region": region.id })).await
    }

    /// Creates a window with remote write access to the whole region, and binds the window through a queue pair in RTS.
    ///
    /// # Errors
    /// Fails if the kernel rejects the window, or the bind operation fails.
    pub async fn window(&self, vm: &mut Vm, qp: StockQp, region: FileRegion) -> Result<StockWindow> {
        self.ask(vm, "window", json!({ "qp": qp.id, "region": region.id })).await
    }

    /// Invalidates a window through a queue pair.
    ///
    /// # Errors
    /// Fails if the window cannot be invalidated.
    pub async fn unbind(&self, vm: &mut Vm, qp: StockQp, window: StockWindow) -> Result<()> {
        self.ask(vm, "unbind", json!({ "qp": qp.id, "window": window.id })).await
    }

    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    /// Fails if the kernel rejects the queue pair.
    pub async fn queue_pair(&self, vm: &mut Vm, service: Service) -> Result<StockQp> {
        self.queue_pair_with(vm, service, None).await
    }

    /// Creates a queue pair in RESET, optionally with the given completion queue capacity.
    ///
    /// # Errors
    /// Fails if the kernel rejects the queue pair.
    pub async fn queue_pair_with(
        &self,
        vm: &mut Vm,
        service: Service,
        completions: Option<u32>,
    ) -> Result<StockQp> {
        self.ask(vm, "queue_pair", json!({ "service": service, "completions": completions })).await
    }

    /// Moves a queue pair from RESET to RTS.
    ///
    /// # Errors
    /// Fails if the kernel rejects a transition.
    pub async fn connect(&self, vm: &mut Vm, qp: StockQp, connect: &StockConnect) -> Result<()> {
        let mut arguments = serde_json::to_value(connect)?;
        arguments["qp"] = qp.id.into();
        self.ask(vm, "connect", arguments).await
    }

    /// Creates an address handle for a peer.
    ///
    /// # Errors
    /// Fails if the kernel rejects the address handle.
    pub async fn address(&self, vm: &mut Vm, peer: &StockPath) -> Result<StockAh> {
        self.ask(vm, "address", json!({ "peer": peer })).await
    }

    /// Returns a queue pair's path migration state as a value of `ibv_mig_state`.
    ///
    /// # Errors
    /// Fails if the kernel rejects the query.
    pub async fn migration(&self, vm: &mut Vm, qp: StockQp) -> Result<u32> {
        self.ask(vm, "migration", json!({ "qp": qp.id })).await
    }

    /// Attaches a queue pair to a multicast group. The program must not have other queue pairs.
    ///
    /// # Errors
    /// Fails if the kernel rejects the request.
    pub async fn join(&self, vm: &mut Vm, qp: StockQp, gid: &str) -> Result<()> {
        self.ask(vm, "join", json!({ "qp": qp.id, "gid": gid })).await
    }

    /// Posts receive requests.
    ///
    /// # Errors
    /// Fails if the queue is full.
    pub async fn post_recv(&self, vm: &mut Vm, qp: StockQp, lists: &[Vec<StockSge>]) -> Result<()> {
        self.ask(vm, "post_recv", json!({ "qp": qp.id, "lists": lists })).await
    }

    /// Posts send requests.
    ///
    /// # Errors
    /// Fails if the queue is full.
    pub async fn post_send(&self, vm: &mut Vm, qp: StockQp, requests: &[StockSend]) -> Result<()> {
        self.ask(vm, "post_send", json!({ "qp": qp.id, "requests": requests })).await
    }

    /// Waits for completions. Returns fewer than `count` on a timeout.
    ///
    /// # Errors
    /// Fails if the queue cannot be polled.
    pub async fn poll(
        &self,
        vm: &mut Vm,
        qp: StockQp,
        count: u32,
        limit: Duration,
    ) -> Result<Vec<StockCompletion>> {
        let timeout_ms = u64::try_from(limit.as_millis())?;
        let arguments = json!({ "qp": qp.id, "count": count, "timeout_ms": timeout_ms });
        self.ask_within(limit + TIMEOUT, vm, "poll", arguments).await
    }

    /// Returns the asynchronous events of the device and the program's objects as values of `ibv_event_type`. Waits at
    /// most `limit` for the first event.
    ///
    /// # Errors
    /// Fails if the events cannot be read.
    pub async fn events(&self, vm: &mut Vm, limit: Duration) -> Result<Vec<u32>> {
        let timeout_ms = u64::try_from(limit.as_millis())?;
        self.ask_within(limit + TIMEOUT, vm, "events", json!({ "timeout_ms": timeout_ms })).await
    }

    /// Destroys a queue pair.
    ///
    /// # Errors
    /// Fails if the kernel rejects the request.
    pub async fn destroy(&self, vm: &mut Vm, qp: StockQp) -> Result<()> {
        self.ask(vm, "destroy", json!({ "qp": qp.id })).await
    }

    /// Stops the program, which destroys all its objects.
    ///
    /// # Errors
    /// Fails if the program does not exit.
    pub async fn close(self, vm: &mut Vm) -> Result<()> {
        self.program.close(TIMEOUT, vm).await
    }

    async fn ask<T: DeserializeOwned>(&self, vm: &mut Vm, what: &str, arguments: Value) -> Result<T> {
        self.ask_within(TIMEOUT, vm, what, arguments).await
    }

    async fn ask_within<T: DeserializeOwned>(
        &self,
        limit: Duration,
        vm: &mut Vm,
        what: &str,
        arguments: Value,
    ) -> Result<T> {
        self.program
            .ask(limit, vm, what, arguments)
            .await
            .context("a request to the verbs program in the guest failed")
    }
}
