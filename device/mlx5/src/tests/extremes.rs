//! Tests that the device keeps working if one byte or word of a command, a WQE or a doorbell record has an extreme
//! value. Each session creates valid objects and uses them. The QPs are connected to themselves.

use card::frontend::testing::Session;
use protocol::hca::mlx5::mkey::{AccessMode, MkeyContext};
use protocol::hca::mlx5::path::Path;
use protocol::hca::mlx5::qp::{ModifyQp, QpContext, QueryQp, Service};
use protocol::hca::mlx5::resource::QpNumber;
use protocol::hca::mlx5::srq::WorkQueueKind;
use protocol::hca::mlx5::transition::QpAttributes;
use protocol::hca::mlx5::umr::UmrControl;
use protocol::hca::mlx5::wqe::{AtomicSegment, Opcode as WqeOpcode, Operation, Translation};

use super::hostile::ethernet::{self, SQ, SQN, populated_ethernet, usual};
use super::umr::{free_key, mtts, registered, registration, umr};
use super::user::{User, request};
use super::user_contexts::world::{World, targets};
use super::*;
use crate::steering::tests::frames::{C_TAG, OWN, arp, tcp4};

fn connected() -> User {
    let mut user = User::new(1);
    let context = user.context(Service::Rc);
    user.connect(&context, 1);
    user
}

/// Lets the device handle its own packets, and lets a few timers expire.
fn transfer(driver: &mut Driver) {
    for _ in 0..8 {
        driver.settle();
        let Some(deadline) = driver.hca.next_deadline() else { return };
        driver.advance(deadline);
    }
}

/// Sends a message, which must complete.
fn send_message(user: &mut User) {
    user.post_recv(0x100, 64);
    user.post_recv(0x200, 64);
    user.arm(false);
    let wqe = user.send(0, 64);
    user.post(&wqe);
    transfer(user);
    assert_eq!(user.reap().len(), 2);
    user.receive_events();
}

/// Modifies the QP, and moves it to ERR and RESET.
fn end_qp(user: &mut User) {
    let qpn = user.qpn;
    let context = QpContext { primary: Path { ack_timeout: 14, ..Path::default() }, ..QpContext::default() };
    user.ok(&Command::Rts2RtsQp(ModifyQp { qpn, optional: QpAttributes::RIGHTS, context }));
    user.ok(&Command::QueryQp(QueryQp { qpn, ..QueryQp::default() }));
    user.ok(&Command::ToErrQp(QpNumber { qpn }));
    user.settle();
    user.reset();
    user.ok(&Command::DestroyQp(QpNumber { qpn }));
}

fn check(driver: &mut Driver) {
    driver.interface.user = 0;
    // The extreme value may have changed the address of the command queue. Write it again.
    driver.start();
    driver.ok(&Command::EnableHca(Function { function: 0 }));
    driver.ok(&Command::InitHca(InitHca::default()));
    driver.ok(&Command::Nop(BARE));
}

#[track_caller]
fn repeat(open: fn() -> User, act: fn(&mut User), step: usize) {
    let check = |user: &mut User| check(user);
    let count = Session { open, guest: |user| &mut user.bus, act, check, step }.repeat();
    assert!(count > 100, "only {count} sessions");
}

#[track_caller]
fn repeat_driver(open: fn() -> Driver, act: fn(&mut Driver), step: usize) {
    let count = Session { open, guest: |driver| &mut driver.bus, act, check, step }.repeat();
    assert!(count > 100, "only {count} sessions");
}

fn with_eq() -> Driver {
    let mut driver = initialised_with_ethernet();
    let uar = driver.alloc_uar();
    driver.create_eq(uar, 0, EventMask::empty(), 0x40_0000);
    driver
}

/// Executes commands that create an object of each kind.
#[test]
fn create_command_with_extreme_value_leaves_device_working() {
    let act = |driver: &mut Driver| {
        World::new(driver, Eqn::new(1));
    };
    repeat_driver(with_eq, act, 97);
}

/// Executes commands that change, query or destroy an object of each kind.
#[test]
fn command_with_extreme_value_leaves_device_working() {
    let open = || {
        let mut driver = with_eq();
        let world = World::new(&mut driver, Eqn::new(1));
        (driver, world)
    };
    let act = |(driver, world): &mut (Driver, World)| {
        for mut input in targets(world) {
            input[2..4].copy_from_slice(&world.user.get().to_be_bytes());
            let output_len = Command::parse(&input).unwrap().output_len();
            driver.execute(&input, output_len);
        }
    };
    let check = |(driver, _): &mut (Driver, World)| check(driver);
    let count = Session { open, guest: |(driver, _)| &mut driver.bus, act, check, step: 199 }.repeat();
    assert!(count > 100, "only {count} sessions");
}

#[test]
fn netdev_command_with_extreme_value_leaves_device_working() {
    let act = |driver: &mut Driver| {
        let commands = usual();
        let (create, rest) = commands.split_at(ethernet::CREATING);
        for command in create {
            assert_eq!(driver.execute(command, 16)[..8], [0; 8]);
        }
        exchange_frames(driver);
        rest.iter().for_each(|command| {
            driver.execute(command, 16);
        });
    };
    repeat_driver(|| populated_ethernet(&[]), act, 61);
}

/// Sends a frame and receives two.
fn exchange_frames(driver: &mut Driver) {
    let mut wqe = [0; 64];
    wqe[..16].copy_from_slice(&[0, 0, 0, 0x0a, 0, 0x40, 0, 3, 0, 0, 0, 8, 0, 0, 0, 0]);
    wqe[28..30].copy_from_slice(&[0, 18]);
    wqe[30..48].copy_from_slice(&tcp4(OWN, &[C_TAG])[..18]);
    driver.poke(SQ, &wqe);
    driver.poke(ethernet::RQ, &[0, 0, 5, 0xf2, 0, 0, 8, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    driver.poke(ethernet::RQ + 16, &[0, 0, 5, 0xf2, 0, 0, 8, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    driver.poke(RECORD.get(), &[0, 0, 0, 2, 0, 0, 0, 1]);
    driver.ring(UarIndex::new(16), driver::SEND, &(u64::from(SQN.get()) << 8).to_be_bytes());
    assert_eq!(driver.settle().len(), 1);
    driver.hca.handle_frame(&arp(OWN));
    driver.hca.handle_frame(&tcp4(OWN, &[C_TAG]));
    transfer(driver);
}

#[test]
fn netdev_wqe_with_extreme_value_leaves_device_working() {
    repeat_driver(|| populated_ethernet(&usual()), exchange_frames, 1);
}

#[test]
fn qp_command_with_extreme_value_leaves_device_working() {
    let act = |user: &mut User| {
        let context = user.context(Service::Rc);
        user.connect(&context, 1);
        send_message(user);
        end_qp(user);
    };
    repeat(|| User::new(1), act, 97);
}

#[test]
fn srq_command_with_extreme_value_leaves_device_working() {
    let act = |user: &mut User| {
        let uar = user.uar;
        let eqn = user.create_eq(uar, 1, EventMask::empty(), 0x48_0000);
        user.cqn = user.create_cq(uar, eqn, super::user::CQ);
        let srqn = user.create_rmp(WorkQueueKind::Linked);
        let context = QpContext { receive_kind: 1, srqn, ..user.context(Service::Rc) };
        user.connect(&context, 1);
        user.post_shared(0x100, 64);
        user.post_shared(0x200, 64);
        let wqe = user.send(0, 64);
        user.post(&wqe);
        transfer(user);
        assert_eq!(user.reap().len(), 2);
        end_qp(user);
    };
    repeat(|| User::new(1), act, 61);
}

#[test]
fn wqe_with_extreme_value_leaves_device_working() {
    let act = |user: &mut User| {
        send_message(user);
        let (data, remote) = (user.data(0, 8), user.remote(0x800));
        user.post(&request(WqeOpcode::Write, Operation::Write(remote), data));
        user.post(&request(WqeOpcode::Read, Operation::Read(remote), data));
        let atomic = AtomicSegment { swap_or_add: 1, compare: 0 };
        user.post(&request(WqeOpcode::CompareSwap, Operation::Atomic(remote, atomic), data));
        transfer(user);
        let (key, context) = free_key(user, AccessMode::Pages);
        let control = UmrControl {
            inline: true,
            check_free: true,
            units: 4,
            mask: registration(),
            ..UmrControl::default()
        };
        let list = mtts();
        let mkey = MkeyContext { key: 9, ..registered(context) };
        user.post(&umr(key & !0xff | 9, control, mkey, Translation::Inline(&list)));
        transfer(user);
        user.reap();
        end_qp(user);
    };
    repeat(connected, act, 31);
}
