//! Property tests for parsing and emitting RoCE frames.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use protocol::Psn;
use protocol::ids::{FlowLabel, MacAddr, Msn, Pkey, Qkey, Qpn, Rkey, Srqn, Va};
use protocol::net::arp::Arp;
use protocol::net::ether::EtherFrame;
use protocol::net::icmp::EchoRequest;
use protocol::net::ipv4::{Fragmentation, Ipv4};
use protocol::net::ipv6::Ipv6;
use protocol::net::layers::Tci;
use protocol::roce::ext::ExtKind;
use protocol::roce::{
    Aeth, AtomicEth, Bth, Deth, Encap, Ext, FrameWriter, Offload, Imm, IpAddrs, Opcode, Packet, Reth,
    RoceFrame, Syndrome, seal,
};

fn encaps() -> impl Strategy<Value = Encap> {
    let ip = prop_oneof![
        any::<[u32; 2]>().prop_map(|[src, dst]| IpAddrs::V4 {
            src: Ipv4Addr::from_bits(src),
            dst: Ipv4Addr::from_bits(dst)
        }),
        any::<[u128; 2]>().prop_map(|[src, dst]| IpAddrs::V6 {
            src: Ipv6Addr::from_bits(src),
            dst: Ipv6Addr::from_bits(dst)
        }),
    ];
    (any::<[[u8; 6]; 2]>(), any::<Option<u16>>(), ip, any::<(u8, u32, u8, u16)>()).prop_map(
        |([src_mac, dst_mac], tag, ip, (traffic_class, flow_label, hop_limit, src_port))| Encap {
            src_mac: MacAddr(src_mac),
            dst_mac: MacAddr(dst_mac),
            tag: tag.map(Tci::from_bits),
            ip,
            traffic_class,
            // IPv4 has no flow label.
            flow_label: FlowLabel::new(if let IpAddrs::V6 { .. } = ip { flow_label } else { 0 }),
            hop_limit,
            fragment: Fragmentation::default(),
            src_port,
        },
    )
}

fn bths() -> impl Strategy<Value = Bth> {
    (any::<u8>(), any::<[bool; 5]>(), any::<(u16, u32, u32)>()).prop_map(
        |(opcode, [solicited, mig_req, fecn, becn, ack_req], (pkey, qpn, psn))| Bth {
            opcode: Opcode::from_byte(opcode),
            solicited,
            mig_req,
            pkey: Pkey::new(pkey),
            fecn,
            becn,
            dest_qp: Qpn::new(qpn),
            ack_req,
            psn: Psn::new(psn),
        },
    )
}

/// Returns extension headers of `kind`, with field values taken from the four random numbers.
fn ext(kind: ExtKind, [a, b, c, d]: [u64; 4]) -> Ext {
    let low = |x: u64| u32::try_from(x & 0xffff_ffff).unwrap();
    let imm = Imm(low(a).to_be_bytes());
    let reth = Reth { va: Va::new(b), rkey: Rkey::new(low(c)), dma_len: low(d) };
    let aeth = Aeth { syndrome: Syndrome::from_byte(low(b).to_be_bytes()[3]), msn: Msn::new(low(c)) };
    let deth = Deth { qkey: Qkey::new(low(b)), src_qp: Qpn::new(low(c)) };
    match kind {
        ExtKind::None => Ext::None,
        ExtKind::Imm => Ext::Imm(imm),
        ExtKind::Reth => Ext::Reth(reth),
        ExtKind::RethImm => Ext::RethImm(reth, imm),
        ExtKind::Aeth => Ext::Aeth(aeth),
        ExtKind::AtomicAck => Ext::AtomicAck(aeth, d),
        ExtKind::Atomic => {
            Ext::Atomic(AtomicEth { va: Va::new(a), rkey: Rkey::new(low(b)), swap_add: c, compare: d })
        }
        ExtKind::Deth => Ext::Deth(deth),
        ExtKind::DethImm => Ext::DethImm(deth, imm),
        ExtKind::Invalidate => Ext::Invalidate(Rkey::new(low(a))),
    }
}

/// Returns an SRQ number for the XRCETH, if the opcode requires one.
fn srqn(bth: &Bth, [_, b, _, d]: [u64; 4]) -> Option<Srqn> {
    bth.opcode.has_xrceth().then(|| Srqn::new(u32::try_from((b ^ d) & 0xffff_ffff).unwrap()))
}

proptest! {
    #[test]
    fn emitted_frame_parses_to_same_value(
        encap in encaps(),
        bth in bths(),
        draw in any::<[u64; 4]>(),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let (srqn, ext) = (srqn(&bth, draw), ext(bth.opcode.ext_kind(), draw));
        let mut out = Vec::new();
        let mut writer = FrameWriter::with_xrceth(&mut out, &encap, &bth, srqn, &ext, payload.len());
        writer.extend(&payload);
        writer.finish();
        let packet = Packet { bth, srqn, ext, payload: &payload };
        prop_assert_eq!(RoceFrame::parse(&out), Ok(RoceFrame { encap, packet }));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = RoceFrame::parse(&bytes);
        let _ = Packet::parse(&bytes);
        let _ = EtherFrame::parse(&bytes).map(|frame| frame.is_roce());
        let _ = Ipv4::parse(&bytes);
        let _ = Ipv6::parse(&bytes);
        let _ = Arp::parse(&bytes);
        let _ = EchoRequest::parse(&bytes);
    }

    /// Random bytes rarely parse beyond the first header, but mutated valid frames often do.
    #[test]
    fn mutated_frames_never_panic(
        encap in encaps(),
        bth in bths(),
        draw in any::<[u64; 4]>(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        len in any::<prop::sample::Index>(),
    ) {
        let (srqn, ext) = (srqn(&bth, draw), ext(bth.opcode.ext_kind(), draw));
        let mut out = Vec::new();
        FrameWriter::with_xrceth(&mut out, &encap, &bth, srqn, &ext, 8).finish();
        for (at, value) in flips {
            let at = at.index(out.len());
            out[at] = value;
        }
        out.truncate(len.index(out.len()) + 1);
        let _ = RoceFrame::parse(&out);
        let _ = RoceFrame::parse_with(&out, Offload::Icrc);
        let _ = seal(&mut out.clone());
        let _ = EtherFrame::parse(&out).map(|frame| frame.is_roce());
        let _ = Packet::parse(out.get(42..).unwrap_or_default());
    }
}
