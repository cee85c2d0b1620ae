//! Fuzzes operations on the HCA that `ib_mthca` drives.

mod guest;

use drivers::mthca::{EQ_ARM, EQ_SET_CI};
use drivers::{Bus as _, hcr};
use protocol::hca::mthca::cmd::Op;

use self::guest::{COMMANDS, CQ, DATA, Guest, LOOPED, data, record, rq, sq};
use super::input::Input;
use super::{OPERATIONS, TURNS};

pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut guest = guest::start(input.byte());
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        if !guest.operate(operation % 28, &mut input) {
            operate(&mut guest, operation % 28, &mut input);
        }
        guest.turns(TURNS);
    }
    check_new_client(&mut guest);
}

fn operate(guest: &mut Guest, operation: u8, input: &mut Input<'_>) {
    match operation {
        2 | 3 => command(guest, input),
        5 | 6 => {
            let (qpn, opcode, flags) = (guest.aim.qpn(input), input.byte() & 0x1f, input.byte());
            let wqe = input.bytes(255);
            let doorbell = guest.post_send(&sq(qpn), qpn, opcode, wqe, flags & 1 != 0);
            if flags & 2 == 0 {
                guest::ring(guest, 2, doorbell.emit(), flags & 4 != 0);
            }
        }
        7 | 18 => {
            let qpn = guest.aim.qpn(input);
            guest.post_recv(&rq(qpn), data(input.half().into()));
        }
        14 => {
            let anew = guest.reset_or_disconnect(input);
            if anew {
                guest::bring_up(guest);
            }
        }
        16 => {
            // Ring an arbitrary send doorbell.
            let page = if input.byte() < 192 { 2 } else { u64::from(input.half()) };
            let mut doorbell = [0; 8];
            let given = input.bytes(8);
            doorbell[..given.len()].copy_from_slice(given);
            guest::ring(guest, page, doorbell, input.byte() < 64);
        }
        17 => {
            let (choice, consumer) = (input.byte(), input.word());
            let cqn = if choice < 192 { 1 } else { input.word() & 0xff_ffff };
            let head = u32::from(choice) << 28 | u32::from(choice % 4) << 24 | cqn;
            let consumer = if choice & 8 == 0 { consumer % 64 } else { consumer };
            let doorbell = [head.to_be_bytes(), consumer.to_be_bytes()].concat();
            guest.store(2, 0x2020, &doorbell);
        }
        21 => {
            const OPCODES: [u8; 8] = [0x0a, 0x0b, 0x08, 0x09, 0x10, 0x11, 0x12, 0x00];
            let opcode = OPCODES[usize::from(input.byte() % 8)];
            let qpn = guest.aim.qpn(input);
            let (len, flags) = (u32::from(input.half()), input.byte());
            let wqe = guest::wqe(opcode, qpn, len, flags);
            let doorbell = guest.post_send(&sq(qpn), qpn, opcode, &wqe, flags & 0x40 != 0);
            if flags & 0x80 == 0 {
                guest.ring_doorbell(&doorbell);
            }
        }
        24 => {
            // Write a doorbell record with a valid or an invalid counter.
            let (index, value) = (u32::from(input.byte()), input.word());
            guest.set_record(record(index), if value >> 31 == 0 { value % 64 } else { value });
        }
        25 => {
            let (eqn, choice) = (u64::from(input.byte() % 8), input.byte());
            let value = if choice < 192 { u32::from(choice) } else { input.word() };
            guest.write(EQ_SET_CI + 8 * eqn, value);
            guest.write(EQ_ARM, 1 << eqn);
        }
        26 => {
            // Write the headers and MAD of a management datagram to the data region, for a management WQE to send.
            let dlid = [2, 1, 0xffff, 0xbfff][usize::from(input.byte() % 4)];
            let bytes = guest::management(dlid, input.byte() % 2, input.bytes(255));
            guest.poke(DATA, &bytes);
        }
        _ => guest.hca.fail(),
    }
}

/// Executes a command after changing some bytes of its valid mailbox. The modifiers are valid in only some cases.
fn command(guest: &mut Guest, input: &mut Input<'_>) {
    let code = COMMANDS[usize::from(input.byte()) % COMMANDS.len()];
    let op = Op::from_code(code).unwrap_or(Op::Nop);
    let choice = input.byte();
    let in_modifier = match input.byte() % 8 {
        0 => input.word(),
        1 => guest.aim.qpn(input),
        2 => 1 << 31 | guest::number(op, choice),
        _ => guest::number(op, choice),
    };
    let flags = input.byte();
    let op_modifier = if flags & 0x80 == 0 { choice % 4 } else { flags & 0x7 };
    let mut inbox = guest::mailbox(op, in_modifier);
    for _ in 0..flags % 4 {
        let at = usize::from(input.half()) % inbox.len().max(1);
        if let Some(byte) = inbox.get_mut(at) {
            *byte = input.byte();
        }
    }
    let event = if flags & 0x40 == 0 { 0 } else { hcr::EVENT };
    let word = event | u32::from(op_modifier) << 12 | u32::from(code);
    if matches!(op, Op::MapEq | Op::ArmSrq | Op::UnmapIcm | Op::SetIcmSize) {
        let value = input.word();
        let in_param = match op {
            Op::ArmSrq => u64::from(value % 32),
            Op::UnmapIcm => [0x10_0000, 0x2000, u64::from(value) << 12][usize::from(flags / 4 % 3)],
            _ => u64::from(value),
        };
        guest::execute(guest, in_param, word, in_modifier);
    } else {
        guest::with_inbox(guest, word, in_modifier, &inbox);
    }
}

/// Checks that a new client with a new driver can transfer a message.
fn check_new_client(guest: &mut Guest) {
    guest.hca.disconnect();
    guest.hca.set_link(true);
    guest.map_memory();
    guest::bring_up(guest);
    guest.post_recv(&rq(LOOPED), data(64));
    let doorbell = guest.post_send(&sq(LOOPED), LOOPED, 0x0a, &guest::wqe(0x0a, LOOPED, 16, 8), false);
    guest.ring_doorbell(&doorbell);
    guest.turns(64);
    assert_eq!(guest.syndromes(CQ), [0, 0], "the receive and the send must complete");
}
