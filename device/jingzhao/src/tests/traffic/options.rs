//! Compares each option's effect with the default. Most work queue options are tested in the queue modules.
//!
//! # Spec
//! JingZhao interface, section 12.

use card::frontend::snapshot::{QpRow, Right};
use protocol::roce::{Aeth, Ext, RoceFrame, Syndrome};

use super::super::super::options::{QpAccess, QueueOptions, RnrTimerTable};
use super::*;

fn options(json: &str) -> Options {
    serde_json::from_str(json).unwrap()
}

/// Creates a machine with its QP in RTS, and its peer.
fn with(json: &str) -> (Machine, Machine) {
    (peer(1, options(json)), peer(2, Options::default()))
}

/// Creates a machine with a UD QP in RTS, and its peer.
fn datagram_pair(json: &str) -> (Machine, Machine) {
    let image = Qpc { service: 3, qkey: protocol::ids::Qkey::new(0x11), ..qpc() };
    let [a, b] = [1, 2].map(|lid| connected(initialised_as(lid, options(json)), &image));
    (a, b)
}

/// Returns a `ud` unit for QP [`QPN`] on the port with LID `dlid`. Its MAC and IP addresses do not match any port.
fn ud_unit(dlid: u16) -> Vec<u8> {
    let mut unit = vec![0; 48];
    unit[..4].copy_from_slice(&(1_u32 << 24).to_le_bytes());
    unit[6..8].copy_from_slice(&dlid.to_le_bytes());
    unit[0x0c..0x10].copy_from_slice(&0x5254_0001_u32.to_le_bytes());
    unit[0x14..0x18].copy_from_slice(&0x0a00_0002_u32.to_le_bytes());
    unit[0x20..0x24].copy_from_slice(&QPN.to_le_bytes());
    unit[0x24] = 0x11;
    unit
}

#[test]
fn defaults_match_document() {
    let expected = QueueOptions {
        sq_addr: super::super::super::options::SqAddr::Unit,
        late_link: false,
        queue_len_from_region: true,
        clear_links: true,
        rq_clear: true,
        rq_valid_bit: false,
        honour_c: false,
        ud_addresses: true,
    };
    let Options {
        extended_status,
        uar_check,
        qpn_check,
        board_id,
        rnr_timer_table,
        rnr_timer_zero,
        mad_ifc,
        ud_grh,
        uar_pages,
        qp_access,
        max_rd_atomic,
        max_dest_rd_atomic,
        queues,
        limits: _,
    } = options("{}");
    assert_eq!(qp_access, QpAccess { write: true, read: true, atomic: true });
    assert_eq!((max_rd_atomic.get(), max_dest_rd_atomic.get()), (16, 16));
    assert_eq!(queues, expected);
    assert_eq!([extended_status, uar_check, qpn_check, mad_ifc, ud_grh], [false; 5]);
    assert_eq!((board_id.0, rnr_timer_zero.get()), (0x0123_4567_89ab_cdef, 0));
    assert_eq!((rnr_timer_table, uar_pages.bar_len()), (RnrTimerTable::Ibta, 8 << 20));
}

/// J-02: the public driver allocates 4096 UAR pages.
#[test]
fn uar_pages_sets_bar2_length() {
    for (json, len) in [("{}", 8 << 20), (r#"{"uar_pages": 4096}"#, 16 << 20)] {
        let (mut a, _) = with(json);
        assert_eq!(a.hca.region_len(Region::Bar(Bar::Bar2)), len);
        a.ring_doorbell(len / 0x1000 - 1, doorbell(QPN, 0, 0x00, 1));
        a.settle();
        assert_eq!(cqe(&mut a, 0)[0x1c..], [0, 1, 0, 0], "a doorbell in the last page takes effect");
    }
}

/// J-21: with the option, a successful unsignalled send does not write a CQE.
#[test]
fn honour_c_suppresses_unsignalled_completions() {
    for (json, completions) in [("{}", 2), (r#"{"queues": {"honour_c": true}}"#, 1)] {
        let (mut a, mut b) = with(json);
        let write = |signalled: u8| {
            let unit = [vec![0; 8], vec![signalled << 3], vec![0; 7]].concat();
            [unit, remote(0, DATA_KEY), data_unit(0, 4)].concat()
        };
        for (slot, signalled) in [(0_u32, 0), (1, 1)] {
            a.post_send(&QUEUES, slot, 0x08, &write(signalled));
        }
        exchange(&mut a, &mut b);
        let written = (0..4).filter(|slot| cqe(&mut a, *slot)[31] == 0).count();
        assert_eq!(written, completions, "{json}");
        let last = cqe(&mut a, u64::try_from(completions).unwrap() - 1);
        assert_eq!(last[0x18], 0x80, "the signalled request has a CQE");
    }
}

/// Returns the timer code in the RNR NAK sent by a QP without posted receives, and the code returned by QUERY_QP.
fn rnr_code(json: &str, code: u8) -> (u8, u8) {
    let image = Qpc { min_rnr_timer: code, ..qpc() };
    let mut a = peer(1, Options::default());
    let mut b = connected(initialised_as(2, options(json)), &image);
    send(&mut a, 0, 0x0a, &[data_unit(0, 4)]);
    a.settle().iter().for_each(|frame| b.hca.handle_frame(frame));
    let answer = b.settle();
    let Ext::Aeth(Aeth { syndrome: Syndrome::RnrNak { timer }, .. }) =
        RoceFrame::parse(&answer[0]).unwrap().packet.ext
    else {
        panic!("{answer:02x?}")
    };
    b.ok(Op::QueryQp, 0, QPN, &[]);
    (timer, b.peek(OUTBOX + 0x84, 1)[0])
}

/// J-42: the public driver sets code 0 regardless of the timer that its user requests.
#[test]
fn rnr_timer_zero_option_replaces_only_code_0() {
    assert_eq!(rnr_code("{}", 0), (0, 0), "code 0 means 655.36 ms");
    assert_eq!(rnr_code(r#"{"rnr_timer_zero": 12}"#, 0), (12, 12), "QUERY_QP returns the code in force");
    let notes = r#"{"rnr_timer_zero": 16, "rnr_timer_table": "query_qp_notes"}"#;
    assert_eq!(rnr_code(notes, 0), (16, 6), "QUERY_QP returns software's code");
    assert_eq!(rnr_code(r#"{"rnr_timer_zero": 12}"#, 5), (5, 5));
}

/// J-29: the notes on ibv_query_qp list the times of codes 6 to 21 in a different order. Packets use the IBTA codes.
/// The times below are in units of 10 us.
#[test]
fn rnr_timer_table_option_converts_codes_to_ibta_table() {
    const IBTA: [u32; 16] = [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536];
    const NOTES: [u32; 16] = [256, 384, 512, 768, 1024, 1536, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192];
    for (code, time) in (6..).zip(NOTES) {
        let sent = 6 + u8::try_from(IBTA.iter().position(|ibta| *ibta == time).unwrap()).unwrap();
        assert_eq!(RnrTimerTable::QueryQpNotes.on_the_wire(code), sent);
        assert_eq!(RnrTimerTable::QueryQpNotes.in_a_context(sent), code);
    }
    for code in (0..6).chain(22..32) {
        assert_eq!(RnrTimerTable::QueryQpNotes.on_the_wire(code), code);
    }
    assert_eq!(rnr_code("{}", 6), (6, 6));
    let notes = r#"{"rnr_timer_table": "query_qp_notes"}"#;
    assert_eq!(rnr_code(notes, 6), (16, 6), "2.56 ms; QUERY_QP returns software's code");
    assert_eq!(rnr_code(notes, 12), (6, 12), "0.08 ms");
}

/// J-47: the option replaces ACCESS_FLAGS, which has no field in a QPC.
#[test]
fn qp_access_option_forbids_peer_operations() {
    const WRITE: u8 = 0x08;
    const READ: u8 = 0x10;
    for (json, refused) in [
        ("{}", &[][..]),
        (r#"{"qp_access": {"write": false}}"#, &[WRITE]),
        (r#"{"qp_access": {"read": false, "atomic": false}}"#, &[READ]),
    ] {
        for opcode in [WRITE, READ] {
            let mut a = peer(1, Options::default());
            let mut b = peer(2, options(json));
            send(&mut a, 0, opcode, &[remote(0, DATA_KEY), data_unit(0, 4)]);
            exchange(&mut a, &mut b);
            let entry = cqe(&mut a, 0);
            let expected = if refused.contains(&opcode) {
                // The request completes with a remote invalid request error.
                (0xff, 0x12)
            } else {
                (opcode, 0)
            };
            assert_eq!((entry[0x1c], entry[0x10]), expected, "{json}, opcode {opcode:#x}");
        }
    }
}

/// J-47: the options replace MAX_QP_RD_ATOMIC and MAX_DEST_RD_ATOMIC, which have no fields in a QPC.
#[test]
fn max_rd_atomic_limits_outstanding_reads() {
    for (json, requests) in [("{}", 4), (r#"{"max_rd_atomic": 2}"#, 2)] {
        let (mut a, _) = with(json);
        for slot in 0..4 {
            send(&mut a, slot, 0x10, &[remote(0, DATA_KEY), data_unit(0, 4)]);
        }
        assert_eq!(a.settle().len(), requests, "{json}");
    }
    let (a, _) = with(r#"{"max_rd_atomic": 2, "max_dest_rd_atomic": 3, "qp_access": {"atomic": false}}"#);
    let rows = a.hca.rows::<QpRow>(0);
    let rights = vec![Right::RemoteWrite, Right::RemoteRead];
    assert_eq!((rows[0].max_rd_atomic, rows[0].max_dest_rd_atomic, &rows[0].remote_rights), (2, 3, &rights));
    for json in [r#"{"max_rd_atomic": 0}"#, r#"{"max_dest_rd_atomic": 17}"#] {
        assert!(serde_json::from_str::<Options>(json).is_err(), "{json}");
    }
}

/// J-33: the public driver changes the high bits of a QPN when it reuses the number.
#[test]
fn qpn_check_rejects_stale_doorbells() {
    for (json, accepted) in [("{}", true), (r#"{"qpn_check": true}"#, false)] {
        let (mut a, _) = with(json);
        a.ring_doorbell(1, doorbell(QPN ^ 0x3_0000, 0, 0x00, 1));
        a.settle();
        assert_eq!(cqe(&mut a, 0)[31] == 0, accepted, "{json}");
        let counted = a.hca.monitor().ignored_counts().any(|(reason, _)| reason == "stale_qpn");
        assert_eq!(counted, !accepted);
        send(&mut a, 1, 0x00, &[]);
        a.settle();
        let entry = cqe(&mut a, accepted.into());
        assert_eq!((entry[31], &entry[..4]), (0, &QPN.to_le_bytes()[..]), "the CQE has the full QPN");
    }
}

/// J-30: verbs applications expect the GRH in the first 40 bytes of the receive buffer.
#[test]
fn ud_grh_option_reserves_40_bytes() {
    for (json, before) in [("{}", 0), (r#"{"ud_grh": true}"#, 40)] {
        let (mut a, mut b) = datagram_pair(json);
        let mut unit = ud_unit(2);
        // Clear the MAC and IP addresses in the unit.
        unit[0x08..0x20].fill(0);
        put_data(&mut a, 0, b"datagram");
        post_recv(&mut b, 0, 0x100, 256);
        send(&mut a, 0, 0x0a, &[unit, data_unit(0, 8)]);
        exchange(&mut a, &mut b);
        assert_eq!(get_data(&mut b, 0x100 + before, 8), b"datagram", "{json}");
        let entry = cqe(&mut b, 0);
        assert_eq!(u64::from(entry[0x14]), 8 + before, "byte_cnt");
        assert_eq!(entry[0x0d], if before == 0 { 0 } else { 0x80 }, "g_mlpath");
    }
}

/// Section 6.5: the user library leaves stale bytes in the unit's address fields.
#[test]
fn lid_is_used_if_ud_addresses_option_is_disabled() {
    let lid_mac: [u8; 6] = [2, 0, 0, 0, 0, 2];
    let (mut a, _) = datagram_pair("{}");
    send(&mut a, 0, 0x0a, &[ud_unit(2), data_unit(0, 8)]);
    let frames = a.settle();
    assert_eq!(frames[0][..6], [0x52, 0x54, 0, 1, 0, 2], "dmac");
    assert_eq!(frames[0][30..34], [10, 0, 0, 2], "dip");
    let (mut a, _) = datagram_pair(r#"{"queues": {"ud_addresses": false}}"#);
    send(&mut a, 0, 0x0a, &[ud_unit(2), data_unit(0, 8)]);
    let frames = a.settle();
    assert_eq!((frames.len(), &frames[0][..6]), (1, &lid_mac[..]));
}

/// Section 3.2: the last eight bytes of the outbox are the board ID.
#[test]
fn query_adapter_returns_board_id() {
    for (json, id) in [("{}", 0x0123_4567_89ab_cdef), (r#"{"board_id": 7}"#, 7_u64)] {
        let mut a = powered_on(1, options(json));
        a.ok(Op::QueryAdapter, 0, 0, &[]);
        assert_eq!(a.peek(OUTBOX + 0x18, 8), id.to_be_bytes());
    }
}
