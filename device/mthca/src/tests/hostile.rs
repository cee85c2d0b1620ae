//! Tests that the device and its peer survive arbitrary memory contents, doorbells and commands from a guest.

use card::frontend::testing::exchange;
use proptest::prelude::*;
use protocol::hca::mthca::doorbell::SendDoorbell;
use protocol::hca::mthca::modify::QpAttributes;
use protocol::ids::Qpn;

use super::user::{CQN, QPN, RC, SRQN, UC, UD, User, qpc};
use super::*;

#[derive(Clone, Debug)]
enum Act {
    /// Overwrites memory at one of the [`PLACES`], which the device reads.
    Poke { place: usize, offset: u64, bytes: Vec<u8> },
    /// Stores to a UAR page.
    Store { offset: u64, bytes: Vec<u8> },
    /// Rings the doorbell for WQEs that may not exist.
    Ring { first: u16, count: u8, opcode: u8, size: u8 },
    /// Issues a command with the current contents of the inbox.
    Command { op: usize, op_modifier: u32, in_modifier: u32, immediate: Option<u64> },
    /// Exchanges frames and advances the clock to the next deadline.
    Wait,
}

/// Memory that the device reads: work queues, CQ, SRQ, data, doorbell records, page table, inbox.
const PLACES: [u64; 8] =
    [0x401_0000, 0x400_0000, 0x402_0000, 0x500_0000, ICM + 0x8_0000, ICM + 0xb_f000, MTT_BUS + 0x4000, INBOX];

const COMMANDS: [u32; 32] = [
    0x00d, 0x00f, 0x012, 0x013, 0x014, 0x016, 0x017, 0x019, 0x01a, 0x01b, 0x01c, 0x01d, 0x01e, 0x01f, 0x020,
    0x021, 0x022, 0x023, 0x025, 0x026, 0x027, 0x02c, 0x02d, 0x031, 0x035, 0x036, 0x037, 0x038, 0x040, 0xff9,
    0xffa, 0x008,
];

fn numbers() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(QPN),
        Just(CQN),
        Just(SRQN),
        Just(QPN | 1 << 31),
        Just(0x20),
        Just(0x22),
        0..64u32,
        any::<u32>()
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let bytes = || prop::collection::vec(any::<u8>(), 1..96);
    prop_oneof![
        4 => (0..PLACES.len(), 0..64u64, bytes()).prop_map(|(place, offset, bytes)| {
            Act::Poke { place, offset: offset * 16, bytes }
        }),
        1 => (0..0x3000u64, prop::collection::vec(any::<u8>(), 1..9))
            .prop_map(|(offset, bytes)| Act::Store { offset, bytes }),
        4 => (any::<u16>(), any::<u8>(), 0..32u8, 0..64u8)
            .prop_map(|(first, count, opcode, size)| Act::Ring { first: first % 16, count: count % 12, opcode, size }),
        3 => (0..COMMANDS.len(), 0..4u32, numbers(), prop::option::of(0..0x10_0000u64))
            .prop_map(|(op, op_modifier, in_modifier, immediate)| Act::Command { op, op_modifier, in_modifier, immediate }),
        2 => Just(Act::Wait),
    ]
}

fn perform(user: &mut User, peer: &mut User, act: Act) {
    match act {
        Act::Poke { place, offset, bytes } => user.poke(PLACES[place] + offset, &bytes),
        Act::Store { offset, bytes } => user.store(Bar::Bar2, offset, &bytes),
        Act::Ring { first, count, opcode, size } => {
            user.ring_doorbell(&SendDoorbell {
                count,
                first,
                fence: false,
                opcode,
                qpn: Qpn::new(QPN),
                size,
            });
        }
        Act::Command { op, op_modifier, in_modifier, immediate } => {
            user.command(COMMANDS[op] | op_modifier << 12, immediate.unwrap_or(INBOX), in_modifier);
        }
        Act::Wait => {
            exchange(user, peer);
            for side in [user, peer] {
                let Some(deadline) = side.hca.next_deadline() else { continue };
                side.advance(deadline);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn hostile_guest_does_not_stop_device(
        kind in prop::sample::select(vec![RC, UC, UD]),
        shared in any::<bool>(),
        strict in any::<bool>(),
        acts in prop::collection::vec(act(), 1..80),
    ) {
        let (mut user, mut peer) = (User::new(1), User::new(2));
        user.hca.set_strict(strict);
        let mut context = qpc(kind, 2);
        context.responder.set_srq(shared);
        user.connect(&context);
        peer.connect(&qpc(kind, 1));
        user.poke(INBOX, &modify(QpAttributes::all(), &context));
        for act in acts {
            perform(&mut user, &mut peer, act);
        }
        // Commands must still complete. The hostile guest can at most make the peer's requests fail.
        prop_assert_eq!(user.command(0x031, 0, 0x1f).0, 0);
        prop_assert_eq!(peer.command(0x031, 0, 0x1f).0, 0);
        prop_assert!(matches!(peer.query().state, 3 | 4 | 6));
    }
}
