//! Tests several HCAs on one fabric with the requests that infiniband-diags sends.

use std::collections::VecDeque;

use super::*;

/// The HCAs of a fabric and whether each has software that listens on QP0.
struct Fabric {
    all: Vec<(Management, bool)>,
    now: u64,
}

impl Fabric {
    fn new(hcas: &[(u16, bool)]) -> Self {
        let mut fabric = Self { all: Vec::new(), now: 0 };
        for (lid, listens) in hcas {
            let management = Management::new(Identity::from_lid(Lid::new(*lid)), SINAI);
            fabric.all.push((management, *listens));
            let newcomer = fabric.all.len() - 1;
            fabric.all[newcomer].0.open_port(&at(0));
            assert_eq!(fabric.settle(usize::MAX), []);
        }
        fabric.pass(1000);
        fabric
    }

    /// Advances the time and handles the deadlines of all HCAs.
    fn pass(&mut self, millis: u64) {
        self.now += millis;
        for (management, _) in &mut self.all {
            management.handle_deadline(&at(self.now));
        }
        assert_eq!(self.settle(usize::MAX), []);
    }

    /// Exchanges datagrams until none are left, and returns the responses received by the guest of HCA `watched`.
    /// Guests respond as the kernel does: through MAD_IFC, advancing directed routes themselves.
    fn settle(&mut self, watched: usize) -> Vec<Datagram> {
        let mut seen = Vec::new();
        for _ in 0..100 {
            let mut moved = false;
            for index in 0..self.all.len() {
                while let Some(output) = self.all[index].0.poll_output() {
                    moved = true;
                    match output {
                        Output::ToGuest(datagram) if index == watched && is_answer(&datagram) => {
                            seen.push(datagram);
                        }
                        Output::ToGuest(datagram) => self.guest(index, &datagram),
                        Output::ToFabric(datagram) => self.carry(index, &datagram, watched, &mut seen),
                        Output::Link(_) => panic!("the link does not change"),
                    }
                }
            }
            if !moved {
                return seen;
            }
        }
        panic!("the HCAs keep exchanging datagrams");
    }

    fn carry(&mut self, from: usize, datagram: &Datagram, watched: usize, seen: &mut Vec<Datagram>) {
        let mut to_guests = VecDeque::new();
        for (index, (management, listens)) in self.all.iter_mut().enumerate() {
            if index == from || ![PERMISSIVE_LID, management.lid()].contains(&datagram.destination) {
                continue;
            }
            match management.handle_wire(&at(self.now), datagram, *listens, &mut || true) {
                Admitted::Unchanged => to_guests.push_back((index, *datagram)),
                Admitted::From(source) => to_guests.push_back((index, Datagram { source, ..*datagram })),
                Admitted::Taken => {}
            }
        }
        for (index, datagram) in to_guests {
            if index == watched && is_answer(&datagram) {
                seen.push(datagram);
            } else {
                self.guest(index, &datagram);
            }
        }
    }

    /// Responds like a guest's kernel. At the end of a directed route, the kernel stores the port in the return path,
    /// advances the route, and sends its response back along the route.
    fn guest(&mut self, index: usize, received: &Datagram) {
        let mut mad = received.mad;
        let directed = mad[1] == 0x81;
        if mad[3] & 0x80 != 0 {
            return;
        }
        if directed {
            assert_eq!(received.source, PERMISSIVE_LID);
            if mad[6] != mad[7] {
                return;
            }
            mad[192 + usize::from(mad[6])] = 1;
            mad[6] += 1;
        }
        let (management, _) = &mut self.all[index];
        let view = at(self.now);
        let mut answer =
            management.mad_ifc(&view, &mad, MkeyCheck::Ignore).expect("MAD_IFC returns a response");
        if directed {
            answer[4] |= 0x80;
            answer[6] -= 1;
            assert_eq!(answer[192 + usize::from(answer[6])], 1);
        } else if answer[17] == 0x10 {
            answer[64..128].copy_from_slice(&node_name(management.lid()));
        }
        self.send(index, received.source, answer);
    }

    fn send(&mut self, index: usize, destination: Lid, mad: Mad) {
        let (management, _) = &mut self.all[index];
        let source = management.lid();
        let sent = Datagram { source, source_qp: QP0, destination, destination_qp: QP0, mad };
        if management.serves(MacAddr::from_lid(destination)) {
            management.handle_guest(&at(self.now), &alone(management.lid()), &sent);
        } else {
            let mut ignored = Vec::new();
            self.carry(index, &sent, usize::MAX, &mut ignored);
        }
    }

    /// Returns the response to a Get on a directed route from the first HCA. As in requests from the kernel, the hop
    /// pointer is at the first hop.
    fn directed(&mut self, path: &[u8], attribute: u16, modifier: u32) -> Option<Mad> {
        let mut mad = request(0x81, 1, 1, attribute, modifier);
        (mad[6], mad[7]) = (1, u8::try_from(path.len()).unwrap());
        mad[32..36].fill(0xff);
        mad[129..129 + path.len()].copy_from_slice(path);
        self.send(0, PERMISSIVE_LID, mad);
        let seen = self.settle(0);
        assert!(seen.len() <= 1);
        let answer = seen.first()?;
        assert_eq!((answer.source, answer.mad[3]), (PERMISSIVE_LID, 0x81));
        assert_eq!(
            (answer.mad[4] & 0x80, answer.mad[6]),
            (0x80, 1),
            "the response has returned to the requester (C14-13:3)"
        );
        Some(answer.mad)
    }
}

fn is_answer(datagram: &Datagram) -> bool {
    datagram.mad[3] & 0x80 != 0
}

fn node_name(lid: Lid) -> [u8; 64] {
    protocol::mad::node::description(&format!("guest {}", lid.get()))
}

/// Sends the requests that ibnetdiscover makes for the switch, its ports, and the nodes attached to them.
#[test]
fn directed_route_reaches_another_adapter() {
    for listens in [false, true] {
        let mut fabric = Fabric::new(&[(1, true), (2, listens)]);
        let switch = fabric.directed(&[1], 0x11, 0).expect("the switch responds");
        assert_eq!(switch[66..68], [2, 2], "the node is a switch with two ports");
        assert_eq!(switch[84..92], [0, 0, 0, 0xff, 0xfe, 0, 0xbf, 0xff], "the switch has the GUID of port 0");
        assert_eq!(switch[100], 1, "the request arrived at port 1");
        for port in [1, 2] {
            let info = fabric.directed(&[1], 0x15, port).unwrap();
            assert_eq!((status(&info), info[96] & 0xf, info[97] >> 4), (0x8000, 4, 5), "port {port}");
        }
        assert_eq!(status(&fabric.directed(&[1], 0x15, 3).unwrap()), 0x801c, "port 3 does not exist");
        let info = fabric.directed(&[1], 0x12, 0).unwrap();
        assert_eq!(info[64..66], [0xc0, 0], "the forwarding table has C000h entries");
        let adapter = fabric.directed(&[1, 2], 0x11, 0).expect("the adapter responds");
        assert_eq!((adapter[66], &adapter[84..92]), (1, &GID_2[8..]));
        let own = fabric.directed(&[1, 1], 0x11, 0).expect("the requester's own adapter responds");
        assert_eq!(own[84..92], GID_1[8..]);
        assert_eq!(fabric.directed(&[1, 3], 0x11, 0), None, "port 3 has no device");
        assert_eq!(fabric.directed(&[1, 2, 1], 0x11, 0), None, "an adapter does not forward packets");
    }
}

#[test]
fn directed_route_response_reaches_only_requester() {
    let mut fabric = Fabric::new(&[(1, true), (2, false), (3, true)]);
    let mut mad = request(0x81, 1, 1, 0x11, 0);
    (mad[6], mad[7]) = (2, 2);
    mad[32..36].fill(0xff);
    for port in [0, 1, 3, 4] {
        // The first entry of the return path selects the switch port through which the response leaves.
        mad[193] = port;
        let (_, outputs) = arrive(&mut fabric.all[1].0, 1, QP0, mad, false);
        let destination = |output: &Output| match output {
            Output::ToFabric(answer) => answer.destination.get(),
            other => panic!("{other:?}"),
        };
        let destinations: Vec<u16> = outputs.iter().map(destination).collect();
        assert_eq!(destinations, if port == 1 { vec![1] } else { vec![] }, "port {port}");
    }
}

/// A datagram to the permissive LID is sent to all HCAs. A peer can use the MAC that the LID rule assigns to this LID.
#[test]
fn requests_from_permissive_lid_receive_no_response() {
    let mut fabric = Fabric::new(&[(1, true), (2, false), (3, true)]);
    let mut directed = request(0x81, 1, 1, 0x11, 0);
    (directed[6], directed[7]) = (2, 2);
    directed[32..36].fill(0xff);
    // The return path leads to the switch port of LID FFFFh.
    directed[193] = 3;
    for (qp, mad) in [(QP0, directed), (QP0, request(1, 1, 1, 0x11, 0)), (QP1, request(4, 1, 1, 1, 0))] {
        let (admitted, outputs) = arrive(&mut fabric.all[1].0, 0xffff, qp, mad, false);
        assert_eq!((admitted, outputs), (Admitted::Taken, vec![]));
        let (_, outputs) = arrive(&mut fabric.all[1].0, 3, qp, mad, false);
        assert_eq!(outputs.len(), 1, "another HCA receives a response");
    }
}

#[test]
fn lids_above_254_map_to_switch_ports_modulo_254() {
    let mut fabric = Fabric::new(&[(300, true), (40_000, true)]);
    // The ports are (300 - 1) mod 254 + 1 = 46 and (40000 - 1) mod 254 + 1 = 122.
    let switch = fabric.directed(&[1], 0x11, 0).unwrap();
    assert_eq!((switch[67], switch[100]), (122, 46));
    let adapter = fabric.directed(&[1, 122], 0x11, 0).unwrap();
    assert_eq!(adapter[84..92], [0, 0, 0, 0xff, 0xfe, 0, 0x9c, 0x40]);
}

/// Sends the requests that ibnodes makes through saquery. All nodes must be listed. If guest software has named a node,
/// that name must be shown.
#[test]
fn node_records_list_all_nodes() {
    let mut fabric = Fabric::new(&[(1, true), (2, true), (3, false)]);
    let mut mad = request(3, 2, 0x12, 0x11, 0);
    mad[55] = 0;
    let table = {
        let (management, _) = &mut fabric.all[0];
        let sent =
            Datagram { source: Lid::new(1), source_qp: QP1, destination: SM_LID, destination_qp: QP1, mad };
        management.handle_guest(&at(0), &alone(Lid::new(1)), &sent);
        let first = fabric.settle(0);
        assert_eq!(first.len(), 1);
        let mut bytes = first[0].mad[56..].to_vec();
        let mut acknowledgement = first[0].mad;
        acknowledgement[24..28].copy_from_slice(&[1, 2, 1, 0]);
        acknowledgement[35] = 64;
        let (management, _) = &mut fabric.all[0];
        management.handle_guest(&at(0), &alone(Lid::new(1)), &Datagram { mad: acknowledgement, ..sent });
        bytes.extend(fabric.settle(0).iter().flat_map(|segment| segment.mad[56..].to_vec()));
        bytes
    };
    let records: Vec<_> = table.chunks(112).take(4).collect();
    let lids: Vec<_> = records.iter().map(|record| u16::from_be_bytes([record[0], record[1]])).collect();
    assert_eq!(lids, [1, 2, 3, 0xbfff]);
    assert_eq!(records[1][16..24], GID_2[8..], "the record has the GUID of LID 2");
    assert_eq!(records[1][44..52], *b"guest 2\0");
    assert_eq!(records[2][44..51], *b"hcad 3\0");
    assert_eq!(records[3][44..56], *b"hcad fabric\0");
}

#[test]
fn silent_node_ages_out() {
    let mut fabric = Fabric::new(&[(1, true), (2, true)]);
    assert!(fabric.directed(&[1, 2], 0x11, 0).is_some());
    fabric.all.truncate(1);
    let ports = |fabric: &mut Fabric| fabric.directed(&[1], 0x11, 0).unwrap()[67];
    let seen: Vec<_> = (1..6)
        .map(|_| {
            fabric.now += 1000;
            ports(&mut fabric)
        })
        .collect();
    assert_eq!(seen, [2, 2, 2, 1, 1]);
}

#[test]
fn responses_to_guest_requests_reach_guest() {
    let mut fabric = Fabric::new(&[(1, true), (2, true)]);
    fabric.send(0, Lid::new(2), request(1, 1, 1, 0x11, 0));
    let seen = fabric.settle(0);
    assert_eq!(seen.len(), 0, "`send` has already delivered the response");
    let answer = request(1, 1, 0x81, 0x11, 0);
    assert_eq!(arrive(&mut fabric.all[0].0, 2, QP0, answer, true), (Admitted::Unchanged, vec![]));
}

/// Delivers a MAD from the wire, without a rate limit. Returns the decision and the outputs.
fn arrive(
    management: &mut Management,
    from: u16,
    qp: Qpn,
    mad: Mad,
    listening: bool,
) -> (Admitted, Vec<Output>) {
    let received = Datagram {
        source: Lid::new(from),
        source_qp: qp,
        destination: management.lid(),
        destination_qp: qp,
        mad,
    };
    let admitted = management.handle_wire(&at(1000), &received, listening, &mut || true);
    (admitted, outputs(management))
}

/// Returns a NodeInfo response with a transaction ID in the form that the management module uses.
fn node_info(tid: u32) -> Mad {
    let mut answer = request(1, 1, 0x81, 0x11, 0);
    answer[8..12].copy_from_slice(b"hcad");
    answer[12..16].copy_from_slice(&tid.to_be_bytes());
    answer
}

/// Returns the attributes requested from an HCA.
fn requested(outputs: &[Output], of: u16) -> Vec<u16> {
    let requested = outputs.iter().map(|output| match output {
        Output::ToFabric(Datagram { destination, mad, .. }) if *destination == Lid::new(of) => {
            u16::from_be_bytes([mad[16], mad[17]])
        }
        other => panic!("{other:?}"),
    });
    requested.collect()
}

#[test]
fn unsolicited_response_is_ignored() {
    // Opening the port has started a sweep, which is transaction 1.
    let mut management = open(1);
    for tid in [0, 2, 0xffff_ffff] {
        for listening in [false, true] {
            let arrived = arrive(&mut management, 2, QP0, node_info(tid), listening);
            assert_eq!(arrived, (Admitted::Taken, vec![]), "transaction {tid}");
        }
    }
    let (admitted, requests) = arrive(&mut management, 2, QP0, node_info(1), false);
    assert_eq!((admitted, requested(&requests, 2)), (Admitted::Taken, vec![0x10]));
    let Output::ToFabric(question) = &requests[0] else { panic!("{requests:?}") };
    let mut description = question.mad;
    description[3] = 0x81;
    let (_, requests) = arrive(&mut management, 2, QP0, description, false);
    assert_eq!(requested(&requests, 2), [0x15]);
    assert_eq!(arrive(&mut management, 2, QP0, description, false).1, []);
    for _ in 0..1000 {
        let arrived = arrive(&mut management, 2, QP0, node_info(1), false);
        assert_eq!(arrived, (Admitted::Taken, vec![]), "only one response to a request is accepted");
    }
    let mut failed = node_info(1);
    failed[5] = 0x0c;
    assert_eq!(arrive(&mut management, 3, QP0, failed, false).1, []);
    assert_eq!(
        arrive(&mut management, 3, QP0, node_info(1), false).1,
        [],
        "the failed response was the only one accepted"
    );
}

/// A peer that forges its source address must not make this HCA send more than the peer itself sends.
#[test]
fn received_mad_triggers_at_most_one_mad() {
    let mut directed = request(0x81, 1, 1, 0x11, 0);
    (directed[6], directed[7]) = (1, 1);
    directed[32..36].fill(0xff);
    let kinds = [
        (QP0, Lid::new(1), directed),
        (QP0, PERMISSIVE_LID, request(1, 1, 1, 0x11, 0)),
        (QP0, PERMISSIVE_LID, request(1, 1, 1, 0x15, 1)),
        (QP0, Lid::new(1), request(1, 1, 1, 0x11, 0)),
        (QP0, Lid::new(1), node_info(1)),
        (QP1, Lid::new(1), request(4, 1, 1, 1, 0)),
    ];
    for (qp, destination, mad) in kinds {
        let mut management = open(1);
        for from in 2..200 {
            let source = Lid::new(from);
            let received = Datagram { source, source_qp: qp, destination, destination_qp: qp, mad };
            management.handle_wire(&at(5000), &received, false, &mut || true);
            let caused = outputs(&mut management);
            assert!(caused.len() <= 1, "{caused:?}");
            for output in caused {
                let Output::ToFabric(datagram) = output else { panic!("{output:?}") };
                assert_eq!(datagram.destination, source, "only the sender gets a datagram");
            }
        }
    }
}

#[test]
fn sweeps_run_without_guest_requests() {
    let mut management = open(1);
    let mut sweeps = Vec::new();
    for second in 1..40 {
        let now = at(second * 1000);
        if management.next_deadline().is_some_and(|at| at <= now.now) {
            management.handle_deadline(&now);
        }
        for output in outputs(&mut management) {
            let Output::ToFabric(datagram) = output else { panic!("{output:?}") };
            assert_eq!((datagram.destination, datagram.mad[17]), (PERMISSIVE_LID, 0x11));
            sweeps.push(second);
        }
    }
    assert_eq!(
        sweeps,
        [1, 2, 12, 22, 32],
        "two more initial sweeps follow, then one sweep every ten seconds"
    );
    management.close_port();
    assert_eq!(management.next_deadline(), None);
}

/// A peer that invents HCAs cannot lock out a real HCA.
#[test]
fn forged_node_reports_do_not_displace_responding_nodes() {
    let mut management = open(1);
    let settled = |management: &mut Management, lid: u16| {
        let (_, mut requests) = arrive(management, lid, QP0, node_info(1), false);
        while let [Output::ToFabric(question)] = &requests[..] {
            let mut answer = question.mad;
            answer[3] = 0x81;
            requests = arrive(management, lid, QP0, answer, false).1;
        }
    };
    settled(&mut management, 40_000);
    for invented in 2..3000 {
        arrive(&mut management, invented, QP0, node_info(1), false);
    }
    settled(&mut management, 40_001);
    for invented in 3000..6000 {
        arrive(&mut management, invented, QP0, node_info(1), false);
    }
    let known: Vec<_> = management.subnet.nodes().map(|(lid, _)| lid.get()).collect();
    assert_eq!(known.len(), 1024);
    assert!(known.ends_with(&[40_000, 40_001]), "nodes that responded to all requests are kept");
    settled(&mut management, 40_002);
    assert!(management.subnet.nodes().any(|(lid, _)| lid == Lid::new(40_002)));
}

/// Sends the queries that ibqueryerrors uses to read the switch's counters (IBTA volume 1, section 16.1).
#[test]
fn switch_reports_zero_counters() {
    let mut fabric = Fabric::new(&[(1, true), (2, true)]);
    let (management, _) = &mut fabric.all[0];
    let mut get = |attribute, port: u8, method| {
        let mut mad = request(4, 1, method, attribute, 0);
        mad[65] = port;
        let answers = ask(management, QP1, mad);
        assert_eq!(answers.len(), 1);
        answers[0]
    };
    let info = get(1, 0, 1);
    assert_eq!((info[3], status(&info), &info[64..68]), (0x81, 0, &[1, 1, 0x03, 0][..]));
    for attribute in [0x12, 0x1d] {
        for port in [0, 1, 2, 0xff] {
            for method in [1, 2] {
                let counters = get(attribute, port, method);
                assert_eq!((counters[3], status(&counters), counters[65]), (0x81, 0, port));
                assert_eq!(counters[68..128], [0; 60]);
            }
        }
        assert_eq!(status(&get(attribute, 3, 1)), 0x1c, "port 3 does not exist");
    }
    assert_eq!(status(&get(0x15, 1, 1)), 0x0c);
    assert_eq!(status(&get(0x12, 1, 6)), 0x08, "the method Report is not supported");
}

/// OpenSM in a guest stays in STANDBY only if it finds a master with the highest priority and with OpenSM's own
/// SM_Key, which is 1 by default.
#[test]
fn sm_info_reports_master_with_highest_priority() {
    let mut fabric = Fabric::new(&[(1, true)]);
    let info = fabric.directed(&[1], 0x20, 0).unwrap();
    assert_eq!(status(&info), 0x8000);
    assert_eq!(info[64..72], [0, 0, 0, 0xff, 0xfe, 0, 0xbf, 0xff], "SMInfo contains the GUID of port 0");
    assert_eq!(info[72..80], [0, 0, 0, 0, 0, 0, 0, 1], "the SM_Key is 1");
    assert_eq!(info[84], 0xf3, "the priority is 15 and the state is MASTER");
}

/// IBTA volume 1, section 14.4.1: an SM whose ActCount stops increasing has failed.
#[test]
fn sm_activity_count_increases_between_polls() {
    let mut fabric = Fabric::new(&[(1, true)]);
    let mut count = || {
        let info = fabric.directed(&[1], 0x20, 0).unwrap();
        u32::from_be_bytes(info[80..84].try_into().unwrap())
    };
    let [first, second] = [count(), count()];
    assert!(first < second, "{first} {second}");
}

#[test]
fn sweep_by_another_hca_gets_response() {
    let mut management = open(1);
    let sweep = |management: &mut Management, allowed: usize| {
        let received = Datagram {
            source: Lid::new(2),
            source_qp: QP0,
            destination: PERMISSIVE_LID,
            destination_qp: QP0,
            mad: request(1, 1, 1, 0x11, 0),
        };
        let mut left = allowed;
        let mut allow = || {
            let allowed = left > 0;
            left = left.saturating_sub(1);
            allowed
        };
        assert_eq!(management.handle_wire(&at(0), &received, true, &mut allow), Admitted::Taken);
        let sent = outputs(management).into_iter().map(|output| match output {
            Output::ToFabric(Datagram { destination, mad, .. }) if destination == Lid::new(2) => mad[3],
            other => panic!("{other:?}"),
        });
        sent.collect::<Vec<_>>()
    };
    assert_eq!(
        sweep(&mut management, 0),
        [] as [u8; 0],
        "a sweep that exceeds the rate limit gets no response"
    );
    let mut other = open(1);
    assert_eq!(sweep(&mut other, 1), [0x81]);
    assert_eq!(sweep(&mut other, 2), [0x81], "a received sweep does not cause a query");
}

#[test]
fn agents_respond_right_after_port_opens() {
    let mut management = open(1);
    for (qp, class, attribute, early) in [
        (QP0, 1, 0x10, Admitted::Taken),
        (QP1, 4, 0x12, Admitted::Taken),
        (QP1, 7, 0x10, Admitted::Unchanged),
    ] {
        let received = Datagram {
            source: Lid::new(2),
            source_qp: qp,
            destination: management.lid(),
            destination_qp: qp,
            mad: request(class, 1, 1, attribute, 0),
        };
        let mut at = |millis| management.handle_wire(&at(millis), &received, true, &mut || true);
        assert_eq!((at(999), at(1000)), (early, Admitted::Unchanged), "class {class}");
    }
}

#[test]
fn agents_respond_to_perf_queries_even_if_software_listens() {
    let profile = NodeProfile { always_answers_perf: true, opened_by_software: false, ..SINAI };
    for source in [1, 2] {
        let mut management = Management::new(Identity::from_lid(Lid::new(1)), profile);
        management.set_link(true, &at(0));
        let received = |method| Datagram {
            source: Lid::new(source),
            source_qp: QP1,
            destination: Lid::new(1),
            destination_qp: QP1,
            mad: request(4, 1, method, 0x01, 0),
        };
        let mut handle = |method| management.handle_wire(&at(0), &received(method), true, &mut || true);
        assert_eq!(
            (handle(0x81), handle(1)),
            (Admitted::Unchanged, Admitted::Taken),
            "software gets the response, and the agent gets the request"
        );
        let answers = outputs(&mut management);
        // A response to the device's own guest does not leave the device.
        let (([Output::ToGuest(answer)], 1) | ([Output::ToFabric(answer)], 2)) = (&answers[..], source)
        else {
            panic!("{answers:?}")
        };
        assert_eq!((answer.destination.get(), answer.mad[..4].to_vec()), (source, vec![1, 4, 1, 0x81]));
    }
}

/// IBTA volume 1, section 14.2.4: a Set requires the M_Key. Because no peer is accepted as the subnet manager, a
/// remote Set is also rejected while no M_Key is configured.
#[test]
fn remote_set_without_m_key_is_rejected() {
    const ATTRIBUTES: [u16; 4] = [0x15, 0x16, 0x17, 0x18];
    for class in [0x01, 0x81] {
        for listening in [false, true] {
            let mut management = open(1);
            for (violations, attribute) in (1..).zip(ATTRIBUTES) {
                let mut mad = request(class, 1, 2, attribute, 1);
                (mad[6], mad[7]) = (2, 2);
                mad[32..36].fill(0xff);
                // In PortInfo, these bytes disable the port. In P_KeyTable, they are a P_Key.
                (mad[96], mad[97]) = (1, 0x30);
                let arrived = arrive(&mut management, 2, QP0, mad, listening);
                assert_eq!(arrived, (Admitted::Taken, vec![]), "attribute {attribute:#x}");
                assert_eq!(management.port_info(&at(0)).m_key_violations, violations);
            }
            assert!(management.is_active() && !management.take_pkey_change());
        }
    }
}

#[test]
fn remote_set_with_m_key_is_executed() {
    let mut management = open(1);
    let mut info = management.mad_ifc(&at(0), &request(1, 1, 1, 0x15, 1), MkeyCheck::Ignore).unwrap();
    info[3] = 2;
    info[64..72].copy_from_slice(&[9; 8]);
    (info[96], info[97]) = (info[96] & 0xf0, info[97] & 0x0f);
    management.mad_ifc(&at(0), &info, MkeyCheck::Ignore).unwrap();

    let mut pkeys = request(1, 1, 2, 0x16, 0);
    pkeys[64..66].copy_from_slice(&[0x80, 0x01]);
    for (key, set) in [(8, false), (0, false), (9, true)] {
        pkeys[24..32].fill(key);
        let (admitted, answers) = arrive(&mut management, 2, QP0, pkeys, false);
        assert_eq!(admitted, Admitted::Taken);
        assert_eq!((answers.len(), management.take_pkey_change()), (set.into(), set), "key {key}");
    }
    assert_eq!(management.pkey(0), Some(Pkey::new(0x8001)));
    info[24..32].fill(9);
    info[97] |= 0x30;
    let (_, outputs) = arrive(&mut management, 2, QP0, info, false);
    assert!(matches!(outputs[..], [Output::Link(false), Output::ToFabric(_)]), "{outputs:?}");
    assert_eq!(
        arrive(&mut management, 2, QP0, info, true).0,
        Admitted::Unchanged,
        "listening software gets the request"
    );
}

#[test]
fn port_that_is_down_does_not_respond() {
    let mut management = open(1);
    let down = |management: &mut Management| {
        let mads = [
            (QP0, request(1, 1, 1, 0x11, 0)),
            (QP0, request(0x81, 1, 1, 0x11, 0)),
            (QP0, node_info(1)),
            (QP1, request(4, 1, 1, 0x12, 0)),
        ];
        for (qp, mad) in mads {
            for listening in [false, true] {
                assert_eq!(arrive(management, 2, qp, mad, listening), (Admitted::Taken, vec![]));
            }
        }
    };
    management.close_port();
    down(&mut management);
    management.open_port(&at(0));
    management.set_link(false, &at(0));
    down(&mut management);
    down(&mut Management::new(Identity::from_lid(Lid::new(1)), SINAI));
    management.set_link(true, &at(0));
    assert_eq!(arrive(&mut management, 2, QP1, request(4, 1, 1, 1, 0), false).1.len(), 1);
}

#[test]
fn agents_respond_without_guest_software() {
    let mut management = open(1);
    let mut ask = |qp: Qpn, mad: Mad| {
        let (admitted, answers) = arrive(&mut management, 2, qp, mad, false);
        assert_eq!(admitted, Admitted::Taken);
        match answers.as_slice() {
            [] => None,
            [Output::ToFabric(answer)] => {
                assert_eq!((answer.destination, answer.destination_qp), (Lid::new(2), qp));
                Some(answer.mad)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(QP0, request(1, 1, 1, 0x11, 0)).map(|mad| mad[66]), Some(1));
    assert_eq!(ask(QP1, request(4, 1, 1, 1, 0)).map(|mad| status(&mad)), Some(0));
    assert_eq!(ask(QP1, request(1, 1, 1, 0x11, 0)), None, "subnet management uses QP0");
    assert_eq!(ask(QP0, request(4, 1, 1, 1, 0)), None, "QP0 accepts only subnet management");
    assert_eq!(ask(QP1, request(3, 2, 1, 0x11, 0)), None, "the SA does not respond to other ports");

    let received = Datagram {
        source: Lid::new(2),
        source_qp: QP1,
        destination: Lid::new(1),
        destination_qp: QP1,
        mad: request(4, 1, 1, 1, 0),
    };
    assert_eq!(management.handle_wire(&at(0), &received, false, &mut || false), Admitted::Taken);
    assert_eq!(outputs(&mut management), [], "the rate limit suppresses the response");
}
