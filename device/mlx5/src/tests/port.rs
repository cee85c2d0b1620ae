//! The InfiniBand port: MAD_IFC, registers, state and link events (mlx5 interface, section 14).

use card::management::SM_LID;
use protocol::hca::mlx5::access_register::{AccessReg, HostEndianness, Pcap};
use protocol::hca::mlx5::counter::{QueryVportCounter, VportCounters};
use protocol::hca::mlx5::eqe::{Eqe, PortChange};
use protocol::hca::mlx5::firmware_register::{Mcam, Mcqi, Mcqs, Mnvda};
use protocol::hca::mlx5::input::Bytes;
use protocol::hca::mlx5::mad_ifc::MadIfc;
use protocol::hca::mlx5::port_register::PortCounters;
use protocol::hca::mlx5::vport::QueriedVport;
use protocol::mad::port::{LinkState, PhysicalState, PortInfo};

use super::*;

const RING: u64 = 0x40_0000;

fn mad(class: u8, attribute: u16) -> MadIfc {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, class, 1, 1]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[23] = 1;
    MadIfc { ignore_mkey: true, ignore_bkey: true, port: 1, mad, ..MadIfc::default() }
}

fn port_info(driver: &mut Driver) -> PortInfo {
    let answer = driver.ok(&Command::MadIfc(mad(1, 0x15)));
    PortInfo::parse(answer[0x10 + 64..].first_chunk().unwrap())
}

fn pcap(direction: u16, port: u8, capability_mask: u32) -> (AccessReg, [u8; Pcap::LEN]) {
    let access = AccessReg { direction, register: 0x5001, argument: 0 };
    (access, Pcap { port, capability_mask }.emit())
}

#[test]
fn port_is_active_before_any_command() {
    let mut driver = initialised();
    let info = port_info(&mut driver);
    assert_eq!((info.lid, info.state, info.mtu_cap), (Lid::new(1), LinkState::ACTIVE, 5));
    let queried = driver.ok(&Command::QueryHcaVportContext(BARE));
    let context = QueriedVport::parse(&output(&queried)).context;
    assert_eq!((context.lid, context.sm_lid, context.port_state), (Lid::new(1), SM_LID, 4));
    assert_eq!((context.physical_state, context.capability_mask), (5, 0x0251_0a68));
    assert_ne!(context.port_guid, 0);
}

#[test]
fn mad_ifc_rejects_other_management_classes() {
    let mut driver = initialised();
    let answer = driver.ok(&Command::MadIfc(mad(1, 0xff90)));
    assert_eq!(answer[0x10 + 3..0x10 + 6], [0x81, 0, 0x0c], "unsupported attribute");
    driver.ok(&Command::MadIfc(mad(4, 1)));
    assert_eq!(driver.rejected(&Command::MadIfc(mad(3, 0x11))), Check::Mad, "subnet administration");
    let other = MadIfc { port: 2, ..mad(1, 0x15) };
    assert_eq!(driver.rejected(&Command::MadIfc(other)), Check::Port);
    assert_eq!(Check::Mad.status().code(), 0x30);
}

/// The port has eight GIDs in one block and 128 P_Keys in four blocks. Even for an invalid block, the command itself
/// succeeds, and the response MAD reports the error.
#[test]
fn gid_and_pkey_block_limits_are_enforced() {
    let mut driver = initialised();
    for (attribute, blocks) in [(0x14, 1), (0x16, 4)] {
        let mut status = |block| {
            let mut query = mad(1, attribute);
            query.mad[23] = block;
            let answer = driver.ok(&Command::MadIfc(query));
            [answer[0x10 + 4] & 0x7f, answer[0x10 + 5]]
        };
        assert_eq!([status(blocks - 1), status(blocks)], [[0, 0], [0, 0x1c]], "attribute {attribute:#x}");
    }
}

/// Section 20, M-23: `ib_cm` drops the port if it cannot write the capability mask.
#[test]
fn pcap_register_sets_port_capability_mask() {
    let mut driver = initialised();
    let (access, data) = pcap(0, 1, 0x0261_0a68);
    let written = driver.execute(&Command::AccessReg(access, Bytes::parse(&data)).emit(0), 36);
    assert_eq!(written[16..], data, "a write is echoed");
    assert_eq!(port_info(&mut driver).capabilities, 0x0261_0a68);
    let (access, data) = pcap(1, 1, 0);
    let read = driver.execute(&Command::AccessReg(access, Bytes::parse(&data)).emit(0), 36);
    assert_eq!(read[16 + 4..16 + 8], [2, 0x61, 0x0a, 0x68]);
}

#[test]
fn node_desc_register_sets_node_description() {
    let mut driver = initialised();
    let mut data = [0; 64];
    data[..6].copy_from_slice(b"host a");
    let node_desc = |direction, data: &[u8]| {
        Command::AccessReg(AccessReg { direction, register: 0x6001, argument: 0 }, Bytes::parse(data)).emit(0)
    };
    let written = driver.execute(&node_desc(0, &data), 80);
    assert_eq!(written[16..], data, "a write is echoed");
    assert_eq!(driver.execute(&node_desc(1, &[0; 64]), 80)[16..], data);
    let answer = driver.ok(&Command::MadIfc(mad(1, 0x10)));
    assert_eq!(answer[0x10 + 64..][..64], data, "NodeDescription in a MAD");
}

#[test]
fn unknown_registers_are_rejected() {
    let mut driver = powered_on();
    driver.ok(&Command::EnableHca(Function { function: 0 }));
    let of = |direction, register, len: usize| {
        let data = &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..len];
        (AccessReg { direction, register, argument: 0 }, Bytes::parse(data))
    };
    for ((access, data), check) in [
        (of(0, 0x5004, 20), Check::Register),
        (of(2, 0x5001, 20), Check::RegisterDirection),
        (of(0, 0x5001, 19), Check::RegisterLength),
        (of(0, 0x7004, 15), Check::RegisterLength),
    ] {
        assert_eq!(driver.rejected(&Command::AccessReg(access, data)), check);
    }
    let (access, data) = pcap(0, 2, 0);
    assert_eq!(driver.rejected(&Command::AccessReg(access, Bytes::parse(&data))), Check::Port);
    let order = HostEndianness { raw: 0 }.emit();
    let (access, _) = of(0, 0x7004, 16);
    driver.ok(&Command::AccessReg(access, Bytes::parse(&order)));
}

#[test]
fn port_counters_are_zero_without_traffic() {
    let mut driver = initialised();
    let output = driver.ok(&Command::QueryVportCounter(QueryVportCounter { clear: true }));
    assert_eq!(VportCounters::parse(&self::output(&output)), VportCounters::default());
}

/// Section 17.1: `mlx5_ib` reads the error counters in sysfs from PPCNT, group 20h.
#[test]
fn ppcnt_reports_same_counters_as_performance_agent() {
    let mut driver = initialised();
    driver.hca.set_link(false);
    driver.hca.set_link(true);
    let read = |group| {
        let query = PortCounters { port: 1, group, ..PortCounters::default() };
        let access = AccessReg { direction: 1, register: 0x5008, argument: 0 };
        (access, query.emit())
    };
    let (access, data) = read(0x20);
    let queried = driver.execute(&Command::AccessReg(access, Bytes::parse(&data)).emit(0), 0x110);
    assert_eq!(queried[..8], [0; 8]);
    assert_eq!(queried[0x10..0x18], data[..8]);
    assert_eq!(queried[0x10 + 0x0b], 1, "the link has failed once");
    let mut get = mad(4, 0x12);
    get.mad[65] = 1;
    let answer = driver.ok(&Command::MadIfc(get));
    assert_eq!(queried[0x18..0x40], answer[0x10 + 64 + 4..][..40]);
    let (access, data) = read(0);
    assert_eq!(driver.rejected(&Command::AccessReg(access, Bytes::parse(&data))), Check::CounterGroup);
}

/// Section 5.5: the driver sends QUERY_VNIC_ENV even though no capability announces any of the counters.
#[test]
fn vport_diagnostic_counters_are_zero() {
    for mut driver in [initialised(), initialised_with_ethernet()] {
        let output = driver.execute(&Command::QueryVnicEnv(BARE).emit(0), 0x110);
        assert_eq!(output, [0; 0x110]);
    }
}

/// Section 14.5: `devlink dev info` reports the version, but only if MCAM announces the registers.
#[test]
fn firmware_registers_report_version() {
    let read = |driver: &mut Driver, register, data: &[u8], len| {
        let access = AccessReg { direction: 1, register, argument: 0 };
        driver.execute(&Command::AccessReg(access, Bytes::parse(data)).emit(0), AccessReg::LEN + len)
    };
    for mut driver in [initialised(), initialised_with_ethernet()] {
        for (group, expected) in [(0, Mcam::SUPPORTED), (2, 0), (3, 0)] {
            let mcam = Mcam { register_group: group, ..Mcam::default() };
            let queried = read(&mut driver, 0x907f, &mcam.emit(), Mcam::LEN);
            assert_eq!(queried[..8], [0; 8]);
            assert_eq!(Mcam::parse_prefix(&queried[16..]).unwrap().upper_registers, expected);
        }
        let queried = read(&mut driver, 0x9060, &Mcqs::default().emit(), Mcqs::LEN);
        let mcqs = Mcqs::parse_prefix(&queried[16..]).unwrap();
        assert_eq!((mcqs.is_last, mcqs.identifier, mcqs.update_state), (true, Mcqs::BOOT_IMAGE, 0));
        let mcqi = Mcqi { info_type: 1, data_len: 124, ..Mcqi::default() };
        let queried = read(&mut driver, 0x9061, &mcqi.emit(), Mcqi::LEN + 124);
        assert_eq!(queried[16 + Mcqi::LEN + 4..][..4], [16, 35, 0x0b, 0xbe]);

        let rejected = |driver: &mut Driver, register, data: &[u8]| {
            let access = AccessReg { direction: 1, register, argument: 0 };
            driver.rejected(&Command::AccessReg(access, Bytes::parse(data)))
        };
        let other = Mcqs { component: 1, ..Mcqs::default() };
        assert_eq!(rejected(&mut driver, 0x9060, &other.emit()), Check::Component);
        let capabilities = Mcqi { info_type: 0, ..mcqi };
        assert_eq!(rejected(&mut driver, 0x9061, &capabilities.emit()), Check::ComponentInfo);
        assert_eq!(rejected(&mut driver, 0x9061, &[0; 23]), Check::RegisterLength);
    }
}

/// Section 14.5: `devlink dev param show` reads configuration items.
#[test]
fn configuration_items_are_zero_and_read_only() {
    for mut driver in [initialised(), initialised_with_ethernet()] {
        let mnvda = Mnvda { data_len: 20, item: 0x81, ..Mnvda::default() }.emit();
        let data = [&mnvda[..], &[0xff; 256]].concat();
        let access = |direction| AccessReg { direction, register: 0x9024, argument: 0 };
        let read = Command::AccessReg(access(1), Bytes::parse(&data));
        let output = driver.execute(&read.emit(0), AccessReg::LEN + data.len());
        assert_eq!(output, [&[0; 8], &[0; 8], &mnvda[..], &[0; 256]].concat());
        let write = Command::AccessReg(access(0), Bytes::parse(&data));
        assert_eq!(driver.rejected(&write), Check::ConfigItem);
        let short = Command::AccessReg(access(1), Bytes::parse(&data[..11]));
        assert_eq!(driver.rejected(&short), Check::RegisterLength);
    }
}

/// Section 14.5: `devlink dev reload ... action fw_activate` reads which resets the device offers.
#[test]
fn no_reset_activates_firmware() {
    for mut driver in [initialised(), initialised_with_ethernet()] {
        let access = |direction| AccessReg { direction, register: 0x9028, argument: 0 };
        let read = Command::AccessReg(access(1), Bytes::parse(&[0; 8]));
        assert_eq!(driver.execute(&read.emit(0), AccessReg::LEN + 8), [0; 24]);
        let write = Command::AccessReg(access(0), Bytes::parse(&[0; 8]));
        assert_eq!(driver.rejected(&write), Check::Register);
    }
}

/// Section 14.1: the driver reads the P_Key table again only after an event.
#[test]
fn pkey_table_change_raises_one_event() {
    const SET: u8 = 2;
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    driver.create_eq(uar, 1, EventMask::PORT_CHANGE, RING);
    let mut set = mad(1, 0x16);
    (set.mad[3], set.mad[23]) = (SET, 0);
    set.mad[64..68].copy_from_slice(&[0x80, 0x01, 0xff, 0xff]);
    for _ in 0..2 {
        driver.ok(&Command::MadIfc(set));
        driver.settle();
        let bytes = driver.peek(RING, 64);
        let change = PortChange::Pkey;
        assert_eq!(Eqe::parse(&output(&bytes)), Ok((Eqe::Port { port: 1, change }, false)));
        assert_eq!(driver.peek(RING + 64, 64), [0; 64], "no other event");
    }
}

/// Section 8.2: `mlx5_ib` reports IB_EVENT_CLIENT_REREGISTER only after this event.
#[test]
fn client_reregistration_request_raises_one_event() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    driver.create_eq(uar, 1, EventMask::PORT_CHANGE, RING);
    let info = port_info(&mut driver);
    let mut set = |client_reregister, lid| {
        let (state, physical_state) = (LinkState::NO_CHANGE, PhysicalState::NO_CHANGE);
        let info = PortInfo { state, physical_state, client_reregister, lid, ..info };
        let mut set = mad(1, 0x15);
        set.mad[3] = 2;
        set.mad[64..128].copy_from_slice(&info.emit());
        driver.ok(&Command::MadIfc(set));
        driver.settle();
        driver.peek(RING, 128)
    };
    assert_eq!(set(false, info.lid), [0; 128], "no request");
    assert_eq!(set(true, Lid::new(9)), [0; 128], "the port rejects this LID");
    let events = set(true, info.lid);
    let change = PortChange::ClientReregister;
    assert_eq!(Eqe::parse(&output(&events)), Ok((Eqe::Port { port: 1, change }, false)));
    assert_eq!(events[64..], [0; 64], "no other event");
    assert_eq!(set(false, info.lid)[64..], [0; 64], "no other event");
}

/// Section 8.2: the event goes to the EQ whose mask includes port changes.
#[test]
fn link_changes_raise_events() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    driver.create_eq(uar, 0, EventMask::COMMAND, RING);
    driver.create_eq(uar, 1, EventMask::PORT_CHANGE, RING + 0x4000);
    for (entry, up) in [(0, false), (1, true)] {
        driver.hca.set_link(up);
        let bytes = driver.peek(RING + 0x4000 + entry * 64, 64);
        let change = if up { PortChange::Up } else { PortChange::Down };
        assert_eq!(Eqe::parse(&output(&bytes)), Ok((Eqe::Port { port: 1, change }, false)));
    }
    assert_eq!(port_info(&mut driver).state, LinkState::ACTIVE);
}
