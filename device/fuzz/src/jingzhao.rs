//! Fuzzes operations on a JingZhao HCA.

mod guest;

use drivers::Bus as _;
use drivers::jingzhao::{SLOT, doorbell, signalled};
use protocol::hca::jingzhao::cmd::COMMANDS;

use self::guest::{CQ, Guest, LOOPED, RQ, queues};
use super::input::Input;
use super::{OPERATIONS, TURNS};

pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut guest = guest::start(input.half(), input.byte());
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        if !guest.operate(operation % 24, &mut input) {
            operate(&mut guest, operation % 24, &mut input);
        }
        guest.turns(TURNS);
    }
    check_new_client(&mut guest);
}

fn operate(guest: &mut Guest, operation: u8, input: &mut Input<'_>) {
    match operation {
        2 | 3 => command(guest, input),
        5 | 6 => {
            let (qpn, slot, opcode) = (guest.aim.qpn(input), u32::from(input.byte() % 32), input.byte());
            let wqe = input.bytes(128);
            guest.poke(queues(qpn).sq + u64::from(slot * SLOT), wqe);
            let size = u32::try_from(wqe.len().div_ceil(16)).unwrap_or(0);
            guest.ring_doorbell(1, doorbell(qpn, slot, opcode, size));
        }
        7 => {
            let (slot, len) = (u32::from(input.byte() % 32), u32::from(input.half()));
            guest.post_recv(&queues(LOOPED), slot, &guest::data(len));
        }
        14 => {
            let anew = guest.reset_or_disconnect(input);
            if anew {
                guest::bring_up(guest);
            }
        }
        16 | 17 => ring(guest, input),
        18 => {
            let queue = u32::from(input.byte());
            let offset = if input.byte() < 128 { 0x10 } else { 0x20 };
            guest.store(2, offset, &queue.to_le_bytes());
        }
        21 => {
            const OPCODES: [u8; 8] = [0x0a, 0x0b, 0x08, 0x09, 0x10, 0x11, 0x12, 0x00];
            let opcode = OPCODES[usize::from(input.byte() % 8)];
            let (qpn, slot, link) = (guest.aim.qpn(input), input.byte() % 32, input.byte());
            let (len, flags) = (u32::from(input.half()), input.byte());
            let wqe = guest::wqe(opcode, qpn, link, len, flags);
            guest.post_send(&queues(qpn), slot.into(), opcode, &wqe);
        }
        _ => {}
    }
}

/// Rings an arbitrary send doorbell, either with one store or word by word.
fn ring(guest: &mut Guest, input: &mut Input<'_>) {
    let page = match input.byte() % 4 {
        0 => 0,
        1 => u64::from(input.half()),
        _ => 1,
    };
    let at = page * 0x1000;
    let words = [input.word(), guest.aim.qpn(input) << 8 | u32::from(input.byte())];
    let bytes = words.map(u32::to_le_bytes).concat();
    match usize::from(input.byte() % 9) {
        0 => bytes.chunks(4).zip([at, at + 4]).for_each(|(word, at)| guest.store(2, at, word)),
        len => guest.store(2, at, &bytes[..len]),
    }
}

/// Executes a well-behaved guest's command with some bytes of its mailbox changed.
fn command(guest: &mut Guest, input: &mut Input<'_>) {
    let op = COMMANDS[usize::from(input.byte()) % COMMANDS.len()].op;
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
    guest::command(guest, op, op_modifier, in_modifier, &inbox);
}

/// Checks that a new client with a new driver can transfer a message.
fn check_new_client(guest: &mut Guest) {
    guest.hca.disconnect();
    guest.hca.set_link(true);
    guest.map_memory();
    guest::bring_up(guest);
    let queues = queues(LOOPED);
    guest.post_recv(&queues, 0, &guest::data(64));
    guest.poke(RQ + u64::from(SLOT), &[0; SLOT as usize]);
    guest.post_send(&queues, 0, 0x0a, &signalled(&guest::data(16)));
    guest.turns(64);
    assert_eq!(guest.syndromes(CQ), [0, 0], "the receive and the send must complete");
}
