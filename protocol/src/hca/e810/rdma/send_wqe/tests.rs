use super::*;
use crate::hca::e810::rdma::testing::words;

fn fragment(va: u64, key: u32, len: u32) -> Fragment {
    Fragment { va: Va::new(va), key: Lkey::new(key), len }
}

/// Returns the two words of a fragment, with the polarity bit set.
fn fragment_words(va: u64, key: u32, len: u32) -> [u64; 2] {
    [va, 1 << 63 | u64::from(len) << 32 | u64::from(key)]
}

fn connected(bytes: &[u8]) -> Result<Operation, WqeError> {
    Operation::parse(bytes, Service::Connection)
}

fn control(word: u64) -> Control {
    Control::parse(&word.to_le_bytes())
}

const PUBLISHED: [(usize, u64); 3] =
    [(0, 0x55ec_bd10_3000), (8, 0x8000_1000_9132_58d1), (24, 0xc000_0003_0000_0000)];

/// Example "SQ send, 1 SGE" from section 16.3.
#[test]
fn parses_send_example() {
    let bytes: [u8; QUANTUM] = words(&PUBLISHED);
    let control = Control::of(&bytes);
    assert!(control.signaled && control.valid && !control.read_fence && !control.local_fence);
    assert_eq!(control.quanta(), 1);
    let list = Fragments::from_slice(&[fragment(0x55ec_bd10_3000, 0x9132_58d1, 4096)]);
    let send = Operation::Send { imm: None, invalidate: None, solicited: false, data: Data::Fragments(list) };
    assert_eq!(connected(&bytes), Ok(send));
}

/// Example "SQ UD send" from section 16.3.
#[test]
fn parses_datagram_example() {
    let bytes: [u8; QUANTUM] = words(&[(16, 0x0000_0007_1111_1111), (24, 0xc000_0003_0000_0001)]);
    let to = Destination { handle: AhIndex::new(1), qpn: Qpn::new(7), qkey: Qkey::new(0x1111_1111) };
    let data = Data::Fragments(Fragments::new());
    let send = Operation::Datagram { to, imm: None, solicited: false, data };
    assert_eq!(Operation::parse(&bytes, Service::Datagram), Ok(send));
}

/// Example "SQ GSI, 2 SGEs" from section 16.3. An empty third fragment pads the list.
#[test]
fn even_fragment_count_is_padded() {
    let [[a, b], [c, d]] = [fragment_words(0x1000, 1, 16), fragment_words(0x2000, 2, 32)];
    let bytes: [u8; 2 * QUANTUM] =
        words(&[(0, a), (8, b), (24, 0xc000_0083_0000_0003), (32, c), (40, d), (56, 0x8000_0000_0000_0000)]);
    assert_eq!(control(0xc000_0083_0000_0003).quanta(), 2);
    let Ok(Operation::Datagram { data: Data::Fragments(list), .. }) =
        Operation::parse(&bytes, Service::Datagram)
    else {
        panic!("the WQE is not a datagram");
    };
    assert_eq!(list.as_slice(), [fragment(0x1000, 1, 16), fragment(0x2000, 2, 32)]);
}

/// A list has at most 13 fragments. Immediate data occupies an additional entry (section 13.4).
#[test]
fn parses_fragment_lists_of_every_length() {
    for count in 1..=13_usize {
        for imm in [false, true] {
            let total = count + usize::from(imm);
            let dummy = usize::from(total.is_multiple_of(2));
            let mut bytes = [0; MAX_LEN];
            let more = (total + dummy - 1) as u64;
            let word = 1 << 63 | more << 38 | u64::from(imm) << 47 | 3 << 32;
            bytes[24..32].copy_from_slice(&word.to_le_bytes());
            let expected: Vec<_> =
                (0..13).take(count).map(|n| fragment(u64::from(n) << 12, 7, 1 + n)).collect();
            let places = (0..1).filter(|_| !imm).chain((SECOND..).step_by(16));
            for (fragment_words, at) in expected.iter().zip(places) {
                bytes[at..at + 16].copy_from_slice(&fragment_words.emit());
            }
            let quanta = control(word).quanta();
            assert_eq!(quanta, 1 + (total + dummy) / 2, "{count}");
            let Ok(Operation::Send { data: Data::Fragments(list), imm: found, .. }) =
                connected(&bytes[..quanta * QUANTUM])
            else {
                panic!("the WQE is not a SEND");
            };
            assert_eq!((list.to_vec(), found.is_some()), (expected, imm), "{count}");
        }
    }
}

/// Covers all inline lengths, 0 to 101 bytes (section 13.4). The first quantum contains eight bytes of data. In each
/// later quantum, the last byte contains the polarity.
#[test]
fn inline_data_skips_polarity_bytes() {
    for len in 0..=101_usize {
        for imm in [false, true] {
            let sent: Vec<u8> = (1..=101).take(len).collect();
            let mut bytes = [0xee; MAX_LEN];
            for (n, byte) in sent.iter().enumerate() {
                let at = match n.checked_sub(8) {
                    None => 8 + n,
                    Some(n) => 32 + n / 31 * 32 + n % 31,
                };
                bytes[at] = *byte;
            }
            let word = 1 << 63 | 1 << 57 | (len as u64) << 48 | u64::from(imm) << 47 | 3 << 32;
            bytes[24..32].copy_from_slice(&word.to_le_bytes());
            bytes[..4].copy_from_slice(&0x1122_3344_u32.to_le_bytes());
            let quanta = control(word).quanta();
            assert_eq!(quanta, if len <= 8 { 1 } else { 1 + (len - 8).div_ceil(31) });
            let send = Operation::Send {
                imm: imm.then_some(0x1122_3344),
                invalidate: None,
                solicited: false,
                data: Data::Inline(SmallVec::from_slice(&sent)),
            };
            assert_eq!(connected(&bytes[..quanta * QUANTUM]), Ok(send), "{len}");
        }
    }
    // Example "SQ send, inline 64 bytes (3 quanta)" from section 16.3.
    assert_eq!(control(0xc240_0003_0000_0000).quanta(), 3);
}

/// Examples "SQ send-invalidate" and "SQ local invalidate" from section 16.3.
#[test]
fn parses_invalidation_examples() {
    let bytes: [u8; QUANTUM] = words(&[(24, 0xc000_0004_191d_ba94)]);
    let Ok(Operation::Send { invalidate, solicited: false, .. }) = connected(&bytes) else {
        panic!("the WQE is not a SEND");
    };
    assert_eq!(invalidate, Some(Rkey::new(0x191d_ba94)));
    let bytes: [u8; QUANTUM] = words(&[(8, 0x021d_9094), (24, 0xe000_000a_0000_0000)]);
    assert_eq!(connected(&bytes), Ok(Operation::LocalInvalidate(Lkey::new(0x021d_9094))));
    assert!(Control::of(&bytes).local_fence && Control::of(&bytes).signaled);
}

/// Examples "SQ fast register, one page" and "level 1" from section 16.3.
#[test]
fn parses_fast_registration_examples() {
    let one: [u8; QUANTUM] = words(&[
        (0, 0x46eb_1f40),
        (8, 0x46eb_1000),
        (16, 0x0210_0000_0000_0400),
        (24, 0xa02b_0009_8b26_5b69),
    ]);
    let region = FastRegister {
        key: Lkey::new(0x8b26_5b69),
        va: Va::new(0x46eb_1f40),
        len: 0x400,
        pages: FastPages::Contiguous(Iova::new(0x46eb_1000)),
        page_size: 0,
        rights: 0xb,
        virtual_addresses: true,
    };
    assert_eq!(connected(&one), Ok(Operation::FastRegister(region)));
    let list: [u8; QUANTUM] = words(&[
        (0, 0x5ee3_1d94_45ca_8000),
        (8, 0x45ca_8000),
        (16, 0x0108_0000_0010_9000),
        (24, 0xa02b_1009_6517_a8b0),
    ]);
    let region = FastRegister {
        key: Lkey::new(0x6517_a8b0),
        va: Va::new(0x5ee3_1d94_45ca_8000),
        len: 0x10_9000,
        pages: FastPages::List(PbleIndex::new(0x108)),
        ..region
    };
    assert_eq!(connected(&list), Ok(Operation::FastRegister(region)));
    let mut far = list;
    (far[8], far[29]) = (0x12, 0x30);
    let Ok(Operation::FastRegister(FastRegister { pages, .. })) = connected(&far) else { panic!() };
    assert_eq!(pages, FastPages::Lists(PbleIndex::new(0x012_0108)));
}

/// Example "SQ bind window type 1" from section 16.3.
#[test]
fn parses_bind_example() {
    let bytes: [u8; QUANTUM] =
        words(&[(0, 0x0318_d064), (8, 0x011e_be03_513b_af51), (16, 0x00c8), (24, 0xc06c_0008_0000_0000)]);
    let bind = Bind {
        window: Lkey::new(0x513b_af51),
        parent: Lkey::new(0x011e_be03),
        va: Va::new(0x0318_d064),
        len: 0xc8,
        rights: 0xc,
        virtual_addresses: true,
        type1: true,
    };
    assert_eq!(connected(&bytes), Ok(Operation::Bind(bind)));
}

/// Example "SQ write with immediate, 1 SGE" from section 16.3.
#[test]
fn immediate_data_occupies_first_fragment() {
    let [a, b] = fragment_words(0x3000, 5, 64);
    let bytes: [u8; 2 * QUANTUM] = words(&[
        (0, 0xdead_beef),
        (16, 0x7000),
        (24, 1 << 63 | 1 << 47 | 2 << 38 | 0x99),
        (32, a),
        (40, b),
        (56, 1 << 63),
    ]);
    let write = Operation::Write {
        remote: Remote { va: Va::new(0x7000), key: Rkey::new(0x99) },
        imm: Some(0xdead_beef),
        solicited: false,
        data: Data::Fragments(Fragments::from_slice(&[fragment(0x3000, 5, 64)])),
    };
    assert_eq!(connected(&bytes), Ok(write));
}

#[test]
fn read_invalidate_uses_first_fragment_stag() {
    let [a, b] = fragment_words(0x3000, 5, 64);
    for (opcode, expected) in [(opcode::READ, None), (opcode::READ_INVALIDATE, Some(Lkey::new(5)))] {
        let bytes: [u8; QUANTUM] =
            words(&[(0, a), (8, b), (16, 0x7000), (24, 1 << 63 | u64::from(opcode) << 32 | 0x99)]);
        let Ok(Operation::Read { remote, to, invalidate }) = connected(&bytes) else {
            panic!("the WQE is not a READ")
        };
        assert_eq!(remote, Remote { va: Va::new(0x7000), key: Rkey::new(0x99) });
        assert_eq!((to.as_slice(), invalidate), ([fragment(0x3000, 5, 64)].as_slice(), expected));
    }
}

#[test]
fn rejects_unsupported_operations() {
    let with = |word: u64| words::<MAX_LEN>(&[(24, word)]);
    for opcode in [0x02, 0x07, 0x0e, 0x0f, 0x10, 0x3f] {
        assert_eq!(connected(&with(u64::from(opcode) << 32)), Err(WqeError::Opcode(opcode)));
    }
    // Datagram queues support only SEND and NOP.
    for opcode in (0x00..0x3f).filter(|opcode| ![0x03, 0x05, 0x0c].contains(opcode)) {
        let bytes = with(u64::from(opcode) << 32);
        assert_eq!(Operation::parse(&bytes, Service::Datagram), Err(WqeError::Opcode(opcode)));
    }
    let longest = 15 << 38 | 3 << 32;
    assert_eq!(connected(&with(longest)), Err(WqeError::Quanta(9)));
    let inline = 1 << 57 | 255 << 48 | 3 << 32;
    assert_eq!(connected(&with(inline)), Err(WqeError::Quanta(9)));
    let two = &with(1 << 38 | 3 << 32)[..QUANTUM];
    assert_eq!(connected(two), Err(WqeError::Quanta(2)));
    assert_eq!(connected(&with(9 << 32 | 2 << 44)), Err(WqeError::Level));
    assert_eq!(connected(&[]), Err(WqeError::Quanta(0)));
}
