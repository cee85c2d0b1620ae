//! Queues and regions of the recorded guest, reconstructed from its commands and work requests.

use std::collections::BTreeMap;

use protocol::hca::mlx5::cq::CqChange;
use protocol::hca::mlx5::cqe::{Cqe, INITIAL_OWNER_BYTE, Receipt, Sent};
use protocol::hca::mlx5::doorbell::ArmCq;
use protocol::hca::mlx5::eqe::{Eqe, LEN as EQE_LEN};
use protocol::hca::mlx5::mkey::Klm;
use protocol::hca::mlx5::qp::{QpContext, Service};
use protocol::hca::mlx5::resource::QpNumber;
use protocol::hca::mlx5::wqe::{
    BLOCK, DataItem, DataSegment, Opcode, Operation, RecvWqe, SendWqe, Translation, Umr,
};
use protocol::hca::mlx5::{page_len, page_offset};
use protocol::ids::Qpn;

use super::*;

/// The kernel's UAR page. The kernel updates a CQ's doorbell record only when it rearms the CQ. The doorbell records of
/// CQs on this page are therefore not checked.
const KERNEL_PAGE: UarIndex = UarIndex::new(0x10);
const COMMAND_EQ: u32 = 1;
/// Bus address of the first page for regions. The traces do not use pages between this address and 35000000h.
const REGIONS: u64 = 0x2000_0000;
const ENTRY: u64 = 64;
/// Offset of the byte with the owner bit in an entry.
const OWNER_BYTE: u64 = 0x3f;

struct Ring {
    pages: Vec<Iova>,
    page_len: u64,
    start: u64,
}

impl Ring {
    fn new(pages: Pages<'_>, log_page_size: u8, offset: u8) -> Self {
        let start = page_offset(log_page_size, offset);
        Self { pages: pages.iter().collect(), page_len: page_len(log_page_size), start }
    }

    fn at(&self, offset: u64) -> u64 {
        let linear = self.start + offset;
        self.pages[usize::try_from(linear / self.page_len).unwrap()].get() + linear % self.page_len
    }

    /// Writes the owner byte of each entry, as the driver does before it creates the queue.
    fn initialize(&self, driver: &mut Driver, log_entries: u8, owner: u8) {
        for entry in 0..1 << log_entries {
            driver.poke(self.at(entry * ENTRY + OWNER_BYTE), &[owner]);
        }
    }
}

struct WorkQueues {
    service: Service,
    ring: Ring,
    context: QpContext,
    /// Number of blocks posted, modulo 2^16.
    sent: u16,
}

struct CompletionRing {
    ring: Ring,
    log_entries: u8,
    record: u64,
    page: UarIndex,
    /// Number of entries that the device has written.
    count: u32,
}

impl CompletionRing {
    fn at(&self, index: u32) -> u64 {
        self.ring.at(u64::from(index & ((1 << self.log_entries) - 1)) * ENTRY)
    }
}

#[derive(Clone, Copy)]
struct Region {
    /// Virtual address of the first page.
    first: u64,
    /// Bus address of the first page.
    bus: u64,
}

/// A transfer between two bus addresses.
pub(super) struct Message {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) len: usize,
}

pub(super) struct Queues {
    eqs: BTreeMap<u32, Ring>,
    cqs: BTreeMap<u32, CompletionRing>,
    qps: BTreeMap<u32, WorkQueues>,
    /// Regions, indexed by key index.
    regions: BTreeMap<u32, Region>,
    /// Bus address of the next page for a region.
    next_page: u64,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            eqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            regions: BTreeMap::new(),
            next_page: REGIONS,
        }
    }
}

/// Returns a CQE and its owner bit. The timestamp is zeroed, as is the byte count of any send request except a READ.
/// The recorded device counted every request's bytes, but drivers read the count only for READs.
pub(super) fn comparable(entry: &[u8]) -> (Cqe, bool) {
    let (entry, owner) = Cqe::parse(&output(entry)).unwrap();
    let entry = match entry {
        Cqe::Sent(sent) if sent.wqe_opcode == Opcode::Read.code() => Cqe::Sent(Sent { timestamp: 0, ..sent }),
        Cqe::Sent(sent) => Cqe::Sent(Sent { timestamp: 0, byte_count: 0, ..sent }),
        Cqe::Received(receipt) => Cqe::Received(Receipt { timestamp: 0, ..receipt }),
        other => other,
    };
    (entry, owner)
}

impl Queues {
    /// Initialises the memory of the queue that a command creates.
    pub(super) fn prepare(&self, driver: &mut Driver, command: &Command<'_>) {
        let record = match command {
            Command::CreateEq(create, pages) => {
                let context = &create.context;
                let ring = Ring::new(*pages, context.log_page_size, context.page_offset);
                ring.initialize(driver, context.log_entries, 1);
                return;
            }
            Command::CreateCq(create, pages) => {
                let context = &create.context;
                let ring = Ring::new(*pages, context.log_page_size, context.page_offset);
                ring.initialize(driver, context.log_entries, INITIAL_OWNER_BYTE);
                context.record
            }
            Command::ModifyCq(modify, pages) => {
                assert_eq!(modify.change(), Some(CqChange::Resize));
                let context = &modify.context;
                let ring = Ring::new(*pages, context.log_page_size, context.page_offset);
                ring.initialize(driver, context.log_entries, INITIAL_OWNER_BYTE);
                return;
            }
            Command::CreateQp(create, _) => create.context.record,
            Command::CreateRmp(create, _) => create.context.queue.record,
            Command::CreateXrcSrq(create, _) => create.context.record,
            _ => return,
        };
        driver.poke(record.get(), &[0; 8]);
    }

    /// Updates the queues and regions after a command has succeeded.
    pub(super) fn apply(&mut self, driver: &mut Driver, command: &Command<'_>, returned: &[u8]) {
        match command {
            Command::CreateEq(create, pages) => {
                let context = &create.context;
                let ring = Ring::new(*pages, context.log_page_size, context.page_offset);
                self.eqs.insert(EqNumber::parse(&output(returned)).eqn.get(), ring);
            }
            Command::CreateCq(create, pages) => {
                let context = &create.context;
                let ring = CompletionRing {
                    ring: Ring::new(*pages, context.log_page_size, context.page_offset),
                    log_entries: context.log_entries,
                    record: context.record.get(),
                    page: context.uar,
                    count: 0,
                };
                self.cqs.insert(CqNumber::parse(&output(returned)).cqn.get(), ring);
            }
            Command::ModifyCq(modify, pages) => {
                let cq = self.cqs.get_mut(&modify.cqn.get()).unwrap();
                assert_eq!(comparable(&driver.peek(cq.at(cq.count), 64)).0, Cqe::Resize);
                cq.count += 1;
                driver.poke(cq.record, &cq.count.to_be_bytes());
                let context = &modify.context;
                cq.ring = Ring::new(*pages, context.log_page_size, context.page_offset);
                cq.log_entries = context.log_entries;
            }
            Command::CreateQp(create, pages) => {
                let context = create.context;
                let queues = WorkQueues {
                    service: context.service().unwrap(),
                    ring: Ring::new(*pages, context.log_page_size, context.page_offset),
                    context,
                    sent: 0,
                };
                self.qps.insert(QpNumber::parse(&output(returned)).qpn.get(), queues);
            }
            Command::ToRstQp(number) => {
                let qp = self.qps.get_mut(&number.qpn.get()).unwrap();
                qp.sent = 0;
                driver.poke(qp.context.record.get(), &[0; 8]);
            }
            Command::DestroyEq(number) => drop(self.eqs.remove(&number.eqn.get())),
            Command::DestroyCq(number) => drop(self.cqs.remove(&number.cqn.get())),
            Command::DestroyQp(number) => drop(self.qps.remove(&number.qpn.get())),
            _ => {}
        }
    }

    /// Returns event `number` of the command EQ and its owner bit.
    pub(super) fn event(&self, driver: &mut Driver, number: u32) -> (Eqe, bool) {
        let entry = self.eqs[&COMMAND_EQ].at(u64::from(number % 256) * ENTRY);
        Eqe::parse(&output(&driver.peek(entry, EQE_LEN))).unwrap()
    }

    pub(super) fn record_arm(&self, driver: &mut Driver, arm: &ArmCq) {
        let record = self.cqs[&arm.cqn.get()].record;
        driver.poke(record, &arm.consumer.to_be_bytes());
        driver.poke(record + 4, &arm.emit()[..4]);
    }

    /// Posts the work requests for the device to fetch after a doorbell. Returns the messages that they transfer.
    pub(super) fn post(&mut self, driver: &mut Driver, entries: &[Entry]) -> Vec<Message> {
        let of = |kind: Kind| entries.iter().filter(move |entry| entry.kind == kind);
        for entry in of(Kind::Recv) {
            self.receive(driver, entry.number, entry.index, &entry.bytes);
        }
        for entry in of(Kind::Cqe) {
            // Flushed receives are not in the recording, as the device does not read them. Post empty entries for them.
            if let (Cqe::Failed(failure), _) = comparable(&entry.bytes)
                && !failure.send
            {
                self.receive(driver, failure.qpn.get(), failure.wqe_counter.into(), &[]);
            }
        }
        let mut buffers = of(Kind::Recv).map(|entry| RecvWqe::parse(&entry.bytes).scatter[0]);
        let mut messages = Vec::new();
        for Entry { number, index, bytes, .. } in of(Kind::Wqe) {
            let qp = self.qps.get_mut(number).unwrap();
            assert_eq!(*index, u32::from(qp.sent), "QP {number:#x}");
            for part in bytes.chunks(BLOCK) {
                let block = u64::from(qp.sent) & ((1 << qp.context.log_sq_blocks) - 1);
                driver.poke(qp.ring.at(qp.context.rq_len() as u64 + block * BLOCK as u64), part);
                qp.sent = qp.sent.wrapping_add(1);
            }
            driver.poke(qp.context.record.get() + 6, &qp.sent.to_be_bytes());
            let wqe = SendWqe::parse(bytes, qp.service, Qpn::new(*number)).unwrap();
            messages.extend(self.message(driver, &wqe, &mut buffers));
        }
        messages
    }

    /// Writes a receive queue entry and updates the doorbell record.
    fn receive(&self, driver: &mut Driver, qpn: u32, number: u32, bytes: &[u8]) {
        let WorkQueues { ring, context, .. } = &self.qps[&qpn];
        let slot = u64::from(number) & ((1 << context.log_rq_entries) - 1);
        let mut entry = bytes.to_vec();
        entry.resize(1 << (context.log_rq_stride + 4), 0);
        driver.poke(ring.at(slot << (context.log_rq_stride + 4)), &entry);
        let posted = u16::try_from(number + 1).unwrap();
        driver.poke(context.record.get() + 2, &posted.to_be_bytes());
    }

    /// Returns the message that a work request transfers, or `None` if it does not transfer data. `buffers` are the
    /// receive buffers.
    fn message(
        &mut self,
        driver: &mut Driver,
        wqe: &SendWqe<'_>,
        buffers: &mut impl Iterator<Item = DataSegment>,
    ) -> Option<Message> {
        let data = wqe.data.first().map(|item| match item {
            DataItem::Pointer(data) => *data,
            DataItem::Inline(_) => panic!("inline data"),
        });
        let local = |data: DataSegment| (data.lkey.get(), data.va.get());
        let (from, to) = match &wqe.operation {
            Operation::Umr(umr) => {
                self.change(driver, wqe.control.key(), umr);
                return None;
            }
            Operation::Send => (local(data?), local(buffers.next()?)),
            Operation::Write(remote) => (local(data?), (remote.rkey.get(), remote.va.get())),
            Operation::Read(remote) => ((remote.rkey.get(), remote.va.get()), local(data?)),
            _ => panic!("{}", wqe.opcode.name()),
        };
        let len = usize::try_from(data?.byte_count).unwrap();
        Some(Message { from: self.bus(from)?, to: self.bus(to)?, len })
    }

    fn bus(&self, (key, va): (u32, u64)) -> Option<u64> {
        let region = self.regions.get(&(key >> 8))?;
        Some(region.bus + (va - region.first))
    }

    /// Updates the regions after a UMR. The translation list that a UMR points to is not in the recording, so this
    /// method builds one from unused pages.
    fn change(&mut self, driver: &mut Driver, key: u32, umr: &Umr<'_>) {
        let index = key >> 8;
        match umr.translation {
            Translation::None => {
                self.regions.remove(&index);
            }
            Translation::Inline(list) => {
                let klm = Klm::parse(list.first_chunk().unwrap());
                let parent = self.regions[&(klm.key >> 8)];
                self.regions.insert(index, parent);
            }
            Translation::Pointer(list) => {
                let page = 1_u64 << umr.mkey.log_page;
                let (bus, count) = (self.next_page.next_multiple_of(page), u64::from(list.byte_count / 8));
                for n in 0..count {
                    driver.poke(list.va.get() + 8 * n, &((bus + n * page) | 3).to_be_bytes());
                }
                self.next_page = bus + count * page;
                self.regions.insert(index, Region { first: umr.mkey.start.get() & !(page - 1), bus });
            }
        }
    }

    /// Checks the entries that the device has written after a doorbell, and that the CQs do not contain other new
    /// entries.
    pub(super) fn check(&mut self, driver: &mut Driver, entries: &[Entry]) {
        for Entry { kind, number, index, bytes } in entries {
            match kind {
                Kind::Cqe => {
                    let cq = self.cqs.get_mut(number).unwrap();
                    assert_eq!(cq.count, *index, "CQ {number:#x}");
                    let ours = comparable(&driver.peek(cq.at(*index), 64));
                    assert_eq!(ours, comparable(bytes), "entry {index} of CQ {number:#x}");
                    cq.count += 1;
                    if cq.page != KERNEL_PAGE {
                        driver.poke(cq.record, &cq.count.to_be_bytes());
                    }
                }
                Kind::Eqe => {
                    let entry = self.eqs[number].at(u64::from(*index) * ENTRY);
                    assert_eq!(driver.peek(entry, EQE_LEN), *bytes, "entry {index} of EQ {number:#x}");
                }
                Kind::Wqe | Kind::Recv => {}
            }
        }
        for (cqn, cq) in &self.cqs {
            let next = driver.peek(cq.at(cq.count) + OWNER_BYTE, 1);
            assert_eq!(next, [INITIAL_OWNER_BYTE], "entry {} of CQ {cqn:#x}", cq.count);
        }
    }
}
