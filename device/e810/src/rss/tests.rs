use protocol::hca::e810::admin::AdminStatus;
use protocol::hca::e810::admin::vsi::{ClassQueues, VsiContext, VsiParameters};
use protocol::net::layers::{Addresses, Ports, Transport};

use super::*;

/// Key of the Microsoft RSS verification suite, extended to 52 bytes.
const KEY: [u8; KEY_LEN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
];

/// Expected hash of the addresses in the first row of the suite: from 66.9.149.187 port 2794 to
/// 161.142.100.80 port 1766.
const OF_ADDRESSES: u32 = 0x323e_8fc2;
/// Expected hash of the addresses and ports in the same row.
const WITH_PORTS: u32 = 0x51cc_c178;

fn frame(protocol: u8, more_fragments: bool) -> Layers {
    let fragment = if more_fragments { 0x20 } else { 0 };
    let header = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0, // Ethernet
        0x45, 0, 0, 40, 0, 0, fragment, 0, 64, protocol, 0, 0, 66, 9, 149, 187, 161, 142, 100,
        80, // IPv4
    ];
    let [ports @ .., _, _] = [2794_u16.to_be_bytes(), 1766_u16.to_be_bytes(), [0; 2], [0; 2]];
    Layers::parse(&[&header[..], ports.as_flattened(), &[0; 16]].concat()).unwrap()
}

fn arp() -> Layers {
    Layers::parse(&[&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 0x08, 0x06], &[0; 46]].concat()).unwrap()
}

/// Creates VSI 1 with queues 8 to 15.
fn vsis(table: TableKind) -> Vsis {
    let mut context = VsiContext::default();
    context.queues.mapping[..2].copy_from_slice(&[8, 8]);
    context.queues.classes[0] = ClassQueues { first: 0, log2_count: 3 };
    context.options.table = table;
    let mut vsis = Vsis::default();
    vsis.add(&VsiParameters { kind: 2, ..VsiParameters::default() }, &mut context.emit()).unwrap();
    vsis
}

fn key_of(vsi: u16) -> KeyParameters {
    KeyParameters { vsi, vsi_valid: true }
}

fn table_of(kind: u8, size: u8) -> TableParameters {
    TableParameters { vsi: 1, vsi_valid: true, kind, size, global: 0 }
}

fn steer(vsis: &Vsis, layers: &Layers) -> Steering {
    let number = VsiNumber::new(1);
    vsis.steer(number, vsis.get(number).unwrap(), layers)
}

#[test]
fn ports_are_hashed_except_in_fragments() {
    let mut vsis = vsis(TableKind::Function);
    vsis.set_key(&key_of(1), &KEY).unwrap();
    for (protocol, more_fragments, hash) in [
        (6, false, WITH_PORTS),
        (17, false, WITH_PORTS),
        (132, false, WITH_PORTS),
        (6, true, OF_ADDRESSES),
        (17, true, OF_ADDRESSES),
        (1, false, OF_ADDRESSES),
        (47, false, OF_ADDRESSES),
    ] {
        assert_eq!(steer(&vsis, &frame(protocol, more_fragments)).hash, Some(hash), "protocol {protocol}");
    }
    assert_eq!(steer(&vsis, &arp()), Steering { hash: None, queue: 8 });
}

#[test]
fn symmetric_hash_ignores_direction() {
    let mut vsis = vsis(TableKind::Function);
    vsis.set_key(&key_of(1), &KEY).unwrap();
    let there = frame(6, false);
    let mut back = there;
    let ip = back.ip.as_mut().unwrap();
    let (Addresses::V4 { src, dst }, Some(ports)) = (ip.addresses, ip.transport.ports()) else {
        panic!("{ip:?}")
    };
    ip.addresses = Addresses::V4 { src: dst, dst: src };
    ip.transport = Transport::Tcp(Ports { src: ports.dst, dst: ports.src });
    assert_ne!(steer(&vsis, &there).hash, steer(&vsis, &back).hash);
    vsis.get_mut(VsiNumber::new(1)).unwrap().options.hash = HashKind::SymmetricToeplitz;
    assert_eq!(steer(&vsis, &there).hash, steer(&vsis, &back).hash);
    assert_ne!(
        steer(&vsis, &there).hash,
        steer(&vsis, &frame(6, true)).hash,
        "the hash covers the ports of unfragmented packets"
    );
}

#[test]
fn low_hash_bits_select_table_entry() {
    let mut vsis = vsis(TableKind::Function);
    vsis.set_key(&key_of(1), &KEY).unwrap();
    let mut table = [0; 2048];
    table[WITH_PORTS as usize & 0x7ff] = 5;
    table[OF_ADDRESSES as usize & 0x7ff] = 3;
    table[0] = 6;
    vsis.set_table(&table_of(1, 2), &table).unwrap();
    assert_eq!(steer(&vsis, &frame(6, false)).queue, 8 + 5);
    assert_eq!(steer(&vsis, &frame(6, true)).queue, 8 + 3);
    assert_eq!(steer(&vsis, &arp()).queue, 8 + 6, "frames without a hash use entry 0");
}

#[test]
fn function_table_has_size_of_last_write() {
    let mut vsis = vsis(TableKind::Function);
    vsis.set_key(&key_of(1), &KEY).unwrap();
    for (size, len) in [(0, 128), (2, 2048), (1, 512)] {
        let mut table = vec![1; len];
        table[WITH_PORTS as usize % len] = 5;
        vsis.set_table(&table_of(1, size), &table).unwrap();
        assert_eq!(steer(&vsis, &frame(6, false)).queue, 8 + 5, "{len} entries");
        assert_eq!(vsis.get_table(&table_of(1, size), &mut [0; 2048]), Ok(len));
    }
    assert_eq!(vsis.get_table(&table_of(1, 2), &mut [0; 2048]).unwrap_err().status, AdminStatus::Invalid);
}

#[test]
fn vsi_table_overrides_function_table() {
    let mut vsis = vsis(TableKind::Vsi);
    vsis.set_key(&key_of(1), &KEY).unwrap();
    vsis.set_table(&table_of(1, 2), &[1; 2048]).unwrap();
    let mut table = [0; 64];
    table[WITH_PORTS as usize & 0x3f] = 2;
    vsis.set_table(&table_of(0, 0), &table).unwrap();
    assert_eq!(steer(&vsis, &frame(6, false)).queue, 8 + 2);
}

#[test]
fn frame_without_hash_uses_first_table_entry() {
    let mut vsis = vsis(TableKind::Function);
    let mut table = [7; 2048];
    table[0] = 1;
    vsis.set_table(&table_of(1, 2), &table).unwrap();
    assert_eq!(steer(&vsis, &frame(6, false)), Steering { hash: None, queue: 9 });
}

#[test]
fn table_entry_never_selects_queue_outside_vsi() {
    let mut vsis = vsis(TableKind::Function);
    vsis.set_table(&table_of(1, 2), &[0xff; 2048]).unwrap();
    assert_eq!(steer(&vsis, &arp()).queue, 15);
}

#[test]
fn key_and_tables_can_be_read_back() {
    let mut vsis = vsis(TableKind::Function);
    let mut key = [0xa5; KEY_LEN];
    assert_eq!(vsis.get_key(&key_of(1), &mut key), Ok(KEY_LEN));
    assert_eq!(key, [0; KEY_LEN], "a key that was never set reads as zero");
    vsis.set_key(&key_of(1), &KEY).unwrap();
    assert_eq!(vsis.get_key(&key_of(1), &mut key), Ok(KEY_LEN));
    assert_eq!(key, KEY);

    let written: Vec<u8> = (0..2048_u16).map(|entry| entry.to_le_bytes()[0]).collect();
    for (parameters, len) in [(table_of(1, 2), 2048), (table_of(0, 0), 64)] {
        vsis.set_table(&parameters, &written).unwrap();
        let mut read = [0xa5; 2048];
        assert_eq!(vsis.get_table(&parameters, &mut read), Ok(len));
        assert_eq!(read[..len], written[..len]);
    }
}

#[test]
fn rejects_unknown_vsis_and_tables() {
    let mut vsis = vsis(TableKind::Function);
    let status = |outcome: Result<(), AdminError>| outcome.unwrap_err().status;
    let unmarked = KeyParameters { vsi_valid: false, ..key_of(1) };
    for parameters in [key_of(2), unmarked] {
        assert_eq!(status(vsis.set_key(&parameters, &KEY)), AdminStatus::NoEntry);
    }
    assert_eq!(status(vsis.set_key(&key_of(1), &KEY[1..])), AdminStatus::Invalid);
    // Size code 3 and table kind 3 are reserved, and global tables are not supported.
    for parameters in [table_of(1, 3), table_of(2, 2), table_of(3, 0)] {
        assert_eq!(status(vsis.set_table(&parameters, &[0; 2048])), AdminStatus::Invalid, "{parameters:?}");
    }
    assert_eq!(status(vsis.set_table(&table_of(1, 2), &[0; 2047])), AdminStatus::Invalid);
    assert_eq!(vsis.get_table(&table_of(0, 0), &mut [0; 63]).unwrap_err().status, AdminStatus::Invalid);
}
