//! Replays recordings of a guest and compares every command output and queue entry from the device with them.
//!
//! [`expected`] and [`queues::comparable`] adjust the recording where this device deliberately differs from the
//! recorded one. GUIDs, the subnet manager's LID and the node description also differ, as they identify the node.

mod ethernet;
mod queues;

use card::frontend::count::Count;
use card::frontend::testing::pattern;
use protocol::hca::mlx5::capability::{CapType, GeneralCaps};
use protocol::hca::mlx5::command::OutputHeader;
use protocol::hca::mlx5::doorbell::{ArmCq, UarRegister};
use protocol::hca::mlx5::eqe::Eqe;
use protocol::hca::mlx5::input::Command;
use protocol::hca::mlx5::qp::{QpContext, QueriedQp};
use protocol::hca::mlx5::vport::QueriedVport;
use protocol::mad::port::PortInfo;
use protocol::mad::smp::attribute;

use self::queues::Queues;
use super::super::limits::Limits;
use super::*;

/// The traces, in recording order. The last one, an unload, destroys the objects that the earlier ones created.
const TRACES: [&str; 6] = [
    include_str!("../../../../protocol/tests/data/mlx5/ib-1-core-probe.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/ib-2-mlx5_ib-probe.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/ib-3-rc-pingpong-2-rounds.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/ib-4-write-bw-mr-umr.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/ib-5-memory-windows-resize-errors.txt"),
    include_str!("../../../../protocol/tests/data/mlx5/ib-6-unload.txt"),
];

const LID: u16 = 0x11;

/// An input to the device, and the queue entries recorded after it.
struct Step {
    action: Action,
    entries: Vec<Entry>,
}

enum Action {
    Command { heading: &'static str, by_event: bool, input: Vec<u8>, output: Vec<u8> },
    Doorbell { page: UarIndex, offset: u64, bytes: Vec<u8> },
}

/// A queue entry that the device has read or written.
struct Entry {
    kind: Kind,
    /// QPN, CQN or EQN.
    number: u32,
    index: u32,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Wqe,
    Recv,
    Cqe,
    Eqe,
}

pub(super) fn bytes(words: &str) -> Vec<u8> {
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

/// Parses `name=value` fields at the start of a line. `bases` contains the number base of each value. Returns the
/// values and the rest of the line.
fn fields<const N: usize>(line: &'static str, bases: [u32; N]) -> ([u32; N], &'static str) {
    let mut rest = line;
    let values = bases.map(|base| {
        let (field, after) = rest.split_once(' ').unwrap();
        rest = after;
        u32::from_str_radix(field.split_once('=').unwrap().1, base).unwrap()
    });
    (values, rest)
}

fn steps(lines: impl Iterator<Item = &'static str>) -> Vec<Step> {
    const ENTRIES: [(&str, Kind); 4] =
        [("WQE ", Kind::Wqe), ("RECV ", Kind::Recv), ("CQE ", Kind::Cqe), ("EQE ", Kind::Eqe)];
    let mut steps: Vec<Step> = Vec::new();
    for line in lines {
        let entry = ENTRIES.into_iter().find_map(|(name, kind)| Some((kind, line.strip_prefix(name)?)));
        let action = if let Some(words) = line.strip_prefix("  in ") {
            let Some(Action::Command { input, .. }) = last(&mut steps) else { panic!("{line}") };
            *input = bytes(words);
            continue;
        } else if let Some(words) = line.strip_prefix("  out ") {
            let Some(Action::Command { output, .. }) = last(&mut steps) else { panic!("{line}") };
            *output = bytes(words);
            continue;
        } else if let Some((kind, words)) = entry {
            let ([number, index], words) = fields(words, [16, 10]);
            let entry = Entry { kind, number, index, bytes: bytes(words) };
            steps.last_mut().unwrap().entries.push(entry);
            continue;
        } else if let Some(words) = line.strip_prefix("DB ") {
            let ([page, offset, _], words) = fields(words, [16, 16, 10]);
            Action::Doorbell { page: UarIndex::new(page), offset: offset.into(), bytes: bytes(words) }
        } else {
            let by_event = line.contains(" E st=");
            Action::Command { heading: line, by_event, input: vec![], output: vec![] }
        };
        steps.push(Step { action, entries: vec![] });
    }
    steps
}

fn last(steps: &mut [Step]) -> Option<&mut Action> {
    steps.last_mut().map(|step| &mut step.action)
}

/// Returns the output expected from this device: the recorded output, adjusted for known differences. The identity is
/// taken from `ours`, the output of this device.
fn expected(heading: &str, command: &Command<'_>, recorded: &[u8], ours: &[u8]) -> Vec<u8> {
    const DATA: usize = OutputHeader::LEN + 64;
    let mut output = recorded.to_vec();
    match command {
        Command::QueryHcaCap(query) => match (query.cap_type(), heading.split(' ').next()) {
            // Section 6.1: this device does not offer BlueFlame, but it offers fast teardown, DevX, the MCAM register,
            // changes to the CQ moderation mode, repeat keys, counters for CQEs with errors, and changes to the counter
            // set of a QP in RTS. The third query of the general capabilities is not adjusted, since it returns the
            // values that the recorded driver set.
            (Some(CapType::General), Some("6" | "7")) => {
                output[0x10 + 0x4c] &= 0x7f;
                output[0x10 + 0x44] |= 0x10;
                output[0x10 + 0x1e] |= 1;
                output[0x10 + 0x1f] |= 0x10;
                output[0x10 + 0x2d] |= 0x40;
                output[0x10 + 0x35] |= 0x40;
                output[0x10 + 0x36] |= 0x40;
                output[0x10 + 0x8c..][..2].copy_from_slice(&[10, 12]);
                output[0x10 + 0xd7] |= 1;
            }
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
            let context = QpContext {
                // The recorded device returned the PSNs that the driver had set, not the current PSNs.
                next_send_psn: ours.next_send_psn,
                last_acked_psn: ours.last_acked_psn,
                recv_psn: ours.recv_psn,
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
            output = QueriedQp { context }.emit().to_vec();
        }
        _ => {}
    }
    output
}

struct Session<'a> {
    driver: &'a mut Driver,
    queues: Queues,
    /// Number of command events so far.
    events: u32,
    /// Number of doorbells so far, which also selects the contents of the next messages.
    doorbells: u8,
}

impl Session<'_> {
    fn command(&mut self, heading: &str, by_event: bool, input: &[u8], recorded: &[u8]) {
        let command = Command::parse(input).unwrap();
        self.queues.prepare(self.driver, &command);
        let ours = self.driver.execute(input, recorded.len());
        assert_eq!(ours, expected(heading, &command, recorded, &ours), "{heading}");
        assert_eq!(self.driver.owner_byte(0), 0, "{heading}");
        self.queues.apply(self.driver, &command, &ours);
        // The command that destroys the command EQ does not raise an event.
        if by_event && !heading.starts_with("356 ") {
            let (event, owner) = self.queues.event(self.driver, self.events);
            assert_eq!((event, owner), (Eqe::Command(1), self.events & 256 != 0), "{heading}");
            self.events += 1;
        }
    }

    fn doorbell(&mut self, page: UarIndex, offset: u64, bytes: &[u8], entries: &[Entry]) {
        self.doorbells = self.doorbells.wrapping_add(1);
        let mut messages = Vec::new();
        match UarRegister::at(offset).unwrap() {
            UarRegister::Send { .. } => messages = self.queues.post(self.driver, entries),
            UarRegister::ArmCq(_) => self.queues.record_arm(self.driver, &ArmCq::parse(&output(bytes))),
            _ if bytes[0] == 1 => {
                let consumer = u32::from_be_bytes([0, bytes[1], bytes[2], bytes[3]]);
                // In the recording, another command may have completed before the driver rang the doorbell.
                assert!([0, 1].contains(&(self.events - consumer)), "each command has raised one event");
            }
            _ => {}
        }
        for message in &messages {
            self.driver.poke(message.from, &pattern(message.len, self.doorbells));
        }
        self.driver.ring(page, offset, bytes);
        self.driver.settle();
        self.queues.check(self.driver, entries);
        for message in &messages {
            let received = self.driver.peek(message.to, message.len);
            assert!(received == pattern(message.len, self.doorbells), "message to {:#x}", message.to);
        }
    }
}

/// Replays all traces and returns the number of commands in each.
fn replay(driver: &mut Driver) -> Vec<usize> {
    let mut session = Session { driver, queues: Queues::default(), events: 0, doorbells: 0 };
    let mut counts = Vec::new();
    for trace in TRACES {
        let mut count = 0;
        for Step { action, entries } in steps(trace.lines()) {
            match action {
                Action::Command { heading, by_event, input, output } => {
                    count += 1;
                    session.command(heading, by_event, &input, &output);
                    assert!(entries.is_empty(), "{heading}");
                }
                Action::Doorbell { page, offset, bytes } => session.doorbell(page, offset, &bytes, &entries),
            }
        }
        counts.push(count);
    }
    counts
}

fn recorded() -> Options {
    let caps = GeneralCaps::infiniband();
    let max_cqes = Count::of_log(caps.log_max_cq_entries);
    Options { limits: Limits { max_cqes, ..Limits::default() }, ..infiniband() }
}

#[test]
fn command_outputs_and_queue_entries_match_recording() {
    let mut driver = powered_on_with(LID, recorded());
    assert_eq!(replay(&mut driver), [21, 182, 45, 41, 34, 36]);
}

/// Object numbers start over when the driver is unloaded and loaded again.
#[test]
fn object_numbers_restart_after_unload() {
    let mut driver = powered_on_with(LID, recorded());
    replay(&mut driver);
    replay(&mut driver);
}

/// Section 1.1: the device behaves the same with the device ID of a virtual function.
#[test]
fn virtual_function_accepts_same_commands() {
    let options = Options { virtual_function: true, ..infiniband() };
    let mut driver = powered_on_with(LID, options);
    for step in steps(TRACES[0].lines()) {
        if let Action::Command { heading, input, output, .. } = step.action {
            let ours = driver.execute(&input, output.len());
            assert_eq!(ours[..8], output[..8], "{heading}");
        }
    }
}

#[test]
fn recorded_guest_does_not_violate_rules() {
    let mut driver = powered_on_with(LID, recorded());
    driver.hca.set_strict(true);
    replay(&mut driver);
    replay(&mut driver);
    let monitor = driver.hca.monitor();
    assert_eq!(monitor.violations().collect::<Vec<_>>(), []);
    // The recorded guest causes remote access errors on purpose.
    assert_eq!(monitor.ignored_counts().collect::<Vec<_>>(), [("no_access", 2)]);
}
