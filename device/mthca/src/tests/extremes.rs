//! Tests that the device keeps working if one byte or word of an inbox, a WQE or a doorbell record has an extreme
//! value. Each session creates valid objects and uses them. The QPs are connected to themselves.

use card::frontend::testing::Session;
use protocol::hca::mthca::modify::QpAttributes;
use protocol::hca::mthca::path::{Address, AddressVector};
use protocol::hca::mthca::qpc::Qpc;
use protocol::hca::mthca::wqe::{Operation, SendWqe, UdSegment, WqeData};
use protocol::ids::{Pdn, Qkey, Qpn};

use super::port::{MAD_IFC, PKEY_TABLE, get};
use super::user::{CQN, QKEY, QPN, RC, SRQN, UC, UD, User, qpc, remote, request, send};
use super::*;

const GROUP: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

fn opened() -> User {
    User::new(1)
}

fn connected() -> User {
    let mut user = opened();
    user.connect(&qpc(RC, 1));
    user
}

/// Lets the device handle its own packets, and lets a few timers expire.
fn transfer(user: &mut User) {
    for _ in 0..8 {
        user.settle();
        let Some(deadline) = user.hca.next_deadline() else { return };
        user.advance(deadline);
    }
}

/// Sends a message, which must complete.
fn send_message(user: &mut User, wqe: &SendWqe) {
    user.post_recv(0x100, 128);
    user.post_recv(0x200, 128);
    user.arm(2);
    user.post(wqe);
    transfer(user);
    assert_eq!(user.reap().len(), 2);
}

/// Modifies the QP in SQD, and moves it to ERR and RESET.
fn end_qp(user: &mut User, context: &Qpc) {
    let inbox = modify(QpAttributes::all(), context);
    user.ok(0x01c, &inbox, QPN);
    user.ok(0x01f, &[], QPN);
    user.settle();
    user.ok(0x020, &inbox, QPN);
    user.query();
    user.ok(0x01e, &[], QPN);
    user.settle();
    user.ok(0x021, &[], QPN);
}

fn datagram() -> SendWqe {
    let address = Address { dlid: Lid::new(1), ..Address::default() };
    let vector = AddressVector { port: 1, pd: Pdn::new(1), address };
    let to = UdSegment { vector, dqpn: Qpn::new(QPN), qkey: Qkey::new(QKEY) };
    request(Operation::Datagram { imm: None, to }, 0, 64)
}

#[track_caller]
fn repeat(open: fn() -> User, act: fn(&mut User), step: usize) {
    let check = |user: &mut User| {
        assert_eq!(user.command(0x031, 0, 0x1f).0, 0);
        user.ok(0x004, &[], 0);
    };
    let count = Session { open, guest: |user| &mut user.bus, act, check, step }.repeat();
    assert!(count > 300, "only {count} sessions");
}

/// Executes INIT_HCA and MAP_ICM, and creates the driver's regions and EQs.
#[test]
fn bring_up_with_extreme_value_leaves_device_working() {
    let act = |driver: &mut Driver| {
        replay(driver, probe::BRING_UP);
        open_port(driver);
        driver.ok(MAD_IFC | 0x3000, &get(1, PKEY_TABLE, 0), 1);
        driver.ok(0x00c, &driver::words(&[0, 0x0251_0a68], 0x40), 1);
        replay(driver, probe::TEAR_DOWN);
    };
    let check = |driver: &mut Driver| {
        driver.write(RESET, 1);
        assert_eq!(driver.command(0x031, 0, 0x1f).0, 0);
        driver.ok(0x004, &[], 0);
    };
    let count = Session { open: powered_on, guest: |driver| &mut driver.bus, act, check, step: 11 }.repeat();
    assert!(count > 300, "only {count} sessions");
}

#[test]
fn context_with_extreme_value_leaves_device_working() {
    let act = |user: &mut User| {
        user.destroy_objects();
        user.create_objects();
        user.ok(0x102c, &driver::words(&[0, 0, 0, 3 << 24, 0, 0, 0, 0x20_00], 0x40), CQN);
        let mut context = qpc(RC, 1);
        context.responder.set_srq(true);
        user.connect(&context);
        user.post_shared(0x100, 64);
        user.post_shared(0x200, 64);
        user.post(&send(0, 8));
        transfer(user);
        assert_eq!(user.reap().len(), 2);
        assert_eq!(user.command(0x040, 1, SRQN).0, 0);
        user.post(&send(0, 8));
        transfer(user);
        user.ok(0x021, &[], QPN);
        user.destroy_objects();
    };
    repeat(opened, act, 11);
}

#[test]
fn qp_context_with_extreme_value_leaves_device_working() {
    let act = |user: &mut User| {
        user.connect(&qpc(RC, 1));
        send_message(user, &send(0, 64));
        end_qp(user, &qpc(RC, 1));
    };
    repeat(opened, act, 11);
}

#[test]
fn uc_qp_context_with_extreme_value_leaves_device_working() {
    let act = |user: &mut User| {
        user.connect(&qpc(UC, 1));
        send_message(user, &send(0, 64));
        end_qp(user, &qpc(UC, 1));
    };
    repeat(opened, act, 23);
}

#[test]
fn ud_qp_context_with_extreme_value_leaves_device_working() {
    let act = |user: &mut User| {
        user.connect(&qpc(UD, 1));
        let members = [&[0; 16][..], &GROUP, &(1 << 31 | QPN).to_be_bytes(), &[0; 28]].concat();
        user.ok(0x026, &members, 0);
        user.ok(0x027, &GROUP, 0);
        send_message(user, &datagram());
        end_qp(user, &qpc(UD, 1));
    };
    repeat(opened, act, 23);
}

#[test]
fn wqe_with_extreme_value_leaves_device_working() {
    let act = |user: &mut User| {
        send_message(user, &send(0, 64));
        let inline = SendWqe { data: WqeData::Inline(smallvec::SmallVec::from_elem(7, 40)), ..send(0, 0) };
        send_message(user, &inline);
        user.post(&request(Operation::Write { remote: remote(0x800), imm: None }, 0x10, 100));
        user.post(&request(Operation::Read { remote: remote(0x800) }, 0x10, 100));
        transfer(user);
        user.post(&request(Operation::FetchAdd { remote: remote(0x800), add: 1 }, 0x10, 8));
        user.post(&request(Operation::CompareSwap { remote: remote(0x800), compare: 0, swap: 1 }, 0x10, 8));
        transfer(user);
        assert_eq!(user.reap().len(), 4);
        end_qp(user, &qpc(RC, 1));
    };
    repeat(connected, act, 7);
}
