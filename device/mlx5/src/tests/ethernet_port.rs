//! Tests of the Ethernet port: link, registers, vport, GIDs and RoCE (mlx5 interface, section 15).

mod multicast;

use std::net::{Ipv4Addr, Ipv6Addr};

use card::frontend::testing::{exchange, pattern};
use protocol::hca::mlx5::access_register::AccessReg;
use protocol::hca::mlx5::cqe::{Cqe, RoceHeader};
use protocol::hca::mlx5::eqe::{Eqe, PortChange};
use protocol::hca::mlx5::input::Bytes;
use protocol::hca::mlx5::mad_ifc::MadIfc;
use protocol::hca::mlx5::nic_vport::{
    ModifyNicVport, ModifyVportState, NicVportContext, QueriedNicVport, QueryNicVport, VportFields,
    VportState,
};
use protocol::hca::mlx5::path::Path;
use protocol::hca::mlx5::port_register::{Mcia, Paos, Pmtu, PortCounters, PortStatus, Ptys};
use protocol::hca::mlx5::qp::{CreateQp, QpContext, Service};
use protocol::hca::mlx5::resource::Multicast;
use protocol::hca::mlx5::roce_address::{QueryRoceAddress, RoceEntry, SetRoceAddress};
use protocol::hca::mlx5::vport::QueryVportPkey;
use protocol::hca::mlx5::wqe::{DatagramSegment, Opcode as WqeOpcode, Operation};
use protocol::ids::{MacAddr, Qpn};

use super::user::{QKEY, User, request, syndromes};
use super::*;

const RING: u64 = 0x60_0000;

/// Accesses a register. `direction` is 0 for a write.
fn access(driver: &mut Driver, direction: u16, register: u16, data: &[u8]) -> Vec<u8> {
    let access = AccessReg { direction, register, argument: 0 };
    let input = Command::AccessReg(access, Bytes::parse(data)).emit(0);
    let output = driver.execute(&input, AccessReg::LEN + data.len());
    assert_eq!(output[..8], [0; 8], "register {register:#x}");
    output[AccessReg::LEN..].to_vec()
}

fn set_port(driver: &mut Driver, status: PortStatus) -> Paos {
    let paos = Paos { port: 1, admin: status.code(), operational: 0, set_admin: true };
    Paos::parse(&output(&access(driver, 0, 0x5006, &paos.emit())))
}

fn is_up(driver: &mut Driver) -> bool {
    VportState::parse(&output(&driver.ok(&Command::QueryVportState(BARE)))).up
}

fn mac(lid: u16) -> MacAddr {
    MacAddr::from_lid(Lid::new(lid))
}

fn ipv4(lid: u16) -> [u8; 16] {
    let [high, low] = lid.to_be_bytes();
    Ipv4Addr::new(192, 168, high, low).to_ipv6_mapped().octets()
}

fn entry(lid: u16, vlan: Option<u16>) -> RoceEntry {
    RoceEntry {
        gid: ipv4(lid),
        vlan_valid: vlan.is_some(),
        vlan: vlan.unwrap_or_default(),
        mac: mac(lid),
        l3_type: 0,
        version: 2,
    }
}

fn enable_roce(driver: &mut Driver, enable: bool) {
    let context = NicVportContext { roce: enable, ..NicVportContext::default() };
    let modify = ModifyNicVport { fields: VportFields::ROCE.bits(), context };
    driver.ok(&Command::ModifyNicVportContext(modify, Bytes::default()));
}

/// Index of the GID used by the tests.
const INDEX: u16 = 3;

/// Creates a [`User`] on a device with an Ethernet port. RoCE is enabled, and the port has a single GID.
fn user(lid: u16, vlan: Option<u16>) -> User {
    let mut user = User::with(lid, Options::default());
    user.ok(&Command::SetRoceAddress(SetRoceAddress { index: INDEX, entry: entry(lid, vlan) }));
    enable_roce(&mut user, true);
    user
}

fn path(lid: u16) -> Path {
    Path { gid_index: 3, mac: mac(lid), gid: ipv4(lid), hop_limit: 64, port: 1, ..Path::default() }
}

fn connect(user: &mut User, service: Service, peer: u16) {
    let context = QpContext { primary: path(peer), ..user.context(service) };
    user.connect(&context, 0);
}

fn pair(service: Service, vlan: Option<u16>) -> (User, User) {
    let (mut a, mut b) = (user(1, vlan), user(2, vlan));
    connect(&mut a, service, 2);
    connect(&mut b, service, 1);
    (a, b)
}

#[test]
fn connection_uses_gids_of_both_ports() {
    for vlan in [None, Some(5)] {
        let (mut a, mut b) = pair(Service::Rc, vlan);
        a.put(0, &pattern(3000, 1));
        b.post_recv(0, 3000);
        a.post(&a.send(0, 3000));
        exchange(&mut *a, &mut *b);
        assert_eq!(b.get(0, 3000), pattern(3000, 1));
        assert_eq!((syndromes(&a.reap()), syndromes(&b.reap())), (vec![0], vec![0]));
        assert!(b.hca.port_stats().roce >= 3);
    }
}

#[test]
fn datagram_cqe_reports_header_and_vlan() {
    for (vlan, tag) in [(None, None), (Some(5), Some(0x6005))] {
        let (mut a, mut b) = pair(Service::Ud, vlan);
        b.post_recv(0, 140);
        let to = DatagramSegment {
            qkey: QKEY,
            long: true,
            qpn: Qpn::new(0x80),
            service_level: 3 << 1,
            mac: mac(2),
            gid_index: 3,
            gid: ipv4(2),
            ..DatagramSegment::default()
        };
        a.put(0, &pattern(100, 9));
        a.post(&request(WqeOpcode::Send, Operation::Datagram(to), a.data(0, 100)));
        exchange(&mut *a, &mut *b);
        assert_eq!(
            (b.get(40, 100), b.get(20, 1)),
            (pattern(100, 9), vec![0x45]),
            "the GRH area contains an IPv4 header"
        );
        let entries = b.reap();
        let [Cqe::Received(receipt)] = entries[..] else { panic!("{entries:?}") };
        assert_eq!((receipt.source.grh, receipt.source.vlan_tag), (true, tag));
        assert_eq!(receipt.source.service_level, RoceHeader::Ipv4.code());
        assert_eq!((receipt.byte_count, receipt.source.lid), (140, Lid::default()));
    }
}

#[test]
fn multicast_datagram_reaches_attached_qp() {
    let (mut a, mut b) = pair(Service::Ud, None);
    let gid = Ipv4Addr::new(239, 1, 2, 3).to_ipv6_mapped().octets();
    let qpn = b.qpn;
    b.ok(&Command::AttachToMcg(Multicast { qpn, gid }));
    b.post_recv(0, 140);
    let to = DatagramSegment {
        qkey: QKEY,
        long: true,
        qpn: Qpn::new(0xff_ffff),
        mac: MacAddr([1, 0, 0x5e, 1, 2, 3]),
        gid_index: 3,
        gid,
        ..DatagramSegment::default()
    };
    a.post(&request(WqeOpcode::Send, Operation::Datagram(to), a.data(0, 100)));
    exchange(&mut *a, &mut *b);
    assert_eq!(syndromes(&b.reap()), [0]);
}

/// Section 15.3: only RoCE packets addressed to one of the port's GIDs go to the engine.
#[test]
fn roce_packets_to_other_addresses_reach_netdev() {
    let (mut a, mut b) = pair(Service::Ud, None);
    let count = |a: &mut User, b: &mut User, address: (u16, [u8; 16])| {
        let to = DatagramSegment {
            qkey: QKEY,
            long: true,
            qpn: Qpn::new(0x80),
            mac: mac(address.0),
            gid_index: 3,
            gid: address.1,
            ..DatagramSegment::default()
        };
        a.post(&request(WqeOpcode::Send, Operation::Datagram(to), a.data(0, 100)));
        exchange(&mut **a, &mut **b);
        (b.hca.port_stats().roce, b.hca.port_stats().nic_receive.packets)
    };
    assert_eq!(count(&mut a, &mut b, (2, ipv4(2))), (1, 0));
    assert_eq!(count(&mut a, &mut b, (2, ipv4(3))), (1, 1));
    assert_eq!(count(&mut a, &mut b, (3, ipv4(2))), (1, 2));
    // The same address in a VLAN is a different GID.
    b.ok(&Command::SetRoceAddress(SetRoceAddress { index: INDEX, entry: entry(2, Some(5)) }));
    assert_eq!(count(&mut a, &mut b, (2, ipv4(2))), (1, 3));
    b.ok(&Command::SetRoceAddress(SetRoceAddress { index: INDEX, entry: entry(2, None) }));
    assert_eq!(count(&mut a, &mut b, (2, ipv4(2))), (2, 3));
    enable_roce(&mut b, false);
    assert_eq!(count(&mut a, &mut b, (2, ipv4(2))), (2, 4));
}

/// A GID can have its own MAC, for example if it belongs to a macvlan device.
#[test]
fn gid_mac_can_differ_from_port_mac() {
    let (mut a, mut b) = (user(1, None), user(2, None));
    let other = MacAddr([2, 0, 0, 9, 9, 9]);
    b.ok(&Command::SetRoceAddress(SetRoceAddress {
        index: INDEX,
        entry: RoceEntry { mac: other, ..entry(2, None) },
    }));
    let context = QpContext { primary: Path { mac: other, ..path(2) }, ..a.context(Service::Rc) };
    a.connect(&context, 0);
    connect(&mut b, Service::Rc, 1);
    b.post_recv(0, 64);
    a.post(&a.send(0, 64));
    exchange(&mut *a, &mut *b);
    assert_eq!((syndromes(&a.reap()), syndromes(&b.reap())), (vec![0], vec![0]));
}

#[test]
fn port_status_controls_link() {
    let mut driver = initialised_with_ethernet();
    let uar = driver.alloc_uar();
    driver.create_eq(uar, 1, EventMask::PORT_CHANGE, RING);
    let mut changes = 0;
    let mut changed = |driver: &mut Driver, up| {
        let bytes = driver.peek(RING + changes * 64, 64);
        changes += 1;
        let change = if up { PortChange::Up } else { PortChange::Down };
        assert_eq!(Eqe::parse(&output(&bytes)), Ok((Eqe::Port { port: 1, change }, false)));
        assert_eq!(is_up(driver), up);
    };
    assert!(is_up(&mut driver));
    let down = set_port(&mut driver, PortStatus::Down);
    assert_eq!((down.admin, down.operational), (2, 2));
    changed(&mut driver, false);
    let modes = Ptys { port: 1, protocol: Ptys::ETHERNET, ..Ptys::default() };
    let modes = Ptys::parse(&output(&access(&mut driver, 1, 0x5004, &modes.emit())));
    assert_eq!((modes.admin, modes.operational), (1 << 23, 0));
    // The cable is unplugged and plugged in again while the port is down.
    driver.hca.set_link(false);
    driver.hca.set_link(true);
    assert_eq!(set_port(&mut driver, PortStatus::Up).operational, 1);
    changed(&mut driver, true);
    driver.ok(&Command::ModifyVportState(ModifyVportState { admin: 0 }));
    changed(&mut driver, false);
    driver.ok(&Command::ModifyVportState(ModifyVportState { admin: 2 }));
    changed(&mut driver, true);
    driver.hca.set_link(false);
    changed(&mut driver, false);
    driver.hca.set_link(true);
    changed(&mut driver, true);
    // A reset enables the port again.
    set_port(&mut driver, PortStatus::Down);
    driver.ok(&Command::EnableHca(Function { function: 0 }));
    driver.ok(&Command::InitHca(InitHca::default()));
    assert!(is_up(&mut driver));
    let wrong = Paos { port: 1, admin: 3, set_admin: true, ..Paos::default() }.emit();
    let write = AccessReg { direction: 0, register: 0x5006, argument: 0 };
    assert_eq!(driver.rejected(&Command::AccessReg(write, Bytes::parse(&wrong))), Check::PortStatus);
    assert_eq!(driver.rejected(&Command::ModifyVportState(ModifyVportState { admin: 3 })), Check::VportState);
}

/// Section 15.4: `ethtool -s` sets the link modes and autonegotiation, and then takes the link down and back up.
#[test]
fn link_modes_and_autonegotiation_can_be_set() {
    let mut driver = initialised_with_ethernet();
    let ptys = |driver: &mut Driver, direction, data: Ptys| {
        let data = Ptys { port: 1, protocol: Ptys::ETHERNET, ..data };
        let modes = Ptys::parse(&output(&access(driver, direction, 0x5004, &data.emit())));
        assert!(modes.autoneg_disable_supported);
        (modes.autoneg_disabled, modes.admin, modes.operational)
    };
    assert_eq!(ptys(&mut driver, 1, Ptys::default()), (false, 1 << 23, 1 << 23));
    // The 25 Gbit/s modes, and one that the port does not support.
    let set = Ptys { autoneg_disabled: true, admin: 7 << 27 | 1, ..Ptys::default() };
    ptys(&mut driver, 0, set);
    assert_eq!(ptys(&mut driver, 1, Ptys::default()), (true, 7 << 27, 1 << 29));
    set_port(&mut driver, PortStatus::Down);
    assert_eq!(ptys(&mut driver, 1, Ptys::default()).2, 0);
    set_port(&mut driver, PortStatus::Up);
    ptys(&mut driver, 0, Ptys { admin: u32::MAX, ..Ptys::default() });
    assert_eq!(ptys(&mut driver, 1, Ptys::default()), (false, 0xf880_0000, 1 << 23));
    ptys(&mut driver, 0, Ptys { admin: 1, ..Ptys::default() });
    assert_eq!(ptys(&mut driver, 1, Ptys::default()).1, 0xf880_0000);
}

#[test]
fn mtu_register_rejects_value_above_maximum() {
    let mut driver = initialised_with_ethernet();
    let set = Pmtu { port: 1, admin: 9022, ..Pmtu::default() };
    let written = Pmtu::parse(&output(&access(&mut driver, 0, 0x5003, &set.emit())));
    assert_eq!(written, Pmtu { port: 1, max: 9978, admin: 9022, operational: 9022 });
    let read = Pmtu { port: 1, ..Pmtu::default() };
    assert_eq!(Pmtu::parse(&output(&access(&mut driver, 1, 0x5003, &read.emit()))), written);
    let large = Pmtu { admin: 9979, ..set }.emit();
    let write = AccessReg { direction: 0, register: 0x5003, argument: 0 };
    assert_eq!(driver.rejected(&Command::AccessReg(write, Bytes::parse(&large))), Check::Mtu);
}

#[test]
fn remaining_port_registers_match_specification() {
    let mut driver = initialised_with_ethernet();
    for (register, len) in [(0x5002, 64), (0x5007, 32), (0x5031, 256)] {
        let data = [&[0, 1, 0, 0][..], &vec![0; len - 4]].concat();
        assert_eq!(access(&mut driver, 1, register, &data), data);
    }
    // The port has no module whose EEPROM `ethtool -m` could show.
    let eeprom = Mcia { i2c_address: 0x50, data_len: 1, ..Mcia::default() };
    let answer = Mcia { status: 3, ..eeprom }.emit();
    assert_eq!(access(&mut driver, 1, 0x9014, &[&eeprom.emit()[..], &[0; 128]].concat())[..16], answer);
    let query = PortCounters { port: 1, group: 1, priority: 0, ..PortCounters::default() };
    assert_eq!(access(&mut driver, 1, 0x5008, &query.emit()), query.emit());
    let mut data = [0; 256];
    data[1] = 1;
    data[3] = 0x21;
    for (register, len, check) in [
        (0x5008, 256, Check::CounterGroup),
        (0x5008, 255, Check::RegisterLength),
        (0x5001, 20, Check::Register),
        (0x9014, 15, Check::RegisterLength),
        (0x902a, 64, Check::Register),
    ] {
        let read = AccessReg { direction: 1, register, argument: 0 };
        assert_eq!(driver.rejected(&Command::AccessReg(read, Bytes::parse(&data[..len]))), check);
    }
    data[..32].copy_from_slice(b"host a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    access(&mut driver, 0, 0x6001, &data[..64]);
    assert_eq!(access(&mut driver, 1, 0x6001, &[0; 64]), data[..64]);
}

/// Section 17.1: `mlx5_ib` reads the error counters in sysfs from group 20h.
#[test]
fn infiniband_counter_group_counts_link_failures() {
    let mut driver = initialised_with_ethernet();
    let read = |driver: &mut Driver| {
        let query = PortCounters { port: 1, group: 0x20, ..PortCounters::default() };
        access(driver, 1, 0x5008, &query.emit())
    };
    let mut expected = read(&mut driver);
    assert_eq!(expected[..8], [0, 1, 0, 0x20, 0, 0, 0, 0]);
    let downs = expected[0x0b];
    driver.hca.set_link(false);
    driver.hca.set_link(true);
    expected[0x0b] = downs + 1;
    assert_eq!(read(&mut driver), expected);
}

#[test]
fn unicast_list_sets_port_mac() {
    let mut driver = initialised_with_ethernet();
    assert_eq!(driver.hca.mac(), mac(1));
    let context = NicVportContext { list_len: 1, ..NicVportContext::default() };
    let modify = ModifyNicVport { fields: VportFields::LIST.bits(), context };
    driver.ok(&Command::ModifyNicVportContext(modify, Bytes::parse(&[0, 0, 2, 0, 0, 0, 9, 9])));
    assert_eq!(driver.hca.mac(), MacAddr([2, 0, 0, 0, 9, 9]));
    let query = Command::QueryNicVportContext(QueryNicVport { list_type: 0 });
    let answer = driver.execute(&query.emit(0), QueriedNicVport::LEN + 8);
    let context = QueriedNicVport::parse(&output(&answer)).context;
    assert_eq!((context.permanent_mac, context.list_len), (mac(1), 1));
    assert_eq!(answer[QueriedNicVport::LEN..], [0, 0, 2, 0, 0, 0, 9, 9]);
    driver.ok(&Command::DisableHca(Function { function: 0 }));
    assert_eq!(driver.hca.mac(), mac(1), "a reset restores the MAC");
}

#[test]
fn gid_and_pkey_commands_check_indices() {
    let mut driver = initialised_with_ethernet();
    let gid = Ipv6Addr::LOCALHOST.octets();
    let entry = RoceEntry { gid, l3_type: 1, ..entry(1, None) };
    driver.ok(&Command::SetRoceAddress(SetRoceAddress { index: 127, entry }));
    let queried = driver.ok(&Command::QueryRoceAddress(QueryRoceAddress { index: 127 }));
    assert_eq!(queried[0x10..], entry.emit());
    let set = Command::SetRoceAddress(SetRoceAddress { index: 128, entry });
    assert_eq!(driver.rejected(&set), Check::GidIndex);
    for index in [0, 0xffff] {
        let pkey = driver.ok(&Command::QueryHcaVportPkey(QueryVportPkey { index }));
        assert_eq!(pkey[0x10..], [0, 0, 0xff, 0xff]);
    }
    let pkey = Command::QueryHcaVportPkey(QueryVportPkey { index: 1 });
    assert_eq!(driver.rejected(&pkey), Check::PkeyIndex);
}

#[test]
fn commands_for_other_port_type_are_rejected() {
    let mut driver = initialised_with_ethernet();
    for command in [Command::QueryHcaVportContext(BARE), Command::MadIfc(MadIfc::default())] {
        assert_eq!(driver.rejected(&command), Check::PortType);
    }
    let uar = driver.alloc_uar();
    let context = QpContext { service: Service::Qp0.code(), uar, ..QpContext::default() };
    let create = CreateQp { context, ..CreateQp::default() };
    assert_eq!(driver.rejected(&Command::CreateQp(create, Pages::default())), Check::QpService);
    let mut driver = initialised();
    for command in [
        Command::QueryVportState(BARE),
        Command::ModifyVportState(ModifyVportState::default()),
        Command::QueryNicVportContext(QueryNicVport::default()),
        Command::ModifyNicVportContext(ModifyNicVport::default(), Bytes::default()),
        Command::SetRoceAddress(SetRoceAddress::default()),
        Command::QueryRoceAddress(QueryRoceAddress::default()),
        Command::QueryHcaVportPkey(QueryVportPkey::default()),
    ] {
        assert_eq!(driver.rejected(&command), Check::PortType, "{}", command.opcode().name());
    }
    // Opcodes of flow table and netdev commands, except those for RMPs.
    let netdev = |opcode: &&Opcode| matches!(opcode.code(), 0x900..=0x90b | 0x912..=0x93c);
    for opcode in Opcode::ALL.iter().filter(netdev) {
        let mut input = vec![0; 0x600];
        input[..2].copy_from_slice(&opcode.code().to_be_bytes());
        let header = OutputHeader::parse(&output(&driver.execute(&input, 16)));
        let expected = OutputHeader { status: 2, syndrome: Check::PortType.syndrome() };
        assert_eq!(header, expected, "{}", opcode.name());
    }
}

/// Section 20, M-22: QPs, SQs and RQs must not share numbers. Only an Ethernet port has SQs and RQs.
#[test]
fn sq_and_rq_numbers_are_not_assigned_to_qps() {
    for (port, next) in [(Port::Ethernet, 0x6000), (Port::InfiniBand, 0x4000)] {
        let setup = setup(1, Options { port, ..Options::default() });
        let mut qps = crate::resources::qp_numbers(&setup);
        let numbers = (0x80..0x4000).map(|_| qps.insert(()));
        assert!(numbers.eq((0x80..0x4000).map(Some)));
        assert_eq!(qps.next(), Some(next));
    }
}

#[test]
fn pci_class_depends_on_port() {
    use card::frontend::{Frontend as _, PortKind, PortNumber};
    let ethernet = Mlx5::new(setup(1, Options::default()));
    let infiniband = Mlx5::new(setup(1, infiniband()));
    assert_eq!((ethernet.pci().class, infiniband.pci().class), ([2, 0, 0], [2, 7, 0]));
    assert_eq!(ethernet.port_kind(PortNumber::ONE), PortKind::Nic);
    assert!(infiniband.port_kind(PortNumber::ONE).node().is_some());
}
