//! What the fuzz targets run, shared with `device/tests/hostile.rs`.
//!
//! The input is the device's options, two bytes, who looks on, and a list of operations on one device: what its guest, its
//! client and its wire may do, well-formed as often as not, since a device refuses most of what is random. Whatever came
//! before, the device must serve a well-behaved guest afterwards.

mod guest;
mod input;
pub mod mads;

use device::frontend::snapshot::Table;
use device::vfio::Bar;
use device::vfio::server::{Device, Region};
use engine::Instant;
use protocol::Psn;
use protocol::ids::{Iova, Pkey, Qpn};
use protocol::roce::{Aeth, Bth, Ext, FrameWriter, NakCode, Opcode, RoceFrame, Syndrome};
use rustix::event::{EventfdFlags, eventfd};

use self::guest::{COMMANDS, Guest, LOOPED, MEMORY, PSN, RQ, SQ};
use self::input::Input;

/// Bound: operations of one run. With more, work requests in a circle make a run last seconds.
const OPERATIONS: usize = 128;

/// Turns after one operation. A guest may link work requests in a circle, so there need not be a last one.
const TURNS: usize = 2;

/// Runs an input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut guest = Guest::new(input.half(), input.byte());
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        operate(&mut guest, operation, &mut input);
        turns(&mut guest, TURNS);
    }
    serves_still(&mut guest);
}

fn operate(guest: &mut Guest, operation: u8, input: &mut Input<'_>) {
    match operation % 24 {
        0 => {
            let (region, offset) = place(guest, input);
            let data = input.bytes(16);
            let len = clamp(guest.hca.region_len(region), offset, data.len());
            guest.hca.region_write(region, offset, &data[..len]);
        }
        1 => {
            let (region, offset) = place(guest, input);
            let mut out = [0; 16];
            let len = clamp(guest.hca.region_len(region), offset, usize::from(input.byte() % 17));
            guest.hca.region_read(region, offset, &mut out[..len]);
        }
        2 | 3 => command(guest, input),
        4 => {
            let at = u64::from(input.word()) % MEMORY;
            let data = input.bytes(64);
            // Where the guest's memory ends, or was taken back, there is nothing to scribble on.
            let _ = guest.hca.memory().write(Iova::new(at), data);
        }
        5 | 6 => {
            let (qpn, slot, opcode) = (qpn(input), input.byte() % 32, input.byte());
            let wqe = input.bytes(128);
            guest.poke(SQ + u64::from(slot) * 128, wqe);
            let low = (u32::from(slot) * 8) << 8 | u32::from(opcode);
            let high = qpn << 8 | u32::try_from(wqe.len().div_ceil(16)).unwrap_or(0);
            let doorbell = [low.to_le_bytes(), high.to_le_bytes()].concat();
            guest.hca.region_write(Region::Bar(Bar::Bar2), 0x1000, &doorbell);
        }
        7 => guest.post_receive(input.byte() % 32, u32::from(input.half())),
        8 | 9 => {
            let frame = roce_frame(input);
            guest.hca.handle_frame(&frame);
        }
        10 => guest.hca.handle_frame(input.bytes(255)),
        11 => {
            let step = u64::from(input.word()) << (input.byte() % 16);
            guest.now = Instant::from_nanos(guest.now.as_nanos().saturating_add(step));
        }
        12 => {
            let (at, len) = (u64::from(input.word()) % MEMORY, u64::from(input.word()));
            guest.hca.memory().unmap(Iova::new(at), len);
        }
        13 => guest.lend(),
        14 => match input.byte() % 4 {
            0 => guest.hca.reset(),
            1 => guest.hca.disconnect(),
            // A function level reset, then what a driver does first.
            2 => guest.hca.region_write(Region::Config, 0x69, &[0x80]),
            _ => guest.bring_up(),
        },
        15 => {
            let vector = usize::from(input.byte() % 65);
            let fd = eventfd(0, EventfdFlags::CLOEXEC).ok();
            match input.byte() % 4 {
                0 => guest.hca.interrupts().set_eventfd(vector, fd),
                1 => guest.hca.interrupts().set_masked(vector, true),
                2 => guest.hca.interrupts().trigger(vector),
                _ => guest.hca.region_write(Region::Config, 0x52, &[0, 0x80]),
            }
        }
        16 | 17 => doorbell(guest, input),
        18 => {
            let queue = u32::from(input.byte());
            let offset = if input.byte() < 128 { 0x10 } else { 0x20 };
            guest.hca.region_write(Region::Bar(Bar::Bar2), offset, &queue.to_le_bytes());
        }
        19 => guest.hca.set_link(input.byte() < 192),
        20 => look(guest, input),
        21 => {
            const OPCODES: [u8; 8] = [0x0a, 0x0b, 0x08, 0x09, 0x10, 0x11, 0x12, 0x00];
            let opcode = OPCODES[usize::from(input.byte() % 8)];
            let (qpn, slot, link) = (qpn(input), input.byte() % 32, input.byte());
            let (len, flags) = (u32::from(input.half()), input.byte());
            let wqe = guest::wqe(opcode, qpn, link, len, flags);
            guest.poke(SQ + u64::from(slot) * 128, &wqe);
            let size = u32::try_from(wqe.len() / 16).unwrap_or(0);
            ring(guest, 1, [(u32::from(slot) * 8) << 8 | u32::from(opcode), qpn << 8 | size], 8);
        }
        22 => {
            let frame = response(guest, input);
            guest.hca.handle_frame(&frame);
        }
        _ => guest.now = guest.hca.next_deadline().unwrap_or(guest.now).max(guest.now),
    }
}

/// A send doorbell of any shape.
fn doorbell(guest: &mut Guest, input: &mut Input<'_>) {
    let page = match input.byte() % 4 {
        0 => 0,
        1 => u64::from(input.half()),
        _ => 1,
    };
    let words = [input.word(), qpn(input) << 8 | u32::from(input.byte())];
    ring(guest, page, words, input.byte() % 9);
}

/// Stores the first bytes of a doorbell: all at once, or its words one after the other.
fn ring(guest: &mut Guest, page: u64, words: [u32; 2], len: u8) {
    let at = page * 0x1000;
    if at >= guest.hca.region_len(Region::Bar(Bar::Bar2)) {
        return;
    }
    let bytes = words.map(u32::to_le_bytes).concat();
    if len == 0 {
        guest.hca.region_write(Region::Bar(Bar::Bar2), at, &bytes[..4]);
        guest.hca.region_write(Region::Bar(Bar::Bar2), at + 4, &bytes[4..]);
    } else {
        guest.hca.region_write(Region::Bar(Bar::Bar2), at, &bytes[..usize::from(len)]);
    }
}

/// What an operator asks.
fn look(guest: &mut Guest, input: &mut Input<'_>) {
    const TABLES: [Table; 5] = [Table::Qps, Table::Cqs, Table::Eqs, Table::Mrs, Table::Icm];
    let from = if input.byte() < 128 { 0 } else { u64::from(input.word()) };
    for table in TABLES {
        let _ = guest.hca.snapshot(table, from);
    }
    let _ = guest.hca.frontend_counters();
    guest.hca.flush();
}

/// The peer's answer to about what was sent last.
fn response(guest: &Guest, input: &mut Input<'_>) -> Vec<u8> {
    let (choice, back, qpn) = (input.byte(), i32::from(input.byte().cast_signed() / 32), qpn(input));
    let syndrome = match choice >> 4 {
        0..10 => Syndrome::ACK,
        10 => Syndrome::Nak(NakCode::PsnSequence),
        11 => Syndrome::Nak(NakCode::InvalidRequest),
        12 => Syndrome::Nak(NakCode::RemoteAccess),
        13 => Syndrome::RnrNak { timer: input.byte() % 32 },
        14 => Syndrome::Ack { credits: input.byte() % 32 },
        _ => Syndrome::from_byte(input.byte()),
    };
    let aeth = Aeth { syndrome, msn: protocol::ids::Msn::new(input.byte().into()) };
    // READ responses, ACK, atomic ACK.
    let opcode = Opcode::from_byte([0x11, 0x0d, 0x0e, 0x0f, 0x10, 0x12, 0x11, 0x10][usize::from(choice % 8)]);
    let ext = match opcode.to_byte() {
        0x0e => Ext::None,
        0x12 => Ext::AtomicAck(aeth, 7),
        _ => Ext::Aeth(aeth),
    };
    let len = match opcode.to_byte() {
        0x11 | 0x12 => 0,
        0x0d | 0x0e => 256,
        _ => usize::from(input.byte()),
    };
    let bth = Bth {
        opcode,
        solicited: false,
        mig_req: true,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qp: Qpn::new(qpn),
        ack_req: false,
        psn: Psn::new(guest.sent.get().wrapping_add_signed(back)),
    };
    let mut frame = Vec::new();
    FrameWriter::new(&mut frame, &guest::headers(false), &bth, &ext, len).finish();
    frame
}

/// A byte of a region.
fn place(guest: &Guest, input: &mut Input<'_>) -> (Region, u64) {
    let region = match input.byte() % 3 {
        0 => Region::Bar(Bar::Bar0),
        1 => Region::Bar(Bar::Bar2),
        _ => Region::Config,
    };
    (region, u64::from(input.word()) % guest.hca.region_len(region))
}

fn clamp(region_len: u64, offset: u64, len: usize) -> usize {
    len.min(usize::try_from(region_len - offset).unwrap_or(len))
}

/// One of the guest's QPs, or any.
fn qpn(input: &mut Input<'_>) -> u32 {
    match input.byte() % 8 {
        choice @ 0..5 => 5 + u32::from(choice % 3),
        _ => input.word() & 0xff_ffff,
    }
}

/// A command with the mailbox of a well-behaved guest, of which some bytes are changed.
fn command(guest: &mut Guest, input: &mut Input<'_>) {
    let op = COMMANDS[usize::from(input.byte()) % COMMANDS.len()];
    let op_modifier = input.byte() % 8;
    let in_modifier = match input.byte() % 4 {
        0 => input.word(),
        1 => qpn(input),
        _ => u32::from(input.byte() % 16),
    };
    let mut inbox = guest::mailbox(op, in_modifier);
    for _ in 0..input.byte() % 4 {
        let at = usize::from(input.byte());
        if let Some(byte) = inbox.get_mut(at) {
            *byte = input.byte();
        }
    }
    guest.command(op, op_modifier, in_modifier, &inbox);
}

/// A frame to this port with a right ICRC, from the peer or from the port itself.
fn roce_frame(input: &mut Input<'_>) -> Vec<u8> {
    let opcode = match input.byte() {
        // RC operations that exist.
        byte @ 0..192 => Opcode::from_byte(byte % 24),
        byte => Opcode::from_byte(byte.wrapping_mul(7)),
    };
    let flags = input.byte();
    let near = i32::from(input.byte().cast_signed() / 16);
    let bth = Bth {
        opcode,
        solicited: flags & 1 != 0,
        mig_req: flags & 2 != 0,
        pkey: Pkey::DEFAULT,
        fecn: flags & 4 != 0,
        becn: flags & 8 != 0,
        dest_qp: Qpn::new(qpn(input)),
        ack_req: flags & 16 != 0,
        psn: Psn::new(PSN.wrapping_add_signed(near)),
    };
    let mut raw = [0; 64];
    let given = input.bytes(64);
    raw[..given.len()].copy_from_slice(given);
    guest::aim(&mut raw, flags);
    let ext = Ext::parse(opcode.ext_kind(), &raw).map_or(Ext::None, |(ext, _)| ext);
    let len = match flags >> 5 {
        0 => 0,
        1..5 => 256,
        5 => 4096,
        _ => usize::from(input.byte()),
    };
    let mut frame = Vec::new();
    FrameWriter::new(&mut frame, &guest::headers(flags & 0x40 != 0), &bth, &ext, len).finish();
    frame
}

fn turns(guest: &mut Guest, most: usize) {
    for _ in 0..most {
        guest.hca.set_now(guest.now);
        if guest.hca.next_deadline().is_some_and(|at| at <= guest.now) {
            guest.hca.handle_deadline();
        }
        let left = guest.hca.drain();
        let mut sent = guest.sent;
        for (_, frame) in guest.hca.outbound().iter() {
            let is_roce = frame.get(36..38) == Some(&4791_u16.to_be_bytes()[..]) && frame[12..14] == [8, 0];
            let packet = RoceFrame::parse(frame);
            assert!(!is_roce || packet.is_ok(), "sent a frame nobody takes: {frame:02x?}");
            sent = packet.map_or(sent, |packet| packet.packet.bth.psn);
        }
        guest.sent = sent;
        guest.hca.outbound().clear();
        if !left.frames && !left.other {
            return;
        }
    }
}

/// A new client with a driver that knows nothing of what was before gets a message across.
fn serves_still(guest: &mut Guest) {
    guest.hca.disconnect();
    guest.hca.set_link(true);
    guest.lend();
    guest.bring_up();
    guest.post_receive(0, 64);
    let wqe = guest::send_wqe();
    guest.poke(SQ, &wqe);
    guest.poke(RQ + 128, &[0; 128]);
    let doorbell = [0x0a_u32.to_le_bytes(), (LOOPED << 8 | 2).to_le_bytes()].concat();
    guest.hca.region_write(Region::Bar(Bar::Bar2), 0x1000, &doorbell);
    turns(guest, 64);
    let syndromes = guest.completions();
    assert_eq!(syndromes, [0, 0], "a receive and a send complete");
}
