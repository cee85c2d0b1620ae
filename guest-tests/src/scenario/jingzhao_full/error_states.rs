//! Work requests on both queues while the QP is in SQE, ERR or RESET.
//!
//! # Spec
//! JingZhao interface, sections 10.1 and 10.5.

use agent::wire::{CreateMr, RawCommand, Service};
use anyhow::Result;

use super::answers::issue;
use super::behaviour::{succeed, zeros};
use super::commands::{of, on, query, with};
use super::device::{LOCAL_PROT_ERR, NOWHERE, RECEIVE_ERROR, SEND_ERROR, TestQp, WR_FLUSH_ERR};
use super::section_10_2::State::{self, Err, Reset, Rts, Sqe};
use super::transitions::{expect_state, walk};
use crate::vm::Vm;

/// CQE opcodes of a SEND at the sender and at the receiver (sections 7.3 and 11.2). The upper three bits of the
/// receiver's opcode are the service type, 001 for UC.
const SEND: u8 = 0x0a;
const UC_SEND_ONLY: u8 = 0x24;

/// Checks that requests posted in SQE are flushed and that requests posted after the return to RTS are executed.
pub(super) async fn way_back_from_sqe(vm: &mut Vm, service: Service) -> Result<()> {
    const SQERR2RTS: u16 = 0x01d;
    let memory = vm.call(CreateMr::default()).await?;
    let qp = TestQp::create(vm, service).await?;
    issue(vm, walk(&qp, Sqe)).await?;
    qp.fail_a_send(vm).await?;
    qp.send(vm, memory.sge(0, 64)).await?;
    qp.expect(vm, &[(SEND_ERROR, WR_FLUSH_ERR)]).await?;
    in_state(vm, &qp, Sqe).await?;
    succeed(vm, vec![zeros(SQERR2RTS, &qp)]).await?;
    in_state(vm, &qp, Rts).await?;
    qp.send(vm, memory.sge(0, 64)).await?;
    qp.expect(vm, &[(SEND, 0)]).await
}

/// Checks that the receive queue keeps working in SQE and that the QP moves to ERR when that queue fails.
pub(super) async fn receiving_in_sqe(vm: &mut Vm) -> Result<()> {
    /// LID of the device's own port, used for loopback.
    const OWN_LID: u32 = 1;
    let memory = vm.call(CreateMr::default()).await?;
    let (sender, receiver) = (TestQp::create(vm, Service::Uc).await?, TestQp::create(vm, Service::Uc).await?);
    for (qp, peer) in [(&sender, &receiver), (&receiver, &sender)] {
        let image = qp.image().word(0x18, peer.qp.qpn).word(0x3c, OWN_LID << 16).word(0x84, 0x100);
        succeed(vm, [0x019, 0x01a, 0x01b].map(|op| with(op, qp.qp.qpn, &image)).to_vec()).await?;
    }
    receiver.fail_a_send(vm).await?;
    receiver.receive(vm, memory.sge(0, 64)).await?;
    sender.send(vm, memory.sge(64, 64)).await?;
    receiver.expect(vm, &[(UC_SEND_ONLY, 0)]).await?;
    in_state(vm, &receiver, Sqe).await?;
    receiver.receive(vm, NOWHERE).await?;
    receiver.receive(vm, memory.sge(0, 64)).await?;
    sender.send(vm, memory.sge(64, 64)).await?;
    receiver.expect(vm, &[(RECEIVE_ERROR, LOCAL_PROT_ERR), (RECEIVE_ERROR, WR_FLUSH_ERR)]).await?;
    in_state(vm, &receiver, Err).await?;
    sender.expect(vm, &[(SEND, 0), (SEND, 0)]).await
}

/// Checks that 2ERR flushes the posted sends and then the posted receives, in order, and that ERR2RST does not generate
/// completions.
pub(super) async fn outstanding_work(vm: &mut Vm, service: Service) -> Result<()> {
    let memory = vm.call(CreateMr::default()).await?;
    let qp = TestQp::create(vm, service).await?;
    for (out, to, completions) in [
        (RawCommand { op_modifier: 2, ..on(0x01e, qp.qp.qpn) }, Err, true),
        (RawCommand { op_modifier: 3, ..on(0x021, qp.qp.qpn) }, Reset, false),
    ] {
        // In SQD, new requests do not start, regardless of the service.
        succeed(vm, walk(&qp, State::Sqd)).await?;
        for slot in [0, 1] {
            qp.receive(vm, memory.sge(slot * 64, 64)).await?;
            qp.send(vm, memory.sge(1000, 64)).await?;
        }
        succeed(vm, vec![of(0x031)]).await?;
        qp.expect_silence(vm).await?;
        succeed(vm, vec![out]).await?;
        if completions {
            let [send, receive] = [(SEND_ERROR, WR_FLUSH_ERR), (RECEIVE_ERROR, WR_FLUSH_ERR)];
            qp.expect(vm, &[send, send, receive, receive]).await?;
        }
        in_state(vm, &qp, to).await?;
        qp.expect_silence(vm).await?;
    }
    Ok(())
}

async fn in_state(vm: &mut Vm, qp: &TestQp, state: State) -> Result<()> {
    let results = succeed(vm, vec![query(0x022, qp.qp.qpn)]).await?;
    results.iter().try_for_each(|result| expect_state(result, state))
}
