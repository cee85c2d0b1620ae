//! Tests of the link (E810 interface, sections 4.3 and 5.6).

use drivers::e810::RECEIVE_RING;
use protocol::hca::e810::admin::Opcode;
use protocol::hca::e810::admin::descriptor::{Descriptor, Flags};
use protocol::hca::e810::admin::link::{GetLinkStatus, LinkStatus, PhyCapabilities, PhyConfig};
use protocol::hca::e810::regs::Register;

use super::*;
use crate::Options;
use crate::options::LinkSpeed;
use crate::testing::AdminEvent;

/// Builds a "get link status" command that enables link events.
pub(super) fn want_events() -> AdminCommand {
    let mut parameters = [0; 16];
    parameters[2] = 3;
    AdminCommand::with_output(Opcode::GetLinkStatus, parameters, 32)
}

/// Link-down event without its data, as recorded in `run73-all.aq.gz`.
const DOWN: AdminEvent =
    AdminEvent { opcode: 0x0607, parameters: [0, 0, 1, 0, 0, 0, 0, 0], data: Vec::new() };
const DOWN_DATA: [u8; 8] = [0, 0, 0x40, 0x80, 0, 0, 0, 0x26];
const UP_DATA: [u8; 12] = [0, 0, 0xe1, 0x81, 0, 0, 0, 0x26, 0, 0, 0, 4];

fn data(start: &[u8], phy: u8) -> Vec<u8> {
    let mut data = start.to_vec();
    data.resize(32, 0);
    data[22] = phy;
    data
}

#[test]
fn link_events_match_recording() {
    let mut driver = started();
    let reply = driver.succeed(&want_events());
    assert_eq!(reply.parameters[..8], [0, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(reply.buffer, data(&UP_DATA, 8));
    driver.bus.hca.set_link(false);
    assert_eq!(driver.event(), Some(AdminEvent { data: data(&DOWN_DATA, 0), ..DOWN }));
    driver.bus.hca.set_link(true);
    assert_eq!(driver.event(), Some(AdminEvent { data: data(&UP_DATA, 8), ..DOWN }));
    assert_eq!(driver.event(), None);
}

#[test]
fn disabled_link_events_are_not_posted() {
    let mut driver = started();
    driver.bus.hca.set_link(false);
    assert_eq!(driver.event(), None);
    driver.succeed(&want_events());
    let mut parameters = [0; 16];
    parameters[2] = 2;
    let reply = driver.succeed(&AdminCommand::with_output(Opcode::GetLinkStatus, parameters, 32));
    assert_eq!(reply.parameters[2], 0);
    driver.bus.hca.set_link(true);
    assert_eq!(driver.event(), None);
}

#[test]
fn events_are_dropped_without_free_receive_descriptor() {
    let mut driver = started();
    driver.succeed(&want_events());
    driver.write(Register::PfFwArqt, 0);
    driver.bus.hca.set_link(false);
    assert_eq!(driver.event(), None);
    driver.write(Register::PfFwArqt, 1);
    driver.bus.hca.set_link(true);
    driver.bus.hca.set_link(false);
    assert!(driver.event().is_some());
    assert_eq!(driver.event(), None);
}

fn up(driver: &mut Driver) -> bool {
    let reply = driver.succeed(&AdminCommand::with_output(Opcode::GetLinkStatus, [0; 16], 32));
    LinkStatus::parse_prefix(&reply.buffer).unwrap().up
}

fn configure(abilities: u8) -> AdminCommand {
    let config = PhyConfig { abilities: abilities.into(), ..PhyConfig::default() };
    AdminCommand::with_input(Opcode::SetPhyConfig, [0; 16], &config.emit())
}

/// `ice` stops its interface before it sets the speed, and starts it if an event changes the link status from down to
/// up. It reads the status for each event.
#[test]
fn phy_configuration_restarts_link() {
    let mut driver = started();
    driver.succeed(&configure(1 << 5 | 1 << 3));
    assert!(up(&mut driver), "without link events, the link does not restart");
    driver.succeed(&want_events());
    driver.succeed(&configure(1 << 3));
    assert_eq!(
        driver.event().unwrap().data,
        data(&UP_DATA, 8),
        "this configuration does not apply immediately"
    );

    driver.succeed(&configure(1 << 5 | 1 << 3));
    assert_eq!(driver.event().unwrap().data, data(&DOWN_DATA, 0));
    assert_eq!(driver.event(), None, "the link is down until the driver has read its status");
    assert!(driver.bus.hca.is_link_up(), "the port still sends and receives frames");
    assert!(!up(&mut driver));
    assert_eq!(driver.event().unwrap().data, data(&UP_DATA, 8));
    assert!(up(&mut driver));
    assert_eq!(driver.event(), None);

    driver.succeed(&configure(1 << 5 | 1 << 3));
    driver.write(Register::PfgenCtrl, 1);
    driver.open_admin_queue();
    assert!(up(&mut driver), "a function reset ends the restart");
}

#[test]
fn active_phy_configuration_can_be_read_back() {
    let mut driver = started();
    let read = |driver: &mut Driver, mode: u8| {
        let mut parameters = [0; 16];
        parameters[2] = mode << 1;
        let command = AdminCommand::with_output(Opcode::GetPhyCapabilities, parameters, 560);
        PhyCapabilities::parse_prefix(&driver.succeed(&command).buffer).unwrap()
    };
    let capabilities = read(&mut driver, 1);
    assert_eq!(read(&mut driver, 2), capabilities);
    // As for `ethtool -A … rx off tx off` and `ethtool --set-fec … encoding rs`.
    let config = PhyConfig {
        phy_low: 1 << 51,
        abilities: (1 << 3 | 1 << 5).into(),
        low_power: 4,
        fec: 0x54,
        ..PhyConfig::default()
    };
    driver.succeed(&AdminCommand::with_input(Opcode::SetPhyConfig, [0; 16], &config.emit()));
    let active = read(&mut driver, 2);
    assert_eq!((u8::from(active.abilities), active.fec), (1 << 3 | 1 << 4, 0x54));
    assert_eq!((active.phy_low, active.low_power), (1 << 51, 4));
    assert_eq!(read(&mut driver, 1), capabilities, "the capabilities do not change");
}

#[test]
fn driver_can_disable_and_enable_link() {
    let mut driver = started();
    driver.succeed(&want_events());
    driver.succeed(&configure(1 << 5));
    assert!(!up(&mut driver));
    assert_eq!(driver.event().unwrap().data, data(&DOWN_DATA, 0));
    driver.write(Register::PfgenCtrl, 1);
    driver.open_admin_queue();
    assert!(!up(&mut driver), "a function reset does not affect the link");
    driver.succeed(&want_events());
    driver.succeed(&configure(1 << 5 | 1 << 3));
    assert!(up(&mut driver));
    assert_eq!(driver.event().unwrap().data, data(&UP_DATA, 8));

    driver.interrupts(0);
    driver.enable_vector(0);
    let mut restart = [0; 16];
    restart[2] = 0b110;
    driver.succeed(&AdminCommand::direct(Opcode::RestartNegotiation, restart));
    assert_eq!(driver.event().unwrap().data, data(&UP_DATA, 8), "an event is posted even if nothing changes");
    assert_eq!(driver.interrupts(0), 1);
}

#[test]
fn link_reports_configured_speed() {
    for (link_speed, speed, phy) in [
        (LinkSpeed::Gbps25, 1 << 7, 1 << 20),
        (LinkSpeed::Gbps40, 1 << 8, 1 << 30),
        (LinkSpeed::Gbps50, 1 << 9, 1 << 36),
        (LinkSpeed::Gbps100, 1 << 10, 1_u64 << 51),
    ] {
        let mut driver = powered_on(Options { link_speed, ..Options::default() });
        driver.open_admin_queue();
        let reply = driver.succeed(&AdminCommand::with_output(
            Opcode::GetLinkStatus,
            GetLinkStatus::default().emit(),
            32,
        ));
        let status = LinkStatus::parse_prefix(&reply.buffer).unwrap();
        assert_eq!((status.speed, status.phy_low), (speed, phy));
        let reply = driver.succeed(&AdminCommand::with_output(Opcode::GetPhyCapabilities, [0; 16], 560));
        assert_eq!(reply.buffer[..8], phy.to_le_bytes());
    }
}

#[test]
fn link_commands_reject_short_buffer() {
    let mut driver = started();
    for (opcode, len) in [(Opcode::GetLinkStatus, 31), (Opcode::GetPhyCapabilities, 559)] {
        let reply = driver.execute(&AdminCommand::with_output(opcode, [0; 16], len));
        assert_eq!(reply.status, 14, "{opcode:?}");
    }
    assert_eq!(driver.execute(&AdminCommand::with_input(Opcode::SetPhyConfig, [0; 16], &[0; 23])).status, 14);
}

#[test]
fn event_longer_than_buffer_is_dropped() {
    let mut driver = started();
    driver.succeed(&want_events());
    let free = |len| Descriptor { flags: Flags::BUFFER, buffer_len: len, ..Descriptor::default() };
    driver.poke(RECEIVE_RING, &free(31).emit());
    driver.bus.hca.set_link(false);
    assert_eq!((driver.event(), driver.interrupts(0)), (None, 0));
    assert_eq!(driver.peek(0, 64), [0; 64], "guest memory must not be written");
    driver.poke(RECEIVE_RING, &free(32).emit());
    driver.bus.hca.set_link(true);
    assert_eq!(driver.interrupts(0), 1);
}
