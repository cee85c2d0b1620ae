use protocol::hca::e810::rx_context::Split;
use serde::Deserialize;

use super::*;

/// Number of the queue in these tests.
const QUEUE: u16 = 2;

/// Bytes of a buffer, and how far apart they are.
const BUFFER_LEN: u16 = 256;
const STRIDE: u64 = 0x1000;

/// A frame that arrives, made with scapy, and what is to be said of it: `vectors.py` makes the file.
#[derive(Deserialize)]
struct Vector {
    name: String,
    frame: String,
    packet_type: u16,
    done: bool,
    ipv4_error: bool,
    l4_error: bool,
    headers: Option<usize>,
}

fn vectors() -> Vec<Vector> {
    serde_json::from_str(include_str!("receive.json")).unwrap()
}

/// What a driver writes: the registers of a context, as section 8.3 has its bits.
fn context(ring: u64, len: u16, max_frame: u16, split: Split, strip_crc: bool) -> [u32; 8] {
    let split = match split {
        Split::No => 0,
        Split::Headers => 1,
        Split::Known => 2,
        Split::Reserved => 3,
    };
    let low = u128::from(ring >> 7) << 32
        | u128::from(len) << 89
        | u128::from(BUFFER_LEN / 128) << 102
        | 2 << 109
        | split << 114
        | 1 << 116
        | u128::from(strip_crc) << 117
        | 1 << 119;
    let high = u128::from(max_frame) << 46 | 1 << 70 | 1 << 73;
    let words: Vec<_> = [low, high].iter().flat_map(|half| half.to_le_bytes()).collect();
    std::array::from_fn(|word| u32::from_le_bytes(words[word * 4..word * 4 + 4].try_into().unwrap()))
}

impl Bench {
    /// Enables the queue as a driver does, and gives it all buffers that the ring takes.
    fn enable(&mut self, context: [u32; 8]) {
        for (index, word) in (0..).zip(context) {
            self.write(Register::QrxContext(index, QUEUE), word);
        }
        self.write(Register::QrxTail(QUEUE), 0);
        self.write(Register::QrxCtrl(QUEUE), 1);
        assert_eq!(self.read(Register::QrxCtrl(QUEUE)) & 4, 4, "the status bit follows at once");
        for entry in 0..u64::from(RING_LEN) {
            self.give(entry);
        }
        self.write(Register::QrxTail(QUEUE), u32::from(RING_LEN) - 1);
    }

    fn enabled() -> Self {
        let mut bench = Self::new();
        bench.enable(context(RING, RING_LEN, 1536, Split::No, true));
        bench
    }

    /// Writes an entry as the driver does.
    fn give(&self, entry: u64) {
        let words = [data_buffer(entry), header_buffer(entry), 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.poke(RING + entry * 32, &bytes);
    }

    fn arrive(&mut self, frame: &[u8], treatment: Treatment) {
        let layers = Layers::parse(frame).unwrap();
        self.lan.receive((&self.memory, &mut self.monitor), (VSI, QUEUE), frame, &layers, treatment);
    }

    fn entry(&self, entry: u64) -> Entry {
        Entry(self.memory.peek(RING + entry * 32))
    }

    /// Bytes in the data buffer of an entry.
    fn data(&self, entry: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.entry(entry).len()];
        self.memory.read(Iova::new(data_buffer(entry)), &mut bytes).unwrap();
        bytes
    }
}

fn data_buffer(entry: u64) -> u64 {
    BUFFERS + entry * STRIDE
}

fn header_buffer(entry: u64) -> u64 {
    BUFFERS + entry * STRIDE + 0x800
}

/// An entry as the driver reads it: section 8.3.
struct Entry([u8; 32]);

impl Entry {
    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    fn status(&self, bit: u32) -> bool {
        self.u16(8) >> bit & 1 != 0
    }

    fn done(&self) -> bool {
        self.status(0)
    }

    fn len(&self) -> usize {
        usize::from(self.u16(4) & 0x3fff)
    }
}

const PLAIN: Treatment = Treatment { strip_tag: false, hash: None };

#[test]
fn what_is_said_of_a_frame_is_what_scapy_knows_of_it() {
    for vector in vectors() {
        let mut bench = Bench::enabled();
        let frame = bytes(&vector.frame);
        bench.arrive(&frame, PLAIN);
        let (entry, name) = (bench.entry(0), vector.name);
        assert_eq!(bench.data(0), frame, "{name}");
        assert_eq!(entry.0[0], 2, "{name}: profile");
        assert!(entry.done() && entry.status(1), "{name}: done, end of packet");
        assert_eq!(entry.u16(2) & 0x3ff, vector.packet_type, "{name}: packet type");
        assert_eq!(entry.status(3), vector.done, "{name}: checked");
        assert_eq!(entry.status(4), vector.ipv4_error, "{name}: IPv4 header");
        assert_eq!(entry.status(5), vector.l4_error, "{name}: transport");
        for bit in [2, 6, 7, 9, 10, 12, 13] {
            assert!(!entry.status(bit), "{name}: status bit {bit}");
        }
        assert_eq!((entry.u16(6), entry.u16(10), entry.u16(12), entry.u16(14)), (0, 0, 0, 0), "{name}");
        assert_eq!(bench.lan.take_causes()[..], [Cause::Receive(QUEUE)], "{name}");
    }
}

#[test]
fn a_hash_is_told_with_its_bit() {
    let mut bench = Bench::enabled();
    bench.arrive(&[2; 60], Treatment { hash: Some(0x5161_71ca), ..PLAIN });
    let entry = bench.entry(0);
    assert!(entry.status(12));
    assert_eq!(entry.0[12..16], [0xca, 0x71, 0x61, 0x51]);
}

#[test]
fn a_tag_is_stripped_where_the_vsi_wants_it() {
    let tagged = [&[2; 12][..], &[0x81, 0x00, 0x60, 0x05, 0x08, 0x06], &[9; 60]].concat();
    let mut bench = Bench::enabled();
    bench.arrive(&tagged, PLAIN);
    bench.arrive(&tagged, Treatment { strip_tag: true, ..PLAIN });
    assert_eq!(bench.data(0), tagged);
    assert!(!bench.entry(0).status(13));
    assert_eq!(bench.data(1), [&[2; 12][..], &[0x08, 0x06], &[9; 60]].concat());
    assert!(bench.entry(1).status(13));
    assert_eq!(bench.entry(1).u16(10), 0x6005);

    bench.arrive(&[2; 60], Treatment { strip_tag: true, ..PLAIN });
    assert!(!bench.entry(2).status(13), "it has none");
}

#[test]
fn a_stripped_tag_goes_to_the_second_field_where_the_context_says_so() {
    let mut words = context(RING, RING_LEN, 1536, Split::No, true);
    words[3] &= !(1 << (119 - 96));
    let mut bench = Bench::new();
    bench.enable(words);
    let tagged = [&[2; 12][..], &[0x81, 0x00, 0x60, 0x05, 0x08, 0x06], &[9; 60]].concat();
    bench.arrive(&tagged, Treatment { strip_tag: true, ..PLAIN });
    let entry = bench.entry(0);
    assert!(!entry.status(13));
    assert_eq!((entry.u16(10), entry.u16(22)), (0, 0x6005));
    assert_eq!(entry.u16(16), 1 << 11);
}

#[test]
fn a_frame_longer_than_a_buffer_goes_on_in_the_next() {
    let mut bench = Bench::enabled();
    let frame: Vec<u8> = (0..=255).cycle().take(256 * 3 + 1).collect();
    bench.arrive(&frame, Treatment { hash: Some(7), ..PLAIN });
    bench.arrive(&frame[..256], PLAIN);
    let joined: Vec<u8> = (0..4).flat_map(|entry| bench.data(entry)).collect();
    assert_eq!(joined, frame);
    let ends: Vec<_> = (0..5).map(|entry| bench.entry(entry).status(1)).collect();
    assert_eq!(ends, [false, false, false, true, true]);
    assert!((0..5).all(|entry| bench.entry(entry).done()));
    assert_eq!(bench.data(4), &frame[..256], "a full buffer is one");
    assert_eq!(bench.read(Register::GlvGorc(VSI)), 769 + 256);
}

#[test]
fn a_frame_longer_than_the_queue_takes_is_dropped_and_counted() {
    let mut bench = Bench::enabled();
    bench.arrive(&[2; 256 * 5 + 1], PLAIN);
    assert_eq!(bench.read(Register::GlvRdpc(VSI)), 1, "in more than five buffers");
    bench.arrive(&[2; 256 * 5], PLAIN);
    assert!(bench.entry(4).status(1));

    let mut bench = Bench::new();
    bench.enable(context(RING, RING_LEN, 604, Split::No, true));
    bench.arrive(&[2; 601], PLAIN);
    assert_eq!(
        bench.read(Register::GlvRdpc(VSI)),
        1,
        "longer than the longest frame, with its check sequence"
    );
    bench.arrive(&[2; 600], PLAIN);
    assert_eq!(bench.read(Register::GlvRdpc(VSI)), 1);
}

#[test]
fn without_a_free_buffer_a_frame_is_dropped_and_counted() {
    let mut bench = Bench::enabled();
    for _ in 0..RING_LEN - 2 {
        bench.arrive(&[2; 60], PLAIN);
    }
    bench.lan.take_causes();
    bench.arrive(&[2; 257], PLAIN);
    assert_eq!(bench.read(Register::GlvRdpc(VSI)), 1, "two are needed");
    assert!(bench.lan.take_causes().is_empty());
    bench.arrive(&[2; 256], PLAIN);
    bench.arrive(&[2; 60], PLAIN);
    assert_eq!(bench.read(Register::GlvRdpc(VSI)), 2);
    assert!(!bench.entry(u64::from(RING_LEN) - 1).done(), "the entry at the tail is software's");

    // Software gives two back.
    bench.give(0);
    bench.write(Register::QrxTail(QUEUE), 0);
    bench.arrive(&[6; 60], PLAIN);
    assert_eq!(bench.data(u64::from(RING_LEN) - 1), [6; 60]);
    bench.write(Register::QrxTail(QUEUE), 1);
    bench.arrive(&[4; 60], PLAIN);
    assert_eq!(bench.data(0), [4; 60], "around the end");
    assert_eq!(bench.read(Register::GlvUprc(VSI)), u64::from(RING_LEN) + 1);
}

#[test]
fn the_check_sequence_is_there_for_who_wants_it() {
    let mut bench = Bench::new();
    bench.enable(context(RING, RING_LEN, 1536, Split::No, false));
    // IEEE 802.3: the CRC-32 of "123456789" is CBF43926.
    let frame = *b"123456789";
    let padded = [&[2; 60][..], &frame].concat();
    bench.arrive(&padded, PLAIN);
    let data = bench.data(0);
    assert_eq!(data.len(), padded.len() + 4);
    // A CRC over a message and its own CRC is always the same.
    assert_eq!(crc32fast::hash(&data), 0x2144_df1c);
}

#[test]
fn headers_go_to_their_own_buffer_where_that_is_asked() {
    for vector in vectors() {
        let mut bench = Bench::new();
        bench.enable(context(RING, RING_LEN, 1536, Split::Headers, true));
        let frame = bytes(&vector.frame);
        bench.arrive(&frame, PLAIN);
        let (entry, name) = (bench.entry(0), vector.name);
        let len = vector.headers.unwrap_or(0);
        let expected = if len == 0 { 0 } else { 1 << 11 | u16::try_from(len).unwrap() };
        assert_eq!(entry.u16(6), expected, "{name}");
        let mut headers = vec![0; len];
        bench.memory.read(Iova::new(header_buffer(0)), &mut headers).unwrap();
        assert_eq!([headers, bench.data(0)].concat(), frame, "{name}");
    }
}

#[test]
fn a_change_of_the_context_takes_effect_when_the_queue_is_enabled_anew() {
    let mut bench = Bench::enabled();
    bench.arrive(&[2; 60], PLAIN);
    bench.write(Register::QrxCtrl(QUEUE), 0);
    assert_eq!(bench.read(Register::QrxCtrl(QUEUE)), 0);
    bench.give(1);
    bench.arrive(&[2; 60], PLAIN);
    assert!(!bench.entry(1).done(), "a queue that is disabled touches nothing");
    assert_eq!(bench.read(Register::GlvRdpc(VSI)), 1);

    bench.enable(context(RING, RING_LEN, 9728, Split::No, true));
    bench.arrive(&[6; 60], PLAIN);
    assert_eq!(bench.data(0), [6; 60], "from the begin of the ring");
    let words = context(RING, RING_LEN, 9728, Split::No, true);
    for (index, word) in (0..).zip(words) {
        assert_eq!(bench.read(Register::QrxContext(index, QUEUE)), u64::from(word));
    }
}

#[test]
fn enabling_an_enabled_queue_changes_nothing() {
    let mut bench = Bench::enabled();
    bench.arrive(&[2; 60], PLAIN);
    bench.write(Register::QrxCtrl(QUEUE), 1);
    bench.arrive(&[6; 60], PLAIN);
    assert_eq!(bench.data(1), [6; 60]);
}

#[test]
fn what_a_driver_does_wrong_stops_its_queue_alone() {
    type Wrong = fn(&mut Bench);
    let cases: [(&str, Wrong, u64); 4] = [
        ("the tail is outside the ring", |bench| bench.write(Register::QrxTail(QUEUE), RING_LEN.into()), 1),
        ("a tail of more than 16 bits", |bench| bench.write(Register::QrxTail(QUEUE), 0x1_0001), 1),
        (
            "a descriptor buffer is not in mapped memory",
            |bench| {
                bench.memory.poke(RING, &MEMORY.to_le_bytes());
                bench.arrive(&[2; 60], PLAIN);
            },
            11,
        ),
        (
            "the ring is not in mapped memory",
            |bench| {
                bench.memory.unmap(Iova::new(RING), 0x1000).unwrap();
                bench.arrive(&[2; 60], PLAIN);
            },
            2,
        ),
    ];
    for (name, wrong, reason) in cases {
        let mut bench = Bench::enabled();
        wrong(&mut bench);
        assert!(bench.lan.take_malicious(), "{name}");
        assert_eq!(bench.read(Register::GlMdetRx), 1 << 31 | reason << 26 | u64::from(QUEUE), "{name}");
        assert!(bench.lan.take_causes().is_empty(), "{name}");
        bench.arrive(&[2; 60], PLAIN);
        assert!(!bench.lan.take_malicious(), "{name}: nothing more is done for it");
        if bench.memory.ranges() > 1 {
            continue;
        }
        bench.write(Register::QrxCtrl(QUEUE), 0);
        bench.enable(context(RING, RING_LEN, 1536, Split::No, true));
        bench.arrive(&[6; 60], PLAIN);
        assert_eq!(bench.data(0), [6; 60], "{name}: enabled anew it works");
    }
}

#[test]
fn contexts_without_sense_receive_nothing() {
    let mut bench = Bench::new();
    for words in [[0; 8], [u32::MAX; 8], context(RING, 0, 1536, Split::No, true)] {
        for (index, word) in (0..).zip(words) {
            bench.write(Register::QrxContext(index, QUEUE), word);
        }
        bench.write(Register::QrxTail(QUEUE), 0);
        bench.write(Register::QrxCtrl(QUEUE), 1);
        assert_eq!(bench.read(Register::QrxCtrl(QUEUE)) & 4, 4, "the driver waits for it");
        bench.arrive(&[2; 60], PLAIN);
        bench.write(Register::QrxCtrl(QUEUE), 0);
    }
    assert_eq!(bench.read(Register::GlvRdpc(VSI)), 3);
}

#[test]
fn a_frame_that_no_mac_takes_is_counted_as_that() {
    let mut bench = Bench::enabled();
    assert!(bench.lan.arrived(&[2; 9724]));
    assert!(!bench.lan.arrived(&[2; 9725]));
    assert_eq!((bench.read(Register::GlprtRoc), bench.read(Register::GlprtUprc)), (1, 1));
}
