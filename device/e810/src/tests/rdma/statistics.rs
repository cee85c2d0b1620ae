//! Tests of the counters in the RDMA statistics block (section 10.7).

use drivers::e810::queue_pair::gather;
use protocol::hca::e810::rdma::statistics::GatherStatistics;
use protocol::hca::e810::regs::Register;

use super::*;
use crate::testing::RDMA_BUFFER;

/// Combined length of the IPv4, UDP and BTH headers and the ICRC, in bytes.
const OVERHEAD: u64 = 20 + 8 + 12 + 4;

/// Returns all words of the statistics block.
fn gathered(driver: &mut Driver) -> Vec<u64> {
    driver.poke(RDMA_BUFFER, &[0xee; 1024]);
    let command = GatherStatistics { buffer: Iova::new(RDMA_BUFFER), ..GatherStatistics::default() };
    driver.perform_well(&Operation::GatherStatistics(command));
    let bytes = driver.peek(RDMA_BUFFER, 1024);
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Returns the nonzero words, each with its offset in bytes.
fn counted(driver: &mut Driver) -> Vec<(usize, u64)> {
    let words = gathered(driver);
    words.into_iter().enumerate().map(|(n, word)| (n * 8, word)).filter(|(_, word)| *word != 0).collect()
}

/// At a path MTU of 1024, a 4000-byte message needs four packets and one acknowledgement.
#[test]
fn sent_packets_are_counted_by_ip_version() {
    let mut pair = Pair::connected();
    assert_eq!(counted(&mut pair.a), [], "all counters start at zero");
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 8192)]);
    pair.a.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0, 4000)]));
    pair.settle();
    let (data, ack) = (4 * OVERHEAD + 4000, OVERHEAD + 4);
    let sender = [(8, ack), (16, 1), (104, data), (112, 4), (224, 1), (232, 4), (280, 1)];
    assert_eq!(counted(&mut pair.a), sender);
    let receiver = [(8, data), (16, 4), (104, ack), (112, 1), (224, 4), (232, 1), (256, 1)];
    assert_eq!(counted(&mut pair.b), receiver);
}

/// Section 8.6: `ethtool -S` shows the packets of both halves as packets of the port.
#[test]
fn port_counters_include_rdma_packets() {
    let mut pair = Pair::connected();
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 8192)]);
    pair.a.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0, 4000)]));
    pair.settle();
    let ethernet = 14 + 4;
    let (data, ack) = (4 * (OVERHEAD + ethernet) + 4000, OVERHEAD + ethernet + 4);
    let read =
        |driver: &mut Driver, registers: [Register; 3]| registers.map(|register| driver.read(register));
    let received = [Register::GlprtGorc, Register::GlprtUprc, Register::GlprtMprc];
    let sent = [Register::GlprtGotc, Register::GlprtUptc, Register::GlprtMptc];
    let [data, ack] = [data, ack].map(|bytes| u32::try_from(bytes).unwrap());
    assert_eq!([read(&mut pair.a, sent), read(&mut pair.a, received)], [[data, 4, 0], [ack, 1, 0]]);
    assert_eq!([read(&mut pair.b, sent), read(&mut pair.b, received)], [[ack, 1, 0], [data, 4, 0]]);
    assert_eq!(pair.a.read(Register::GlprtPtc1522), 0, "the counters by size do not include these packets");
}

#[test]
fn writes_and_reads_are_counted_on_both_sides() {
    let mut pair = Pair::connected();
    register(&mut pair.b, 0x1234_5601, TARGET, 0x1000, StagRights::all());
    for (operation, sent, received) in [(WRITE, 264, 240), (READ, 272, 248)] {
        let list = [fragment(SOURCE, 0, 64)];
        pair.a.post_send(QPN, &gather(SIGNALED | operation | 0x1234_5601, TARGET, None, &list));
        pair.settle();
        assert!(!pair.sent().error);
        let of = |words: &[u64], at: usize| words[at / 8];
        assert_eq!((of(&gathered(&mut pair.a), sent), of(&gathered(&mut pair.b), received)), (1, 1));
    }
}

#[test]
fn rejected_message_counts_as_protocol_error() {
    let mut pair = Pair::connected();
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 16)]);
    pair.a.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0, 64)]));
    pair.settle();
    let words = gathered(&mut pair.b);
    assert_eq!((words[200 / 8], words[256 / 8]), (1, 0), "the receiver counts an error but no message");
    assert_eq!(gathered(&mut pair.a)[280 / 8], 0, "the sender does not count the rejected message");
}

/// Section 10.7: the driver accumulates the deltas between its reads and assumes that the counters start at zero.
#[test]
fn creating_control_queue_zeroes_counters() {
    let mut pair = Pair::connected();
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    pair.a.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0, 64)]));
    pair.settle();
    pair.a.start_cqp();
    assert_eq!(counted(&mut pair.a), []);
}
