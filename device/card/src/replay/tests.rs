use std::io::Cursor;
use std::path::Path;
use std::time::Duration;

use protocol::ids::{Iova, Lid};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde_json::Map;

use super::testing::CLOSE_TIMEOUT;
use super::*;
use crate::hca::testing::Stub;
use crate::identity::Identity;
use crate::memory::Permissions;
use crate::record::{Ending, Header, Reader, Recorder};
use crate::telemetry::testing::Written;
use crate::telemetry::trace::TraceFormat;
use crate::vfio::Bar;

fn powered_on() -> Hca<Stub> {
    Hca::new(Stub::default(), Identity::from_lid(Lid::new(1)), None)
}

/// Records a session in which a client sets up the device, rings doorbells, receives interrupts, temporarily disables
/// bus mastering and resets the device. `more` adds inputs before the reset. Returns the recording.
fn session(more: impl FnOnce(&mut Hca<Stub>)) -> Vec<u8> {
    session_with(&Header::new("hca1", Map::new()), more)
}

fn session_with(header: &Header, more: impl FnOnce(&mut Hca<Stub>)) -> Vec<u8> {
    let file = Written::default();
    let mut recorder = Recorder::to(Box::new(file.clone()), Path::new("record"), header, u64::MAX).unwrap();
    recorder.close_timeout = CLOSE_TIMEOUT;
    let mut hca = powered_on();
    hca.set_record_sink(recorder.sink());
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 4096).unwrap();
    let permissions = Permissions { read: true, write: true };
    hca.memory().map(Iova::new(0), 4096, permissions, Some((fd, 0))).unwrap();
    hca.region_write(Region::Config, 4, &[6, 0]);
    hca.interrupts().set_eventfd(1, unread_eventfd());
    hca.region_write(Region::Config, 0x52, &[0x00, 0x80]);
    for (millis, command) in [(1, 6), (2, 2), (3, 6)] {
        hca.set_now(Instant::from_nanos(millis * 1_000_000));
        hca.region_write(Region::Config, 4, &[command, 0]);
        hca.region_write(Region::Bar(Bar::Bar2), 0, b"bell");
        hca.region_read(Region::Bar(Bar::Bar0), 0x20, &mut [0; 4]);
        hca.drain();
    }
    hca.interrupts().set_masked(1, true);
    hca.interrupts().trigger(1);
    hca.interrupts().disconnect();
    hca.set_link(false);
    more(&mut hca);
    hca.reset();
    hca.fail();
    hca.disconnect();
    drop(recorder);
    file.bytes()
}

fn source(record: &[u8]) -> ReplaySource {
    ReplaySource::new(Reader::new(Box::new(Cursor::new(record.to_vec()))).unwrap())
}

#[test]
fn replay_of_unchanged_device_matches_recording() {
    let record = session(|_| {});
    let report = play(&mut powered_on(), source(&record), |_| Next::Go);
    assert!(matches!(report.outcome, Outcome::Same(Finish::Ended(Ending::Closed))), "{report}");
    // Bus mastering is disabled at the second doorbell: one write is denied, and one interrupt is sent late. The client
    // triggers the fourth interrupt.
    let Counts { writes, interrupts, frames, span, .. } = report.counts;
    assert_eq!((writes, interrupts, frames, span.as_millis()), (3, 4, 0, 3), "{report}");
}

#[test]
fn replay_trace_has_recorded_times() {
    let times = |header: &Header| {
        let record = session_with(header, |_| {});
        let written = Written::default();
        let mut hca = powered_on();
        hca.set_trace(Some(written.trace(TraceFormat::Text).with_clock(clock::now)));
        play(&mut hca, source(&record), |_| Next::Go);
        let text = written.text();
        let mut times: Vec<_> = text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        times.dedup();
        times
    };
    let origin = Duration::from_millis(1_762_351_200_500);
    let header = Header::new("hca1", Map::new());
    assert_eq!(
        times(&header.clone().with_clock_origin(origin)),
        ["1762351200.501000", "1762351200.502000", "1762351200.503000"]
    );
    assert_eq!(
        times(&header),
        ["0.001000", "0.002000", "0.003000"],
        "without a clock origin, the trace shows the device's time"
    );
}

#[test]
fn replay_stops_at_requested_step() {
    let record = session(|_| {});
    let mut seen = Vec::new();
    let report = play(&mut powered_on(), source(&record), |step| {
        seen.push(step.input.to_string());
        if step.counts.steps > 3 { Next::Stop } else { Next::Go }
    });
    assert!(matches!(report.outcome, Outcome::Stopped), "{report}");
    assert_eq!(report.counts.steps, 3, "the step that was not executed is not counted");
    assert_eq!(
        seen,
        [
            "client writes at config+0x4: 0600",
            "client sets the eventfd of vector 1",
            "client writes at config+0x52: 0080",
            "client writes at config+0x4: 0600",
        ]
    );
}

/// Frames that the fabric has not sent yet stay in the outgoing batch, both in the recording and in the replay.
#[test]
fn unsent_frames_are_replayed() {
    let other = Identity::from_lid(Lid::new(9));
    let request = |from: u8| {
        let mac = [2, 0, 0, 0, 0, from];
        let head = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
        [&[0xff; 6][..], &mac, &head, &mac, &[10, 77, 0, from], &[0; 6], &[10, 77, 0, 1]].concat()
    };
    let record = session(|hca| {
        hca.set_link(true);
        hca.add_static_neighbour(other.mac);
        for from in 2..6 {
            hca.handle_frame(&request(from));
        }
        hca.drain();
        assert_eq!(hca.outbound().len(), 4);
        hca.outbound().keep_last(3);
        hca.handle_frame(&request(6));
        hca.drain();
        assert_eq!(hca.outbound().len(), 4);
        hca.outbound().keep_last(0);
        hca.remove_static_neighbour(other.mac);
        hca.drain();
    });
    let report = play(&mut powered_on(), source(&record), |_| Next::Go);
    assert!(matches!(report.outcome, Outcome::Same(_)), "{report}");
    assert_eq!(report.counts.frames, 5);
}

#[test]
fn impairments_are_replayed() {
    let record = session(|hca| {
        let rule = r#"{"direction": "rx", "action": "drop", "probability": 0.5, "seed": 3}"#;
        let entry: RuleEntry = serde_json::from_str(rule).unwrap();
        let id = hca.impair(Rule::try_from(entry).unwrap()).unwrap();
        hca.clear_impairments(Some(id));
        hca.clear_impairments(None);
    });
    let mut seen = Vec::new();
    let report = play(&mut powered_on(), source(&record), |step| {
        seen.push(step.input.to_string());
        Next::Go
    });
    assert!(matches!(report.outcome, Outcome::Same(_)), "{report}");
    assert_eq!(seen.iter().filter(|input| input.contains("impairment")).count(), 3, "{seen:?}");
}

#[test]
fn panic_is_reported_as_outcome() {
    let record = session(|_| {});
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let report = play(&mut powered_on(), source(&record), |step| match step.input {
        Input::Reset => panic!("a defect in step {}", step.counts.steps),
        _ => Next::Go,
    });
    std::panic::set_hook(hook);
    let Outcome::Panicked { step, message } = &report.outcome else { panic!("{report}") };
    assert_eq!(*message, format!("a defect in step {step}"));
}

#[test]
fn report_escapes_control_characters() {
    let outcome = Outcome::Impossible { step: 1, input: "\u{1b}\n".to_owned() };
    let report = Report { counts: Counts::default(), outcome, rest: Vec::new() };
    assert!(report.to_string().ends_with("step 1 cannot be replayed: \\u{1b}\\n"), "{report}");
}
