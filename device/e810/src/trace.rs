//! Trace output of this front-end: register names and command records.

use card::frontend::RegisterAccess;
use card::vfio::Bar;
use protocol::describe::{Describe, Visitor};
use protocol::hca::e810::admin::describe::{Buffer, Parameters};
use protocol::hca::e810::admin::{Descriptor, Flags, Opcode, PARAMETERS_LEN};
use protocol::hca::e810::regs::Register;

/// Returns the name of the accessed register, or `None` if the offset belongs to no register.
pub(super) fn register_name(access: &RegisterAccess<'_>) -> Option<String> {
    if access.bar != Bar::Bar0 {
        return None;
    }
    let (register, byte) = Register::at(access.offset)?;
    Some(match (byte, access.data.len()) {
        (4.., _) => format!("{register}[63:32]"),
        _ => register.to_string(),
    })
}

/// Describes the bit fields of the value that was read or written.
pub(super) fn describe_access(access: &RegisterAccess<'_>, to: &mut dyn Visitor) {
    let (Bar::Bar0, Ok(word)) = (access.bar, <[u8; 4]>::try_from(access.data)) else { return };
    let Some((register, 0)) = Register::at(access.offset) else { return };
    if let Some(fields) = fields(register, &word) {
        to.object("fields", &*fields);
    }
}

fn fields(register: Register, word: &[u8; 4]) -> Option<Box<dyn Describe>> {
    use protocol::hca::e810::admin::descriptor::QueueLength;
    use protocol::hca::e810::interrupt::{DynCtl, Route};
    use protocol::hca::e810::rdma::control::{Doorbell, ErrorCodes, Status, Tail};
    Some(match register {
        Register::PfFwAtqlen | Register::PfFwArqlen | Register::PfMbxAtqlen | Register::PfMbxArqlen => {
            Box::new(QueueLength::parse(word))
        }
        Register::GlintDynCtl(_) => Box::new(DynCtl::parse(word)),
        Register::QintTqctl(_)
        | Register::QintRqctl(_)
        | Register::GlintCeqctl(_)
        | Register::PfintAeqctl
        | Register::PfintFwCtl
        | Register::PfintOicrCtl
        | Register::PfintMbxCtl => Box::new(Route::parse(word)),
        Register::PfpeCcqpstatus => Box::new(Status::parse(word)),
        Register::PfpeCqptail => Box::new(Tail::parse(word)),
        Register::PfpeCqperrcodes => Box::new(ErrorCodes::parse(word)),
        Register::PfpeCqpdb => Box::new(Doorbell::parse(word)),
        _ => return None,
    })
}

/// Describes the parameters and buffers of a command and its response.
pub(super) fn describe_command(
    opcode: Option<Opcode>,
    (request, input): (&Descriptor, &[u8]),
    (answered, output): (&Descriptor, &[u8]),
    to: &mut dyn Visitor,
) {
    to.object("ask", &Parameters { opcode, response: false, bytes: &parameters(request) });
    to.object("answer", &Parameters { opcode, response: true, bytes: &parameters(answered) });
    for (name, bytes) in [("in", input), ("out", output)] {
        if !bytes.is_empty() {
            to.object(name, &Buffer { opcode, bytes });
        }
    }
}

/// Returns the parameters, with the buffer address zeroed if there is one.
fn parameters(descriptor: &Descriptor) -> [u8; PARAMETERS_LEN] {
    let mut parameters = descriptor.parameters;
    if descriptor.flags.contains(Flags::BUFFER) {
        parameters[PARAMETERS_LEN / 2..].fill(0);
    }
    parameters
}
