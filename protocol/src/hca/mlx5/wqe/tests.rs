//! Tests WQEs against bytes from the golden traces and from section 22 of the mlx5 interface.

use super::*;
use crate::hca::mlx5::mkey::AccessMode;
use crate::hca::mlx5::qp::Service;
use crate::hca::mlx5::umr::MkeyMask;
use crate::ids::{Lid, Lkey, Pdn, Qkey, Qpn, Rkey, Srqn, Va};

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn data(byte_count: u32, lkey: u32, va: u64) -> DataSegment {
    DataSegment { byte_count, lkey: Lkey::new(lkey), va: Va::new(va) }
}

/// Parses a WQE for the QP whose number is in its control segment and checks that emitting it yields the same bytes.
fn round_trip(wqe: &[u8], service: Service) -> SendWqe<'_> {
    let qpn = ControlSegment::parse_prefix(wqe).unwrap().qpn;
    let parsed = SendWqe::parse(wqe, service, qpn).unwrap();
    assert_eq!(parsed.emit(), wqe);
    parsed
}

#[test]
fn recorded_send_wqe_round_trips() {
    let wqe = bytes(&[0x0a, 0x8402, 0x08, 0, 0x200, 0xc05, 0x55f6, 0xfb79_1000]);
    let send = round_trip(&wqe, Service::Rc);
    assert_eq!((send.opcode, send.operation), (Opcode::Send, Operation::Send));
    assert!(send.control.is_signaled() && !send.control.is_fenced());
    let segment = data(0x200, 0xc05, 0x55f6_fb79_1000);
    assert_eq!((send.data_len(), send.data.as_slice()), (0x200, &[DataItem::Pointer(segment)][..]));
}

#[test]
fn recorded_umr_wqe_round_trips() {
    let mut wqe = bytes(&[0x25, 0x8209, 0x28, 0xb04, 0x3000_0000, 0x4_0000, 0, 0x203e_20c3]);
    wqe.extend([0; 32]);
    wqe.extend(bytes(&[0xc00, 0xffff_ff04, 0, 4, 0x5567, 0xbe5f_6000, 0, 0x200]));
    wqe.extend([0; 24]);
    wqe.extend(bytes(&[12, 0, 0x40, 0xa03, 0, 0x3662_b000]));
    let send = round_trip(&wqe, Service::Umr);
    assert!(send.control.is_fenced());
    assert_eq!(send.control.key(), 0xb04);
    let Operation::Umr(umr) = send.operation else { panic!("{send:?}") };
    assert_eq!(umr.translation, Translation::Pointer(data(0x40, 0xa03, 0x3662_b000)));
    assert_eq!((umr.mkey.pd, umr.mkey.start), (Pdn::new(4), Va::new(0x5567_be5f_6000)));
    assert!(umr.mkey.local_read && umr.mkey.local_write && !umr.mkey.free);
    assert!(umr.control.mask.contains(MkeyMask::PD | MkeyMask::FREE));
}

/// Golden trace ib-5: the WQE binds a type 2 memory window to part of a region.
#[test]
fn inline_umr_translation_is_padded_to_64_bytes() {
    let mut wqe = bytes(&[0x25, 0x880c, 8, 0x110a, 0xb000_0000, 0x4_0000, 0, 0x203c_6041]);
    wqe.extend([0; 32]);
    wqe.extend(bytes(&[0x3000, 0x880b, 0, 0, 0, 0x0da0_b010, 0, 0x20]));
    wqe.extend([0; 32]);
    wqe.extend(bytes(&[0x20, 0xf08, 0, 0x0da0_b010]));
    wqe.extend([0; 48]);
    let send = round_trip(&wqe, Service::Rc);
    let Operation::Umr(Umr { control, mkey, translation: Translation::Inline(list) }) = send.operation else {
        panic!("{send:?}")
    };
    assert_eq!((control.units, list.len()), (4, 64));
    assert_eq!((mkey.qpn, mkey.key), (Qpn::new(0x88), 0x0b));
    assert_eq!(mkey.access_mode(), Some(AccessMode::Physical), "the mask excludes the access mode");
}

#[test]
fn rdma_wqes_contain_remote_address() {
    let remote = RemoteSegment { va: Va::new(0x7f0f_f9c0_d000), rkey: Rkey::new(0xd06) };
    let tail = [0x7f0f, 0xf9c0_d000, 0xd06, 0, 0x1_0000, 0xe07, 0x7f6c, 0x1315_9000];
    for (opcode, operation) in
        [(0x08, Operation::Write(remote)), (0x09, Operation::Write(remote)), (0x10, Operation::Read(remote))]
    {
        let wqe = bytes(&[&[opcode, 0x8503, 8, 0x1122_3344], &tail[..]].concat());
        let send = round_trip(&wqe, Service::Rc);
        assert_eq!(send.operation, operation);
        assert_eq!(send.control.immediate, [0x11, 0x22, 0x33, 0x44]);
    }
}

#[test]
fn atomic_requires_8_byte_result() {
    let mut words = vec![0x11, 0x8504, 8, 0, 0, 0x1000, 0xd06, 0, 0, 1, 0, 2, 8, 0xe07, 0, 0x2000];
    let atomic = AtomicSegment { swap_or_add: 1, compare: 2 };
    let remote = RemoteSegment { va: Va::new(0x1000), rkey: Rkey::new(0xd06) };
    assert_eq!(round_trip(&bytes(&words), Service::Rc).operation, Operation::Atomic(remote, atomic));
    words[12] = 4;
    let qpn = Qpn::new(0x85);
    assert_eq!(SendWqe::parse(&bytes(&words), Service::Rc, qpn), Err(WqeError::AtomicResult));
    words[12] = 0x8000_0008;
    assert_eq!(SendWqe::parse(&bytes(&words), Service::Rc, qpn), Err(WqeError::Inline));
    let wqe = bytes(&words);
    assert_eq!(SendWqe::parse(&wqe, Service::Uc, qpn), Err(WqeError::Opcode(0x11)));
}

#[test]
fn datagram_segment_has_short_and_long_forms() {
    let short = bytes(&[0x0a, 0x8003, 8, 0, 0x8001_0000, 0, 1, 0x0385_0012, 4, 0x801, 0, 0x1000]);
    let send = round_trip(&short, Service::Qp1);
    let Operation::Datagram(to) = send.operation else { panic!("{send:?}") };
    assert_eq!((to.qpn, to.lid, to.service_level), (Qpn::new(1), Lid::new(0x12), 3));
    assert_eq!((to.force_loopback, to.path_bits), (true, 5));
    assert_eq!(to.effective_qkey(Qkey::new(0xb1b)), Qkey::new(0xb1b));

    let mut long = bytes(&[0x0a, 0x8004, 8, 0, 0xb1b, 0, 0x8000_0085, 0x12, 0, 0, 0x2040, 0x4031_2345]);
    long.extend([9; 16]);
    let send = round_trip(&long, Service::Ud);
    let Operation::Datagram(to) = send.operation else { panic!("{send:?}") };
    assert!(to.grh && to.gid == [9; 16]);
    assert_eq!((to.traffic_class, to.hop_limit, to.gid_index), (0x20, 0x40, 3));
    assert_eq!(to.effective_qkey(Qkey::new(1)), Qkey::new(0xb1b));
    assert!(send.data.is_empty());
}

#[test]
fn xrc_segment_follows_control_segment() {
    let wqe = bytes(&[0x0a, 0x8503, 8, 0, 0x10, 0, 0, 0, 4, 0x801, 0, 0x1000]);
    assert_eq!(round_trip(&wqe, Service::Xrc).xrc_srqn, Some(Srqn::new(0x10)));
}

#[test]
fn inline_data_can_follow_data_segments() {
    let mut wqe = bytes(&[0x0a, 0x8504, 0, 0, 4, 0x801, 0, 0x1000, 0x8000_000e]);
    wqe.extend([7; 14]);
    wqe.extend([0; 14]);
    let send = round_trip(&wqe, Service::Uc);
    assert_eq!(send.data[1], DataItem::Inline(&[7; 14]));
    assert!(!send.control.is_signaled());
    assert_eq!(send.data_len(), 18);
}

#[test]
fn malformed_wqes_are_rejected() {
    let qpn = Qpn::new(0x85);
    let parse = |words: &[u32]| SendWqe::parse(&bytes(words), Service::Rc, qpn).err();
    assert_eq!(parse(&[0x0a, 0x8500, 0, 0]), Some(WqeError::Empty), "a WQE of size 0 is rejected (M-1)");
    assert_eq!(parse(&[0x0a, 0x8401, 0, 0]), Some(WqeError::Queue(Qpn::new(0x84))));
    assert_eq!(parse(&[0x0a, 0x8502, 0, 0]), Some(WqeError::Truncated("size")));
    assert_eq!(parse(&[0x08, 0x8501, 0, 0]), Some(WqeError::Truncated("remote address segment")));
    assert_eq!(parse(&[0x0a, 0x8502, 0, 0, 0x8000_0010, 0, 0, 0]), Some(WqeError::Truncated("inline data")));
    for opcode in [0x13, 0x14, 0x15, 0x20, 0x29, 0x2f, 0xff] {
        let expected = WqeError::Opcode(u8::try_from(opcode).unwrap());
        assert_eq!(parse(&[opcode, 0x8501, 0, 0]), Some(expected));
    }
    assert_eq!(parse(&[0x0a]), Some(WqeError::Truncated("control segment")));
    assert_eq!(WqeError::SYNDROME.code(), 2);
}

#[test]
fn nop_segments_are_ignored() {
    let wqe = bytes(&[0, 0x8502, 8, 0, 0x8000_0fff, 1, 2, 3]);
    let nop = SendWqe::parse(&wqe, Service::Rc, Qpn::new(0x85)).unwrap();
    assert_eq!((nop.operation, nop.data.len()), (Operation::Nop, 0));
}

/// Section 12.1: L_Key 100h with a byte count of 0 ends the list.
#[test]
fn receive_list_ends_at_terminate_key() {
    let entry = bytes(&[0x200, 0xb04, 0x5567, 0xbe5f_6000, 0, 0x100, 0, 0, 4, 0x801, 0, 0]);
    let wqe = RecvWqe::parse(&entry);
    assert_eq!(wqe.scatter.as_slice(), [data(0x200, 0xb04, 0x5567_be5f_6000)]);
    assert_eq!(wqe.emit(32), entry[..32]);
    assert_eq!(wqe.emit(16), entry[..16]);
    assert_eq!(wqe.capacity(), 0x200);
}

/// Section 20, M-24: bit 31 of the byte count is a flag.
#[test]
fn receive_length_excludes_padding_flag() {
    let wqe = RecvWqe::parse(&bytes(&[0x8000_05f2, 0x800, 0, 0x35fb_e040]));
    assert_eq!(wqe.capacity(), 1522);
}

#[test]
fn srq_entry_contains_index_of_next_entry() {
    let entry = bytes(&[7, 0, 0, 0, 0x200, 0xb04, 0, 0x1000]);
    let parsed = SrqEntry::parse(&entry).unwrap();
    assert_eq!((parsed.next, parsed.wqe.capacity()), (7, 0x200));
    assert_eq!(parsed.emit(32), entry);
    assert_eq!(SrqEntry::parse(&entry[..15]), None);
}
