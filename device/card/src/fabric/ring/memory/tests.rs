use std::io::{Read as _, Write as _};
use std::iter::once;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const LEN: RingLen = RingLen(RingLen::MIN);

/// Returns the producer and the consumer of the creator's transmit ring, and the memory that contains the ring.
fn pair() -> (Producer, Consumer, Arc<MmapRegion>) {
    let memory = Arc::new(MmapRegion::new(LEN.memory_len()).unwrap());
    let (producer, _) = ends(memory.clone(), LEN, Side::Creator).unwrap();
    let (_, consumer) = ends(memory.clone(), LEN, Side::Receiver).unwrap();
    (producer, consumer, memory)
}

fn frames(consumer: &mut Consumer) -> Result<Vec<Vec<u8>>, RingError> {
    let mut batch = RxBatch::new();
    consumer.take(&mut batch, 1000)?;
    let _ = consumer.release();
    Ok(batch.iter().map(|arrival| arrival.contents().to_vec()).collect())
}

fn set(memory: &MmapRegion, at: usize, value: u32) {
    memory.get_atomic_ref::<AtomicU32>(at).unwrap().store(value, Ordering::SeqCst);
}

#[test]
fn frames_wrap_around_ring_end() {
    let (mut producer, mut consumer, _) = pair();
    for round in 0..2000_u32 {
        let sent: Vec<Vec<u8>> = (0..round % 7)
            .map(|n| {
                vec![
                    u8::try_from(round % 251).unwrap();
                    MIN_FRAME_LEN + ((round * 37 + n * 501) % 4200) as usize
                ]
            })
            .collect();
        assert!(sent.iter().all(|frame| producer.push(frame, Offload::None).unwrap()));
        assert!(!consumer.has_frames(), "unpublished frames are not visible");
        let _ = producer.publish();
        assert_eq!(frames(&mut consumer).unwrap(), sent);
    }
}

/// Frames of several packets are read from the ring itself, unless they wrap around.
#[test]
fn long_frames_are_read_in_place_until_released() {
    let (mut producer, mut consumer, _) = pair();
    let (mut in_place, mut copied) = (0, 0);
    for round in 0..40_u8 {
        let mut sent: Vec<u8> = (0..20_000_u32).map(|n| (n % 251) as u8 ^ round).collect();
        sent[12..14].copy_from_slice(&IPV4);
        assert!(producer.push(&sent, Offload::Segmentation(Mtu::Mtu1024)).unwrap());
        let _ = producer.publish();
        let mut batch = RxBatch::new();
        consumer.take(&mut batch, 9).unwrap();
        let arrival = batch.iter().next().unwrap();
        assert_eq!((arrival.len(), &*arrival.contents()), (20_000, &sent[..]));
        match arrival.parts() {
            (head, PayloadRef::Shared(_)) => {
                assert_eq!(head, &sent[..HEADERS_LEN]);
                in_place += 1;
            }
            (_, PayloadRef::Private(_)) => copied += 1,
        }
        let _ = consumer.release();
    }
    assert!(in_place > 20 && copied > 5, "{in_place} in place, {copied} copied");

    // A sender may still change a frame that has arrived, but not the private copy of its headers.
    let (mut producer, mut consumer, memory) = pair();
    assert!(producer.push(&ipv4_frame(4000), Offload::Icrc).unwrap());
    let _ = producer.publish();
    let mut batch = RxBatch::new();
    consumer.take(&mut batch, 9).unwrap();
    (DATA_AT..DATA_AT + LEN.get() as usize).step_by(4).for_each(|at| set(&memory, at, 0x0909_0909));
    let arrival = batch.iter().next().unwrap();
    let (head, _) = arrival.parts();
    assert_eq!(head, &ipv4_frame(4000)[..HEADERS_LEN]);
    let contents = arrival.contents();
    assert_eq!(contents[..HEADERS_LEN], ipv4_frame(HEADERS_LEN));
    assert_eq!(contents[HEADERS_LEN..], [9; 4000 - HEADERS_LEN]);
}

const IPV4: [u8; 2] = [8, 0];

fn ipv4_frame(len: usize) -> Vec<u8> {
    let mut frame = vec![7; len];
    frame[12..14].copy_from_slice(&IPV4);
    frame
}

/// Frames in wire format and short frames are copied. So is every frame that is not untagged IPv4, because its IP
/// addresses may lie beyond the first `HEADERS_LEN` bytes.
#[test]
fn other_frames_are_copied_out_of_ring() {
    let (mut producer, mut consumer, _) = pair();
    let sent = [
        (ipv4_frame(4000), Offload::None),
        (ipv4_frame(MIN_SHARED_LEN - 1), Offload::Icrc),
        (vec![7; 4000], Offload::Icrc),
    ];
    sent.iter().for_each(|(frame, offload)| assert!(producer.push(frame, *offload).unwrap()));
    let _ = producer.publish();
    let mut batch = RxBatch::new();
    consumer.take(&mut batch, 9).unwrap();
    for (arrival, (frame, _)) in batch.iter().zip(&sent) {
        assert!(matches!(arrival.parts(), (_, PayloadRef::Private(_))));
        assert_eq!(*arrival.contents(), **frame);
    }
}

#[test]
fn frame_whose_memory_is_lost_is_not_sent() {
    let (mut producer, mut consumer, _) = pair();
    let parts = || once(PayloadRef::Private(&[7; 100]));
    assert!(producer.push_parts(parts(), 100, Offload::None, || false).unwrap());
    assert!(producer.push_parts(parts(), 100, Offload::None, || true).unwrap());
    let _ = producer.publish();
    assert_eq!(frames(&mut consumer).unwrap(), [vec![7; 100]]);
}

#[test]
fn ring_preserves_offloads() {
    let (mut producer, mut consumer, _) = pair();
    let mut offloads = vec![Offload::Icrc, Offload::None];
    offloads.extend(Mtu::ALL.map(Offload::Segmentation));
    assert!(offloads.iter().all(|offload| producer.push(&[7; 100], *offload).unwrap()));
    let _ = producer.publish();
    let mut batch = RxBatch::new();
    consumer.take(&mut batch, 9).unwrap();
    assert_eq!(batch.iter().map(|arrival| arrival.offload()).collect::<Vec<_>>(), offloads);
}

#[test]
fn full_ring_accepts_frames_after_release() {
    let (mut producer, mut consumer, _) = pair();
    let frame = [7; 1000];
    let mut put = 0;
    while producer.push(&frame, Offload::None).unwrap() {
        put += 1;
    }
    assert_eq!(put, LEN.get() as usize / record_len(1000));
    let _ = producer.publish();
    assert!(producer.request_room(1000).unwrap());
    let mut batch = RxBatch::new();
    consumer.take(&mut batch, 1).unwrap();
    assert!(consumer.release(), "a blocked producer is woken");
    assert!(!consumer.release(), "the producer is woken only once");
    assert!(producer.push(&frame, Offload::None).unwrap());
    assert!(!producer.push(&frame, Offload::None).unwrap());
}

#[test]
fn only_sleeping_consumer_is_woken() {
    let (mut producer, mut consumer, _) = pair();
    producer.push(&[1; 60], Offload::None).unwrap();
    assert!(!producer.publish());
    assert!(!consumer.enable_wakeups(), "the consumer must not sleep while a frame is waiting");
    consumer.disable_wakeups();
    frames(&mut consumer).unwrap();
    assert!(consumer.enable_wakeups());
    producer.push(&[1; 60], Offload::None).unwrap();
    assert!(producer.publish());
    producer.push(&[1; 60], Offload::None).unwrap();
    assert!(!producer.publish(), "the consumer has already been woken");
}

#[test]
fn invalid_counters_are_rejected() {
    for head in [LEN.get() + 8, u32::MAX - 7, 12] {
        let (_producer, mut consumer, memory) = pair();
        set(&memory, HEAD_AT, head);
        assert_eq!(frames(&mut consumer), Err(RingError::Head(head)));
    }
    for tail in [8, u32::MAX, 1 << 31] {
        let (mut producer, _consumer, memory) = pair();
        set(&memory, TAIL_AT, tail);
        let mut pushed = Ok(true);
        while pushed == Ok(true) {
            pushed = producer.push(&[0; 1000], Offload::None);
        }
        // As the head advances, a tail that was invalid may become valid. Accepting it harms only the side that wrote
        // it.
        assert!(matches!(pushed, Err(RingError::Tail(_)) | Ok(false)), "{tail:#x}");
    }
    let (mut producer, mut consumer, memory) = pair();
    while producer.push(&[0; 1000], Offload::None).unwrap() {}
    let _ = producer.publish();
    frames(&mut consumer).unwrap();
    assert!(producer.push(&[0; 1000], Offload::None).unwrap());
    set(&memory, TAIL_AT, 0);
    assert!(
        matches!(producer.request_room(60), Err(RingError::Tail(_))),
        "a tail that moves backwards is rejected"
    );
}

#[test]
fn invalid_lengths_are_rejected() {
    let mtu = ICRC_LEFT_OUT | 5 << MTU_SHIFT;
    let too_long = [MAX_FRAME_LEN, MAX_OFFLOADED_FRAME_LEN].map(|most| u32::try_from(most).unwrap() + 1);
    let mtu_without_flag = 60 | 5 << MTU_SHIFT;
    let unknown_mtu = 60 | ICRC_LEFT_OUT | 6 << MTU_SHIFT;
    for len in [0, 13, 61, too_long[0], too_long[1] | mtu, 61 | mtu, mtu_without_flag, unknown_mtu, u32::MAX]
    {
        let (mut producer, mut consumer, memory) = pair();
        producer.push(&[1; 60], Offload::None).unwrap();
        let _ = producer.publish();
        set(&memory, DATA_AT, len);
        assert_eq!(frames(&mut consumer), Err(RingError::Length(len)));
    }
}

proptest! {
    #[test]
    fn corrupted_ring_memory_never_panics(
        words in prop::collection::vec((0..LEN.memory_len() / 4, any::<u32>()), 0..64),
        counters in prop::collection::vec((0..8_usize, prop_oneof![0..200_000_u32, any::<u32>()]), 0..8),
        lengths in prop::collection::vec(0..12_000_usize, 0..40),
    ) {
        let (mut producer, mut consumer, memory) = pair();
        let places = [HEAD_AT, SLEEPING_AT, TAIL_AT, STARVING_AT];
        for (word, value) in words {
            set(&memory, word * 4, value);
        }
        for (counter, value) in counters {
            set(&memory, counter / 4 * COUNTERS_LEN + places[counter % 4], value);
        }
        for len in lengths {
            let _ = producer.push(&vec![0; len], Offload::None);
            let _ = producer.publish();
            if let Ok(frames) = frames(&mut consumer) {
                let lengths = MIN_FRAME_LEN..=MAX_OFFLOADED_FRAME_LEN;
                prop_assert!(frames.iter().all(|frame| lengths.contains(&frame.len())));
            }
        }
        let _ = (producer.request_room(100), consumer.enable_wakeups());
    }
}

/// Two threads sleep whenever they can. Only wake-ups, which are bytes on a socket pair, notify them of frames and free
/// space. If a wake-up is lost, a read from the socket times out.
#[test]
fn no_wakeup_is_lost() {
    const FRAMES: u32 = 200_000;
    let (mut producer, mut consumer, _) = pair();
    let (mut left, mut right) = UnixStream::pair().unwrap();
    for end in [&left, &right] {
        end.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    }
    let sender = thread::spawn(move || {
        for number in 0..FRAMES {
            let frame = [&number.to_le_bytes()[..], &[0; 56]].concat();
            while !producer.push(&frame, Offload::None).unwrap() {
                if producer.publish() {
                    left.write_all(&[1]).unwrap();
                }
                if producer.request_room(frame.len()).unwrap() {
                    left.read_exact(&mut [0]).expect("free space wakes the producer");
                }
            }
            // Publish only some of the frames immediately. The others stay unpublished until the ring is full or a
            // later frame is published.
            if number % 3000 > 2000 && producer.publish() {
                left.write_all(&[1]).unwrap();
            }
        }
        if producer.publish() {
            left.write_all(&[1]).unwrap();
        }
        left
    });
    let mut batch = RxBatch::new();
    let mut next = 0;
    while next < FRAMES {
        consumer.take(&mut batch, 64).unwrap();
        for arrival in batch.iter() {
            assert_eq!(arrival.contents()[..4], next.to_le_bytes());
            next += 1;
        }
        batch.clear();
        if consumer.release() {
            right.write_all(&[1]).unwrap();
        }
        if next == FRAMES {
            break;
        }
        if consumer.enable_wakeups() {
            right.read_exact(&mut [0]).expect("a frame wakes the consumer");
        } else {
            consumer.disable_wakeups();
        }
    }
    drop(sender.join().unwrap());
}
