//! Tests that the device keeps working if one byte or word of an operation, a context or a WQE has an extreme value.
//! Each session creates valid objects and uses them. The queue pairs are connected to themselves.

use card::frontend::testing::Session;
use drivers::e810::queue_pair::{gather, inline};
use drivers::e810::{AdminCommand, PBLE_SEGMENT, RDMA_BUFFER};
use protocol::hca::e810::admin::Opcode;
use protocol::hca::e810::rdma::WQE_LEN;
use protocol::hca::e810::rdma::page_list::ListLevel;

use super::*;

const KEY: u32 = 0x501;

/// Creates a device with a region and an address handle for its own address.
fn prepared() -> Driver {
    let mut driver = powered_on_as(mac(1), Options::default());
    driver.bring_up(mac(1));
    driver.open_rdma(mac(1));
    for cqn in [SEND_CQ, RECV_CQ] {
        driver.create_cq(cqn, 16);
    }
    register(&mut driver, KEY, SOURCE, 0x1_0000, StagRights::all());
    driver.perform_well(&Operation::CreateAddressHandle(handle()));
    driver
}

/// Like [`prepared`], but with a queue pair in RTS.
fn connected() -> Driver {
    let mut driver = prepared();
    start(&mut driver, QPN, QpKind::Rc, &own_context());
    driver
}

fn handle() -> AddressHandleCommand {
    AddressHandleCommand { destination: ip(1), arp: ArpIndex::new(1), ..super::handle(1) }
}

fn own_context() -> QpContext {
    QpContext {
        destination_ip: ip(1),
        arp_index: ArpIndex::new(1),
        send_psn: Psn::new(0xff_fffe),
        recv_psn: Psn::new(0xff_fffe),
        receive_size: 3,
        send_size: 3,
        ..context(1)
    }
}

/// Runs the device, and lets a few timers expire.
fn transfer(driver: &mut Driver) {
    for _ in 0..8 {
        driver.bus.settle();
        let Some(deadline) = driver.bus.hca.next_deadline() else { return };
        driver.bus.advance(deadline);
    }
}

/// Sends a message, which must complete.
fn send(driver: &mut Driver) {
    driver.post_receive(QPN, &[fragment(SOURCE + 0x1000, KEY, 512)]);
    driver.post_receive(QPN, &[fragment(SOURCE + 0x1000, KEY, 512)]);
    driver.arm_cq(SEND_CQ, 1 << 14);
    driver.post_send(QPN, &gather(SEND | SIGNALED, 0, None, &[fragment(SOURCE, KEY, 64)]));
    transfer(driver);
    assert!(!driver.poll_cq(SEND_CQ).unwrap().cqe.error);
    assert!(!driver.poll_cq(RECV_CQ).unwrap().cqe.error);
}

/// Executes an operation given as words, each with its offset.
fn perform_words(driver: &mut Driver, words: &[(usize, u64)]) {
    let mut wqe = [0; WQE_LEN];
    for (offset, word) in words {
        wqe[*offset..*offset + 8].copy_from_slice(&word.to_le_bytes());
    }
    driver.perform_well(&Operation::parse(&wqe).unwrap());
}

fn header(opcode: u64, number: u64) -> (usize, u64) {
    (24, 1 << 63 | opcode << 32 | number)
}

/// Flushes, suspends and destroys the queue pair.
fn end_qp(driver: &mut Driver) {
    perform_words(driver, &[header(0x29, QPN.get().into())]);
    perform_words(driver, &[header(0x2a, QPN.get().into())]);
    let flush = 0b11 << 59;
    perform_words(
        driver,
        &[(8, 0x1234), (16, 0x0001_0001_0001_0001), (24, 1 << 63 | flush | 0x22 << 32 | 3)],
    );
    driver.bus.settle();
    perform_words(driver, &[header(0x02, QPN.get().into())]);
}

#[track_caller]
fn repeat(open: fn() -> Driver, act: fn(&mut Driver), step: usize) {
    let check = |driver: &mut Driver| {
        driver.bus.settle();
        driver.reset_function();
        driver.open_admin_queue();
        driver.succeed(&AdminCommand::direct(Opcode::GetVersion, [0; 16]));
    };
    let count = Session { open, guest: |driver| &mut driver.bus, act, check, step }.repeat();
    assert!(count > 100, "only {count} sessions");
}

#[test]
fn qp_context_with_extreme_value_leaves_device_working() {
    let act = |driver: &mut Driver| {
        start(driver, QPN, QpKind::Rc, &own_context());
        send(driver);
        end_qp(driver);
    };
    repeat(prepared, act, 43);
}

#[test]
fn ud_qp_context_with_extreme_value_leaves_device_working() {
    let act = |driver: &mut Driver| {
        start(driver, QPN, QpKind::Ud, &own_context());
        driver.post_receive(QPN, &[fragment(SOURCE + 0x1000, KEY, 512)]);
        let to = u64::from(QPN.get()) << 32 | 0x1111_1111;
        driver.post_send(QPN, &gather(SEND | SIGNALED | 1, to, None, &[fragment(SOURCE, KEY, 64)]));
        transfer(driver);
        assert!(driver.poll_cq(SEND_CQ).is_some());
        assert!(driver.poll_cq(RECV_CQ).is_some());
        end_qp(driver);
    };
    repeat(prepared, act, 89);
}

/// Executes operations on completion queues, regions, address handles and groups.
#[test]
fn operation_with_extreme_value_leaves_device_working() {
    let act = |driver: &mut Driver| {
        let pages: Vec<u8> = (0..16_u64).flat_map(|page| (SOURCE + page * 0x1000).to_le_bytes()).collect();
        driver.poke(PBLE_SEGMENT, &pages);
        for cqn in [8, 9].map(Cqn::new) {
            driver.create_cq(cqn, 16);
        }
        register(driver, 0x601, SOURCE, 0x1_0000, StagRights::all());
        // A region whose pages are in a page list of one level.
        let paged = RegisterMr {
            start: Va::new(0x7000_0000_0000),
            len: 0x1_0000,
            pd: PD,
            stag: 0x701,
            region: true,
            rights: StagRights::all(),
            virtual_address: true,
            level: ListLevel::from(1),
            ..RegisterMr::default()
        };
        driver.perform_well(&Operation::RegisterMr(paged));
        perform_words(driver, &[(8, 6 << 46 | 0x1_0000), (16, 8 << 8), (24, 1 << 63 | 1 << 42 | 0x09 << 32)]);
        driver.set_neighbour(3, mac(1));
        let second = AddressHandleCommand { index: AhIndex::new(2), arp: ArpIndex::new(3), ..handle() };
        driver.perform_well(&Operation::CreateAddressHandle(second));
        driver.perform_well(&Operation::ModifyAddressHandle(second));
        join(driver, IpAddr::from([239, 1, 2, 3]), MacAddr([1, 0, 0x5e, 1, 2, 3]), &[QPN]);
        let context = QpContext { send_cqn: Cqn::new(8), recv_cqn: Cqn::new(9), ..own_context() };
        start(driver, QPN, QpKind::Ud, &context);
        for (ah, key, at) in [(1, 0x601, SOURCE), (2, 0x701, 0x7000_0000_0800)] {
            driver.post_receive(QPN, &[fragment(at + 0x1000, key, 512)]);
            let to = u64::from(QPN.get()) << 32 | 0x1111_1111;
            driver.post_send(QPN, &gather(SEND | SIGNALED | ah, to, None, &[fragment(at, key, 64)]));
        }
        transfer(driver);
        for cqn in [8, 9, 8, 9].map(Cqn::new) {
            assert!(driver.poll_cq(cqn).is_some());
        }
        perform_words(driver, &[(16, 7 << 8), (8, 6 << 46), header(0x0d, 0)]);
        perform_words(driver, &[header(0x1e, 2)]);
    };
    repeat(prepared, act, 61);
}

/// Executes operations on context memory, event queues, statistics and scheduler nodes.
#[test]
fn control_operation_with_extreme_value_leaves_device_working() {
    let act = |driver: &mut Driver| {
        let buffer = (32, RDMA_BUFFER);
        perform_words(driver, &[buffer, header(0x12, 0x100)]);
        perform_words(driver, &[buffer, header(0x20, 0xb0)]);
        perform_words(driver, &[buffer, header(0x2e, 0)]);
        perform_words(driver, &[(16, 64), (32, 0x48_0000), header(0x16, 1)]);
        perform_words(driver, &[header(0x18, 1)]);
        perform_words(driver, &[(16, 0x10), (24, 1 << 63 | 0x2c << 32 | 2 << 16 | 2)]);
        // Replace a segment descriptor.
        perform_words(
            driver,
            &[(0, 0x8000_8020), (8, 0x60_0000 | 3 << 2 | 1), (16, RDMA_BUFFER), header(0x1f, 0)],
        );
        driver.commit_fpm();
        driver.create_cq(Cqn::new(8), 16);
        start(driver, QPN, QpKind::Rc, &own_context());
        send(driver);
        perform_words(driver, &[header(0x1b, 0)]);
    };
    repeat(prepared, act, 37);
}

#[test]
fn work_request_with_extreme_value_leaves_device_working() {
    let act = |driver: &mut Driver| {
        let list = [fragment(SOURCE, KEY, 64), fragment(SOURCE + 64, KEY, 8), fragment(SOURCE + 128, KEY, 8)];
        let (remote, key) = (SOURCE + 0x2000, u64::from(KEY));
        driver.post_receive(QPN, &list);
        driver.post_receive(QPN, &list[..1]);
        driver.post_send(QPN, &gather(SEND | SIGNALED, 0, Some(7), &list));
        driver.post_send(QPN, &inline(SOLICITED | SIGNALED, 0, None, &[7; 60]));
        transfer(driver);
        driver.post_send(QPN, &gather(WRITE | SIGNALED | key, remote, None, &list));
        driver.post_send(QPN, &gather(READ | SIGNALED | key, remote, None, &list[..1]));
        driver.post_send(QPN, &inline(WRITE | SIGNALED | key, remote, None, &[7; 20]));
        transfer(driver);
        (0..5).for_each(|_| assert!(!driver.poll_cq(SEND_CQ).unwrap().cqe.error));
        // Register, bind and invalidate a key.
        driver.post_send(
            QPN,
            &gather(0x09 << 32 | SIGNALED | key, SOURCE, None, &[fragment(SOURCE, 0x801, 0x1000)]),
        );
        transfer(driver);
        driver
            .post_send(QPN, &gather(0x08 << 32 | SIGNALED, SOURCE, None, &[fragment(SOURCE, 0x801, 0x1000)]));
        driver.post_send(QPN, &gather(0x0a << 32 | SIGNALED | key, 0, None, &[]));
        transfer(driver);
        while driver.poll_cq(SEND_CQ).is_some() {}
        end_qp(driver);
    };
    repeat(connected, act, 37);
}
