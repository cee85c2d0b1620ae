//! Dispatches admin commands to their handlers and records them in the log, the counters and the trace.

use std::time::{Duration, Instant};

use card::frontend::Context;
use card::limited;
use card::telemetry::trace::Kind;
use protocol::describe::{Field as _, Hex};
use protocol::hca::e810::admin::descriptor::Flags;
use protocol::hca::e810::admin::{AdminError, AdminStatus, Descriptor, Opcode};

use super::{Command, capabilities, control, link, mac, package, queues, scheduler, switch};
use crate::state::State;
use crate::{strict, trace};

const OK: &str = "OK";

/// Executes the commands in the send ring, at most one ring's worth per call.
pub(crate) fn run(state: &mut State, cx: &mut Context<'_>) {
    for _ in 0..state.function.rings.send.entries() {
        let Some((place, mut descriptor)) = state.function.rings.send.next(cx.dma) else { return };
        execute(state, cx, &mut descriptor);
        state.function.rings.send.complete(cx.dma, place, &descriptor);
    }
}

/// Executes a command and turns its descriptor into a completion.
fn execute(state: &mut State, cx: &mut Context<'_>, descriptor: &mut Descriptor) {
    let begun = Instant::now();
    let began = cx.monitor.trace().map(|trace| trace.now());
    let request = *descriptor;
    if cx.monitor.is_strict() {
        let function = &mut state.function;
        let in_use = !function.leaves.queues.is_empty() || function.pf_config.vsis.has_added();
        strict::check_command(&mut function.strict, descriptor, in_use).report(cx.monitor);
    }
    let opcode = Opcode::from_code(descriptor.opcode);
    let mut command = Command::read(descriptor, cx.dma);
    let input = match &command {
        Ok(read) if began.is_some() && descriptor.flags.contains(Flags::READ) => read.buffer().to_vec(),
        _ => Vec::new(),
    };
    let result = command.as_mut().map_err(|error| *error).and_then(|command| {
        let opcode = opcode.ok_or(AdminError::new(
            AdminStatus::NotImplemented,
            "command",
            descriptor.opcode.into(),
        ))?;
        dispatch(state, cx, opcode, command)?;
        command.finish(descriptor, cx.dma)
    });
    descriptor.flags |= Flags::DONE | Flags::COMPLETE;
    descriptor.flags.set(Flags::ERROR, result.is_err());
    descriptor.status = result.err().map_or(0, |error| error.status.code());

    let name = opcode.map_or(protocol::hca::e810::admin::opcode::UNKNOWN, Opcode::name);
    match &result {
        Ok(()) => limited!(debug, command = name, "command completed"),
        // Log at debug level only: drivers probe for optional commands and read past the end of the flash to find its
        // size.
        Err(error) if error.status == AdminStatus::NotImplemented || opcode == Some(Opcode::ReadNvm) => {
            limited!(debug, command = name, "command completed with status: {error}");
        }
        Err(error) => limited!(info, command = name, "command rejected: {error}"),
    }
    let status = result.err().map_or(OK, |error| error.status.name());
    cx.monitor.count_command(name, status, begun.elapsed());
    if let (Some(trace), Some(began)) = (cx.monitor.trace(), began) {
        let took: Duration = trace.now().saturating_sub(began);
        trace.record(Kind::Command, name, |to| {
            status.show("status", to);
            if let Err(error) = &result {
                format_args!("{error}").show("refused", to);
            }
            format_args!("{:.1}", took.as_secs_f64() * 1e6).show("us", to);
            Hex(request.opcode).show("op", to);
            let output = command.as_ref().map_or(&[][..], |command| command.output());
            trace::describe_command(opcode, (&request, &input), (descriptor, output), to);
        });
    }
}

fn dispatch(
    state: &mut State,
    cx: &mut Context<'_>,
    opcode: Opcode,
    command: &mut Command,
) -> Result<(), AdminError> {
    if let Some(outcome) = scheduler::dispatch(&mut state.function.pf_config.scheduler, opcode, command) {
        return outcome;
    }
    if let Some(outcome) = switch::dispatch(&mut state.function.pf_config, opcode, command) {
        cx.port.set_rdma(state.setup.options.rdma && state.function.pf_config.diverts_rdma());
        return outcome;
    }
    if let Some(outcome) = queues::dispatch(state, opcode, command) {
        return outcome;
    }
    match opcode {
        Opcode::GetVersion => control::get_version(command),
        Opcode::DriverVersion => control::driver_version(command),
        Opcode::RequestResource => control::request_resource(state, command),
        Opcode::ReleaseResource => control::release_resource(state, command),
        Opcode::FunctionCapabilities => capabilities::function(state, command),
        Opcode::DeviceCapabilities => capabilities::device(state, command),
        Opcode::ReadMac => mac::read(state, cx, command),
        Opcode::WriteMac => mac::write(state, cx, command),
        Opcode::SetMacConfig => mac::set_config(state, command),
        Opcode::ClearPfConfig => {
            state.clear_configuration(cx);
            Ok(())
        }
        Opcode::GetPhyCapabilities => link::get_phy_capabilities(state, command),
        Opcode::SetPhyConfig => link::set_phy_config(state, cx, command),
        Opcode::RestartNegotiation => link::restart_negotiation(state, cx, command),
        Opcode::GetLinkStatus => link::get_status(state, cx, command),
        Opcode::SetMacLoopback => {
            link::set_mac_loopback(cx, command);
            Ok(())
        }
        Opcode::ReadNvm => control::read_nvm(state, command),
        Opcode::NvmChecksum => control::nvm_checksum(state, command),
        Opcode::DownloadPackage => package::download(state, command),
        Opcode::UpdatePackage => package::update(state, command),
        Opcode::GetPackageInfo => package::info(state, command),
        // These commands succeed but have no effect.
        Opcode::QueueShutdown
        | Opcode::ClearPxe
        | Opcode::SetPortParameters
        | Opcode::SetPfcMode
        | Opcode::SetEventMask
        | Opcode::SetPortLed
        | Opcode::LldpEvents
        | Opcode::StopLldp
        | Opcode::SetHealthConfig => Ok(()),
        // This includes the commands that start the LLDP and DCBX agents, which the device does not have.
        _ => Err(AdminError::new(AdminStatus::NotImplemented, "command", opcode.code().into())),
    }
}
