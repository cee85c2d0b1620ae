use super::*;

#[test]
fn switch_configuration_lists_port_and_default_vsi() {
    let mut buffer = [0xa5; 2048];
    assert_eq!(Switch::configuration(&Vsis::default(), 0, &mut buffer), Ok((2, 0)));
    assert_eq!(buffer[..6], [0, 0, 1, 0, 0, 0], "the response must match command 0200 in run73-all.aq.gz");
    assert_eq!(buffer[6..12], [0x01, 0x83, 1, 0, 0, 0], "the second element must be VSI 769");
}

/// iPXE requests one element at a time.
#[test]
fn switch_configuration_continues_after_short_buffer() {
    let vsis = Vsis::default();
    let mut buffer = [0; SwitchElement::LEN];
    assert_eq!(Switch::configuration(&vsis, 0, &mut buffer), Ok((1, 1)));
    assert_eq!(Switch::configuration(&vsis, 1, &mut buffer), Ok((1, 0)));
    assert_eq!(SwitchElement::parse(&buffer).kind, 2);
    for (first, len) in [(2, SwitchElement::LEN), (0, SwitchElement::LEN - 1)] {
        let error = Switch::configuration(&vsis, first, &mut buffer[..len]).unwrap_err();
        assert_eq!(error.status, AdminStatus::Invalid, "first element {first}, buffer of {len} bytes");
    }
}

#[test]
fn rules_are_removed_individually_by_index() {
    let mut driver = Driver::new();
    let first = driver.add(Rule::mac(ME, to_vsi(1)));
    let second = driver.add(Rule::mac(PEER, to_vsi(1)));
    assert_ne!(first, second);
    assert_eq!(driver.remove(first), Ok(()));
    assert_eq!(driver.remove(first), Err(AdminStatus::NoEntry));
    assert_eq!(driver.receivers(&Frame::to(ME)), [0; 0]);
    assert_eq!(driver.receivers(&Frame::to(PEER)), [1]);
    assert_eq!(driver.remove(0xffff), Err(AdminStatus::NoEntry));
}

#[test]
fn rejects_duplicate_rule() {
    let mut driver = Driver::new();
    let index = driver.add(Rule::mac(ME, to_vsi(1)));
    assert_eq!(driver.try_add(Rule::mac(ME, to_vsi(2))), Err(AdminStatus::Exists));
    let of_port = Rule { kind: FROM_PORT, source: 0, ..Rule::mac(ME, to_vsi(2)) };
    assert_eq!(
        driver.try_add(of_port),
        Err(AdminStatus::Exists),
        "an address must be unique across all sources"
    );
    assert_eq!(driver.receivers(&Frame::to(ME)), [1]);
    driver.remove(index).unwrap();
    driver.add(Rule::mac(ME, to_vsi(2)));
    // The keys of the following rules include the direction, so rules for different directions do not conflict.
    for kind in [FROM_PORT, FROM_VSI] {
        driver.add(Rule::new(kind, DEFAULT, to_vsi(1)));
        driver.add(Rule::new(kind, ETHER_TYPE, DROP).ether_type(0x88cc));
        driver.add(Rule::new(kind, PROMISCUOUS, to_vsi(1)).dst(ANY_MULTICAST));
    }
}

#[test]
fn update_replaces_rule_action() {
    let mut driver = Driver::new();
    let list = driver.allocate(3);
    driver.list(3, list, &[1, 2]).unwrap();
    let index = driver.add(Rule::mac(ME, to_vsi(1)));
    let updated = Rule::mac(ME, to_list(list)).bytes(index);
    driver.command(RuleCommand::Update, updated).unwrap();
    assert_eq!(driver.receivers(&Frame::to(ME)), [1, 2]);
    driver.list(4, list, &[1]).unwrap();
    assert_eq!(driver.receivers(&Frame::to(ME)), [2]);
    let unknown = Rule::mac(ME, to_vsi(1)).bytes(index + 1);
    assert_eq!(driver.command(RuleCommand::Update, unknown), Err(AdminStatus::NoEntry));
}

#[test]
fn rejects_rules_with_unknown_objects() {
    let mut driver = Driver::new();
    let (vsi_list, prune_list) = (driver.allocate(3), driver.allocate(4));
    let other_source = |rule: Rule, source| Rule { source, ..rule };
    let cases = [
        ("VSI 3 as its target", Rule::mac(ME, to_vsi(3))),
        ("an unallocated list", Rule::mac(ME, to_list(vsi_list + 1))),
        ("an unallocated prune list", Rule::new(FROM_VSI, VLAN, prune(prune_list + 1))),
        ("an unknown large action", Rule::mac(ME, 0x4_0002 | 7 << 4)),
        ("VSI 3 as its source", other_source(Rule::mac(ME, to_vsi(1)), 3)),
        ("port 1 as its source", other_source(Rule::new(FROM_PORT, DEFAULT, to_vsi(1)), 1)),
    ];
    for (what, rule) in cases {
        assert_eq!(driver.try_add(rule), Err(AdminStatus::NoEntry), "{what}");
    }
    assert_eq!(driver.list(3, vsi_list + 1, &[1]), Err(AdminStatus::NoEntry));
    assert_eq!(driver.list(5, prune_list + 1, &[1]), Err(AdminStatus::NoEntry));
    assert_eq!(driver.list(3, vsi_list, &[3]), Err(AdminStatus::NoEntry));
    assert_eq!(driver.list(4, vsi_list, &[3]), Ok(()), "removing a VSI that is not in the list succeeds");
}

#[test]
fn rejects_invalid_rules() {
    let mut driver = Driver::new();
    let cases = [
        ("recipe 6", Rule { recipe: 6, ..Rule::mac(ME, to_vsi(1)) }),
        ("an invalid action", Rule::mac(ME, 0x10)),
        ("forwarding to a queue", Rule::mac(ME, 0x2_0001)),
        ("mirroring", Rule::mac(ME, 0x0013)),
        ("a prune action in a MAC rule", Rule::mac(ME, prune(1))),
        ("a forward action in a VLAN rule", Rule::new(FROM_VSI, VLAN, to_vsi(1))),
        ("rule type 7", Rule { kind: 7, ..Rule::mac(ME, to_vsi(1)) }),
    ];
    for (what, rule) in cases {
        assert_eq!(driver.try_add(rule), Err(AdminStatus::Invalid), "{what}");
    }
    let whole = Rule::mac(ME, to_vsi(1)).bytes(0);
    for len in 0..whole.len() {
        let cut = driver.command(RuleCommand::Add, whole[..len].to_vec());
        assert_eq!(cut, Err(AdminStatus::Invalid), "{len} bytes");
    }
    let mut short_header = whole[..29].to_vec();
    short_header[14] = 13;
    assert_eq!(driver.command(RuleCommand::Add, short_header), Err(AdminStatus::Invalid));
}

#[test]
fn rules_before_rejected_rule_take_effect() {
    let mut driver = Driver::new();
    let mut buffer = [Rule::mac(ME, to_vsi(1)), Rule::mac(PEER, to_vsi(3)), Rule::mac(STRANGER, to_vsi(1))]
        .map(|rule| rule.bytes(0))
        .concat();
    assert_eq!(driver.0.rules(RuleCommand::Add, 3, &mut buffer).unwrap_err().status, AdminStatus::NoEntry);
    let statuses = [0, 32, 64].map(|at| RuleHeader::parse_prefix(&buffer[at..]).unwrap().status);
    assert_eq!(statuses, [0, AdminStatus::NoEntry.code(), 0]);
    assert_eq!(driver.receivers(&Frame::to(ME)), [1]);
    assert_eq!(driver.receivers(&Frame::to(STRANGER)), [0; 0]);
}

#[test]
fn rules_start_at_even_offsets() {
    let mut driver = Driver::new();
    let mut odd = Rule::mac(ME, to_vsi(1)).bytes(0);
    odd[14] = 15;
    // The first header now has a length of 15, so its 16th byte becomes padding.
    let mut buffer = [odd, Rule::mac(PEER, to_vsi(2)).bytes(0)].concat();
    driver.0.rules(RuleCommand::Add, 2, &mut buffer).unwrap();
    assert_eq!((driver.receivers(&Frame::to(ME)), driver.receivers(&Frame::to(PEER))), (vec![1], vec![2]));
}

#[test]
fn rejects_rules_past_limit() {
    let mut driver = Driver::new();
    let address = |number: u16| {
        let [high, low] = number.to_be_bytes();
        MacAddr([0x02, 1, 0, 0, high, low])
    };
    for number in 0..MAX_RULES {
        driver.add(Rule::mac(address(number), to_vsi(1)));
    }
    assert_eq!(driver.try_add(Rule::mac(ME, to_vsi(1))), Err(AdminStatus::NoSpace));
    assert_eq!(driver.receivers(&Frame::to(address(MAX_RULES - 1))), [1]);
    driver.remove(5).unwrap();
    assert_eq!(driver.try_add(Rule::mac(ME, to_vsi(1))), Ok(5));
}

#[test]
fn reallocated_vsi_list_is_empty() {
    let mut driver = Driver::new();
    let list = driver.allocate(3);
    driver.list(3, list, &[1, 2]).unwrap();
    driver.0.free(&mut [3, 0, 1, 0, list.to_le_bytes()[0], 0]).unwrap();
    assert_eq!(driver.allocate(3), list);
    driver.add(Rule::mac(ME, to_list(list)));
    assert_eq!(driver.receivers(&Frame::to(ME)), [0; 0]);
}

#[test]
fn rules_of_freed_vsi_become_inactive() {
    let mut driver = Driver::new();
    let list = driver.allocate(3);
    driver.list(3, list, &[1, 2]).unwrap();
    let mine = driver.add(Rule::mac(ME, to_vsi(1)));
    driver.add(Rule::mac(GROUP, to_list(list)));
    driver.add(Rule::new(FROM_VSI, ETHER_TYPE, DROP).ether_type(0x88cc));
    driver.free_vsi(1);
    assert_eq!((driver.receivers(&Frame::to(ME)), driver.receivers(&Frame::to(GROUP))), (vec![], vec![2]));
    assert_eq!(driver.add_vsi(), 1);
    assert_eq!((driver.receivers(&Frame::to(ME)), driver.receivers(&Frame::to(GROUP))), (vec![], vec![2]));
    assert_eq!(driver.send(&Frame::to(PEER).ether_type(0x88cc)), Ok((true, vec![])));
    // Software can still remove the rules or add them again.
    let again = driver.add(Rule::mac(ME, to_vsi(1)));
    assert_eq!(driver.receivers(&Frame::to(ME)), [1]);
    assert!(again == mine || driver.remove(mine) == Err(AdminStatus::NoEntry));
    driver.add(Rule::new(FROM_VSI, ETHER_TYPE, DROP).ether_type(0x88cc));
    assert_eq!(driver.send(&Frame::to(PEER).ether_type(0x88cc)), Err(DiscardError::Rule));
}

#[test]
fn large_action_forwards_to_all_targets() {
    let mut driver = Driver::new();
    let large = |index: u16, actions: &[u32]| {
        let header = RuleHeader { kind: RuleKind::LargeAction, status: 0 };
        let count = u16::try_from(actions.len()).unwrap();
        let actions: Vec<u8> = actions.iter().flat_map(|action| action.to_le_bytes()).collect();
        [&header.emit()[..], &RuleList { index, count }.emit(), &actions].concat()
    };
    // The large action forwards to VSIs 2 and 1. It also counts frames, which does not affect forwarding.
    let forward = |vsi: u32| 0x1_0000 | vsi << 3;
    driver.command(RuleCommand::Add, large(9, &[forward(2), 7, forward(1)])).unwrap();
    driver.add(Rule::mac(ME, 0x4_0002 | 9 << 4));
    assert_eq!(driver.receivers(&Frame::to(ME)), [1, 2]);
    driver.command(RuleCommand::Update, large(9, &[forward(2)])).unwrap();
    assert_eq!(driver.receivers(&Frame::to(ME)), [2]);
    driver.free_vsi(2);
    assert_eq!(driver.receivers(&Frame::to(ME)), [0; 0]);
    assert_eq!(driver.command(RuleCommand::Remove, large(9, &[])).map(drop), Ok(()));
    assert_eq!(driver.command(RuleCommand::Remove, large(9, &[])), Err(AdminStatus::NoEntry));
    assert_eq!(driver.command(RuleCommand::Add, large(1, &[7; 5])), Err(AdminStatus::Invalid));
    assert_eq!(driver.command(RuleCommand::Add, large(1, &[forward(5)])), Err(AdminStatus::NoEntry));
    for index in 0..u16::try_from(MAX_LARGE_ACTIONS).unwrap() {
        driver.command(RuleCommand::Add, large(index, &[])).unwrap();
    }
    assert_eq!(driver.command(RuleCommand::Add, large(0x1fff, &[])), Err(AdminStatus::NoSpace));
}
