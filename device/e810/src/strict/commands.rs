//! Strict-mode checks of admin commands.

use card::frontend::strict::Findings;
use protocol::hca::e810::admin::control::{QueueShutdown, ResourceId, ResourceLock};
use protocol::hca::e810::admin::descriptor::{Flags, LARGE_FROM};
use protocol::hca::e810::admin::opcode::BufferUse;
use protocol::hca::e810::admin::{Descriptor, Opcode};

use super::Strict;
use super::rules::{
    BUFFER_DIRECTION, BUFFER_LARGE, BUFFER_MISSING, COMMAND_FLAGS, LOCK_MISSING, LOCK_NOT_TAKEN, LOCK_TWICE,
    SHUTDOWN_IN_USE,
};

/// Checks a command before it is executed. `in_use` is true if transmit queues or added VSIs exist.
pub(in super::super) fn check_command(
    strict: &mut Strict,
    descriptor: &Descriptor,
    in_use: bool,
) -> Findings {
    let mut found = Findings::default();
    let Some(opcode) = Opcode::from_code(descriptor.opcode) else { return found };
    let name = opcode.name();
    if descriptor.flags.intersects(Flags::DONE | Flags::COMPLETE | Flags::ERROR) || descriptor.status != 0 {
        found.add(&COMMAND_FLAGS, format!("new command {name} has completion flags set"));
    }
    buffer(opcode, descriptor, &mut found);
    locks(strict, opcode, descriptor, &mut found);
    let unloading = || QueueShutdown::parse(&descriptor.parameters).unloading;
    if opcode == Opcode::QueueShutdown && in_use && unloading() {
        found.add(&SHUTDOWN_IN_USE, "driver shuts down while VSIs or transmit queues exist");
    }
    found
}

fn buffer(opcode: Opcode, descriptor: &Descriptor, found: &mut Findings) {
    let name = opcode.name();
    let flags = descriptor.flags;
    let buffer_use = opcode.buffer_use();
    if flags.contains(Flags::BUFFER) != (buffer_use != BufferUse::None) {
        let expected = if buffer_use == BufferUse::None { "uses no buffer" } else { "requires a buffer" };
        found.add(&BUFFER_MISSING, format!("{name} {expected}, but its flags are {}", names(flags)));
        return;
    }
    if flags.contains(Flags::LARGE) != (usize::from(descriptor.buffer_len) > LARGE_FROM) {
        found.add(
            &BUFFER_LARGE,
            format!(
                "large-buffer flag of {name} does not match the buffer length of {} bytes (flags: {})",
                descriptor.buffer_len,
                names(flags)
            ),
        );
    }
    if flags.contains(Flags::READ) != (buffer_use == BufferUse::Input) {
        found.add(
            &BUFFER_DIRECTION,
            format!("{name} has the wrong buffer direction (flags: {})", names(flags)),
        );
    }
}

fn names(flags: Flags) -> String {
    let names: Vec<_> = flags.iter_names().map(|(name, _)| name).collect();
    if names.is_empty() { "0".to_owned() } else { names.join("|") }
}

fn locks(strict: &mut Strict, opcode: Opcode, descriptor: &Descriptor, found: &mut Findings) {
    let name = opcode.name();
    let needed = match opcode {
        Opcode::ReadNvm | Opcode::NvmChecksum => Some(ResourceId::Nvm),
        Opcode::DownloadPackage => Some(ResourceId::GlobalConfig),
        Opcode::UpdatePackage => Some(ResourceId::ChangeLock),
        _ => None,
    };
    if let Some(needed) = needed.filter(|needed| !strict.locks.contains(needed)) {
        found.add(&LOCK_MISSING, format!("{name} requires lock {needed}, which the driver does not hold"));
    }
    let ResourceLock { resource, .. } = ResourceLock::parse(&descriptor.parameters);
    let known = !matches!(resource, ResourceId::Other(_));
    let taken = strict.locks.contains(&resource);
    match opcode {
        Opcode::RequestResource if taken => {
            found.add(&LOCK_TWICE, format!("driver requests lock {resource}, which it already holds"));
        }
        Opcode::RequestResource if known => strict.locks.push(resource),
        Opcode::ReleaseResource if taken => strict.locks.retain(|other| *other != resource),
        Opcode::ReleaseResource if known => {
            found.add(&LOCK_NOT_TAKEN, format!("driver releases lock {resource}, which it does not hold"));
        }
        _ => {}
    }
}
