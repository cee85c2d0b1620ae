//! What the fuzz target runs, shared with `device/tests/hostile.rs`.
//!
//! The input is a list of operations on one device: what its guest, its client and its wire may do, well-formed as often
//! as not, since a device refuses most of what is random. Whatever came before, the device must serve a well-behaved
//! guest afterwards.

mod guest;
mod input;

use device::vfio::Bar;
use device::vfio::server::{Device, Region};
use engine::Instant;
use protocol::Psn;
use protocol::ids::{Iova, Pkey, Qpn};
use protocol::roce::{Bth, Ext, FrameWriter, Opcode, RoceFrame};
use rustix::event::{EventfdFlags, eventfd};

use self::guest::{COMMANDS, Guest, LOOPED, MEMORY, PSN, RQ, SQ};
use self::input::Input;

/// Bound: operations of one run.
const OPERATIONS: usize = 512;

/// Turns after one operation. A guest may link work requests in a circle, so there need not be a last one.
const TURNS: usize = 4;

/// Runs an input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut guest = Guest::new();
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        operate(&mut guest, operation, &mut input);
        turns(&mut guest, TURNS);
    }
    serves_still(&mut guest);
}

fn operate(guest: &mut Guest, operation: u8, input: &mut Input<'_>) {
    match operation % 16 {
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
        _ => {
            let vector = usize::from(input.byte() % 65);
            let fd = eventfd(0, EventfdFlags::CLOEXEC).ok();
            match input.byte() % 4 {
                0 => guest.hca.interrupts().set_eventfd(vector, fd),
                1 => guest.hca.interrupts().set_masked(vector, true),
                2 => guest.hca.interrupts().trigger(vector),
                _ => guest.hca.region_write(Region::Config, 0x52, &[0, 0x80]),
            }
        }
    }
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
        for (_, frame) in guest.hca.outbound().iter() {
            let is_roce = frame.get(36..38) == Some(&4791_u16.to_be_bytes()[..]) && frame[12..14] == [8, 0];
            assert!(!is_roce || RoceFrame::parse(frame).is_ok(), "sent a frame nobody takes: {frame:02x?}");
        }
        guest.hca.outbound().clear();
        if !left.frames && !left.other {
            return;
        }
    }
}

/// A new client with a driver that knows nothing of what was before gets a message across.
fn serves_still(guest: &mut Guest) {
    guest.hca.disconnect();
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
