//! Start, stop, reset and health (mlx5 interface, sections 4 and 18).

use std::time::Duration;

use card::frontend::Frontend as _;
use card::frontend::testing::{pattern, wait};
use card::vfio::server::Device as _;
use drivers::mlx5::{HEALTH, HEALTH_COUNTER, QUEUE_LOW, TIMER};
use protocol::hca::mlx5::capability::{Query, SetHcaCap};
use protocol::hca::mlx5::device::{
    Issi, SetDriverVersion, SetIssi, Teardown, TeardownProfile, TeardownState,
};
use protocol::hca::mlx5::eqe::Eqe;
use protocol::hca::mlx5::input::Bytes;
use protocol::hca::mlx5::pages::{ManagePages, ManagedPages, QueryPages};
use protocol::hca::mlx5::qp::Service;
use protocol::hca::mlx5::resource::{EqNumber, PdNumber, QpNumber};
use protocol::hca::mlx5::wqe::{Opcode as WqeOpcode, Operation};

use super::user::{User, request, syndromes};
use super::*;

const ENABLE: Command<'_> = Command::EnableHca(Function { function: 0 });
const DISABLE: Command<'_> = Command::DisableHca(Function { function: 0 });

fn init() -> Command<'static> {
    Command::InitHca(InitHca::default())
}

fn teardown(profile: u16) -> Command<'static> {
    Command::TeardownHca(Teardown { profile })
}

#[test]
fn commands_require_enable_and_init() {
    let mut driver = powered_on();
    assert_eq!(driver.rejected(&Command::QueryIssi(BARE)), Check::NotEnabled);
    assert_eq!(driver.rejected(&init()), Check::NotEnabled);
    driver.ok(&ENABLE);
    assert_eq!(driver.rejected(&Command::AllocPd(BARE)), Check::NotInitialised);
    driver.ok(&Command::QueryAdapter(BARE));
    driver.ok(&init());
    assert_eq!(driver.rejected(&init()), Check::AlreadyInitialised);
    driver.alloc_pd();
    assert_eq!(driver.rejected(&teardown(1)), Check::TeardownProfile);
    driver.ok(&teardown(0));
    assert_eq!(driver.rejected(&Command::AllocPd(BARE)), Check::NotInitialised);
    driver.ok(&DISABLE);
    assert_eq!(driver.rejected(&DISABLE), Check::NotEnabled);
    let other = Command::EnableHca(Function { function: 1 });
    assert_eq!(driver.rejected(&other), Check::Function);
}

/// Section 20, M-21: ENABLE_HCA without a preceding teardown drops all objects.
#[test]
fn enable_drops_all_objects() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::COMMAND, 0x40_0000);
    driver.ok(&ENABLE);
    driver.ok(&init());
    assert_eq!(driver.rejected(&Command::QueryEq(EqNumber { eqn })), Check::Eq);
    assert_eq!(driver.alloc_uar(), uar, "numbering must start again from the first UAR");
    assert_eq!(driver.hca.frontend_and_memory().0.counters().starts, 2);
}

/// At power-off, the driver leaves its objects in place and arms the EQ once more after the teardown event. Strict mode
/// must not report either.
#[test]
fn nic_state_request_drops_objects_after_fast_teardown() {
    let mut driver = initialised();
    driver.hca.set_strict(true);
    let uar = driver.alloc_uar();
    driver.create_eq(uar, 0, EventMask::COMMAND, 0x40_0000);
    let state = TeardownState::parse(&output(&driver.ok(&teardown(TeardownProfile::Fast.code()))));
    assert!(!state.failed);
    let (event, _) = Eqe::parse(&output(&driver.peek(0x40_0000, 64))).unwrap();
    assert_eq!(event, Eqe::Command(1));
    let queue = driver.read(QUEUE_LOW);
    driver.write(QUEUE_LOW, queue & 0xffff_f000 | 0x100);
    assert_eq!(driver.read(QUEUE_LOW) & 0x700, 0x100);
    assert!(driver.hca.frontend_and_memory().0.resources_mut().is_none());
    driver.ring(uar, 0x40, &[0; 4]);
    let violated: Vec<_> = driver.hca.monitor().violations().map(|(rule, _)| rule).collect();
    assert!(
        !violated.contains(&"teardown_in_use") && !violated.contains(&"doorbell_nothing"),
        "{violated:?}"
    );
}

#[test]
fn set_issi_accepts_only_supported_values() {
    let mut driver = powered_on();
    driver.ok(&ENABLE);
    let query = |driver: &mut Driver| Issi::parse(&output(&driver.ok(&Command::QueryIssi(BARE))));
    assert_eq!(query(&mut driver), Issi { current: 0, supported: 2 });
    driver.ok(&Command::SetIssi(SetIssi { issi: 1 }));
    assert_eq!(query(&mut driver).current, 1);
    for issi in [2, 31, 32, 0xffff] {
        assert_eq!(driver.rejected(&Command::SetIssi(SetIssi { issi })), Check::Issi);
    }
}

#[test]
fn device_does_not_request_pages() {
    let mut driver = powered_on();
    driver.ok(&ENABLE);
    for purpose in 1..=3 {
        let output = driver.ok(&Command::QueryPages(QueryPages { purpose }));
        assert_eq!(output, [0; 16]);
    }
    let unknown = Command::QueryPages(QueryPages { purpose: 0 });
    assert_eq!(driver.rejected(&unknown), Check::PageUse);
}

/// Section 20, M-14: the driver gets back exactly the pages that it gave to the device.
#[test]
fn manage_pages_returns_pages_in_batches() {
    let mut driver = powered_on();
    driver.ok(&ENABLE);
    let list = pages(0x10_0000, 700);
    let manage = |operation, count| ManagePages { operation, function: 0, count };
    driver.ok(&Command::ManagePages(manage(1, 700), Pages::parse(&list)));
    let short = Command::ManagePages(manage(1, 701), Pages::parse(&list));
    assert_eq!(driver.rejected(&short), Check::PageList);
    driver.ok(&Command::ManagePages(manage(0, 1), Pages::default()));
    let take = Command::ManagePages(manage(2, 768), Pages::default()).emit(0);
    let mut taken = Vec::new();
    for expected in [100, 600, 0] {
        // The first output has room for only 100 pages.
        let len = if expected == 100 { 16 + 100 * 8 } else { 16 + 768 * 8 };
        let output = driver.execute(&take, len);
        let count = ManagedPages::parse(&self::output(&output)).count;
        assert_eq!(count, expected);
        taken.extend(output[16..].as_chunks::<8>().0[..count as usize].iter().copied());
    }
    taken.sort_unstable();
    assert_eq!(taken.as_flattened(), list);
    let unknown = Command::ManagePages(manage(3, 0), Pages::default());
    assert_eq!(driver.rejected(&unknown), Check::PageOperation);
}

/// Section 20, M-13: QUERY_HCA_CAP returns the current capabilities exactly as the driver set them.
#[test]
fn query_hca_cap_returns_set_capabilities() {
    let mut driver = powered_on();
    driver.ok(&ENABLE);
    let query = |current| Command::QueryHcaCap(Query { cap_type: 0, current }).emit(0);
    let mut area = driver.execute(&query(false), 4112).split_off(16);
    area[0x33] = 0;
    area[0xfff] = 0x77;
    driver.ok(&Command::SetHcaCap(SetHcaCap { cap_type: 0 }, Bytes::parse(&area)));
    assert_eq!(driver.execute(&query(true), 4112)[16..], area);
    let ethernet = Command::QueryHcaCap(Query { cap_type: 1, current: true });
    assert_eq!(driver.rejected(&ethernet), Check::CapType);
    let paging = Command::QueryHcaCap(Query { cap_type: 2, current: true });
    assert_eq!(driver.execute(&paging.emit(0), 4112), [0; 4112]);
    let short = Command::SetHcaCap(SetHcaCap { cap_type: 0 }, Bytes::parse(&area[..100]));
    assert_eq!(driver.rejected(&short), Check::CapArea);
}

#[test]
fn driver_version_is_accepted() {
    let mut driver = initialised();
    let mut text = [0; 64];
    text[..5].copy_from_slice(b"Linux");
    driver.ok(&Command::SetDriverVersion(SetDriverVersion { text }));
    driver.ok(&Command::Nop(BARE));
}

/// Section 20, M-10: the health counter changes with every read.
#[test]
fn health_registers_report_working_device() {
    let mut driver = powered_on();
    let first = driver.read(HEALTH_COUNTER);
    assert_ne!(driver.read(HEALTH_COUNTER), first);
    assert_eq!([0x30, 0x34, 0x38, 0x3c].map(|word| driver.read(HEALTH + word)), [0x0023_0010, 0x20d, 0, 0]);
    assert_eq!(driver.read(QUEUE_LOW), 0x10_0056);
    driver.hca.set_now(engine::Instant::ZERO + Duration::from_secs(1));
    assert_eq!([TIMER, TIMER + 4].map(|word| driver.read(word)), [0, 156_250_000]);
}

/// Section 18.2: the device stops reporting the failure when the driver writes the command queue address.
#[test]
fn injected_failure_is_reported_until_driver_recovers() {
    let mut driver = initialised();
    driver.hca.fail();
    assert_eq!(driver.read(QUEUE_LOW) >> 8 & 7, 1);
    assert_eq!([0x38, 0x3c].map(|word| driver.read(HEALTH + word)), [1 << 31, 1 << 16]);
    driver.start();
    assert_eq!(driver.read(QUEUE_LOW), 0x10_0056);
    assert_eq!([0x38, 0x3c].map(|word| driver.read(HEALTH + word)), [0; 2]);
    assert_eq!(driver.rejected(&Command::AllocPd(BARE)), Check::NotEnabled);
    driver.ok(&ENABLE);
    driver.ok(&init());
}

/// Section 18.2: once the driver has read the failure, it frees queues and buffers without destroying them.
#[test]
fn failed_device_does_not_access_queues() {
    let (mut a, mut b) = User::pair(Service::Rc);
    b.post_recv(0x20, 64);
    b.hca.fail();
    assert_eq!(b.read(QUEUE_LOW) >> 8 & 7, 1);
    let events = b.events();
    a.put(0, &pattern(64, 1));
    a.post(&request(WqeOpcode::Write, Operation::Write(a.remote(0x100)), a.data(0, 64)));
    a.post(&a.send(0, 64));
    b.post(&b.send(0, 64));
    b.hca.set_link(false);
    b.hca.set_link(true);
    wait(&mut *a, &mut *b);
    assert_eq!(b.get(0, 0x200), [0; 0x200]);
    assert!(b.reap().is_empty());
    assert_eq!(b.events(), events);
    assert_eq!(syndromes(&a.reap()), [0x15, 5]);
    // Commands that the driver has already issued still complete.
    let qpn = b.qpn;
    b.ok(&Command::ToRstQp(QpNumber { qpn }));
    b.ok(&Command::DestroyQp(QpNumber { qpn }));
}

#[test]
fn reset_via_nic_interface_state_disables_function() {
    let mut driver = initialised();
    driver.write(QUEUE_LOW, 0x700);
    assert_eq!(driver.read(QUEUE_LOW) >> 8 & 7, 7);
    assert_eq!(driver.rejected(&Command::AllocPd(BARE)), Check::NotEnabled);
    driver.start();
    assert_eq!(driver.read(QUEUE_LOW) >> 8 & 7, 0);
}

#[test]
fn device_reset_disables_hca_and_clears_registers() {
    let mut driver = initialised();
    driver.alloc_pd();
    driver.hca.reset();
    driver.enable();
    assert_eq!(driver.read(QUEUE_LOW), 0x56);
    driver.start();
    assert_eq!(driver.rejected(&Command::AllocPd(BARE)), Check::NotEnabled);
}

#[test]
fn driver_loads_and_unloads_fifty_times() {
    let mut driver = powered_on();
    for _ in 0..50 {
        driver.ok(&ENABLE);
        driver.ok(&init());
        let pd = driver.alloc_pd();
        driver.ok(&Command::DeallocPd(PdNumber { pd }));
        driver.ok(&teardown(0));
        driver.ok(&DISABLE);
    }
}
