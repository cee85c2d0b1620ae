//! Tests JingZhao's whole command interface: every opcode in all its valid and invalid forms, and every QP transition
//! from every state. The interface's tables are included as data ([`spec`], [`expected`], [`transitions`]). The
//! devices' responses must match them, and every row must be tested.

mod answers;
mod attributes;
mod behaviour;
mod commands;
mod device;
mod error_states;
mod expected;
mod mailbox;
mod section_10_2;
mod spec;
mod transitions;

use agent::wire::{CreateEq, MapEq, OpenHca, Service};
use anyhow::{Result, ensure};
use serde_json::json;

use self::answers::{Answers, LOG_EVENTS, issue};
use self::device::{Device, TestQp};
use self::section_10_2::State;
use super::pair::{Node, Pair};
use crate::lab::Lab;
use crate::report::Report;

const SERVICES: [Service; 3] = [Service::Rc, Service::Uc, Service::Ud];

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    // Device `a` uses the default options.
    let options = [json!({}), json!({ "extended_status": true, "mad_ifc": true })];
    let mut pair = Pair::start_open_as(lab, "jingzhao-full", options).await?;
    let hint = pair.hint();
    report.case("every command in every form", &hint, every_command(&mut pair)).await?;
    report.case("every other opcode is BAD_OP", &hint, undefined_opcodes(&mut pair)).await?;
    for service in SERVICES {
        let name = format!("{}: every transition from every state", service_name(service));
        report.case(&name, &hint, transitions::run(&mut pair.a.vm, service)).await?;
    }
    for service in SERVICES {
        let name =
            format!("{}: every transition changes its attributes and no others", service_name(service));
        report.case(&name, &hint, attributes::run(&mut pair.a.vm, service)).await?;
    }
    for service in SERVICES {
        let name = format!(
            "{}: attributes never set by software are returned with the values in use",
            service_name(service)
        );
        report.case(&name, &hint, attributes::defaults(&mut pair.a.vm, service)).await?;
    }
    report.case("the public driver's two mask bits", &hint, attributes::drivers_mask(&mut pair.a.vm)).await?;
    let vm = &mut pair.a.vm;
    for service in [Service::Uc, Service::Ud] {
        let name = format!("{}: SQE flushes, and SQERR2RTS returns to RTS", service_name(service));
        report.case(&name, &hint, error_states::way_back_from_sqe(vm, service)).await?;
    }
    report
        .case(
            "UC: SQE receives, and a failed receive leads to ERR",
            &hint,
            error_states::receiving_in_sqe(vm),
        )
        .await?;
    for service in SERVICES {
        let name =
            format!("{}: ERR flushes both queues in order, RESET flushes neither", service_name(service));
        report.case(&name, &hint, error_states::outstanding_work(vm, service)).await?;
    }
    report.case("RC: SQ draining, and every transition out of it", &hint, behaviour::draining(vm)).await?;
    report.case("RESIZE_CQ continues at the current count", &hint, behaviour::resize_cq_moves_on(vm)).await?;
    report.case("daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

/// Checks all commands (sections 2 and 3).
async fn every_command(pair: &mut Pair) -> Result<()> {
    let (a, b) = tokio::try_join!(answers(&mut pair.a), answers(&mut pair.b))?;
    answers::judge(&[a, b])
}

/// Issues all commands to one device and returns the responses.
async fn answers(node: &mut Node) -> Result<Answers> {
    const COMMAND_EVENTS: u64 = 1 << 0x0a;
    let mut answers = Answers::new();
    node.close().await?;
    node.reopen(OpenHca { without_init: true, ..OpenHca::default() }).await?;
    commands::uninitialised().run(&mut node.vm, None, &mut answers).await?;
    node.close().await?;

    let info = node.reopen(OpenHca::default()).await?;
    let vm = &mut node.vm;
    let device = Device::new(vm, info).await?;
    let qp = TestQp::create(vm, Service::Uc).await?;
    issue(vm, transitions::walk(&qp, State::Sqe)).await?;
    qp.fail_a_send(vm).await?;
    let eq = vm.call(CreateEq { log_entries: LOG_EVENTS, ..CreateEq::default() }).await?.id;
    vm.call(MapEq { eq, events: COMMAND_EVENTS, remove: false }).await?;
    for script in [
        commands::generic(&device),
        commands::queries(),
        commands::icm(&device),
        commands::regions(),
        commands::event_queues(&device),
        commands::completion_queues(&device),
        commands::queue_pairs(&device, qp.qp.qpn),
    ] {
        script.run(vm, Some(eq), &mut answers).await?;
    }
    Ok(answers)
}

/// Checks that undefined opcodes are rejected (section 2, check a).
async fn undefined_opcodes(pair: &mut Pair) -> Result<()> {
    const BAD_OP: u8 = 0x02;
    for result in issue(&mut pair.a.vm, commands::undefined().collect()).await? {
        ensure!(result.status == BAD_OP, "word {:08x}h", result.word);
    }
    Ok(())
}

/// Returns a service type's name in the specification.
fn service_name(service: Service) -> &'static str {
    match service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
    }
}
