//! Doorbells, events and interrupts (mlx5 interface, sections 3.2, 7 and 8).

use card::vfio::Bar;
use card::vfio::server::Device as _;
use protocol::hca::mlx5::capability::{Query, SetHcaCap};
use protocol::hca::mlx5::cq::{CqChange, CqFields, ModifyCq};
use protocol::hca::mlx5::doorbell::{ArmCq, EqDoorbell};
use protocol::hca::mlx5::eqe::Eqe;
use protocol::hca::mlx5::input::Bytes;

use super::user::User;
use super::*;

const RING: u64 = 0x40_0000;

fn arm_eq(driver: &mut Driver, uar: UarIndex, eqn: Eqn, consumer: u32) {
    driver.ring(uar, driver::ARM_EQ, &EqDoorbell { eqn, consumer }.emit());
}

fn event(driver: &mut Driver, ring: u64, entry: u64) -> Option<(Eqe, bool)> {
    let bytes = driver.peek(ring + entry * 64, 64);
    (bytes != [0; 64]).then(|| Eqe::parse(&output(&bytes)).unwrap())
}

fn ignored(driver: &Driver) -> Vec<(&'static str, u64)> {
    driver.hca.monitor().ignored_counts().collect()
}

/// Section 20, M-7: the command that creates the command EQ does not raise an event. Later commands do, and an
/// armed EQ raises an interrupt.
#[test]
fn command_completion_raises_event_and_interrupt() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::COMMAND, RING);
    assert_eq!(event(&mut driver, RING, 0), None, "the driver polls for this command");
    arm_eq(&mut driver, uar, eqn, 0);
    assert_eq!(driver.interrupts(0), 0);
    driver.post(30, &Command::Nop(BARE).emit(0), 16);
    driver.submit(1 << 30);
    assert_eq!(event(&mut driver, RING, 0), Some((Eqe::Command(1 << 30), false)));
    assert_eq!(driver.interrupts(0), 1);
    driver.ok(&Command::Nop(BARE));
    assert_eq!(driver.interrupts(0), 0, "the EQ has not been armed again");
    arm_eq(&mut driver, uar, eqn, 1);
    assert_eq!(driver.interrupts(0), 1, "arming with an unread entry raises an interrupt");
    arm_eq(&mut driver, uar, eqn, 2);
    driver.ok(&Command::DestroyEq(EqNumber { eqn }));
    assert_eq!(driver.interrupts(0), 0);
    assert_eq!(event(&mut driver, RING, 2), None);
}

/// Section 20, M-21: ENABLE_HCA resets the device.
#[test]
fn enable_hca_drops_half_written_cq_doorbell() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let arm = ArmCq { sequence: 0, solicited_only: false, consumer: 0, cqn: Cqn::new(0x99) }.emit();
    driver.ring(uar, driver::ARM_CQ, &arm[..4]);
    driver.ok(&Command::EnableHca(Function { function: 0 }));
    driver.ok(&Command::InitHca(InitHca::default()));
    assert_eq!(driver.alloc_uar(), uar);
    driver.ring(uar, driver::ARM_CQ + 4, &arm[4..]);
    assert_eq!(ignored(&driver), [], "the second half alone is not a doorbell for an unknown CQ");
}

/// On a processor with 16 KiB pages, the driver sets `log_uar_page_sz` to 2. The registers of UAR page n are then at
/// offset 16 KiB times n.
#[test]
fn doorbell_offsets_depend_on_uar_page_size() {
    let mut driver = powered_on();
    driver.ok(&Command::EnableHca(Function { function: 0 }));
    let query = Command::QueryHcaCap(Query { cap_type: 0, current: false }).emit(0);
    let mut area = driver.execute(&query, 4112).split_off(16);
    let general = SetHcaCap { cap_type: 0 };
    area[0x93] = 5;
    let too_large = Command::SetHcaCap(general, Bytes::parse(&area));
    assert_eq!(driver.rejected(&too_large), Check::CapUar);
    area[0x93] = 2;
    driver.ok(&Command::SetHcaCap(general, Bytes::parse(&area)));
    driver.ok(&Command::InitHca(InitHca::default()));
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::COMMAND, RING);
    let arm = EqDoorbell { eqn, consumer: 0 }.emit();
    driver.store(Bar::Bar0, (u64::from(uar.get()) << 14) + driver::ARM_EQ, &arm);
    driver.ok(&Command::Nop(BARE));
    assert_eq!(driver.interrupts(0), 1);
    assert!(ignored(&driver).is_empty());
}

#[test]
fn rejected_command_raises_command_event() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    driver.create_eq(uar, 0, EventMask::COMMAND, RING);
    assert_eq!(driver.rejected(&Command::DestroyEq(EqNumber { eqn: Eqn::new(9) })), Check::Eq);
    assert_eq!(event(&mut driver, RING, 0), Some((Eqe::Command(1), false)));
}

#[test]
fn owner_bit_inverts_when_event_queue_wraps() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::COMMAND, RING);
    for number in 0..300 {
        driver.ok(&Command::Nop(BARE));
        let (event, owner) = event(&mut driver, RING, number % 256).unwrap();
        assert_eq!((event, owner), (Eqe::Command(1), number >= 256), "event {number}");
        let consumer = u32::try_from(number).unwrap() + 1;
        driver.ring(uar, driver::UPDATE_EQ, &EqDoorbell { eqn, consumer }.emit());
    }
    assert_eq!(driver.interrupts(0), 0, "an EQ that is not armed raises no interrupt");
}

/// Section 8.2: a full EQ holds its events until the driver has read entries.
#[test]
fn full_eq_delivers_held_events_after_reads() {
    let mut user = User::new(1);
    let (eq_uar, uar) = (user.eq_uar, user.uar);
    let ring = 0x60_0000;
    let create = CreateEq { context: EqContext { log_entries: 1, ..eq_context(eq_uar, 2) }, events: [0; 4] };
    let list = pages(ring, 1);
    let created = user.ok(&Command::CreateEq(create, Pages::parse(&list)));
    let eqn = EqNumber::parse(&output(&created)).eqn;
    let cqns = [0x61_0000, 0x62_0000].map(|place| user.create_cq(uar, eqn, place));
    // Both CQs have an unread entry when they are armed, but the EQ has room for one event.
    for cqn in cqns {
        let arm = ArmCq { sequence: 0, solicited_only: false, consumer: 0xff_ffff, cqn };
        user.ring(uar, driver::ARM_CQ, &arm.emit());
    }
    assert_eq!(event(&mut user, ring, 0), Some((Eqe::Completion(cqns[0]), false)));
    assert_eq!(event(&mut user, ring, 1), None);
    arm_eq(&mut user, eq_uar, eqn, 1);
    assert_eq!(event(&mut user, ring, 1), Some((Eqe::Completion(cqns[1]), false)));
    assert_eq!(user.interrupts(2), 1);
    arm_eq(&mut user, eq_uar, eqn, 2);
    assert_eq!((user.interrupts(2), ignored(&user)), (0, vec![]));
}

/// Section 20, M-32: an interrupt stays pending until its eventfd is configured.
#[test]
fn interrupt_stays_pending_until_eventfd_is_set() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 1, EventMask::COMMAND, RING);
    driver.hca.interrupts().set_eventfd(1, None);
    arm_eq(&mut driver, uar, eqn, 0);
    driver.ok(&Command::Nop(BARE));
    assert_eq!(driver.interrupts(1), 0);
    driver.wire();
    assert_eq!(driver.interrupts(1), 1);
}

/// Produces a CQE without a work request, by resizing the CQ.
fn complete(driver: &mut Driver, cqn: Cqn) {
    let list = pages(RING + 0x8000, 1);
    let context = CqContext { log_entries: 6, ..CqContext::default() };
    let modify = ModifyCq {
        change: CqChange::Resize.code(),
        cqn,
        fields: CqFields::RESIZE,
        context,
        ..ModifyCq::default()
    };
    driver.ok(&Command::ModifyCq(modify, Pages::parse(&list)));
}

#[test]
fn arming_cq_with_unread_cqe_raises_event() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 2, EventMask::empty(), RING);
    let cqn = driver.create_cq(uar, eqn, RING + 0x7000);
    arm_eq(&mut driver, uar, eqn, 0);
    let arm = |consumer, solicited_only| ArmCq { sequence: 0, solicited_only, consumer, cqn }.emit();
    driver.ring(uar, driver::ARM_CQ, &arm(0, true));
    assert_eq!(event(&mut driver, RING, 0), None);
    complete(&mut driver, cqn);
    driver.ring(uar, driver::ARM_CQ, &arm(0, true));
    assert_eq!(event(&mut driver, RING, 0), None, "the entry is not solicited");
    // Use two four-byte stores, as a 32-bit program does.
    let halves = arm(0, false);
    driver.ring(uar, driver::ARM_CQ, &halves[..4]);
    driver.ring(uar, driver::ARM_CQ + 4, &halves[4..]);
    assert_eq!(event(&mut driver, RING, 0), Some((Eqe::Completion(cqn), false)));
    assert_eq!(driver.interrupts(2), 1);
}

/// Section 20, M-20: a doorbell is ignored if it is not in the object's UAR page.
#[test]
fn doorbell_in_wrong_uar_page_is_ignored() {
    let mut driver = initialised();
    let (uar, other) = (driver.alloc_uar(), driver.alloc_uar());
    let eqn = driver.create_eq(uar, 0, EventMask::COMMAND, RING);
    let cqn = driver.create_cq(uar, eqn, RING + 0x7000);
    arm_eq(&mut driver, other, eqn, 0);
    driver.ring(
        other,
        driver::ARM_CQ,
        &ArmCq { sequence: 0, solicited_only: false, consumer: 0, cqn }.emit(),
    );
    assert_eq!(ignored(&driver), [("foreign_page", 2)]);
    driver.ok(&Command::Nop(BARE));
    assert_eq!(driver.interrupts(0), 0, "the EQ is not armed");
}

#[test]
fn doorbells_for_unknown_objects_are_ignored() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    arm_eq(&mut driver, uar, Eqn::new(1), 0);
    driver.ring(uar, driver::ARM_CQ, &[0; 8]);
    driver.ring(uar, driver::SEND, &0x0000_0325_0000_8209_u64.to_be_bytes());
    driver.ring(UarIndex::new(17), driver::SEND, &[0; 8]);
    driver.ring(uar, 0, &[0; 8]);
    driver.ring(uar, driver::ARM_EQ, &[0; 2]);
    let expected =
        [("no_cq", 1), ("no_eq", 1), ("no_qp", 1), ("no_register", 1), ("no_uar", 1), ("width", 1)];
    assert_eq!(ignored(&driver), expected);
    assert_eq!(driver.load::<8>(card::vfio::Bar::Bar0, 0x1_0020), [0; 8], "UAR pages read as zeros");
    let mut fresh = powered_on();
    fresh.ring(UarIndex::new(16), driver::SEND, &[0; 8]);
    assert_eq!(ignored(&fresh), [("not_initialised", 1)]);
}
