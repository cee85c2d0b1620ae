//! Invalid driver operations. Devices reject most random operations, so about half of the operations in this module are
//! almost valid.

use drivers::Bus as _;
use drivers::e810::{
    AdminCommand, BUFFER, Driver, ENTRIES, LAN_ENTRIES, LAN_RECEIVE_RING, LAN_TRANSMIT_RING, RECEIVE_BUFFERS,
    SEND_RING, STRIDE, TRANSMIT_BUFFERS,
};
use e810::E810;
use protocol::hca::e810::admin::descriptor::{Descriptor, Flags};
use protocol::hca::e810::admin::queue::{AddQueue, DisableGroup, QueueGroup};
use protocol::hca::e810::admin::scheduler::{Element, ElementData, ElementKind, Group, Move, Teid};
use protocol::hca::e810::admin::{Opcode, PARAMETERS_LEN};
use protocol::hca::e810::regs::Register;
use protocol::hca::e810::ring_address::RingAddress;
use protocol::hca::e810::rx_context::RxContext;
use protocol::hca::e810::tx_context::TxContext;
use protocol::ids::{Iova, MacAddr};

use super::super::input::Input;
use super::super::machine::{MEMORY, Machine};
use super::{ATTACKER, EXPERIMENTAL, NEIGHBOUR, PAGE, SEALED};

type Guest = Driver<Machine<E810>>;

/// Scheduler element above the leaf of the default tree.
const PARENT: Teid = Teid::new(8);

pub(super) fn operate(guest: &mut Guest, operation: u8, input: &mut Input<'_>) {
    match operation {
        2 | 3 | 24 | 32..36 => command(guest, input),
        5 | 6 | 36..40 => descriptors(guest, input),
        7 => receive_queue(guest, input),
        14 => {
            if guest.reset_or_disconnect(input) || input.byte() < 128 {
                guest.bring_up(ATTACKER);
            }
        }
        16 | 40..44 => frame(guest, input),
        17 => {
            let (register, width) = (register(input), 1 + usize::from(input.byte() % 8));
            let bytes = value(input).to_le_bytes();
            let at = u64::from(register.offset()) + u64::from(input.byte() / 240);
            guest.store(0, at, bytes.repeat(2).get(..width).unwrap_or_default());
        }
        18 => load(guest, input),
        21 | 44..48 => arrive(guest, input),
        25 => admin_descriptors(guest, input),
        26 => admin_ring(guest, input),
        27 => {
            // The queue may already be enabled.
            let queue = queue(input);
            let ring = address(input, LAN_TRANSMIT_RING);
            match input.byte() % 4 {
                0 => reopen(guest),
                1 => add_transmit(guest, queue, ring, input.half() % 0x2000),
                _ => add_transmit(guest, queue, ring, LAN_ENTRIES),
            }
        }
        28 => many(guest, input),
        29 => {
            let entry = u64::from(input.byte()) % u64::from(LAN_ENTRIES);
            let buffers = [address(input, RECEIVE_BUFFERS), address(input, 0)];
            guest.poke(LAN_RECEIVE_RING + entry * 32, buffers.map(u64::to_le_bytes).as_flattened());
        }
        30 => guest.hca.fail(),
        _ => guest.hca.set_link(true),
    }
}

/// Executes a command with parameters and a buffer that are usually valid except for a few changed bytes.
fn command(guest: &mut Guest, input: &mut Input<'_>) {
    let choice = usize::from(input.byte());
    let code = Opcode::ALL.get(choice % (Opcode::ALL.len() + 8)).map_or_else(|| input.half(), |op| op.code());
    let (mut parameters, mut buffer) = match Opcode::from_code(code) {
        Some(opcode) => sensible(opcode, input),
        None => random(input),
    };
    let flags = input.byte();
    for _ in 0..flags % 4 {
        let (at, byte) = (usize::from(input.half()) % (PARAMETERS_LEN + buffer.len()), input.byte());
        match parameters.get_mut(at) {
            Some(parameter) => *parameter = byte,
            None => buffer[at - PARAMETERS_LEN] = byte,
        }
    }
    if flags & 0xc == 0 {
        buffer.truncate(input.byte().into());
    }
    let flags = match flags >> 4 {
        0 => Flags::from_bits_retain(input.half()),
        1..6 => Flags::BUFFER,
        _ => Flags::BUFFER | Flags::READ,
    };
    guest.issue(&AdminCommand { opcode: code, parameters, flags, buffer });
}

/// Executes a command whose buffer contains a list.
fn list(guest: &mut Guest, opcode: Opcode, count: u8, buffer: &[u8]) {
    let mut parameters = [0; PARAMETERS_LEN];
    parameters[0] = count;
    guest.issue(&AdminCommand::with_input(opcode, parameters, buffer));
}

fn add_transmit(guest: &mut Guest, queue: u16, ring: u64, ring_len: u16) {
    let context = TxContext {
        ring: RingAddress::new(Iova::new(ring)),
        vsi: guest.interface.vsi,
        ring_len,
        segmentation: true,
        ..TxContext::default()
    };
    let record = AddQueue { queue, teid: Teid::NONE, context, element: ElementData::default() };
    let group = QueueGroup { parent: PARENT, count: 1 };
    list(guest, Opcode::AddTxQueues, 1, &[&group.emit()[..], &record.emit()].concat());
}

/// Reopens queues that the device has stopped.
fn reopen(guest: &mut Guest) {
    let group = DisableGroup { parent: PARENT, count: 1 };
    let mut parameters = [0; PARAMETERS_LEN];
    parameters[1] = 1;
    for queue in 0..2_u16 {
        guest.write(Register::QrxCtrl(queue), 0);
        let ids = [&group.emit()[..], &queue.to_le_bytes()].concat();
        guest.issue(&AdminCommand::with_input(Opcode::DisableTxQueues, parameters, &ids));
    }
    guest.open_queues();
}

/// Returns valid parameters and a valid buffer for a command. They may refer to objects that do not exist.
fn sensible(opcode: Opcode, input: &mut Input<'_>) -> ([u8; PARAMETERS_LEN], Vec<u8>) {
    let mut parameters = [0; PARAMETERS_LEN];
    let mut count = u16::from(input.byte() % 6);
    let buffer = match opcode {
        Opcode::AddVsi | Opcode::UpdateVsi | Opcode::FreeVsi => {
            let [low, high] = (0x8000 | small(input)).to_le_bytes();
            parameters = [low, high, input.byte(), 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            let mut context = vec![0; 128];
            let given = input.bytes(128);
            context[..given.len()].copy_from_slice(given);
            return (parameters, context);
        }
        Opcode::AllocateResources | Opcode::FreeResources => {
            const KINDS: [u8; 10] = [0x03, 0x04, 0x21, 0x22, 0x23, 0x58, 0x59, 0x60, 0x61, 0x00];
            let header = [KINDS[usize::from(input.byte() % 10)], 0, count.to_le_bytes()[0], 0];
            count = 1;
            [&header[..], &numbers(input, 12)].concat()
        }
        Opcode::AddRules | Opcode::UpdateRules | Opcode::RemoveRules => {
            (0..count).flat_map(|_| rule(input)).collect()
        }
        Opcode::AddElements => {
            let parent = Teid::new(u32::from(input.byte()) % 40);
            let data = ElementData { kind: ElementKind::Generic, ..ElementData::default() };
            let element = Element { parent, teid: Teid::new(0), data }.emit();
            let group = Group { parent, count: u16::from(input.byte() % 10) };
            [group.emit().to_vec(), element.repeat(group.count.into())].concat()
        }
        Opcode::ConfigureElements | Opcode::GetElements => {
            let kind = ElementKind::from(input.byte() % 8);
            let data = ElementData { kind, committed_valid: true, ..ElementData::default() };
            let teid = Teid::new(u32::from(input.byte()) % 40);
            Element { parent: Teid::new(0), teid, data }.emit().repeat(count.into())
        }
        Opcode::MoveElements => {
            let [source, destination] = [input.byte(), input.byte()].map(|teid| Teid::new(teid.into()));
            [&Move { source, destination, count: 2 }.emit()[..], &teids(input, 2)].concat()
        }
        Opcode::DeleteElements => {
            let group = Group { parent: Teid::new(u32::from(input.byte()) % 40), count: 2 };
            [&group.emit()[..], &teids(input, 2)].concat()
        }
        Opcode::SuspendElements | Opcode::ResumeElements => teids(input, count),
        Opcode::AddRateProfiles | Opcode::RemoveRateProfiles => {
            let mut profile = vec![0; 32 * usize::from(count)];
            profile.iter_mut().step_by(3).for_each(|byte| *byte = input.byte() % 10);
            profile
        }
        Opcode::AddTxQueues | Opcode::AddRdmaQueueSet => {
            let parent = if input.byte() < 192 { PARENT.get() } else { u32::from(input.byte()) };
            let header = [&parent.to_le_bytes()[..], &[count.to_le_bytes()[0], 0, 0, 0]].concat();
            let len = if opcode == Opcode::AddTxQueues { 48 } else { 24 };
            let records = (0..count).flat_map(|_| {
                let mut record = vec![0; len];
                record[..2].copy_from_slice(&small(input).to_le_bytes());
                let given = input.bytes(40);
                record[8..].iter_mut().zip(given).for_each(|(to, from)| *to = *from);
                record
            });
            let records: Vec<u8> = records.collect();
            count = 1;
            [header, records].concat()
        }
        Opcode::DisableTxQueues => {
            let ids = numbers(input, count);
            let header = [8, 0, 0, 0, count.to_le_bytes()[0], 0];
            parameters[0] = input.byte();
            parameters[1] = 1;
            return (parameters, [&header[..], &ids].concat());
        }
        Opcode::SetRssKey | Opcode::GetRssKey | Opcode::SetRssTable | Opcode::GetRssTable => {
            let [low, high] = (0x8000 | small(input)).to_le_bytes();
            parameters[..3].copy_from_slice(&[low, high, input.byte()]);
            let len = [52, 64, 512, 2048][usize::from(input.byte() % 4)];
            let seed = input.byte();
            return (parameters, (0..len).map(|at: u16| at.to_le_bytes()[0].wrapping_mul(seed)).collect());
        }
        _ => return random(input),
    };
    parameters[..2].copy_from_slice(&count.to_le_bytes());
    (parameters, buffer)
}

fn random(input: &mut Input<'_>) -> ([u8; PARAMETERS_LEN], Vec<u8>) {
    let mut parameters = [0; PARAMETERS_LEN];
    let given = input.bytes(16);
    parameters[..given.len()].copy_from_slice(given);
    let content = input.bytes(64);
    let len = usize::from(input.half()) % 4097;
    (parameters, content.iter().copied().cycle().take(if content.is_empty() { 0 } else { len }).collect())
}

fn rule(input: &mut Input<'_>) -> Vec<u8> {
    let kind = input.byte() % 8;
    let (number, count) = (small(input), u16::from(input.byte() % 5));
    if kind >= 2 {
        let words = if kind == 2 { numbers(input, 2 * count) } else { numbers(input, count) };
        let header = [u16::from(kind), 0, number, count].map(u16::to_le_bytes);
        return [header.as_flattened(), &words].concat();
    }
    let recipe = input.byte() % 11;
    let action = match input.byte() % 4 {
        0 => input.word(),
        // Forward to a VSI or to a VSI list, or prune by a VSI or a prune list.
        1 => 0x2_000c | u32::from(small(input)) << 4,
        2 => 0x2_4008 | u32::from(small(input)) << 4,
        _ => 0x1_8002 | u32::from(input.byte() & 1) << 14 | u32::from(small(input)) << 4,
    };
    let source = if kind == 0 { 0 } else { number };
    let mut bytes = lookup(kind, recipe, source, action, mac(input), tci(input));
    bytes[12..14].copy_from_slice(&small(input).to_le_bytes());
    bytes
}

/// Returns a lookup rule whose packet header has the given destination MAC address and VLAN tag.
fn lookup(kind: u8, recipe: u8, source: u16, action: u32, mac: MacAddr, tci: u16) -> Vec<u8> {
    let [low, high] = source.to_le_bytes();
    [
        &[kind, 0, 0, 0, recipe, 0, low, high][..],
        &action.to_le_bytes(),
        &[0, 0, 16, 0],
        &mac.0,
        &[2, 0, 0, 0, 0, 0, 0x81, 0],
        &tci.to_be_bytes(),
    ]
    .concat()
}

/// Creates many objects of one kind.
fn many(guest: &mut Guest, input: &mut Input<'_>) {
    const COMMANDS: u8 = 12;
    let (kind, seed) = (input.byte() % 5, input.byte());
    for nth in 0..COMMANDS {
        match kind {
            0 => {
                let mut parameters = [0; PARAMETERS_LEN];
                parameters[6] = 2;
                guest.issue(&AdminCommand::with_input(Opcode::AddVsi, parameters, &[seed; 128]));
            }
            1 => {
                let rules: Vec<u8> = (0..100)
                    .flat_map(|rule| {
                        let mac = MacAddr([2, 0, 0, seed, nth, rule]);
                        lookup(
                            1,
                            1,
                            guest.interface.vsi,
                            0x2_0004 | u32::from(guest.interface.vsi) << 4,
                            mac,
                            0,
                        )
                    })
                    .collect();
                list(guest, Opcode::AddRules, 100, &rules);
            }
            2 => {
                let parent = Teid::new(u32::from(seed) + u32::from(nth));
                let data = ElementData { kind: ElementKind::Generic, ..ElementData::default() };
                let element = Element { parent, teid: Teid::new(0), data }.emit();
                let group = Group { parent, count: 8 }.emit();
                list(guest, Opcode::AddElements, 1, &[&group[..], &element.repeat(8)].concat());
            }
            3 => {
                // Add a queue set and delete its leaf.
                let parent = PARENT.get().to_le_bytes();
                let set = [&parent[..], &[1, 0, 0, 0], &[nth, seed], &[0; 22]].concat();
                list(guest, Opcode::AddRdmaQueueSet, 1, &set);
                let answer = guest.peek(BUFFER, 16);
                let leaf = answer.get(12..).unwrap_or_default();
                list(guest, Opcode::DeleteElements, 1, &[&parent[..], &[1, 0, 0, 0], leaf].concat());
            }
            _ => {
                let header = [3 + (seed & 1), 0, 100, 0];
                list(guest, Opcode::AllocateResources, 1, &[&header[..], &[0; 200]].concat());
            }
        }
    }
}

/// Posts several admin descriptors, whose buffers may be anywhere, with a single write to the tail.
fn admin_descriptors(guest: &mut Guest, input: &mut Input<'_>) {
    let entries = u32::from(ENTRIES);
    let mut tail = guest.read(Register::PfFwAtqt) % entries;
    for _ in 0..=input.byte() % 8 {
        let mut bytes = [0; Descriptor::LEN];
        let given = input.bytes(32);
        bytes[..given.len()].copy_from_slice(given);
        if input.byte() < 192 {
            let opcode = Opcode::ALL[usize::from(input.byte()) % Opcode::ALL.len()];
            bytes[2..4].copy_from_slice(&opcode.code().to_le_bytes());
            let [low, high] = [address(input, BUFFER), address(input, BUFFER) >> 32].map(u64::to_le_bytes);
            bytes[24..28].copy_from_slice(&high[..4]);
            bytes[28..].copy_from_slice(&low[..4]);
        }
        guest.poke(SEND_RING + u64::from(tail) * Descriptor::LEN as u64, &bytes);
        tail = (tail + 1) % entries;
    }
    guest.write(Register::PfFwAtqt, if input.byte() < 224 { tail } else { value(input) });
    // The driver's copy of the tail is now out of date, so start again with empty rings.
    guest.open_admin_queue();
}

/// Writes to a register of an admin queue ring or a mailbox ring.
fn admin_ring(guest: &mut Guest, input: &mut Input<'_>) {
    use Register as R;
    const REGISTERS: [Register; 20] = [
        R::PfFwAtqbal,
        R::PfFwAtqbah,
        R::PfFwAtqlen,
        R::PfFwAtqh,
        R::PfFwAtqt, //
        R::PfFwArqbal,
        R::PfFwArqbah,
        R::PfFwArqlen,
        R::PfFwArqh,
        R::PfFwArqt, //
        R::PfMbxAtqbal,
        R::PfMbxAtqbah,
        R::PfMbxAtqlen,
        R::PfMbxAtqh,
        R::PfMbxAtqt, //
        R::PfMbxArqbal,
        R::PfMbxArqbah,
        R::PfMbxArqlen,
        R::PfMbxArqh,
        R::PfMbxArqt,
    ];
    let register = REGISTERS[usize::from(input.byte()) % REGISTERS.len()];
    let value = match input.byte() % 4 {
        0 => value(input),
        1 => 1 << 31 | u32::from(input.half() % 1024),
        2 => u32::from(input.byte()),
        _ => address(input, SEND_RING) as u32,
    };
    guest.write(register, value);
    if input.byte() < 128 {
        guest.open_admin_queue();
    }
}

/// Writes descriptors to a transmit ring and rings the doorbell.
fn descriptors(guest: &mut Guest, input: &mut Input<'_>) {
    for _ in 0..=input.byte() % 16 {
        let choice = input.byte();
        let (low, high) = (u64::from(input.word()), u64::from(input.word()));
        let word = high << 32 | low;
        let at = address(input, 0);
        let buffer = TRANSMIT_BUFFERS + u64::from(guest.interface.transmit_next) * STRIDE;
        let [first, second] = match choice % 8 {
            // A descriptor of any type, including undefined ones.
            0 => [at, word],
            // A context descriptor: segmentation, tags, tunnels.
            1 => [word, word & !0xf | 1],
            2 => [0, 1 << 4 | 1 | ((word % 20_000) << 30) | (((word >> 32) % 10_000) << 50)],
            3 => [at, 8],
            // A data descriptor whose buffer is in valid or invalid memory.
            4 => [buffer, word & !0xf],
            5 => [at, 0b11 << 4 | (word % 0x4000) << 34],
            6 => [buffer, u64::from(choice >> 4 & 1) << 4 | 1 << 5 | (word % 0x4000) << 34],
            _ => [buffer, 0b11 << 4 | (64 + word % 1500) << 34],
        };
        guest.put_descriptor(first, second);
    }
    match input.byte() % 8 {
        0 => guest.write(Register::QtxCommDbell(queue(input)), value(input)),
        1 => guest.write(Register::QtxCommDbell(queue(input)), u32::from(input.byte() % 64)),
        _ => guest.ring_doorbell(),
    }
}

/// Sends a frame with the tags, checksums and segmentation that a driver would request, but with some bits changed.
fn frame(guest: &mut Guest, input: &mut Input<'_>) {
    if input.byte() < 96 {
        reopen(guest);
    }
    let bytes = packet(input, NEIGHBOUR);
    let flags = input.byte();
    let len = bytes.len() as u64;
    // Ethernet, IP and TCP headers of 14, 20 and 20 bytes.
    let mut word = 7 << 16 | 5 << 23 | 5 << 30;
    word |= u64::from(flags & 1) << 7 | u64::from(flags >> 1 & 3) << 9 | u64::from(flags >> 3 & 3) << 12;
    word |= u64::from(tci(input)) << 48;
    if flags & 0x20 != 0 {
        let (mss, payload) = (u64::from(input.half() % 0x4000), len.saturating_sub(54));
        let wrong = u64::from(input.byte() / 224);
        let destination = u64::from(input.byte() / 64) << 8;
        guest.put_descriptor(0, 1 | 1 << 4 | destination | (payload + wrong) << 30 | mss << 50);
    }
    if flags & 0xc0 == 0xc0 {
        word ^= 1 << (input.byte() % 64);
    }
    guest.send(&bytes, word);
}

/// Delivers a frame of any length from the fabric.
fn arrive(guest: &mut Guest, input: &mut Input<'_>) {
    let mut frame = packet(input, ATTACKER);
    match input.byte() % 8 {
        0 => frame.truncate(input.byte().into()),
        1 => frame.resize(usize::from(input.half()) % 11_000, 0x55),
        2 => frame.resize(9720 + usize::from(input.byte() % 32), 0x55),
        3 => frame.clear(),
        _ => {}
    }
    guest.hca.handle_frame(&frame);
}

/// Returns an Ethernet frame whose tags, IP header and transport header are usually valid.
fn packet(input: &mut Input<'_>, to: MacAddr) -> Vec<u8> {
    let to = if input.byte() < 160 { to } else { mac(input) };
    let mut frame = [&to.0[..], &mac(input).0].concat();
    for _ in 0..input.byte() / 100 {
        let kind = if input.byte() < 192 { [0x81, 0] } else { [0x88, 0xa8] };
        frame.extend([kind, tci(input).to_be_bytes()].as_flattened());
    }
    let content = input.bytes(128);
    let payload = content.iter().copied().cycle().take(if content.is_empty() {
        0
    } else {
        usize::from(input.half()) % 3000
    });
    match input.byte() % 4 {
        0 => frame.extend(EXPERIMENTAL.into_iter().chain(payload)),
        1 => frame.extend(payload),
        choice => {
            let protocol = [6, 17, 132, 1, 58, 47][usize::from(input.byte() % 6)];
            let payload: Vec<u8> = payload.collect();
            let [high, low] = u16::try_from(payload.len() + 40).unwrap_or(u16::MAX).to_be_bytes();
            if choice == 2 {
                let length = input.byte();
                let version = if length < 16 { length } else { 0x45 };
                frame.extend([8, 0, version, 0, high, low, 0, 1, 0x40, 0, 64, protocol, 0, 0]);
                frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            } else {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, high, low, protocol, 64]);
                frame.extend([0xfe; 32]);
            }
            frame.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x18, 0, 0, 0, 0, 0, 0]);
            frame.extend(payload);
        }
    }
    frame
}

/// Writes a receive queue's context, tail or control register.
fn receive_queue(guest: &mut Guest, input: &mut Input<'_>) {
    let queue = queue(input) % 2048;
    match input.byte() % 6 {
        0 => guest.write(Register::QrxCtrl(queue), input.word() & 7),
        1 => guest.write(Register::QrxTail(queue), value(input)),
        2 => guest.write(Register::QrxContext(u16::from(input.byte() % 8), queue), input.word()),
        3 => guest.write(Register::QrxCtrl(queue), 0),
        _ => {
            let [split, options] = [input.byte(), input.byte()];
            let context = RxContext {
                head: if options & 1 == 0 { 0 } else { input.half() & 0x1fff },
                ring: RingAddress::new(Iova::new(address(input, LAN_RECEIVE_RING))),
                ring_len: if options & 2 == 0 { LAN_ENTRIES } else { input.half() & 0x1fff },
                data_units: if options & 4 == 0 { 16 } else { input.byte() & 0x7f },
                header_units: input.byte() & 0x1f,
                split: split.into(),
                long_descriptors: true,
                strip_crc: options & 8 == 0,
                tag_in_first_field: options & 16 == 0,
                split_ethernet: split & 16 == 0,
                split_ip: split & 32 == 0,
                split_tcp_udp: split & 64 == 0,
                split_sctp: split & 128 == 0,
                max_frame: if options & 32 == 0 { 9728 } else { input.half() & 0x3fff },
            };
            guest.write(Register::QrxCtrl(queue), 0);
            for (index, word) in (0..).zip(context.emit().as_chunks().0) {
                guest.write(Register::QrxContext(index, queue), u32::from_le_bytes(*word));
            }
            guest.write(Register::QrxCtrl(queue), 1);
            guest.write(Register::QrxTail(queue), u32::from(input.byte() % 64));
        }
    }
}

/// Reads from a BAR with an access of any width.
fn load(guest: &mut Guest, input: &mut Input<'_>) {
    let at = match input.byte() % 4 {
        0 => u64::from(input.word()) % ((8 << 20) - 8),
        _ => u64::from(register(input).offset()),
    };
    let bar = if input.byte() < 224 { 0 } else { 3 };
    let at = if bar == 0 { at } else { at % 0xfff0 };
    match input.byte() % 6 {
        0 => drop(guest.load::<1>(bar, at)),
        1 => drop(guest.load::<2>(bar, at)),
        2 => drop(guest.load::<3>(bar, at)),
        3 => drop(guest.load::<8>(bar, at)),
        4 => drop(guest.load::<7>(bar, at + 1)),
        _ => drop(guest.load::<4>(bar, at)),
    }
}

/// Returns a device register, possibly an element of a register array.
fn register(input: &mut Input<'_>) -> Register {
    use Register as R;
    let choice = input.byte();
    let number = if input.byte() < 192 { u16::from(input.byte() % 4) } else { input.half() % 2048 };
    match choice % 32 {
        0 => R::GlMdetTxPqm,
        1 => R::PfMdetTxPqm,
        2 => R::GlMdetTxTclan,
        3 => R::GlMdetRx,
        4 => R::PfMdetRx,
        5 => R::PfintOicr,
        6 => R::PfintOicrEna,
        7 => R::PfintOicrCtl,
        8 => R::PfintFwCtl,
        9 => R::PfintMbxCtl,
        10 => R::GlintDynCtl(number),
        11 => R::GlintItr(number % 3, number),
        12 => R::GlintRate(number),
        13 => R::QintTqctl(number),
        14 => R::QintRqctl(number),
        15 => R::QtxCommHead(number),
        16 => R::QtxCommDbell(number),
        17 => R::QrxCtrl(number),
        18 => R::QrxContext(number % 8, number),
        19 => R::QrxTail(number),
        20 => R::GlvGotc(number % 768),
        21 => R::GlvRdpc(number % 768),
        22 => R::GlvTepc(number % 768),
        23 => R::GlprtGorc,
        24 => R::GlprtPxonrxc(number % 8),
        25 => R::GlintVect2func(number),
        26 => R::GlintCeqctl(number),
        27 if choice & 0x80 != 0 => R::PfgenCtrl,
        28 if choice & 0x80 != 0 => R::GlgenRtrig,
        27 | 28 => R::GlgenStat,
        29 => R::GlPreext(number % 3),
        30 => R::PfpmWufc,
        _ => R::PfFwAtqt,
    }
}

/// Returns a boundary value or a random one.
fn value(input: &mut Input<'_>) -> u32 {
    match input.byte() % 8 {
        0 => 0,
        1 => u32::from(ENTRIES) - 1,
        2 => LAN_ENTRIES.into(),
        3 => u32::MAX,
        4 => u32::from(input.half()),
        5 => 1 << 30 | u32::from(input.byte()),
        6 => u32::from(input.byte()),
        _ => input.word(),
    }
}

/// Returns a bus address: usually the correct one, but possibly one near the end of memory, near the end of the address
/// space, in the sealed page, or anywhere.
fn address(input: &mut Input<'_>, right: u64) -> u64 {
    match input.byte() {
        0..192 => right,
        192..200 => MEMORY - u64::from(input.byte()),
        200..208 => SEALED + u64::from(input.byte()) * 8,
        208..212 => SEALED + PAGE - u64::from(input.byte()),
        212..220 => u64::MAX - u64::from(input.byte()),
        220..236 => u64::from(input.word()) % MEMORY,
        _ => u64::from(input.word()) << 32 | u64::from(input.word()),
    }
}

/// Returns the number of a VSI, rule, list or queue. About half of these numbers are in use.
fn small(input: &mut Input<'_>) -> u16 {
    match input.byte() {
        byte @ 0..224 => u16::from(byte % 8),
        _ => input.half(),
    }
}

/// Returns queue number 0 or 1 or, less often, an arbitrary number.
fn queue(input: &mut Input<'_>) -> u16 {
    if input.byte() < 192 { u16::from(input.byte() % 2) } else { input.half() }
}

fn numbers(input: &mut Input<'_>, count: u16) -> Vec<u8> {
    (0..count).flat_map(|_| small(input).to_le_bytes()).collect()
}

fn teids(input: &mut Input<'_>, count: u16) -> Vec<u8> {
    (0..count).flat_map(|_| (u32::from(input.byte()) % 40).to_le_bytes()).collect()
}

/// Returns the MAC address of a station or a group, or an unknown address.
fn mac(input: &mut Input<'_>) -> MacAddr {
    match input.byte() % 8 {
        0..3 => ATTACKER,
        3 => NEIGHBOUR,
        4 => MacAddr::BROADCAST,
        5 => MacAddr([0x33, 0x33, 0, 0, 0, input.byte() % 4]),
        6 => MacAddr([2, 0, 0, 0, 0, input.byte()]),
        _ => MacAddr::default(),
    }
}

/// Returns the VLAN and priority of a tag. Only a few VLANs are used, so that rules match.
fn tci(input: &mut Input<'_>) -> u16 {
    u16::from(input.byte()) << 8 | u16::from(input.byte() % 4)
}
