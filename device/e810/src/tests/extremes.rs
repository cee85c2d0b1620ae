//! Tests that the device keeps working if one byte or word of an admin command or a LAN descriptor has an extreme
//! value.

use std::collections::BTreeMap;

use card::frontend::testing::Session;
use protocol::hca::e810::admin::Opcode;
use protocol::hca::e810::regs::Register;

use super::lan::{Nic, PEER, TCP_HEADERS, frame, tcp_frame};
use super::sessions::{RESET, WITH_PACKAGE, parse};
use super::*;
use crate::testing::MAC;

fn check(driver: &mut Driver) {
    driver.bus.settle();
    driver.write(Register::PfgenCtrl, 1);
    driver.open_admin_queue();
    driver.succeed(&AdminCommand::direct(Opcode::GetVersion, [0; 16]));
}

/// Executes two commands of each kind from a recorded session.
#[test]
fn admin_command_with_extreme_value_leaves_device_working() {
    let act = |driver: &mut Driver| {
        let mut counts = BTreeMap::new();
        for line in WITH_PACKAGE.lines().take_while(|line| *line != RESET) {
            let command = parse(line).command;
            let count = counts.entry(command.opcode).or_insert(0);
            *count += 1;
            if *count <= 2 {
                driver.execute(&command);
            }
        }
    };
    let count = Session { open: started, guest: |driver| &mut driver.bus, act, check, step: 127 }.repeat();
    assert!(count > 100, "only {count} sessions");
}

/// Adds a VSI, rules and a queue, and transmits and receives frames, one of them segmented.
#[test]
fn lan_descriptor_with_extreme_value_leaves_device_working() {
    let act = |nic: &mut Nic| {
        // Replace the queues that `Nic::new` has opened.
        nic.driver.write(Register::PfgenCtrl, 1);
        nic.driver.open_admin_queue();
        nic.set_up();
        nic.send(&frame(PEER, MAC.0, 60), 0);
        assert_eq!(nic.driver.bus.settle().len(), 1);
        nic.put(7 << 32, 100 << 50 | 300 << 30 | 5 << 4 | 1);
        nic.send(&tcp_frame(300), TCP_HEADERS);
        assert_eq!(nic.driver.bus.settle().len(), 3);
        nic.send(&frame(MAC.0, MAC.0, 60), 0);
        nic.receive_frame(&frame(MAC.0, PEER, 600));
        nic.receive_frame(&frame([0xff; 6], PEER, 60));
    };
    let check = |nic: &mut Nic| check(&mut nic.driver);
    let count = Session { open: Nic::new, guest: |nic| &mut nic.driver.bus, act, check, step: 43 }.repeat();
    assert!(count > 100, "only {count} sessions");
}
