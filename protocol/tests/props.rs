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
    Aeth, AtomicEth, Bth, Deth, Encap, Ext, FrameWriter, Imm, IpAddrs, MAX_OFFLOADED_PAYLOAD, MAX_PAYLOAD,
    Mtu, Offload, Opcode, Packet, Reth, RoceFrame, Syndrome, for_each_frame, seal,
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

/// Returns the number of bytes from the BTH through the ICRC when the packet is sent in a frame of its own.
fn packet_bytes(frame: &RoceFrame<'_>, encap: &Encap) -> usize {
    let Packet { bth, srqn, ext, payload } = frame.packet;
    let mut out = Vec::new();
    let mut writer = FrameWriter::with_xrceth(&mut out, encap, &bth, srqn, &ext, payload.len());
    writer.extend(payload);
    let ip_header = if matches!(encap.ip, IpAddrs::V4 { .. }) { 20 } else { 40 };
    writer.finish() - if encap.tag.is_some() { 18 } else { 14 } - ip_header - 8
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
    fn frame_with_model_equals_frame_without(
        encap in encaps(),
        bth in bths(),
        draws in any::<[[u64; 4]; 2]>(),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        sequence in any::<(u32, bool)>(),
        offload in prop::sample::select(&[Offload::None, Offload::Icrc]),
    ) {
        let first = Bth { psn: Psn::new(sequence.0), solicited: sequence.1, ..bth };
        let [(srqn_of_first, ext_of_first), (srqn, ext)] =
            draws.map(|draw| (srqn(&bth, draw), ext(bth.opcode.ext_kind(), draw)));
        let len = payload.len();
        let mut out = vec![0xee; 3];
        FrameWriter::with_xrceth(&mut out, &encap, &first, srqn_of_first, &ext_of_first, len).finish_with(offload);
        let end = out.len();
        let sequence = (bth.psn, bth.solicited);
        let mut writer = FrameWriter::with_model(&mut out, 3, &encap, sequence, srqn, &ext, len);
        writer.extend(&payload);
        writer.finish_with(offload);
        let mut expected = Vec::new();
        let mut writer = FrameWriter::with_xrceth(&mut expected, &encap, &bth, srqn, &ext, len);
        writer.extend(&payload);
        writer.finish_with(offload);
        prop_assert_eq!(&out[end..], &expected[..]);
    }

    /// Concatenating the payloads of the frames yields the original payload.
    #[test]
    fn segmented_frame_yields_consecutive_packets(
        encap in encaps(),
        bth in bths(),
        draw in any::<[u64; 4]>(),
        mtu in prop::sample::select(&Mtu::ALL),
        len in 0..=MAX_OFFLOADED_PAYLOAD,
    ) {
        let (srqn, ext) = (srqn(&bth, draw), ext(bth.opcode.ext_kind(), draw));
        let payload: Vec<u8> = (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect();
        let packet = Packet { bth, srqn, ext, payload: &payload };
        let offload = Offload::Segmentation(mtu);
        let mut out = Vec::new();
        let mut writer = FrameWriter::with_xrceth(&mut out, &encap, &bth, srqn, &ext, len);
        writer.extend(&payload);
        writer.finish_with(offload);
        let mut frames = Vec::new();
        let divided = for_each_frame(&out, mtu, |frame| frames.push(frame.to_vec()));
        let parsed = RoceFrame::parse_with(&out, offload);
        if packet.segment_count(mtu) == 1 && len > MAX_PAYLOAD {
            prop_assert!(divided.is_err() && parsed.is_err(), "the packet cannot be divided");
            return Ok(());
        }
        prop_assert_eq!(parsed, Ok(RoceFrame { encap, packet }));
        prop_assert_eq!(divided, Ok(()));
        let frames: Vec<_> = frames.iter().map(|frame| RoceFrame::parse(frame).unwrap()).collect();
        let joined: Vec<u8> = frames.iter().flat_map(|frame| frame.packet.payload).copied().collect();
        prop_assert_eq!(joined, payload.clone());
        let last = frames.len() - 1;
        for (index, frame) in frames.iter().enumerate() {
            let RoceFrame { encap: found, packet: part } = frame;
            let operation = part.bth.opcode.operation;
            prop_assert_eq!((*found, part.srqn), (encap, srqn));
            prop_assert_eq!(part.bth.psn, bth.psn.advance(u32::try_from(index).unwrap()));
            prop_assert_eq!(operation.kind(), bth.opcode.operation.kind());
            prop_assert_eq!(part.ext.kind(), part.bth.opcode.ext_kind());
            prop_assert_eq!(part.bth.ack_req, bth.ack_req && index == last);
            prop_assert_eq!(part.bth.solicited, bth.solicited && index == last);
            let whole = bth.opcode.operation.position();
            prop_assert_eq!(operation.position().begins(), whole.begins() && index == 0);
            prop_assert_eq!(operation.position().ends(), whole.ends() && index == last);
            prop_assert!(index == last || part.payload.len() == mtu.bytes());
            prop_assert_eq!(part.wire_len(), packet_bytes(frame, &encap));
        }
        let (first, last) = (frames[0].packet.ext, frames[last].packet.ext);
        match ext {
            Ext::Reth(_) => prop_assert_eq!(first, ext),
            Ext::RethImm(reth, imm) if frames.len() > 1 => {
                prop_assert_eq!((first, last), (Ext::Reth(reth), Ext::Imm(imm)));
            }
            _ if bth.opcode.operation.position().ends() => prop_assert_eq!(last, ext),
            _ => prop_assert_eq!(first, ext),
        }
    }

    #[test]
    fn packets_in_run_differ_only_in_psn_and_payload(
        bth in bths(),
        draw in any::<[u64; 4]>(),
        mtu in prop::sample::select(&Mtu::ALL),
        len in 0..=MAX_OFFLOADED_PAYLOAD,
    ) {
        let payload = vec![0; len];
        let (srqn, ext) = (srqn(&bth, draw), ext(bth.opcode.ext_kind(), draw));
        let packet = Packet { bth, srqn, ext, payload: &payload };
        let in_runs: Vec<_> = packet
            .segment_runs(mtu)
            .flat_map(|(first, packets)| (0..packets).map(move |number| (first, number)))
            .collect();
        let segments: Vec<_> = packet.segments(mtu).collect();
        prop_assert_eq!(in_runs.len(), segments.len());
        for ((first, number), segment) in in_runs.into_iter().zip(segments) {
            let alike = Bth { psn: first.bth.psn.advance(number), ..first.bth };
            prop_assert_eq!((segment.bth, segment.srqn, segment.ext), (alike, first.srqn, first.ext));
            prop_assert_eq!(segment.payload.len(), first.payload.len());
        }
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
        let _ = for_each_frame(&out, Mtu::Mtu256, |_| {});
        let _ = seal(&mut out.clone());
        let _ = EtherFrame::parse(&out).map(|frame| frame.is_roce());
        let _ = Packet::parse(out.get(42..).unwrap_or_default());
    }
}
