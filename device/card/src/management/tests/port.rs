//! Tests of the port's agents, queried through MAD_IFC.

use super::*;

const GET: u8 = 1;
const SET: u8 = 2;

fn get(management: &mut Management, attribute: u16, modifier: u32) -> Mad {
    let mad = request(1, 1, GET, attribute, modifier);
    let answer = management.mad_ifc(&at(0), &mad, MkeyCheck::Ignore).expect("MAD_IFC returns a response");
    assert_eq!(answer[..3], mad[..3]);
    assert_eq!(answer[3], 0x81);
    assert_eq!(answer[6..24], mad[6..24], "the rest of the header is copied from the request");
    answer
}

/// mthca interface, section 8.5, table of attributes.
#[test]
fn node_info_describes_device() {
    let mut management = open(1);
    let answer = get(&mut management, 0x11, 0);
    assert_eq!(status(&answer), 0);
    let guid = &GID_1[8..];
    let mut expected = vec![1, 1, 1, 1];
    expected.extend([guid, guid, guid].concat());
    expected.extend([0, 64, 0x62, 0x74, 0, 0, 0, 0xa0, 1, 0x00, 0x02, 0xc9]);
    assert_eq!(answer[64..104], expected);
    assert_eq!(get(&mut management, 0x10, 0)[64..71], *b"hcad 1\0");
}

/// mthca interface, section 8.5, table of PortInfo.
#[test]
fn port_info_follows_port_state() {
    let mut management = Management::new(Identity::from_lid(Lid::new(7)), SINAI);
    let down = get(&mut management, 0x15, 1);
    assert_eq!(
        down[72..80],
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0],
        "the GID prefix is set even while the port is down"
    );
    assert_eq!(down[92..103], [1, 3, 3, 2, 0x31, 0x22, 0, 0x23, 0x40, 0x40, 0]);

    management.open_port(&at(0));
    let active = get(&mut management, 0x15, 1);
    let mut expected = [0; 64];
    expected[8..10].copy_from_slice(&[0xfe, 0x80]);
    expected[16..24].copy_from_slice(&[0, 7, 0xbf, 0xff, 0x02, 0x51, 0x0a, 0x68]);
    expected[28..38].copy_from_slice(&[1, 3, 3, 2, 0x34, 0x52, 0, 0x23, 0x40, 0x40]);
    (expected[41], expected[43]) = (0x04, 0x40);
    expected[50..53].copy_from_slice(&[32, 18, 16]);
    assert_eq!(active[64..128], expected);

    management.set_link(false, &at(0));
    assert_eq!(get(&mut management, 0x15, 1)[96..98], [0x31, 0x22], "the port is DOWN without a link");
    management.set_link(true, &at(0));
    assert_eq!(get(&mut management, 0x15, 0)[96..98], [0x34, 0x52]);
    management.close_port();
    assert_eq!(get(&mut management, 0x15, 1)[96..98], [0x31, 0x22]);
}

#[test]
fn tables_hold_one_guid_and_default_partition() {
    let mut management = open(1);
    let guids = get(&mut management, 0x14, 0);
    assert_eq!((&guids[64..72], &guids[72..128]), (&GID_1[8..], &[0; 56][..]));
    assert_eq!(get(&mut management, 0x14, 3)[64..128], [0; 64]);
    assert_eq!(status(&get(&mut management, 0x14, 4)), 0x1c, "32 GUIDs occupy 4 blocks");
    let pkeys = get(&mut management, 0x16, 0);
    assert_eq!((&pkeys[64..66], &pkeys[66..128]), (&[0xff, 0xff][..], &[0; 62][..]));
    assert_eq!(get(&mut management, 0x16, 1)[64..128], [0; 64]);
    assert_eq!(status(&get(&mut management, 0x16, 2)), 0x1c, "64 P_Keys occupy 2 blocks");
    assert_eq!(management.gid(0), Some(GID_1));
    assert_eq!((management.pkey(0), management.pkey(64)), (Some(Pkey::DEFAULT), None));
}

#[test]
fn unsupported_request_returns_specified_status() {
    let mut management = open(1);
    assert_eq!(status(&get(&mut management, 0x02, 0)), 0x0c, "Notice is not supported");
    assert_eq!(status(&get(&mut management, 0x31, 0)), 0x0c, "LedInfo is not supported");
    assert_eq!(status(&get(&mut management, 0x15, 2)), 0x1c, "port 2 does not exist");
    let mut ifc = |mad: Mad| management.mad_ifc(&at(0), &mad, MkeyCheck::Ignore);
    assert_eq!(
        ifc(request(1, 1, 6, 0x11, 0)).map(|mad| status(&mad)),
        Some(0x08),
        "the method Report is not supported"
    );
    assert_eq!(ifc(request(1, 1, 5, 0x02, 0)), None, "a Trap gets no response");
    assert_eq!(
        ifc(request(1, 2, GET, 0x11, 0)).map(|mad| status(&mad)),
        Some(0x04),
        "class version 2 is not supported"
    );
    assert_eq!(
        ifc(request(1, 1, SET, 0x11, 0)).map(|mad| status(&mad)),
        Some(0x0c),
        "NodeInfo cannot be set"
    );
    assert_eq!(ifc(request(1, 1, 0x81, 0x11, 0)), None, "a response gets no response");
    assert_eq!(ifc(request(1, 1, 7, 0x02, 0)), None, "TrapRepress gets no response");
    assert_eq!(ifc(request(9, 1, GET, 0x11, 0)), None, "a vendor class gets no response");
    assert_eq!(
        ifc(request(3, 2, GET, 0x11, 0)),
        None,
        "the port's agents do not respond on behalf of the SA"
    );
}

/// mthca interface, section 8.2: MAD_IFC leaves the route in the response unchanged; advancing it is up to software.
#[test]
fn directed_route_response_keeps_route() {
    let mut management = open(1);
    let mut mad = request(0x81, 1, GET, 0x11, 0);
    mad[32..36].fill(0xff);
    let answer = management.mad_ifc(&at(0), &mad, MkeyCheck::Ignore).unwrap();
    assert_eq!((answer[3], status(&answer)), (0x81, 0), "the status does not contain the direction bit");
    assert_eq!((answer[6], answer[7], &answer[32..36]), (0, 0, &[0xff; 4][..]));
}

/// IBTA volume 1, section 14.2.4: an SMP without the M_Key starts the lease period, and one with the M_Key stops it. At
/// the end of the period, the M_Key is no longer protected.
#[test]
fn m_key_protection_ends_with_lease_period() {
    const KEY: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
    let mut management = open(1);
    let mut set = get(&mut management, 0x15, 1);
    set[3] = SET;
    set[64..72].copy_from_slice(&KEY);
    // The lease period is 10 s and the protection level is 2. The state and the physical state stay unchanged.
    set[90..92].copy_from_slice(&[0, 10]);
    set[98] = 2 << 6;
    set[96] &= 0xf0;
    set[97] &= 0x0f;
    let ask = |management: &mut Management, second: u64, mad: &Mad| {
        management.mad_ifc(&at(1000 * second), mad, MkeyCheck::Enforce)
    };
    assert_eq!(ask(&mut management, 0, &set).map(|mad| status(&mad)), Some(0));
    let look = request(1, 1, GET, 0x15, 1);
    let mut authorized = look;
    authorized[24..32].copy_from_slice(&KEY);

    assert_eq!(ask(&mut management, 100, &look), None, "the lease period starts");
    assert_eq!(ask(&mut management, 109, &look), None);
    assert!(ask(&mut management, 109, &authorized).is_some(), "the subnet manager is alive");
    assert_eq!(ask(&mut management, 111, &look), None, "the lease period starts again");
    assert_eq!(ask(&mut management, 120, &look), None, "a second violation does not prolong it");
    let seen = ask(&mut management, 121, &look).unwrap();
    assert_eq!((&seen[64..72], seen[98] >> 6), (&KEY[..], 0));
}

/// IBTA volume 1, section 14.2.4: at protection level 1, Get needs no M_Key, but Set does. A response contains the
/// M_Key only if the request did.
#[test]
fn set_port_info_requires_configured_m_key() {
    let mut management = open(1);
    let mut mad = get(&mut management, 0x15, 1);
    mad[3] = SET;
    mad[64..72].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    mad[98] = 1 << 6;
    // The value 0 leaves the state and the physical state unchanged.
    mad[96] &= 0xf0;
    mad[97] &= 0x0f;
    let set = |management: &mut Management, mad: &Mad| management.mad_ifc(&at(0), mad, MkeyCheck::Enforce);
    assert_eq!(set(&mut management, &mad).map(|mad| status(&mad)), Some(0));
    assert_eq!(set(&mut management, &mad), None, "a Set without the M_Key gets no response");
    let look = request(1, 1, GET, 0x15, 1);
    let seen = set(&mut management, &look).unwrap();
    assert_eq!(
        (&seen[64..72], &seen[108..110]),
        (&[0; 8][..], &[0, 1][..]),
        "the M_Key is hidden and one violation is counted"
    );
    mad[24..32].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    mad[98] = 2 << 6;
    assert_eq!(set(&mut management, &mad).map(|mad| status(&mad)), Some(0));
    assert_eq!(
        set(&mut management, &look),
        None,
        "at protection level 2, a Get without the M_Key gets no response"
    );
    assert!(
        management.mad_ifc(&at(0), &look, MkeyCheck::Ignore).is_some(),
        "the device's own software needs no M_Key"
    );
}

/// Sends Set(PortInfo) as ibportstate does.
#[test]
fn link_can_be_disabled_enabled_and_reset() {
    let mut management = open(1);
    let mut mad = get(&mut management, 0x15, 1);
    mad[3] = SET;
    let mut set = |state: u8, physical: u8| {
        (mad[96], mad[97]) = (mad[96] & 0xf0 | state, mad[97] & 0x0f | physical << 4);
        let answer = management.mad_ifc(&at(0), &mad, MkeyCheck::Ignore).unwrap();
        (status(&answer), outputs(&mut management))
    };
    assert_eq!(set(0, 0), (0, vec![]));
    assert_eq!(set(1, 3), (0, vec![Output::Link(false)]));
    assert_eq!(set(1, 2), (0, vec![Output::Link(true)]));
    assert_eq!(set(1, 0), (0, vec![Output::Link(false), Output::Link(true)]));
    assert_eq!(set(0, 2), (0, vec![Output::Link(false), Output::Link(true)]), "an active link is retrained");
    assert_eq!(set(4, 0), (0, vec![]), "ACTIVE is accepted, because the port is already active");
    assert_eq!(set(3, 0), (0x1c, vec![]), "an active port cannot become ARMED");
    mad[81] = 2;
    assert_eq!(
        status(&management.mad_ifc(&at(0), &mad, MkeyCheck::Ignore).unwrap()),
        0x1c,
        "the LID cannot be changed"
    );
}

/// IBTA volume 1, section 14.2.5.6: physical state 3 is Disabled. `ibportstate on` enables a port only in this state.
#[test]
fn disabled_port_reports_disabled_until_enabled() {
    let mut management = open(1);
    let mut mad = get(&mut management, 0x15, 1);
    mad[3] = SET;
    let states = |mad: &Mad| (mad[96] & 0xf, mad[97] >> 4);
    let mut set = |management: &mut Management, physical: u8| {
        (mad[96], mad[97]) = (mad[96] & 0xf0, mad[97] & 0x0f | physical << 4);
        let answer = management.mad_ifc(&at(0), &mad, MkeyCheck::Ignore).unwrap();
        for output in outputs(management) {
            if let Output::Link(up) = output {
                management.set_link(up, &at(0));
            }
        }
        states(&answer)
    };
    assert_eq!(set(&mut management, 3), (1, 3), "the response has the new states");
    assert_eq!(states(&get(&mut management, 0x15, 1)), (1, 3));
    set(&mut management, 2);
    assert_eq!(states(&get(&mut management, 0x15, 1)), (4, 5));

    set(&mut management, 3);
    management.reset();
    assert_eq!(outputs(&mut management), [Output::Link(true)], "a reset enables the port");
    assert_eq!(states(&get(&mut management, 0x15, 1)), (1, 2));
}

/// A guest's subnet manager writes its own LID and service level to PortInfo, but PortInfo keeps those of the
/// virtual subnet manager.
#[test]
fn subnet_manager_lid_cannot_be_set() {
    let mut management = open(1);
    let mut mad = get(&mut management, 0x15, 1);
    mad[3] = SET;
    (mad[96], mad[97]) = (mad[96] & 0xf0, mad[97] & 0x0f);
    // Set MasterSMLID and MasterSMSL, which shares a byte with NeighborMTU.
    mad[82..84].copy_from_slice(&[0, 1]);
    mad[100] |= 5;
    let set = management.mad_ifc(&at(0), &mad, MkeyCheck::Ignore).unwrap();
    assert_eq!((status(&set), &set[82..84], set[100] & 0xf), (0, &[0xbf, 0xff][..], 0));
    let seen = get(&mut management, 0x15, 1);
    assert_eq!((&seen[82..84], seen[100] & 0xf), (&[0xbf, 0xff][..], 0));
}

#[test]
fn pkey_change_is_reported_once() {
    let mut management = open(1);
    let mut mad = request(1, 1, SET, 0x16, 0);
    mad[64..68].copy_from_slice(&[0x80, 0x01, 0xff, 0xff]);
    assert_eq!(status(&management.mad_ifc(&at(0), &mad, MkeyCheck::Ignore).unwrap()), 0);
    assert_eq!(management.pkeys()[..3], [Pkey::new(0x8001), Pkey::DEFAULT, Pkey::new(0)]);
    assert!(management.take_pkey_change() && !management.take_pkey_change());
    management.reset();
    assert_eq!(management.pkey(0), Some(Pkey::DEFAULT));
}

/// mthca interface, section 8.6.
#[test]
fn counters_start_from_zero_after_reset() {
    let mut management = open(1);
    let counters = Counters {
        transmit_packets: 0x1_0000_0005,
        transmit_octets: 4 * 0x0102_0304,
        transmit_unicast_packets: 3,
        transmit_multicast_packets: 2,
        receive_packets: 6,
        receive_octets: 28,
        link_downed: 300,
        receive_errors: 9,
        ..Counters::default()
    };
    let view = View { counters, ..at(0) };
    let mut ask = |method, attribute, select: u16, view: &View| {
        let mut mad = request(4, 1, method, attribute, 0);
        mad[65] = 1;
        mad[66..68].copy_from_slice(&select.to_be_bytes());
        management.mad_ifc(view, &mad, MkeyCheck::Ignore).unwrap()
    };
    let info = ask(GET, 1, 0, &view);
    assert_eq!((status(&info), &info[64..68]), (0, &[1, 1, 0x03, 0][..]));
    let short = ask(GET, 0x12, 0, &view);
    assert_eq!((short[71], &short[72..74]), (255, &[0, 9][..]), "a counter of 300 saturates an 8-bit field");
    assert_eq!(short[88..104], [1, 2, 3, 4, 0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 6]);
    let long = ask(GET, 0x1d, 0, &view);
    assert_eq!(long[72..80], [0, 0, 0, 0, 1, 2, 3, 4]);
    assert_eq!(long[88..96], [0, 0, 0, 1, 0, 0, 0, 5]);
    assert_eq!((long[111], long[127]), (3, 2));

    let reset = ask(SET, 0x12, 1 << 14, &view);
    assert_eq!(
        (&reset[96..100], reset[73]),
        (&[0; 4][..], 9),
        "only the counter selected by the mask is reset"
    );
    let later = View { counters: Counters { transmit_packets: 0x1_0000_0007, ..counters }, ..at(0) };
    assert_eq!(ask(GET, 0x12, 0, &later)[96..100], [0, 0, 0, 2]);
    assert_eq!(
        ask(GET, 0x1d, 0, &later)[88..96],
        [0, 0, 0, 1, 0, 0, 0, 7],
        "PortCountersExtended is not reset"
    );
    assert_eq!(status(&ask(GET, 0x15, 0, &view)), 0x0c);
    let mut other_port = request(4, 1, GET, 0x12, 0);
    other_port[65] = 2;
    assert_eq!(status(&management.mad_ifc(&view, &other_port, MkeyCheck::Ignore).unwrap()), 0x1c);
}

#[test]
fn qkey_violations_in_port_info_can_be_reset() {
    let mut management = open(1);
    let counters = Counters { pkey_violations: 5, qkey_violations: 70_000, ..Counters::default() };
    let view = View { counters, ..at(0) };
    let look = request(1, 1, GET, 0x15, 1);
    let seen = |management: &mut Management| {
        let mad = management.mad_ifc(&view, &look, MkeyCheck::Ignore).unwrap();
        [u16::from_be_bytes([mad[110], mad[111]]), u16::from_be_bytes([mad[112], mad[113]])]
    };
    assert_eq!(seen(&mut management), [5, 0xffff]);
    management.reset_qkey_violations(&counters);
    assert_eq!(seen(&mut management), [5, 0]);
}
