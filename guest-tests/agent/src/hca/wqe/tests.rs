use super::super::test_bytes::hex;
use super::*;
use crate::wire::{Path, Remote};

const SGE: Sge = Sge { lkey: 0x2_0005, addr: 0x7f00_1234_5678, len: 64 };
const PAGE_SGE: Sge = Sge { lkey: 0x2_0005, addr: 0x7f00_1234_6000, len: 4096 };

fn send(sges: Vec<Sge>) -> SendRequest {
    SendRequest { data: Data::Sges(sges), ..SendRequest::default() }
}

#[test]
fn send_matches_specification_vector() {
    let wqe = SendWqe::new(Service::Rc, &send(vec![SGE])).unwrap();
    let expected = hex("00 00 00 00 00 00 00 00 08 00 00 00 00 00 00 00
         40 00 00 00 05 00 02 00 78 56 34 12 00 7F 00 00");
    assert_eq!(wqe.bytes(), expected);
}

#[test]
fn linked_write_matches_specification_vector() {
    let request = SendRequest {
        op: SendOp::WriteImm,
        data: Data::Sges(vec![PAGE_SGE]),
        remote: Some(Remote { va: 0x7f00_aabb_0000, rkey: 0x777 }),
        imm: [0x11, 0x22, 0x33, 0x44],
        ..SendRequest::default()
    };
    let wqe = SendWqe::new(Service::Rc, &request).unwrap();
    let link = SendWqe::new(Service::Rc, &send(vec![SGE])).unwrap().link(8);
    let expected = hex("0A 02 00 00 82 00 00 00 08 00 00 00 11 22 33 44
         00 00 BB AA 00 7F 00 00 77 07 00 00 00 00 00 00
         00 10 00 00 05 00 02 00 00 60 34 12 00 7F 00 00");
    assert_eq!([&link, &wqe.bytes()[link.len()..]].concat(), expected);
}

#[test]
fn inline_data_matches_specification_vector() {
    let request = SendRequest { data: Data::Inline(Hex(b"HELLO".to_vec())), ..SendRequest::default() };
    let wqe = SendWqe::new(Service::Rc, &request).unwrap();
    assert_eq!(wqe.bytes().len(), 2 * UNIT);
    assert_eq!(wqe.bytes()[UNIT..], hex("05 00 00 80 48 45 4C 4C 4F 00 00 00 00 00 00 00"));
}

#[test]
fn inline_data_is_padded_to_whole_units() {
    for (len, units) in [(0, 2), (12, 2), (13, 3), (28, 3), (29, 4)] {
        let request = SendRequest { data: Data::Inline(Hex(vec![7; len])), ..SendRequest::default() };
        let wqe = SendWqe::new(Service::Rc, &request).unwrap();
        assert_eq!(wqe.bytes().len(), units * UNIT, "{len} bytes");
    }
}

#[test]
fn atomic_wqe_puts_swap_before_compare() {
    let request = SendRequest {
        op: SendOp::CmpSwap { compare: 0x1111, swap: 0x2222 },
        data: Data::Sges(vec![Sge { len: 8, ..SGE }]),
        remote: Some(Remote { va: 0x1000, rkey: 1 }),
        ..SendRequest::default()
    };
    let wqe = SendWqe::new(Service::Rc, &request).unwrap();
    assert_eq!(wqe.bytes().len(), 4 * UNIT);
    assert_eq!(wqe.bytes()[0x20..0x30], hex("22 22 00 00 00 00 00 00 11 11 00 00 00 00 00 00"));
}

#[test]
fn doorbells_match_specification_vectors() {
    let wqe = SendWqe::new(Service::Rc, &send(vec![SGE])).unwrap();
    let bytes = |head| {
        let (word0, word1) = wqe.doorbell(5, head);
        [word0.to_le_bytes(), word1.to_le_bytes()].concat()
    };
    assert_eq!(bytes(0), hex("0A 00 00 00 02 05 00 00"));
    assert_eq!(bytes(8), hex("0A 08 00 00 02 05 00 00"));
}

#[test]
fn receives_match_specification_vectors() {
    let list = valid_receive(&[PAGE_SGE], 128).unwrap();
    assert_eq!(VALID.to_le_bytes(), [0x20, 0, 0, 0]);
    let expected = hex("00 10 00 00 05 00 02 00 00 60 34 12 00 7F 00 00
         00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00");
    assert_eq!(list, expected);

    let list = terminated_receive(&[PAGE_SGE], 128).unwrap();
    let expected = hex("00 10 00 00 05 00 02 00 00 60 34 12 00 7F 00 00
         00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00");
    assert_eq!(list, expected);
    assert_eq!(kernel_slot(128, 80)[..8], hex("80 00 00 00 05 00 00 00"));
}

#[test]
fn full_receive_list_has_no_terminator() {
    assert_eq!(unterminated_receive(&[SGE], 128).unwrap().len(), UNIT);
    assert_eq!(valid_receive(&[SGE; 7], 128).unwrap().len(), 7 * UNIT);
    assert!(valid_receive(&[SGE; 8], 128).is_err());
}

#[test]
fn ud_destination_matches_specification_vector() {
    let datagram = Datagram {
        qpn: 0x12,
        qkey: 0x1111_1111,
        path: Path {
            smac: Some([0x52, 0x54, 0, 0, 0, 1]),
            dmac: Some([0x52, 0x54, 0, 1, 0, 2]),
            sip: Some([10, 0, 0, 1].into()),
            dip: Some([10, 0, 0, 2].into()),
            ..Path::default()
        },
    };
    let expected = hex("01 00 00 00 01 00 02 00 00 00 54 52 01 00 54 52
         01 00 00 0A 02 00 00 0A 00 00 00 00 00 00 00 00
         12 00 00 00 11 11 11 11 00 00 00 00 00 00 00 00");
    assert_eq!(ud_unit(&datagram).unwrap().as_slice(), expected);
}

#[test]
fn completions_match_specification_vectors() {
    let cqe = |text: &str| parse_cqe(&hex(text).try_into().unwrap());

    let sent = cqe("05 00 00 00 00 00 00 00 09 00 00 00 00 00 02 00
         00 00 00 00 40 00 00 00 80 00 00 00 0A 01 00 00");
    assert_eq!((sent.qpn, sent.remote_qpn, sent.remote_lid), (5, 9, 2));
    assert_eq!((sent.byte_count, sent.wqe, sent.opcode, sent.is_send), (64, 0x80, 0x0a, true));
    assert_eq!(sent.syndrome, None);

    let received = cqe("05 00 00 00 00 00 00 00 09 00 00 00 00 00 02 00
         11 22 33 44 00 10 00 00 00 00 00 00 0B 00 00 00");
    assert_eq!((received.imm, received.byte_count), ([0x11, 0x22, 0x33, 0x44], 4096));
    assert_eq!((received.wqe, received.opcode, received.is_send), (0, 0x0b, false));

    let flushed = cqe("05 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
         05 00 00 00 00 00 00 00 00 01 00 00 FE 00 00 00");
    assert_eq!((flushed.syndrome, flushed.wqe, flushed.is_send), (Some(0x05), 0x100, false));

    let refused = cqe("05 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
         13 00 00 00 00 00 00 00 80 00 00 00 FF 00 00 00");
    assert_eq!((refused.syndrome, refused.wqe, refused.is_send), (Some(0x13), 0x80, true));
}
