//! Queues in the formats used by different drivers. Section numbers refer to the JingZhao interface.

use agent::wire::{CreateQp, PostSend, RecvStyle, Ring, SendOp, SendRequest};
use anyhow::{Result, ensure};

use super::{SOON_MS, request};
use crate::report::Report;
use crate::scenario::connection::{Attributes, Connection, destroy_region, region};
use crate::scenario::pair::{Direction, Pair};
use crate::scenario::transfer::{Plan, transfer};

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    report.case("doorbells as two 32-bit stores", hint, half_doorbells(pair)).await?;
    report.case("QP numbers with rolling upper bits", hint, rolling_numbers(pair)).await?;
    report.case("receive requests as the kernel driver posts them", hint, kernel_receives(pair)).await?;
    for (slots, slot_bytes) in [(2, 6), (3, 12), (10, 7)] {
        let name = format!("queues with 2^{slots} slots of 2^{slot_bytes} bytes");
        report.case(&name, hint, queue_shape(pair, slots, slot_bytes)).await?;
    }
    Ok(())
}

/// Checks that a write to offset 0 only latches the written word and that a subsequent write to offset 4 triggers the
/// doorbell (section 1.6).
async fn half_doorbells(pair: &mut Pair) -> Result<()> {
    let connection = Connection::create(pair, &Attributes::default()).await?;
    let (at_a, _) = connection.towards(Direction::AToB);
    let source = region(&mut pair.a.vm, 64, 0).await?;
    let sink = region(&mut pair.b.vm, 64, 0).await?;
    for ring in [Ring::Halves, Ring::Once, Ring::Halves] {
        let write = SendRequest { remote: Some(sink.remote(0)), ..request(SendOp::Write, source.sge(0, 64)) };
        pair.a.vm.call(PostSend { qp: at_a.qp.id, requests: vec![write; 3], ring }).await?;
        let cqes = at_a.poll(&mut pair.a.vm, 3, SOON_MS).await?;
        ensure!(cqes.iter().all(|cqe| cqe.syndrome.is_none()), "{ring:?}: {cqes:#?}");
    }
    destroy_region(&mut pair.a.vm, &source).await?;
    destroy_region(&mut pair.b.vm, &sink).await?;
    connection.destroy(pair).await
}

/// Checks that the device uses only the low bits of a QP number as its table index, but reports the whole number
/// (section 2).
async fn rolling_numbers(pair: &mut Pair) -> Result<()> {
    let shapes = [
        CreateQp { high_bits: 3, uar_page: 7, ..CreateQp::default() },
        CreateQp { high_bits: 9, uar_page: 2047, ..CreateQp::default() },
    ];
    let connection = Connection::create_as(pair, &Attributes::default(), shapes).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    let source = region(&mut pair.a.vm, 64, 0).await?;
    let sink = region(&mut pair.b.vm, 64, 0).await?;
    let write = SendRequest { remote: Some(sink.remote(0)), ..request(SendOp::Write, source.sge(0, 64)) };
    at_a.post(&mut pair.a.vm, vec![write]).await?;
    let cqes = at_a.poll(&mut pair.a.vm, 1, SOON_MS).await?;
    let seen: Vec<_> = cqes.iter().map(|cqe| (cqe.syndrome, cqe.qpn, cqe.remote_qpn)).collect();
    ensure!(seen == [(None, at_a.qp.qpn, at_b.qp.qpn)], "{cqes:#?}");
    destroy_region(&mut pair.a.vm, &source).await?;
    destroy_region(&mut pair.b.vm, &sink).await?;
    connection.destroy(pair).await
}

/// Checks receive requests in the kernel driver's format (section 6.8). The kernel driver does not mark consumed slots
/// as free, so the test uses each slot of the ring only once.
async fn kernel_receives(pair: &mut Pair) -> Result<()> {
    let kernel = CreateQp { recv_style: RecvStyle::Terminated, ..CreateQp::default() };
    let connection =
        Connection::create_as(pair, &Attributes::default(), [CreateQp::default(), kernel]).await?;
    let plan = Plan { count: 1 << kernel.log_rq_slots, ..Plan::new(SendOp::Send, 3000) };
    transfer(pair, &connection, plan).await?;
    connection.destroy(pair).await
}

/// Sends enough messages to wrap both rings several times. Doorbell positions are free-running and therefore exceed the
/// ring size.
async fn queue_shape(pair: &mut Pair, log_slots: u8, log_slot_bytes: u8) -> Result<()> {
    let shape = CreateQp {
        log_sq_slots: log_slots,
        log_sq_slot_bytes: log_slot_bytes,
        log_rq_slots: log_slots,
        log_rq_slot_bytes: log_slot_bytes,
        ..CreateQp::default()
    };
    let connection = Connection::create_as(pair, &Attributes::default(), [shape; 2]).await?;
    for op in [SendOp::Send, SendOp::Write, SendOp::SendImm] {
        transfer(pair, &connection, Plan { count: (1 << log_slots) + 21, ..Plan::new(op, 300) }).await?;
    }
    connection.destroy(pair).await
}
