//! Tests what commands do, not only which status they return. Covers the transitions from SQD while the send queue
//! drains, and RESIZE_CQ.
//!
//! # Spec
//! JingZhao interface, sections 3.11, 7.2 and 10.5.

use agent::wire::{CommandResult, ContextTable, CreateMr, MrInfo, Peek, RawCommand, ReadContext, Service};
use anyhow::{Result, ensure};

use super::answers::issue;
use super::commands::{of, on, query, with};
use super::device::{SEND_ERROR, TestQp, WR_FLUSH_ERR};
use super::mailbox::{Mailbox, cqc, resize_cq};
use super::section_10_2::State::{Err, Reset, Rts, Sqd};
use super::transitions::{expect_state, walk};
use crate::vm::Vm;

const RTS2SQD: u16 = 0x01f;
const SQD2SQD: u16 = 0x038;
const SQD2RTS: u16 = 0x020;
const QUERY_QP: u16 = 0x022;

/// Checks that, while a message is outstanding, QUERY_QP reports draining (7), the context in ICM contains SQD (5), and
/// all transitions from SQD are permitted (section 10.5).
pub(super) async fn draining(vm: &mut Vm) -> Result<()> {
    const DRAINING: u8 = 7;
    /// TIMEOUT bit of opt_param_mask. With timeout code 0, the QP waits for the ACK indefinitely (section 10.6).
    const TIMEOUT_GIVEN: u32 = 1 << 9;
    let memory = vm.call(CreateMr::default()).await?;
    let qp = TestQp::create(vm, Service::Rc).await?;
    let qpn = qp.qp.qpn;
    let mut to_rts = walk(&qp, Rts);
    to_rts.pop();
    to_rts.push(with(0x01b, qpn, &qp.image().word(0, TIMEOUT_GIVEN)));
    for (out, to) in [
        (zeros(SQD2RTS, &qp), Some(Rts)),
        (zeros(SQD2SQD, &qp), None),
        (RawCommand { op_modifier: 2, ..on(0x01e, qpn) }, Some(Err)),
        (RawCommand { op_modifier: 3, ..on(0x021, qpn) }, Some(Reset)),
    ] {
        succeed(vm, to_rts.clone()).await?;
        // The destination QP does not exist and will not send an ACK.
        qp.send(vm, memory.sge(0, 64)).await?;
        let results = succeed(vm, vec![zeros(RTS2SQD, &qp), query(QUERY_QP, qpn)]).await?;
        let state = |outbox: &[u8]| outbox.get(8).map(|byte| byte >> 4);
        ensure!(state(&results[1].outbox) == Some(DRAINING), "{:?}", results[1].outbox);
        let context = vm.call(ReadContext { table: ContextTable::Qpc, index: qpn }).await?.bytes;
        ensure!(state(&context) == Some(Sqd as u8), "the context in ICM is {context}");
        let op = out.op;
        let results = succeed(vm, vec![out, query(QUERY_QP, qpn)]).await?;
        match to {
            Some(to) => expect_state(&results[1], to)?,
            None => {
                ensure!(state(&results[1].outbox) == Some(DRAINING), "{op:03X}h: {:?}", results[1].outbox)
            }
        }
        if to == Some(Err) {
            qp.expect(vm, &[(SEND_ERROR, WR_FLUSH_ERR)]).await?;
        }
    }
    Ok(())
}

/// Checks that RESIZE_CQ switches to the new buffer and size. The slot of each later entry is the free-running count of
/// entries, modulo the new size (section 3.11).
pub(super) async fn resize_cq_moves_on(vm: &mut Vm) -> Result<()> {
    const CQN: u32 = 1001;
    let old = vm.call(CreateMr::default()).await?;
    let new = vm.call(CreateMr::default()).await?;
    let qp = TestQp::create(vm, Service::Rc).await?;
    // The CQ has 4 entries. The QP is in ERR, where each doorbell produces a flush completion (section 10.5).
    let mut commands = vec![with(0x016, CQN, &cqc(2, old.key))];
    commands.extend(walk(&qp, Rts).into_iter().take(1));
    let image = qp.image().word(0x70, CQN).word(0x8c, CQN);
    commands.extend([0x019, 0x01a, 0x01b].map(|op| with(op, qp.qp.qpn, &image)));
    commands.push(RawCommand { op_modifier: 2, ..on(0x01e, qp.qp.qpn) });
    succeed(vm, commands).await?;

    // Completions expected so far, by buffer and slot.
    let mut expected = Vec::new();
    let places = [(&old, 0), (&old, 1), (&old, 2), (&new, 3), (&new, 4), (&old, 1), (&old, 0)];
    for (count, (buffer, slot)) in (0u32..).zip(places) {
        match count {
            // Resize to 8 entries in the documented form, then to 2 entries in the driver's form.
            3 => drop(succeed(vm, vec![with(0x02c, CQN, &resize_cq(3, new.key))]).await?),
            5 => {
                let resize = with(0x02c, CQN, &resize_cq(1, old.key));
                drop(succeed(vm, vec![RawCommand { op_modifier: 1, ..resize }]).await?);
            }
            _ => {}
        }
        qp.send(vm, old.sge(0, 4)).await?;
        // Commands are executed after all preceding doorbells, so this NOP acts as a barrier.
        succeed(vm, vec![of(0x031)]).await?;
        expected.retain(|(key, at, _)| (*key, *at) != (buffer.key, slot));
        expected.push((buffer.key, slot, flushed(qp.qp.qpn, count * 512)));
        for buffer in [&old, &new] {
            expect_entries(vm, buffer, &expected).await?;
        }
    }
    succeed(vm, vec![RawCommand { op_modifier: 3, ..on(0x021, qp.qp.qpn) }, on(0x017, CQN)]).await.map(drop)
}

/// Returns the CQE for a flushed send (section 7.2).
fn flushed(qpn: u32, wqe: u32) -> [u8; 32] {
    let mut cqe = [0; 32];
    cqe[0x00..0x04].copy_from_slice(&qpn.to_le_bytes());
    cqe[0x10] = WR_FLUSH_ERR;
    cqe[0x18..0x1c].copy_from_slice(&wqe.to_le_bytes());
    cqe[0x1c] = SEND_ERROR;
    cqe
}

/// Checks that the buffer contains the listed entries and is otherwise zero.
async fn expect_entries(vm: &mut Vm, buffer: &MrInfo, entries: &[(u32, u32, [u8; 32])]) -> Result<()> {
    let bytes = vm.call(Peek { mr: buffer.id, off: 0, len: 512 }).await?;
    for (slot, seen) in (0u32..).zip(bytes.chunks(32)) {
        let listed = entries.iter().find(|(key, at, _)| (*key, *at) == (buffer.key, slot));
        let expected = listed.map_or([0; 32], |(.., cqe)| *cqe);
        ensure!(seen == expected, "slot {slot} contains {seen:02x?}, expected {expected:02x?}");
    }
    Ok(())
}

/// Returns a command whose input mailbox is all zeros. The command changes only the state (section 10.3).
pub(super) fn zeros(op: u16, qp: &TestQp) -> RawCommand {
    with(op, qp.qp.qpn, &Mailbox::new(0xc0))
}

/// Issues commands, all of which must succeed.
pub(super) async fn succeed(vm: &mut Vm, commands: Vec<RawCommand>) -> Result<Vec<CommandResult>> {
    let results = issue(vm, commands.clone()).await?;
    for (command, result) in commands.iter().zip(&results) {
        ensure!(result.status == 0, "status {:02x}h of {command:x?}", result.status);
    }
    Ok(results)
}
