//! Fuzz targets. `protocol/tests/corpus.rs` also runs them on the corpus.

pub mod context;
pub mod jingzhao;
pub mod mad;
pub mod mlx5;
pub mod mthca;

use protocol::net::arp::Arp;
use protocol::net::ether::EtherFrame;
use protocol::net::icmp::EchoRequest;
use protocol::net::ipv4::Ipv4;
use protocol::roce::{FrameWriter, MAX_PAYLOAD, Mtu, Offload, Packet, RoceFrame, for_each_frame, seal};

pub type Target = fn(&[u8]);

/// All targets, each with its corpus name.
pub const TARGETS: &[(&str, Target)] = &[
    ("decode_context", context::decode_context),
    ("decode_frame", decode_frame),
    ("decode_mad", mad::decode_mad),
    ("decode_mailbox", jingzhao::decode_mailbox),
    ("decode_mlx5_command", mlx5::decode_mlx5_command),
    ("decode_mlx5_context", mlx5::decode_mlx5_context),
    ("decode_mlx5_wqe", mlx5::decode_mlx5_wqe),
    ("decode_mthca", mthca::decode_mthca),
    ("decode_wqe", jingzhao::decode_wqe),
];

/// Decodes a frame in every way that a port does. An accepted frame must round-trip.
///
/// The ICRC check rejects almost all mutations, so the transport headers are also decoded without it.
pub fn decode_frame(frame: &[u8]) {
    let _ = Packet::parse(frame.get(42..).unwrap_or_default());
    let _ = Packet::parse(frame);
    if let Ok(ether) = EtherFrame::parse(frame) {
        let _ = ether.is_roce();
        let _ = Arp::parse(ether.payload);
        if let Ok((_, payload)) = Ipv4::parse(ether.payload) {
            let _ = EchoRequest::parse(payload);
        }
    }
    // A frame that parses with the ICRC check disabled must parse to the same value after `seal` has computed its
    // checksums.
    let mut sealed = frame.to_vec();
    let is_sealed = seal(&mut sealed).is_ok();
    if let Ok(unsealed) = RoceFrame::parse_with(frame, Offload::Icrc) {
        assert!(is_sealed);
        assert_eq!(RoceFrame::parse(&sealed), Ok(unsealed));
    }
    for mtu in Mtu::ALL {
        let mut payload_len = 0;
        let divided = for_each_frame(frame, mtu, |frame| {
            let packet = RoceFrame::parse(frame).expect("frames of packets are in wire format").packet;
            payload_len += packet.payload.len();
        });
        if divided.is_ok() {
            let whole = RoceFrame::parse_with(frame, Offload::Segmentation(mtu))
                .map(|frame| frame.packet.payload.len());
            assert_eq!(whole, Ok(payload_len));
        }
    }
    let Ok(first) = RoceFrame::parse(frame) else { return };
    let Packet { bth, srqn, ext, payload } = first.packet;
    if payload.len() > MAX_PAYLOAD {
        return;
    }
    let mut out = Vec::new();
    let mut writer = FrameWriter::with_xrceth(&mut out, &first.encap, &bth, srqn, &ext, payload.len());
    writer.extend(payload);
    writer.finish();
    assert_eq!(RoceFrame::parse(&out), Ok(first));
}
