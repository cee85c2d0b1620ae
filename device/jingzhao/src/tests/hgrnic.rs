//! Runs models of the public driver and its user library on the devices defined in `configs/hgrnic.json`, without a
//! guest.
//!
//! [`driver`] and [`library`] reproduce the hardware accesses of the driver and the library. They are based only on
//! `public-driver.md` and do not share encoders with the device.
//!
//! # Spec
//! JingZhao interface, sections 12 and 13; `public-driver.md`.

mod driver;
mod library;

use std::fs;

use driver::{CONTEXT, CQC, Driver, MPT, MTT, TPT};
use library::{Caps, Program, RC, READ, SEND, SEND_IMM, UC, UD, WRITE, WRITE_IMM, Wr};
use serde_json::Value;

use super::*;

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/hgrnic.json");

/// Start of each program's data region.
const DATA: u64 = 0x7f00_0000_0678;

#[derive(Clone, Copy)]
struct Configured {
    options: Options,
    own: Identity,
    default_peer: Option<Identity>,
}

/// Reads the two devices from the configuration. The `hcad` tests check the whole file.
fn configured() -> [Configured; 2] {
    let config: Value = serde_json::from_str(&fs::read_to_string(CONFIG).unwrap()).unwrap();
    assert_eq!(config["devices"].as_array().unwrap().len(), 2, "the configuration has two devices");
    [0, 1].map(|index| {
        let entry = &config["devices"][index];
        let peer = entry.get("default_peer").map(|peer| {
            let mac =
                peer["mac"].as_str().unwrap().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
            Identity {
                mac: MacAddr(mac.collect::<Vec<_>>().try_into().unwrap()),
                ipv4: peer["ipv4"].as_str().unwrap().parse().unwrap(),
                ..identity(&peer["id"])
            }
        });
        Configured {
            options: serde_json::from_value(entry["frontend"]["jingzhao"].clone()).unwrap(),
            own: identity(&entry["id"]),
            default_peer: peer,
        }
    })
}

/// Returns the addresses that an `id` in the configuration stands for.
fn identity(id: &Value) -> Identity {
    Identity::from_lid(Lid::new(id.as_u64().unwrap().try_into().unwrap()))
}

fn machine(index: usize) -> Machine {
    machine_with(index, |_| {})
}

fn machine_with(index: usize, change: impl FnOnce(&mut Options)) -> Machine {
    let Configured { mut options, own, default_peer } = configured()[index];
    change(&mut options);
    let addresses = Addresses { own, peers: Vec::new(), default_peer };
    let setup = Setup { options, mac: own.mac, engine: engine::Config::default() };
    powered_on_with(setup, addresses)
}

fn pair(caps: Caps) -> (Program, Program) {
    let mut a = Program::start(Driver::probe(machine(0)), caps);
    let mut driver = Driver::probe(machine(1));
    // The second driver has already allocated another QPN.
    driver.qpns.alloc();
    let mut b = Program::start(driver, caps);
    a.connect(b.qpn);
    b.connect(a.qpn);
    (a, b)
}

/// Exchanges frames until both programs are idle.
fn settle(a: &mut Program, b: &mut Program) {
    exchange(a.machine(), b.machine());
}

/// Advances the clock from deadline to deadline, until none is left or the next one is after `limit`.
fn wait(program: &mut Program, peer: &mut Program, limit: Instant) {
    while let Some(deadline) = program.machine().hca.next_deadline().filter(|deadline| *deadline <= limit) {
        for side in [&mut *program, &mut *peer] {
            side.machine().advance(deadline);
        }
        settle(program, peer);
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let byte = |at: usize| {
        let [low, high, ..] = at.to_le_bytes();
        low.wrapping_mul(31).wrapping_add(high).wrapping_add(seed)
    };
    (0..len).map(byte).collect()
}

fn send(va: u64, len: u32) -> Wr {
    Wr { opcode: SEND, sges: vec![(va, len)], ..Wr::default() }
}

fn inline(bytes: &[u8]) -> Wr {
    Wr { opcode: SEND, inline: Some(bytes.to_vec()), ..Wr::default() }
}

/// Returns the byte_cnt, wqe, opcode and is_send fields of a completion.
fn done(entry: &[u8]) -> (u32, u32, u8, u8) {
    let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
    (word(0x14), word(0x18), entry[0x1c], entry[0x1d])
}

#[track_caller]
fn polled(program: &mut Program) -> (u32, u32, u8, u8) {
    done(&program.poll().expect("the CQ has a completion"))
}

/// Checks that the configuration has the settings that the driver and the library require, including settings left at
/// their defaults. The tests below use this configuration.
#[test]
fn hgrnic_configuration_has_required_options() {
    use crate::options::{QueueOptions, SqAddr, UarPages};

    /// The driver reports this LID for every port.
    const LID: Lid = Lid::new(0x1010);

    let [a, b] = configured();
    for (Configured { options, default_peer, .. }, other) in [(a, b), (b, a)] {
        assert_eq!(options.uar_pages, UarPages::Driver, "the driver allocates 4096 UAR pages");
        assert_eq!(options.rnr_timer_zero.get(), 12, "the driver always sets timer code 0");
        assert!(options.ud_grh, "applications leave room for a GRH");
        assert!(!options.uar_check && !options.qpn_check);
        let queues = QueueOptions {
            sq_addr: SqAddr::Unit,
            late_link: false,
            queue_len_from_region: true,
            clear_links: true,
            rq_clear: true,
            rq_valid_bit: true,
            honour_c: false,
            ud_addresses: false,
        };
        assert_eq!(options.queues, queues);
        let peer = default_peer.expect("the port has a default peer");
        assert_eq!((peer.lid, peer.mac, peer.ipv4), (LID, other.own.mac, other.own.ipv4));
    }
}

#[test]
fn driver_can_be_removed_and_probed_again() {
    let mut driver = Driver::probe(machine(0));
    for _ in 0..2 {
        let mut cq0 = vec![0; 0x30];
        (cq0[1], cq0[0x0c]) = (4, 5);
        let entry = driver.icm(CONTEXT, CQC);
        assert_eq!(driver.machine.peek(entry, 0x30), cq0);
        let program = Program::start(driver, Caps::default());
        driver = program.end();
        driver.remove();
        driver = driver.probe_again();
    }
}

/// The device must support object numbers beyond the advertised limits, which the driver ignores.
#[test]
fn object_numbers_beyond_advertised_limits_are_accepted() {
    let few = |options: &mut Options| {
        let limits = r#"{"max_qps": 4, "max_cqs": 4, "max_mpts": 8}"#;
        options.limits = serde_json::from_str(limits).unwrap();
    };
    let [mut a, mut b] = [0, 1].map(|index| {
        let mut driver = Driver::probe(machine_with(index, few));
        (driver.qpns.first, driver.cqns.first, driver.keys.first) = (0xffff, 0xffff, 0x1_fff8);
        Program::start(driver, Caps::default())
    });
    assert_eq!((a.qpn & 0xffff, a.cqn & 0xffff, a.data.key & 0x1_ffff), (0xffff, 0xffff, 0x1_fff8));
    a.connect(b.qpn);
    b.connect(a.qpn);
    b.post_recv(&[&[(DATA, 64)]]);
    a.post_send(&[inline(b"last")]);
    settle(&mut a, &mut b);
    assert_eq!((polled(&mut a), polled(&mut b)), ((4, 0, SEND, 1), (4, 0, 0x04, 0)));
}

#[test]
fn reused_numbers_have_new_high_bits() {
    let (a, mut b) = pair(Caps::default());
    assert_eq!((a.qpn, b.qpn), (0x9c_009c, 0x9c_009d));
    assert_eq!((a.data.key, a.cqn, a.pd), (0xc8_0065, 0x21_0001, 0x45_8002));
    let mut a = Program::start(a.end(), Caps::default());
    assert_eq!((a.qpn, a.cqn), (0x9d_009c, 0x22_0001));
    assert_eq!((a.data.key & 0x1_ffff, a.data.key >> 17), (0x65, 0x64 + 4));
    b.restart();
    a.connect(b.qpn);
    b.connect(a.qpn);
    b.post_recv(&[&[(DATA, 64)]]);
    a.post_send(&[
        inline(b"anew"),
        Wr { opcode: READ, remote: Some((DATA, b.data.key)), ..send(DATA + 8, 4) },
    ]);
    settle(&mut a, &mut b);
    assert_eq!((polled(&mut a), polled(&mut b)), ((4, 0, SEND, 1), (4, 0, 0x04, 0)));
    assert_eq!((polled(&mut a).2, a.get(DATA + 8, 4)), (READ, b"anew".to_vec()));
}

#[test]
fn rc_operations_complete_intact_and_in_order() {
    let (mut a, mut b) = pair(Caps::default());
    let content = pattern(0x3000, 9);
    a.put(DATA + 0x123, &content);
    b.post_recv(&[&[(DATA + 7, 0x1000), (DATA + 0x2001, 0x3000)], &[(DATA, 16)], &[]]);
    let immediate = Wr { opcode: SEND_IMM, imm: [0x11, 0x22, 0x33, 0x44], ..inline(b"HELLO") };
    a.post_send(&[Wr { sges: vec![(DATA + 0x123, 1), (DATA + 0x124, 0x2fff)], ..send(0, 0) }, immediate]);
    settle(&mut a, &mut b);
    assert_eq!(b.get(DATA + 7, 0x1000), content[..0x1000]);
    assert_eq!(b.get(DATA + 0x2001, 0x2000), content[0x1000..]);
    assert_eq!(b.get(DATA, 5), b"HELLO");
    assert_eq!(polled(&mut a), (0x3000, 0, SEND, 1));
    assert_eq!(polled(&mut a), (5, 0x80, SEND_IMM, 1));
    // The opcode is that of the last packet. The library reads only the low five bits of the opcode.
    assert_eq!(polled(&mut b), (0x3000, 0, 0x02, 0));
    let entry = b.poll().unwrap();
    assert_eq!((done(&entry), &entry[0x10..0x14]), ((5, 0x80, 0x05, 0), &[0x11, 0x22, 0x33, 0x44][..]));

    let remote = Some((DATA + 0x1000, b.data.key));
    let write = Wr { opcode: WRITE, remote, ..send(DATA + 0x123, 0x3000) };
    let notify = Wr { opcode: WRITE_IMM, imm: [1, 2, 3, 4], remote, ..send(DATA + 0x124, 0x900) };
    let read = Wr { opcode: READ, remote, ..send(DATA + 0x5000, 0x3000) };
    a.post_send(&[write, notify]);
    a.post_send(&[read, Wr { fence: true, opcode: SEND, ..inline(b"AFTER") }]);
    b.post_recv(&[&[(DATA + 0x40, 64)]]);
    settle(&mut a, &mut b);
    let expected = [&content[1..0x901], &content[0x900..]].concat();
    assert_eq!(b.get(DATA + 0x1000, 0x3000), expected);
    assert_eq!(a.get(DATA + 0x5000, 0x3000), expected);
    assert_eq!(b.get(DATA + 0x40, 5), b"AFTER");
    assert_eq!(polled(&mut a), (0x3000, 0x100, WRITE, 1));
    assert_eq!(polled(&mut a), (0x900, 0x180, WRITE_IMM, 1));
    assert_eq!(polled(&mut a), (0x3000, 0, READ, 1));
    assert_eq!(polled(&mut a), (5, 0x80, SEND, 1));
    let entry = b.poll().unwrap();
    assert_eq!((done(&entry).0, done(&entry).1, entry[0x1c] & 0x1f), (0x900, 0x100, 0x09));
    assert_eq!(entry[0x10..0x14], [1, 2, 3, 4]);
    assert_eq!(polled(&mut b), (5, 0x180, 0x04, 0));
    assert!(a.poll().is_none() && b.poll().is_none());
}

#[test]
fn uc_messages_complete_without_acknowledgement() {
    let (mut a, mut b) = pair(Caps { service: UC, ..Caps::default() });
    a.put(DATA, &pattern(0x1800, 1));
    b.post_recv(&[&[(DATA + 0x100, 0x2000)]]);
    a.post_send(&[send(DATA, 0x1800)]);
    let frames = a.machine().settle();
    assert_eq!(polled(&mut a), (0x1800, 0, SEND, 1), "a send completes with its last packet");
    frames.iter().for_each(|frame| b.machine().hca.handle_frame(frame));
    assert!(b.machine().settle().is_empty(), "the receiver sends no packets");
    assert_eq!(b.get(DATA + 0x100, 0x1800), pattern(0x1800, 1));
    assert_eq!(done(&b.poll().unwrap()), (0x1800, 0, 0x22, 0));
}

/// One side of `ibv_rc_pingpong` or `ibv_uc_pingpong`.
struct PingPong {
    program: Program,
    posted: u32,
    received: u32,
    /// Whether the next message must wait until the previous send completes.
    pending_send: bool,
    /// Whether the next message must wait until a message is received.
    pending_receive: bool,
}

impl PingPong {
    const DEPTH: u32 = 500;
    const LEN: u32 = 4096;

    fn new(program: Program) -> Self {
        let mut player = Self { program, posted: 0, received: 0, pending_send: false, pending_receive: true };
        player.post();
        player
    }

    /// Posts receives one at a time, all with the same buffer.
    fn post(&mut self) {
        while self.posted < Self::DEPTH {
            self.program.post_recv(&[&[(DATA, Self::LEN)]]);
            self.posted += 1;
        }
    }

    fn send(&mut self) {
        self.program.post_send(&[send(DATA, Self::LEN)]);
        (self.pending_send, self.pending_receive) = (true, true);
    }

    /// Polls completions. Returns whether this side may send.
    fn poll(&mut self) -> bool {
        while let Some(entry) = self.program.poll() {
            match done(&entry) {
                (_, 0, SEND, 1) => self.pending_send = false,
                (Self::LEN, at, opcode, 0) if opcode & 0x1f == 0x02 => {
                    // The pingpong program requests 500 receives, but the library's ring has 512 slots.
                    assert_eq!(at, self.received % 512 * 128);
                    self.received += 1;
                    self.posted -= 1;
                    self.pending_receive = false;
                }
                other => panic!("{other:x?}"),
            }
        }
        if self.posted <= 1 {
            self.post();
        }
        !self.pending_send && !self.pending_receive
    }
}

#[test]
fn pingpong_completes_on_rc_and_uc() {
    const MESSAGES: u32 = 1200;
    for service in [RC, UC] {
        let (a, b) = pair(Caps { service, max_wr: 1, max_recv: 500, log_cqes: 9, ..Caps::default() });
        let (mut client, mut server) = (PingPong::new(a), PingPong::new(b));
        for round in 0..MESSAGES {
            let content = pattern(4096, round.to_le_bytes()[0]);
            client.program.put(DATA, &content);
            client.send();
            settle(&mut client.program, &mut server.program);
            assert!(server.poll() && server.program.get(DATA, 4096) == content, "ping {round}");
            client.program.put(DATA, &[0; 4096]);
            server.send();
            settle(&mut client.program, &mut server.program);
            assert!(client.poll() && client.program.get(DATA, 4096) == content, "pong {round}");
            assert!(!server.poll(), "the server waits for the next ping");
        }
        assert_eq!((client.received, server.received), (MESSAGES, MESSAGES));
        for player in [client, server] {
            player.program.end().remove();
        }
    }
}

#[test]
fn datagrams_to_shared_lid_reach_default_peer() {
    let (mut a, mut b) = pair(Caps { service: UD, ..Caps::default() });
    b.post_recv(&[&[(DATA, 40 + 64)], &[(DATA + 0x200, 40 + 64)]]);
    // The driver does not set a Q_Key. Any Q_Key is therefore accepted.
    a.post_send(&[
        Wr { to: Some((b.qpn, 0x1111_1111)), ..inline(b"datagram") },
        Wr { to: Some((b.qpn, 0)), ..inline(b"another") },
    ]);
    settle(&mut a, &mut b);
    assert_eq!((polled(&mut a), polled(&mut a)), ((8, 0, SEND, 1), (7, 0x80, SEND, 1)));
    // The data follows the 40 bytes that applications reserve for the GRH.
    assert_eq!(
        (b.get(DATA + 40, 8), b.get(DATA + 0x200 + 40, 7)),
        (b"datagram".to_vec(), b"another".to_vec())
    );
    let entry = b.poll().unwrap();
    assert_eq!(done(&entry), (48, 0, 0x64, 0));
    assert_eq!(entry[0x08..0x0a], [0x9c, 0], "low bits of the sender's QPN");
    assert_eq!(entry[0x0e..0x10], [0x10, 0x10], "the LID of every port");
    assert_eq!(polled(&mut b), (47, 0x80, 0x64, 0));
}

/// The driver sets mtu_msgmax to ABh: a 4096-byte path MTU and a maximum message length of half that size.
#[test]
fn datagram_length_is_limited_only_by_mtu() {
    let (mut a, mut b) = pair(Caps { service: UD, ..Caps::default() });
    for program in [&mut a, &mut b] {
        let context = program.context();
        assert_eq!(program.machine().peek(context + 0x0c, 1), [0xab]);
    }
    for (slot, len) in (0..).step_by(128).zip([2048_u32, 2049, 4096]) {
        let content = pattern(len as usize, 5);
        a.put(DATA, &content);
        b.post_recv(&[&[(DATA + 0x1000, 40 + 4096)]]);
        a.post_send(&[Wr { to: Some((b.qpn, 1)), ..send(DATA, len) }]);
        settle(&mut a, &mut b);
        assert_eq!(polled(&mut a), (len, slot, SEND, 1));
        assert_eq!(polled(&mut b), (40 + len, slot, 0x64, 0));
        assert_eq!(b.get(DATA + 0x1000 + 40, len as usize), content);
    }
    a.post_send(&[Wr { to: Some((b.qpn, 1)), ..send(DATA, 4097) }]);
    settle(&mut a, &mut b);
    let entry = a.poll().expect("the CQ has a completion");
    assert_eq!((entry[0x10], entry[0x1c]), (0x01, 0xff), "LOCAL_LENGTH_ERR");
}

/// As with UD, bits 7:5 of mtu_msgmax set the packet size, and bits 4:0 have no effect.
#[test]
fn message_may_exceed_msgmax() {
    let (mut a, mut b) = pair(Caps { log_max_msg: 11, ..Caps::default() });
    a.put(DATA, &pattern(0x2801, 8));
    b.post_recv(&[&[(DATA + 0x3000, 0x3000)]]);
    a.post_send(&[send(DATA, 0x2801)]);
    settle(&mut a, &mut b);
    assert_eq!(polled(&mut a), (0x2801, 0, SEND, 1));
    assert_eq!(polled(&mut b).0, 0x2801);
    assert_eq!(b.get(DATA + 0x3000, 0x2801), pattern(0x2801, 8));
}

#[test]
fn doorbell_heads_wrap_after_many_laps() {
    let (mut a, mut b) = pair(Caps::default());
    // Two laps later, the head no longer fits in the doorbell's 24 bits.
    a.age((1 << 21) - 8);
    for lap in 0..20_u32 {
        let slot = lap % 4 * 128;
        b.post_recv(&[&[(DATA, 64)]]);
        let content = pattern(16, u8::try_from(lap).unwrap());
        a.post_send(&[inline(&content)]);
        settle(&mut a, &mut b);
        assert_eq!(b.get(DATA, 16), content);
        assert_eq!(polled(&mut b), (16, slot, 0x04, 0));
        assert_eq!(polled(&mut a), (16, slot, SEND, 1));
    }
}

#[test]
fn links_from_earlier_batches_are_not_followed() {
    let (mut a, mut b) = pair(Caps::default());
    for lap in 0..3_u8 {
        for batch in [4, 1, 1, 2] {
            let receives: Vec<&[(u64, u32)]> = vec![&[(DATA, 64)]; batch];
            b.post_recv(&receives);
            let list: Vec<Wr> = (0..batch).map(|_| inline(&[lap; 8])).collect();
            a.post_send(&list);
            settle(&mut a, &mut b);
            for program in [&mut a, &mut b] {
                assert_eq!((0..9).map_while(|_| program.poll()).count(), batch);
            }
        }
    }
}

#[test]
fn receive_without_valid_bit_is_not_ready() {
    let (mut a, mut b) = pair(Caps::default());
    b.post_recv(&[&[(DATA, 64)], &[(DATA + 64, 64)]]);
    a.post_send(&[inline(b"first"), inline(b"second")]);
    settle(&mut a, &mut b);
    assert_eq!((polled(&mut b).1, polled(&mut b).1), (0, 0x80));
    for program in [&mut a, &mut b] {
        program.restart();
    }
    a.connect(b.qpn);
    b.connect(a.qpn);
    while a.poll().is_some() {}

    // Stale receives are still in the queue, but their valid bits are clear.
    b.put(DATA, &[0; 128]);
    a.post_send(&[inline(b"third")]);
    settle(&mut a, &mut b);
    assert_eq!(b.get(DATA, 128), [0; 128]);
    assert_eq!((a.poll(), b.poll()), (None, None));
    b.post_recv(&[&[(DATA + 256, 64)]]);
    // The driver sets timer code 0, which the configuration replaces with code 12 (0.64 ms).
    wait(&mut a, &mut b, Instant::from_nanos(2_000_000));
    assert_eq!(b.get(DATA + 256, 5), b"third");
    assert_eq!((polled(&mut a), polled(&mut b)), ((5, 0, SEND, 1), (5, 0, 0x04, 0)));
}

/// J-50: only the settle time shows that a list of maximum length is complete.
#[test]
fn settled_receive_does_not_trigger_rnr_nak() {
    let (mut a, mut b) = pair(Caps { max_recv_sges: 1, ..Caps::default() });
    b.post_recv(&[&[(DATA, 64)]]);
    wait(&mut a, &mut b, Instant::from_nanos(301_000_000));
    for program in [&mut a, &mut b] {
        program.machine().advance(Instant::from_nanos(301_000_000));
    }
    a.post_send(&[inline(b"hello")]);
    settle(&mut a, &mut b);
    assert_eq!(b.machine().hca.engine_stats().naks_sent.rnr, 0);
    assert_eq!(b.get(DATA, 5), b"hello");
    assert_eq!((polled(&mut a).0, polled(&mut b).0), (5, 5));
}

/// J-50: a message that arrives before the settle time has elapsed is retried once, after that time.
#[test]
fn message_during_settle_time_triggers_one_rnr_nak() {
    let (mut a, mut b) = pair(Caps { max_recv_sges: 1, ..Caps::default() });
    b.post_recv(&[&[(DATA, 64)]]);
    a.post_send(&[inline(b"hello")]);
    settle(&mut a, &mut b);
    wait(&mut a, &mut b, Instant::from_nanos(400_000_000));
    assert_eq!(b.machine().hca.engine_stats().naks_sent.rnr, 1);
    assert_eq!(b.get(DATA, 5), b"hello");
    assert_eq!((polled(&mut a).0, polled(&mut b).0), (5, 5));
}

#[test]
fn error_cqe_identifies_wqe_and_queue() {
    let (mut a, mut b) = pair(Caps::default());
    for _ in 0..5 {
        a.post_send(&[Wr { opcode: WRITE, remote: Some((DATA, b.data.key)), ..send(DATA, 4) }]);
        settle(&mut a, &mut b);
        a.poll().unwrap();
    }
    a.post_recv(&[&[(DATA, 64)], &[(DATA, 64)]]);
    // The high bits are part of the key. A key without them is a different key.
    a.post_send(&[
        Wr { opcode: WRITE, remote: Some((DATA, b.data.key & 0x1_ffff)), ..send(DATA, 4) },
        send(DATA, 4),
    ]);
    settle(&mut a, &mut b);
    let number = a.qpn.to_le_bytes();
    for (syndrome, wqe, opcode) in
        [(0x13, [0x80, 0], 0xff), (0x05, [0, 1], 0xff), (0x05, [0, 0], 0xfe), (0x05, [0x80, 0], 0xfe)]
    {
        let mut expected = [0; 32];
        expected[..4].copy_from_slice(&number);
        expected[0x18..0x1a].copy_from_slice(&wqe);
        (expected[0x10], expected[0x1c]) = (syndrome, opcode);
        assert_eq!(a.poll().unwrap(), expected);
    }
    assert!(a.poll().is_none());
    assert_eq!(b.get(DATA, 4), [0; 4]);
}

#[test]
fn failed_qp_flushes_posted_requests() {
    let (mut a, _) = pair(Caps::default());
    a.post_recv(&[&[(DATA, 64)], &[(DATA, 64)], &[]]);
    a.fail();
    a.machine().settle();
    for wqe in [0, 0x80, 0x100] {
        let entry = a.poll().unwrap();
        assert_eq!((entry[0x10], done(&entry)), (5, (0, wqe, 0xfe, 0)));
    }
    assert!(a.poll().is_none());
}

#[test]
fn cq_with_unread_completions_can_be_resized() {
    let (mut a, mut b) = pair(Caps { log_cqes: 3, ..Caps::default() });
    let write = |b: &Program| Wr { opcode: WRITE, remote: Some((DATA, b.data.key)), ..send(DATA, 4) };
    let mut next = 0;
    for log_cqes in [4, 2, 5] {
        for _ in 0..3 {
            a.post_send(&[write(&b)]);
            settle(&mut a, &mut b);
        }
        a.resize_cq(log_cqes);
        a.post_send(&[write(&b)]);
        settle(&mut a, &mut b);
        for _ in 0..4 {
            assert_eq!(polled(&mut a), (4, next % 4 * 128, WRITE, 1));
            next += 1;
        }
        assert!(a.poll().is_none());
    }
}

#[test]
fn icm_chunks_may_be_fragmented_and_remapped() {
    let mut driver = Driver::probe_fragmented(machine(0), &[32, 16, 8, 4, 2, 1, 1]);
    // The QP's context is in the last page of a chunk that does not contain other contexts.
    driver.qpns.first = 0x17f1;
    let mut entries = Vec::new();
    for _ in 0..3 {
        let mut program = Program::start(driver, Caps::default());
        let entry = program.context();
        assert_eq!(entry & 0xfff, 0x100);
        assert_eq!(program.machine().peek(entry + 0x14, 4), [0, 0, 0x17, 0xf1]);
        assert_eq!(program.machine().peek(entry + 8, 1), [0x10], "INIT");
        driver = program.end();
        assert_eq!(
            driver.machine.peek(entry + 8, 1),
            [0],
            "the context is zeroed before its page is unmapped"
        );
        driver.machine.poke(entry, &[0; 0x100]);
        entries.push(entry);
    }
    entries.dedup();
    assert_eq!(entries.len(), 3, "each context has a different bus address");
    driver.remove();
}

#[test]
fn page_tables_beyond_508_entries_are_complete() {
    let (mut a, mut b) = pair(Caps::default());
    // The region has 1034 pages. The commands write their entries in batches of 508, 4, 508, 4 and 10.
    let base = 0x7e00_0000_0000;
    let region = a.driver.register(a.pd, base + 0xffc, 1032 * 0x1000 + 8, 7);
    let entry = a.driver.icm(TPT, MPT + u64::from(region.key & 0x1_ffff) * 64);
    let first = u64::from_be_bytes(a.machine().peek(entry + 0x2c, 8).try_into().unwrap());
    for page in [1, 508, 509, 512, 513, 1020, 1021, 1024, 1025, 1033] {
        // Write the four bytes on each side of a page boundary.
        let va = base + page * 0x1000 - 4;
        let stored = a.driver.icm(TPT, MTT + (first + page) * 8);
        assert_eq!(a.machine().peek(stored, 8), region.buffer.bus(va + 4).to_be_bytes());
        let content = pattern(8, page.to_le_bytes()[0]);
        b.put(DATA, &content);
        b.post_send(&[Wr { opcode: WRITE, remote: Some((va, region.key)), ..send(DATA, 8) }]);
        settle(&mut b, &mut a);
        assert_eq!(polled(&mut b).2, WRITE, "page {page}");
        assert_eq!(a.driver.get(&region.buffer, va, 8), content);
    }
}

#[test]
fn library_queue_and_slot_sizes_are_used() {
    // The context specifies three 128-byte slots, but the library uses four 256-byte slots.
    let (mut a, mut b) = pair(Caps { max_wr: 3, max_inline: 200, ..Caps::default() });
    for count in 0..9_u32 {
        b.post_recv(&[&[(DATA, 256)]]);
        let content = pattern(200, u8::try_from(count).unwrap());
        a.post_send(&[inline(&content)]);
        settle(&mut a, &mut b);
        assert_eq!(polled(&mut a), (200, count % 4 * 256, SEND, 1));
        assert_eq!(polled(&mut b), (200, count % 4 * 128, 0x04, 0));
        assert_eq!(b.get(DATA, 200), content);
    }
}

#[test]
fn unsignalled_requests_generate_cqes_unless_honour_c_is_set() {
    let (mut a, mut b) = pair(Caps::default());
    let quiet = Wr { opcode: WRITE, remote: Some((DATA, b.data.key)), unsignalled: true, ..send(DATA, 4) };
    a.post_send(&[quiet.clone(), Wr { unsignalled: false, ..quiet.clone() }, quiet]);
    settle(&mut a, &mut b);
    for wqe in [0, 0x80, 0x100] {
        assert_eq!(polled(&mut a), (4, wqe, WRITE, 1));
    }
    assert!(a.poll().is_none());
}

#[test]
fn rejected_commands_return_distinct_status_codes() {
    let (mut a, _) = pair(Caps::default());
    let (qpn, cqn) = (a.qpn, a.cqn);
    assert_eq!(
        a.driver.command(0x17, 0, 0, cqn + 1, 0),
        0x09,
        "HW2SW_CQ of an unknown CQ returns BAD_RES_STATE"
    );
    assert_eq!(
        a.driver.command(0x1b, 0, driver::MAILBOX, qpn, 0),
        0x10,
        "RTR2RTS of a QP in RTS returns BAD_QP_STATE"
    );
    assert_eq!(a.driver.command(0x55, 0, 0, 0, 0), 0x02, "an unknown opcode returns BAD_OP");
}

#[test]
fn doorbells_beyond_first_8_mib_of_bar2_are_accepted() {
    let mut driver = Driver::probe(machine(0));
    driver.next_uar = 0x835;
    let mut a = Program::start(driver, Caps::default());
    let mut b = Program::start(Driver::probe(machine(1)), Caps::default());
    a.connect(b.qpn);
    b.connect(a.qpn);
    b.post_recv(&[&[(DATA, 64)]]);
    a.post_send(&[inline(b"far")]);
    settle(&mut a, &mut b);
    assert_eq!((polled(&mut a).0, polled(&mut b).0), (3, 3));
}
