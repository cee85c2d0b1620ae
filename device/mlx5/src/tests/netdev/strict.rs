//! Strict mode: each violation on an SQ or RQ produces one report, and correct software produces none.

use card::telemetry::monitor::Rule;
use protocol::hca::mlx5::user_memory::{CreateUmem, UmemNumber};

use super::*;
use crate::strict::rules::*;

fn strict() -> Net {
    let mut net = Net::new();
    net.create_direct_tir();
    net.driver.monitor.set_strict(true);
    net
}

fn violations(net: &Net) -> Vec<(&'static str, u64)> {
    net.driver.monitor.violations().collect()
}

/// Returns whether any test case violates `rule`.
pub(in super::super) fn has_case(rule: &Rule) -> bool {
    CASES.iter().any(|(broken, _)| broken.name == rule.name)
}

/// Posts a WQE and rings the doorbell with its first bytes, as the driver does.
fn send(net: &mut Net, wqe: impl FnOnce(&Net) -> FrameWqe<'static>) {
    let wqe = wqe(net);
    let control = ControlSegment { index: net.sent, ..wqe.control };
    send_bytes(net, &FrameWqe { control, operation: wqe.operation }.emit());
}

fn send_bytes(net: &mut Net, bytes: &[u8]) {
    post(net, bytes);
    ring(net, &output(bytes));
}

/// Writes a WQE and updates the doorbell record, without ringing the doorbell.
fn post(net: &mut Net, bytes: &[u8]) {
    for part in bytes.chunks(BLOCK) {
        let block = u64::from(net.sent) % (1 << LOG_ENTRIES);
        net.driver.poke(SQ + block * BLOCK as u64, part);
        net.sent = net.sent.wrapping_add(1);
    }
    let sent = net.sent;
    net.driver.poke(SQ_RECORD + 6, &sent.to_be_bytes());
}

fn ring(net: &mut Net, head: &[u8; 8]) {
    let uar = net.uar;
    net.driver.ring(uar, driver::SEND, head);
    net.driver.frames();
}

fn frame(net: &Net) -> FrameWqe<'static> {
    net.wqe(EthernetSegment::default(), &[], 60)
}

fn unsignaled(wqe: FrameWqe<'static>) -> FrameWqe<'static> {
    FrameWqe { control: ControlSegment { completion: 0, ..wqe.control }, ..wqe }
}

/// Returns a WQE with index `index`, without posting it.
fn bytes(net: &Net, index: u16) -> Vec<u8> {
    let wqe = frame(net);
    FrameWqe { control: ControlSegment { index, ..wqe.control }, ..wqe }.emit()
}

fn lso(net: &Net, header: &'static [u8], len: usize) -> FrameWqe<'static> {
    net.wqe(EthernetSegment { mss: 1000, ..EthernetSegment::default() }, header, len)
}

/// Headers of a UDP datagram over IPv4.
const HEADERS: &[u8] = &[
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0,
    2, 0, 1, 0, 2, 0, 0, 0, 0,
];

type Case = (&'static Rule, fn(&mut Net));

const CASES: &[Case] = &[
    (&DOORBELL_NOTHING, |net| {
        let (head, other) = (output(&bytes(net, 0)), net.driver.alloc_uar());
        net.uar = other;
        ring(net, &head);
    }),
    (&DOORBELL_STATE, |net| {
        net.modify_sq(WorkQueueState::Reset);
        send(net, frame);
    }),
    (&DOORBELL_RECORD, |net| {
        let head = output(&bytes(net, 0));
        ring(net, &head);
    }),
    (&DOORBELL_WQE, |net| {
        let wqe = bytes(net, 0);
        post(net, &wqe);
        let mut head = output(&wqe);
        head[3] ^= 1;
        ring(net, &head);
    }),
    (&RECORD_BACK, |net| {
        for _ in 0..3 {
            send(net, frame);
        }
        net.driver.poke(SQ_RECORD + 6, &[0, 2]);
        let head = output(&bytes(net, 1));
        ring(net, &head);
    }),
    (&RECORD_BACK, |net| {
        for _ in 0..2 {
            net.post_receive(&[1522]);
            net.driver.receive(&plain(2, 60));
        }
        net.driver.poke(RQ_RECORD + 2, &[0, 1]);
        net.driver.receive(&plain(2, 60));
    }),
    (&SQ_OVERRUN, |net| {
        let wqe = bytes(net, 0);
        post(net, &wqe);
        net.driver.poke(SQ_RECORD + 6, &[0, 65]);
        ring(net, &output(&wqe));
    }),
    // The WQEs do not generate CQEs, so software cannot tell that their blocks are free.
    (&SQ_OVERRUN, |net| {
        for _ in 0..65 {
            send(net, |net| unsignaled(frame(net)));
        }
    }),
    (&RQ_OVERRUN, |net| {
        net.post_receive(&[1522]);
        net.driver.poke(RQ_RECORD + 2, &[0, 65]);
        net.driver.receive(&plain(2, 60));
    }),
    (&RECORD_SHARED, |net| {
        net.create_sq(net.sq_context());
    }),
    (&RECORD_SHARED, |net| {
        net.create_rq(net.rq_context(4));
    }),
    (&WQE_INDEX, |net| {
        let (wqe, uar) = (bytes(net, 9), net.uar);
        post(net, &wqe);
        // Store only the second half of the doorbell, which does not contain the WQE's index. The wrong index is then a
        // violation only in the WQE.
        net.driver.ring(uar, driver::SEND + 4, &wqe[4..8]);
        net.driver.frames();
    }),
    (&WQE_MALFORMED, |net| {
        send(net, |net| {
            let wqe = frame(net);
            FrameWqe { control: ControlSegment { opcode: 0x10, ..wqe.control }, ..wqe }
        });
    }),
    (&WQE_MALFORMED, |net| {
        let mut wqe = bytes(net, 0);
        wqe[7] = 0;
        send_bytes(net, &wqe);
    }),
    // The inline header extends past the end of the WQE.
    (&WQE_MALFORMED, |net| {
        let mut wqe = bytes(net, 0);
        wqe[16 + 12] = 3;
        send_bytes(net, &wqe);
    }),
    (&WQE_MALFORMED, |net| send(net, |net| net.wqe(EthernetSegment::default(), &[2; 13], 0))),
    (&LSO_HEADER, |net| send(net, |net| lso(net, &[], 2000))),
    (&LSO_HEADER, |net| send(net, |net| lso(net, &HEADERS[..40], 2000))),
    (&LSO_HEADER, |net| send(net, |net| lso(net, HEADERS, 0))),
    (&SQ_WITHOUT_TIS, |net| {
        let queue = WorkQueue { record: Iova::new(SQ_RECORD + 0x80), ..net.sq_context().queue };
        net.sqn = net.create_sq(SqContext { tis_count: 0, queue, ..net.sq_context() });
        net.modify_sq(WorkQueueState::Ready);
        let wqe = frame(net).emit();
        post(net, &wqe);
        net.driver.poke(SQ_RECORD + 0x86, &[0, 1]);
        ring(net, &output(&wqe));
    }),
    (&WQE_KEY, |net| {
        net.key = Lkey::new(0x7700);
        send(net, frame);
    }),
    (&WQE_KEY, |net| {
        net.key = Lkey::new(0x7700);
        net.post_receive(&[1522]);
        net.driver.receive(&plain(2, 60));
    }),
];

#[test]
fn each_netdev_violation_is_reported_once() {
    let reported = |(rule, software): &Case| {
        let mut net = strict();
        software(&mut net);
        (rule.name, violations(&net))
    };
    let wrong: Vec<_> =
        CASES.iter().map(reported).filter(|(rule, found)| found[..] != [(*rule, 1)]).collect();
    assert!(wrong.is_empty(), "expected rules, each with the reported violations: {wrong:#?}");
}

/// Section 7.4: with mapped doorbells, the device checks the record when it polls it.
#[test]
fn mapped_sq_record_violations_are_reported_once() {
    for (offset, rule) in [(65, &SQ_OVERRUN), (u16::MAX, &RECORD_BACK)] {
        let mut net = Net::of(Bench::mapped(), 1);
        net.driver.monitor.set_strict(true);
        send(&mut net, frame);
        send(&mut net, frame);
        net.send_cqes();
        let sent = net.sent.wrapping_add(offset);
        net.driver.poke(SQ_RECORD + 6, &sent.to_be_bytes());
        (0..2).for_each(|_| net.ring());
        assert_eq!(violations(&net), [(rule.name, 1)]);
    }
}

#[test]
fn conforming_netdev_driver_has_no_violations() {
    let mut net = strict();
    for round in 0..200 {
        net.post_receive(&[1522]);
        net.driver.receive(&plain(2, 60));
        // Only every eighth WQE requests a CQE.
        send(&mut net, |net| {
            let wqe = if round % 3 == 0 { lso(net, HEADERS, 2500) } else { frame(net) };
            if round % 8 == 7 { wqe } else { unsignaled(wqe) }
        });
        net.send_cqes();
        net.received();
    }
    // An SQ and an RQ of a raw QP share a doorbell record.
    let context = net.rq_context(4);
    let queue = WorkQueue { record: Iova::new(SQ_RECORD), ..context.queue };
    net.create_rq(RqContext { queue, ..context });
    // Offsets in a UMEM may equal the addresses of other records.
    let list = pages(0x800_0000, 0x400);
    let create = CreateUmem { count: 0x400, ..CreateUmem::default() };
    let created = net.driver.ok(&Command::CreateUmem(create, Pages::parse(&list)));
    let record_umem = UmemNumber::parse(&output(&created)).umem;
    let (sq, rq) = (net.sq_context(), net.rq_context(4));
    let in_umem = |queue| WorkQueue { record_in_umem: true, record_umem, ..queue };
    net.create_sq(SqContext { queue: in_umem(sq.queue), ..sq });
    net.create_rq(RqContext { queue: in_umem(rq.queue), ..rq });
    net.modify_sq(WorkQueueState::Error);
    send(&mut net, frame);
    net.restart_sq();
    send(&mut net, frame);
    assert_eq!(violations(&net), []);
}
