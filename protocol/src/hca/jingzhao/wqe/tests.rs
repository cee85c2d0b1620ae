use std::net::Ipv4Addr;

use proptest::prelude::*;
use smallvec::smallvec;

use super::super::doorbell::PositionUnit;
use super::super::qpc::ServiceType;
use super::*;
use crate::hca::operation::RemoteAddress;
use crate::ids::{Lid, Lkey, MacAddr, Qkey, Qpn, Rkey, Va};
use crate::roce::Imm;

/// Example WQEs from section 14.8.
const SEND: [u8; 32] = [
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0x40, 0x00, 0x00, 0x00, 0x05, 0x00, 0x02, 0x00, 0x78, 0x56, 0x34, 0x12, 0x00, 0x7f, 0x00, 0x00,
];
const WRITE_IMM: [u8; 48] = [
    0x0a, 0x02, 0x00, 0x00, 0x82, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x11, 0x22, 0x33, 0x44, //
    0x00, 0x00, 0xbb, 0xaa, 0x00, 0x7f, 0x00, 0x00, 0x77, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0x00, 0x10, 0x00, 0x00, 0x05, 0x00, 0x02, 0x00, 0x00, 0x60, 0x34, 0x12, 0x00, 0x7f, 0x00, 0x00,
];
const INLINE_UNIT: [u8; 16] =
    [0x05, 0x00, 0x00, 0x80, 0x48, 0x45, 0x4c, 0x4c, 0x4f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00];
const RECV_LIBRARY: [u8; 48] = [
    0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0x00, 0x10, 0x00, 0x00, 0x05, 0x00, 0x02, 0x00, 0x00, 0x60, 0x34, 0x12, 0x00, 0x7f, 0x00, 0x00, //
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];
const RECV_KERNEL: [u8; 48] = [
    0x80, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0x00, 0x10, 0x00, 0x00, 0x05, 0x00, 0x02, 0x00, 0x00, 0x60, 0x34, 0x12, 0x00, 0x7f, 0x00, 0x00, //
    0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];
const UD_UNIT: [u8; 48] = [
    0x01, 0x00, 0x00, 0x00, 0x01, 0x00, 0x02, 0x00, 0x00, 0x00, 0x54, 0x52, 0x01, 0x00, 0x54, 0x52, //
    0x01, 0x00, 0x00, 0x0a, 0x02, 0x00, 0x00, 0x0a, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0x12, 0x00, 0x00, 0x00, 0x11, 0x11, 0x11, 0x11, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];

fn page_of_data() -> DataSegment {
    DataSegment { len: 4096, lkey: Lkey::new(0x2_0005), va: Va::new(0x7f00_1234_6000) }
}

fn signalled() -> NextUnit {
    NextUnit { signalled: true, ..NextUnit::default() }
}

fn remote() -> RemoteAddress {
    RemoteAddress { va: Va::new(0x7f00_aabb_0000), rkey: Rkey::new(0x777) }
}

fn raddr() -> [u8; 16] {
    WRITE_IMM[16..32].try_into().unwrap()
}

fn with_units(units: &[&[u8]]) -> Vec<u8> {
    [&[0; 16][..]].iter().chain(units).flat_map(|unit| unit.iter().copied()).collect()
}

#[test]
fn example_send_wqe_round_trips() {
    let data = DataSegment { len: 64, lkey: Lkey::new(0x2_0005), va: Va::new(0x7f00_1234_5678) };
    let wqe = SendWqe {
        next: signalled(),
        operation: Operation::Send { imm: None },
        data: WqeData::Segments(smallvec![data]),
    };
    assert_eq!(SendWqe::parse(&SEND, 0x0a, ServiceType::Rc), Ok(wqe.clone()));
    assert_eq!(wqe.emit(), SEND);
}

#[test]
fn example_linked_write_round_trips() {
    let link = Link { address: 8, opcode: 0x0a, size: 2, fence: false, dbd: true };
    let imm = Imm([0x11, 0x22, 0x33, 0x44]);
    let wqe = SendWqe {
        next: NextUnit { link: Some(link), imm, ..signalled() },
        operation: Operation::Write { remote: remote(), imm: Some(imm) },
        data: WqeData::Segments(smallvec![page_of_data()]),
    };
    assert_eq!(SendWqe::parse(&WRITE_IMM, 0x09, ServiceType::Rc), Ok(wqe.clone()));
    assert_eq!(wqe.emit(), WRITE_IMM);
    assert_eq!(link.position(PositionUnit::Granule, 0x4000), Some(128));
    // The kernel driver writes the link as a byte offset whose low six bits hold the opcode.
    let kernel = Link { address: 2, ..link };
    assert_eq!(kernel.position(PositionUnit::Slot, 0x4000), Some(128));
}

#[test]
fn example_inline_send_round_trips() {
    let bytes = with_units(&[&INLINE_UNIT]);
    let wqe = SendWqe {
        next: NextUnit::default(),
        operation: Operation::Send { imm: None },
        data: WqeData::Inline(b"HELLO"),
    };
    assert_eq!(SendWqe::parse(&bytes, 0x0a, ServiceType::Uc), Ok(wqe.clone()));
    assert_eq!(wqe.emit(), bytes);
}

#[test]
fn inline_data_spans_granules() {
    let payload: Vec<u8> = (0..30).collect();
    let mut bytes = vec![0; 16];
    bytes.extend_from_slice(&[30, 0, 0, 0x80]);
    bytes.extend_from_slice(&payload);
    bytes.resize(64, 0);
    let wqe = SendWqe::parse(&bytes, 0x0a, ServiceType::Rc).unwrap();
    assert_eq!(wqe.data, WqeData::Inline(&payload));
    assert_eq!(wqe.emit(), bytes);
}

#[test]
fn rejects_inline_data_beyond_wqe() {
    let bytes = with_units(&[&[13, 0, 0, 0x80], &[0; 12]]);
    let error = SendWqe::parse(&bytes, 0x0a, ServiceType::Rc);
    assert_eq!(error, Err(WqeError::Truncated("inline data")));
    let bytes = with_units(&[&[0xff; 16]]);
    assert!(SendWqe::parse(&bytes, 0x0a, ServiceType::Rc).is_err());
}

#[test]
fn example_ud_unit_round_trips() {
    let ud = UdUnit {
        port: 1,
        slid: Lid::new(1),
        dlid: Lid::new(2),
        smac_high: 0x5254_0000,
        dmac_high: 0x5254_0001,
        source_ip: 0x0a00_0001,
        dest_ip: 0x0a00_0002,
        dqpn: Qpn::new(0x12),
        qkey: Qkey::new(0x1111_1111),
    };
    assert_eq!(UdUnit::parse(&UD_UNIT), ud);
    assert_eq!(ud.emit(), UD_UNIT);
    assert_eq!(ud.dmac(), Some(MacAddr([0x52, 0x54, 0, 1, 0, 2])));
    assert_eq!(ud.dip(), Some(Ipv4Addr::new(10, 0, 0, 2)));

    let bytes = with_units(&[&UD_UNIT, &SEND[16..]]);
    let wqe = SendWqe::parse(&bytes, 0x0a, ServiceType::Ud).unwrap();
    assert_eq!(wqe.operation, Operation::Datagram { imm: None, to: ud });
    assert_eq!(wqe.emit(), bytes);
}

#[test]
fn ud_unit_from_library_lacks_mac_and_ip() {
    let mut unit = [0; 48];
    unit[..8].copy_from_slice(&[0x03, 0x00, 0x00, 0x01, 0x00, 0x00, 0x02, 0x00]);
    unit[0x20..0x28].copy_from_slice(&[0x12, 0x00, 0x00, 0x00, 0x11, 0x11, 0x11, 0x11]);
    let ud = UdUnit::parse(&unit);
    assert_eq!((ud.dlid, ud.dmac(), ud.dip()), (Lid::new(2), None, None));
    assert_eq!((ud.dqpn, ud.qkey), (Qpn::new(0x12), Qkey::new(0x1111_1111)));
}

#[test]
fn atomic_unit_holds_operands() {
    let operands = [1, 0, 0, 0, 0, 0, 0, 0x80, 2, 0, 0, 0, 0, 0, 0, 0x40];
    let result = DataSegment { len: 8, ..page_of_data() }.emit_le();
    let bytes = with_units(&[&raddr(), &operands, &result]);
    let swap = SendWqe::parse(&bytes, 0x11, ServiceType::Rc).unwrap();
    let (compare, swap_add) = (0x4000_0000_0000_0002, 0x8000_0000_0000_0001);
    assert_eq!(swap.operation, Operation::CompareSwap { remote: remote(), compare, swap: swap_add });
    assert_eq!(swap.emit(), bytes);
    let add = SendWqe::parse(&bytes, 0x12, ServiceType::Rc).unwrap();
    assert_eq!(add.operation, Operation::FetchAdd { remote: remote(), add: swap_add });
}

#[test]
fn atomics_require_one_eight_byte_segment() {
    let result = |len| DataSegment { len, ..page_of_data() }.emit_le();
    for units in [vec![], vec![result(4)], vec![result(8), result(8)]] {
        let units: Vec<_> = units.concat();
        let bytes = with_units(&[&raddr(), &[0; 16], &units]);
        assert_eq!(SendWqe::parse(&bytes, 0x12, ServiceType::Rc), Err(WqeError::AtomicResult));
    }
}

#[test]
fn rejects_inline_data_in_scatter_operations() {
    let read = with_units(&[&raddr(), &INLINE_UNIT]);
    assert_eq!(SendWqe::parse(&read, 0x10, ServiceType::Rc), Err(WqeError::Inline));
    let late = with_units(&[&SEND[16..], &INLINE_UNIT]);
    assert_eq!(SendWqe::parse(&late, 0x0a, ServiceType::Rc), Err(WqeError::Inline));
}

#[test]
fn parses_sixteen_data_units_in_order() {
    let units: DataSegments = (0..16).map(|n| DataSegment { len: n, ..page_of_data() }).collect();
    let wqe = SendWqe {
        next: NextUnit::default(),
        operation: Operation::Read { remote: remote() },
        data: WqeData::Segments(units),
    };
    let bytes = wqe.emit();
    assert_eq!(bytes.len(), 18 * GRANULE);
    assert_eq!(SendWqe::parse(&bytes, 0x10, ServiceType::Rc), Ok(wqe));
}

#[test]
fn each_service_accepts_only_its_operations() {
    for (service, codes) in [
        (ServiceType::Rc, &[0x00, 0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12][..]),
        (ServiceType::Uc, &[0x00, 0x08, 0x09, 0x0a, 0x0b]),
        (ServiceType::Ud, &[0x00, 0x0a, 0x0b]),
    ] {
        let result = DataSegment { len: 8, ..page_of_data() }.emit_le();
        let wqe = with_units(&[&[0; 16], &[0; 16], &result]);
        let wqe = if service == ServiceType::Ud { with_units(&[&UD_UNIT, &result]) } else { wqe };
        let accepted: Vec<u8> = (0..=255)
            .filter(|code| !matches!(SendWqe::parse(&wqe, *code, service), Err(WqeError::Opcode(_))))
            .collect();
        assert_eq!(accepted, codes);
    }
}

#[test]
fn rejects_truncated_wqe() {
    for len in [0, 15] {
        let short = vec![0; len];
        assert_eq!(SendWqe::parse(&short, 0x0a, ServiceType::Rc), Err(WqeError::Truncated("next unit")));
    }
    assert_eq!(
        SendWqe::parse(&[0; 16], 0x08, ServiceType::Rc),
        Err(WqeError::Truncated("remote address segment"))
    );
    assert_eq!(SendWqe::parse(&[0; 48], 0x0a, ServiceType::Ud), Err(WqeError::Truncated("ud unit")));
    assert_eq!(SendWqe::parse(&[0; 24], 0x0a, ServiceType::Rc), Err(WqeError::Truncated("data unit")));
}

#[test]
fn wqe_without_data_units_is_empty_message() {
    let wqe = SendWqe::parse(&[0; 16], 0x0a, ServiceType::Rc).unwrap();
    assert_eq!(wqe.data, WqeData::Segments(smallvec![]));
}

/// Returns the number of data units written to a slot, and how the written part ends. Assumes that no region has key
/// FFFFFFFFh.
fn extent(slot: &[u8]) -> (usize, End) {
    let Extent { units, end } = RecvWqe::extent(slot, |_| false);
    (units, end)
}

#[test]
fn example_receive_wqes_are_recognised_as_posted() {
    assert!(RecvWqe::is_valid(&RECV_LIBRARY) && !RecvWqe::is_valid(&RECV_KERNEL));
    assert!(RecvWqe::is_posted_without_valid_bit(&RECV_KERNEL, false));
    for slot in [RECV_LIBRARY, RECV_KERNEL] {
        assert_eq!(extent(&slot), (1, End::Terminator));
        assert_eq!(RecvWqe::parse(&slot), Ok(RecvWqe { data: smallvec![page_of_data()] }));
    }
    assert_eq!(RecvWqe { data: smallvec![page_of_data()] }.emit(48), RECV_LIBRARY);
}

#[test]
fn slot_without_valid_bit_is_posted_in_first_pass() {
    let mut slot = RECV_LIBRARY;
    slot[..16].fill(0);
    assert!(!RecvWqe::is_posted_without_valid_bit(&slot, false));
    assert!(RecvWqe::is_posted_without_valid_bit(&slot, true));
}

#[test]
fn linked_slot_without_data_is_not_posted() {
    let mut slot = RECV_KERNEL;
    for unit in [TERMINATOR, [0; 16], CONSUMED, UNTOUCHED] {
        slot[16..32].copy_from_slice(&unit);
        assert!(!RecvWqe::is_posted_without_valid_bit(&slot, true), "{unit:02x?}");
    }
    assert!(
        !RecvWqe::is_posted_without_valid_bit(&slot[..16], true),
        "a slot without data units is not posted"
    );
}

/// Drivers write the length, the key and the address of a unit, in that order.
#[test]
fn partially_written_data_unit_is_ignored() {
    let written = &RECV_LIBRARY[16..32];
    for words in [0..0, 0..4, 0..8, 0..16] {
        let mut slot = RECV_LIBRARY;
        slot[16..].copy_from_slice(&[UNTOUCHED, UNTOUCHED].concat());
        slot[16..][words.clone()].copy_from_slice(&written[words.clone()]);
        assert_eq!(extent(&slot), (usize::from(words.end == 16), End::Untouched));
        // The kernel driver leaves the valid bit clear.
        let mut slot = RECV_KERNEL;
        slot[16..32].copy_from_slice(&CONSUMED);
        slot[16..][words.clone()].copy_from_slice(&written[words.clone()]);
        assert_eq!(RecvWqe::is_posted_without_valid_bit(&slot, false), words.end == 16);
    }
}

#[test]
fn all_ones_key_is_valid_if_region_exists() {
    let unit = DataSegment { lkey: Lkey::new(u32::MAX), ..page_of_data() };
    let slot = RecvWqe { data: smallvec![unit] }.emit(48);
    assert_eq!(extent(&slot), (0, End::Untouched));
    assert_eq!(RecvWqe::extent(&slot, |_| true), Extent { units: 1, end: End::Terminator });
}

#[test]
fn zero_address_and_empty_list_count_as_written() {
    let zero = DataSegment { va: Va::new(0), ..page_of_data() };
    let mut slot = RecvWqe { data: smallvec![zero] }.emit(64);
    slot[48..].copy_from_slice(&UNTOUCHED);
    assert_eq!(extent(&slot), (1, End::Terminator));
    let empty = RecvWqe { data: smallvec![] }.emit(64);
    assert_eq!(extent(&empty), (0, End::Terminator));
    assert_eq!(extent(&empty[..16]), (0, End::Slot));
}

#[test]
fn terminator_key_with_length_is_data() {
    for lkey in [0, 0x100] {
        let data: DataSegments = smallvec![DataSegment { len: 1, lkey: Lkey::new(lkey), va: Va::new(0) }];
        let slot = RecvWqe { data: data.clone() }.emit(128);
        assert_eq!(extent(&slot), (1, End::Terminator));
        assert_eq!(RecvWqe::parse(&slot).unwrap().data, data);
    }
    let skipped: DataSegments = smallvec![DataSegment { len: 0, ..page_of_data() }, page_of_data()];
    let slot = RecvWqe { data: skipped.clone() }.emit(128);
    assert_eq!(RecvWqe::parse(&slot).unwrap().data, skipped);
}

#[test]
fn full_slot_ends_without_terminator() {
    let data: DataSegments = (1..8).map(|n| DataSegment { len: n, ..page_of_data() }).collect();
    let slot = RecvWqe { data: data.clone() }.emit(128);
    assert_eq!(RecvWqe::parse(&slot).unwrap().data, data);
    assert_eq!(extent(&slot), (7, End::Slot));
}

proptest! {
    #[test]
    fn any_parsed_send_wqe_round_trips(
        bytes in prop::collection::vec(any::<u8>(), 0..=1024), opcode: u8, service in 0u8..4
    ) {
        let service = ServiceType::from_code(service).unwrap_or(ServiceType::Rc);
        if let Ok(wqe) = SendWqe::parse(&bytes, opcode, service) {
            prop_assert_eq!(wqe.operation.opcode().code(), opcode);
            let emitted = wqe.emit();
            prop_assert_eq!(SendWqe::parse(&emitted, opcode, service), Ok(wqe));
        }
    }

    #[test]
    fn plausible_send_wqes_round_trip(
        granules in prop::collection::vec(prop::array::uniform16(0u8..4), 1..=20), opcode in 0u8..0x13
    ) {
        let bytes = granules.concat();
        for service in [ServiceType::Rc, ServiceType::Ud] {
            if let Ok(wqe) = SendWqe::parse(&bytes, opcode, service) {
                let emitted = wqe.emit();
                prop_assert_eq!(SendWqe::parse(&emitted, opcode, service), Ok(wqe));
            }
        }
    }

    #[test]
    fn parsing_receive_slot_never_panics(slot in prop::collection::vec(any::<u8>(), 0..=4096), first: bool) {
        let _ = RecvWqe::is_posted_without_valid_bit(&slot, first);
        let _ = RecvWqe::extent(&slot, |_| first);
        let _ = RecvWqe::parse(&slot);
    }
}
