//! Operations on a JingZhao.

mod guest;

use device::vfio::Bar;
use device::vfio::server::{Device as _, Region};

use self::guest::{COMMANDS, CQ, Guest, LOOPED, RQ, SQ};
use super::input::Input;
use super::{OPERATIONS, TURNS};

/// Runs an input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut guest = Guest::new(input.half(), input.byte());
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        if !guest.operate(operation % 24, &mut input) {
            operate(&mut guest, operation % 24, &mut input);
        }
        guest.turns(TURNS);
    }
    serves_still(&mut guest);
}

fn operate(guest: &mut Guest, operation: u8, input: &mut Input<'_>) {
    match operation {
        2 | 3 => command(guest, input),
        5 | 6 => {
            let (qpn, slot, opcode) = (guest.aim.qpn(input), input.byte() % 32, input.byte());
            let wqe = input.bytes(128);
            guest.poke(SQ + u64::from(slot) * 128, wqe);
            let low = (u32::from(slot) * 8) << 8 | u32::from(opcode);
            let high = qpn << 8 | u32::try_from(wqe.len().div_ceil(16)).unwrap_or(0);
            let doorbell = [low.to_le_bytes(), high.to_le_bytes()].concat();
            guest.hca.region_write(Region::Bar(Bar::Bar2), 0x1000, &doorbell);
        }
        7 => guest.post_receive(input.byte() % 32, u32::from(input.half())),
        14 => guest.begin_again(input, Guest::bring_up),
        16 | 17 => doorbell(guest, input),
        18 => {
            let queue = u32::from(input.byte());
            let offset = if input.byte() < 128 { 0x10 } else { 0x20 };
            guest.hca.region_write(Region::Bar(Bar::Bar2), offset, &queue.to_le_bytes());
        }
        21 => {
            const OPCODES: [u8; 8] = [0x0a, 0x0b, 0x08, 0x09, 0x10, 0x11, 0x12, 0x00];
            let opcode = OPCODES[usize::from(input.byte() % 8)];
            let (qpn, slot, link) = (guest.aim.qpn(input), input.byte() % 32, input.byte());
            let (len, flags) = (u32::from(input.half()), input.byte());
            let wqe = guest::wqe(opcode, qpn, link, len, flags);
            guest.poke(SQ + u64::from(slot) * 128, &wqe);
            let size = u32::try_from(wqe.len() / 16).unwrap_or(0);
            ring(guest, 1, [(u32::from(slot) * 8) << 8 | u32::from(opcode), qpn << 8 | size], 8);
        }
        _ => {}
    }
}

/// A send doorbell of any shape.
fn doorbell(guest: &mut Guest, input: &mut Input<'_>) {
    let page = match input.byte() % 4 {
        0 => 0,
        1 => u64::from(input.half()),
        _ => 1,
    };
    let words = [input.word(), guest.aim.qpn(input) << 8 | u32::from(input.byte())];
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

/// A command with the mailbox of a well-behaved guest, of which some bytes are changed.
fn command(guest: &mut Guest, input: &mut Input<'_>) {
    let op = COMMANDS[usize::from(input.byte()) % COMMANDS.len()];
    let op_modifier = input.byte() % 8;
    let in_modifier = match input.byte() % 4 {
        0 => input.word(),
        1 => guest.aim.qpn(input),
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
    guest.turns(64);
    let syndromes = guest.completions(CQ);
    assert_eq!(syndromes, [0, 0], "a receive and a send complete");
}
