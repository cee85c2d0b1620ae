use super::*;

const NOBODY: [u16; 0] = [];

#[test]
fn without_rules_nothing_is_received_and_everything_is_sent() {
    let driver = Driver::new();
    for dst in [ME, GROUP, MacAddr::BROADCAST] {
        assert_eq!(driver.take(&Frame::to(dst)), NOBODY);
        assert_eq!(driver.send(&Frame::to(dst)), Ok((true, vec![])));
    }
}

/// E-7: these rules say a VSI as their source, and the wire is meant.
#[test]
fn own_address_broadcast_and_groups_are_received_and_nothing_else() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(ME, to_vsi(1) | LOOPBACK));
    driver.add(Rule::mac(MacAddr::BROADCAST, to_vsi(1) | LOOPBACK | LAN));
    driver.add(Rule::mac(GROUP, to_vsi(1) | LOOPBACK | LAN));
    for dst in [ME, MacAddr::BROADCAST, GROUP] {
        assert_eq!(driver.take(&Frame::to(dst)), [1]);
    }
    for dst in [PEER, STRANGER, MacAddr([0x33, 0x33, 0, 0, 0, 0x02])] {
        assert_eq!(driver.take(&Frame::to(dst)), NOBODY);
    }
}

#[test]
fn an_address_with_a_vlan_is_received_in_that_vlan_only() {
    let mut driver = Driver::new();
    driver.add(Rule::new(FROM_VSI, MAC_VLAN, to_vsi(2)).dst(ME).vid(7));
    assert_eq!(driver.take(&Frame::to(ME).vlan(7)), [2]);
    assert_eq!(driver.take(&Frame::to(ME).vlan(0xe007)), [2], "whatever its priority");
    for frame in
        [Frame::to(ME), Frame::to(ME).vlan(8), Frame::to(ME).service_vlan(7), Frame::to(PEER).vlan(7)]
    {
        assert_eq!(driver.take(&frame), NOBODY);
    }
}

#[test]
fn promiscuous_rules_take_frames_of_their_cast() {
    let cases = [(ANY_UNICAST, STRANGER), (ANY_MULTICAST, GROUP), (MacAddr::BROADCAST, MacAddr::BROADCAST)];
    for (at, (rule, _)) in cases.into_iter().enumerate() {
        let mut driver = Driver::new();
        driver.add(Rule::new(FROM_PORT, PROMISCUOUS, to_vsi(1)).dst(rule));
        for (other, (_, dst)) in cases.into_iter().enumerate() {
            assert_eq!(driver.take(&Frame::to(dst)).is_empty(), at != other, "{rule} {dst}");
            assert_eq!(
                driver.take(&Frame::to(dst).vlan(5)).is_empty(),
                at != other,
                "{rule} {dst} in a vlan"
            );
        }
    }
}

#[test]
fn a_promiscuous_rule_with_a_vlan_takes_frames_of_that_vlan() {
    let mut driver = Driver::new();
    driver.add(Rule::new(FROM_PORT, PROMISCUOUS_VLAN, to_vsi(1)).dst(ANY_MULTICAST).vid(5));
    driver.add(Rule::new(FROM_PORT, PROMISCUOUS_VLAN, to_vsi(2)).dst(ANY_MULTICAST).vid(0));
    assert_eq!(driver.take(&Frame::to(GROUP).vlan(5)), [1]);
    assert_eq!(driver.take(&Frame::to(GROUP)), [2]);
    assert_eq!(driver.take(&Frame::to(GROUP).vlan(6)), NOBODY);
    assert_eq!(driver.take(&Frame::to(ME).vlan(5)), NOBODY);
}

#[test]
fn promiscuous_rules_for_what_vsis_send_are_not_about_the_wire() {
    let mut driver = Driver::new();
    driver.add(Rule::new(FROM_VSI, PROMISCUOUS, to_vsi(2) | LOOPBACK | LAN).dst(ANY_MULTICAST));
    assert_eq!(driver.take(&Frame::to(GROUP)), NOBODY);
    assert_eq!(driver.send(&Frame::to(GROUP)), Ok((true, vec![2])));
}

#[test]
fn the_default_vsi_takes_what_no_other_rule_gives_to_anybody() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(ME, to_vsi(2)));
    driver.add(Rule::new(FROM_PORT, DEFAULT, to_vsi(1)));
    assert_eq!(driver.take(&Frame::to(ME)), [2]);
    for dst in [STRANGER, GROUP, MacAddr::BROADCAST] {
        assert_eq!(driver.take(&Frame::to(dst)), [1]);
    }
    assert_eq!(driver.send(&Frame::to(STRANGER)), Ok((true, vec![])), "it is about the port");
}

#[test]
fn ethertype_rules_drop_or_take_what_comes_their_way() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(ME, to_vsi(1)));
    driver.add(Rule::new(FROM_PORT, ETHER_TYPE, DROP).ether_type(0x8808));
    // LLDP as a driver takes it itself (run73-vlan.aq.gz), and with one destination only.
    driver.add(Rule::new(FROM_PORT, ETHER_TYPE, to_vsi(1)).ether_type(0x88cc));
    driver.add(Rule::new(FROM_PORT, ETHER_TYPE_MAC, to_vsi(2)).ether_type(0x88f7).dst(GROUP));
    let nearest_bridge = MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x0e]);
    assert_eq!(driver.take(&Frame::to(ME).ether_type(0x8808)), NOBODY);
    assert_eq!(driver.take(&Frame::to(nearest_bridge).ether_type(0x88cc)), [1]);
    assert_eq!(driver.take(&Frame::to(nearest_bridge)), NOBODY);
    assert_eq!(driver.take(&Frame::to(GROUP).ether_type(0x88f7)), [2]);
    assert_eq!(driver.take(&Frame::to(MacAddr::BROADCAST).ether_type(0x88f7)), NOBODY);
    assert_eq!(
        driver.send(&Frame::to(PEER).ether_type(0x8808)),
        Ok((true, vec![])),
        "what is sent is not meant"
    );
}

/// What drivers do at every probe.
#[test]
fn pause_frames_and_lldp_of_a_guest_are_dropped_unless_it_may_and_does_say_the_wire() {
    let mut driver = Driver::new();
    for ether_type in [0x8808, 0x88cc] {
        driver.add(Rule::new(FROM_VSI, ETHER_TYPE, DROP).ether_type(ether_type));
        let frame = Frame::to(GROUP).ether_type(ether_type);
        assert_eq!(driver.send(&frame), Err(Discard::Rule));
        assert_eq!(driver.send_to(&frame, Destination::Wire), Err(Discard::Rule), "it may not say so");
    }
    assert_eq!(driver.send(&Frame::to(GROUP)), Ok((true, vec![])));
    driver.update(1, |context| context.security.destination_override = true);
    let lldp = Frame::to(GROUP).ether_type(0x88cc);
    assert_eq!(driver.send(&lldp), Err(Discard::Rule));
    assert_eq!(driver.send_to(&lldp, Destination::Wire), Ok((true, vec![])));
    // Rules are of the VSI that is their source.
    let of_other = driver.0.transmit(VsiNumber::new(2), &lldp.layers(), Destination::Rules);
    assert!(of_other.is_ok_and(|route| route.wire));
}

#[test]
fn software_that_may_says_where_a_frame_goes() {
    let mut driver = Driver::new();
    driver.update(1, |context| context.security.destination_override = true);
    driver.add(Rule::mac(GROUP, to_vsi(2) | LOOPBACK | LAN));
    let frame = Frame::to(GROUP);
    assert_eq!(driver.send_to(&frame, Destination::Wire), Ok((true, vec![])));
    assert_eq!(driver.send_to(&frame, Destination::Local), Ok((false, vec![2])));
    let to_two = Destination::Vsi(VsiNumber::new(2));
    assert_eq!(driver.send_to(&Frame::to(STRANGER), to_two), Ok((false, vec![2])));
    assert_eq!(driver.send_to(&frame, Destination::Vsi(VsiNumber::new(9))), Ok((false, vec![])));
}

#[test]
fn frames_between_vsis_follow_the_loopback_and_lan_bits_of_the_rule() {
    let cases = [
        (LOOPBACK, (false, vec![2])),
        (LOOPBACK | LAN, (true, vec![2])),
        (LAN, (true, vec![])),
        (0, (true, vec![])),
    ];
    for (bits, expected) in cases {
        let mut driver = Driver::new();
        driver.add(Rule::mac(PEER, to_vsi(2) | bits));
        assert_eq!(driver.send(&Frame::to(PEER)), Ok(expected), "{bits:#x}");
        assert_eq!(driver.take(&Frame::to(PEER)), [2], "{bits:#x}: from the wire always");
    }
}

#[test]
fn a_vsi_without_loopback_or_lan_has_the_other_way_only() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(GROUP, to_vsi(2) | LOOPBACK | LAN));
    driver.update(1, |context| context.switch.allow_loopback = false);
    assert_eq!(driver.send(&Frame::to(GROUP)), Ok((true, vec![])));
    driver.update(1, |context| {
        context.switch.allow_loopback = true;
        context.switch.lan = false;
    });
    assert_eq!(driver.send(&Frame::to(GROUP)), Ok((false, vec![2])));
    assert_eq!(driver.send(&Frame::to(STRANGER)), Ok((false, vec![])));
}

#[test]
fn a_vsi_receives_what_it_sent_only_if_it_is_looped_to_itself_and_not_pruned_by_source() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(MacAddr::BROADCAST, to_vsi(1) | LOOPBACK | LAN));
    for (local_loopback, source_prune, back) in
        [(false, true, vec![]), (true, true, vec![]), (false, false, vec![]), (true, false, vec![1])]
    {
        driver.update(1, |context| {
            context.switch.local_loopback = local_loopback;
            context.switch.source_prune = source_prune;
        });
        let sent = driver.send(&Frame::to(MacAddr::BROADCAST));
        assert_eq!(sent, Ok((true, back)), "{local_loopback} {source_prune}");
    }
}

#[test]
fn a_vsi_that_prunes_by_vlan_receives_only_vlans_that_it_is_let_take() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(ME, to_vsi(1)));
    let list = driver.let_take(0, &[1]);
    driver.let_take(100, &[1]);
    driver.let_take(200, &[2]);
    assert_eq!(driver.take(&Frame::to(ME).vlan(300)), [1], "it does not prune yet");
    driver.update(1, |context| context.switch.vlan_prune = true);
    for (frame, expected) in [
        (Frame::to(ME), vec![1]),
        (Frame::to(ME).vlan(0x2000), vec![1]),
        (Frame::to(ME).vlan(100), vec![1]),
        (Frame::to(ME).vlan(200), vec![]),
        (Frame::to(ME).vlan(300), vec![]),
        (Frame::to(ME).service_vlan(300), vec![1]),
    ] {
        assert_eq!(driver.take(&frame), expected, "{:02x?}", frame.tag);
    }
    driver.list(6, list, &[1]).unwrap();
    assert_eq!(driver.take(&Frame::to(ME)), NOBODY);
}

#[test]
fn what_another_vsi_sends_is_pruned_by_vlan_too() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(PEER, to_vsi(2) | LOOPBACK));
    driver.let_take(100, &[2]);
    driver.update(2, |context| context.switch.vlan_prune = true);
    assert_eq!(driver.send(&Frame::to(PEER).vlan(100)), Ok((false, vec![2])));
    assert_eq!(
        driver.send(&Frame::to(PEER)),
        Ok((false, vec![])),
        "and not for the wire: it is an address of ours"
    );
}

#[test]
fn a_vsi_sends_only_to_vlans_that_it_is_let_take_if_it_prunes_what_it_sends() {
    let mut driver = Driver::new();
    driver.let_take(100, &[1]);
    driver.let_take(200, &[2]);
    driver.update(1, |context| context.security.vlan_prune = true);
    assert_eq!(driver.send(&Frame::to(PEER).vlan(100)), Ok((true, vec![])));
    for frame in [Frame::to(PEER), Frame::to(PEER).vlan(200), Frame::to(PEER).vlan(300)] {
        assert_eq!(driver.send(&frame), Err(Discard::VlanPruned));
    }
    driver.update(1, |context| {
        context.vlan.port_tag = 100;
        context.vlan.insert_port_tag = true;
    });
    assert_eq!(driver.send(&Frame::to(PEER)), Ok((true, vec![])), "the port's tag is inserted");
}

#[test]
fn a_vsi_that_is_checked_for_spoofing_sends_from_its_own_addresses_only() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(ME, to_vsi(1)));
    driver.add(Rule::mac(PEER, to_vsi(2)));
    driver.add(Rule::new(FROM_VSI, MAC_VLAN, to_vsi(1)).dst(STRANGER).vid(7));
    driver.add(Rule::new(FROM_PORT, DEFAULT, to_vsi(1)));
    driver.update(1, |context| context.security.mac_anti_spoof = true);
    let frame = Frame::to(GROUP);
    assert_eq!(driver.send(&frame.clone().from(ME)), Ok((true, vec![])));
    assert_eq!(driver.send(&frame.clone().from(STRANGER).vlan(7)), Ok((true, vec![])));
    for src in [PEER, STRANGER] {
        assert_eq!(driver.send(&frame.clone().from(src)), Err(Discard::Spoofed), "{src}");
    }
}

#[test]
fn frames_that_the_vlan_mode_forbids_are_not_sent() {
    let mut driver = Driver::new();
    driver.update(1, |context| context.vlan.transmit = 1);
    assert_eq!(driver.send(&Frame::to(PEER)), Ok((true, vec![])));
    assert_eq!(driver.send(&Frame::to(PEER).vlan(5)), Err(Discard::VlanMode));
    let nobody = driver.0.transmit(VsiNumber::new(7), &Frame::to(PEER).layers(), Destination::Rules);
    assert_eq!(nobody, Err(Discard::NoVsi));
}
