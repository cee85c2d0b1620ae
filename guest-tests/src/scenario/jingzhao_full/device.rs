//! An open HCA, with the table addresses and the memory that raw commands use. Section numbers refer to the JingZhao
//! interface.

use agent::wire::{
    CqInfo, CreateCq, CreateMr, CreateQp, Data, Datagram, HcaInfo, MrInfo, Poll, PostRecv, PostSend, QpInfo,
    SendRequest, Service, Sge,
};
use anyhow::{Result, ensure};

use super::mailbox::{Mailbox, WorkQueue, qpc, service};
use crate::vm::Vm;

const PAGE: u64 = 0x1000;
/// Syndromes for a send whose data cannot be gathered and for a flushed send (section 7.4).
pub(super) const LOCAL_PROT_ERR: u8 = 0x04;
pub(super) const WR_FLUSH_ERR: u8 = 0x05;
/// Opcodes in error CQEs for the send queue and for the receive queue (section 7.2).
pub(super) const SEND_ERROR: u8 = 0xff;
pub(super) const RECEIVE_ERROR: u8 = 0xfe;
/// A scatter/gather element with an unknown key.
pub(super) const NOWHERE: Sge = Sge { lkey: 0xfff, addr: 0, len: 64 };
/// Timeout for completions that are expected immediately.
const SOON_MS: u32 = 10_000;

/// Addresses in an HCA that has been opened with the agent's default tables.
#[derive(Debug)]
pub(super) struct Device {
    info: HcaInfo,
    /// A memory region of unused pages with contiguous bus addresses.
    pages: MrInfo,
    /// The memory region that contains the queues.
    queues: MrInfo,
}

impl Device {
    pub(super) async fn new(vm: &mut Vm, info: HcaInfo) -> Result<Self> {
        let pages = CreateMr { len: 6 * PAGE, scattered: false, ..CreateMr::default() };
        let queues = CreateMr { len: 0x8000, ..CreateMr::default() };
        Ok(Self { info, pages: vm.call(pages).await?, queues: vm.call(queues).await? })
    }

    /// Returns the first bus address after the device's memory.
    pub(super) fn memory_end(&self) -> u64 {
        self.info.arena_iova + self.info.arena_size
    }

    /// Returns the key of the 32 KiB region that contains the queues.
    pub(super) fn lkey(&self) -> u32 {
        self.queues.key
    }

    /// Returns the bus addresses of six pages that are otherwise unused.
    pub(super) fn pages(&self) -> [u64; 6] {
        [0, 1, 2, 3, 4, 5].map(|page| self.pages.iova + page * PAGE)
    }

    /// Returns the ICM addresses of the last pages of the QPC, CQC, EQC, MPT and MTT tables.
    pub(super) fn last_pages(&self) -> [u64; 5] {
        let [qpc, cqc, eqc, mpt, mtt] = self.info.icm_bases;
        // `log_entries` is the binary logarithm of the agent's default table size, and `bytes` is the entry size
        // (section 4.1). All EQCs are in one page.
        let last = |base: u64, log_entries: u32, bytes: u64| base + (bytes << log_entries) - PAGE;
        [last(qpc, 10, 256), last(cqc, 10, 64), eqc, last(mpt, 12, 64), last(mtt, 16, 8)]
    }
}

/// A QP whose queues are managed by the agent, and whose state is changed by raw commands.
#[derive(Debug)]
pub(super) struct TestQp {
    pub(super) service: Service,
    pub(super) qp: QpInfo,
    cq: CqInfo,
}

impl TestQp {
    /// Creates a QP in RESET.
    pub(super) async fn create(vm: &mut Vm, service: Service) -> Result<Self> {
        let cq = vm.call(CreateCq::default()).await?;
        let qp = CreateQp { send_cq: cq.id, recv_cq: cq.id, service, ..CreateQp::default() };
        Ok(Self { service, qp: vm.call(qp).await?, cq })
    }

    /// Returns a complete context, which is valid input for every command.
    pub(super) fn image(&self) -> Mailbox {
        let CreateQp { log_sq_slots, log_sq_slot_bytes, .. } = CreateQp::default();
        let queue = |lkey| WorkQueue {
            lkey,
            len: 1 << (log_sq_slots + log_sq_slot_bytes),
            log_slot: log_sq_slot_bytes,
            cqn: self.cq.cqn,
        };
        qpc(self.service_code(), queue(self.qp.sq_lkey), queue(self.qp.rq_lkey)).word(0x14, self.qp.qpn)
    }

    /// Returns the service type code (section 4.3).
    pub(super) const fn service_code(&self) -> u8 {
        match self.service {
            Service::Rc => service::RC,
            Service::Uc => service::UC,
            Service::Ud => service::UD,
        }
    }

    /// Posts a SEND of `sge` and rings the doorbell.
    pub(super) async fn send(&self, vm: &mut Vm, sge: Sge) -> Result<()> {
        let datagram = (self.service == Service::Ud).then(Datagram::default);
        let request = SendRequest { data: Data::Sges(vec![sge]), datagram, ..SendRequest::default() };
        vm.call(PostSend { qp: self.qp.id, requests: vec![request], ..PostSend::default() }).await.map(drop)
    }

    pub(super) async fn receive(&self, vm: &mut Vm, sge: Sge) -> Result<()> {
        vm.call(PostRecv { qp: self.qp.id, requests: vec![vec![sge]] }).await.map(drop)
    }

    /// Waits for the next completions. `expected` lists the opcode and syndrome of each; syndrome 0 means success.
    pub(super) async fn expect(&self, vm: &mut Vm, expected: &[(u8, u8)]) -> Result<()> {
        let count = u32::try_from(expected.len())?;
        let cqes = vm.call(Poll { cq: self.cq.id, count, timeout_ms: SOON_MS }).await?.cqes;
        let seen: Vec<_> = cqes.iter().map(|cqe| (cqe.opcode, cqe.syndrome.unwrap_or(0))).collect();
        ensure!(seen == expected, "opcodes and syndromes are {seen:02x?}, expected {expected:02x?}");
        Ok(())
    }

    /// Fails if a request has completed.
    pub(super) async fn expect_silence(&self, vm: &mut Vm) -> Result<()> {
        let cqes = vm.call(Poll { cq: self.cq.id, count: 1, timeout_ms: 0 }).await?.cqes;
        ensure!(cqes.is_empty(), "completed: {cqes:?}");
        Ok(())
    }

    /// Posts a send with an unknown key to a QP in RTS. The send fails and moves the QP to SQE (section 10.5).
    pub(super) async fn fail_a_send(&self, vm: &mut Vm) -> Result<()> {
        self.send(vm, NOWHERE).await?;
        self.expect(vm, &[(SEND_ERROR, LOCAL_PROT_ERR)]).await
    }
}
