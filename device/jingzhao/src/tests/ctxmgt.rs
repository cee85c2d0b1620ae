//! Tests the context manager inside a device, as a guest observes it (CtxMgt document, sections 1 and 5).

use protocol::Psn;
use protocol::hca::jingzhao::qpc::Qpc;

use super::traffic::{
    DATA_KEY, ENTRY, QPN, cqe, data_unit, get_data, pair, post_recv, put_data, qpc, remote, send,
};
use super::*;
use crate::ctxmgt::stats::CtxStats;

const SEND: u8 = 0x0a;
const WRITE: u8 = 0x08;

fn stats(machine: &Machine) -> CtxStats {
    machine.hca.frontend_counters().ctxmgt
}

fn query(machine: &mut Machine) -> Qpc {
    machine.ok(Op::QueryQp, 0, QPN, &[]);
    Qpc::parse(machine.peek(OUTBOX, 0xc0).first_chunk().unwrap())
}

/// Section 5.4.2 lists which units on each side read or write the context during one SEND.
#[test]
fn send_performs_documented_context_accesses() {
    let (mut a, mut b) = pair();
    let before = [stats(&a), stats(&b)];
    post_recv(&mut b, 0, 0, 64);
    put_data(&mut a, 0, b"context");
    send(&mut a, 0, SEND, &[data_unit(0, 7)]);
    exchange(&mut a, &mut b);
    assert_eq!(get_data(&mut b, 0, 7), b"context");

    let (near, far) = (stats(&a), stats(&b));
    // Doorbell Processing reads the context twice, for the doorbell and for the WQE. The other units read it once each:
    // WQE Parser to check the state, Requester Trans Control for the WQE, and Requester Recv Control for the CQE.
    assert_eq!(near.doorbell_processing.hits, 2);
    assert_eq!(near.wqe_parser.hits, 1);
    assert_eq!(near.requester_trans_control.reads.hits, 1);
    assert_eq!(near.requester_recv_control.reads.hits, 1);
    assert_eq!(near.execution_engine, before[0].execution_engine);
    assert_eq!((near.requester_trans_control.writes, near.requester_trans_control.write_backs), (1, 1));
    assert_eq!((near.requester_recv_control.writes, near.requester_recv_control.write_backs), (1, 1));
    // The receiver reads the context once, for its CQE, and writes its expected PSN.
    assert_eq!(far.execution_engine.reads.hits, 1);
    assert_eq!((far.execution_engine.writes, far.execution_engine.write_backs), (1, 1));
    assert_eq!(far.requester_trans_control, before[1].requester_trans_control);
    assert_eq!(far.ceu_parser, before[1].ceu_parser, "the transfer executes no command");
}

/// CtxMgt document, section 5.2.1, and JingZhao interface, section 4.3: a command executes before PSNs that changed in
/// the same turn are written back. The exception is QUERY_QP, which first writes back the PSNs of its QP.
#[test]
fn query_qp_during_turn_updates_psns_in_memory() {
    let (mut a, mut b) = pair();
    send(&mut a, 0, WRITE, &[remote(0, DATA_KEY), data_unit(0, 0x400)]);
    // The WRITE has four packets, starting at PSN FFFFFEh. The receiver handles them without ending its turn.
    for frame in a.settle() {
        b.hca.handle_frame(&frame);
    }
    assert_eq!(b.peek(ENTRY + 0x84, 4), [0, 0xff, 0xff, 0xfe]);
    assert_eq!(query(&mut b).recv_psn.get(), 2);
    assert_eq!(b.peek(ENTRY + 0x84, 4), [0, 0, 0, 2]);
}

/// JingZhao interface, section 5.4: changes that the engine made before a command do not overwrite the fields that the
/// command writes.
#[test]
fn recreated_qp_ignores_old_write_backs() {
    let (mut a, mut b) = pair();
    send(&mut a, 0, WRITE, &[remote(0, DATA_KEY), data_unit(0, 0x400)]);
    for frame in a.settle() {
        b.hca.handle_frame(&frame);
    }
    b.ok(Op::ToRst, 3, QPN, &[]);
    assert_eq!(b.peek(ENTRY + 0x84, 4), [0, 0, 0, 2], "the last PSN is written back");
    let recreated = Qpc { recv_psn: Psn::new(0x77), ..qpc() };
    for op in [Op::Rst2Init, Op::Init2Rtr] {
        b.ok(op, 0, QPN, &recreated.emit());
    }
    b.settle();
    assert_eq!(b.peek(ENTRY + 0x84, 4), [0, 0, 0, 0x77]);
}

#[test]
fn context_counters_survive_close_and_reset() {
    let (mut a, _) = pair();
    a.ok(Op::ToRst, 3, QPN, &[]);
    send(&mut a, 0, SEND, &[]);
    assert_eq!(stats(&a).doorbell_processing.misses, 1);
    let before = stats(&a);
    a.ok(Op::CloseHca, 0, 0, &[]);
    assert_eq!(stats(&a), before);
    a.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
    assert_eq!(stats(&a), before);
    a.hca.region_write(Region::Bar(Bar::Bar0), 0xf0010, &[1, 0, 0, 0]);
    assert_eq!(stats(&a), before);
}

/// JingZhao interface, section 10.5: a QP in ERR flushes the requests posted by a doorbell, even if it entered ERR in
/// the same turn.
#[test]
fn doorbell_is_checked_against_latest_engine_state() {
    let (mut a, mut b) = pair();
    b.ok(Op::ToRst, 3, QPN, &[]);
    for op in [Op::Rst2Init, Op::Init2Rtr] {
        b.ok(op, 0, QPN, &qpc().emit());
    }
    send(&mut a, 0, WRITE, &[remote(0, 5), data_unit(0, 4)]);
    for frame in a.settle() {
        b.hca.handle_frame(&frame);
    }
    assert_eq!(b.peek(ENTRY + 8, 1)[0] >> 4, 2, "nothing is written back before the turn ends");
    send(&mut b, 0, SEND, &[]);
    let entry = cqe(&mut b, 0);
    assert_eq!((entry[0x10], entry[0x1c]), (5, 0xff));
}
