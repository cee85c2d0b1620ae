//! End-to-end tests of LAN queues, from driver commands and rings to the wire and back (E810 interface, sections 5.9
//! and 8).

use card::frontend::snapshot::{LinkRow, QueueDirection, QueueRow, QueueState};
use card::frontend::testing::pattern;
use card::hca::WorkLeft;
use card::telemetry::testing::Written;
use card::telemetry::trace::TraceFormat;
use protocol::hca::e810::admin::Opcode;
use protocol::hca::e810::admin::queue::{AddQueue, QueueGroup};
use protocol::hca::e810::admin::scheduler::{ElementData, Teid};
use protocol::hca::e810::admin::vsi::{SwitchSection, VlanSection, VsiContext};
use protocol::hca::e810::regs::Register;
use protocol::hca::e810::ring_address::RingAddress;
use protocol::hca::e810::tx_context::TxContext;
use protocol::ids::Iova;

use super::*;
use crate::testing::MAC;

/// Parent of the leaf in the default tree. Queues can be added below it without adding other elements.
const PARENT: Teid = Teid::new(8);

/// Interrupt vector of the queue pair.
pub(super) const VECTOR: u16 = 1;
/// Route register value that enables the cause and selects [`VECTOR`].
const ROUTE: u32 = 1 << 30 | VECTOR as u32;

const RING_LEN: u16 = 64;
const TRANSMIT_RING: u64 = 0x100_0000;
pub(super) const RECEIVE_RING_LAN: u64 = 0x101_0000;
const TRANSMIT_BUFFER: u64 = 0x110_0000;
const RECEIVE_BUFFERS: u64 = 0x120_0000;
const BUFFER_STRIDE: u64 = 2048;

pub(super) const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// A driver with one VSI and one queue pair. The VSI receives broadcast frames and frames addressed to the driver.
pub(super) struct Nic {
    pub(super) driver: Driver,
    vsi: u16,
    /// Index of the next transmit descriptor.
    next: u16,
}

fn add_queue(queue: u16, vsi: u16, ring: u64) -> AdminCommand {
    let context = TxContext {
        ring: RingAddress::new(Iova::new(ring)),
        vsi,
        ring_len: RING_LEN,
        segmentation: true,
        ..TxContext::default()
    };
    let element = ElementData { generic_valid: true, ..ElementData::default() };
    let record = AddQueue { queue, teid: Teid::new(0), context, element };
    let group = QueueGroup { parent: PARENT, count: 1 };
    let buffer = [&group.emit()[..], &record.emit()].concat();
    let mut parameters = [0; 16];
    parameters[0] = 1;
    AdminCommand::with_input(Opcode::AddTxQueues, parameters, &buffer)
}

fn disable_queue(queue: u16) -> AdminCommand {
    let [low, high] = queue.to_le_bytes();
    let buffer = [8, 0, 0, 0, 1, 0, low, high];
    let mut parameters = [0; 16];
    parameters[..2].copy_from_slice(&[8, 1]);
    AdminCommand::with_input(Opcode::DisableTxQueues, parameters, &buffer)
}

impl Nic {
    pub(super) fn new() -> Self {
        Self::with(started())
    }

    /// Adds a VSI and queues to a driver that has already set up the admin queue.
    pub(super) fn with(driver: Driver) -> Self {
        let mut nic = Self { driver, vsi: 0, next: 0 };
        nic.set_up();
        nic
    }

    /// Adds a VSI and queues.
    pub(super) fn set_up(&mut self) {
        let driver = &mut self.driver;
        let context = VsiContext {
            switch: SwitchSection { lan: true, allow_loopback: true, ..SwitchSection::default() },
            vlan: VlanSection { transmit: 3, ..VlanSection::default() },
            ..VsiContext::default()
        };
        let mut parameters = [0; 16];
        parameters[6] = 2;
        let reply = driver.succeed(&AdminCommand::with_input(Opcode::AddVsi, parameters, &context.emit()));
        let vsi = u16::from_le_bytes([reply.parameters[0], reply.parameters[1]]);

        // Section 16.3: add a rule for the driver's own address and a rule for broadcast frames.
        for (mac, lan) in [(MAC.0, 0), ([0xff; 6], 1 << 3)] {
            let action: u32 = 0x2_0004 | lan | u32::from(vsi) << 4;
            let [vsi_low, vsi_high] = vsi.to_le_bytes();
            let rule = [
                &[1, 0, 0, 0, 1, 0, vsi_low, vsi_high][..],
                &action.to_le_bytes(),
                &[0, 0, 16, 0],
                &mac,
                &[2, 0, 0, 0, 0, 0, 0x81, 0, 0, 0],
            ]
            .concat();
            let mut parameters = [0; 16];
            parameters[0] = 1;
            driver.succeed(&AdminCommand::with_input(Opcode::AddRules, parameters, &rule));
        }
        self.vsi = vsi;
        self.open();
    }

    /// Enables the queues, as a driver does when its interface is brought up.
    fn open(&mut self) {
        self.next = 0;
        let driver = &mut self.driver;
        driver.succeed(&add_queue(0, self.vsi, TRANSMIT_RING));
        let ring = u128::from(RECEIVE_RING_LAN >> 7) << 32 | u128::from(RING_LEN) << 89;
        let low = ring | 16 << 102 | 1 << 116 | 1 << 117 | 1 << 119;
        let high: u128 = 9728 << 46;
        let context = [low.to_le_bytes(), high.to_le_bytes()].concat();
        for (index, word) in (0..).zip(context.as_chunks().0) {
            driver.write(Register::QrxContext(index, 0), u32::from_le_bytes(*word));
        }
        driver.write(Register::QrxflxpCntxt(0), 0x302);
        driver.write(Register::QrxTail(0), 0);
        driver.write(Register::QintTqctl(0), ROUTE);
        driver.write(Register::QintRqctl(0), ROUTE);
        driver.write(Register::QrxCtrl(0), 1);
        assert_eq!(driver.read(Register::QrxCtrl(0)) & 4, 4);
        for entry in 0..u64::from(RING_LEN) {
            let buffer = RECEIVE_BUFFERS + entry * BUFFER_STRIDE;
            let words = [buffer, 0, 0, 0].map(u64::to_le_bytes);
            driver.bus.poke(RECEIVE_RING_LAN + entry * 32, words.as_flattened());
        }
        driver.write(Register::QrxTail(0), u32::from(RING_LEN) - 8);
        driver.enable_vector(VECTOR);
    }

    /// Posts a frame in a single buffer and rings the doorbell. `word` contains additional bits for the descriptor's
    /// second word.
    pub(super) fn send(&mut self, frame: &[u8], word: u64) {
        let buffer = TRANSMIT_BUFFER + u64::from(self.next) * 0x1000;
        self.driver.bus.poke(buffer, frame);
        self.put(buffer, word | 3 << 4 | (frame.len() as u64) << 34);
        self.ring();
    }

    pub(super) fn put(&mut self, first: u64, second: u64) {
        let at = TRANSMIT_RING + u64::from(self.next) * 16;
        self.driver.bus.poke(at, [first.to_le_bytes(), second.to_le_bytes()].as_flattened());
        self.next = (self.next + 1) % RING_LEN;
    }

    pub(super) fn ring(&mut self) {
        self.driver.write(Register::QtxCommDbell(0), self.next.into());
    }

    /// Delivers a frame from the wire.
    pub(super) fn receive_frame(&mut self, frame: &[u8]) {
        self.driver.bus.hca.handle_frame(frame);
        assert_eq!(self.driver.bus.settle(), Vec::<Vec<u8>>::new());
    }

    /// Returns the received bytes and the status of completed descriptor `entry`.
    fn received(&mut self, entry: u64) -> (Vec<u8>, u16) {
        let bytes = self.driver.bus.peek(RECEIVE_RING_LAN + entry * 32, 32);
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let len = usize::from(u16_at(4) & 0x3fff);
        (self.driver.bus.peek(RECEIVE_BUFFERS + entry * BUFFER_STRIDE, len), u16_at(8))
    }

    /// Returns the number of interrupts on the queue pair's vector since the last call.
    pub(super) fn interrupts(&mut self) -> u64 {
        self.driver.interrupts(VECTOR.into())
    }
}

pub(super) fn frame(dst: [u8; 6], src: [u8; 6], len: usize) -> Vec<u8> {
    [&dst[..], &src, &[0x88, 0xb5], &pattern(len - 14, 3)].concat()
}

#[test]
fn sent_frame_completes_descriptor() {
    let mut nic = Nic::new();
    let sent = frame(PEER, MAC.0, 1514);
    nic.send(&sent, 0);
    assert_eq!(nic.driver.bus.settle(), [sent]);
    assert_eq!(nic.driver.bus.peek(TRANSMIT_RING + 8, 1), [0x3f], "only the descriptor type changes");
    assert_eq!(nic.driver.read(Register::QtxCommHead(0)), 1);
}

#[test]
fn received_frame_raises_interrupt() {
    let mut nic = Nic::new();
    let sent = frame(MAC.0, PEER, 600);
    nic.receive_frame(&sent);
    let (bytes, status) = nic.received(0);
    assert_eq!(bytes, sent);
    assert_eq!(status & 3, 3, "the done and end-of-packet bits are set");
    assert_eq!(nic.interrupts(), 1);
}

#[test]
fn frames_for_other_macs_are_not_delivered() {
    let mut nic = Nic::new();
    nic.receive_frame(&frame([2, 0, 0, 0, 0, 7], PEER, 60));
    nic.receive_frame(&frame([1, 0, 0x5e, 0, 0, 1], PEER, 60));
    assert_eq!(nic.received(0).1, 0);
    assert_eq!(nic.interrupts(), 0);
    nic.receive_frame(&frame([0xff; 6], PEER, 60));
    assert_eq!(nic.received(0).1 & 1, 1);
    // Section 8.6: the port counts all frames, and the VSI counts only the frames that it receives.
    assert_eq!(nic.driver.counter(Register::GlprtMprc), 1);
    assert_eq!(nic.driver.counter(Register::GlprtGorc), 3 * 64);
    assert_eq!(nic.driver.counter(Register::GlvBprc(nic.vsi)), 1);
    assert_eq!(nic.driver.counter(Register::GlvUprc(nic.vsi)), 0);
}

#[test]
fn mac_loopback_returns_frames_until_reset() {
    let mut nic = Nic::new();
    let set = |on: u8| {
        let mut parameters = [0; 16];
        parameters[0] = on;
        AdminCommand::direct(Opcode::SetMacLoopback, parameters)
    };
    nic.driver.succeed(&set(1));
    // Send the frame that the driver's self-test uses, and a frame from the driver's own address.
    let sent = [vec![0xff; 64], frame([0xff; 6], MAC.0, 1514)];
    sent.iter().for_each(|frame| nic.send(frame, 0));
    nic.receive_frame(&frame(MAC.0, PEER, 60));
    assert_eq!([0, 1].map(|entry| nic.received(entry).0), sent);
    assert_eq!(nic.received(2).1, 0, "frames from the wire are dropped");
    nic.driver.succeed(&set(0));
    nic.send(&sent[1], 0);
    assert_eq!(nic.driver.bus.settle(), sent[1..]);
    nic.driver.succeed(&set(1));
    nic.driver.write(Register::PfgenCtrl, 1);
    nic.driver.open_admin_queue();
    let mut nic = Nic::with(nic.driver);
    nic.send(&sent[1], 0);
    assert_eq!(nic.driver.bus.settle(), sent[1..]);
}

#[test]
fn frames_received_in_one_turn_share_interrupt() {
    let mut nic = Nic::new();
    for _ in 0..5 {
        nic.driver.bus.hca.handle_frame(&frame(MAC.0, PEER, 60));
    }
    nic.driver.bus.settle();
    assert_eq!(nic.interrupts(), 1);
    nic.driver.enable_vector(VECTOR);
    assert_eq!(nic.interrupts(), 0, "the first interrupt covers all frames");
}

/// Returns a TCP/IPv4 frame with headers of 14 + 20 + 20 bytes.
pub(super) fn tcp_frame(payload_len: usize) -> Vec<u8> {
    let ip = [0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let tcp = [0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x18, 0, 0, 0, 0, 0, 0];
    [&PEER[..], &MAC.0, &[8, 0], &ip, &tcp, &pattern(payload_len, 9)].concat()
}
/// Descriptor fields that match the headers of [`tcp_frame`].
pub(super) const TCP_HEADERS: u64 = 7 << 16 | 5 << 23 | 5 << 30 | 0x160 << 4;

#[test]
fn tso_emits_one_frame_per_segment() {
    let mut nic = Nic::new();
    nic.put(0, 100 << 50 | 300 << 30 | 1 << 4 | 1);
    nic.send(&tcp_frame(300), TCP_HEADERS);
    let pieces = nic.driver.bus.settle();
    assert_eq!(pieces.len(), 3);
    let sent: Vec<u8> = pieces.iter().flat_map(|piece| piece[54..].to_vec()).collect();
    assert_eq!(sent, pattern(300, 9));
    assert_eq!(nic.driver.counter(Register::GlvUptc(nic.vsi)), 3);
    assert_eq!(nic.driver.counter(Register::GlprtPtc255), 3);
}

#[test]
fn device_is_idle_while_wire_is_blocked() {
    let mut nic = Nic::new();
    nic.put(0, 64 << 50 | (64 * 200) << 30 | 1 << 4 | 1);
    nic.send(&tcp_frame(64 * 200), TCP_HEADERS);
    // Frames are not taken from the device until `settle` is called.
    for _ in 0..2 {
        assert_eq!(nic.driver.bus.hca.drain(), WorkLeft { frames: true, other: false });
    }
    assert_eq!(nic.driver.bus.settle().len(), 200);
}

#[test]
fn local_frames_per_poll_are_limited() {
    let mut nic = Nic::new();
    let sent = frame(MAC.0, MAC.0, 60);
    for _ in 0..40 {
        let buffer = TRANSMIT_BUFFER + u64::from(nic.next) * 0x1000;
        nic.driver.bus.poke(buffer, &sent);
        nic.put(buffer, 3 << 4 | (sent.len() as u64) << 34);
    }
    nic.ring();
    assert_eq!(nic.driver.bus.hca.drain(), WorkLeft { frames: false, other: true });
    assert_eq!(nic.driver.bus.hca.drain(), WorkLeft { frames: false, other: false });
    assert_eq!(nic.driver.read(Register::QtxCommHead(0)), 40);
}

#[test]
fn jumbo_frames_work_after_mtu_change() {
    let mut nic = Nic::new();
    nic.send(&frame(PEER, MAC.0, 60), 0);
    nic.driver.bus.settle();
    nic.driver.write(Register::QrxCtrl(0), 0);
    assert_eq!(nic.driver.read(Register::QrxCtrl(0)) & 4, 0);
    nic.driver.succeed(&disable_queue(0));
    nic.driver.write(Register::QtxCommDbell(0), 9);
    nic.driver.bus.settle();
    assert_eq!(nic.driver.read(Register::GlMdetTxPqm), 0, "the doorbell of a disabled queue is ignored");
    nic.open();
    let sent = frame(PEER, MAC.0, 9000);
    nic.send(&sent, 0);
    assert_eq!(nic.driver.bus.settle(), [sent]);
    let jumbo = frame(MAC.0, PEER, 9000);
    nic.receive_frame(&jumbo);
    let received: Vec<u8> = (0..5).flat_map(|entry| nic.received(entry).0).collect();
    assert_eq!(received, jumbo, "the frame occupies five buffers of 2 KiB");
}

#[test]
fn rejects_commands_for_invalid_queues() {
    let mut nic = Nic::new();
    let status = |nic: &mut Nic, command: &AdminCommand| nic.driver.execute(command).status;
    let vsi = nic.vsi;
    assert_eq!(
        status(&mut nic, &add_queue(0, vsi, TRANSMIT_RING)),
        13,
        "EEXIST: the queue is already enabled"
    );
    assert_eq!(status(&mut nic, &add_queue(64, vsi, TRANSMIT_RING)), 14, "EINVAL: there are only 64 queues");
    assert_eq!(status(&mut nic, &add_queue(1, vsi + 1, TRANSMIT_RING)), 2, "ENOENT: the VSI does not exist");
    assert_eq!(status(&mut nic, &disable_queue(1)), 2);
    let mut short = add_queue(1, vsi, TRANSMIT_RING);
    short.parameters[0] = 2;
    assert_eq!(status(&mut nic, &short), 14);
    // The command announced two groups, but contained only one, with queue 1. The device processes each group before it
    // reads the next one, so queue 1 has been added. Queue 0 still works.
    nic.driver.succeed(&disable_queue(1));
    nic.send(&frame(PEER, MAC.0, 60), 0);
    assert_eq!(nic.driver.bus.settle().len(), 1);
}

#[test]
fn removing_queue_frees_its_leaf() {
    let mut nic = Nic::new();
    let vsi = nic.vsi;
    for _ in 0..20 {
        assert_eq!(nic.driver.execute(&add_queue(0, vsi, TRANSMIT_RING)).status, 13);
        nic.driver.succeed(&add_queue(1, vsi, TRANSMIT_RING));
        nic.driver.succeed(&disable_queue(1));
    }
}

/// Builds an "Add RDMA queue set" command with a handle chosen by the driver.
fn add_rdma_set(set: u16) -> AdminCommand {
    let mut parameters = [0; 16];
    parameters[0] = 1;
    let [low, high] = set.to_le_bytes();
    let buffer = [&[8, 0, 0, 0, 1, 0, 0, 0][..], &[low, high], &[0; 22]].concat();
    AdminCommand::with_input(Opcode::AddRdmaQueueSet, parameters, &buffer)
}

/// Builds a "Delete elements" command for one leaf.
fn delete_leaf(teid: &[u8]) -> AdminCommand {
    let mut parameters = [0; 16];
    parameters[0] = 1;
    AdminCommand::with_input(Opcode::DeleteElements, parameters, &[&[8, 0, 0, 0, 1, 0, 0, 0], teid].concat())
}

#[test]
fn rdma_queue_sets_without_leaves_are_limited() {
    let mut driver = started();
    for set in 0..512 {
        let reply = driver.succeed(&add_rdma_set(set));
        driver.succeed(&delete_leaf(&reply.buffer[12..16]));
    }
    assert_eq!(driver.execute(&add_rdma_set(512)).status, 16, "ENOSPC: the limit is 512 sets");
    assert_eq!(driver.execute(&add_rdma_set(0)).status, 13, "EEXIST: the set still exists without its leaf");
    // Bit 15 of an ID in "disable queues" marks an RDMA queue set.
    driver.succeed(&disable_queue(1 << 15));
    driver.succeed(&add_rdma_set(0));
}

#[test]
fn rejects_queue_set_handle_with_bit_15_set() {
    let mut driver = started();
    assert_eq!(driver.execute(&add_rdma_set(1 << 15)).status, 14, "EINVAL: bit 15 marks RDMA queue sets");
}

#[test]
fn driver_error_raises_mdet_interrupt() {
    const MALICIOUS_DRIVER: u32 = 1 << 19;
    let mut nic = Nic::new();
    nic.driver.write(Register::PfintOicrCtl, 1 << 30);
    nic.driver.write(Register::PfintOicrEna, MALICIOUS_DRIVER);
    nic.send(&[0; 8], 0);
    assert_eq!(nic.driver.bus.settle(), Vec::<Vec<u8>>::new());
    assert_eq!(nic.driver.interrupts(0), 1);
    assert_eq!(nic.driver.read(Register::PfintOicr), MALICIOUS_DRIVER);
    assert_eq!(nic.driver.read(Register::PfintOicr), 0, "reading PFINT_OICR clears it");
    assert_ne!(nic.driver.read(Register::GlMdetTxTclan) & 1 << 31, 0);
    nic.driver.write(Register::GlMdetTxTclan, u32::MAX);
    assert_eq!(nic.driver.read(Register::GlMdetTxTclan), 0);
    nic.receive_frame(&frame(MAC.0, PEER, 60));
    assert_eq!(nic.received(0).1 & 1, 1, "the receive queue still works");
}

#[test]
fn reset_removes_queues_but_keeps_counters() {
    let mut nic = Nic::new();
    nic.send(&frame(PEER, MAC.0, 96), 0);
    nic.driver.bus.settle();
    nic.send(&frame(PEER, MAC.0, 96), 0);
    nic.driver.write(Register::PfgenCtrl, 1);
    assert_eq!(nic.driver.bus.settle(), Vec::<Vec<u8>>::new());
    nic.receive_frame(&frame(MAC.0, PEER, 60));
    assert_eq!(nic.received(0).1, 0);
    assert_eq!(nic.driver.read(Register::QrxCtrl(0)), 0);
    assert_eq!(nic.driver.counter(Register::GlprtGotc), 100);
    assert_eq!(nic.driver.counter(Register::GlprtGorc), 64);
}

#[test]
fn frames_are_dropped_while_link_is_down() {
    let mut nic = Nic::new();
    nic.driver.bus.hca.set_link(false);
    nic.send(&frame(PEER, MAC.0, 96), 0);
    assert_eq!(nic.driver.bus.settle(), Vec::<Vec<u8>>::new());
    assert_eq!(nic.driver.bus.peek(TRANSMIT_RING + 8, 1), [0x3f]);
    assert_eq!(nic.driver.counter(Register::GlprtTdold), 1);
    assert_eq!(nic.driver.counter(Register::GlprtUptc), 0);
}

#[test]
fn rows_show_queue_and_link_state() {
    let mut nic = Nic::new();
    nic.send(&frame(PEER, MAC.0, 96), 0);
    nic.driver.bus.settle();
    nic.receive_frame(&frame(MAC.0, PEER, 60));
    let transmit = QueueRow {
        queue: 0,
        direction: QueueDirection::Transmit,
        state: QueueState::Enabled,
        vsi: Some(nic.vsi),
        ring: TRANSMIT_RING,
        entries: 64,
        head: 1,
        tail: 1,
        vector: Some(VECTOR),
        frames: 1,
        bytes: 96,
        dropped: 0,
    };
    let receive = QueueRow {
        direction: QueueDirection::Receive,
        vsi: None,
        ring: RECEIVE_RING_LAN,
        tail: 56,
        bytes: 60,
        ..transmit.clone()
    };
    assert_eq!(nic.driver.bus.hca.rows::<QueueRow>(0), [transmit.clone(), receive.clone()]);
    assert_eq!(nic.driver.bus.hca.rows::<QueueRow>(1), [receive]);

    let link = LinkRow {
        enabled: true,
        gbps: 100,
        mac: "02:e8:10:00:00:01".to_owned(),
        max_frame: 9728,
        received: 1,
        sent: 1,
        lost: 0,
    };
    assert_eq!(nic.driver.bus.hca.rows::<LinkRow>(0), [link]);

    nic.send(&[0; 8], 0);
    nic.driver.bus.settle();
    let rows = nic.driver.bus.hca.rows::<QueueRow>(0);
    let expected = QueueRow { state: QueueState::Stopped, head: 2, tail: 2, ..transmit };
    assert_eq!(rows[0], expected, "the queue with the invalid frame is stopped");
}

#[test]
fn trace_contains_fetched_and_completed_descriptors() {
    let mut nic = Nic::new();
    let written = Written::default();
    nic.driver.bus.hca.set_trace(Some(written.trace(TraceFormat::Text)));
    nic.put(7 << 32, 100 << 50 | 300 << 30 | 5 << 4 | 1);
    nic.send(&tcp_frame(300), TCP_HEADERS);
    nic.driver.bus.settle();
    nic.receive_frame(&frame(MAC.0, PEER, 60));
    nic.driver.bus.hca.flush();
    let text = written.text();
    let records: Vec<_> =
        text.lines().filter(|line| line.contains(" wqe ") || line.contains(" cqe ")).collect();
    assert_eq!(
        records,
        [
            "1.500000 hca1 wqe transmit queue=0 index=0 kind=context tag2=0x7 segmentation.payload_len=300 \
             segmentation.mss=100 destination=RULES",
            "1.500000 hca1 wqe transmit queue=0 index=1 kind=data buffer=0x1101000 len=354 command=EOP|RS|IPV4_CSUM|TCP \
             headers.mac=14 headers.ip=20 headers.l4=20 tag=0x0",
            "1.500000 hca1 cqe transmit queue=0 index=1",
            "1.500000 hca1 wqe receive queue=0 index=0 data=0x1200000 headers=0x0",
            "1.500000 hca1 cqe receive queue=0 index=0 packet_type=1 len=60 end_of_packet=true",
        ]
    );
}
