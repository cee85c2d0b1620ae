//! Replays recordings of a guest with an Ethernet port. Frames, CQEs, and the outputs of netdev and flow table commands
//! must match the recording. The recorded flow tables select the TIRs for received frames. The golden tests of the
//! whole device compare the other outputs.

use std::collections::BTreeMap;

use protocol::hca::mlx5::opcode::Opcode as CommandOpcode;
use protocol::hca::mlx5::page_len;
use protocol::net::layers::{Layers, Transport};

use super::*;

/// The traces, in recording order, each with the number of outputs to compare.
const TRACES: [(&str, usize); 9] = [
    (include_str!("../../../../../protocol/tests/data/mlx5/eth-1-core-and-netdev-probe.txt"), 73),
    (include_str!("../../../../../protocol/tests/data/mlx5/eth-2-mlx5_ib-probe.txt"), 0),
    (include_str!("../../../../../protocol/tests/data/mlx5/eth-3-netdev-up.txt"), 26),
    (include_str!("../../../../../protocol/tests/data/mlx5/eth-4-arp-and-ping.txt"), 0),
    (include_str!("../../../../../protocol/tests/data/mlx5/eth-5-tcp-20000-bytes-lso.txt"), 0),
    (include_str!("../../../../../protocol/tests/data/mlx5/eth-6-vlan-mtu-promisc.txt"), 38),
    (include_str!("../../../../../protocol/tests/data/mlx5/eth-7-link-down-up.txt"), 0),
    (include_str!("../../../../../protocol/tests/data/mlx5/eth-8-statistics.txt"), 0),
    (include_str!("../../../../../protocol/tests/data/mlx5/eth-9-down-unload.txt"), 88),
];

/// The recording contains at most this many bytes of a frame.
const RECORDED: usize = 64;

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

/// Splits `sqn=4002 index=6 words` into its numbers and the words.
fn numbered(line: &str) -> (u32, u32, &str) {
    let mut parts = line.splitn(3, ' ');
    let mut value = |radix| {
        let (_, digits) = parts.next().unwrap().split_once('=').unwrap();
        u32::from_str_radix(digits, radix).unwrap()
    };
    (value(16), value(10), parts.next().unwrap())
}

/// Returns whether a command's outputs must match the recording.
fn is_compared(opcode: CommandOpcode) -> bool {
    matches!(opcode.code(), 0x900..=0x90b | 0x912..=0x919 | 0x92f..=0x93c)
}

#[derive(Default)]
struct Ring {
    pages: Vec<u64>,
    log_entries: u8,
    stride: u64,
    record: u64,
    page_len: u64,
}

impl Ring {
    fn of(queue: &WorkQueue, list: Pages<'_>) -> Self {
        Self {
            pages: list.iter().map(Iova::get).collect(),
            log_entries: queue.log_entries,
            stride: 1 << queue.log_stride,
            record: queue.record.get(),
            page_len: page_len(queue.log_page_size),
        }
    }

    fn at(&self, index: u32) -> u64 {
        let offset = u64::from(index % (1 << self.log_entries)) * self.stride;
        self.pages[usize::try_from(offset / self.page_len).unwrap()] + offset % self.page_len
    }
}

struct Replay {
    driver: driver::Driver<Bench>,
    sqs: BTreeMap<u32, Ring>,
    rqs: BTreeMap<u32, Ring>,
    cqs: BTreeMap<u32, Ring>,
    /// Frames that the device has sent but that have not yet been found in the recording.
    frames: Vec<Vec<u8>>,
    compared: usize,
}

impl Replay {
    fn new() -> Self {
        let mut driver = driver::Driver::new(Bench::new(), driver::Layout::LARGE);
        driver.uses_flow_tables = true;
        driver.enable();
        driver.start();
        Self {
            driver,
            sqs: BTreeMap::new(),
            rqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            frames: Vec::new(),
            compared: 0,
        }
    }

    fn run(&mut self, trace: &'static str) {
        let lines: Vec<&str> = trace.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            if let Some(words) = line.strip_prefix("  in ") {
                let recorded = bytes(lines[number + 1].strip_prefix("  out ").unwrap());
                self.command(lines[number - 1], &bytes(words), &recorded);
            } else if let Some(rest) = line.strip_prefix("ETHWQE ") {
                let frames = lines[number + 1..].iter().map_while(|line| line.strip_prefix("FRAME out "));
                self.send(rest, &frames.collect::<Vec<_>>());
            } else if let Some(rest) = line.strip_prefix("FRAME out ") {
                self.check_frame(rest);
            } else if let Some(rest) = line.strip_prefix("ETHRX ") {
                self.receive(rest, &lines[number + 1..]);
            } else if let Some(rest) = line.strip_prefix("CQE ") {
                self.check_cqe(rest);
            }
        }
    }

    fn command(&mut self, heading: &str, input: &[u8], recorded: &[u8]) {
        let opcode = CommandOpcode::from_code(u16::from_be_bytes(output(input))).unwrap();
        self.initialise_ring(&Command::parse(input).unwrap());
        let ours = self.driver.execute(input, recorded.len());
        assert_eq!(ours[..8], [0; 8], "{heading}");
        if is_compared(opcode) {
            assert_eq!(ours, recorded, "{heading}");
            self.compared += 1;
        }
        let number = u32::from_be_bytes(output(&ours[8..])) & 0xff_ffff;
        match Command::parse(input).unwrap() {
            Command::CreateSq(create, list) => {
                self.sqs.insert(number, Ring::of(&create.context.queue, list));
            }
            Command::CreateRq(create, list) => {
                self.rqs.insert(number, Ring::of(&create.context.queue, list));
            }
            Command::CreateCq(create, list) => {
                let context = create.context;
                let ring = Ring {
                    pages: list.iter().map(Iova::get).collect(),
                    log_entries: context.log_entries,
                    stride: 64,
                    record: context.record.get(),
                    page_len: page_len(context.log_page_size),
                };
                self.cqs.insert(number, ring);
            }
            _ => {}
        }
    }

    /// Initialises the owner bytes of a new EQ or CQ, as the driver does.
    fn initialise_ring(&mut self, command: &Command<'_>) {
        let (list, log_page_size, log_entries) = match command {
            Command::CreateEq(CreateEq { context, .. }, list) => {
                (list, context.log_page_size, context.log_entries)
            }
            Command::CreateCq(create, list) => {
                (list, create.context.log_page_size, create.context.log_entries)
            }
            _ => return,
        };
        let page_len = page_len(log_page_size);
        for entry in 0..1_u64 << log_entries {
            let at = entry * 64 + 63;
            let page = list.iter().nth(usize::try_from(at / page_len).unwrap()).unwrap();
            self.driver.poke(page.get() + at % page_len, &[INITIAL_OWNER_BYTE]);
        }
    }

    /// Posts a recorded WQE. `frames` are the frames that the device must send for it.
    fn send(&mut self, line: &str, frames: &[&str]) {
        let (sqn, index, words) = numbered(line);
        let wqe = bytes(words);
        self.fill(&wqe, Sqn::new(sqn), frames);
        let sq = &self.sqs[&sqn];
        let blocks = u32::try_from(wqe.len().div_ceil(BLOCK)).unwrap();
        for (block, part) in (index..).zip(wqe.chunks(BLOCK)) {
            self.driver.poke(sq.at(block), part);
        }
        let sent = u16::try_from(index + blocks).unwrap();
        self.driver.poke(sq.record + 6, &sent.to_be_bytes());
        self.driver.ring(UarIndex::new(0x10), driver::SEND, &wqe[..8]);
        self.frames.extend(self.driver.frames());
    }

    /// Writes a WQE's data to memory. The recording contains only the first bytes of each frame. The remaining bytes
    /// are zeros, except for one word in each segment, which is chosen so that the recorded TCP checksum is correct.
    fn fill(&mut self, wqe: &[u8], sqn: Sqn, frames: &[&str]) {
        let FrameOperation::Send { header, data, .. } = FrameWqe::parse(wqe, sqn).unwrap().operation else {
            return;
        };
        let [DataItem::Pointer(segment)] = data[..] else { panic!("{data:?}") };
        let mut at = segment.va.get();
        for line in frames {
            let (len, hex) = line.split_once(' ').unwrap();
            let mut frame = bytes(hex);
            frame.resize(len.parse().unwrap(), 0);
            let behind = frame.len().min(RECORDED.max(header.len()).next_multiple_of(2));
            complete(&mut frame, &header[header.len().min(RECORDED)..], behind);
            let skipped = if header.is_empty() { 0 } else { header.len() };
            let mut payload = frame[skipped..].to_vec();
            if header.is_empty() && wqe[20] & 0x80 != 0 {
                // The driver leaves a partial sum in the checksum field. The device must ignore it, so any
                // value can stand for it.
                payload[50..52].copy_from_slice(&[0xde, 0xad]);
            }
            self.driver.poke(at, &payload);
            at += payload.len() as u64;
        }
    }

    fn check_frame(&mut self, line: &str) {
        let (len, hex) = line.split_once(' ').unwrap();
        let (len, recorded) = (len.parse::<usize>().unwrap(), bytes(hex));
        let frame = self.frames.remove(0);
        // The recorded device did not pad short frames.
        assert_eq!(frame.len(), len.max(60));
        assert_eq!(frame[..recorded.len()], recorded);
    }

    fn receive(&mut self, line: &str, behind: &[&str]) {
        let (rqn, index, rest) = numbered(line);
        let (wqe, hex) = rest.split_once(" frame=").unwrap();
        let mut wqe = bytes(wqe.strip_prefix("wqe=").unwrap());
        let rq = &self.rqs[&rqn];
        wqe.truncate(usize::try_from(rq.stride).unwrap());
        self.driver.poke(rq.at(index), &wqe);
        let posted = u16::try_from(index + 1).unwrap();
        self.driver.poke(rq.record + 2, &posted.to_be_bytes());
        let (_, _, words) = numbered(behind[0].strip_prefix("CQE ").unwrap());
        let cqe = FrameReceipt::parse(&output(&bytes(words))).unwrap();
        let mut frame = bytes(hex);
        let is_echo = frame[12..14] == [8, 0] && frame[23] == 1;
        while frame.len() < cqe.byte_count as usize {
            // The data bytes of the echo request count up to 37h.
            let next = u8::try_from(frame.len()).unwrap().wrapping_sub(0x2a);
            frame.push(if is_echo { next } else { 0 });
        }
        if frame.len() > RECORDED && !is_echo {
            complete(&mut frame, &[], RECORDED);
        }
        self.driver.receive(&frame);
        let buffer = u64::from_be_bytes(output(&wqe[8..]));
        assert_eq!(self.driver.peek(buffer, frame.len()), frame);
    }

    fn check_cqe(&mut self, line: &str) {
        let (cqn, index, words) = numbered(line);
        let ours = self.driver.peek(self.cqs[&cqn].at(index), 64);
        let timeless = |entry: &[u8]| {
            let mut entry = entry.to_vec();
            entry[0x30..0x38].fill(0);
            entry
        };
        assert_eq!(timeless(&ours), timeless(&bytes(words)), "entry {index} of CQ {cqn:#x}");
        let consumer = (index + 1).to_be_bytes();
        let record = self.cqs[&cqn].record;
        self.driver.poke(record, &consumer);
    }
}

/// Fills in the bytes missing from the recording. `header` contains the known bytes after the recorded part. The word
/// at `at` is set so that the TCP checksum is correct.
fn complete(frame: &mut [u8], header: &[u8], at: usize) {
    if !header.is_empty() {
        frame[RECORDED..RECORDED + header.len()].copy_from_slice(header);
    }
    let layers = Layers::parse(frame).unwrap();
    if let Some(ip) = layers.ip
        && matches!(ip.transport, Transport::Tcp(_))
        && at + 2 <= frame.len()
    {
        let word = ip.pseudo_header().with(ip.payload(frame).unwrap()).value();
        frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
    }
}

/// The device must assign the recorded numbers, send the recorded frames and write the recorded CQEs.
#[test]
fn netdev_objects_frames_and_cqes_match_recording() {
    let mut replay = Replay::new();
    for (trace, compared) in TRACES {
        let before = replay.compared;
        replay.run(trace);
        assert_eq!(replay.compared - before, compared);
        assert!(replay.frames.is_empty());
    }
}

#[test]
fn recorded_netdev_session_does_not_violate_rules() {
    let mut replay = Replay::new();
    replay.driver.monitor.set_strict(true);
    for (trace, _) in TRACES {
        replay.run(trace);
    }
    assert_eq!(replay.driver.monitor.violations().collect::<Vec<_>>(), []);
}
