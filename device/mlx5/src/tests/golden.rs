//! Replays the commands of a recorded guest, and compares every output byte by byte.
//!
//! The recorded device made some choices that this device makes differently. They are listed in [`expected`]. GUIDs,
//! the LID of the subnet manager and the node description differ because they identify the node.

use std::collections::BTreeMap;

use protocol::hca::mlx5::capability::CapType;
use protocol::hca::mlx5::command::OutputHeader;
use protocol::hca::mlx5::eqe::{Eqe, LEN as EQE_LEN};
use protocol::hca::mlx5::input::Command;
use protocol::hca::mlx5::qp::{QpContext, QpState, QueriedQp};
use protocol::hca::mlx5::vport::QueriedVport;
use protocol::mad::port::PortInfo;
use protocol::mad::smp::attribute;

use super::*;

/// The traces in the order in which they were recorded. The last trace, an unload, destroys the objects created by the
/// earlier traces.
const TRACES: [&str; 6] = [
    include_str!("../../../../protocol/tests/data/mlx5/ib-1-core-probe.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/ib-2-mlx5_ib-probe.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/ib-3-rc-pingpong-2-rounds.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/ib-4-write-bw-mr-umr.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/ib-5-memory-windows-resize-errors.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/ib-6-unload.txt"),
];

/// LID of the recorded port.
const LID: u16 = 0x11;

/// A command of a trace, or an EQ doorbell.
enum Step {
    Command { heading: &'static str, by_event: bool, input: Vec<u8>, output: Vec<u8> },
    EqDoorbell(Vec<u8>),
}

fn bytes(words: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in words.split_whitespace() {
        if let Some(count) = word.strip_prefix('<').and_then(|word| word.strip_suffix("*00>")) {
            bytes.resize(bytes.len() + count.parse::<usize>().unwrap(), 0);
        } else {
            let pairs = word.as_bytes().as_chunks::<2>().0.iter();
            bytes.extend(pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()));
        }
    }
    bytes
}

/// Returns the commands and EQ doorbells of a trace. Work requests and their completions are skipped.
fn steps(trace: &'static str) -> Vec<Step> {
    let mut steps = Vec::new();
    for line in trace.lines() {
        if let Some(words) = line.strip_prefix("  in ") {
            let Some(Step::Command { input, .. }) = steps.last_mut() else { panic!("{line}") };
            *input = bytes(words);
        } else if let Some(words) = line.strip_prefix("  out ") {
            let Some(Step::Command { output, .. }) = steps.last_mut() else { panic!("{line}") };
            *output = bytes(words);
        } else if let Some(words) = line.strip_prefix("DB uar=10 offset=40 width=4 ") {
            steps.push(Step::EqDoorbell(bytes(words)));
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let by_event = line.contains(" E st=");
            steps.push(Step::Command { heading: line, by_event, input: vec![], output: vec![] });
        }
    }
    steps
}

/// Returns the output that this device must produce: the recorded output, adapted to this device's choices and
/// identity. Fields that identify the node are copied from `ours`, the actual output.
fn expected(heading: &str, command: &Command<'_>, recorded: &[u8], ours: &[u8]) -> Vec<u8> {
    const DATA: usize = OutputHeader::LEN + 64;
    let mut output = recorded.to_vec();
    match command {
        Command::QueryHcaCap(query) => match (query.cap_type(), heading.split(' ').next()) {
            // Section 6.1: this device does not offer BlueFlame. The third query needs no change, because it returns
            // the values that the recorded driver set.
            (Some(CapType::General), Some("6" | "7")) => output[0x10 + 0x4c] &= 0x7f,
            // The recorded device reported a byte order that the driver had not set yet.
            (Some(CapType::Atomic), Some("9")) => output[0x18] &= 0x3f,
            _ => {}
        },
        Command::MadIfc(execute) => {
            let own = |output: &mut [u8], first: usize, len: usize| {
                let place = DATA + first..DATA + first + len;
                output[place.clone()].copy_from_slice(&ours[place]);
            };
            let [.., high, low] = *execute.mad.first_chunk::<18>().unwrap();
            match u16::from_be_bytes([high, low]) {
                attribute::NODE_DESCRIPTION => own(&mut output, 0, 64),
                attribute::NODE_INFO => own(&mut output, 4, 24),
                attribute::GUID_INFO => own(&mut output, 0, 8),
                attribute::PORT_INFO => {
                    let read = |bytes: &[u8]| PortInfo::parse(bytes[DATA..].first_chunk().unwrap());
                    let (theirs, ours) = (read(recorded), read(ours));
                    let port = PortInfo {
                        sm_lid: ours.sm_lid,
                        width_supported: ours.width_supported,
                        speed_active: ours.speed_active,
                        vl_cap: ours.vl_cap,
                        operational_vls: ours.operational_vls,
                        resp_time: ours.resp_time,
                        ..theirs
                    };
                    output[DATA..DATA + 64].copy_from_slice(&port.emit());
                }
                _ => {}
            }
        }
        Command::QueryHcaVportContext(_) => {
            let read = |bytes: &[u8]| QueriedVport::parse(&self::output(bytes)).context;
            let (mut theirs, ours) = (read(recorded), read(ours));
            theirs.sm_lid = ours.sm_lid;
            (theirs.system_guid, theirs.port_guid, theirs.node_guid) =
                (ours.system_guid, ours.port_guid, ours.node_guid);
            output = QueriedVport { context: theirs }.emit().to_vec();
        }
        Command::QueryQp(_) if heading.starts_with("311 ") || heading.starts_with("312 ") => {
            let read = |bytes: &[u8]| QueriedQp::parse(&self::output(bytes)).context;
            let (theirs, ours) = (read(recorded), read(ours));
            // The recorded device did not return all fields that CREATE_QP and RST2INIT had set.
            let mut context = QpContext {
                log_rq_entries: ours.log_rq_entries,
                log_rq_stride: ours.log_rq_stride,
                log_sq_blocks: ours.log_sq_blocks,
                counter_set: ours.counter_set,
                uar: ours.uar,
                log_page_size: ours.log_page_size,
                page_offset: ours.page_offset,
                log_ack_frequency: ours.log_ack_frequency,
                atomic_mode: ours.atomic_mode,
                xrcd: ours.xrcd,
                srqn: ours.srqn,
                inline_request: ours.inline_request,
                inline_response: ours.inline_response,
                ..theirs
            };
            // The work request that moved the QP to ERR before the second query is not replayed.
            if theirs.state() == Some(QpState::Error) {
                context.state = QpState::Rts.code();
            }
            output = QueriedQp { context }.emit().to_vec();
        }
        _ => {}
    }
    output
}

/// Replays all traces. Returns the number of commands in each trace.
fn replay(driver: &mut Driver) -> Vec<usize> {
    let mut counts = Vec::new();
    let mut events = 0;
    let mut event_pages = BTreeMap::new();
    for trace in TRACES {
        let mut count = 0;
        for step in steps(trace) {
            match step {
                Step::Command { heading, by_event, input, output } => {
                    count += 1;
                    let command = Command::parse(&input).unwrap();
                    let ours = driver.execute(&input, output.len());
                    let theirs = expected(heading, &command, &output, &ours);
                    assert_eq!(ours, theirs, "{heading}");
                    assert_eq!(driver.owner_byte(0), 0, "{heading}");
                    if let (Command::CreateEq(create, pages), true) = (&command, event_pages.is_empty()) {
                        assert_eq!(create.mask(), EventMask::COMMAND);
                        event_pages = pages.iter().enumerate().collect();
                    } else if by_event && !heading.starts_with("356 ") {
                        check_event(driver, &event_pages, events);
                        events += 1;
                    }
                }
                Step::EqDoorbell(word) => {
                    // Skip the doorbells of the completion EQ. They acknowledge events of work requests, and work
                    // requests are not replayed.
                    if word[0] < 4 {
                        driver.ring(UarIndex::new(0x10), driver::ARM_EQ, &word);
                    }
                    if word[0] == 1 {
                        let consumer = u32::from_be_bytes([0, word[1], word[2], word[3]]);
                        // In the recording, another command may complete before the driver rings the doorbell.
                        assert!([0, 1].contains(&(events - consumer)), "an event for each command");
                    }
                }
            }
        }
        counts.push(count);
    }
    counts
}

/// Checks that entry `number` of the command EQ reports the completion of slot 0.
fn check_event(driver: &mut Driver, pages: &BTreeMap<usize, Iova>, number: u32) {
    let offset = u64::from(number % 256) * EQE_LEN as u64;
    let page = pages[&usize::try_from(offset >> 12).unwrap()];
    let entry = driver.peek(page.get() + offset % 4096, EQE_LEN);
    let (event, owner) = Eqe::parse(&output(&entry)).unwrap();
    assert_eq!((event, owner), (Eqe::Command(1), number & 256 != 0), "event {number}");
}

#[test]
fn outputs_match_recorded_device() {
    let mut driver = powered_on_with(LID, Options::default());
    assert_eq!(replay(&mut driver), [21, 182, 45, 41, 34, 36]);
}

/// After the driver is unloaded and loaded again, object numbers restart from their first values.
#[test]
fn recorded_commands_repeat_with_same_numbers_after_unload() {
    let mut driver = powered_on_with(LID, Options::default());
    replay(&mut driver);
    replay(&mut driver);
}

/// Section 1.1: with the device ID of a virtual function, the device behaves as before.
#[test]
fn virtual_function_accepts_same_commands() {
    let options = Options { virtual_function: true, ..Options::default() };
    let mut driver = powered_on_with(LID, options);
    for step in steps(TRACES[0]) {
        if let Step::Command { heading, input, output, .. } = step {
            let ours = driver.execute(&input, output.len());
            assert_eq!(ours[..8], output[..8], "{heading}");
        }
    }
}
