use std::io::{self, Cursor, Write};
use std::path::Path;
use std::sync::mpsc;

use proptest::prelude::*;
use protocol::ids::MacAddr;
use serde_json::Map;

use super::chunk;
use super::codec::{CodecError, MAX_RUN, decode, encode, encode_dedup, learn};
use super::dedup::DedupCache;
use super::entry::{Content, Entry, Update};
use super::header::MAGIC;
use super::*;
use crate::replay::testing::CLOSE_TIMEOUT;
use crate::telemetry::testing::Written;

fn header() -> Header {
    Header::new("hca1", Map::new())
}

fn recorder(out: impl Write + Send + 'static, max_len: u64) -> Recorder {
    let mut recorder = Recorder::to(Box::new(out), Path::new("record"), &header(), max_len).unwrap();
    recorder.close_timeout = CLOSE_TIMEOUT;
    recorder
}

fn reader(record: &[u8]) -> Result<Reader, ReadError> {
    Reader::new(Box::new(Cursor::new(record.to_vec())))
}

fn step(sink: &RecordSink, number: u64) {
    sink.step(1000 * number, Input::Frame(vec![7; 300].into()));
    sink.read(0x1000, &mut [0; 4], (), |out| {
        out.copy_from_slice(b"read");
        Ok(())
    })
    .unwrap();
    sink.write(0x2000, b"written", (), || Ok(())).unwrap();
    sink.interrupt(3);
}

fn record_of(steps: u64) -> Vec<u8> {
    let file = Written::default();
    let recorder = recorder(file.clone(), u64::MAX);
    (1..=steps).for_each(|number| step(recorder.sink(), number));
    drop(recorder);
    file.bytes()
}

/// Replays a recording. Returns the number of steps replayed and how the replay ended.
fn play_all(record: &[u8]) -> (u64, Result<Finish, Difference>) {
    let source = std::sync::Arc::new(std::sync::Mutex::new(ReplaySource::new(reader(record).unwrap())));
    let sink = RecordSink::playing(source.clone());
    let next = || source.lock().unwrap().next_input();
    while next().is_some() {
        let mut out = [0; 4];
        let read = sink.read(0x1000, &mut out, (), |_| panic!("a replay must not access guest memory"));
        assert!(read.is_err() || &out == b"read");
        let _ = sink.write(0x2000, b"written", (), || panic!("a replay must not access guest memory"));
        sink.interrupt(3);
    }
    let mut source = source.lock().unwrap();
    (source.counts().steps, source.take_stop().unwrap())
}

#[test]
fn entries_have_fixed_encoding() {
    let mac = MacAddr([2, 0, 0, 0, 0, 9]);
    for (entry, bytes) in [
        (Entry::Time { passed: 300 }, &[0x01, 0xac, 0x02][..]),
        (
            Entry::Map { iova: 0x1000, len: 0x2000, read: true, write: false, reachable: true },
            &[0x02, 0x80, 0x20, 0x80, 0x40, 5],
        ),
        (Entry::UnmapAll, &[0x04]),
        (Entry::Input(Input::RegionRead { region: 7, offset: 4, len: 2 }), &[0x10, 7, 4, 2]),
        (
            Entry::Input(Input::RegionWrite { region: 2, offset: 0x80, data: vec![0xaa, 0xbb].into() }),
            &[0x11, 2, 0x80, 1, 2, 0xaa, 0xbb],
        ),
        (Entry::Input(Input::AddNeighbour(mac)), &[0x21, 2, 0, 0, 0, 0, 9]),
        (Entry::Input(Input::Impair("{}".into())), &[0x23, 2, b'{', b'}']),
        (Entry::Read { iova: 1, len: 3, bytes: Some(b"abc") }, &[0x40, 1, 3, b'a', b'b', b'c']),
        (Entry::Read { iova: 1, len: 3, bytes: None }, &[0x41, 1, 3]),
        (Entry::Write { iova: 1, data: Content::of(b"a"), done: true }, &[0x42, 1, 0, 1, b'a']),
        (
            Entry::Frame(Content::Digest { len: 65, xxh3: 0x0102_0304_0506_0708 }),
            &[0x48, 1, 65, 8, 7, 6, 5, 4, 3, 2, 1],
        ),
        (Entry::Update { iova: 8, outcome: Update::Replaced { before: 1, after: 2 } }, &[0x44, 8, 1, 2]),
        (Entry::Drained { frames: false, other: true }, &[0x4a, 2]),
        (Entry::End(Ending::Overrun), &[0x73]),
    ] {
        let mut encoded = Vec::new();
        encode(&entry, &mut encoded);
        assert_eq!(encoded, bytes, "{entry}");
        assert_eq!(decode(bytes, &DedupCache::default()).unwrap(), (entry, &[][..]));
    }
}

#[test]
fn invalid_entries_are_rejected() {
    for (bytes, problem) in [
        (&[][..], CodecError::CutOff),
        (&[0x00], CodecError::Unknown { what: "tag", value: 0 }),
        (&[0x01, 0x80], CodecError::CutOff),
        (&[0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], CodecError::TooLarge),
        (&[0x02, 0, 0, 8], CodecError::Unknown { what: "right", value: 8 }),
        (&[0x1a, 0x81, 0x80, 0x80, 0x01], CodecError::TooLarge),
        (&[0x1a, 5, 1, 2], CodecError::CutOff),
        (&[0x23, 1, 0xff], CodecError::Text),
        (&[0x4b, 1, 3], CodecError::NotKnown),
        (&[0x26, 0], CodecError::NotKnown),
        (&[0x48, 2], CodecError::Unknown { what: "form", value: 2 }),
    ] {
        assert_eq!(decode(bytes, &DedupCache::default()).unwrap_err(), problem, "{bytes:x?}");
    }
    assert_eq!(MAX_RUN, 0x20_0000);
}

/// The CRC of any data followed by its own CRC is a constant, and frames end with their CRC. A CRC would therefore be
/// useless as the digest that a recording stores for a frame.
#[test]
fn digest_distinguishes_frames_with_valid_crcs() {
    let sealed = |byte: u8| {
        let mut frame = vec![byte; 100];
        frame.extend_from_slice(&crc32fast::hash(&frame).to_le_bytes());
        frame
    };
    assert_eq!(crc32fast::hash(&sealed(1)), crc32fast::hash(&sealed(2)));
    assert_ne!(Content::of(&sealed(1)), Content::of(&sealed(2)));
}

#[test]
fn recording_has_header_and_end_entry() {
    let record = record_of(3);
    assert_eq!(record[..8], MAGIC);
    assert_eq!(reader(&record).unwrap().header(), &header());
    let (steps, end) = play_all(&record);
    assert_eq!(steps, 3);
    assert!(matches!(end, Ok(Finish::Ended(Ending::Closed))), "{end:?}");
}

/// If the daemon is killed, the recording contains only the chunks written by then.
#[test]
fn truncated_recording_replays_complete_chunks() {
    let whole = record_of(1000);
    let first = MAGIC.len() + 12 + serde_json::to_vec(&header()).unwrap().len();
    for len in (first..whole.len()).step_by(997) {
        let (steps, end) = play_all(&whole[..len]);
        assert!(steps <= 1000);
        assert!(matches!(end, Ok(Finish::Stopped { cut_off }) if cut_off == (len > first)), "{len} {end:?}");
    }
    assert!(matches!(reader(&whole[..first - 1]), Err(ReadError::NoRecord)));
    assert!(matches!(reader(b"{\"devices\": []}"), Err(ReadError::NoRecord)));
}

#[test]
fn modified_recording_is_reported_as_damaged() {
    let whole = record_of(10);
    let first = MAGIC.len() + 12 + serde_json::to_vec(&header()).unwrap().len();
    for at in [first, first + 5, first + 100] {
        let mut record = whole.clone();
        record[at] ^= 0x80;
        let (_, end) = play_all(&record);
        let unreadable =
            matches!(end, Ok(Finish::Unreadable(ReadError::Damaged { at })) if at == first as u64);
        // A modified length may extend beyond the end of the file.
        assert!(unreadable || matches!(end, Ok(Finish::Stopped { cut_off: true })), "{end:?}");
    }
}

#[test]
fn format_error_mentions_required_hcad_version() {
    let mut record = MAGIC.to_vec();
    chunk::write(&mut record, br#"{"format": 2, "hcad": "9.9.9", "more": []}"#).unwrap();
    let error = reader(&record).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the recording has format version 2, but this hcad requires version 1; use hcad 9.9.9"
    );
}

#[test]
fn output_that_differs_from_recording_is_reported() {
    let file = Written::default();
    let recorder = recorder(file.clone(), u64::MAX);
    step(recorder.sink(), 1);
    recorder.sink().interrupt(4);
    step(recorder.sink(), 2);
    drop(recorder);
    let (_, end) = play_all(&file.bytes());
    let difference = end.unwrap_err();
    assert_eq!(
        (difference.step, &*difference.recorded, &*difference.found),
        (1, "signal vector 4", "nothing more")
    );

    let mut source = ReplaySource::new(reader(&record_of(2)).unwrap());
    source.next_input().unwrap();
    assert!(source.read(0x1000, 4, |_| {}));
    assert!(!source.write(0x2000, Content::of(b"wrong")));
    let difference = source.take_stop().unwrap().unwrap_err();
    assert_eq!(difference.recorded, "write guest memory at 0x2000: 77726974 74656e");
    assert_eq!(difference.found, "write guest memory at 0x2000: 77726f6e 67");
}

#[test]
fn recording_ends_at_size_limit() {
    for max_len in [1000, 5000, 100_000] {
        let file = Written::default();
        let recorder = recorder(file.clone(), max_len);
        for number in 1..1000 {
            step(recorder.sink(), number);
            if number % 10 == 0 {
                // Let the writer run between two appends.
                std::thread::yield_now();
            }
        }
        drop(recorder);
        assert!(file.bytes().len() as u64 <= max_len);
        let (_, end) = play_all(&file.bytes());
        assert!(matches!(end, Ok(Finish::Ended(Ending::Full))), "{end:?}");
    }
}

/// A writer that blocks until the test releases it.
struct Slow(mpsc::Receiver<()>, Written);

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Do not block while the header is written, which happens before the writer thread starts.
        if !self.1.bytes().is_empty() {
            let _ = self.0.recv();
        }
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn slow_file_stops_recording_with_overrun() {
    let file = Written::default();
    let (release, blocked) = mpsc::channel();
    let slow = Box::new(Slow(blocked, file.clone()));
    let mut recorder = Recorder::with_room(slow, Path::new("record"), &header(), u64::MAX, 100_000).unwrap();
    recorder.close_timeout = CLOSE_TIMEOUT;
    (1..10_000).for_each(|number| step(recorder.sink(), number));
    drop(release);
    drop(recorder);
    let (steps, end) = play_all(&file.bytes());
    assert!((1..10_000).contains(&steps));
    assert!(matches!(end, Ok(Finish::Ended(Ending::Overrun))), "{end:?}");
}

#[test]
fn write_error_stops_recording_without_panic() {
    struct Broken(bool);
    impl Write for Broken {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.0, true) {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                Ok(bytes.len())
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let recorder = recorder(Broken(false), u64::MAX);
    (1..10_000).for_each(|number| step(recorder.sink(), number));
}

/// If the device panics, the recording must still be complete so that the panic can be replayed.
#[test]
fn device_panic_ends_recording_as_failed() {
    let file = Written::default();
    let recorder = recorder(file.clone(), u64::MAX);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        step(recorder.sink(), 1);
        recorder.sink().input(Input::Drain);
        panic!("a defect");
    }));
    assert!(panicked.is_err());
    let mut source = ReplaySource::new(reader(&file.bytes()).unwrap());
    assert!(matches!(source.next_input(), Some(Input::Frame(_))));
    assert!(source.read(0x1000, 4, |_| {}) && source.write(0x2000, Content::of(b"written")));
    source.output(&Entry::Interrupt { vector: 3 });
    assert_eq!(source.next_input(), Some(Input::Drain));
    assert_eq!(source.next_input(), None);
    assert!(matches!(source.take_stop(), Some(Ok(Finish::Ended(Ending::Failed)))));
}

/// Data that is read or received again takes up only a few bytes in the recording.
#[test]
fn repeated_data_is_written_once() {
    let (mut cache, mut lens) = (DedupCache::default(), Vec::new());
    let page = vec![7; 4096];
    let mut frame = vec![9; 4154];
    for round in 0..3 {
        // Each frame has its own sequence number and ICRC.
        frame[50] = round;
        frame[4153] = round;
        for entry in [
            Entry::Read { iova: 0x1000, len: 4096, bytes: Some(&page) },
            Entry::Input(Input::Frame((&*frame).into())),
        ] {
            let mut bytes = Vec::new();
            encode_dedup(&entry, &mut cache, &mut bytes);
            lens.push(bytes.len());
        }
    }
    assert_eq!(lens[..2], [1 + 2 + 2 + 4096, 1 + 2 + 4154]);
    assert!(lens[2..].iter().all(|len| *len < 80), "{lens:?}");
}

/// The parts of an entry: the address of a read, or the headers and ICRC of a frame, followed by the data.
type Sample = (Result<u64, ([u8; 64], [u8; 4])>, Vec<u8>);

/// Generates only a few different addresses and data values so that many of them repeat. The lengths lie below, between
/// and above the cache's limits; some are exactly at a limit or one byte below it.
fn sample() -> impl Strategy<Value = Sample> {
    let kind = prop_oneof![(0..3_u64).prop_map(Ok), (any::<[u8; 64]>(), any::<[u8; 4]>()).prop_map(Err)];
    let run = (0..3_u8, prop::sample::select(vec![10, 255, 256, 400, 4096, 4352, 5000]));
    (kind, run.prop_map(|(byte, len)| vec![byte; len]))
}

fn entry_of((kind, bytes): &Sample) -> Entry<'_> {
    match kind {
        Ok(iova) => Entry::Read { iova: *iova, len: bytes.len(), bytes: Some(bytes) },
        Err((head, tail)) => Entry::Input(Input::Frame([&head[..], bytes, tail].concat().into())),
    }
}

proptest! {
    #[test]
    fn deduplicated_entries_decode_completely(samples in prop::collection::vec(sample(), 0..60)) {
        let entries: Vec<_> = samples.iter().map(entry_of).collect();
        let (mut cache, mut bytes) = (DedupCache::default(), Vec::new());
        entries.iter().for_each(|entry| encode_dedup(entry, &mut cache, &mut bytes));
        let (mut cache, mut rest) = (DedupCache::default(), &bytes[..]);
        for entry in &entries {
            prop_assert_eq!(&decode(rest, &cache).unwrap().0, entry);
            rest = &rest[rest.len() - learn(rest, &mut cache).unwrap()..];
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn entries_decoded_from_arbitrary_bytes_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut rest = &bytes[..];
        let cache = DedupCache::default();
        while let Ok((entry, left)) = decode(rest, &cache) {
            let _ = entry.to_string();
            let mut again = Vec::new();
            encode(&entry, &mut again);
            prop_assert_eq!(decode(&again, &cache).unwrap().0, entry);
            prop_assert!(left.len() < rest.len());
            rest = left;
        }
    }
}
