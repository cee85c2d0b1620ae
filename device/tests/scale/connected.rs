//! Tests ten thousand connections between two HCAs, all with messages in flight at the same time.

use drivers::Bus as _;
use drivers::jingzhao::{Queues, SLOT, cqc, data_unit, region, signalled};
use jingzhao::Options;
use protocol::Psn;
use protocol::hca::jingzhao::mpt::MptFlags;
use protocol::hca::jingzhao::qpc::Qpc;

use super::machine::{BUFFERS, Machine, PAGE, initialised, pages, rc};
use super::{alone, measured, own_memory, work_time};

const QPS: u32 = 10_000;
/// QPN of the first QP.
const FIRST: u32 = 16;
/// Number of rounds. In each round, every QP sends one message.
const ROUNDS: u32 = 4;

/// Offsets in a QP's page of guest memory.
const SQ: u64 = 0;
const RQ: u64 = 0x400;
const CQ: u64 = 0x800;
const OUT: u64 = 0xc00;
const IN: u64 = 0xe00;
/// Size of the receive buffer for each round, in bytes.
const IN_LEN: u32 = 128;
const LOG_CQES: u8 = 5;

/// Key and virtual address of the memory region that covers the pages of all QPs.
const DATA_KEY: u32 = 0x1_8000;
const VA: u64 = 0x7f00_0000_0000;
const SEND: u8 = 0x0a;
const FIRST_PSN: u32 = 0xff_fffe;

/// Returns the second HCA's QP that is connected to QP `n` of the first HCA.
fn far(n: u32) -> u32 {
    // The step is coprime to the number of QPs, so every QP occurs exactly once.
    (n * 7919 + 13) % QPS
}

fn qpn(n: u32) -> u32 {
    FIRST + n
}

fn page(n: u32) -> u64 {
    BUFFERS + u64::from(n) * PAGE
}

/// Returns the message that QP `n` of an HCA sends in a round. No two messages are equal.
fn message(side: u8, n: u32, round: u32) -> Vec<u8> {
    let len = 16 + (n * 5 + round) % (IN_LEN - 16);
    let head = [&[side, 0][..], &n.to_le_bytes(), &round.to_le_bytes()].concat();
    let tail = (0..).map(|at: u32| at.wrapping_mul(n | 1).to_le_bytes()[1]);
    head.into_iter().chain(tail).take(len as usize).collect()
}

/// Creates memory regions, CQs and QPs. `peer` contains the peer of each QP.
fn bring_up(machine: &mut Machine, peer: &[u32]) {
    machine.write_mtt(0, pages(BUFFERS, QPS.into()));
    let all = u64::from(QPS) * PAGE;
    machine.register(&region(DATA_KEY, 0, VA, all, MptFlags::LOCAL_WRITE | MptFlags::REMOTE_WRITE));
    for (n, peer) in (0..).zip(peer) {
        machine.poke(page(n) + CQ, &[0x80; 32 << LOG_CQES]);
        let (sq, rq, cq) = (3 * n + 1, 3 * n + 2, 3 * n + 3);
        machine.register(&region(sq, n.into(), SQ, 0x400, MptFlags::empty()));
        machine.register(&region(rq, n.into(), RQ, 0x400, MptFlags::empty()));
        machine.register(&region(cq, n.into(), CQ, 0x400, MptFlags::LOCAL_WRITE));
        machine.create_cq(&cqc(n, cq, LOG_CQES));
        let psn = Psn::new(FIRST_PSN);
        let qpc = Qpc { next_send_psn: psn, recv_psn: psn, ..rc(qpn(*peer), n, sq, rq) };
        machine.connect(qpn(n), &qpc);
    }
}

fn queues(n: u32) -> Queues {
    Queues { qpn: qpn(n), page: 1, sq: page(n) + SQ, rq: page(n) + RQ }
}

/// Returns a data segment in the page of QP `n`.
fn data(n: u32, offset: u64, len: u32) -> Vec<u8> {
    data_unit(DATA_KEY, VA + u64::from(n) * PAGE + offset, len)
}

fn post_receive(machine: &mut Machine, n: u32, round: u32) {
    machine.post_recv(&queues(n), round, &data(n, IN + u64::from(round * IN_LEN), IN_LEN));
}

fn send(machine: &mut Machine, side: u8, n: u32, round: u32) {
    let message = message(side, n, round);
    machine.poke(page(n) + OUT, &message);
    let data = data(n, OUT, u32::try_from(message.len()).unwrap());
    machine.post_send(&queues(n), round, SEND, &signalled(&data));
}

/// Transfers frames in both directions until both HCAs are idle. Returns the number of frames.
fn exchange(a: &mut Machine, b: &mut Machine) -> u64 {
    let mut carried = 0;
    loop {
        let ((from_a, more_a), (from_b, more_b)) = (a.turn(), b.turn());
        from_a.iter().for_each(|frame| b.arrive(frame));
        from_b.iter().for_each(|frame| a.arrive(frame));
        let frames = from_a.len() + from_b.len();
        carried += frames as u64;
        if frames == 0 && !more_a && !more_b {
            return carried;
        }
    }
}

/// Checks the messages that QP `n` received, and its completions: one from each queue per round, in either order.
fn verify(machine: &mut Machine, n: u32, sender: (u8, u32)) {
    for round in 0..ROUNDS {
        let expected = message(sender.0, sender.1, round);
        let received = machine.peek(page(n) + IN + u64::from(round * IN_LEN), IN_LEN as usize);
        let (body, rest) = received.split_at(expected.len());
        assert!(
            body == expected && rest.iter().all(|byte| *byte == 0),
            "QP {n} has not received message {round}"
        );

        let mut completed = [false; 2];
        for slot in 2 * round..2 * round + 2 {
            let entry = machine.peek(page(n) + CQ + u64::from(slot) * 32, 32);
            assert_eq!(entry[..4], qpn(n).to_le_bytes(), "the CQE has the QPN of its QP");
            assert_eq!(entry[0x18..0x1c], (round * SLOT).to_le_bytes(), "the CQE has the offset of its WQE");
            let is_send = entry[0x1d] == 1;
            let (opcode, len) = if is_send { (SEND, None) } else { (0x04, Some(expected.len())) };
            assert_eq!((entry[0x1c], entry[0x1f]), (opcode, 0), "QP {n}: {entry:02x?}");
            let bytes = u32::from_le_bytes(entry[0x14..0x18].try_into().unwrap());
            assert!(len.is_none_or(|len| bytes as usize == len), "the CQE reports {bytes} bytes");
            completed[usize::from(is_send)] = true;
        }
        assert_eq!(completed, [true; 2], "each queue has one completion");
    }
    // Each message fits in one packet, so the PSNs have advanced by the number of rounds.
    let psn = (FIRST_PSN + ROUNDS) & 0xff_ffff;
    for offset in [0x6c, 0x7c, 0x84] {
        assert_eq!(machine.context_word(qpn(n), offset), psn, "the context has the PSN at {offset:#x}");
    }
}

#[test]
fn ten_thousand_connections_exchange_messages() {
    let _alone = alone();
    let mut a = initialised(1, Options::default());
    let mut b = initialised(2, Options::default());
    let to: Vec<u32> = (0..QPS).map(far).collect();
    let mut from = vec![0; QPS as usize];
    (0..QPS).for_each(|n| from[to[n as usize] as usize] = n);

    // Each QP needs seven commands, including those for its three regions and its CQ.
    let commands = 7 * u64::from(QPS);
    measured("QPs of the first HCA, connected", QPS.into(), commands, 2048, || bring_up(&mut a, &to));
    measured("QPs of the second HCA, connected", QPS.into(), commands, 2048, || bring_up(&mut b, &from));

    let (memory, began) = (own_memory(), work_time());
    let mut frames = 0;
    for round in 0..ROUNDS {
        for n in 0..QPS {
            post_receive(&mut a, n, round);
            post_receive(&mut b, n, round);
        }
        for n in 0..QPS {
            send(&mut a, 1, n, round);
            send(&mut b, 2, n, round);
        }
        frames += exchange(&mut a, &mut b);
    }
    let (took, grown) = (work_time() - began, own_memory().saturating_sub(memory));
    let messages = 2 * ROUNDS * QPS;
    println!(
        "{messages} messages in {took:.2?}, {frames} frames, {} ns per message; {} more bytes per QP",
        took.as_nanos() / u128::from(messages),
        grown / u64::from(2 * QPS)
    );

    for n in 0..QPS {
        verify(&mut a, n, (2, to[n as usize]));
        verify(&mut b, n, (1, from[n as usize]));
    }
}
