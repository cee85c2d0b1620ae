//! Queue pairs: their rings, state transitions and work requests.

use std::sync::atomic::{Ordering, fence};

use anyhow::{Result, ensure};

use super::hcr::Op;
use super::mr::Region;
use super::open::{Hca, Inbox};
use super::qpc::{self, Fixed, Image, Queue, State};
use super::wqe::{self, SendWqe, UNIT};
use crate::error::{bad_step, mismatch};
use crate::vfio::{Arena, Device, Doorbell, PAGE};
use crate::wire::{
    CqId, Cqe, CreateQp, ModifyQp, PostRecv, PostSend, Posted, QpAttributes, QpId, QpInfo, RecvStyle, Ring,
    SendRequest, Sge, Transition,
};

/// [`UNIT`] as a `u32`, the type of queue positions.
const UNIT_BYTES: u32 = 16;
const _: () = assert!(UNIT_BYTES as usize == UNIT);

#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) fixed: Fixed,
    /// Completion queues of the send queue and the receive queue.
    pub(crate) cqs: [CqId; 2],
    recv_style: RecvStyle,
    image: Image,
    sq: WorkQueue,
    rq: WorkQueue,
}

/// A ring of slots for work requests.
#[derive(Debug)]
struct WorkQueue {
    ring: Region,
    slots: u32,
    slot_bytes: u32,
    /// Free-running count of posted slots.
    posted: u32,
    /// Free-running count of completed slots.
    completed: u32,
}

impl WorkQueue {
    const fn new(ring: Region, log_slots: u8, log_slot_bytes: u8) -> Self {
        Self { ring, slots: 1 << log_slots, slot_bytes: 1 << log_slot_bytes, posted: 0, completed: 0 }
    }

    const fn free(&self) -> u32 {
        self.slots - self.posted.wrapping_sub(self.completed)
    }

    /// Converts a free-running count to the byte offset of its slot.
    const fn offset(&self, count: u32) -> u32 {
        (count & (self.slots - 1)) * self.slot_bytes
    }

    fn reserve(&mut self, count: usize) -> Result<Vec<u32>> {
        let (free, slots) = (self.free(), self.slots);
        let count = u32::try_from(count).ok().filter(|&count| count <= free);
        let count =
            count.ok_or_else(|| bad_step(format!("more requests than free slots ({free} of {slots})")))?;
        let first = self.posted;
        self.posted = first.wrapping_add(count);
        Ok((0..count).map(|i| self.offset(first.wrapping_add(i))).collect())
    }

    /// Frees slots up to and including the one at byte offset `wqe`. Returns whether that slot was the oldest
    /// outstanding one.
    fn complete(&mut self, wqe: u32) -> Result<bool> {
        let outstanding = self.posted.wrapping_sub(self.completed);
        let distance = (wqe / self.slot_bytes).wrapping_sub(self.completed) & (self.slots - 1);
        ensure!(
            wqe == self.offset(self.completed.wrapping_add(distance)) && distance < outstanding,
            mismatch(format!(
                "the WQE at {wqe:#x} completed, but the {outstanding} outstanding WQEs start at {:#x}",
                self.offset(self.completed)
            ))
        );
        self.completed = self.completed.wrapping_add(distance + 1);
        Ok(distance == 0)
    }
}

impl Qp {
    pub(crate) const fn qpn(&self) -> u32 {
        self.fixed.qpn
    }

    pub(crate) const fn free_sends(&self) -> u32 {
        self.sq.free()
    }

    pub(crate) const fn send_slots(&self) -> u32 {
        self.sq.slots
    }

    pub(crate) const fn recv_slots(&self) -> u32 {
        self.rq.slots
    }

    /// Posts a chain of requests with one doorbell. Returns the byte offset of each WQE.
    pub(crate) fn post_send(
        &mut self,
        arena: &Arena,
        device: &Device,
        requests: &[SendRequest],
        ring: Ring,
    ) -> Result<Vec<u32>> {
        let wqes = requests.iter().map(|request| self.send_wqe(request)).collect::<Result<Vec<_>>>()?;
        self.post_wqes(arena, device, &wqes.iter().collect::<Vec<_>>(), ring)
    }

    pub(crate) fn send_wqe(&self, request: &SendRequest) -> Result<SendWqe> {
        let wqe = SendWqe::new(self.fixed.service, request)?;
        let (len, slot) = (wqe.bytes().len(), self.sq.slot_bytes);
        ensure!(len <= slot as usize, bad_step(format!("the WQE has {len} bytes, but a slot has {slot}")));
        Ok(wqe)
    }

    /// Posts a chain of WQEs from [`Qp::send_wqe`] with one doorbell. Returns the byte offset of each WQE.
    pub(crate) fn post_wqes(
        &mut self,
        arena: &Arena,
        device: &Device,
        wqes: &[&SendWqe],
        ring: Ring,
    ) -> Result<Vec<u32>> {
        let sq = &mut self.sq;
        let head = sq.posted.wrapping_mul(sq.slot_bytes / UNIT_BYTES);
        let offsets = sq.reserve(wqes.len())?;
        for (i, (wqe, &offset)) in wqes.iter().zip(&offsets).enumerate() {
            sq.ring.write(arena, offset as usize, wqe.bytes());
            if let (Some(next), Some(position)) = (wqes.get(i + 1), offsets.get(i + 1)) {
                sq.ring.write(arena, offset as usize, &next.link(position / UNIT_BYTES));
            }
        }
        let Some(first) = wqes.first() else { return Ok(offsets) };
        let (word0, word1) = first.doorbell(self.fixed.qpn, head);
        let page = u64::from(self.fixed.uar_page) * PAGE as u64;
        // The device must see the WQEs before the doorbell.
        fence(Ordering::SeqCst);
        match ring {
            Ring::Once => {
                device.ring(page, Doorbell::Double(u64::from(word1) << 32 | u64::from(word0)))?;
            }
            Ring::Halves => {
                device.ring(page, Doorbell::Word(word0))?;
                device.ring(page + 4, Doorbell::Word(word1))?;
            }
            Ring::Never => {}
        }
        Ok(offsets)
    }

    /// Posts receive requests. Returns the byte offset of each WQE.
    pub(crate) fn post_recv(&mut self, arena: &Arena, requests: &[Vec<Sge>]) -> Result<Vec<u32>> {
        let lists = requests.iter().map(|sges| self.receive_list(sges)).collect::<Result<Vec<_>>>()?;
        let offsets = self.rq.reserve(lists.len())?;
        for (list, &offset) in lists.iter().zip(&offsets) {
            self.write_receive(arena, offset, list);
        }
        Ok(offsets)
    }

    pub(crate) fn receive_list(&self, sges: &[Sge]) -> Result<Vec<u8>> {
        let slot_bytes = self.rq.slot_bytes as usize;
        match self.recv_style {
            RecvStyle::Valid => wqe::valid_receive(sges, slot_bytes),
            RecvStyle::Unterminated => wqe::unterminated_receive(sges, slot_bytes),
            RecvStyle::Terminated => wqe::terminated_receive(sges, slot_bytes),
        }
    }

    /// Posts a receive WQE from [`Qp::receive_list`]. Returns its byte offset.
    pub(crate) fn post_list(&mut self, arena: &Arena, list: &[u8]) -> Result<u32> {
        ensure!(self.rq.free() > 0, bad_step("no free receive slot"));
        let offset = self.rq.offset(self.rq.posted);
        self.rq.posted = self.rq.posted.wrapping_add(1);
        self.write_receive(arena, offset, list);
        Ok(offset)
    }

    fn write_receive(&self, arena: &Arena, offset: u32, list: &[u8]) {
        let ring = &self.rq.ring;
        ring.write(arena, offset as usize + UNIT, list);
        if self.recv_style != RecvStyle::Terminated {
            arena.publish_word(ring.locate(offset as usize), wqe::VALID);
        }
    }

    /// Retires the work request that a completion reports. Returns whether that request was the oldest in its queue.
    pub(crate) fn account(&mut self, arena: &Arena, cqe: &Cqe) -> Result<bool> {
        if cqe.is_send {
            return self.sq.complete(cqe.wqe);
        }
        let oldest = self.rq.complete(cqe.wqe)?;
        if self.recv_style != RecvStyle::Terminated {
            let offset = cqe.wqe as usize;
            self.rq.ring.set(arena, offset..offset + UNIT, 0);
        }
        Ok(oldest)
    }

    /// Restores both rings to their initial state.
    fn clear_rings(&mut self, arena: &Arena) {
        for queue in [&mut self.sq, &mut self.rq] {
            let len = queue.ring.len();
            queue.ring.set(arena, 0..len, 0);
            (queue.posted, queue.completed) = (0, 0);
        }
        if self.recv_style == RecvStyle::Terminated {
            for slot in 0..self.rq.slots {
                let bytes = wqe::kernel_slot(self.rq.offset(slot + 1), self.rq.slot_bytes as usize);
                self.rq.ring.write(arena, self.rq.offset(slot) as usize, &bytes);
            }
        }
    }
}

impl Hca {
    /// Creates a queue pair in RESET.
    pub(crate) fn create_qp(&mut self, step: &CreateQp) -> Result<QpInfo> {
        for (name, log_slots, log_bytes) in [
            ("send", step.log_sq_slots, step.log_sq_slot_bytes),
            ("receive", step.log_rq_slots, step.log_rq_slot_bytes),
        ] {
            ensure!(
                log_slots <= 14 && (5..=12).contains(&log_bytes),
                bad_step(format!("invalid {name} queue of 2^{log_slots} slots of 2^{log_bytes} bytes"))
            );
        }
        let send_cqn = self.cqn(step.send_cq)?;
        let recv_cqn = self.cqn(step.recv_cq)?;
        let index = self.qpns.alloc(1, 1).ok_or_else(|| bad_step("no free queue pair"))?;
        let qpn = self.full_number(self.log_qps(), index, step.high_bits);

        let pd = step.buffer_pd.unwrap_or(step.pd);
        let bytes = |log_slots: u8, log_bytes: u8| 1usize << (log_slots + log_bytes);
        let sq = match self.register_queue(bytes(step.log_sq_slots, step.log_sq_slot_bytes), pd, false) {
            Ok(sq) => sq,
            Err(error) => {
                self.qpns.free(index, 1);
                return Err(error);
            }
        };
        let rq = match self.register_queue(bytes(step.log_rq_slots, step.log_rq_slot_bytes), pd, false) {
            Ok(rq) => rq,
            Err(error) => {
                self.qpns.free(index, 1);
                self.unregister(&sq)?;
                return Err(error);
            }
        };
        let side = |cqn, ring: &Region, log_slot| -> Result<Queue> {
            Ok(Queue { cqn, lkey: ring.key, len: u32::try_from(ring.len())?, log_slot })
        };
        let fixed = Fixed {
            service: step.service,
            qpn,
            pd: step.pd,
            uar_page: step.uar_page,
            sq: side(send_cqn, &sq, step.log_sq_slot_bytes)?,
            rq: side(recv_cqn, &rq, step.log_rq_slot_bytes)?,
        };
        let id = QpId(self.next_id());
        let mut qp = Qp {
            fixed,
            cqs: [step.send_cq, step.recv_cq],
            recv_style: step.recv_style,
            image: Image::new(&fixed),
            sq: WorkQueue::new(sq, step.log_sq_slots, step.log_sq_slot_bytes),
            rq: WorkQueue::new(rq, step.log_rq_slots, step.log_rq_slot_bytes),
        };
        qp.clear_rings(&self.arena);
        self.qps.insert(id, qp);
        self.qpns_in_use.insert(qpn, id);
        Ok(QpInfo { id, qpn, sq_lkey: fixed.sq.lkey, rq_lkey: fixed.rq.lkey })
    }

    pub(crate) fn destroy_qp(&mut self, id: QpId) -> Result<()> {
        let qpn = self.qp(id)?.qpn();
        self.reset_qp(id)?;
        let qp = self.qps.remove(&id).ok_or_else(|| bad_step(format!("unknown {id:?}")))?;
        self.qpns_in_use.remove(&qpn);
        self.qpns.free(qpn & ((1 << self.log_qps()) - 1), 1);
        self.unregister(&qp.sq.ring)?;
        self.unregister(&qp.rq.ring)
    }

    pub(crate) fn modify_qp(&mut self, step: &ModifyQp) -> Result<()> {
        let qp = self.qp(step.qp)?;
        let qpn = qp.qpn();
        let mut image = qp.image.clone();
        let op = match &step.transition {
            Transition::ToInit { pkey_index, qkey } => {
                image.prepare_init(*pkey_index, *qkey);
                Op::Rst2Init
            }
            Transition::ToRtr { remote_qpn, mtu, psn, rnr_timer, path } => {
                image.prepare_rtr(*remote_qpn, *mtu, *psn, *rnr_timer, path)?;
                Op::Init2Rtr
            }
            Transition::ToRts { psn, timeout, retry, rnr_retry } => {
                image.prepare_rts(*psn, *timeout, *retry, *rnr_retry);
                Op::Rtr2Rts
            }
            Transition::InitToInit(changes) => {
                image.prepare_changes(State::Init, changes)?;
                Op::Init2Init
            }
            Transition::RtsToRts(changes) => {
                image.prepare_changes(State::Rts, changes)?;
                Op::Rts2Rts
            }
            Transition::ToSqd { notify } => {
                image.prepare_sqd(*notify);
                Op::Rts2Sqd
            }
            Transition::SqdToSqd(changes) => {
                image.prepare_changes(State::Sqd, changes)?;
                Op::Sqd2Sqd
            }
            Transition::SqdToRts(changes) => {
                image.prepare_changes(State::Rts, changes)?;
                Op::Sqd2Rts
            }
            Transition::SqeToRts(changes) => {
                image.prepare_changes(State::Rts, changes)?;
                Op::SqErr2Rts
            }
            Transition::ToErr => return self.command(Op::ToErr, 2, qpn, Inbox::None),
            Transition::ToReset => {
                self.reset_qp(step.qp)?;
                let (qp, arena, _) = self.qp_mut(step.qp)?;
                qp.image = Image::new(&qp.fixed);
                qp.clear_rings(arena);
                return Ok(());
            }
        };
        self.command(op, 0, qpn, Inbox::Bytes(&image.0))?;
        self.qp_mut(step.qp)?.0.image = image;
        Ok(())
    }

    /// Moves the QP to RESET and drops its pending completions.
    fn reset_qp(&mut self, id: QpId) -> Result<()> {
        let qp = self.qp(id)?;
        let (qpn, cqs) = (qp.qpn(), qp.cqs);
        self.command(Op::ToReset, 3, qpn, Inbox::None)?;
        for cq in cqs {
            if let Some(cq) = self.cqs.get_mut(&cq) {
                cq.discard(&self.arena, qpn);
            }
        }
        Ok(())
    }

    pub(crate) fn query_qp(&mut self, id: QpId) -> Result<QpAttributes> {
        let qpn = self.qp(id)?.qpn();
        let outbox = self.query(Op::QueryQp, qpn, qpc::LEN)?;
        Ok(qpc::attributes(outbox))
    }

    pub(crate) fn post_send(&mut self, step: &PostSend) -> Result<Posted> {
        let (qp, arena, device) = self.qp_mut(step.qp)?;
        Ok(Posted { wqes: qp.post_send(arena, device, &step.requests, step.ring)? })
    }

    pub(crate) fn post_recv(&mut self, step: &PostRecv) -> Result<Posted> {
        let (qp, arena, _) = self.qp_mut(step.qp)?;
        Ok(Posted { wqes: qp.post_recv(arena, &step.requests)? })
    }

    pub(crate) fn qp(&self, id: QpId) -> Result<&Qp> {
        self.qps.get(&id).ok_or_else(|| bad_step(format!("unknown {id:?}")))
    }

    pub(crate) fn qp_mut(&mut self, id: QpId) -> Result<(&mut Qp, &Arena, &Device)> {
        let qp = self.qps.get_mut(&id).ok_or_else(|| bad_step(format!("unknown {id:?}")))?;
        Ok((qp, &self.arena, &self.device))
    }
}
