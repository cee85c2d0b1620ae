//! Tests partitions, QP0 and QP1.
//!
//! # Spec
//! IBTA volume 1, sections 9.6.1.1.3 (P_Key), 10.9 (partitions), 13.5 (QP0 and QP1).

use crate::common::*;
use engine::*;
use protocol::Psn;
use protocol::ids::{FlowLabel, Pkey, Qkey, Qpn};
use protocol::roce::*;

const SMI: Qpn = Qpn::new(0x50);
const GSI: Qpn = Qpn::new(0x52);
const GSI_QKEY: Qkey = Qkey::new(0x8001_0000);

fn p(psn: u32) -> Psn {
    Psn::new(psn)
}

/// Returns a pair whose sides also have QP0 and QP1, with two receive requests each.
fn managed() -> Pair {
    let mut pair = Pair::new();
    for node in [A, B] {
        for (qpn, service) in [(SMI, Service::Smi), (GSI, Service::Gsi)] {
            let attrs = QpAttrs { service, qkey: GSI_QKEY, grh_area: GrhArea::InfiniBand, ..attrs(node) };
            pair.add(node, qpn, attrs);
            for wr_id in 0..2 {
                pair.side(node).host.post_recv(qpn, wr_id, &[sge(0x8000, 296)]);
            }
        }
        pair.side(node).engine.set_smi(Some(SMI));
        pair.side(node).engine.set_gsi(Some(GSI));
    }
    pair
}

fn arrive(pair: &mut Pair, dest_qp: u32, qkey: Qkey, pkey: u16) {
    arrive_from(pair, dest_qp, dest_qp, qkey, pkey);
}

fn arrive_from(pair: &mut Pair, src_qp: u32, dest_qp: u32, qkey: Qkey, pkey: u16) {
    let deth = Ext::Deth(Deth { qkey, src_qp: Qpn::new(src_qp) });
    pair.inject_with(B, Operation::SendOnly, p(0), deth, &[7; 256], |bth| {
        bth.opcode = Opcode::ud(Operation::SendOnly);
        (bth.dest_qp, bth.pkey) = (Qpn::new(dest_qp), Pkey::new(pkey));
    });
}

fn receivers(pair: &mut Pair) -> Vec<(Qpn, u16)> {
    let index = |done: Completion| match done.result {
        Ok(Success::Recv(recv)) => (done.qpn, recv.pkey_index),
        other => panic!("{other:?}"),
    };
    pair.b.completions.drain(..).map(index).collect()
}

#[test]
fn smi_and_gsi_qps_receive_only_packets_to_qp0_and_qp1() {
    let mut pair = managed();
    arrive(&mut pair, 0, GSI_QKEY, 0xffff);
    arrive(&mut pair, 1, GSI_QKEY, 0xffff);
    assert_eq!(receivers(&mut pair), [(SMI, 0), (GSI, 0)]);
    arrive(&mut pair, SMI.get(), GSI_QKEY, 0xffff);
    arrive(&mut pair, GSI.get(), GSI_QKEY, 0xffff);
    assert_eq!(receivers(&mut pair), []);
    assert_eq!(pair.b.engine.stats().drops.unknown_qp, 2);
    pair.b.engine.set_smi(None);
    arrive(&mut pair, 0, GSI_QKEY, 0xffff);
    assert_eq!(pair.b.engine.stats().drops.unknown_qp, 3);
}

#[test]
fn qp0_ignores_keys_and_gsi_requires_well_known_qkey() {
    let mut pair = managed();
    pair.b.engine.set_pkeys(&[0xffff, 0, 0x8005, 0x7006].map(Pkey::new));
    arrive(&mut pair, 0, Qkey::new(0), 0x1234);
    arrive(&mut pair, 1, GSI_QKEY, 0x8005);
    arrive(&mut pair, 1, GSI_QKEY, 0xf006);
    assert_eq!(receivers(&mut pair), [(SMI, 0), (GSI, 2), (GSI, 3)]);
    arrive(&mut pair, 1, Qkey::new(0x8001_0001), 0xffff);
    arrive(&mut pair, 1, GSI_QKEY, 0x8000);
    arrive(&mut pair, 1, GSI_QKEY, 0x7006);
    assert_eq!(receivers(&mut pair), []);
    let drops = pair.b.engine.stats().drops;
    assert_eq!((drops.wrong_qkey, drops.wrong_pkey), (1, 2));
}

/// Only QP0 can send on VL15. A program that sends to QP0 from its own QP must not reach the agent behind QP0.
#[test]
fn qp0_drops_datagrams_of_other_qps() {
    let mut pair = managed();
    for src_qp in [1, A.qpn().get(), SMI.get()] {
        arrive_from(&mut pair, src_qp, 0, GSI_QKEY, 0xffff);
    }
    assert_eq!(receivers(&mut pair), []);
    assert_eq!(pair.b.engine.stats().drops.wrong_source, 3);
    arrive_from(&mut pair, A.qpn().get(), 1, GSI_QKEY, 0xffff);
    assert_eq!(receivers(&mut pair), [(GSI, 0)]);
}

#[test]
fn qp0_without_receive_request_counts_vl15_dropped() {
    let mut pair = managed();
    for qp in [0, 1] {
        for _ in 0..3 {
            arrive(&mut pair, qp, GSI_QKEY, 0xffff);
        }
    }
    let drops = pair.b.engine.stats().drops;
    assert_eq!((drops.vl15_dropped, drops.no_receive), (1, 1));
}

fn mad(wr_id: u64, to: u32, header: Option<ReadyHeader>) -> SendRequest {
    let to = UdDestination { path: A.path(), qpn: Qpn::new(to), qkey: GSI_QKEY, header };
    SendRequest { ud: Some(to), ..send(wr_id, 256) }
}

fn headers(frame: &[u8]) -> (Bth, Deth) {
    let RoceFrame { packet, .. } = RoceFrame::parse(frame).expect("engine frames are valid");
    let Ext::Deth(deth) = packet.ext else { panic!("{packet:?}") };
    (packet.bth, deth)
}

#[test]
fn software_supplied_headers_are_sent_unchanged() {
    let mut pair = managed();
    let header = ReadyHeader { pkey: Pkey::new(0x8123), psn: p(0x777), src_qp: Qpn::new(0) };
    pair.post_on(A, GSI, mad(1, 1, Some(header)));
    // QPs other than QP0 and QP1 ignore supplied headers.
    pair.post(A, send(2, 0));
    let frames = pair.frames(A);
    let (bth, deth) = headers(&frames[0]);
    assert_eq!((bth.dest_qp, bth.pkey, bth.psn), (Qpn::new(1), Pkey::new(0x8123), p(0x777)));
    assert_eq!((deth.qkey, deth.src_qp), (GSI_QKEY, Qpn::new(0)));
    assert!(bth.opcode == Opcode::ud(Operation::SendOnly) && !bth.ack_req);
}

#[test]
fn mad_without_supplied_header_uses_qp_values() {
    let mut pair = managed();
    pair.a.engine.set_pkeys(&[Pkey::new(0x8042)]);
    pair.post_on(A, GSI, mad(1, 1, None));
    let (bth, deth) = headers(&pair.frames(A)[0]);
    assert_eq!((bth.pkey, bth.psn), (Pkey::new(0x8042), psn_a()));
    assert_eq!((deth.qkey, deth.src_qp), (GSI_QKEY, Qpn::new(1)));
}

#[test]
fn ordinary_ud_qp_ignores_supplied_headers() {
    let mut pair = Pair::with(|_, attrs| attrs.service = Service::Ud);
    let header = ReadyHeader { pkey: Pkey::new(0x8123), psn: p(0x777), src_qp: Qpn::new(0) };
    pair.post(A, mad(1, B.qpn().get(), Some(header)));
    let (bth, deth) = headers(&pair.frames(A)[0]);
    assert_eq!((bth.pkey, bth.psn), (Pkey::DEFAULT, psn_a()));
    // A controlled Q_Key is replaced with the QP's Q_Key.
    assert_eq!((deth.qkey, deth.src_qp), (Qkey::new(0x1111_1111), A.qpn()));
}

#[test]
fn pkey_table_changes_affect_existing_qps() {
    let mut pair = Pair::with(|_, attrs| attrs.pkey_index = 1);
    for node in [A, B] {
        pair.side(node).engine.set_pkeys(&[0xffff, 0x8007].map(Pkey::new));
    }
    pair.post(A, write(1, 0x8000, 1));
    let frames = pair.frames(A);
    assert_eq!(RoceFrame::parse(&frames[0]).unwrap().packet.bth.pkey, Pkey::new(0x8007));
    pair.deliver(B, &frames[0]);
    pair.flow();
    assert_eq!(pair.a.sends(), ok([1]));
    // B leaves the partition, so it drops A's packets.
    pair.b.engine.set_pkeys(&[0xffff, 0].map(Pkey::new));
    pair.post(A, write(2, 0x8000, 1));
    assert_eq!(pair.flow().len(), 1);
    assert_eq!(pair.b.engine.stats().drops.wrong_pkey, 1);
    // B is in the partition again, as a limited member. Full members accept its packets.
    pair.b.engine.set_pkeys(&[0xffff, 0x0007].map(Pkey::new));
    pair.advance(TIMEOUT);
    pair.flow();
    assert_eq!(pair.a.sends(), ok([2]));
}

#[test]
fn missing_or_invalid_pkey_matches_nothing() {
    for (entries, index) in [(&[0xffff][..], 1), (&[0xffff, 0x8000], 1), (&[], 0)] {
        let mut pair = Pair::with(|_, attrs| attrs.pkey_index = index);
        let entries: Vec<Pkey> = entries.iter().copied().map(Pkey::new).collect();
        pair.a.engine.set_pkeys(&entries);
        pair.b.engine.set_pkeys(&entries);
        pair.post(A, write(1, 0x8000, 1));
        assert_eq!(pair.flow().len(), 1);
        assert_eq!(pair.b.engine.stats().drops.wrong_pkey, 1, "{entries:?}");
    }
}

/// On an InfiniBand link, the GRH area contains a GRH only if the datagram has one.
#[test]
fn grh_area_is_written_only_if_datagram_has_grh() {
    let mut pair = managed();
    pair.b.host.bytes(KEY)[0x8000..0x8128].fill(0xee);
    arrive(&mut pair, 1, GSI_QKEY, 0xffff);
    let done = |pair: &mut Pair| match pair.b.completions.remove(0).result {
        Ok(Success::Recv(done)) => done,
        other => panic!("{other:?}"),
    };
    let without = done(&mut pair);
    assert_eq!((without.byte_len, without.grh), (296, false));
    assert_eq!(pair.bytes(B, 0x8000, 42), [&[0xee; 40][..], &[7, 7]].concat());
    let deth = Ext::Deth(Deth { qkey: GSI_QKEY, src_qp: Qpn::new(1) });
    let bth = Bth {
        opcode: Opcode::ud(Operation::SendOnly),
        solicited: false,
        mig_req: true,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qp: Qpn::new(1),
        ack_req: false,
        psn: p(0),
    };
    let ip = IpAddrs::V6 { src: "fe80::ff:fe00:1".parse().unwrap(), dst: "fe80::ff:fe00:2".parse().unwrap() };
    let encap =
        Encap { ip, traffic_class: 0x6a, flow_label: FlowLabel::new(0xa_bcde), hop_limit: 3, ..A.path() };
    pair.deliver_packet(B, &encap, &Packet { bth, srqn: None, ext: deth, payload: &[9; 255] });
    let with = done(&mut pair);
    assert_eq!((with.byte_len, with.grh, with.traffic_class), (295, true, 0x6a));
    // IBTA volume 1, section 8.3: version 6, traffic class, flow label, PayLen from BTH to ICRC (12 + 8 + 256 + 4),
    // NxtHdr 1B, hop limit, SGID, DGID.
    #[rustfmt::skip]
    let grh = [
        0x66, 0xaa, 0xbc, 0xde, 0x01, 0x18, 0x1b, 3,
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1,
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 2,
    ];
    assert_eq!(pair.bytes(B, 0x8000, 40), grh);
}
