//! Contexts in ICM after QP commands, and results of QUERY_QP (sections 3.12, 3.13, 4.3 and 10).

use card::frontend::{Frontend as _, PortNumber};
use protocol::hca::jingzhao::modify::StoredQpc;
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::Qpn;

use super::traffic::{ENTRY, state};
use super::*;
use crate::ctxmgt::key_qpc_data::KeyQpc;
use crate::qp::attributes;

/// INIT2RTR mailbox from section 14.7: RC, QPN 5, remote QPN 9.
pub(super) const RTR: &str = "
    00: 00 00 00 40 00 00 00 00 20 00 00 00 7F 07 07 00
    10: 00 00 00 01 00 00 00 05 00 00 00 09 01 00 00 00
    50: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 03
    60: 00 00 00 00 00 00 00 21 00 00 00 00 00 00 00 00
    70: 00 00 00 01 00 00 00 21 00 00 40 00 00 00 00 00
    80: 00 00 00 00 0C 12 34 56 00 00 00 00 00 00 00 02
    90: 00 00 00 22 00 00 40 00 00 00 00 00 00 00 00 00";

/// QPN bits above the table index. They change whenever an index is reused.
const ROLLING: u32 = 0x9c_0000;
const QPN: u32 = 5;

fn rtr() -> Vec<u8> {
    // The driver reuses the mailbox, so the bytes after the defined fields have arbitrary values.
    let mut inbox = dump(RTR, 0xc0);
    inbox[0xa4..].fill(0xee);
    inbox
}

/// Returns the driver's mailbox for the transition from RESET to INIT: [`RTR`] without MTU, peer and PSN.
fn init() -> Vec<u8> {
    let mut inbox = rtr();
    inbox[0x08] = 0x10;
    inbox[0x0c] = 0;
    inbox[0x18..0x1c].fill(0);
    inbox[0x84..0x88].fill(0);
    inbox
}

/// Returns the mailbox for RTR2RTS: [`RTR`] with 654321h as the initial PSN.
fn rts() -> Vec<u8> {
    let mut inbox = rtr();
    inbox[0x6d..0x70].copy_from_slice(&[0x65, 0x43, 0x21]);
    inbox
}

fn query(machine: &mut Machine, qpn: u32) -> Vec<u8> {
    machine.poke(OUTBOX, &[0xff; 0xc0]);
    machine.ok(Op::QueryQp, 0, qpn, &[]);
    machine.peek(OUTBOX, 0xc0)
}

fn in_rts() -> Machine {
    let mut machine = initialised(Options::default());
    machine.ok(Op::Rst2Init, 0, ROLLING | QPN, &init());
    machine.ok(Op::Init2Rtr, 0, ROLLING | QPN, &rtr());
    machine.ok(Op::Rtr2Rts, 0, ROLLING | QPN, &rts());
    machine
}

/// Section 6.8: a QP without a receive queue has no slots, so any rq_entry_sz_log is accepted.
#[test]
fn slot_size_of_absent_receive_queue_is_ignored() {
    for log_slot in [0, 31, 32, 255] {
        let mut machine = initialised(Options::default());
        for (op, mut inbox) in [(Op::Rst2Init, init()), (Op::Init2Rtr, rtr()), (Op::Rtr2Rts, rts())] {
            inbox[0x0d] = log_slot;
            inbox[0x94..0x98].fill(0);
            machine.ok(op, 0, ROLLING | QPN, &inbox);
        }
        assert_eq!(query(&mut machine, ROLLING | QPN)[0x0d], log_slot);
    }
}

#[test]
fn query_returns_documented_qp_context() {
    let mut machine = initialised(Options::default());
    machine.poke(ENTRY, &[0xaa; 256]);
    machine.ok(Op::Rst2Init, 0, ROLLING | QPN, &init());
    let mut expected = dump(RTR, 0xc0);
    expected[3] = 0;
    expected[0x08] = 0x10;
    expected[0x0c] = 0;
    expected[0x18..0x1c].fill(0);
    expected[0x84..0x88].fill(0);
    assert_eq!(machine.peek(ENTRY, 0xc0), expected);
    assert_eq!(machine.peek(ENTRY + 0xc0, 0x40), [0xaa; 0x40], "only C0h bytes are written");

    machine.ok(Op::Init2Rtr, 0, QPN, &rtr());
    let mut expected = dump(RTR, 0xc0);
    expected[3] = 0;
    assert_eq!(machine.peek(ENTRY, 0xc0), expected);
    assert_eq!(query(&mut machine, ROLLING | QPN), expected);

    machine.ok(Op::Rtr2Rts, 0, QPN, &rts());
    expected[0x08] = 0x30;
    // Section 10.6: defaults for values that software has not set.
    (expected[0x20], expected[0x24], expected[0x69]) = (7 << 5, 14 << 3, 7);
    expected[0x6d..0x70].copy_from_slice(&[0x65, 0x43, 0x21]);
    expected[0x7d..0x80].copy_from_slice(&[0x65, 0x43, 0x21]);
    assert_eq!(machine.peek(ENTRY, 0xc0), expected);
    assert_eq!(query(&mut machine, QPN), expected);
}

/// Section 10.7: QUERY_QP returns the values that software has set and the current PSNs.
#[test]
fn query_qp_returns_every_context_attribute() {
    // Each attribute has a name, the offset of its word, a bit mask, and a value.
    const ATTRIBUTES: [(&str, usize, u32, u32); 16] = [
        ("path_mtu", 0x0c, 0xe000_0000, 4 << 29),
        ("dest_qp_num", 0x18, 0x00ff_ffff, 0x12_3456),
        ("port_num", 0x1c, 0x0700_0000, 1 << 24),
        ("rnr_retry", 0x20, 0xe000_0000, 6 << 29),
        ("GRH and path bits", 0x20, 0x00ff_0000, 0x95 << 16),
        ("timeout", 0x24, 0xf800_0000, 19 << 27),
        ("sgid_index", 0x24, 0x00ff_0000, 7 << 16),
        ("static_rate", 0x24, 0x0000_0f00, 5 << 8),
        ("hop_limit", 0x24, 0x0000_00ff, 63),
        ("sl, traffic_class, flow_label", 0x28, 0xffff_ffff, 0x542a_bcde),
        ("dlid", 0x3c, 0xffff_0000, 0x0102 << 16),
        ("retry_cnt", 0x68, 0x0007_0000, 5 << 16),
        ("sq_psn", 0x6c, 0x00ff_ffff, 0xab_cdef),
        ("min_rnr_timer", 0x84, 0x1f00_0000, 17 << 24),
        ("rq_psn", 0x84, 0x00ff_ffff, 0x65_4321),
        ("qkey", 0x98, 0xffff_ffff, 0x1122_3344),
    ];
    const DGID: std::ops::Range<usize> = 0x2c..0x3c;
    let dgid = [0xfe, 0x80, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    for service in [0, 1, 3] {
        let mut inbox = rts();
        inbox[9] = service;
        inbox[DGID].copy_from_slice(&dgid);
        for (_, at, bits, value) in ATTRIBUTES {
            let word = u32::from_be_bytes(inbox[at..at + 4].try_into().unwrap());
            inbox[at..at + 4].copy_from_slice(&(word & !bits | value).to_be_bytes());
        }
        let mut machine = initialised(Options::default());
        for (op, expected_state) in [(Op::Rst2Init, 1), (Op::Init2Rtr, 2), (Op::Rtr2Rts, 3)] {
            machine.ok(op, 0, QPN, &inbox);
            let answer = query(&mut machine, QPN);
            assert_eq!(answer[8] >> 4, expected_state, "qp_state");
            assert_eq!(answer[DGID], dgid, "dgid");
            for (name, at, bits, value) in ATTRIBUTES {
                let word = u32::from_be_bytes(answer[at..at + 4].try_into().unwrap());
                assert_eq!(word & bits, value, "{name} after {op} for service type {service}");
            }
        }
    }
}

/// Returns `inbox` with `mask` as its opt_param_mask, and with the given bytes replaced.
fn with(inbox: Vec<u8>, mask: u32, bytes: &[(usize, u8)]) -> Vec<u8> {
    let mut inbox = inbox;
    inbox[..4].copy_from_slice(&mask.to_be_bytes());
    bytes.iter().for_each(|(at, byte)| inbox[*at] = *byte);
    inbox
}

/// Returns rnr_retry, ackto, retry_cnt and the RNR timer.
fn retries(machine: &mut Machine) -> [u8; 4] {
    let answer = query(machine, QPN);
    [answer[0x20], answer[0x24], answer[0x69], answer[0x84]]
}

/// Section 10.4: bit 11 is the port in the public driver's numbering, and RNR_RETRY in the document's. The driver never
/// sets retry counts, so they must keep their defaults.
#[test]
fn driver_port_bit_does_not_change_retries() {
    const PORT: u32 = 1 << 11;
    let mut machine = initialised(Options::default());
    machine.ok(Op::Rst2Init, 0, QPN, &with(init(), PORT, &[]));
    machine.ok(Op::Init2Init, 0, QPN, &with(init(), PORT, &[]));
    machine.ok(Op::Init2Rtr, 0, QPN, &rtr());
    machine.ok(Op::Rtr2Rts, 0, QPN, &with(rts(), 0, &[]));
    let defaults = [7 << 5, 14 << 3, 7, 12];
    assert_eq!(retries(&mut machine), defaults);
    machine.ok(Op::Rts2Sqd, 0, QPN, &with(rts(), 0, &[]));
    machine.ok(Op::Sqd2Sqd, 0, QPN, &with(rts(), PORT, &[]));
    assert_eq!(retries(&mut machine), defaults);
    // The public driver uses bit 6 for the RNR timer.
    machine.ok(Op::Sqd2Sqd, 0, QPN, &with(rts(), PORT | 1 << 6, &[(0x84, 0)]));
    assert_eq!(retries(&mut machine), [7 << 5, 14 << 3, 7, 0]);
}

/// Table A1-3: bits 11 and 9 are RNR_RETRY and TIMEOUT, and bits 14 and 15 are ALT_PATH and MIN_RNR_TIMER. In the
/// public driver's numbering, bits 14 and 15 are TIMEOUT and RNR_RETRY.
#[test]
fn mask_bits_select_documented_attributes() {
    let mut machine = initialised(Options::default());
    let given = [(0x20, 6 << 5), (0x24, 19 << 3), (0x69, 5)];
    for (op, inbox, mask) in [
        (Op::Rst2Init, init(), 1 << 4 | 1 << 5 | 1 << 3),
        (Op::Init2Rtr, rtr(), 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 15),
        (Op::Rtr2Rts, rts(), 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16),
        (Op::Rts2Sqd, rts(), 0),
    ] {
        machine.ok(op, 0, QPN, &with(inbox, mask, &given));
    }
    let mut expected = [6 << 5, 19 << 3, 5, 12];
    assert_eq!(retries(&mut machine), expected);
    for (bit, changed) in [(14, None), (15, Some(3)), (11, Some(0)), (10, Some(2)), (9, Some(1))] {
        machine.ok(Op::Sqd2Sqd, 0, QPN, &with(vec![0; 0xc0], 1 << bit, &[]));
        changed.into_iter().for_each(|at: usize| expected[at] = 0);
        assert_eq!(retries(&mut machine), expected, "bit {bit}");
    }
}

/// Section 10.2: PATH_MTU is not an attribute of RTS2RTS. The packet size does not change.
#[test]
fn rts2rts_does_not_change_path_mtu() {
    let mut machine = in_rts();
    for mask in [0, 1 << 8] {
        machine.ok(Op::Rts2Rts, 0, QPN, &with(rts(), mask, &[(0x0c, 5 << 5 | 31)]));
        assert_eq!(query(&mut machine, QPN)[0x0c], 3 << 5 | 31);
    }
}

#[test]
fn unknown_or_reset_qp_reads_as_zeros() {
    let mut machine = in_rts();
    assert_eq!(query(&mut machine, 77), [0; 0xc0]);
    machine.ok(Op::ToRst, 3, QPN, &[]);
    assert_eq!(query(&mut machine, QPN), [0; 0xc0]);
}

#[test]
fn reset_accepts_zeroed_mailbox_or_none() {
    for (op_modifier, inbox) in [(0, &[0; 0xc0][..]), (2, &[]), (3, &[])] {
        let mut machine = in_rts();
        machine.ok(Op::ToRst, op_modifier, ROLLING | QPN, inbox);
        assert_eq!(state(&mut machine), 0);
        assert_eq!(machine.peek(ENTRY + 0x6c, 4), [0, 0x65, 0x43, 0x21], "the last PSN is written back");
        machine.ok(Op::ToRst, op_modifier, QPN, inbox);
        machine.ok(Op::Rst2Init, 0, QPN, &init());
    }
}

#[test]
fn qp_in_err_can_move_only_to_err_or_reset() {
    let mut machine = in_rts();
    machine.ok(Op::ToErr, 0, QPN, &[0; 0xc0]);
    assert_eq!(state(&mut machine), 6);
    assert_eq!(query(&mut machine, QPN)[8] >> 4, 6);
    machine.ok(Op::ToErr, 2, QPN, &[]);
    for op in
        [Op::Rst2Init, Op::Init2Init, Op::Init2Rtr, Op::Rtr2Rts, Op::Rts2Rts, Op::SqErr2Rts, Op::Sqd2Rts]
    {
        assert_eq!(machine.command(op, 0, QPN, &rts()), CmdStatus::BadParam.code(), "{op}");
    }
    assert_eq!(query(&mut machine, QPN)[8] >> 4, 6);
    machine.ok(Op::ToRst, 3, QPN, &[]);

    // The public driver uses this transition, which is therefore permitted.
    machine.ok(Op::ToErr, 0, 6, &[0; 0xc0]);
    assert_eq!(query(&mut machine, 6)[8] >> 4, 6);
    machine.ok(Op::ToRst, 0, 6, &[0; 0xc0]);
}

#[test]
fn command_in_wrong_state_leaves_qp_unchanged() {
    let mut machine = initialised(Options::default());
    for op in [Op::Init2Init, Op::Init2Rtr, Op::Rtr2Rts, Op::Rts2Rts, Op::Rts2Sqd, Op::Sqd2Rts] {
        assert_eq!(machine.command(op, 0, QPN, &rts()), CmdStatus::BadParam.code(), "{op} in RESET");
    }
    assert_eq!(query(&mut machine, QPN), [0; 0xc0]);
    machine.ok(Op::Rst2Init, 0, QPN, &init());
    let before = machine.peek(ENTRY, 0xc0);
    for op in [Op::Rst2Init, Op::Rtr2Rts, Op::Rts2Rts, Op::SqErr2Rts] {
        assert_eq!(machine.command(op, 0, QPN, &rts()), CmdStatus::BadParam.code(), "{op} in INIT");
    }
    assert_eq!(machine.peek(ENTRY, 0xc0), before);
}

#[test]
fn modify_qp_rejects_unsupported_values() {
    let refused = |machine: &mut Machine, op: Op, base: &[u8], offset: usize, value: u8, why: &str| {
        let mut inbox = base.to_vec();
        inbox[offset] = value;
        assert_eq!(machine.command(op, 0, QPN, &inbox), CmdStatus::BadParam.code(), "{why}");
    };
    let mut machine = initialised(Options::default());
    for service in [2, 4, 0xff] {
        refused(&mut machine, Op::Rst2Init, &init(), 0x09, service, "service type");
    }
    refused(&mut machine, Op::Rst2Init, &init(), 0x1c, 2, "port");
    assert_eq!(machine.command(Op::Rst2Init, 0, 1 << 24, &init()), CmdStatus::BadParam.code(), "QP number");
    machine.ok(Op::Rst2Init, 0, QPN, &init());
    for mtu in [0x1f, 0xdf, 0xff] {
        refused(&mut machine, Op::Init2Rtr, &rtr(), 0x0c, mtu, "MTU code");
    }
    refused(&mut machine, Op::Init2Rtr, &rtr(), 0x0d, 4, "receive slot");
    refused(&mut machine, Op::Init2Rtr, &rtr(), 0x0d, 13, "receive slot");
    refused(&mut machine, Op::Init2Rtr, &rtr(), 0x97, 1, "receive queue length");
    machine.ok(Op::Init2Rtr, 0, QPN, &rtr());
    refused(&mut machine, Op::Rtr2Rts, &rts(), 0x0e, 13, "send slot");
    refused(&mut machine, Op::Rtr2Rts, &rts(), 0x7b, 1, "send queue length");
    assert_eq!(state(&mut machine), 2);
    machine.ok(Op::Rtr2Rts, 0, QPN, &rts());
}

#[test]
fn new_qp_requires_icm_page() {
    let mut machine = initialised(Options::default());
    assert_eq!(machine.command_at(QPC, Op::UnmapIcm, 1, 1), 0);
    assert_eq!(machine.command(Op::Rst2Init, 0, QPN, &init()), CmdStatus::BadParam.code());
    assert_eq!(query(&mut machine, QPN), [0; 0xc0]);
    machine.map(IcmTable::Context, QPC, ICM_CONTEXT, 1);
    machine.ok(Op::Rst2Init, 0, QPN, &init());
    // Later commands succeed even though the page is unmapped.
    assert_eq!(machine.command_at(QPC, Op::UnmapIcm, 1, 1), 0);
    machine.ok(Op::Init2Rtr, 0, QPN, &rtr());
    assert_eq!(state(&mut machine), 1);
    machine.map(IcmTable::Context, QPC, ICM_CONTEXT, 1);
    machine.ok(Op::Rtr2Rts, 0, QPN, &rts());
    assert_eq!(state(&mut machine), 3);
}

#[test]
fn icm_without_dma_mapping_returns_internal_err() {
    let mut machine = initialised(Options::default());
    machine.map(IcmTable::Context, QPC, NOWHERE, 1);
    assert_eq!(machine.command(Op::Rst2Init, 0, QPN, &init()), CmdStatus::InternalErr.code());
    assert_eq!(query(&mut machine, QPN), [0; 0xc0]);
}

#[test]
fn idle_qp_drains_immediately_and_resumes() {
    let mut machine = in_rts();
    machine.ok(Op::Rts2Sqd, 0, QPN, &rts());
    machine.settle();
    assert_eq!(query(&mut machine, QPN)[8] >> 4, 5);
    assert_eq!(state(&mut machine), 5);
    machine.ok(Op::Sqd2Sqd, 0, QPN, &rts());
    machine.ok(Op::Sqd2Rts, 0, QPN, &rts());
    machine.ok(Op::Rts2Rts, 0, QPN, &rts());
    assert_eq!(query(&mut machine, QPN)[8] >> 4, 3);
}

#[test]
fn qps_can_be_created_across_whole_table() {
    let mut machine = initialised(Options::default());
    machine.map(IcmTable::Context, QPC + 0x40_0000, ICM_CONTEXT + 0x40_0000, 3072);
    // The QPs are spread over the 2^16-entry table.
    for qpn in (0..1u32 << 16).step_by(61) {
        machine.ok(Op::Rst2Init, 0, ROLLING | qpn, &init());
    }
    assert_eq!(query(&mut machine, 61)[8] >> 4, 1);
    assert_eq!(query(&mut machine, 62), [0; 0xc0]);
    machine.ok(Op::CloseHca, 0, 0, &[]);
}

/// QUERY_DEV_LIM and the port's subnet management agent report a single P_Key.
#[test]
fn nonzero_p_key_index_is_rejected() {
    const PKEY_INDEX: usize = 0x1f;
    for (extended_status, refused) in [(false, 0x03), (true, 0x0a)] {
        let mut machine = initialised(Options { extended_status, ..Options::default() });
        machine.ok(Op::QueryDevLim, 0, 0, &[]);
        assert_eq!(machine.peek(OUTBOX + 0x12, 2), [0, 0], "log2 of the numbers of GIDs and P_Keys");
        let node = JingZhao::new(setup(1, Options::default())).port_kind(PortNumber::ONE).node().unwrap();
        assert_eq!((node.gids, node.pkeys), (1, 1), "the port's SMA has one GID and one P_Key");

        for index in [1, 3, 0x7f] {
            let mut inbox = rts();
            inbox[PKEY_INDEX] = index;
            assert_eq!(machine.command(Op::Rst2Init, 0, QPN, &inbox), refused, "index {index}");
            assert_eq!(query(&mut machine, QPN), [0; 0xc0], "a rejected command has no effect");
        }
        machine.ok(Op::Rst2Init, 0, QPN, &rts());
        let mut inbox = rts();
        // Set PKEY_INDEX in the opt_param_mask and select index 1.
        (inbox[3], inbox[PKEY_INDEX]) = (1 << 4, 1);
        assert_eq!(machine.command(Op::Init2Rtr, 0, QPN, &inbox), refused);
        assert_eq!(query(&mut machine, QPN)[8] >> 4, 1);
    }
}

#[test]
fn qp_attributes_include_p_key_index() {
    for pkey_index in [0, 3] {
        let mut context = StoredQpc::default();
        context.image = Qpc { pkey_index, ..Qpc::default() };
        let attrs = attributes(Qpn::new(QPN), &KeyQpc::new(context), &addresses(1), &Options::default());
        assert_eq!(attrs.pkey_index, u16::from(pkey_index));
    }
}
