//! Tests of datagrams: UD, QP1 and multicast (mthca interface, sections 6.7, 6.8 and 8.1 to 8.4).

use card::frontend::testing::{exchange, pattern};
use protocol::Psn;
use protocol::hca::mthca::modify::QpAttributes;
use protocol::hca::mthca::path::{Address, AddressVector};
use protocol::hca::mthca::wqe::{Operation, SendWqe, UdSegment};
use protocol::ids::{FlowLabel, Lid, Pdn, Pkey, Qkey, Qpn};
use protocol::net::ipv4::Fragmentation;
use protocol::roce::{self, Bth, Deth, Encap, Ext, FrameWriter, Imm, IpAddrs, Opcode};

use super::user::{QKEY, QPN, UD, User, data, qpc, request, syndromes};
use super::*;

const GROUP: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

fn datagram(address: Address, dqpn: u32, qkey: u32, offset: u64, len: u32) -> SendWqe {
    let vector = AddressVector { port: 1, pd: Pdn::new(1), address };
    let to = UdSegment { vector, dqpn: Qpn::new(dqpn), qkey: Qkey::new(qkey) };
    request(Operation::Datagram { imm: None, to }, offset, len)
}

fn lid(dlid: u16) -> Address {
    Address { dlid: Lid::new(dlid), service_level: 3, ..Address::default() }
}

#[test]
fn datagram_payload_follows_40_byte_grh_area() {
    let (mut a, mut b) = User::pair(UD);
    let message = pattern(200, 9);
    a.put(0, &message);
    b.put(0, &[0x77; 240]);
    b.post_recv(0, 240);
    a.post(&datagram(lid(2), QPN, QKEY, 0, 200));
    exchange(&mut a, &mut b);
    assert_eq!(b.get(40, 200), message);
    assert_eq!(b.get(0, 40), [0x77; 40], "the GRH area is unchanged");
    let received = [
        0x00, 0x01, 0x00, 0x14, 0, 0, 0, 0, 0x00, 0x01, 0x00, 0x14, 0x30, 0x00, 0x00, 0x01, //
        0, 0, 0, 0, 0x00, 0x00, 0x00, 0xf0, 0, 0, 0, 0, 0x64, 0, 0, 0,
    ];
    assert_eq!(b.reap(), [received]);
    assert_eq!(syndromes(&a.reap()), [0]);
}

#[test]
fn datagram_grh_is_written_to_grh_area() {
    let (mut a, mut b) = User::pair(UD);
    let (own, peer) = (Identity::from_lid(Lid::new(1)).gid(), Identity::from_lid(Lid::new(2)).gid());
    b.post_recv(0, 240);
    let grh =
        Address { grh: true, dgid: peer, traffic_class: 0x6a, flow_label: 0xa_bcde, hop_limit: 1, ..lid(2) };
    a.post(&datagram(grh, QPN, QKEY, 0, 200));
    exchange(&mut a, &mut b);
    let grh = b.get(0, 40);
    assert_eq!(grh[..4], [0x66, 0xaa, 0xbc, 0xde], "version, traffic class and flow label");
    assert_eq!((grh[7], &grh[8..24], &grh[24..40]), (1, &own[..], &peer[..]));
    assert_eq!(b.reap()[0][0x0d], 0x80);
}

#[test]
fn datagrams_with_wrong_qkey_or_address_are_dropped() {
    let (mut a, mut b) = User::pair(UD);
    b.post_recv(0, 240);
    a.post(&datagram(lid(2), QPN, QKEY + 1, 0, 8));
    a.post(&datagram(lid(2), QPN + 1, QKEY, 0, 8));
    a.post(&datagram(lid(0), QPN, QKEY, 0, 8));
    exchange(&mut a, &mut b);
    assert_eq!((syndromes(&a.reap()), b.reap().len()), (vec![0, 0, 0], 0));
    // A Q_Key with the highest bit set selects the QP's own Q_Key.
    a.post(&datagram(lid(2), QPN, 1 << 31, 0, 8));
    exchange(&mut a, &mut b);
    assert_eq!((syndromes(&a.reap()), b.reap().len()), (vec![0], 1));
}

#[test]
fn invalid_datagram_moves_send_queue_to_sqe() {
    let (mut a, mut b) = User::pair(UD);
    a.post(&datagram(lid(2), QPN, QKEY, 0, 2049));
    exchange(&mut a, &mut b);
    assert_eq!((syndromes(&a.reap()), a.query().state), (vec![0x01], 4));
    a.post(&datagram(lid(2), QPN, QKEY, 0, 8));
    exchange(&mut a, &mut b);
    assert_eq!(syndromes(&a.reap()), [0x05]);
    // Software moves the QP back to RTS and continues.
    b.post_recv(0, 240);
    a.ok(0x01d, &modify(QpAttributes::empty(), &qpc(UD, 2)), QPN);
    a.post(&datagram(lid(2), QPN, QKEY, 0, 8));
    exchange(&mut a, &mut b);
    assert_eq!((syndromes(&a.reap()), b.reap().len()), (vec![0], 1));
    // Use an address vector from a different protection domain.
    let mut foreign = datagram(lid(2), QPN, QKEY, 0, 8);
    if let Operation::Datagram { to, .. } = &mut foreign.operation {
        to.vector.pd = Pdn::new(2);
    }
    a.post(&foreign);
    exchange(&mut a, &mut b);
    assert_eq!(syndromes(&a.reap()), [0x02]);
}

#[test]
fn qp_may_send_to_itself() {
    let (mut a, mut b) = User::pair(UD);
    a.post_recv(0x100, 240);
    a.put(0, b"to myself");
    a.post(&datagram(lid(1), QPN, QKEY, 0, 9));
    exchange(&mut a, &mut b);
    assert_eq!(a.get(0x128, 9), b"to myself");
    assert_eq!(a.reap().len(), 2);
}

/// Attaches the QP to the group as the driver does, with MGID_HASH, READ_MGM and WRITE_MGM. In the entry, `others`
/// nonexistent members precede the QP.
fn attach(user: &mut User, others: u32) {
    const VALID: u32 = 1 << 31;
    user.poke(INBOX, &GROUP);
    let (status, bucket) = user.command(0x027, INBOX, 0);
    assert_eq!(status, 0);
    let bucket = u32::try_from(bucket).unwrap();
    assert!(bucket < 4096);
    user.ok(0x025, &[], bucket);
    let mut entry = user.peek(OUTBOX, 0x100);
    assert_eq!(entry, [0; 0x100]);
    entry[0x10..0x20].copy_from_slice(&GROUP);
    let members = (0..others).map(|n| 0x100 + n).chain([QPN]);
    for (place, qpn) in entry[0x20..].chunks_exact_mut(4).zip(members) {
        place.copy_from_slice(&(VALID | qpn).to_be_bytes());
    }
    user.ok(0x026, &entry, bucket);
    user.ok(0x025, &[], bucket);
    assert_eq!(user.peek(OUTBOX, 0x100), entry);
}

#[test]
fn multicast_datagram_reaches_members_on_every_port() {
    let (mut a, mut b) = User::pair(UD);
    attach(&mut a, 0);
    attach(&mut b, 0);
    a.put(0, b"to all");
    a.post_recv(0x100, 240);
    b.post_recv(0x100, 240);
    let group = Address { dlid: Lid::new(0xc000), grh: true, dgid: GROUP, ..Address::default() };
    a.post(&datagram(group, 0xff_ffff, QKEY, 0, 6));
    exchange(&mut a, &mut b);
    for user in [&mut a, &mut b] {
        assert_eq!(user.get(0x128, 6), b"to all");
        let entries = user.reap();
        let received =
            entries.iter().find(|entry| entry[0x1d] == 0).expect("the CQ has a receive completion");
        // The completion identifies the sender by its LID, 1, and its QP number, `QPN`.
        assert_eq!((&received[8..12], &received[14..16]), (&[0, 1, 0, 0x14][..], &[0, 1][..]));
    }
    let index = CmdStatus::BadIndex.code();
    assert_eq!(a.with_inbox(0x026, &[0; 0x100], 8192), index);
    assert_eq!(a.command(0x025, 0, 8192).0, index);
}

/// A multicast table entry has room for 56 QPs, and the driver never adds more.
#[test]
fn last_of_56_members_receives_datagram() {
    let (mut a, mut b) = User::pair(UD);
    attach(&mut b, 55);
    a.put(0, b"to all");
    b.post_recv(0x100, 240);
    let group = Address { dlid: Lid::new(0xc000), grh: true, dgid: GROUP, ..Address::default() };
    a.post(&datagram(group, 0xff_ffff, QKEY, 0, 6));
    exchange(&mut a, &mut b);
    assert_eq!(b.get(0x128, 6), b"to all");
    assert_eq!(b.reap().len(), 1);
}

/// Makes the QP the device's QP1 and moves it to RTS.
fn management(user: &mut User) {
    user.ok(0x023 | 1 << 12, &[], QPN);
    let mut context = qpc(UD, 0);
    context.kind = 7;
    context.qkey = Qkey::new(0x8001_0000);
    context.requester.set_signal_all(true);
    user.connect(&context);
}

/// Headers of a packet sent to QP1 at LID 2, as built by the driver (section 8.3).
const HEADERS: [u8; 28] = [
    0x00, 0x02, 0x00, 0x02, 0x00, 0x48, 0x00, 0x00, //
    0x64, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x07, //
    0x80, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01,
];

#[test]
fn management_datagram_uses_software_headers() {
    let (mut a, mut b) = (User::new(1), User::new(2));
    management(&mut a);
    management(&mut b);
    let mad = pattern(256, 4);
    a.put(0, &HEADERS);
    a.put(0x100, &mad);
    b.post_recv(0x200, 296);
    // The WQE requests a completion and has DLID 2. Its segments contain the headers, two parts of the MAD, and space
    // for the CRC.
    let segment = |offset, len| data(offset, len).emit_be();
    let wqe = [
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 2, 0, 0][..],
        &segment(0, 28),
        &segment(0x100, 24),
        &segment(0x118, 232),
        &[0x80, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ];
    let doorbell = a.post_bytes(0x0a, &wqe.concat());
    a.ring_doorbell(&doorbell);
    let frames = a.settle();
    let [frame] = &frames[..] else { panic!("expected one frame") };
    // BTH and DETH follow the Ethernet, IPv4 and UDP headers. The byte with the migration bit, which depends on the
    // path, is not compared.
    assert_eq!((frame[42], &frame[44..54]), (0x64, &HEADERS[10..20]));
    assert_eq!(frame[54..62], HEADERS[20..28]);
    b.hca.handle_frame(frame);
    exchange(&mut a, &mut b);
    assert_eq!(b.get(0x228, 256), mad);
    let received = [
        0x00, 0x01, 0x00, 0x14, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0x00, 0x01, //
        0, 0, 0, 0, 0x00, 0x00, 0x01, 0x28, 0, 0, 0, 0, 0x64, 0, 0, 0,
    ];
    assert_eq!(b.reap(), [received]);
    let sent = a.reap();
    assert_eq!((syndromes(&sent), sent[0][0x1c], &sent[0][..4]), (vec![0], 0x0a, &[0, 1, 0, 0x14][..]));
}

/// Returns the DETH and the P_Key of a subnet management packet.
fn smp(src_qp: u32) -> (Deth, u16) {
    (Deth { qkey: Qkey::default(), src_qp: Qpn::new(src_qp) }, 0xffff)
}

/// Returns a frame from LID 2 to QP0 or QP1 at LID 1.
fn mad_frame(qpn: u32, (deth, pkey): (Deth, u16), imm: Option<Imm>, mad: &[u8]) -> Vec<u8> {
    let (peer, own) = (Identity::from_lid(Lid::new(2)), Identity::from_lid(Lid::new(1)));
    let encap = Encap {
        src_mac: peer.mac,
        dst_mac: own.mac,
        tag: None,
        ip: IpAddrs::V4 { src: peer.ipv4, dst: own.ipv4 },
        traffic_class: 0,
        flow_label: FlowLabel::default(),
        hop_limit: 64,
        fragment: Fragmentation::default(),
        src_port: 0xc000,
    };
    let (operation, ext) = match imm {
        Some(imm) => (roce::Operation::SendOnlyImm, Ext::DethImm(deth, imm)),
        None => (roce::Operation::SendOnly, Ext::Deth(deth)),
    };
    let bth = Bth {
        opcode: Opcode::ud(operation),
        solicited: false,
        mig_req: true,
        pkey: Pkey::new(pkey),
        fecn: false,
        becn: false,
        dest_qp: Qpn::new(qpn),
        ack_req: false,
        psn: Psn::new(0),
    };
    let mut frame = Vec::new();
    let mut writer = FrameWriter::new(&mut frame, &encap, &bth, &ext, mad.len());
    writer.extend(mad);
    writer.finish();
    frame
}

/// Software reads each datagram that QP0 receives as a MAD of 256 bytes (IBTA volume 1, section 13.4.2), and the device
/// checks the M_Key only of MADs. The attribute of an SMP ends after 128 bytes.
#[test]
fn qp0_receives_only_mads_from_qp0() {
    let mut user = User::new(1);
    user.ok(0x023, &[], QPN);
    let mut context = qpc(UD, 0);
    context.kind = 7;
    user.connect(&context);
    user.post_recv(0x200, 296);
    // In the first second after the port is opened, the agents answer instead of software.
    user.advance(engine::Instant::from_nanos(2_000_000_000));
    let get = port::get(1, port::PORT_INFO, 1);
    let set = [&get[..3], &[2], &get[4..]].concat();
    let mut receives = |frame: &[u8]| {
        user.hca.handle_frame(frame);
        user.settle();
        user.reap().len()
    };
    for mad in [&get, &set] {
        assert_eq!(receives(&mad_frame(0, smp(0), Some(Imm([0; 4])), mad)), 0, "immediate data");
        assert_eq!(receives(&mad_frame(0, smp(0), None, &mad[..128])), 0, "128 bytes");
        assert_eq!(receives(&mad_frame(0, smp(0), None, &mad[..255])), 0, "255 bytes");
        assert_eq!(receives(&mad_frame(0, smp(QPN), None, mad)), 0, "sent by an ordinary QP");
    }
    assert_eq!(receives(&mad_frame(0, smp(0), None, &set)), 0, "no M_Key is configured");
    assert_eq!(receives(&mad_frame(0, smp(0), None, &get)), 1);
    assert_eq!(user.hca.port_stats().dropped(card::net::DropReason::Invalid), 8);
}

/// The agents reply on behalf of QP1 only to datagrams that QP1 would accept.
#[test]
fn agents_ignore_qp1_datagrams_with_wrong_keys() {
    let mut user = User::new(1);
    user.settle();
    let get = port::get(4, 1, 0);
    for (pkey, qkey, replies) in [
        (0xffff, 0x8001_0000, 1),
        (0x7fff, 0x8001_0000, 1),
        (0x8005, 0x8001_0000, 0),
        (0x8000, 0x8001_0000, 0),
        (0xffff, 0x8001_0001, 0),
        (0xffff, QKEY, 0),
    ] {
        let deth = Deth { qkey: Qkey::new(qkey), src_qp: Qpn::new(1) };
        user.hca.handle_frame(&mad_frame(1, (deth, pkey), None, &get));
        assert_eq!(user.settle().len(), replies, "P_Key {pkey:#x}, Q_Key {qkey:#x}");
    }
}

/// A program can post any datagram to its own QP. On InfiniBand, it cannot send on VL15.
#[test]
fn program_cannot_send_to_qp0_of_own_port() {
    const SMI_QPN: u32 = 0x1_0010;
    let mut user = User::new(1);
    user.ok(0x023, &[], SMI_QPN);
    let mut smi = qpc(UD, 0);
    (smi.kind, smi.local_qpn) = (7, Qpn::new(SMI_QPN));
    user.connect(&smi);
    user.connect(&qpc(UD, 1));
    user.post_recv(0x200, 296);
    user.put(0, &port::get(1, port::PORT_INFO, 1));
    user.post(&datagram(lid(1), 0, 0, 0, 256));
    user.settle();
    assert_eq!(syndromes(&user.reap()), [0]);
    assert_eq!(user.hca.engine_stats().drops.wrong_source, 1);
}

#[test]
fn management_qp_requires_conf_special_qp() {
    let mut user = User::new(1);
    let inbox = modify(QpAttributes::all(), &qpc(7, 0));
    assert_eq!(user.with_inbox(0x019, &inbox, QPN), CmdStatus::BadParam.code());
    assert_eq!(user.with_inbox(0x023 | 2 << 12, &[], QPN), CmdStatus::BadOp.code());
    user.ok(0x023, &[], QPN);
    user.ok(0x019, &inbox, QPN);
}
