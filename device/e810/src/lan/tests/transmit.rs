use protocol::hca::e810::ring_address::RingAddress;
use serde::Deserialize;

use super::*;

/// Command bits of a data descriptor (section 8.2).
const EOP: u64 = 0x001;
const RS: u64 = 0x002;
const DUMMY: u64 = 0x010;
const IPV4_CHECKSUM: u64 = 0x060;
const TCP: u64 = 0x100;

/// Transmit queue used by most tests.
const QUEUE: u16 = 1;

/// A test case from `vectors.py`: a frame as posted by a driver, and the frames expected on the wire. Scapy computed
/// the lengths and checksums.
#[derive(Deserialize)]
struct Vector {
    name: String,
    command: u64,
    mac: u64,
    ip: u64,
    l4: u64,
    tag: u64,
    tag2: Option<u64>,
    tunnel: Option<VectorTunnel>,
    payload_len: Option<u64>,
    mss: Option<u64>,
    given: String,
    frames: Vec<String>,
}

#[derive(Deserialize)]
struct VectorTunnel {
    ip: u64,
    ip_len: u64,
    kind: u64,
    len: u64,
    udp_checksum: bool,
}

fn vectors() -> Vec<Vector> {
    serde_json::from_str(include_str!("transmit.json")).unwrap()
}

/// Driver side of a transmit ring.
struct Ring {
    queue: u16,
    at: u64,
    next: u16,
    /// Address of the next buffer.
    buffer: u64,
}

impl Ring {
    fn new(bench: &mut Bench, queue: u16) -> Self {
        let at = RING + u64::from(queue) * 0x1000;
        bench.lan.add_transmit(queue, context(at, RING_LEN)).unwrap();
        Self { queue, at, next: 0, buffer: BUFFERS + u64::from(queue) * 0x8_0000 }
    }

    /// Writes a descriptor and returns its address.
    fn put(&mut self, bench: &Bench, first: u64, second: u64) -> u64 {
        let place = self.at + u64::from(self.next) * 16;
        bench.memory.poke(place, &[first.to_le_bytes(), second.to_le_bytes()].concat());
        self.next = (self.next + 1) % RING_LEN;
        place
    }

    /// Writes the descriptors for a frame, with buffers of at most `size` bytes. Every descriptor gets the bits of
    /// `command`, except that EOP is always set on the last one, and EOP and RS are cleared on all others. Returns the
    /// address of the last descriptor.
    fn frame(&mut self, bench: &Bench, frame: &[u8], size: usize, command: u64, rest: u64) -> u64 {
        let count = frame.len().div_ceil(size);
        let mut place = 0;
        for (index, part) in frame.chunks(size).enumerate() {
            bench.memory.poke(self.buffer, part);
            let command = if index + 1 == count { command | EOP } else { command & !(EOP | RS) };
            place = self.put(bench, self.buffer, rest | (part.len() as u64) << 34 | command << 4);
            self.buffer += part.len() as u64 + 3;
        }
        place
    }

    fn doorbell(&self, bench: &mut Bench) {
        bench.write(Register::QtxCommDbell(self.queue), self.next.into());
    }
}

fn context(ring: u64, ring_len: u16) -> TxContext {
    TxContext { ring: RingAddress::new(Iova::new(ring)), ring_len, vsi: VSI, ..TxContext::default() }
}

fn lengths(mac: u64, ip: u64, l4: u64) -> u64 {
    (mac / 2) << 16 | (ip / 4) << 23 | (l4 / 4) << 30
}

/// Writes the descriptors for a vector, with buffers of at most `size` bytes.
fn put_vector(bench: &Bench, ring: &mut Ring, vector: &Vector, size: usize) {
    if vector.tag2.is_some() || vector.tunnel.is_some() || vector.mss.is_some() {
        let tunnel = vector.tunnel.as_ref().map_or(0, |tunnel| {
            tunnel.ip
                | (tunnel.ip_len / 4) << 2
                | tunnel.kind << 9
                | (tunnel.len / 2) << 12
                | u64::from(tunnel.udp_checksum) << 23
        });
        let cut = vector.mss.zip(vector.payload_len).map_or(0, |(mss, len)| mss << 50 | len << 30 | 1 << 4);
        let tag2 = vector.tag2.map_or(0, |_| 4 << 4);
        ring.put(bench, tunnel | vector.tag2.unwrap_or_default() << 32, cut | tag2 | 1);
    }
    let rest = lengths(vector.mac, vector.ip, vector.l4) | vector.tag << 48;
    ring.frame(bench, &bytes(&vector.given), size, vector.command | RS, rest);
}

#[test]
fn transmitted_frames_match_scapy() {
    for vector in vectors() {
        let given = vector.given.len() / 2;
        // Send the frame in one buffer, in two buffers, and in up to eight, the maximum without TSO.
        for size in [given, given.div_ceil(2), given.div_ceil(8)] {
            let mut bench = Bench::new();
            let mut ring = Ring::new(&mut bench, QUEUE);
            put_vector(&bench, &mut ring, &vector, size);
            ring.doorbell(&mut bench);
            let sent = bench.sent();
            assert_eq!(sent.len(), vector.frames.len(), "{}", vector.name);
            for (number, (sent, expected)) in sent.iter().zip(&vector.frames).enumerate() {
                assert_eq!(*sent, bytes(expected), "{}: frame {number}", vector.name);
            }
            assert_eq!(
                bench.lan.take_causes()[..],
                [Cause::Transmit { queue: QUEUE, done: 1 }],
                "{}",
                vector.name
            );
            assert!(!bench.lan.take_malicious());
        }
    }
}

#[test]
fn checksum_offload_ignores_old_field_value() {
    let checksums = |vector: &Vector| vector.mss.is_none() && vector.command & TCP != 0;
    for vector in vectors().iter().filter(|vector| checksums(vector)) {
        let mut bench = Bench::new();
        let mut ring = Ring::new(&mut bench, QUEUE);
        put_vector(&bench, &mut ring, vector, usize::MAX);
        let given = bytes(&vector.given);
        let transport =
            vector.mac + vector.ip + vector.tunnel.as_ref().map_or(0, |tunnel| tunnel.ip_len + tunnel.len);
        // Offsets of the checksum field in TCP, SCTP and UDP headers: 16, 8 and 6.
        let field = [0, 16, 8, 6][usize::try_from(vector.command >> 8 & 3).unwrap()];
        let at = ring.buffer - 3 - given.len() as u64 + transport + field;
        bench.memory.poke(at, &[0xa5, 0x5a]);
        ring.doorbell(&mut bench);
        assert_eq!(bench.sent(), [bytes(&vector.frames[0])], "{}", vector.name);
    }
}

#[test]
fn only_rs_descriptors_are_marked_done() {
    let mut bench = Bench::new();
    let mut ring = Ring::new(&mut bench, QUEUE);
    let without_rs = ring.frame(&bench, &[1; 100], 100, EOP, 0);
    let with_rs = ring.frame(&bench, &[2; 100], 30, EOP | RS, 7 << 48);
    let first_buffer = with_rs - 48;
    let before: [u8; 16] = bench.memory.peek(with_rs);
    ring.doorbell(&mut bench);

    bench.poll().unwrap();
    assert!(bench.lan.take_causes().is_empty());
    assert_eq!(
        bench.memory.peek::<16>(with_rs),
        before,
        "the descriptor is not done until its frame has been read"
    );
    assert_eq!(bench.read(Register::QtxCommHead(QUEUE)), 1);
    bench.poll().unwrap();
    assert_eq!(bench.lan.take_causes()[..], [Cause::Transmit { queue: QUEUE, done: 1 }]);
    let mut done = before;
    done[8] |= 0xf;
    assert_eq!(bench.memory.peek::<16>(with_rs), done, "only the descriptor type changes");
    for place in [without_rs, first_buffer] {
        assert_eq!(
            bench.memory.peek::<1>(place + 8)[0] & 0xf,
            0,
            "a descriptor without the RS bit is never marked done"
        );
    }
    assert_eq!(bench.read(Register::QtxCommHead(QUEUE)), 5);
    assert_eq!(bench.poll(), None);
}

#[test]
fn tso_frame_completes_after_last_segment() {
    let vectors = vectors();
    let vector = vectors.iter().find(|vector| vector.name == "TCP over IPv4, segmented").unwrap();
    let mut bench = Bench::new();
    let mut ring = Ring::new(&mut bench, QUEUE);
    put_vector(&bench, &mut ring, vector, usize::MAX);
    ring.doorbell(&mut bench);
    let last = ring.at + 16;
    for piece in 0..3 {
        assert_eq!(
            bench.memory.peek::<1>(last + 8)[0] & 0xf,
            0,
            "the descriptor is not done before segment {piece}"
        );
        assert!(bench.lan.take_causes().is_empty());
        bench.poll().unwrap();
    }
    assert_eq!(bench.memory.peek::<1>(last + 8)[0] & 0xf, 0xf);
    assert_eq!(bench.lan.take_causes()[..], [Cause::Transmit { queue: QUEUE, done: 1 }]);
}

#[test]
fn ring_wraps_repeatedly() {
    let mut bench = Bench::new();
    let mut ring = Ring::new(&mut bench, QUEUE);
    for round in 0..20_u8 {
        ring.buffer = BUFFERS;
        for number in 0..13_u8 {
            ring.frame(&bench, &[round ^ number; 64], 30, EOP | RS, 0);
        }
        ring.doorbell(&mut bench);
        let sent = bench.sent();
        assert_eq!(sent.len(), 13, "round {round}");
        assert!(sent.iter().zip(0..).all(|(frame, number)| *frame == [round ^ number; 64]));
    }
}

#[test]
fn incomplete_frame_waits_for_last_descriptor() {
    let mut bench = Bench::new();
    let mut ring = Ring::new(&mut bench, QUEUE);
    ring.frame(&bench, &[7; 90], 30, EOP | RS, 0);
    for tail in 1..3 {
        bench.write(Register::QtxCommDbell(QUEUE), tail);
        assert_eq!(bench.sent(), Vec::<Vec<u8>>::new());
    }
    bench.write(Register::QtxCommDbell(QUEUE), 3);
    assert_eq!(bench.sent(), [[7; 90]]);
}

#[test]
fn queues_are_served_round_robin() {
    let vectors = vectors();
    let long = vectors.iter().find(|vector| vector.name == "TCP over IPv4, segmented").unwrap();
    let mut bench = Bench::new();
    let mut cut = Ring::new(&mut bench, 0);
    put_vector(&bench, &mut cut, long, usize::MAX);
    cut.doorbell(&mut bench);
    let mut whole = Ring::new(&mut bench, 2);
    for _ in 0..2 {
        whole.frame(&bench, &[2; 60], 60, EOP, 0);
    }
    whole.doorbell(&mut bench);
    let order: Vec<_> = bench.sent().iter().map(|frame| frame[1] == 2 && frame[2] == 2).collect();
    assert_eq!(order, [false, true, false, true, false]);
    assert!(!bench.lan.has_work());
}

#[test]
fn flow_director_dummy_frame_is_not_sent() {
    let mut bench = Bench::new();
    let mut ring = Ring::new(&mut bench, QUEUE);
    ring.put(&bench, 0, 8);
    let place = ring.frame(&bench, &[1; 64], 64, EOP | RS | DUMMY, 0);
    ring.frame(&bench, &[2; 64], 64, EOP, 0);
    ring.doorbell(&mut bench);
    assert_eq!(bench.sent(), [[2; 64]]);
    assert_eq!(bench.memory.peek::<1>(place + 8)[0] & 0xf, 0xf);
    assert_eq!(bench.lan.take_causes()[..], [Cause::Transmit { queue: QUEUE, done: 1 }]);
    assert!(!bench.lan.take_malicious());
}

#[test]
fn longest_frame_is_sent_with_tags() {
    let mut bench = Bench::new();
    let mut ring = Ring::new(&mut bench, QUEUE);
    let frame = vec![3; 9724 - 4];
    ring.frame(&bench, &frame, 4096, EOP | 8, 5 << 48);
    ring.doorbell(&mut bench);
    assert_eq!(bench.sent()[0].len(), 9724);
}

#[test]
fn removed_queue_ignores_doorbells() {
    let mut bench = Bench::new();
    let mut ring = Ring::new(&mut bench, QUEUE);
    let place = ring.frame(&bench, &[1; 64], 64, EOP | RS, 0);
    ring.doorbell(&mut bench);
    assert!(bench.lan.remove_transmit(QUEUE));
    assert_eq!(bench.poll(), None);
    assert_eq!(bench.memory.peek::<1>(place + 8)[0] & 0xf, 0);
    ring.doorbell(&mut bench);
    assert_eq!(bench.poll(), None);
    assert!(!bench.lan.remove_transmit(QUEUE), "the queue has already been removed");
    bench.lan.add_transmit(QUEUE, context(RING, RING_LEN)).unwrap();
}

#[test]
fn rejects_invalid_queues() {
    let mut bench = Bench::new();
    assert_eq!(bench.lan.add_transmit(QUEUES, context(RING, 64)), Err(AddError::NoSuchQueue(QUEUES)));
    assert_eq!(bench.lan.add_transmit(0, context(RING, 0)), Err(AddError::RingLength(0, 0)));
    assert_eq!(bench.lan.add_transmit(0, context(RING, 8161)), Err(AddError::RingLength(0, 8161)));
    bench.lan.add_transmit(0, context(RING, 8160)).unwrap();
    assert_eq!(bench.lan.add_transmit(0, context(RING, 64)), Err(AddError::Enabled(0)));
}

#[test]
fn reset_drops_queues_but_keeps_counters() {
    let mut bench = Bench::new();
    let mut ring = Ring::new(&mut bench, QUEUE);
    ring.frame(&bench, &[2; 96], 96, EOP | RS, 0);
    ring.frame(&bench, &[2; 96], 96, EOP | RS, 0);
    ring.doorbell(&mut bench);
    bench.poll().unwrap();
    bench.lan.reset();
    assert!(bench.lan.take_causes().is_empty());
    assert_eq!(bench.poll(), None);
    assert_eq!((bench.read(Register::GlvGotc(VSI)), bench.read(Register::GlvUptc(VSI))), (96, 1));
}

/// Each case is a violation and the event type that GL_MDET_TX_TCLAN reports for it.
#[test]
fn driver_error_stops_only_affected_queue() {
    type Wrong = fn(&Bench, &mut Ring);
    let cases: [(&str, Wrong, u32); 17] = [
        (
            "a buffer of 0 bytes",
            |bench, ring| {
                ring.put(bench, BUFFERS, EOP << 4);
            },
            3,
        ),
        (
            "a frame of 16 bytes",
            |bench, ring| {
                ring.frame(bench, &[0; 16], 16, EOP, 0);
            },
            4,
        ),
        (
            "a frame longer than the maximum length",
            |bench, ring| {
                ring.frame(bench, &vec![0; 9725], 9725, EOP, 0);
            },
            5,
        ),
        (
            "a frame of 16 KiB",
            |bench, ring| {
                ring.frame(bench, &vec![0; 16383], 16383, EOP, 0);
            },
            5,
        ),
        (
            "a frame whose tag makes it exceed the maximum length",
            |bench, ring| {
                ring.frame(bench, &vec![0; 9721], 9721, EOP | 8, 0);
            },
            5,
        ),
        (
            "a frame in nine buffers",
            |bench, ring| {
                ring.frame(bench, &[0; 90], 10, EOP, 0);
            },
            6,
        ),
        (
            "an unknown descriptor type",
            |bench, ring| {
                ring.put(bench, 0, 5);
            },
            7,
        ),
        (
            "two context descriptors",
            |bench, ring| {
                ring.put(bench, 0, 1);
                ring.put(bench, 0, 1);
            },
            7,
        ),
        (
            "a context descriptor within a frame",
            |bench, ring| {
                ring.put(bench, BUFFERS, 64 << 34);
                ring.put(bench, 0, 1);
            },
            7,
        ),
        (
            "headers longer than the frame",
            |bench, ring| {
                ring.frame(bench, &[0; 53], 53, EOP | IPV4_CHECKSUM | TCP, lengths(14, 20, 20));
            },
            8,
        ),
        (
            "TCP without IP",
            |bench, ring| {
                ring.frame(bench, &[0; 64], 64, EOP | TCP, lengths(14, 20, 20));
            },
            8,
        ),
        (
            "an IPv4 header of 16 bytes",
            |bench, ring| {
                ring.frame(bench, &[0; 64], 64, EOP | IPV4_CHECKSUM, lengths(14, 16, 0));
            },
            8,
        ),
        (
            "an MSS of 63 bytes",
            |bench, ring| {
                ring.put(bench, 0, 63 << 50 | 100 << 30 | 1 << 4 | 1);
                ring.frame(bench, &[0; 154], 154, EOP | IPV4_CHECKSUM | TCP, lengths(14, 20, 20));
            },
            9,
        ),
        (
            "an MSS of 9669 bytes",
            |bench, ring| {
                ring.put(bench, 0, 9669 << 50 | 100 << 30 | 1 << 4 | 1);
                ring.frame(bench, &[0; 154], 154, EOP | IPV4_CHECKSUM | TCP, lengths(14, 20, 20));
            },
            9,
        ),
        (
            "a TSO length beyond the end of the frame",
            |bench, ring| {
                ring.put(bench, 0, 64 << 50 | 101 << 30 | 1 << 4 | 1);
                ring.frame(bench, &[0; 154], 154, EOP | IPV4_CHECKSUM | TCP, lengths(14, 20, 20));
            },
            10,
        ),
        (
            "a TSO length of 0",
            |bench, ring| {
                ring.put(bench, 0, 64 << 50 | 1 << 4 | 1);
                ring.frame(bench, &[0; 54], 54, EOP | IPV4_CHECKSUM | TCP, lengths(14, 20, 20));
            },
            10,
        ),
        (
            "a buffer outside mapped memory",
            |bench, ring| {
                ring.put(bench, MEMORY - 10, 64 << 34 | EOP << 4);
            },
            11,
        ),
    ];
    for (name, wrong, reason) in cases {
        let mut bench = Bench::new();
        let mut ring = Ring::new(&mut bench, QUEUE);
        wrong(&bench, &mut ring);
        ring.frame(&bench, &[1; 64], 64, EOP, 0);
        ring.doorbell(&mut bench);
        assert_eq!(bench.sent(), Vec::<Vec<u8>>::new(), "{name}");
        assert!(bench.lan.take_malicious() && !bench.lan.take_malicious(), "{name}: reported once");
        let event = 1 << 31 | u64::from(reason) << 26 | u64::from(QUEUE);
        assert_eq!(bench.read(Register::GlMdetTxTclan), event, "{name}");
        assert_eq!(bench.read(Register::PfMdetTxTclan), 1, "{name}");
        assert_eq!(bench.read(Register::GlvTepc(VSI)), 1, "{name}");

        let mut other = Ring::new(&mut bench, 2);
        other.frame(&bench, &[2; 64], 64, EOP, 0);
        other.doorbell(&mut bench);
        ring.doorbell(&mut bench);
        assert_eq!(bench.sent(), [[2; 64]], "{name}: only the other queue continues");

        bench.write(Register::GlMdetTxTclan, u32::MAX);
        assert_eq!(bench.read(Register::GlMdetTxTclan), 0);
        bench.lan.remove_transmit(QUEUE);
        let mut again = Ring::new(&mut bench, QUEUE);
        again.frame(&bench, &[3; 64], 64, EOP, 0);
        again.doorbell(&mut bench);
        assert_eq!(bench.sent(), [[3; 64]], "{name}: the queue works after it is removed and re-added");
    }
}

#[test]
fn invalid_ring_or_tail_stops_queue() {
    let mut bench = Bench::new();
    bench.lan.add_transmit(0, context(MEMORY, RING_LEN)).unwrap();
    bench.write(Register::QtxCommDbell(0), 1);
    assert_eq!(bench.poll(), None);
    assert!(bench.lan.take_malicious());
    assert_eq!(bench.read(Register::GlMdetTxPqm), 1 << 31 | 2 << 26);
    bench.write(Register::GlMdetTxPqm, u32::MAX);

    bench.lan.add_transmit(1, context(RING, RING_LEN)).unwrap();
    bench.write(Register::QtxCommDbell(1), RING_LEN.into());
    assert!(bench.lan.take_malicious());
    assert_eq!(bench.read(Register::GlMdetTxPqm), 1 << 31 | 1 << 26 | 1 << 12);
    bench.write(Register::QtxCommDbell(3), 1);
    assert!(!bench.lan.take_malicious(), "a doorbell for an unknown queue is ignored");
}

#[test]
fn unmapping_tso_buffer_stops_queue() {
    let vectors = vectors();
    let vector = vectors.iter().find(|vector| vector.name == "TCP over IPv4, segmented").unwrap();
    let mut bench = Bench::new();
    let mut ring = Ring::new(&mut bench, QUEUE);
    put_vector(&bench, &mut ring, vector, usize::MAX);
    ring.doorbell(&mut bench);
    bench.poll().unwrap();
    bench.memory.unmap(Iova::new(BUFFERS), MEMORY - BUFFERS).unwrap();
    assert_eq!(bench.poll(), None);
    assert!(bench.lan.take_malicious());
    assert_eq!(
        bench.memory.peek::<1>(ring.at + 16 + 8)[0] & 0xf,
        0,
        "a descriptor is not done if its frame was not read completely"
    );
}
