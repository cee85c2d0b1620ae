//! Executes and completes control queue operations, and records them in the log, the counters and the trace.
//!
//! # Spec
//! E810 interface, sections 10.2 to 10.4.

use std::time::{Duration, Instant};

use card::frontend::Context;
use card::limited;
use card::telemetry::trace::Kind;
use protocol::describe::Field as _;
use protocol::hca::e810::rdma::Operation;
use protocol::hca::e810::rdma::control::{Completion, ErrorCodes};
use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::operation::{Header, UNKNOWN};
use protocol::hca::e810::rdma::queue_pair::FlushedQueues;

use super::cqp::CqpEntry;
use super::{Rdma, features, fpm, queues, strict};

const OK: &str = "OK";

pub(super) type Outcome = Result<Done, CqpError>;

/// Result of a successful operation, as reported in its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// The completion only reports success.
    Plain,
    /// The completion returns a number.
    Value(u32),
    /// The minor code shows which queues had requests to flush.
    Flushed(FlushedQueues),
}

impl Done {
    /// Returns the completion's result field and minor code.
    const fn fields(self) -> (u32, u16) {
        match self {
            Self::Plain => (0, 0),
            Self::Value(value) => (value, 0),
            Self::Flushed(queues) => (0, queues.code()),
        }
    }
}

/// Executes the operations posted before ring index `end`, at most one per ring entry.
pub(super) fn run(rdma: &mut Rdma, cx: &mut Context<'_>, end: u16) {
    for _ in 0..rdma.cqp.entries() {
        let Some(entry) = rdma.cqp.fetch(cx.dma, end) else { return };
        let outcome = execute(rdma, cx, &entry);
        complete(rdma, cx, entry.index, outcome);
    }
}

fn execute(rdma: &mut Rdma, cx: &mut Context<'_>, entry: &CqpEntry) -> Outcome {
    let begun = Instant::now();
    let began = cx.monitor.trace().map(|trace| trace.now());
    let mut parsed = None;
    let outcome = match &entry.wqe {
        Ok(wqe) => {
            parsed = Operation::parse(wqe);
            let Header { opcode, valid } = Header::parse(wqe);
            let unknown = CqpError::new(CqpErrorCode::UnknownOperation, "operation", opcode.into());
            if let Some(operation) = parsed.as_ref().filter(|_| cx.monitor.is_strict()) {
                strict::operation(rdma, operation, valid == entry.polarity).report(cx.monitor);
            }
            parsed.ok_or(unknown).and_then(|operation| dispatch(rdma, cx, &operation))
        }
        Err(error) => Err(CqpError::new(CqpErrorCode::Unreachable, "ring entry at", error.iova.get())),
    };
    let name = parsed.map_or(UNKNOWN, |operation| operation.opcode().name());
    match &outcome {
        Ok(_) => limited!(debug, operation = name, "RDMA control queue operation completed"),
        Err(error) => limited!(info, operation = name, "RDMA control queue operation rejected: {error}"),
    }
    let status = outcome.err().map_or(OK, |error| error.code.name());
    cx.monitor.count_command(name, status, begun.elapsed());
    if let (Some(trace), Some(began)) = (cx.monitor.trace(), began) {
        let took: Duration = trace.now().saturating_sub(began);
        trace.record(Kind::Command, name, |to| {
            status.show("status", to);
            match &outcome {
                Ok(Done::Plain) => {}
                Ok(Done::Value(value)) => value.show("value", to),
                Ok(Done::Flushed(queues)) => queues.name().show("flushed", to),
                Err(error) => format_args!("{error}").show("refused", to),
            }
            format_args!("{:.1}", took.as_secs_f64() * 1e6).show("us", to);
            entry.index.show("index", to);
            if let Some(operation) = &parsed {
                to.object("ask", operation);
            }
        });
    }
    outcome
}

/// Reports an operation's outcome in the registers and, once the control queue's CQ exists, in that CQ.
fn complete(rdma: &mut Rdma, cx: &mut Context<'_>, index: u16, outcome: Outcome) {
    let codes = outcome.err().map(|error| error.code.codes());
    rdma.cqp.record_outcome(codes);
    let Some(cookie) = rdma.cqp.cookie() else { return };
    let (value, minor) = outcome.unwrap_or(Done::Plain).fields();
    let completion = Completion {
        cookie,
        value,
        codes: codes.unwrap_or(ErrorCodes { minor, major: 0 }),
        index,
        error: codes.is_some(),
        valid: false,
    };
    queues::complete_operation(rdma, cx, &completion);
}

fn dispatch(rdma: &mut Rdma, cx: &mut Context<'_>, operation: &Operation) -> Outcome {
    let dma = cx.dma;
    match operation {
        Operation::CreateQp(command) => queues::create_qp(rdma, cx, command),
        Operation::ModifyQp(command) => queues::modify_qp(rdma, cx, command),
        Operation::DestroyQp(command) => queues::destroy_qp(rdma, cx, command),
        Operation::FlushQp(command) => queues::flush_qp(rdma, cx, command),
        Operation::SuspendQp(command) => queues::suspend_qp(rdma, cx, command),
        Operation::ResumeQp(command) => queues::resume_qp(rdma, cx, command),
        Operation::CreateCq(command) => queues::create_cq(rdma, command),
        Operation::ModifyCq(command) => queues::modify_cq(rdma, command),
        Operation::DestroyCq(command) => queues::destroy_cq(rdma, command),
        Operation::AllocateStag(command) => rdma.regions.allocate(command),
        Operation::RegisterMr(command) => rdma.regions.register(command),
        Operation::DeallocateStag(command) => rdma.regions.deallocate(command),
        Operation::ManageArp(command) => queues::manage_arp(rdma, cx, command),
        Operation::CreateAddressHandle(command) => rdma.paths.create(command),
        Operation::ModifyAddressHandle(command) => rdma.paths.modify(command),
        Operation::DestroyAddressHandle(command) => rdma.paths.destroy(command),
        Operation::QueryFeatures(command) => features::query(dma, command),
        Operation::CreateCeq(command) => rdma.events.create_ceq(command),
        Operation::DestroyCeq(command) => rdma.events.destroy_ceq(command),
        Operation::CreateAeq(command) => rdma.events.create_aeq(command),
        Operation::DestroyAeq(_) => rdma.events.destroy_aeq(),
        Operation::UpdateSegments(command) => rdma.hmc.update(dma, command),
        Operation::QueryFpm(command) => fpm::query(&rdma.limits, dma, command),
        Operation::CommitFpm(command) => fpm::commit(&rdma.limits, &mut rdma.hmc, dma, command),
        Operation::CreateGroup(command) => rdma.groups.create(dma, command),
        Operation::ModifyGroup(command) => rdma.groups.modify(dma, command),
        Operation::DestroyGroup(command) => rdma.groups.destroy(command),
        Operation::ManageNode(command) => rdma.nodes.manage(command),
        Operation::GatherStatistics(command) => rdma.counts.gather(dma, cx.engine.stats(), command),
        // Section 15.1: report that no page was allocated. A page number below 1024 would make software copy WQEs into
        // BAR space.
        Operation::ManagePushPages(_) => Ok(Done::Value(NO_PUSH_PAGE)),
        Operation::Nop(_)
        | Operation::ManageQuadHash(_)
        | Operation::StaticPagesAllocated(_)
        | Operation::ManageStatistics(_)
        | Operation::MapPriorities(_) => Ok(Done::Plain),
    }
}

/// Push page number that means "no page allocated".
const NO_PUSH_PAGE: u32 = 1024;
