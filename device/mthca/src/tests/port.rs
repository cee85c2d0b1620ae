//! Tests of port commands (lines 37 to 171 in section 14.3) and port state changes (sections 3.5, 8.2 and 8.5).

use super::*;

pub(super) const MAD_IFC: u32 = 0x024;
const NODE_DESCRIPTION: u16 = 0x10;
const NODE_INFO: u16 = 0x11;
pub(super) const GUID_INFO: u16 = 0x14;
pub(super) const PORT_INFO: u16 = 0x15;
pub(super) const PKEY_TABLE: u16 = 0x16;

/// Returns a Get MAD as the driver builds it, with base version 1 and class version 1.
pub(super) fn get(class: u8, attribute: u16, modifier: u32) -> Vec<u8> {
    let mut mad = vec![0; 256];
    mad[..4].copy_from_slice(&[1, class, 1, 1]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[20..24].copy_from_slice(&modifier.to_be_bytes());
    mad
}

/// Issues a Get MAD that must succeed. Returns the attribute data after the header.
#[track_caller]
fn attribute(driver: &mut Driver, class: u8, attribute: u16, modifier: u32) -> Vec<u8> {
    driver.poke(OUTBOX, &[0xff; 256]);
    driver.ok(MAD_IFC | 0x3000, &get(class, attribute, modifier), 1);
    let mad = driver.peek(OUTBOX, 256);
    assert_eq!((mad[3], &mad[4..6]), (0x81, &[0, 0][..]), "method and status");
    mad[64..].to_vec()
}

fn port_state(driver: &mut Driver) -> (u8, u8) {
    let info = attribute(driver, 1, PORT_INFO, 1);
    (info[32] & 0xf, info[33] >> 4)
}

#[test]
fn registration_queries_succeed_while_port_is_down() {
    let mut driver = initialised();
    driver.interface.events = command_events(0x20);
    attribute(&mut driver, 1, NODE_DESCRIPTION, 0);
    let node = attribute(&mut driver, 1, NODE_INFO, 0);
    assert_eq!(node[..4], [1, 1, 1, 1], "versions, and a channel adapter with one port");
    assert_eq!((&node[28..36], &node[37..40]), (&[0, 64, 0x62, 0x74, 0, 0, 0, 0xa0][..], &[0, 2, 0xc9][..]));
    for index in 0..32 {
        let info = attribute(&mut driver, 1, PORT_INFO, 1);
        assert_eq!(
            (info[..16].to_vec(), info[32] & 0xf),
            ([&[0; 8][..], &[0xfe, 0x80, 0, 0, 0, 0, 0, 0]].concat(), 1)
        );
        assert!(matches!(info[31], 1 | 2 | 4 | 8), "software can decode the width");
        assert_eq!(info[50], 32, "number of GIDs");
        let guids = attribute(&mut driver, 1, GUID_INFO, index / 8);
        let own = Identity::from_lid(Lid::new(1)).gid();
        let first = if index < 8 { own[8..].to_vec() } else { vec![0; 8] };
        assert_eq!((&guids[..8], &guids[8..64]), (&first[..], &[0; 56][..]), "block {}", index / 8);
        assert_eq!(first == node[20..28], index < 8, "the port's GUID comes first");
    }
    for index in 0..64 {
        let keys = attribute(&mut driver, 1, PKEY_TABLE, index / 32);
        let first = if index < 32 { [0xff; 2] } else { [0; 2] };
        assert_eq!((&keys[..2], &keys[2..64]), (&first[..], &[0; 62][..]), "block {}", index / 32);
    }
    let class = attribute(&mut driver, 4, 1, 0);
    assert_eq!(class[..2], [1, 1]);
}

#[test]
fn fabric_frame_size_limits_path_mtu() {
    // Returns NeighborMTU and MTUCap (IBTA volume 1, section 14.2.5.6).
    let mtus = |driver: &mut Driver| {
        let info = attribute(driver, 1, PORT_INFO, 1);
        (info[36] >> 4, info[41] & 0xf)
    };
    let mut driver = initialised();
    assert_eq!(mtus(&mut driver), (4, 4));
    for (limit, code) in [(engine::Mtu::Mtu1024, 3), (engine::Mtu::Mtu4096, 4)] {
        driver.hca.limit_path_mtu(limit);
        assert_eq!(mtus(&mut driver), (code, code));
    }
}

#[test]
fn port_is_active_until_close_ib() {
    let mut driver = initialised();
    assert_eq!(port_state(&mut driver).0, 1, "down");
    let mut init = vec![0; 56];
    init[..12].copy_from_slice(&[0, 0, 0x43, 0x40, 0, 0, 0, 0x20, 0, 0, 0, 0x40]);
    driver.ok(0x009, &init, 1);
    assert_eq!(port_state(&mut driver), (4, 5), "active, link up");
    assert_eq!(attribute(&mut driver, 1, PORT_INFO, 1)[16..18], [0, 1], "LID");
    let mut expected = vec![0; 32];
    (expected[1], expected[3], expected[0x0c]) = (0x09, 0x04, 0x10);
    assert_eq!(driver.eqe(2, 0), expected);

    driver.hca.set_link(false);
    assert_eq!(port_state(&mut driver).0, 1);
    driver.hca.set_link(true);
    assert_eq!((driver.eqe(2, 1)[3], driver.eqe(2, 2)[3]), (1, 4));
    driver.ok(0x00a, &[], 1);
    assert_eq!((port_state(&mut driver).0, driver.eqe(2, 3)[3]), (1, 1));
    driver.ok(0x00a, &[], 1);
    assert_eq!(driver.eqe(2, 4), [0; 32], "the port was already down");
}

/// Issues Set(PortInfo) with a port state and a physical state (IBTA volume 1, section 14.2.5.6).
fn set_port(driver: &mut Driver, state: u8, physical: u8) {
    let mut mad = get(1, PORT_INFO, 1);
    mad[3] = 2;
    let info = attribute(driver, 1, PORT_INFO, 1);
    mad[64..].copy_from_slice(&info);
    (mad[96], mad[97]) = (mad[96] & 0xf0 | state, mad[97] & 0x0f | physical << 4);
    driver.ok(MAD_IFC | 0x3000, &mad, 1);
    driver.hca.drain();
}

#[test]
fn reset_enables_port_but_keeps_host_link_state() {
    let mut driver = with_port();
    set_port(&mut driver, 1, 3);
    assert!(!driver.hca.is_link_up() && driver.hca.is_disabled());
    driver.hca.set_link(true);
    assert!(!driver.hca.is_link_up(), "connecting the cable does not enable the port");
    driver.hca.disconnect();
    assert!(driver.hca.is_link_up() && !driver.hca.is_disabled(), "the port is enabled for the next client");

    let mut driver = with_port();
    driver.hca.set_link(false);
    set_port(&mut driver, 1, 3);
    set_port(&mut driver, 1, 2);
    assert!(!driver.hca.is_link_up(), "software cannot bring up a disconnected link");
    set_port(&mut driver, 1, 3);
    driver.hca.reset();
    assert!(!driver.hca.is_link_up());
    driver.hca.set_link(true);
    assert!(driver.hca.is_link_up());
}

/// Section 1.5: the driver resets the device whenever it loads. The reset restores the state of the port.
#[test]
fn reset_register_enables_port() {
    let mut driver = with_port();
    set_port(&mut driver, 1, 3);
    assert_eq!(port_state(&mut driver), (1, 3), "down, disabled");
    driver.write(RESET, 1);
    driver.hca.drain();
    assert!(driver.hca.is_link_up() && !driver.hca.is_disabled());
    replay(&mut driver, probe::BRING_UP);
    assert_eq!(port_state(&mut driver), (1, 2), "down, polling");
    driver.ok(0x009, &[0; 56], 1);
    assert_eq!(port_state(&mut driver), (4, 5), "active, link up");
}

/// The link of a closed port is down, even if the cable is connected.
#[test]
fn closed_port_neither_receives_nor_replies() {
    /// ARP request for 10.77.0.1 from 10.77.0.2 at 02:00:00:00:00:02.
    const ARP: [u8; 42] = [
        255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10,
        77, 0, 2, 0, 0, 0, 0, 0, 0, 10, 77, 0, 1,
    ];
    let replies = |driver: &mut Driver| {
        driver.hca.handle_frame(&ARP);
        driver.settle().len()
    };
    let mut driver = initialised();
    assert_eq!(replies(&mut driver), 0, "the port is not open yet");
    open_port(&mut driver);
    assert_eq!(replies(&mut driver), 1);
    driver.ok(0x00a, &[], 1);
    assert_eq!(replies(&mut driver), 0, "the port is closed");
    let stats = driver.hca.port_stats();
    assert_eq!(stats.dropped(card::net::DropReason::LinkDown), 2);
}

#[test]
fn close_hca_brings_open_port_down() {
    let mut driver = initialised();
    driver.ok(0x009, &[0; 56], 1);
    replay(&mut driver, probe::TEAR_DOWN);
    replay(&mut driver, probe::BRING_UP);
    assert_eq!(port_state(&mut driver).0, 1, "down");
    driver.ok(0x009, &[0; 56], 1);
    assert_eq!(driver.eqe(2, 0)[3], 4, "the event is raised again");
}

#[test]
fn port_is_down_after_second_init_hca() {
    let mut driver = initialised();
    driver.ok(0x009, &[0; 56], 1);
    assert_eq!(port_state(&mut driver).0, 4, "active");
    driver.ok(0x007, &protocol::hca::mthca::init::InitHca::DRIVER_DEFAULT.emit(), 0);
    assert_eq!(port_state(&mut driver).0, 1, "down");
}

/// Section 13.3: after the probe, SET_IB adds the connection manager's capability bit.
#[test]
fn set_ib_stores_capability_mask() {
    let mut driver = initialised();
    let mask = attribute(&mut driver, 1, PORT_INFO, 1)[20..24].to_vec();
    assert_eq!(mask, [0x02, 0x51, 0x0a, 0x68]);
    let mut inbox = vec![0; 0x40];
    inbox[4..8].copy_from_slice(&[0x02, 0x50, 0x0a, 0x6a]);
    driver.ok(0x00c, &inbox, 1);
    assert_eq!(attribute(&mut driver, 1, PORT_INFO, 1)[20..24], [0x02, 0x50, 0x0a, 0x6a]);
}

#[test]
fn mad_ifc_drops_vendor_class_mads() {
    let mut driver = initialised();
    driver.ok(MAD_IFC | 0x4000, &get(1, NODE_INFO, 0), 0x2_0001);
    let refused = driver.with_inbox(MAD_IFC | 0x3000, &get(1, NODE_INFO, 0), 2);
    assert_eq!(refused, CmdStatus::BadParam.code());
    // Vendor-class MADs are dropped (section 8.2).
    let dropped = driver.with_inbox(MAD_IFC | 0x3000, &get(9, 0x10, 0), 1);
    assert_eq!(dropped, CmdStatus::BadPacket.code());
}
