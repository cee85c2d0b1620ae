use proptest::prelude::*;
use smallvec::smallvec;

use super::*;
use crate::hca::mthca::path::{Address, AddressVector};
use crate::hca::operation::RemoteAddress;
use crate::hca::qp::ServiceType;
use crate::ids::{Lid, Lkey, Pdn, Qkey, Qpn, Rkey, Va};
use crate::roce::Imm;

const NEXT: NextSegment = NextSegment {
    link: Link { address: 0x440, opcode: 0x0a, size: 2, fence: true },
    signalled: true,
    solicited: true,
    imm: Imm([0x11, 0x22, 0x33, 0x44]),
};
const NEXT_BYTES: [u8; 16] =
    [0x00, 0x00, 0x04, 0x4a, 0x00, 0x00, 0x00, 0xc2, 0x00, 0x00, 0x00, 0x0b, 0x11, 0x22, 0x33, 0x44];
const DATA: DataSegment = DataSegment { len: 64, lkey: Lkey::new(0x1900), va: Va::new(0x7f00_1234_5678) };
const DATA_BYTES: [u8; 16] =
    [0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x19, 0x00, 0x00, 0x00, 0x7f, 0x00, 0x12, 0x34, 0x56, 0x78];
const REMOTE: RemoteAddress = RemoteAddress { va: Va::new(0x5500_0000_1000), rkey: Rkey::new(0x2a00) };
const REMOTE_BYTES: [u8; 16] =
    [0x00, 0x00, 0x55, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x2a, 0x00, 0x00, 0x00, 0x00, 0x00];

fn check(parts: &[&[u8]], opcode: u8, service: ServiceType, operation: Operation, data: WqeData) {
    let bytes = parts.concat();
    let wqe = SendWqe { next: NEXT, operation, data };
    assert_eq!(SendWqe::parse(&bytes, opcode, service).as_ref(), Ok(&wqe));
    assert_eq!(wqe.emit(), bytes);
}

fn refused(parts: &[&[u8]], opcode: u8, service: ServiceType) -> WqeError {
    SendWqe::parse(&parts.concat(), opcode, service).unwrap_err()
}

#[test]
fn send_has_next_segment_and_data() {
    let imm = Some(NEXT.imm);
    let one = || WqeData::Segments(smallvec![DATA]);
    check(&[&NEXT_BYTES, &DATA_BYTES], 0x0a, ServiceType::Rc, Operation::Send { imm: None }, one());
    check(&[&NEXT_BYTES, &DATA_BYTES], 0x0b, ServiceType::Uc, Operation::Send { imm }, one());
    let two = WqeData::Segments(smallvec![DATA, DATA]);
    check(
        &[&NEXT_BYTES, &DATA_BYTES, &DATA_BYTES],
        0x0a,
        ServiceType::Rc,
        Operation::Send { imm: None },
        two,
    );
    let none = WqeData::Segments(smallvec![]);
    check(&[&NEXT_BYTES], 0x0a, ServiceType::Rc, Operation::Send { imm: None }, none);
}

#[test]
fn rdma_wqes_contain_remote_address() {
    let data = || WqeData::Segments(smallvec![DATA]);
    let parts: [&[u8]; 3] = [&NEXT_BYTES, &REMOTE_BYTES, &DATA_BYTES];
    let write = |imm| Operation::Write { remote: REMOTE, imm };
    check(&parts, 0x08, ServiceType::Rc, write(None), data());
    check(&parts, 0x09, ServiceType::Uc, write(Some(NEXT.imm)), data());
    check(&parts, 0x10, ServiceType::Rc, Operation::Read { remote: REMOTE }, data());
    assert_eq!(refused(&parts, 0x10, ServiceType::Uc), WqeError::Opcode(0x10));
    assert_eq!(refused(&parts, 0x08, ServiceType::Ud), WqeError::Opcode(0x08));
}

#[test]
fn atomics_require_one_eight_byte_segment() {
    let atomic: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9];
    let result = DataSegment { len: 8, ..DATA };
    let data = || WqeData::Segments(smallvec![result]);
    let parts: [&[u8]; 4] = [&NEXT_BYTES, &REMOTE_BYTES, &atomic, &result.emit_be()];
    let swap = Operation::CompareSwap { remote: REMOTE, compare: 9, swap: 0x0102_0304_0506_0708 };
    check(&parts, 0x11, ServiceType::Rc, swap, data());
    let add: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0];
    let parts: [&[u8]; 4] = [&NEXT_BYTES, &REMOTE_BYTES, &add, &result.emit_be()];
    check(&parts, 0x12, ServiceType::Rc, Operation::FetchAdd { remote: REMOTE, add: 7 }, data());
    let parts: [&[u8]; 4] = [&NEXT_BYTES, &REMOTE_BYTES, &add, &DATA_BYTES];
    assert_eq!(refused(&parts, 0x12, ServiceType::Rc), WqeError::AtomicResult);
}

#[test]
fn ud_segment_is_48_bytes_long() {
    let address = Address { dlid: Lid::new(2), ..Address::default() };
    let vector = AddressVector { port: 1, pd: Pdn::new(3), address };
    let to = UdSegment { vector, dqpn: Qpn::new(0x15), qkey: Qkey::new(0x1111_1111) };
    let mut ud = [0; 48];
    ud[..8].copy_from_slice(&[1, 0, 0, 3, 0, 0, 0, 2]);
    ud[0x20..0x28].copy_from_slice(&[0, 0, 0, 0x15, 0x11, 0x11, 0x11, 0x11]);
    let parts: [&[u8]; 3] = [&NEXT_BYTES, &ud, &DATA_BYTES];
    let data = WqeData::Segments(smallvec![DATA]);
    check(&parts, 0x0a, ServiceType::Ud, Operation::Datagram { imm: None, to }, data);
    assert_eq!(refused(&[&NEXT_BYTES, &ud[..32]], 0x0a, ServiceType::Ud), WqeError::Truncated("UD segment"));
}

#[test]
fn inline_data_is_padded_to_granule() {
    let mut inline = vec![0x80, 0, 0, 13];
    inline.extend_from_slice(b"thirteen here");
    inline.resize(32, 0);
    let data = WqeData::Inline(SmallVecOf::from_slice(b"thirteen here"));
    check(&[&NEXT_BYTES, &inline], 0x0a, ServiceType::Rc, Operation::Send { imm: None }, data);
    let parts: [&[u8]; 3] = [&NEXT_BYTES, &inline, &inline];
    let twice = SendWqe::parse(&parts.concat(), 0x0a, ServiceType::Rc).unwrap();
    assert_eq!(twice.data, WqeData::Inline(SmallVecOf::from_slice(b"thirteen herethirteen here")));
    assert_eq!(refused(&[&NEXT_BYTES, &inline, &DATA_BYTES], 0x0a, ServiceType::Rc), WqeError::Inline);
    assert_eq!(refused(&[&NEXT_BYTES, &REMOTE_BYTES, &inline], 0x10, ServiceType::Rc), WqeError::Inline);
    inline[3] = 29;
    assert_eq!(refused(&[&NEXT_BYTES, &inline], 0x0a, ServiceType::Rc), WqeError::Truncated("inline data"));
}

type SmallVecOf = smallvec::SmallVec<[u8; 64]>;

#[test]
fn scatter_list_ends_at_end_key() {
    let head = [0x00, 0x00, 0x01, 0x01, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let end = [0, 0, 0, 0, 0, 0, 0x01, 0x00, 0, 0, 0, 0, 0, 0, 0, 0];
    let parse = |parts: &[&[u8]]| RecvWqe::parse(&parts.concat()).unwrap();
    let wqe = parse(&[&head, &DATA_BYTES, &end, &DATA_BYTES]);
    assert_eq!((wqe.successor, &wqe.data[..]), (0x100, &[DATA][..]));
    assert_eq!(parse(&[&head, &DATA_BYTES, &DATA_BYTES, &DATA_BYTES]).data.len(), 3);
    assert_eq!(parse(&[&head, &end]).data.len(), 0);
    let empty = DataSegment { len: 0, ..DATA };
    assert_eq!(parse(&[&head, &empty.emit_be(), &DATA_BYTES, &end]).data[..], [empty, DATA]);
    let slot = RecvWqe { successor: 0x100, data: smallvec![DATA] }.emit(64);
    assert_eq!(RecvWqe::parse(&slot), Ok(RecvWqe { successor: 0x100, data: smallvec![DATA] }));
}

/// Example from section 14.2: the flags are 20008h for QP0 and 8h for QP1. Both WQEs have an inline ICRC placeholder.
#[test]
fn inline_icrc_placeholder_is_removed() {
    let mlx = [0, 0, 0, 0x8a, 0, 0, 0, 0x85, 0x00, 0x02, 0x00, 0x08, 0xff, 0xff, 0, 0];
    let crc = [0x80, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let wqe = MlxWqe::parse(&[mlx, DATA_BYTES, DATA_BYTES, DATA_BYTES, crc].concat()).unwrap();
    let expected = MlxWqe {
        vl15: true,
        keep_source_lid: false,
        service_level: 0,
        signalled: true,
        dlid: Lid::new(0xffff),
        data: smallvec![DATA, DATA, DATA],
    };
    assert_eq!(wqe, expected);
    let mut directed = mlx;
    directed[8..12].copy_from_slice(&[0x00, 0x01, 0x05, 0x08]);
    let wqe = MlxWqe::parse(&[directed, DATA_BYTES, crc].concat()).unwrap();
    assert!(wqe.keep_source_lid && !wqe.vl15);
    assert_eq!(wqe.service_level, 5);
}

/// iPXE uses one segment for the headers and one for the payload and the ICRC placeholder.
#[test]
fn icrc_placeholder_in_payload_segment_is_removed() {
    let mlx = [0, 0, 0, 0x84, 0, 0, 0, 0x83, 0x00, 0x02, 0x00, 0x08, 0xff, 0xff, 0, 0];
    let segment = |len| DataSegment { len, ..DATA };
    let parse = |parts: &[DataSegment]| {
        let mut bytes = mlx.to_vec();
        parts.iter().for_each(|part| bytes.extend(part.emit_be()));
        MlxWqe::parse(&bytes).map(|wqe| wqe.data)
    };
    assert_eq!(parse(&[segment(28), segment(260)]), Ok(smallvec![segment(28), segment(256)]));
    assert_eq!(parse(&[segment(28), segment(257), segment(3)]), Ok(smallvec![segment(28), segment(256)]));
    assert_eq!(parse(&[segment(3)]), Err(WqeError::Truncated("ICRC")));
}

proptest! {
    #[test]
    fn parsing_arbitrary_wqes_never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..1024),
        opcode: u8,
    ) {
        for service in [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud] {
            let _ = SendWqe::parse(&bytes, opcode, service);
        }
        let _ = MlxWqe::parse(&bytes);
        let _ = RecvWqe::parse(&bytes);
    }
}
