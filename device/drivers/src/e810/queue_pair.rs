//! Queue pairs, completion queues and work requests. The driver creates the queues through the control queue and
//! encodes work requests as the user-space provider does.

use std::collections::BTreeMap;

use protocol::hca::e810::admin::Opcode;
use protocol::hca::e810::admin::vsi::{OptionsSection, Sections, VsiContext};
use protocol::hca::e810::rdma::completion_queue::CqCommand;
use protocol::hca::e810::rdma::cqe::{Cqe, ExtendedCqe};
use protocol::hca::e810::rdma::event_queue::AsyncEvent;
use protocol::hca::e810::rdma::fragment::Fragment;
use protocol::hca::e810::rdma::index::ArpIndex;
use protocol::hca::e810::rdma::number::MacNumber;
use protocol::hca::e810::rdma::operation::Operation;
use protocol::hca::e810::rdma::path::ManageArp;
use protocol::hca::e810::rdma::qp_context::QpContext;
use protocol::hca::e810::rdma::queue_pair::{QpCommand, QpKind, QpState};
use protocol::hca::e810::rdma::send_wqe::{MAX_QUANTA, QUANTUM};
use protocol::hca::e810::regs::Register;
use protocol::ids::{Cqn, Iova, Lkey, MacAddr, Qpn, Va};

use super::rdma::{AEQ_ENTRIES, CEQ_ENTRIES, Performed};
use super::{AdminCommand, Driver};
use crate::Bus;

/// Bus address of the queue pair contexts.
const CONTEXTS: u64 = 0x11_0000;
/// Bus addresses of the queue pairs' and completion queues' shadow areas.
const QP_SHADOWS: u64 = 0x12_0000;
const CQ_SHADOWS: u64 = 0x13_0000;
const SHADOW_LEN: u64 = SHADOW.len() as u64;
const SHADOW: [u8; 64] = [0; 64];
/// Bus addresses of the rings, which do not overlap.
const CQ_RINGS: u64 = 0x20_0000;
const QP_RINGS: u64 = 0x100_0000;
const RING_LEN: usize = 0x1_0000;
const RING_STRIDE: u64 = RING_LEN as u64;

/// Offset of the arm word in a shadow area.
const ARM_WORD: u64 = 32;

/// Consumer state of a ring written by the device.
#[derive(Clone, Copy, Debug, Default)]
struct Consumer {
    ring: u64,
    entries: u32,
    next: u32,
    inverted: bool,
}

impl Consumer {
    fn advance(&mut self) {
        self.next += 1;
        if self.next == self.entries {
            (self.next, self.inverted) = (0, !self.inverted);
        }
    }
}

/// Producer state of a ring read by the device.
#[derive(Clone, Copy, Debug, Default)]
struct Producer {
    ring: u64,
    quanta: u32,
    next: u32,
    inverted: bool,
}

/// Rings of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
struct Rings {
    send: Producer,
    receive: Producer,
    slot: u32,
}

#[derive(Debug, Default)]
pub struct Queues {
    /// Number of completion events read.
    completion_events: u32,
    async_events: u32,
    cqs: BTreeMap<Cqn, Consumer>,
    qps: BTreeMap<Qpn, Rings>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polled {
    pub cqe: Cqe,
    pub more: Option<ExtendedCqe>,
}

/// Returns a fragment with the polarity bit clear.
pub fn fragment(va: u64, key: u32, len: u32) -> [u8; 16] {
    Fragment { va: Va::new(va), key: Lkey::new(key), len }.emit()
}

/// Returns a send WQE with a list of fragments. The first 16 bytes hold the immediate data or, if there is none, the
/// first fragment. `remote` and `control` come next, followed by the remaining fragments. If necessary, an empty
/// fragment pads the WQE to a whole number of 32-byte quanta. The polarity, fragment count and immediate flag in
/// `control` must be clear.
pub fn gather(control: u64, remote: u64, imm: Option<u32>, list: &[[u8; 16]]) -> Vec<u8> {
    let mut pieces: Vec<[u8; 16]> = Vec::new();
    if let Some(imm) = imm {
        let mut first = [0; 16];
        first[..4].copy_from_slice(&imm.to_le_bytes());
        pieces.push(first);
    }
    pieces.extend(list);
    if pieces.is_empty() || pieces.len().is_multiple_of(2) {
        pieces.push([0; 16]);
    }
    let more = (pieces.len() - 1) as u64;
    let control = control | more << 38 | u64::from(imm.is_some()) << 47;
    let mut wqe = pieces[0].to_vec();
    wqe.extend(remote.to_le_bytes());
    wqe.extend(control.to_le_bytes());
    wqe.extend(pieces[1..].as_flattened());
    wqe
}

/// Returns a send WQE with inline data.
pub fn inline(control: u64, remote: u64, imm: Option<u32>, data: &[u8]) -> Vec<u8> {
    let control = control | 1 << 57 | (data.len() as u64) << 48 | u64::from(imm.is_some()) << 47;
    let mut wqe = vec![0; QUANTUM];
    wqe[..4].copy_from_slice(&imm.unwrap_or_default().to_le_bytes());
    let (first, rest) = data.split_at(data.len().min(8));
    wqe[8..8 + first.len()].copy_from_slice(first);
    wqe[16..24].copy_from_slice(&remote.to_le_bytes());
    wqe[24..32].copy_from_slice(&control.to_le_bytes());
    for piece in rest.chunks(QUANTUM - 1) {
        let at = wqe.len();
        wqe.resize(at + QUANTUM, 0);
        wqe[at..at + piece.len()].copy_from_slice(piece);
    }
    wqe
}

impl<B: Bus> Driver<B> {
    /// Brings up RDMA and its event queues on a NIC that is already running. Adds the NIC's own MAC address to the ARP
    /// table at index 1.
    pub fn open_rdma(&mut self, own: MacAddr) {
        let options = OptionsSection { rdma_filter: true, ..OptionsSection::default() };
        let context = VsiContext { sections: Sections::OPTIONS, options, ..VsiContext::default() };
        let mut parameters = [0; 16];
        parameters[..2].copy_from_slice(&(self.interface.vsi | 1 << 15).to_le_bytes());
        self.issue(&AdminCommand::with_input(Opcode::UpdateVsi, parameters, &context.emit()));

        self.interface.queues = Queues::default();
        self.bring_up_rdma();
        self.set_neighbour(1, own);
    }

    fn clear(&mut self, ring: u64, entries: u32, entry: usize) -> Consumer {
        self.bus.poke(ring, &vec![0; entry * entries as usize]);
        Consumer { ring, entries, ..Consumer::default() }
    }

    /// Adds a MAC address to the ARP table at `index`.
    pub fn set_neighbour(&mut self, index: u16, mac: MacAddr) {
        let entry =
            ManageArp { mac: MacNumber(mac), index: ArpIndex::new(index), valid: true, permanent: true };
        self.perform_well(&Operation::ManageArp(entry));
    }

    /// Returns the command that creates a completion queue with its own ring.
    pub fn cq_command(&self, cqn: Cqn, entries: u32) -> CqCommand {
        CqCommand {
            entries,
            cookie: cqn.get().into(),
            cqn,
            check_overflow: true,
            mask_events: true,
            ceq_valid: true,
            ring: Iova::new(CQ_RINGS + u64::from(cqn.get()) * RING_STRIDE),
            shadow: Iova::new(CQ_SHADOWS + u64::from(cqn.get()) * SHADOW_LEN),
            ..CqCommand::default()
        }
    }

    /// Creates a completion queue.
    #[track_caller]
    pub fn create_cq(&mut self, cqn: Cqn, entries: u32) {
        let command = self.cq_command(cqn, entries);
        let queue = self.clear(command.ring.get(), entries, 32);
        self.bus.poke(command.shadow.get(), &SHADOW);
        self.interface.queues.cqs.insert(cqn, queue);
        self.perform_well(&Operation::CreateCq(command));
    }

    /// Switches to the new ring of a resized completion queue. `resizes` is the number of resizes so far.
    pub fn follow_cq(&mut self, cqn: Cqn, ring: u64, entries: u32, resizes: u64) {
        let queue = self.clear(ring, entries, 32);
        self.interface.queues.cqs.insert(cqn, queue);
        let shadow = CQ_SHADOWS + u64::from(cqn.get()) * SHADOW_LEN;
        self.bus.poke(shadow, &[0; 8]);
        self.bus.poke(shadow + ARM_WORD, &resizes.to_le_bytes());
    }

    /// Returns the next completion in the queue, if any, and advances the consumer index.
    pub fn poll_cq(&mut self, cqn: Cqn) -> Option<Polled> {
        let mut queue = *self.interface.queues.cqs.get(&cqn)?;
        let mut entry = |driver: &mut Self| -> Option<[u8; 32]> {
            let bytes = driver.bus.peek(queue.ring + u64::from(queue.next) * 32, 32);
            let valid = bytes[31] & 0x80 != 0;
            (valid != queue.inverted).then(|| queue.advance())?;
            bytes.first_chunk().copied()
        };
        let cqe = Cqe::parse(&entry(self)?);
        let more = if cqe.extended { Some(ExtendedCqe::parse(&entry(self)?)) } else { None };
        self.interface.queues.cqs.insert(cqn, queue);
        let shadow = CQ_SHADOWS + u64::from(cqn.get()) * SHADOW_LEN;
        self.bus.poke(shadow, &u64::from(queue.next).to_le_bytes());
        // Normalise the polarity bit so that tests can compare entries. The bit alternates with every pass over the
        // ring.
        let more = more.map(|more| ExtendedCqe { valid: true, ..more });
        Some(Polled { cqe: Cqe { valid: true, ..cqe }, more })
    }

    /// Arms a completion queue. Bit 14 of `word` requests an event for the next entry. Bit 15 requests one for the next
    /// solicited entry.
    pub fn arm_cq(&mut self, cqn: Cqn, word: u64) {
        let at = CQ_SHADOWS + u64::from(cqn.get()) * SHADOW_LEN + ARM_WORD;
        self.bus.poke(at, &word.to_le_bytes());
        self.write(Register::UserCqarm, cqn.get());
    }

    /// Consumes the next completion event, if any, and returns its cookie.
    pub fn next_completion_event(&mut self) -> Option<u64> {
        let read = self.interface.queues.completion_events;
        let event = self.completion_event((read % CEQ_ENTRIES).into());
        (event.valid == (read / CEQ_ENTRIES).is_multiple_of(2)).then(|| {
            self.interface.queues.completion_events += 1;
            event.cookie
        })
    }

    /// Consumes and returns the next asynchronous event, if any.
    pub fn next_async_event(&mut self) -> Option<AsyncEvent> {
        let read = self.interface.queues.async_events;
        let event = self.async_event((read % AEQ_ENTRIES).into());
        (event.valid == (read / AEQ_ENTRIES).is_multiple_of(2)).then(|| {
            self.interface.queues.async_events += 1;
            self.write(Register::PfpeAeqalloc, 1);
            event
        })
    }

    /// Returns a control queue command for a queue pair.
    pub fn qp_command(&self, qpn: Qpn, kind: QpKind, state: QpState) -> QpCommand {
        QpCommand {
            context: Iova::new(CONTEXTS + u64::from(qpn.get()) * QpContext::LEN as u64),
            qpn,
            kind,
            state,
            shadow: Iova::new(QP_SHADOWS + u64::from(qpn.get()) * SHADOW_LEN),
            ..QpCommand::default()
        }
    }

    /// Creates a queue pair in the IDLE state with contiguous rings. Overrides the ring addresses in `context`.
    #[track_caller]
    pub fn create_qp(&mut self, qpn: Qpn, kind: QpKind, context: &QpContext) {
        let ring = QP_RINGS + u64::from(qpn.get()) * 2 * RING_STRIDE;
        let (send, receive) = (ring, ring + RING_STRIDE);
        let written = |ring, quanta| Producer { ring, quanta, ..Producer::default() };
        self.interface.queues.qps.insert(
            qpn,
            Rings {
                send: written(send, context.send_quanta()),
                receive: written(receive, context.receive_quanta()),
                slot: context.quanta_per_receive(),
            },
        );
        for ring in [send, receive] {
            self.bus.poke(ring, &[0; RING_LEN]);
        }
        let command = self.qp_command(qpn, kind, QpState::Idle);
        self.bus.poke(command.shadow.get(), &SHADOW);
        self.put_context(qpn, context);
        self.perform_well(&Operation::CreateQp(command));
    }

    fn put_context(&mut self, qpn: Qpn, context: &QpContext) {
        let Rings { send, receive, .. } = self.interface.queues.qps.get(&qpn).copied().unwrap_or_default();
        let context = QpContext { send_ring: send.ring, receive_ring: receive.ring, ..*context };
        self.bus.poke(CONTEXTS + u64::from(qpn.get()) * QpContext::LEN as u64, &context.emit());
    }

    /// Replaces a queue pair's context and moves the queue pair to another state.
    #[track_caller]
    pub fn modify_qp(&mut self, qpn: Qpn, kind: QpKind, state: QpState, context: &QpContext) -> Performed {
        self.put_context(qpn, context);
        let command = self.qp_command(qpn, kind, state);
        self.perform(&Operation::ModifyQp(command))
    }

    /// Posts a send WQE, preceded by NOPs if alignment requires them, and rings the doorbell. Returns the index of the
    /// WQE's first quantum.
    pub fn post_send(&mut self, qpn: Qpn, wqe: &[u8]) -> u16 {
        let index = self.put_send(qpn, wqe);
        self.ring_send(qpn);
        index
    }

    /// Rings the doorbell of a send queue.
    pub fn ring_send(&mut self, qpn: Qpn) {
        self.write(Register::UserWqealloc, qpn.get());
    }

    /// Posts a send WQE without ringing the doorbell. Returns the index of the WQE's first quantum.
    pub fn put_send(&mut self, qpn: Qpn, wqe: &[u8]) -> u16 {
        const NOP: u64 = 0x0c << 32;
        let quanta = wqe.len() / QUANTUM;
        let mut rings = self.interface.queues.qps.get(&qpn).copied().unwrap_or_default();
        while rings.send.next as usize % MAX_QUANTA + quanta > MAX_QUANTA {
            let mut nop = [0; QUANTUM];
            nop[24..].copy_from_slice(&NOP.to_le_bytes());
            self.put(&mut rings.send, &nop);
        }
        let index = rings.send.next;
        self.put(&mut rings.send, wqe);
        self.interface.queues.qps.insert(qpn, rings);
        u16::try_from(index).unwrap_or(u16::MAX)
    }

    /// Posts a receive WQE with the given fragments. Returns the index of the WQE's first quantum.
    pub fn post_receive(&mut self, qpn: Qpn, list: &[[u8; 16]]) -> u16 {
        let mut rings = self.interface.queues.qps.get(&qpn).copied().unwrap_or_default();
        let index = rings.receive.next;
        let mut slot = gather(0, 0, None, list);
        slot.resize(rings.slot as usize * QUANTUM, 0);
        self.put(&mut rings.receive, &slot);
        self.interface.queues.qps.insert(qpn, rings);
        u16::try_from(index).unwrap_or(u16::MAX)
    }

    /// Writes the quanta of a WQE and sets their polarity. The first quantum is written last, since the device may read
    /// the ring at any time.
    fn put(&mut self, ring: &mut Producer, wqe: &[u8]) {
        const POLARITY: u8 = 0x80;
        let mut wqe = wqe.to_vec();
        for quantum in wqe.chunks_mut(QUANTUM) {
            if let Some(last) = quantum.last_mut() {
                *last = *last & !POLARITY | if ring.inverted { 0 } else { POLARITY };
            }
        }
        let at = ring.ring + u64::from(ring.next) * QUANTUM as u64;
        self.bus.poke(at + QUANTUM as u64, &wqe[QUANTUM..]);
        self.bus.poke(at, &wqe[..QUANTUM]);
        ring.next += u32::try_from(wqe.len() / QUANTUM).unwrap_or_default();
        if ring.next >= ring.quanta {
            (ring.next, ring.inverted) = (0, !ring.inverted);
        }
    }

    /// Returns the consumer index that the device last published for a send queue.
    pub fn hardware_tail(&mut self, qpn: Qpn) -> u64 {
        let bytes = self.bus.peek(QP_SHADOWS + u64::from(qpn.get()) * SHADOW_LEN, 8);
        bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
    }
}
