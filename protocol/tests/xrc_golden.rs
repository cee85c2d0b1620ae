//! Tests with XRC packets (IBTA volume 1, table 38 and annex A14). The XRCETH follows the BTH and precedes all other
//! extension headers. The bytes were written by hand because scapy does not support XRC.
#![allow(clippy::unwrap_used, reason = "tests")]

use protocol::ids::{MacAddr, Msn, Pkey, Qpn, Rkey, Srqn, Va};
use protocol::net::ipv4::Fragmentation;
use protocol::roce::{
    Aeth, AtomicEth, Bth, Encap, Ext, FrameWriter, Imm, IpAddrs, Opcode, Operation as O, Packet, Reth,
    RoceFrame, Syndrome,
};
use protocol::{Psn, WireError};

/// The BTH without its opcode: no pad bytes, default P_Key, QP 0xabcdef, PSN 0x123456.
const BTH: [u8; 11] = [0x00, 0xff, 0xff, 0x00, 0xab, 0xcd, 0xef, 0x00, 0x12, 0x34, 0x56];
const XRCETH: [u8; 4] = [0x00, 0x11, 0x22, 0x33];
const RETH: [u8; 16] = [0, 0, 0, 0, 0, 0, 0x10, 0, 0x55, 0x66, 0x77, 0x88, 0, 0, 0, 8];
const ATOMIC_ETH: [u8; 28] =
    [0, 0, 0, 0, 0, 0, 0x10, 0, 0x55, 0x66, 0x77, 0x88, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6];
const AETH: [u8; 4] = [0x1f, 0, 0, 9];
const IMM: [u8; 4] = [1, 2, 3, 4];
const RKEY: [u8; 4] = [0x55, 0x66, 0x77, 0x88];
const DATA: [u8; 8] = [8, 7, 6, 5, 4, 3, 2, 1];

/// Returns, for each XRC packet, its operation, its opcode, the bytes after the BTH, and the parsed extension headers.
fn packets() -> [(O, u8, Vec<u8>, Ext); 23] {
    let reth = Reth { va: Va::new(0x1000), rkey: Rkey::new(0x5566_7788), dma_len: 8 };
    let atomic = AtomicEth { va: Va::new(0x1000), rkey: Rkey::new(0x5566_7788), swap_add: 5, compare: 6 };
    let aeth = Aeth { syndrome: Syndrome::ACK, msn: Msn::new(9) };
    let imm = Imm(IMM);
    let bytes = |parts: &[&[u8]]| parts.concat();
    [
        (O::SendFirst, 0xa0, bytes(&[&XRCETH, &DATA]), Ext::None),
        (O::SendMiddle, 0xa1, bytes(&[&XRCETH, &DATA]), Ext::None),
        (O::SendLast, 0xa2, bytes(&[&XRCETH, &DATA]), Ext::None),
        (O::SendLastImm, 0xa3, bytes(&[&XRCETH, &IMM, &DATA]), Ext::Imm(imm)),
        (O::SendOnly, 0xa4, bytes(&[&XRCETH, &DATA]), Ext::None),
        (O::SendOnlyImm, 0xa5, bytes(&[&XRCETH, &IMM, &DATA]), Ext::Imm(imm)),
        (O::WriteFirst, 0xa6, bytes(&[&XRCETH, &RETH, &DATA]), Ext::Reth(reth)),
        (O::WriteMiddle, 0xa7, bytes(&[&XRCETH, &DATA]), Ext::None),
        (O::WriteLast, 0xa8, bytes(&[&XRCETH, &DATA]), Ext::None),
        (O::WriteLastImm, 0xa9, bytes(&[&XRCETH, &IMM, &DATA]), Ext::Imm(imm)),
        (O::WriteOnly, 0xaa, bytes(&[&XRCETH, &RETH, &DATA]), Ext::Reth(reth)),
        (O::WriteOnlyImm, 0xab, bytes(&[&XRCETH, &RETH, &IMM, &DATA]), Ext::RethImm(reth, imm)),
        (O::ReadRequest, 0xac, bytes(&[&XRCETH, &RETH]), Ext::Reth(reth)),
        (O::ReadResponseFirst, 0xad, bytes(&[&AETH, &DATA]), Ext::Aeth(aeth)),
        (O::ReadResponseMiddle, 0xae, bytes(&[&DATA]), Ext::None),
        (O::ReadResponseLast, 0xaf, bytes(&[&AETH, &DATA]), Ext::Aeth(aeth)),
        (O::ReadResponseOnly, 0xb0, bytes(&[&AETH, &DATA]), Ext::Aeth(aeth)),
        (O::Acknowledge, 0xb1, bytes(&[&AETH]), Ext::Aeth(aeth)),
        (O::AtomicAcknowledge, 0xb2, bytes(&[&AETH, &DATA]), Ext::AtomicAck(aeth, u64::from_be_bytes(DATA))),
        (O::CompareSwap, 0xb3, bytes(&[&XRCETH, &ATOMIC_ETH]), Ext::Atomic(atomic)),
        (O::FetchAdd, 0xb4, bytes(&[&XRCETH, &ATOMIC_ETH]), Ext::Atomic(atomic)),
        (O::SendLastInvalidate, 0xb6, bytes(&[&XRCETH, &RKEY, &DATA]), Ext::Invalidate(reth.rkey)),
        (O::SendOnlyInvalidate, 0xb7, bytes(&[&XRCETH, &RKEY, &DATA]), Ext::Invalidate(reth.rkey)),
    ]
}

fn bth(opcode: Opcode) -> Bth {
    Bth {
        opcode,
        solicited: false,
        mig_req: false,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qp: Qpn::new(0xab_cdef),
        ack_req: false,
        psn: Psn::new(0x12_3456),
    }
}

#[test]
fn xrceth_precedes_other_headers() {
    let encap = Encap {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        ip: IpAddrs::V4 { src: [10, 77, 0, 1].into(), dst: [10, 77, 0, 2].into() },
        traffic_class: 0,
        flow_label: Default::default(),
        hop_limit: 64,
        fragment: Fragmentation::default(),
        tag: None,
        src_port: 0xc123,
    };
    for (operation, code, rest, ext) in packets() {
        let bytes = [&[code][..], &BTH, &rest].concat();
        let opcode = Opcode::xrc(operation);
        let srqn = rest.starts_with(&XRCETH).then(|| Srqn::new(0x11_2233));
        let has_data = rest.ends_with(&DATA) && operation != O::AtomicAcknowledge;
        let payload = if has_data { &DATA[..] } else { &[] };
        let packet = Packet { bth: bth(opcode), srqn, ext, payload };
        assert_eq!(Packet::parse(&bytes), Ok(packet), "{opcode}");
        let mut out = Vec::new();
        let mut writer = FrameWriter::with_xrceth(&mut out, &encap, &bth(opcode), srqn, &ext, payload.len());
        writer.extend(payload);
        writer.finish();
        assert_eq!(out[42..out.len() - 4], bytes, "{opcode}");
        assert_eq!(RoceFrame::parse(&out), Ok(RoceFrame { encap, packet }), "{opcode}");
    }
}

/// IBTA volume 1, section 9.1: reserved fields are ignored on receipt.
#[test]
fn reserved_bits_of_xrceth_are_ignored() {
    let bytes = [&[0xa4][..], &BTH, &[0xff, 0x11, 0x22, 0x33], &DATA].concat();
    assert_eq!(Packet::parse(&bytes).unwrap().srqn, Some(Srqn::new(0x11_2233)));
}

#[test]
fn rejects_truncated_xrceth() {
    let bytes = [&[0xa4][..], &BTH, &[0x00, 0x11, 0x22]].concat();
    assert_eq!(Packet::parse(&bytes), Err(WireError::Short { what: "XRCETH", need: 4, have: 3 }));
}

/// A reserved opcode does not define extension headers.
#[test]
fn reserved_xrc_opcode_has_no_xrceth() {
    let bytes = [&[0xb5][..], &BTH, &DATA].concat();
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!((packet.srqn, packet.ext, packet.payload), (None, Ext::None, &DATA[..]));
}
