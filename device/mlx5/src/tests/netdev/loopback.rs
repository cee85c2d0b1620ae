//! Frames sent by an SQ and delivered by the receive tables of the same device (mlx5 interface, sections 15.2 and
//! 16.3).

use protocol::hca::mlx5::nic_vport::{ModifyNicVport, NicVportContext, VportFields};

use super::*;

/// Section 16.3: a TIR receives frames from its own domain only if its loopback bit permits them.
#[test]
fn loopback_bit_permits_frames_from_own_domain() {
    let mut net = Net::new();
    let own = TirContext { rqn: net.rqn, ..TirContext::default() };
    let (unicast, multicast) = (plain(2, 60), plain(0xff, 60));
    for (context, frame, expected) in [
        (own, &unicast, 0),
        (own, &multicast, 0),
        (TirContext { unicast_loopback: true, ..own }, &unicast, 1),
        (TirContext { unicast_loopback: true, ..own }, &multicast, 0),
        (TirContext { multicast_loopback: true, ..own }, &multicast, 1),
    ] {
        net.driver.tirs.clear();
        net.create_tir(context);
        net.post_receive(&[1522]);
        net.post(&net.wqe(EthernetSegment::default(), frame, 0));
        assert_eq!(net.driver.frames(), [frame.as_slice()], "the frame also goes to the wire");
        assert_eq!(net.received().len(), expected, "{context:?}");
    }
    net.domain =
        TransportDomainNumber::parse(&output(&net.driver.ok(&Command::AllocTransportDomain(BARE)))).domain;
    net.driver.tirs.clear();
    net.create_tir(own);
    net.post(&net.wqe(EthernetSegment::default(), &unicast, 0));
    net.driver.frames();
    assert_eq!(net.received().len(), 1);
    assert_eq!(net.driver.resources().netdev.counters.loopback.packets, 3);
}

/// The vport can disable the loopback of frames that a TIR would accept.
#[test]
fn vport_disables_unicast_or_multicast_loopback() {
    let mut net = Net::new();
    net.create_tir(TirContext {
        rqn: net.rqn,
        unicast_loopback: true,
        multicast_loopback: true,
        ..TirContext::default()
    });
    for (unicast, multicast) in [(false, false), (true, false), (false, true), (true, true)] {
        let context = NicVportContext {
            disable_unicast_loopback: unicast,
            disable_multicast_loopback: multicast,
            ..NicVportContext::default()
        };
        let fields = (VportFields::UNICAST_LOOPBACK | VportFields::MULTICAST_LOOPBACK).bits();
        let modify = ModifyNicVport { fields, context };
        net.driver.ok(&Command::ModifyNicVportContext(modify, Bytes::default()));
        for (first, disabled) in [(2, unicast), (0xff, multicast)] {
            net.post_receive(&[1522]);
            net.post(&net.wqe(EthernetSegment::default(), &plain(first, 60), 0));
            assert_eq!(net.driver.frames(), [plain(first, 60)], "the frame also goes to the wire");
            assert_eq!(net.received().is_empty(), disabled, "{first:#x}");
            net.driver.receive(&plain(first, 60));
            net.received();
        }
    }
}
