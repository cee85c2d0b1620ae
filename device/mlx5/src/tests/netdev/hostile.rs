//! Random WQEs, receives and frames. The device must complete or reject all of them in bounded time.

use proptest::prelude::*;

use super::*;

/// Generates the bytes of WQEs. Small and special values pass more checks than random ones.
fn words(len: usize) -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        any::<u32>(),
        0_u32..64,
        (0_u32..32).prop_map(|bit| 1 << bit),
        Just(0x0000_0800),
        Just(0x0200_0000),
        Just(0x4500_0040),
        Just(0x0000_8100),
    ];
    let list = proptest::collection::vec(word, len);
    list.prop_map(|words| words.iter().flat_map(|word| word.to_be_bytes()).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_wqes_complete(
        opcode in prop_oneof![Just(0x0a_u8), Just(0x0e), Just(0x00), any::<u8>()],
        size in 0_u8..64,
        body in words(252),
        blocks in 1_usize..16,
    ) {
        let mut net = Net::new();
        net.create_direct_tir();
        net.post_receive(&[1522]);
        let qpn = Qpn::new(net.sqn.get());
        let control = ControlSegment { opcode, qpn, size, completion: 2, ..ControlSegment::default() };
        let wqe = [&control.emit()[..], &body].concat();
        net.post_bytes(&wqe[..blocks * BLOCK]);
        for _ in 0..2000 {
            net.driver.next_frame();
        }
        let is_failed = net.sq_state() == Some(WorkQueueState::Error);
        let has_work = net.driver.resources().netdev.sq(net.sqn).is_some_and(|sq| sq.has_work());
        // An LSO with a small MSS can have more segments than the loop above sends.
        prop_assert!(is_failed || !has_work || opcode == 0x0e);
        net.restart_sq();
        net.post(&net.wqe(EthernetSegment::default(), &plain(2, 60), 0));
        prop_assert_eq!(net.driver.frames(), [plain(2, 60)]);
    }

    #[test]
    fn random_frames_are_received_or_dropped(frame in words(40), entry in words(16)) {
        let mut net = Net::with_data_segments(4);
        net.create_direct_tir();
        net.driver.poke(RQ, &entry);
        net.driver.poke(RQ_RECORD + 2, &1_u16.to_be_bytes());
        net.driver.receive(&frame);
        let state = net.rq_state();
        prop_assert!(matches!(state, Some(WorkQueueState::Ready | WorkQueueState::Error)));
    }

    #[test]
    fn random_headers_are_segmented_or_rejected(header in words(30), len in 0_usize..120, mss in 1_u16..=9000) {
        let mut net = Net::new();
        let segment = EthernetSegment { mss, l3_checksum: true, l4_checksum: true, ..EthernetSegment::default() };
        net.post(&net.wqe(segment, &header[..len], 5000));
        net.driver.frames();
        prop_assert_eq!(net.send_cqes().len(), 1);
    }
}
