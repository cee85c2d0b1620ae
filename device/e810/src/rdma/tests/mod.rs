//! Tests of the RDMA control queue and its objects (E810 interface, sections 9 to 12 and 14).

mod context_memory;
mod objects;

use card::vfio::server::Device as _;
use drivers::Bus as _;
use protocol::hca::e810::rdma::Operation;
use protocol::hca::e810::rdma::control::{ErrorCodes, Status};
use protocol::hca::e810::rdma::error::CqpErrorCode;
use protocol::hca::e810::rdma::features::QueryFeatures;
use protocol::hca::e810::rdma::operation::Acknowledged;
use protocol::hca::e810::regs::Register;
use protocol::ids::Iova;

use crate::Options;
use crate::testing::{
    AdminCommand, CCQ_RING, CCQ_SHADOW, CEQ_RING, CEQ_VECTOR, CQP_ENTRIES, CQP_RING, Driver, RDMA_BUFFER,
    powered_on,
};

const NOP: Operation = Operation::Nop(Acknowledged { operand: 0 });

/// Arm word that requests an event for the next completion.
const ARM_NEXT: u64 = 1 << 14;

/// Creates a device with RDMA enabled and both admin rings set up.
fn started() -> Driver {
    powered_on_with(true)
}

fn powered_on_with(rdma: bool) -> Driver {
    let mut driver = powered_on(Options { rdma, ..Options::default() });
    driver.open_admin_queue();
    driver
}

/// Creates a device with the control queue, context memory, and the driver's CCQ, CEQ and AEQ.
fn brought_up() -> Driver {
    let mut driver = started();
    driver.bring_up_rdma();
    driver
}

/// Returns a rejected operation's error codes.
#[track_caller]
fn refused(driver: &mut Driver, operation: &Operation) -> Option<ErrorCodes> {
    let performed = driver.perform(operation);
    let completion = performed.completion.expect("the operation completes in CQ 0");
    assert_eq!(completion.error, performed.error.is_some());
    assert_eq!(completion.codes, performed.error.unwrap_or_default());
    performed.error
}

fn codes(refusal: CqpErrorCode) -> Option<ErrorCodes> {
    Some(refusal.codes())
}

#[test]
fn completion_without_ccq_only_advances_cqp_tail() {
    let mut driver = started();
    driver.start_cqp();
    assert_eq!(driver.perform(&NOP).completion, None);
    assert_eq!(driver.cqp_tail().next, 1);
}

#[test]
fn ccq_creation_completes_in_new_ccq() {
    let mut driver = started();
    driver.start_cqp();
    driver.commit_fpm();
    driver.create_ccq();
    assert_eq!(driver.bus.peek(CCQ_RING + 24, 8), 0x8000_0001_0000_0000_u64.to_le_bytes());
}

#[test]
fn ring_polarity_alternates_per_pass() {
    let mut driver = brought_up();
    for _ in 0..u32::from(CQP_ENTRIES) * 2 + 100 {
        driver.perform_well(&NOP);
    }
}

#[test]
fn one_doorbell_executes_many_operations() {
    let mut driver = started();
    driver.start_cqp();
    let wqes: Vec<u8> = (0..5).flat_map(|_| NOP.emit(true)).collect();
    driver.bus.poke(CQP_RING, &wqes);
    driver.write(Register::PfpeCqpdb, 5);
    assert_eq!(driver.cqp_tail().next, 5);
    driver.write(Register::PfpeCqpdb, 5);
    assert_eq!(driver.cqp_tail().next, 5);
}

#[test]
fn unknown_operation_fails_with_major_code() {
    let mut driver = brought_up();
    let mut wqe = NOP.emit(true);
    wqe[28] = 0x3f;
    let performed = driver.perform_raw(&wqe);
    let codes = performed.error.unwrap();
    assert_eq!((codes, codes.major), (CqpErrorCode::UnknownOperation.codes(), 0xffff));
    let completion = performed.completion.unwrap();
    assert!(completion.error && completion.codes == codes);
    driver.perform_well(&NOP);
}

#[test]
fn operation_with_unmapped_buffer_fails() {
    let mut driver = started();
    driver.start_cqp();
    let beyond = QueryFeatures { len: 272, buffer: Iova::new(1 << 40) };
    assert_eq!(driver.perform(&Operation::QueryFeatures(beyond)).error, codes(CqpErrorCode::Unreachable));
}

#[test]
fn rejects_invalid_host_context() {
    let mut driver = started();
    for (at, byte, what) in [(1, 0x0b, "4096 entries"), (0, 0x08, "iWARP")] {
        driver.start_cqp();
        driver.end_cqp();
        let mut context = driver.bus.peek(0x40_0000, 64);
        context[at] = byte;
        driver.bus.poke(0x50_0000, &context);
        driver.write(Register::PfpeCcqphigh, 0);
        driver.write(Register::PfpeCcqplow, 0x50_0000);
        assert_eq!(driver.cqp_status(), Status { done: false, error: true }, "{what}");
    }
    driver.write(Register::PfpeCcqphigh, 1 << 8);
    driver.write(Register::PfpeCcqplow, 0);
    assert_eq!(
        driver.cqp_status(),
        Status { done: false, error: true },
        "the host context is not in mapped memory"
    );
    driver.start_cqp();
}

#[test]
fn query_features_returns_supported_versions() {
    let mut driver = started();
    driver.start_cqp();
    for len in [272, 216] {
        let query = QueryFeatures { len, buffer: Iova::new(RDMA_BUFFER) };
        driver.perform_well(&Operation::QueryFeatures(query));
        let words = [0x0000_0002_0001_0046_u64, 0x0001_0000_0002_0000];
        assert_eq!(driver.bus.peek(RDMA_BUFFER, 16), words.map(u64::to_le_bytes).as_flattened());
    }
}

#[test]
fn armed_cq_raises_one_event() {
    let mut driver = brought_up();
    driver.perform_well(&NOP);
    driver.bus.settle();
    assert!(!driver.completion_event(0).valid, "the CQ is not armed");
    driver.arm(0, CCQ_SHADOW, ARM_NEXT);
    driver.bus.settle();
    assert!(!driver.completion_event(0).valid, "no completion is unread");
    driver.perform_well(&NOP);
    driver.bus.settle();
    assert!(driver.completion_event(0).valid);
    assert_eq!(driver.interrupts(CEQ_VECTOR.into()), 1);
    driver.perform_well(&NOP);
    driver.bus.settle();
    assert!(!driver.completion_event(1).valid, "arming is one-shot");
}

#[test]
fn arming_cq_with_unread_entry_raises_event() {
    let mut driver = brought_up();
    driver.perform_well(&NOP);
    // Reset the consumer index, as if software had not read the entry yet.
    driver.bus.poke(CCQ_SHADOW, &0_u64.to_le_bytes());
    driver.arm(0, CCQ_SHADOW, ARM_NEXT);
    driver.bus.settle();
    assert!(driver.completion_event(0).valid);
    assert_eq!(driver.interrupts(CEQ_VECTOR.into()), 1);
}

type Reset = fn(&mut Driver);

/// The resets and commands after which no RDMA state may remain.
const RESETS: &[(&str, Reset)] = &[
    ("PFR", |driver| driver.reset_function()),
    ("global reset", |driver| driver.write(Register::GlgenRtrig, 1)),
    ("02A4", |driver| {
        driver.succeed(&AdminCommand::direct(protocol::hca::e810::admin::Opcode::ClearPfConfig, [0; 16]));
    }),
    ("the end of the control queue", |driver| driver.end_cqp()),
    ("another start of the control queue", |driver| driver.start_cqp()),
    ("FLR", |driver| {
        driver.bus.hca.reset();
        driver.bus.enable();
    }),
];

#[test]
fn reset_drops_objects_and_stops_writes() {
    for (what, reset) in RESETS {
        let mut driver = brought_up();
        driver.arm(0, CCQ_SHADOW, ARM_NEXT);
        reset(&mut driver);
        let [rings, events] = [(CCQ_RING, 2050 * 32), (CEQ_RING, 2048 * 8)];
        let before = [rings, events].map(|(at, len)| driver.bus.peek(at, len));
        driver.write(Register::PfpeCqpdb, 100);
        driver.write(Register::PfpeCqarm, 0);
        driver.bus.settle();
        assert!(before == [rings, events].map(|(at, len)| driver.bus.peek(at, len)), "{what}");
        if !what.starts_with("another") {
            assert_eq!(driver.cqp_status(), Status::default(), "{what}");
        }
    }
}

#[test]
fn rdma_is_advertised_if_enabled() {
    for rdma in [false, true] {
        let mut driver = powered_on_with(rdma);
        let command = AdminCommand::with_output(
            protocol::hca::e810::admin::Opcode::FunctionCapabilities,
            [0; 16],
            4096,
        );
        let records = driver.succeed(&command).buffer;
        let has = records.chunks(32).any(|record| record[..2] == [0x51, 0] && record[4] == 1);
        assert_eq!(has, rdma);
        driver.write(Register::PfpeCcqphigh, 0);
        driver.write(Register::PfpeCcqplow, 0x1000);
        assert_eq!(
            driver.cqp_status() != Status::default(),
            rdma,
            "the control queue starts only if RDMA is enabled"
        );
    }
}
