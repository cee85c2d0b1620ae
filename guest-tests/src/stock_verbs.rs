//! Stock verbs in a guest: rdma-core's own Python binding, told what to do line by line.
//!
//! The program (`guest/stock_verbs.py`) runs in the guest as long as this is used. What it drives is the kernel's
//! driver and rdma-core's provider, neither of which the project has a part in.

use std::time::Duration;

use agent::wire::{Hex, Service};
use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::line_program::LineProgram;
use crate::vm::Vm;

const PROGRAM: &str = include_str!("../guest/stock_verbs.py");
/// Loading an interpreter and all of verbs, uncompiled, in an emulated guest on a busy host.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// For anything that does not wait by itself.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The program, with one device open.
#[derive(Clone, Copy, Debug)]
pub struct StockVerbs {
    program: LineProgram,
}

/// First port of a device.
#[derive(Clone, Debug, Deserialize)]
pub struct Port {
    /// LID, 0 on Ethernet.
    pub lid: u16,
    /// GIDs by index, as text.
    pub gids: Vec<String>,
    /// Active MTU in bytes.
    pub mtu: u32,
    /// Whether it is ACTIVE.
    pub active: bool,
}

/// A file of the guest, mapped and registered with every right.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct FileRegion {
    id: u32,
    /// Address of its first byte.
    pub addr: u64,
    pub lkey: u32,
    pub rkey: u32,
}

/// A memory window of type 1.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct StockWindow {
    id: u32,
    /// What peers name it by.
    pub rkey: u32,
}

/// A queue pair with a completion queue of its own.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct StockQp {
    id: u32,
    pub qpn: u32,
}

/// Where a peer is.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StockPath {
    /// Number of its queue pair.
    pub qpn: u32,
    /// Its GID; within the subnet without one.
    pub gid: Option<String>,
    /// Index of the own GID to use.
    pub sgid_index: u32,
    pub lid: u16,
}

/// What a queue pair goes to RTS with.
#[derive(Clone, Debug, Serialize)]
pub struct StockConnect {
    /// The peer of a connected queue pair.
    pub peer: StockPath,
    /// Path MTU in bytes.
    pub mtu: u16,
    /// PSN of the first packet sent.
    pub psn: u32,
    /// PSN of the first packet expected.
    pub peer_psn: u32,
    /// Q_Key of a datagram queue pair.
    pub qkey: u32,
    pub timeout: u8,
    pub retry: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
    /// Code of the RNR NAKs sent.
    pub rnr_timer: u8,
}

/// Address, length and key of memory.
pub type StockSge = (u64, u32, u32);

/// A send work request. What its operation does not use is ignored.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StockSend {
    /// `send`, `send_imm`, `write`, `write_imm`, `read`, `cmp_swap` or `fetch_add`.
    pub op: &'static str,
    pub sges: Vec<StockSge>,
    /// Immediate, as it appears in memory.
    pub imm: Hex,
    pub va: u64,
    pub rkey: u32,
    /// Compared with, or added.
    pub compare_add: u64,
    /// Stored by a compare and swap.
    pub swap: u64,
    /// Address handle of a datagram.
    pub ah: Option<StockAh>,
    /// Queue pair a datagram goes to.
    pub qpn: u32,
    pub qkey: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StockAh(u32);

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StockCompletion {
    /// Status from `ibv_wc_status` in rdma-core.
    pub status: u32,
    /// Whether the completion is that of a receive.
    pub received: bool,
    pub bytes: u32,
    /// Immediate, if there is one.
    pub imm: Option<Hex>,
    /// There is a GRH area.
    pub grh: bool,
    /// Sender of a datagram.
    pub src_qp: u32,
}

impl StockVerbs {
    /// Starts the program in a guest with a user space and opens a device.
    ///
    /// # Errors
    /// When there is no such device, or the program does not start.
    pub async fn open(vm: &mut Vm, device: &str) -> Result<(Self, Port)> {
        let verbs = Self { program: LineProgram::start(vm, PROGRAM).await? };
        let port = verbs.ask_within(START_TIMEOUT, vm, "open", json!({ "device": device })).await?;
        Ok((verbs, port))
    }

    /// Registers a file of `len` bytes, made if it is not there.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn region(&self, vm: &mut Vm, path: &str, len: u64) -> Result<FileRegion> {
        self.ask(vm, "region", json!({ "path": path, "len": len })).await
    }

    /// Ends a registration.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn deregister(&self, vm: &mut Vm, region: FileRegion) -> Result<()> {
        self.ask(vm, "deregister", json!({ "region": region.id })).await
    }

    /// A window onto all of a region's memory, which peers may write to; a queue pair in RTS binds it.
    ///
    /// # Errors
    /// When the kernel refuses, or it is not bound.
    pub async fn window(&self, vm: &mut Vm, qp: StockQp, region: FileRegion) -> Result<StockWindow> {
        self.ask(vm, "window", json!({ "qp": qp.id, "region": region.id })).await
    }

    /// Takes back what a window lets peers into.
    ///
    /// # Errors
    /// When it is not unbound.
    pub async fn unbind(&self, vm: &mut Vm, qp: StockQp, window: StockWindow) -> Result<()> {
        self.ask(vm, "unbind", json!({ "qp": qp.id, "window": window.id })).await
    }

    /// A queue pair in RESET.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn queue_pair(&self, vm: &mut Vm, service: Service) -> Result<StockQp> {
        self.queue_pair_with(vm, service, None).await
    }

    /// The same with a completion queue that has room for so many completions only, if a number is given.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn queue_pair_with(
        &self,
        vm: &mut Vm,
        service: Service,
        completions: Option<u32>,
    ) -> Result<StockQp> {
        self.ask(vm, "queue_pair", json!({ "service": service, "completions": completions })).await
    }

    /// Takes a queue pair from RESET to RTS.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn connect(&self, vm: &mut Vm, qp: StockQp, connect: &StockConnect) -> Result<()> {
        let mut arguments = serde_json::to_value(connect)?;
        arguments["qp"] = qp.id.into();
        self.ask(vm, "connect", arguments).await
    }

    /// An address handle for a peer.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn address(&self, vm: &mut Vm, peer: &StockPath) -> Result<StockAh> {
        self.ask(vm, "address", json!({ "peer": peer })).await
    }

    /// The path migration state of a queue pair, in `ibv_mig_state`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn migration(&self, vm: &mut Vm, qp: StockQp) -> Result<u32> {
        self.ask(vm, "migration", json!({ "qp": qp.id })).await
    }

    /// Attaches the program's only queue pair to a multicast group.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn join(&self, vm: &mut Vm, qp: StockQp, gid: &str) -> Result<()> {
        self.ask(vm, "join", json!({ "qp": qp.id, "gid": gid })).await
    }

    /// Posts receives.
    ///
    /// # Errors
    /// When there is no room.
    pub async fn post_recv(&self, vm: &mut Vm, qp: StockQp, lists: &[Vec<StockSge>]) -> Result<()> {
        self.ask(vm, "post_recv", json!({ "qp": qp.id, "lists": lists })).await
    }

    /// Posts requests.
    ///
    /// # Errors
    /// When there is no room.
    pub async fn post_send(&self, vm: &mut Vm, qp: StockQp, requests: &[StockSend]) -> Result<()> {
        self.ask(vm, "post_send", json!({ "qp": qp.id, "requests": requests })).await
    }

    /// Waits for completions; fewer than `count` when time runs out.
    ///
    /// # Errors
    /// When the queue cannot be polled.
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

    /// Asynchronous events of the device and of its objects of this program, by their codes in `ibv_event_type`: the
    /// first within a time, and what came with it.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn events(&self, vm: &mut Vm, limit: Duration) -> Result<Vec<u32>> {
        let timeout_ms = u64::try_from(limit.as_millis())?;
        self.ask_within(limit + TIMEOUT, vm, "events", json!({ "timeout_ms": timeout_ms })).await
    }

    /// Destroys a queue pair.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn destroy(&self, vm: &mut Vm, qp: StockQp) -> Result<()> {
        self.ask(vm, "destroy", json!({ "qp": qp.id })).await
    }

    /// Ends the program; its objects go with it.
    ///
    /// # Errors
    /// When it does not end.
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
