//! Tests subnet administration with the queries that ib_sa, IPoIB, rdma_cm and saquery send.

use super::*;

const GET: u8 = 1;
const SET: u8 = 2;
const GET_TABLE: u8 = 0x12;
const DELETE: u8 = 0x15;

const PATH: u16 = 0x35;
const GROUP: u16 = 0x38;

const BROADCAST: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

fn sa(method: u8, attribute: u16, mask: u64, data: &[u8]) -> Mad {
    let mut mad = request(3, 2, method, attribute, 0);
    mad[48..56].copy_from_slice(&mask.to_be_bytes());
    mad[56..56 + data.len()].copy_from_slice(data);
    mad
}

fn answer(management: &mut Management, mad: Mad) -> Mad {
    let answers = ask(management, QP1, mad);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0][8..18], mad[8..18], "the response has the TID and attribute of the request");
    answers[0]
}

/// Returns an MCMemberRecord with the given MGID and join state, and the PortGID of LID 1.
fn group(mgid: [u8; 16], join_state: u8) -> [u8; 52] {
    let mut record = [0; 52];
    record[..16].copy_from_slice(&mgid);
    record[16..32].copy_from_slice(&GID_1);
    record[48] = join_state;
    record
}

/// mthca interface, section 9.3: the component mask selects none of the parameters that are needed to create a group.
/// The join succeeds because the broadcast group always exists.
#[test]
fn broadcast_group_join_needs_no_parameters() {
    let mut management = open(1);
    let mut wanted = group(BROADCAST, 1);
    wanted[40..42].fill(0xff);
    let joined = answer(&mut management, sa(SET, GROUP, 0x1_0083, &wanted));
    assert_eq!((joined[3], status(&joined)), (0x81, 0));
    let mut expected = group(BROADCAST, 0x21);
    expected[32..44].copy_from_slice(&[0, 0, 0x0b, 0x1b, 0xc0, 0x00, 0x84, 0, 0xff, 0xff, 0x86, 0x92]);
    assert_eq!(joined[56..108], expected);

    let left = answer(&mut management, sa(DELETE, GROUP, 0x1_0003, &group(BROADCAST, 1)));
    assert_eq!((left[3], status(&left)), (0x95, 0));
    let again = answer(&mut management, sa(DELETE, GROUP, 0x1_0003, &group(BROADCAST, 1)));
    assert_eq!(status(&again), 0x0200, "a port that is not a member cannot leave");
    assert_eq!(
        status(&answer(&mut management, sa(SET, GROUP, 0x1_0083, &wanted))),
        0,
        "the broadcast group exists even without members"
    );
}

/// mthca interface, section 9.3: mckey creates a group and chooses its Q_Key.
#[test]
fn creator_sets_group_parameters() {
    let mut management = open(1);
    let mgid = [0xff, 0x12, 0x40, 0x01, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x0f, 0x01, 0x01, 0x01];
    let mut wanted = group(mgid, 1);
    wanted[32..36].copy_from_slice(&[0x01, 0x23, 0x45, 0x67]);
    (wanted[39], wanted[40], wanted[41]) = (0x11, 0xff, 0xff);
    wanted[44..48].copy_from_slice(&[0x3a, 0xbc, 0xde, 0x40]);
    let mask = 0x1_70c7;
    let joined = answer(&mut management, sa(SET, GROUP, mask, &wanted));
    assert_eq!(status(&joined), 0);
    let record = &joined[56..108];
    assert_eq!(record[32..36], [0x01, 0x23, 0x45, 0x67], "the group has the creator's Q_Key");
    assert_eq!(
        (record[39], &record[40..42]),
        (0x11, &[0xff, 0xff][..]),
        "the group has the creator's TClass and P_Key"
    );
    assert_eq!(
        record[44..48],
        [0x3a, 0xbc, 0xde, 0x40],
        "the group has the creator's SL, flow label and hop limit"
    );
    let mlid = u16::from_be_bytes([record[36], record[37]]);
    assert!((0xc001..=0xfffe).contains(&mlid), "{mlid:#x}");

    // Another HCA's SA assigns the same LID to the group.
    let mut other = open(2);
    wanted[16..32].copy_from_slice(&GID_2);
    let there = answer(&mut other, sa(SET, GROUP, mask, &wanted));
    assert_eq!(there[92..94], joined[92..94]);

    wanted[16..32].copy_from_slice(&GID_1);
    wanted[32] = 0x77;
    assert_eq!(
        status(&answer(&mut management, sa(SET, GROUP, mask, &wanted))),
        0x0200,
        "a join with a different Q_Key is rejected"
    );
    let rejoined = answer(&mut management, sa(SET, GROUP, 0x1_0003, &group(mgid, 8)));
    assert_eq!(rejoined[56 + 32..56 + 36], [0x01, 0x23, 0x45, 0x67]);
    assert_eq!(rejoined[56 + 48], 0x29, "the port is a full member and a send-only full member");

    for state in [1, 8] {
        assert_eq!(status(&answer(&mut management, sa(DELETE, GROUP, 0x1_0003, &group(mgid, state)))), 0);
    }
    let found = answer(&mut management, sa(GET, GROUP, 1, &group(mgid, 0)));
    assert_eq!(status(&found), 0x0300, "the group is deleted when its last member leaves");
}

/// IBTA volume 1, section 15.2.5.17: the SA assigns the MGID if the creator specifies none. rdma_cm leaves it
/// unspecified if a program joins the wildcard address.
#[test]
fn group_without_mgid_is_assigned_one() {
    let mut management = open(1);
    let mgids = [1, 2].map(|_| {
        let joined = answer(&mut management, sa(SET, GROUP, 0x1_0003, &group([0; 16], 1)));
        assert_eq!(status(&joined), 0);
        <[u8; 16]>::try_from(&joined[56..72]).unwrap()
    });
    assert!(mgids.iter().all(|mgid| mgid[..4] == [0xff, 0x12, 0xa0, 0x1b]), "{mgids:x?}");
    assert_ne!(mgids[0], mgids[1]);
    for mgid in mgids {
        let rejoined = answer(&mut management, sa(SET, GROUP, 0x1_0003, &group(mgid, 8)));
        assert_eq!((status(&rejoined), rejoined[56 + 48]), (0, 0x29));
    }
    let left = answer(&mut management, sa(DELETE, GROUP, 0x1_0003, &group([0; 16], 1)));
    assert_eq!(status(&left), 0x0200, "no group has MGID 0");
    let mut other = open(2);
    let mut record = group([0; 16], 1);
    record[16..32].copy_from_slice(&GID_2);
    let there = answer(&mut other, sa(SET, GROUP, 0x1_0003, &record));
    assert!(!mgids.iter().any(|mgid| *mgid == there[56..72]));
}

#[test]
fn invalid_joins_are_rejected() {
    let mut management = open(1);
    let mut refused =
        |mask, record: [u8; 52]| status(&answer(&mut management, sa(SET, GROUP, mask, &record)));
    assert_eq!(refused(0x3, group(BROADCAST, 1)), 0x0600, "a join without a join state is rejected");
    assert_eq!(refused(0x1_0003, group(BROADCAST, 0)), 0x0200, "join state 0 is rejected");
    assert_eq!(refused(0x1_0003, group(GID_2, 1)), 0x0500, "a unicast GID is not a group");
    let mut foreign = group(BROADCAST, 1);
    foreign[16..32].copy_from_slice(&GID_2);
    assert_eq!(refused(0x1_0003, foreign), 0x0500, "a port may join only on its own behalf");
    let mut limited = group([0xff, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9], 1);
    limited[38] = 4;
    assert_eq!(refused(0x1_0003 | 0b11 << 4, limited), 0, "the only MTU greater than 2048 is 4096");
    limited[15] = 10;
    limited[38] = 1 << 6;
    assert_eq!(refused(0x1_0003 | 0b11 << 4, limited), 0x0200, "no MTU is less than code 0");
}

/// IBTA volume 1, section 15.2.5.17, defines the codes of MTU, rate and packet lifetime.
#[test]
fn undefined_group_parameter_codes_are_rejected() {
    let mut management = open(1);
    let mut joined = |last: u8, at: usize, mask: u64, selector: u8, code: u8| {
        let mut wanted = group([0xff, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, last], 1);
        wanted[at] = selector << 6 | code;
        let answer = answer(&mut management, sa(SET, GROUP, 0x1_0003 | mask, &wanted));
        if status(&answer) == 0 { Ok(answer[56 + at] & 0x3f) } else { Err(status(&answer)) }
    };
    let (mtu, rate, life_time) = ((38, 0b11 << 4), (42, 0b11 << 8), (43, 0b11 << 10));
    let invalid = [
        (mtu, 2, 0, "undefined MTU code 0"),
        (mtu, 2, 6, "an MTU of 8192 bytes"),
        (mtu, 0, 5, "an MTU greater than 4096 bytes"),
        (mtu, 0, 63, "an MTU greater than an undefined one"),
        (rate, 2, 1, "undefined rate code 1"),
        (rate, 2, 24, "undefined rate code 24"),
        (rate, 0, 23, "a rate greater than the largest"),
        (rate, 1, 2, "a rate less than the smallest"),
        (life_time, 0, 63, "a lifetime greater than the longest"),
        (life_time, 1, 0, "a lifetime less than the shortest"),
    ];
    for (last, ((at, mask), selector, code, why)) in (0..).zip(invalid) {
        assert_eq!(joined(last, at, mask, selector, code), Err(0x0200), "{why}");
    }
    let valid = [
        (mtu, 2, 5, 5),
        (mtu, 0, 1, 2),
        (mtu, 1, 5, 4),
        (mtu, 3, 0, 4),
        (rate, 2, 23, 23),
        // 5 Gb/s is less than 10 Gb/s, although its code is larger.
        (rate, 0, 5, 3),
        (rate, 3, 63, 6),
        (life_time, 2, 0, 0),
        (life_time, 2, 63, 63),
    ];
    for (last, ((at, mask), selector, code, given)) in (100..).zip(valid) {
        assert_eq!(joined(last, at, mask, selector, code), Ok(given), "selector {selector}, code {code}");
    }
}

fn path(dgid: [u8; 16], sgid: [u8; 16]) -> [u8; 64] {
    let mut record = [0; 64];
    record[8..24].copy_from_slice(&dgid);
    record[24..40].copy_from_slice(&sgid);
    (record[49], record[50], record[51]) = (1, 0xff, 0xff);
    record
}

/// mthca interface, section 9.4: the destination LID is derived from the destination GID.
#[test]
fn path_record_query_derives_lid_from_gid() {
    let mut management = open(1);
    let found = answer(&mut management, sa(GET, PATH, 0x300c, &path(GID_2, GID_1)));
    assert_eq!(status(&found), 0);
    let mut expected = path(GID_2, GID_1);
    expected[40..44].copy_from_slice(&[0, 2, 0, 1]);
    expected[49] = 0x81;
    expected[54..57].copy_from_slice(&[0x84, 0x86, 0x92]);
    assert_eq!(found[56..120], expected, "the path has the requested GIDs and the subnet's attributes");

    let loopback = answer(&mut management, sa(GET, PATH, 0x300c, &path(GID_1, GID_1)));
    assert_eq!(loopback[96..100], [0, 1, 0, 1]);
    let manager = answer(&mut management, sa(GET, PATH, 0x300c, &path(gid(subnet_switch::GUID), GID_1)));
    assert_eq!(manager[96..98], [0xbf, 0xff]);
    let by_lid = answer(&mut management, sa(GET, PATH, 1 << 4, &expected));
    assert_eq!(by_lid[56..120], found[56..120].to_vec().tap(|path| path[0] = 0));
}

/// In a subnet of n ports, a query with neither source nor destination would match n * n paths. The response contains
/// only the paths from one source.
#[test]
fn path_table_contains_paths_from_one_source() {
    let mut management = open(1);
    let mut paths = |mask, record: [u8; 64]| {
        let table = answer(&mut management, sa(GET_TABLE, PATH, mask, &record));
        assert_eq!((table[3], status(&table)), (0x92, 0));
        let len = usize::from(table[35]) + 256 * usize::from(table[34]) - 20;
        let lids = table[56..].chunks(64).take(len.div_ceil(64));
        lids.map(|path| [path[42..44].to_vec(), path[40..42].to_vec()].concat()).collect::<Vec<_>>()
    };
    assert_eq!(paths(0, [0; 64]), [[0, 1, 0, 1], [0, 1, 0xbf, 0xff]]);
    let mut from_2 = [0; 64];
    from_2[43] = 2;
    assert_eq!(paths(1 << 5, from_2), [[0, 2, 0, 1], [0, 2, 0xbf, 0xff]]);
    assert_eq!(paths(0x8, path([0; 16], GID_2)), [[0, 2, 0, 1], [0, 2, 0xbf, 0xff]]);
    let mut to_2 = [0; 64];
    to_2[41] = 2;
    assert_eq!(paths(1 << 4, to_2), [[0, 1, 0, 2]]);
}

trait Tap: Sized {
    fn tap(mut self, act: impl FnOnce(&mut Self)) -> Self {
        act(&mut self);
        self
    }
}

impl Tap for Vec<u8> {}

#[test]
fn path_query_finds_configured_peer_by_either_gid() {
    let peer = Identity {
        mac: MacAddr([0x52, 0x54, 0, 1, 2, 3]),
        ipv4: "192.0.2.9".parse().unwrap(),
        ..Identity::from_lid(Lid::new(0x900))
    };
    let own = Identity::from_lid(Lid::new(1));
    let addresses = Addresses { own, peers: vec![peer], default_peer: None };
    let mut management = Management::new(own, SINAI);
    management.open_port(&at(0));
    while management.poll_output().is_some() {}
    for gid in [peer.link_local(), peer.ipv4.to_ipv6_mapped()] {
        let mad = sa(GET, PATH, 0xc, &path(gid.octets(), GID_1));
        let found = ask_with_addresses(&addresses, &mut management, QP1, mad);
        assert_eq!(found[0][96..98], [0x09, 0x00], "{gid}");
    }
}

#[test]
fn unknown_address_returns_no_record() {
    let mut management = open(1);
    let mut get = |mask, record: &[u8]| status(&answer(&mut management, sa(GET, PATH, mask, record)));
    let vendor = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0x12, 0x34, 0x56];
    assert_eq!(get(0xc, &path(vendor, GID_1)), 0x0300, "a GUID that is not derived from a MAC has no path");
    let off_rule = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0x77, 0x77];
    assert_eq!(get(0xc, &path(off_rule, GID_1)), 0x0300, "a MAC that has no LID has no path");
    let global = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 2];
    assert_eq!(get(0xc, &path(global, GID_1)), 0x0300, "a GID with another prefix has no path");
    let mut partition = path(GID_2, GID_1);
    partition[50..52].copy_from_slice(&[0x80, 0x05]);
    assert_eq!(get(0x200c, &partition), 0x0300, "the port is not in the requested partition");
    assert_eq!(get(0x8, &path(GID_2, GID_1)), 0x0600, "a query without a destination is invalid");
}

#[test]
fn unsupported_sa_requests_return_specified_status() {
    let mut management = open(1);
    let mut ask = |mad| status(&answer(&mut management, mad));
    assert_eq!(ask(sa(GET, 0x36, 0, &[])), 0x000c, "VLArbitrationTableRecord is not supported");
    assert_eq!(ask(sa(SET, PATH, 0, &[])), 0x000c, "Set(PathRecord) is not supported");
    assert_eq!(ask(sa(0x13, PATH, 0, &[])), 0x0008, "GetTraceTable is not supported");
    assert_eq!(ask(request(3, 1, GET, 1, 0)), 0x0004, "class version 1 is not supported");
    let info = answer(&mut management, sa(GET, 1, 0, &[]));
    assert_eq!((status(&info), &info[56..60], &info[60..64]), (0, &[1, 2, 2, 0][..], &[0, 2, 0, 16][..]));
}

#[test]
fn sa_ignores_responses_and_other_mad_classes() {
    let mut management = open(1);
    assert_eq!(ask(&mut management, QP1, sa(0x81, PATH, 0, &[])), [] as [Mad; 0]);
    assert_eq!(
        ask(&mut management, QP1, request(7, 2, 3, 0x10, 0)),
        [] as [Mad; 0],
        "the SA ignores CM messages"
    );
    assert_eq!(ask(&mut management, QP0, request(1, 1, 5, 2, 0)), [] as [Mad; 0], "a trap gets no response");
    management.close_port();
    assert_eq!(
        ask(&mut management, QP1, sa(GET, 1, 0, &[])),
        [] as [Mad; 0],
        "a closed port sends no responses"
    );
}

#[test]
fn services_can_be_registered_found_and_removed() {
    let mut management = open(1);
    let mut record = [0; 176];
    record[..8].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x12, 0x34]);
    record[8..24].copy_from_slice(&GID_1);
    record[48..52].copy_from_slice(b"name");
    let mut ask = |method, mask, record: &[u8]| answer(&mut management, sa(method, 0x31, mask, record));
    assert_eq!(status(&ask(SET, 0b11, &record)), 0x0600, "a registration without a P_Key is rejected");
    assert_eq!(status(&ask(SET, 0x7f, &record)), 0);
    let found = ask(GET, 1, &record[..8]);
    assert_eq!((status(&found), &found[56..56 + 176]), (0, &record[..]));
    assert_eq!(status(&ask(DELETE, 0b111, &record)), 0);
    assert_eq!(status(&ask(GET, 1, &record[..8])), 0x0300);
}

/// IBTA volume 1, section 15.2.5.14: the ServiceLease is in seconds, and FFFFFFFFh does not end.
#[test]
fn service_expires_with_its_lease() {
    let mut management = open(1);
    let mut ask_at = |millis, method, mask, record: &[u8]| {
        let mad = sa(method, 0x31, mask, record);
        let (source, destination) = (management.lid(), SM_LID);
        let sent = Datagram { source, source_qp: QP1, destination, destination_qp: QP1, mad };
        management.handle_guest(&at(millis), &alone(source), &sent);
        match outputs(&mut management).as_slice() {
            [Output::ToGuest(answer)] => answer.mad,
            other => panic!("{other:?}"),
        }
    };
    let mut record = [0; 176];
    for (id, lease) in [(1, 10_u32), (2, u32::MAX)] {
        record[7] = id;
        record[28..32].copy_from_slice(&lease.to_be_bytes());
        assert_eq!(status(&ask_at(0, SET, 0x7f, &record)), 0);
    }
    let mut lease = |millis, id| {
        let found = ask_at(millis, GET, 1, &[0, 0, 0, 0, 0, 0, 0, id]);
        (status(&found), u32::from_be_bytes(found[84..88].try_into().unwrap()))
    };
    assert_eq!((lease(3000, 1), lease(3000, 2)), ((0, 7), (0, u32::MAX)));
    assert_eq!(lease(10_001, 1).0, 0x0300, "the service is no longer found");
    assert_eq!(lease(10_001, 2), (0, u32::MAX));
}

/// Returns an RMPP ACK as the kernel sends it: version 1, type 2, active, with a segment number and the end of the
/// window.
fn acknowledge(table: &Mad, segment: u32, window: u32) -> Mad {
    let mut mad = *table;
    // In the acknowledgement, Linux uses the method of its original request, not the method of the response.
    mad[3] = GET_TABLE;
    mad[24..28].copy_from_slice(&[1, 2, 0x01, 0]);
    mad[28..32].copy_from_slice(&segment.to_be_bytes());
    mad[32..36].copy_from_slice(&window.to_be_bytes());
    mad
}

#[test]
fn single_segment_rmpp_response_is_first_and_last() {
    let mut management = open(1);
    let table = answer(&mut management, sa(GET_TABLE, 0x11, 1, &[0, 1]));
    assert_eq!((table[3], status(&table)), (0x92, 0));
    assert_eq!(table[24..27], [1, 1, 0xff]);
    assert_eq!(
        table[28..36],
        [0, 0, 0, 1, 0, 0, 0, 20 + 112],
        "the only segment is number 1 and contains one record"
    );
    assert_eq!(table[44..46], [0, 14], "108 bytes take 14 words");
    assert_eq!(table[56..60], [0, 1, 0, 0]);
    assert_eq!(ask(&mut management, QP1, acknowledge(&table, 1, 64)), [] as [Mad; 0]);
    assert_eq!(management.administration.next_deadline(), None);

    let none = answer(&mut management, sa(GET_TABLE, 0x11, 1, &[0, 9]));
    assert_eq!((status(&none), &none[32..36]), (0, &[0, 0, 0, 20][..]), "an empty table is not an error");
}

#[test]
fn long_rmpp_response_is_windowed_and_retransmitted() {
    let mut management = open(200);
    // PortInfo for the HCA and 201 switch ports: 202 records of 72 bytes each in 73 segments.
    let first = answer(&mut management, sa(GET_TABLE, 0x12, 0, &[]));
    assert_eq!(
        (first[26] & 7, &first[28..32]),
        (0b011, &[0, 0, 0, 1][..]),
        "the first segment has the flags First and Active"
    );
    assert_eq!(u32::from_be_bytes(first[32..36].try_into().unwrap()), 202 * 72 + 73 * 20);
    let mut bytes = first[56..].to_vec();

    let window = ask(&mut management, QP1, acknowledge(&first, 1, 65));
    assert_eq!(window.len(), 64);
    // Without an acknowledgement, the segments in the window are retransmitted.
    management.handle_deadline(&at(1010));
    let again: Vec<_> = outputs(&mut management)
        .into_iter()
        .filter_map(|output| match output {
            Output::ToGuest(segment) => Some(segment.mad),
            Output::ToFabric(question) if question.destination == PERMISSIVE_LID => None,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(again, window);
    bytes.extend(window.iter().flat_map(|segment| segment[56..].to_vec()));

    let rest = ask(&mut management, QP1, acknowledge(&first, 65, 129));
    assert_eq!(rest.len(), 8);
    bytes.extend(rest.iter().flat_map(|segment| segment[56..].to_vec()));
    let last = rest.last().unwrap();
    assert_eq!((last[26] & 7, last[31]), (0b101, 73), "the last segment has the flags Last and Active");
    assert_eq!(u32::from_be_bytes(last[32..36].try_into().unwrap()), 20 + 202 * 72 - 72 * 200);
    for (number, record) in bytes[..202 * 72].chunks(72).enumerate().skip(1) {
        assert_eq!((&record[..2], usize::from(record[2])), (&[0xbf, 0xff][..], number - 1));
    }
    assert_eq!(ask(&mut management, QP1, acknowledge(&first, 73, 200)), [] as [Mad; 0]);
    assert_eq!(management.administration.next_deadline(), None, "a completed transfer has no deadline");
}

#[test]
fn simultaneous_rmpp_timeouts_lose_no_segments() {
    let mut management = open(200);
    let count = 5;
    for number in 0..count {
        let mut query = sa(GET_TABLE, 0x12, 0, &[]);
        query[15] = number;
        let first = answer(&mut management, query);
        assert_eq!(ask(&mut management, QP1, acknowledge(&first, 1, 65)).len(), 64);
    }
    let mut again = vec![0; usize::from(count)];
    while management.next_deadline().is_some_and(|due| due <= at(1010).now) {
        management.handle_deadline(&at(1010));
        for output in outputs(&mut management) {
            let Output::ToGuest(segment) = output else { continue };
            again[usize::from(segment.mad[15])] += 1;
        }
    }
    assert_eq!(again, [64; 5]);
}

#[test]
fn unacknowledged_rmpp_response_is_abandoned() {
    let mut management = open(1);
    answer(&mut management, sa(GET_TABLE, 0x11, 0, &[]));
    let sent: Vec<_> = (1..10)
        .map(|second| {
            management.handle_deadline(&at(10 + 1000 * second));
            let to_guest = |output: &Output| matches!(output, Output::ToGuest(_));
            outputs(&mut management).iter().filter(|output| to_guest(output)).count()
        })
        .collect();
    assert_eq!(sent, [1, 1, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(management.administration.next_deadline(), None);
}
