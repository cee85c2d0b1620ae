//! Tests of data transfers: their content, and the completions on both sides.

use std::net::IpAddr;

use card::frontend::testing::{pattern, wait};
use drivers::e810::queue_pair::{gather, inline};
use drivers::e810::{CCQ_SHADOW, CEQ_ENTRIES};
use protocol::hca::e810::admin::Opcode;
use protocol::hca::e810::admin::link::PhyConfig;
use protocol::hca::e810::rdma::completion_queue::CqCommand;
use protocol::hca::e810::rdma::cqe::ExtendedCqe;
use protocol::hca::e810::rdma::event_queue::{CreateCeq, DestroyCeq};
use protocol::hca::e810::rdma::path::ManageArp;
use protocol::hca::e810::regs::Register;
use protocol::ids::FlowLabel;

use super::super::AdminCommand;
use super::*;

#[test]
fn send_completes_on_both_sides() {
    let mut pair = Pair::connected();
    let data = pattern(4000, 1);
    pair.a.poke(SOURCE, &data);
    let receive = pair.b.post_receive(QPN, &[fragment(TARGET, 0, 8192)]);
    let send = pair.a.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0, 4000)]));
    pair.settle();
    assert_eq!(pair.b.peek(TARGET, 4000), data);
    let expected = Cqe {
        len: 4000,
        context: CONTEXT + 1,
        qpn: QPN,
        wqe_index: send,
        opcode: 3,
        send: true,
        valid: true,
        ..Cqe::default()
    };
    assert_eq!(pair.sent(), expected);
    let received = pair.received();
    // The CQE has the opcode of the last packet, a SEND Last without immediate data.
    let expected = Cqe {
        len: 4000,
        context: CONTEXT + 2,
        qpn: QPN,
        wqe_index: receive,
        opcode: 2,
        valid: true,
        ..Cqe::default()
    };
    assert_eq!((received.cqe, received.more), (expected, None));
}

/// Section 13.4: inline data occupies eight bytes of the first quantum and 31 bytes of each quantum after it.
#[test]
fn inline_data_of_every_length_arrives() {
    let mut pair = Pair::connected();
    for len in 0..=101 {
        for imm in [None, Some(0x1122_3344)] {
            let data = pattern(len, 7);
            pair.b.poke(TARGET, &[0xee; 128]);
            pair.b.post_receive(QPN, &[fragment(TARGET, 0, 128)]);
            pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, imm, &data));
            pair.settle();
            assert_eq!(pair.sent().opcode, 3, "{len} bytes");
            let received = pair.received();
            assert_eq!(received.cqe.len as usize, len);
            assert_eq!(received.more.map(|more| (more.has_imm, more.imm)), imm.map(|imm| (true, imm)));
            let found = pair.b.peek(TARGET, 128);
            assert_eq!((&found[..len], found[len]), (&data[..], 0xee), "{len} bytes");
        }
    }
}

/// Section 13.4: a list has up to 13 fragments, in send and receive WQEs alike. An empty fragment pads the list if the
/// number of fragments, plus one for immediate data, is even.
#[test]
fn sge_lists_of_every_length_are_transferred() {
    let mut pair = Pair::connected();
    for count in 1..=13_u32 {
        for imm in [None, Some(count)] {
            let data = pattern(count as usize * 100, 3);
            let mut to_send = Vec::new();
            for (n, piece) in (0..).zip(data.chunks(100)) {
                pair.a.poke(SOURCE + n * 0x1_0ff0, piece);
                to_send.push(fragment(SOURCE + n * 0x1_0ff0, 0, 100));
            }
            let places: Vec<u64> = (0..u64::from(count)).map(|n| TARGET + n * 0x2_0ff0).collect();
            let to_receive: Vec<_> = places.iter().map(|at| fragment(*at, 0, 100)).collect();
            pair.b.post_receive(QPN, &to_receive);
            pair.a.post_send(QPN, &gather(SIGNALED | SEND, 0, imm, &to_send));
            pair.settle();
            assert!(!pair.sent().error);
            assert_eq!(pair.received().more.map(|more| more.imm), imm);
            let found: Vec<u8> = places.iter().flat_map(|at| pair.b.peek(*at, 100)).collect();
            assert_eq!(found, data, "{count} fragments");
        }
    }
}

#[test]
fn rings_wrap_repeatedly() {
    let mut pair = Pair::connected();
    for round in 0..2000_u32 {
        let data = round.to_le_bytes();
        let [seed, ..] = data;
        pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
        // The WQEs occupy one, two or three quanta. NOPs keep them from crossing a multiple of the maximum WQE size.
        let bytes = pattern(4 + (round as usize % 3) * 30, seed);
        let all = [&data[..], &bytes].concat();
        // Unsignalled requests do not produce completions.
        let signal = if round % 4 == 0 { SIGNALED } else { 0 };
        pair.a.post_send(QPN, &inline(signal | SEND, 0, None, &all[..all.len().min(64)]));
        pair.settle();
        let len = all.len().min(64);
        assert_eq!(pair.b.peek(TARGET, len), all[..len], "round {round}");
        assert_eq!(pair.received().cqe.len as usize, len);
        assert_eq!(
            pair.a.poll_cq(SEND_CQ).is_some(),
            round % 4 == 0,
            "round {round}: only signalled requests produce a CQE"
        );
    }
}

/// Section 13.4: the device publishes its consumer index before it goes idle.
#[test]
fn shadow_area_holds_consumer_index() {
    let mut pair = Pair::connected();
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    pair.a.put_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1; 64]));
    assert_eq!(pair.a.hardware_tail(QPN), 0);
    pair.a.ring_send(QPN);
    pair.settle();
    assert_eq!(pair.a.hardware_tail(QPN), 3);
}

#[test]
fn request_posted_in_sqd_waits_for_rts() {
    let mut pair = Pair::connected();
    let context = context(1);
    assert_eq!(pair.a.modify_qp(QPN, QpKind::Rc, QpState::Sqd, &context).error, None);
    let event = pair.a.next_async_event().unwrap();
    assert_eq!((u16::from(event.code), event.state), (0x900, QpState::Sqd));
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[1; 8]));
    pair.settle();
    nothing(&mut pair.b);
    assert_eq!(pair.a.modify_qp(QPN, QpKind::Rc, QpState::Rts, &context).error, None);
    pair.settle();
    assert_eq!((pair.sent().error, pair.received().cqe.len), (false, 8));
}

#[test]
fn send_is_retried_after_rnr_nak() {
    let mut pair = Pair::connected();
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[9; 8]));
    pair.settle();
    nothing(&mut pair.a);
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    let later = pair.a.bus.now + std::time::Duration::from_millis(1);
    pair.a.bus.advance(later);
    pair.b.bus.advance(later);
    pair.settle();
    assert_eq!((pair.sent().error, pair.received().cqe.len), (false, 8));
}

/// Section 5.6: without bit 3 in the capabilities of "set PHY config", the link is off. If `link-down-on-close` is set,
/// `ice` clears this bit when the interface goes down.
#[test]
fn link_disabled_by_driver_carries_no_packets() {
    let configure = |abilities: u8| {
        let config = PhyConfig { abilities: abilities.into(), ..PhyConfig::default() };
        AdminCommand::with_input(Opcode::SetPhyConfig, [0; 16], &config.emit())
    };
    let mut pair = Pair::connected();
    for driver in [&mut pair.a, &mut pair.b] {
        driver.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    }
    pair.a.succeed(&configure(1 << 5));
    assert_eq!((pair.a.bus.hca.is_disabled(), pair.a.bus.hca.is_link_up()), (true, false));
    for driver in [&mut pair.a, &mut pair.b] {
        driver.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[9; 8]));
    }
    pair.settle();
    nothing(&mut pair.a);
    nothing(&mut pair.b);
    pair.a.succeed(&configure(1 << 5 | 1 << 3));
    assert_eq!((pair.a.bus.hca.is_disabled(), pair.a.bus.hca.is_link_up()), (false, true));
    wait(&mut pair.a.bus, &mut pair.b.bus);
    for driver in [&mut pair.a, &mut pair.b] {
        assert!(!only(driver, SEND_CQ).cqe.error);
        assert_eq!(only(driver, RECV_CQ).cqe.len, 8);
    }
}

/// Section 12.5: old entries stay in the old ring, and the new ring starts at index 0 with the initial
/// polarity.
#[test]
fn resized_cq_starts_new_ring() {
    let mut pair = Pair::connected();
    let send = |pair: &mut Pair| {
        pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
        pair.a.post_send(QPN, &inline(SEND, 0, None, &[1]));
        pair.settle();
    };
    for _ in 0..3 {
        send(&mut pair);
    }
    let ring = 0x600_0000;
    let command = CqCommand { resize: true, ring: Iova::new(ring), ..pair.b.cq_command(RECV_CQ, 16) };
    pair.b.perform_well(&Operation::ModifyCq(command));
    for _ in 0..3 {
        assert!(pair.b.poll_cq(RECV_CQ).is_some());
    }
    assert_eq!(pair.b.poll_cq(RECV_CQ), None);
    pair.b.follow_cq(RECV_CQ, ring, 16, 1);
    for _ in 0..40 {
        send(&mut pair);
        pair.received();
    }
}

/// Section 12.3: a CQ that is armed while an entry is unread raises an event immediately.
#[test]
fn arming_with_unread_entry_raises_one_event() {
    const NEXT: u64 = 1 << 14;
    const ONLY_SOLICITED: u64 = 1 << 15;
    let mut pair = Pair::connected();
    let send = |pair: &mut Pair, control: u64| {
        pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
        pair.a.post_send(QPN, &inline(control, 0, None, &[1]));
        pair.settle();
    };
    let reply = |pair: &mut Pair| std::iter::from_fn(|| pair.b.next_completion_event()).collect::<Vec<_>>();
    let cookie = u64::from(RECV_CQ.get());
    send(&mut pair, SEND);
    assert_eq!(reply(&mut pair), [0; 0], "the CQ is not armed");
    pair.b.arm_cq(RECV_CQ, NEXT);
    assert_eq!(reply(&mut pair), [cookie], "an entry is unread");
    pair.received();
    send(&mut pair, SEND);
    pair.received();
    assert_eq!(reply(&mut pair), [0; 0], "arming is one-shot");
    pair.b.arm_cq(RECV_CQ, NEXT);
    assert_eq!(reply(&mut pair), [0; 0], "the CQ has no unread entry");
    send(&mut pair, SEND);
    send(&mut pair, SEND);
    assert_eq!(reply(&mut pair), [cookie]);
    pair.b.arm_cq(RECV_CQ, ONLY_SOLICITED);
    send(&mut pair, SEND);
    assert_eq!(reply(&mut pair), [0; 0], "the unread entries are unsolicited");
    send(&mut pair, SOLICITED);
    assert_eq!(reply(&mut pair), [cookie]);
    pair.b.arm_cq(RECV_CQ, ONLY_SOLICITED);
    assert_eq!(reply(&mut pair), [cookie], "a solicited entry is unread");
}

/// Section 12.4: a CQ has at most one unacknowledged event, so a program that arms its CQ in a loop cannot overwrite
/// the unread events of other CQs.
#[test]
fn event_is_held_until_last_one_is_acknowledged() {
    const NEXT: u64 = 1 << 14;
    let mut pair = Pair::connected();
    let acknowledge = |pair: &mut Pair| pair.b.write(Register::PfpeCqack, RECV_CQ.get());
    let events = |pair: &mut Pair| std::iter::from_fn(|| pair.b.next_completion_event()).count();
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    pair.a.post_send(QPN, &inline(SEND, 0, None, &[1]));
    pair.settle();
    for arms in [1, 2, 3 * CEQ_ENTRIES] {
        acknowledge(&mut pair);
        assert_eq!(events(&mut pair), 0);
        for _ in 0..arms {
            pair.b.arm_cq(RECV_CQ, NEXT);
        }
        assert_eq!(events(&mut pair), 1, "the entry is unread");
        acknowledge(&mut pair);
        assert_eq!(events(&mut pair), usize::from(arms > 1), "the CQ was armed again after the event");
    }
    acknowledge(&mut pair);
    pair.received();
    pair.b.arm_cq(RECV_CQ, NEXT);
    assert_eq!(events(&mut pair), 0, "no entry is unread");
}

/// Section 12.4: software does not acknowledge an event that is lost, so the CQ must not hold back the next one.
#[test]
fn cq_raises_event_after_lost_one() {
    const NEXT: u64 = 1 << 14;
    const UNMAPPED: u64 = 1 << 50;
    const CQ: Cqn = Cqn::new(6);
    const CEQ: u16 = 1;
    let create_ceq = |driver: &mut Driver, ring| {
        let command = CreateCeq { ceq: CEQ, entries: 16, ring: Iova::new(ring), ..CreateCeq::default() };
        driver.perform_well(&Operation::CreateCeq(command));
    };
    let mut pair = Pair::new(QpKind::Rc, |context| context.recv_cqn = CQ);
    pair.b.write(Register::PfpeCqack, RECV_CQ.get());
    create_ceq(&mut pair.b, UNMAPPED);
    let command = CqCommand { ceq: CEQ, ..pair.b.cq_command(CQ, 256) };
    pair.b.perform_well(&Operation::CreateCq(command));
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    pair.a.post_send(QPN, &inline(SEND, 0, None, &[1]));
    pair.settle();
    pair.b.arm_cq(CQ, NEXT);

    pair.b.perform_well(&Operation::DestroyCeq(DestroyCeq { ceq: CEQ }));
    create_ceq(&mut pair.b, SOURCE);
    assert_eq!(pair.b.peek(SOURCE, 8), [0; 8], "the first event is lost");
    pair.b.arm_cq(CQ, NEXT);
    assert_eq!(pair.b.peek(SOURCE, 8), (1 << 63 | u64::from(CQ.get())).to_le_bytes());
}

/// Section 12.4: the CQ of the control queue does not hold back events, so programs cannot arm it.
#[test]
fn user_doorbell_does_not_arm_control_cq() {
    const NEXT: u64 = 1 << 14;
    let mut pair = Pair::connected();
    pair.b.arm(0, CCQ_SHADOW, NEXT);
    let head = pair.b.bus.peek(CCQ_SHADOW, 8);
    pair.b.set_neighbour(9, mac(9));
    assert_eq!(pair.b.next_completion_event(), Some(0));
    // The completion is unread until software updates its consumer index.
    pair.b.poke(CCQ_SHADOW, &head);
    pair.b.write(Register::UserCqarm, 0);
    assert_eq!(pair.b.next_completion_event(), None);
    pair.b.write(Register::PfpeCqarm, 0);
    assert_eq!(pair.b.next_completion_event(), Some(0));
}

/// Section 12.2: a full CQ raises one event, and all later CQEs are lost. A QP whose CQE is lost also raises an event,
/// since `irdma` flushes only QPs that raise one.
#[test]
fn full_cq_and_its_qp_raise_one_event_each() {
    let mut pair = Pair::connected();
    let mut receives = Vec::new();
    for _ in 0..300 {
        receives.push(pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]));
        pair.a.post_send(QPN, &inline(SEND, 0, None, &[1]));
        pair.settle();
    }
    let event = pair.b.next_async_event().unwrap();
    assert_eq!((u16::from(event.code), u8::from(event.source)), (0x203, 2));
    assert_eq!((event.number_low, event.context), (RECV_CQ.get(), RECV_CQ.get().into()));
    assert_eq!(failure(&mut pair.b, 2), (0x700, 1, receives[255]));
    assert_eq!(std::iter::from_fn(|| pair.b.poll_cq(RECV_CQ)).count(), 255);
}

/// Section 12.5: a resized CQ still reports an overflow, although irdma does not request the check again.
#[test]
fn full_resized_cq_raises_event() {
    let mut pair = Pair::connected();
    let ring = 0x600_0000;
    let command = pair.b.cq_command(RECV_CQ, 16);
    let resize = CqCommand { resize: true, check_overflow: false, ring: Iova::new(ring), ..command };
    pair.b.perform_well(&Operation::ModifyCq(resize));
    pair.b.follow_cq(RECV_CQ, ring, 16, 1);
    for _ in 0..16 {
        pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
        pair.a.post_send(QPN, &inline(SEND, 0, None, &[1]));
        pair.settle();
    }
    let event = pair.b.next_async_event().unwrap();
    assert_eq!((u16::from(event.code), event.number_low), (0x203, RECV_CQ.get()));
    assert_eq!(std::iter::from_fn(|| pair.b.poll_cq(RECV_CQ)).count(), 15);
}

/// Sections 12.1 and 13.6: the CQE contains the source QP, and the extended CQE contains the source MAC
/// address.
#[test]
fn datagram_completion_reports_source() {
    for (imm, tag) in [(None, None), (Some(0xdead_beef), None), (None, Some(0x6005))] {
        let mut pair = Pair::new(QpKind::Ud, |_| {});
        let tagged =
            AddressHandleCommand { insert_vlan: tag.is_some(), vlan_tag: tag.unwrap_or(0xffff), ..handle(1) };
        pair.a.perform_well(&Operation::CreateAddressHandle(tagged));
        let data = pattern(1000, 5);
        pair.a.poke(SOURCE, &data);
        pair.b.post_receive(QPN, &[fragment(TARGET, 0, 2000)]);
        let to = u64::from(QPN.get()) << 32 | 0x1111_1111;
        pair.a.post_send(QPN, &gather(SIGNALED | SEND | 1, to, imm, &[fragment(SOURCE, 0, 1000)]));
        pair.settle();
        assert!(!pair.sent().error);
        let Polled { cqe, more } = pair.received();
        assert_eq!((cqe.len, cqe.source, cqe.invalidated_or_ipv4), (1040, QPN.get(), true));
        assert_eq!(cqe.opcode, if imm.is_some() { 5 } else { 4 });
        let expected = ExtendedCqe {
            imm: imm.unwrap_or(0),
            source_mac: MacNumber(mac(1)),
            tag: tag.unwrap_or(0),
            has_tag: tag.is_some(),
            has_source_mac: true,
            has_imm: imm.is_some(),
            valid: true,
        };
        assert_eq!(more, Some(expected));
        // The GRH area contains 20 unused bytes, followed by the IPv4 header.
        let area = pair.b.peek(TARGET, 40);
        assert_eq!(
            (area[20], &area[32..36], &area[36..40]),
            (0x45, &[10, 81, 0, 1][..], &[10, 81, 0, 2][..])
        );
        assert_eq!(pair.b.peek(TARGET + 40, 1000), data);
    }
}

/// Section 13.6 and section A17.4.3 of IBTA annex A17: the UDP source port is in the dynamic range and is formed by
/// folding the flow label's high bits into the low bits.
#[test]
fn udp_port_is_derived_from_flow_label() {
    let ip = |id: u16| std::net::IpAddr::from([0xfd81, 0, 0, 0, 0, 0, 0, id]);
    for (label, port) in [(0, 0xc000), (1, 0xc001), (0x4001, 0xc000), (0xf_ffff, 0xffc0_u16)] {
        let mut pair = Pair::new(QpKind::Ud, |_| {});
        pair.a.perform_well(&Operation::CreateAddressHandle(AddressHandleCommand {
            ipv4: false,
            source: ip(1).into(),
            destination: ip(2).into(),
            traffic_class: 0x68,
            flow_label: FlowLabel::new(label),
            ..handle(1)
        }));
        let to = u64::from(QPN.get()) << 32 | 0x1111_1111;
        pair.a.post_send(QPN, &gather(SIGNALED | SEND | 1, to, None, &[fragment(SOURCE, 0, 100)]));
        let frames = pair.a.bus.settle();
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0][14..18], (6 << 28 | 0x68 << 20 | label).to_be_bytes(), "{label:#x}");
        assert_eq!(frames[0][54..56], port.to_be_bytes(), "{label:#x}");
    }
}

/// Section 13.8: every member except the sender receives the datagram, whether it has a VLAN tag or not. For an IPv6
/// address, irdma forms the group MAC from 33:33 and the first four bytes of the address, not the last four.
#[test]
fn multicast_reaches_members_except_sender() {
    let v4 =
        (IpAddr::from([239, 1, 2, 3]), MacAddr([0x01, 0x00, 0x5e, 1, 2, 3]), IpAddr::from([10, 81, 0, 1]));
    let v6 = (
        IpAddr::from([0xff15, 0x401b, 0xffff, 0, 0, 0, 0x1234, 0x5678]),
        MacAddr([0x33, 0x33, 0xff, 0x15, 0x40, 0x1b]),
        IpAddr::from([0xfd81, 0, 0, 0, 0, 0, 0, 1]),
    );
    const SECOND: Qpn = Qpn::new(9);
    const SECOND_CQ: Cqn = Cqn::new(6);
    for ((group, group_mac, source), tag) in [(v4, None), (v4, Some(100)), (v6, None)] {
        let mut pair = Pair::new(QpKind::Ud, |_| {});
        pair.a.create_cq(SECOND_CQ, 256);
        let second = QpContext { send_cqn: SECOND_CQ, recv_cqn: SECOND_CQ, ..context(1) };
        pair.a.create_qp(SECOND, QpKind::Ud, &second);
        for state in [QpState::Idle, QpState::Rtr, QpState::Rts] {
            assert_eq!(pair.a.modify_qp(SECOND, QpKind::Ud, state, &second).error, None, "{state:?}");
        }
        for (driver, members) in [(&mut pair.a, &[QPN, SECOND][..]), (&mut pair.b, &[QPN])] {
            join(driver, group, group_mac, members);
        }
        pair.a.set_neighbour(3, group_mac);
        pair.a.perform_well(&Operation::CreateAddressHandle(AddressHandleCommand {
            arp: ArpIndex::new(3),
            ipv4: group.is_ipv4(),
            destination: group.into(),
            source: source.into(),
            insert_vlan: tag.is_some(),
            vlan_tag: tag.unwrap_or(0xffff),
            loopback: true,
            ..handle(1)
        }));
        let data = pattern(500, 5);
        pair.a.poke(SOURCE, &data);
        for qpn in [QPN, SECOND] {
            pair.a.post_receive(qpn, &[fragment(TARGET, 0, 2000)]);
        }
        pair.b.post_receive(QPN, &[fragment(TARGET, 0, 2000)]);
        let to = 0xff_ffff << 32 | 0x1111_1111;
        pair.a.post_send(QPN, &gather(SIGNALED | SEND | 1, to, None, &[fragment(SOURCE, 0, 500)]));
        pair.settle();
        assert!(!pair.sent().error);
        assert_eq!(pair.a.poll_cq(RECV_CQ), None, "the sender receives no copy");
        for received in [only(&mut pair.a, SECOND_CQ), pair.received()] {
            assert_eq!((received.cqe.len, received.cqe.source), (540, QPN.get()));
            let more = received.more.unwrap();
            assert_eq!((more.has_tag, more.tag), (tag.is_some(), tag.unwrap_or(0)));
        }
        assert_eq!((pair.a.peek(TARGET + 40, 500), pair.b.peek(TARGET + 40, 500)), (data.clone(), data));
    }
}

/// Section 13.9: a change to an ARP entry takes effect on existing connections immediately.
#[test]
fn arp_change_updates_connections() {
    let mut pair = Pair::connected();
    pair.a.set_neighbour(2, mac(9));
    pair.a.post_send(QPN, &inline(SIGNALED | SEND, 0, None, &[9; 8]));
    let lost = pair.a.bus.settle();
    assert_eq!((lost.len(), &lost[0][..6]), (1, &mac(9).0[..]));
    pair.a.set_neighbour(2, mac(2));
    // Deleting the entry, unlike changing it, does not affect connections. They keep the last MAC.
    let delete = ManageArp { index: ArpIndex::new(2), ..ManageArp::default() };
    pair.a.perform_well(&Operation::ManageArp(delete));
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 64)]);
    let later = pair.a.bus.now + std::time::Duration::from_millis(100);
    pair.a.bus.advance(later);
    pair.b.bus.advance(later);
    pair.settle();
    assert_eq!((pair.sent().error, pair.received().cqe.len), (false, 8));
}

/// Section 13.9: deleting an ARP entry does not affect address handles, which keep the last MAC.
#[test]
fn datagrams_keep_mac_of_deleted_arp_entry() {
    let mut pair = Pair::new(QpKind::Ud, |_| {});
    pair.a.perform_well(&Operation::CreateAddressHandle(handle(1)));
    let delete = ManageArp { index: ArpIndex::new(2), ..ManageArp::default() };
    pair.a.perform_well(&Operation::ManageArp(delete));
    let to = u64::from(QPN.get()) << 32 | 0x1111_1111;
    let datagram = gather(SIGNALED | SEND | 1, to, None, &[fragment(SOURCE, 0, 8)]);
    pair.b.post_receive(QPN, &[fragment(TARGET, 0, 200)]);
    pair.a.post_send(QPN, &datagram);
    pair.settle();
    assert_eq!((pair.sent().error, pair.received().cqe.len), (false, 48));
    pair.a.set_neighbour(2, mac(9));
    pair.a.post_send(QPN, &datagram);
    assert_eq!(pair.a.bus.settle()[0][..6], mac(9).0, "the entry is reused");
}

/// Key of the region on device `a`.
const OWN: u32 = 0x9132_58d1;
/// Key of the region on device `b`.
const PEER: u32 = 0x6cdb_0e07;

/// Creates queue pairs that can access memory only by key.
fn with_regions() -> Pair {
    let mut pair = Pair::new(QpKind::Rc, |context| context.privileged = false);
    let own = StagRights::LOCAL_READ | StagRights::LOCAL_WRITE;
    register(&mut pair.a, OWN, SOURCE, 0x40_0000, own);
    register(&mut pair.b, PEER, TARGET, 0x40_0000, StagRights::all());
    pair
}

#[test]
fn write_with_immediate_consumes_receive() {
    let mut pair = with_regions();
    let data = pattern(3 << 20, 9);
    pair.a.poke(SOURCE + 5, &data);
    let len = u32::try_from(data.len()).unwrap();
    let control = SIGNALED | WRITE | u64::from(PEER);
    pair.a.post_send(QPN, &gather(control, TARGET + 7, None, &[fragment(SOURCE + 5, OWN, len)]));
    pair.settle();
    assert_eq!((pair.sent().error, pair.a.next_async_event()), (false, None));
    assert_eq!(pair.b.peek(TARGET + 7, data.len()), data);
    nothing(&mut pair.b);

    let receive = pair.b.post_receive(QPN, &[]);
    pair.a.post_send(QPN, &gather(control, TARGET, Some(0x1122_3344), &[fragment(SOURCE, OWN, 100)]));
    pair.settle();
    assert!(!pair.sent().error);
    let Polled { cqe, more } = pair.received();
    assert_eq!((cqe.opcode, cqe.len, cqe.wqe_index), (0x0b, 100, receive));
    assert_eq!(more.map(|more| (more.has_imm, more.imm)), Some((true, 0x1122_3344)));
}

#[test]
fn read_response_is_scattered_to_all_fragments() {
    let mut pair = with_regions();
    let data = pattern(100_000, 4);
    pair.b.poke(TARGET + 3, &data);
    let list = [fragment(SOURCE, OWN, 60_000), fragment(SOURCE + 0x2_0000, OWN, 40_000)];
    pair.a.post_send(QPN, &gather(SIGNALED | READ | u64::from(PEER), TARGET + 3, None, &list));
    pair.settle();
    let sent = pair.sent();
    assert_eq!((sent.error, sent.opcode), (false, 1));
    let found = [pair.a.peek(SOURCE, 60_000), pair.a.peek(SOURCE + 0x2_0000, 40_000)].concat();
    assert_eq!(found, data);
}
