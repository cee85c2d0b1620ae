//! Builds frames that a device accepts from its peer.

use protocol::Psn;
use protocol::ids::{FlowLabel, Msn, Pkey, Qpn, Srqn};
use protocol::net::ipv4::Fragmentation;
use protocol::roce::{Aeth, Bth, Encap, Ext, FrameWriter, IpAddrs, NakCode, Opcode, Syndrome};

use super::input::Input;
use super::machine::{Aim, PSN};

/// Returns the headers of a frame addressed to this port and sent by the peer or by the port itself.
fn headers(aim: &Aim, own: bool) -> Encap {
    let [to, peer] = aim.ends;
    let from = if own { to } else { peer };
    Encap {
        src_mac: from.mac,
        dst_mac: to.mac,
        ip: IpAddrs::V4 { src: from.ipv4, dst: to.ipv4 },
        traffic_class: 0,
        flow_label: FlowLabel::default(),
        hop_limit: 64,
        fragment: Fragmentation::default(),
        tag: None,
        src_port: 0xc000,
    }
}

/// Returns a frame with a correct ICRC, addressed to this port and sent by the peer or by the port itself.
pub(crate) fn request(aim: &Aim, input: &mut Input<'_>) -> Vec<u8> {
    let opcode = match input.byte() {
        // Defined RC opcodes.
        byte @ 0..192 => Opcode::from_byte(byte % 24),
        byte => Opcode::from_byte(byte.wrapping_mul(7)),
    };
    let flags = input.byte();
    let near = i32::from(input.byte().cast_signed() / 16);
    let bth = Bth {
        opcode,
        solicited: flags & 1 != 0,
        mig_req: flags & 2 != 0,
        pkey: Pkey::DEFAULT,
        fecn: flags & 4 != 0,
        becn: flags & 8 != 0,
        dest_qp: Qpn::new(aim.qpn(input)),
        ack_req: flags & 16 != 0,
        psn: Psn::new(PSN.wrapping_add_signed(near)),
    };
    let mut raw = [0; 64];
    let given = input.bytes(64);
    raw[..given.len()].copy_from_slice(given);
    // Give half of the extension headers the address and key of the data region, since a random key is almost always
    // invalid.
    if flags & 0x80 == 0 {
        let low = u64::from(raw[7]) << 3;
        raw[..8].copy_from_slice(&(aim.va + low).to_be_bytes());
        raw[8..12].copy_from_slice(&aim.key.to_be_bytes());
        raw[12..14].fill(0);
    }
    let ext = Ext::parse(opcode.ext_kind(), &raw).map_or(Ext::None, |(ext, _)| ext);
    let len = match flags >> 5 {
        0 => 0,
        1 | 4 => 256,
        2 => 1024,
        3 | 5 => 4096,
        _ => usize::from(input.byte()),
    };
    let srqn = opcode.has_xrceth().then(|| Srqn::new(flags.into()));
    let mut frame = Vec::new();
    let headers = headers(aim, flags & 0x40 != 0);
    FrameWriter::with_xrceth(&mut frame, &headers, &bth, srqn, &ext, len).finish();
    frame
}

/// Returns the peer's reply to a recently sent packet.
pub(crate) fn response(aim: &Aim, sent: Psn, input: &mut Input<'_>) -> Vec<u8> {
    let (choice, back, qpn) = (input.byte(), i32::from(input.byte().cast_signed() / 32), aim.qpn(input));
    let syndrome = match choice >> 4 {
        0..10 => Syndrome::ACK,
        10 => Syndrome::Nak(NakCode::PsnSequence),
        11 => Syndrome::Nak(NakCode::InvalidRequest),
        12 => Syndrome::Nak(NakCode::RemoteAccess),
        13 => Syndrome::RnrNak { timer: input.byte() % 32 },
        14 => Syndrome::Ack { credits: input.byte() % 32 },
        _ => Syndrome::from_byte(input.byte()),
    };
    let aeth = Aeth { syndrome, msn: Msn::new(input.byte().into()) };
    // Opcodes of READ responses, ACKs and atomic ACKs.
    let opcode = Opcode::from_byte([0x11, 0x0d, 0x0e, 0x0f, 0x10, 0x12, 0x11, 0x10][usize::from(choice % 8)]);
    let ext = match opcode.to_byte() {
        0x0e => Ext::None,
        0x12 => Ext::AtomicAck(aeth, 7),
        _ => Ext::Aeth(aeth),
    };
    let len = match opcode.to_byte() {
        0x11 | 0x12 => 0,
        0x0d | 0x0e => 256,
        _ => usize::from(input.byte()),
    };
    let bth = Bth {
        opcode,
        solicited: false,
        mig_req: true,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qp: Qpn::new(qpn),
        ack_req: false,
        psn: Psn::new(sent.get().wrapping_add_signed(back)),
    };
    let mut frame = Vec::new();
    FrameWriter::new(&mut frame, &headers(aim, false), &bth, &ext, len).finish();
    frame
}
