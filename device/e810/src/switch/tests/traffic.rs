use super::*;

const NOBODY: [u16; 0] = [];

#[test]
fn vsi_without_rules_can_only_send() {
    let driver = Driver::new();
    for dst in [ME, GROUP, MacAddr::BROADCAST] {
        assert_eq!(driver.receivers(&Frame::to(dst)), NOBODY);
        assert_eq!(driver.send(&Frame::to(dst)), Ok((true, vec![])));
    }
}

/// Section 16.2, E-7: MAC rules specify a VSI as their source, but apply to frames from the wire.
#[test]
fn mac_rules_select_received_frames() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(ME, to_vsi(1) | LOOPBACK));
    driver.add(Rule::mac(MacAddr::BROADCAST, to_vsi(1) | LOOPBACK | LAN));
    driver.add(Rule::mac(GROUP, to_vsi(1) | LOOPBACK | LAN));
    for dst in [ME, MacAddr::BROADCAST, GROUP] {
        assert_eq!(driver.receivers(&Frame::to(dst)), [1]);
    }
    for dst in [PEER, STRANGER, MacAddr([0x33, 0x33, 0, 0, 0, 0x02])] {
        assert_eq!(driver.receivers(&Frame::to(dst)), NOBODY);
    }
}

#[test]
fn mac_vlan_rule_matches_only_its_vlan() {
    let mut driver = Driver::new();
    driver.add(Rule::new(FROM_VSI, MAC_VLAN, to_vsi(2)).dst(ME).vid(7));
    assert_eq!(driver.receivers(&Frame::to(ME).vlan(7)), [2]);
    assert_eq!(driver.receivers(&Frame::to(ME).vlan(0xe007)), [2], "the priority does not matter");
    for frame in
        [Frame::to(ME), Frame::to(ME).vlan(8), Frame::to(ME).service_vlan(7), Frame::to(PEER).vlan(7)]
    {
        assert_eq!(driver.receivers(&frame), NOBODY);
    }
}

#[test]
fn promiscuous_rule_matches_only_its_address_kind() {
    let cases = [(ANY_UNICAST, STRANGER), (ANY_MULTICAST, GROUP), (MacAddr::BROADCAST, MacAddr::BROADCAST)];
    for (at, (rule, _)) in cases.into_iter().enumerate() {
        let mut driver = Driver::new();
        driver.add(Rule::new(FROM_PORT, PROMISCUOUS, to_vsi(1)).dst(rule));
        for (other, (_, dst)) in cases.into_iter().enumerate() {
            assert_eq!(
                driver.receivers(&Frame::to(dst)).is_empty(),
                at != other,
                "rule for {rule}, frame to {dst}"
            );
            assert_eq!(
                driver.receivers(&Frame::to(dst).vlan(5)).is_empty(),
                at != other,
                "rule for {rule}, frame to {dst} in a VLAN"
            );
        }
    }
}

#[test]
fn promiscuous_vlan_rule_matches_only_its_vlan() {
    let mut driver = Driver::new();
    driver.add(Rule::new(FROM_PORT, PROMISCUOUS_VLAN, to_vsi(1)).dst(ANY_MULTICAST).vid(5));
    driver.add(Rule::new(FROM_PORT, PROMISCUOUS_VLAN, to_vsi(2)).dst(ANY_MULTICAST).vid(0));
    assert_eq!(driver.receivers(&Frame::to(GROUP).vlan(5)), [1]);
    assert_eq!(driver.receivers(&Frame::to(GROUP)), [2]);
    assert_eq!(driver.receivers(&Frame::to(GROUP).vlan(6)), NOBODY);
    assert_eq!(driver.receivers(&Frame::to(ME).vlan(5)), NOBODY);
}

#[test]
fn promiscuous_transmit_rules_ignore_wire_frames() {
    let mut driver = Driver::new();
    driver.add(Rule::new(FROM_VSI, PROMISCUOUS, to_vsi(2) | LOOPBACK | LAN).dst(ANY_MULTICAST));
    assert_eq!(driver.receivers(&Frame::to(GROUP)), NOBODY);
    assert_eq!(driver.send(&Frame::to(GROUP)), Ok((true, vec![2])));
}

#[test]
fn default_vsi_receives_unmatched_frames() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(ME, to_vsi(2)));
    driver.add(Rule::new(FROM_PORT, DEFAULT, to_vsi(1)));
    assert_eq!(driver.receivers(&Frame::to(ME)), [2]);
    for dst in [STRANGER, GROUP, MacAddr::BROADCAST] {
        assert_eq!(driver.receivers(&Frame::to(dst)), [1]);
    }
    assert_eq!(
        driver.send(&Frame::to(STRANGER)),
        Ok((true, vec![])),
        "the rule applies only to frames from the port"
    );
}

#[test]
fn ethertype_rules_apply_only_in_their_direction() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(ME, to_vsi(1)));
    driver.add(Rule::new(FROM_PORT, ETHER_TYPE, DROP).ether_type(0x8808));
    // Add an LLDP rule as recorded in `run73-vlan.aq.gz`, and a rule for a single destination address.
    driver.add(Rule::new(FROM_PORT, ETHER_TYPE, to_vsi(1)).ether_type(0x88cc));
    driver.add(Rule::new(FROM_PORT, ETHER_TYPE_MAC, to_vsi(2)).ether_type(0x88f7).dst(GROUP));
    let nearest_bridge = MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x0e]);
    assert_eq!(driver.receivers(&Frame::to(ME).ether_type(0x8808)), NOBODY);
    assert_eq!(driver.receivers(&Frame::to(nearest_bridge).ether_type(0x88cc)), [1]);
    assert_eq!(driver.receivers(&Frame::to(nearest_bridge)), NOBODY);
    assert_eq!(driver.receivers(&Frame::to(GROUP).ether_type(0x88f7)), [2]);
    assert_eq!(driver.receivers(&Frame::to(MacAddr::BROADCAST).ether_type(0x88f7)), NOBODY);
    assert_eq!(
        driver.send(&Frame::to(PEER).ether_type(0x8808)),
        Ok((true, vec![])),
        "the rules do not apply to sent frames"
    );
}

/// The EtherType rules in this test are those that drivers always add when they probe the device.
#[test]
fn control_frames_require_destination_override() {
    let mut driver = Driver::new();
    for ether_type in [0x8808, 0x88cc] {
        driver.add(Rule::new(FROM_VSI, ETHER_TYPE, DROP).ether_type(ether_type));
        let frame = Frame::to(GROUP).ether_type(ether_type);
        assert_eq!(driver.send(&frame), Err(DiscardError::Rule));
        assert_eq!(
            driver.send_to(&frame, Destination::Wire),
            Err(DiscardError::Rule),
            "the VSI may not override the destination"
        );
    }
    assert_eq!(driver.send(&Frame::to(GROUP)), Ok((true, vec![])));
    driver.update(1, |context| context.security.destination_override = true);
    let lldp = Frame::to(GROUP).ether_type(0x88cc);
    assert_eq!(driver.send(&lldp), Err(DiscardError::Rule));
    assert_eq!(driver.send_to(&lldp, Destination::Wire), Ok((true, vec![])));
    // An EtherType rule applies only to frames sent by the rule's source VSI.
    let from_other = driver.0.transmit(VsiNumber::new(2), &lldp.layers(), Destination::Rules);
    assert!(from_other.is_ok_and(|route| route.wire));
}

#[test]
fn destination_override_selects_target() {
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
fn loopback_and_lan_bits_select_destinations() {
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
        assert_eq!(driver.receivers(&Frame::to(PEER)), [2], "{bits:#x}: frames from the wire always match");
    }
}

#[test]
fn vsi_flags_restrict_loopback_and_lan() {
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
fn source_pruning_prevents_receiving_own_frames() {
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
fn vlan_pruning_limits_reception() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(ME, to_vsi(1)));
    let list = driver.admit(0, &[1]);
    driver.admit(100, &[1]);
    driver.admit(200, &[2]);
    assert_eq!(driver.receivers(&Frame::to(ME).vlan(300)), [1], "VLAN pruning is not enabled yet");
    driver.update(1, |context| context.switch.vlan_prune = true);
    for (frame, expected) in [
        (Frame::to(ME), vec![1]),
        (Frame::to(ME).vlan(0x2000), vec![1]),
        (Frame::to(ME).vlan(100), vec![1]),
        (Frame::to(ME).vlan(200), vec![]),
        (Frame::to(ME).vlan(300), vec![]),
        (Frame::to(ME).service_vlan(300), vec![1]),
    ] {
        assert_eq!(driver.receivers(&frame), expected, "{:02x?}", frame.tag);
    }
    driver.list(6, list, &[1]).unwrap();
    assert_eq!(driver.receivers(&Frame::to(ME)), NOBODY);
}

#[test]
fn vlan_pruning_applies_to_local_frames() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(PEER, to_vsi(2) | LOOPBACK));
    driver.admit(100, &[2]);
    driver.update(2, |context| context.switch.vlan_prune = true);
    assert_eq!(driver.send(&Frame::to(PEER).vlan(100)), Ok((false, vec![2])));
    assert_eq!(
        driver.send(&Frame::to(PEER)),
        Ok((false, vec![])),
        "a frame to a local address does not go to the wire"
    );
}

#[test]
fn egress_vlan_pruning_limits_transmission() {
    let mut driver = Driver::new();
    driver.admit(100, &[1]);
    driver.admit(200, &[2]);
    driver.update(1, |context| context.security.vlan_prune = true);
    assert_eq!(driver.send(&Frame::to(PEER).vlan(100)), Ok((true, vec![])));
    for frame in [Frame::to(PEER), Frame::to(PEER).vlan(200), Frame::to(PEER).vlan(300)] {
        assert_eq!(driver.send(&frame), Err(DiscardError::VlanPruned));
    }
    driver.update(1, |context| {
        context.vlan.port_tag = 100;
        context.vlan.insert_port_tag = true;
    });
    assert_eq!(
        driver.send(&Frame::to(PEER)),
        Ok((true, vec![])),
        "the inserted port VLAN tag must be checked"
    );
}

#[test]
fn anti_spoof_rejects_foreign_source() {
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
        assert_eq!(driver.send(&frame.clone().from(src)), Err(DiscardError::Spoofed), "{src}");
    }
}

#[test]
fn vlan_mode_discards_tagged_frames() {
    let mut driver = Driver::new();
    driver.update(1, |context| context.vlan.transmit = 1);
    assert_eq!(driver.send(&Frame::to(PEER)), Ok((true, vec![])));
    assert_eq!(driver.send(&Frame::to(PEER).vlan(5)), Err(DiscardError::VlanMode));
    let unknown_vsi = driver.0.transmit(VsiNumber::new(7), &Frame::to(PEER).layers(), Destination::Rules);
    assert_eq!(unknown_vsi, Err(DiscardError::NoVsi));
}
