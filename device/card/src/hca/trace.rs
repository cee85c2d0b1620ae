//! Trace records of register accesses.

use protocol::describe::{Field as _, Hex};

use super::Hca;
use super::accesses::Target;
use crate::frontend::{Frontend, RegisterAccess};
use crate::telemetry::trace::Kind;

/// Records an access if a trace is running.
pub(super) fn access<F: Frontend>(hca: &mut Hca<F>, access: &RegisterAccess<'_>) {
    let target = hca.decode(access.bar, access.offset);
    let name = match target {
        Target::MsixTable(offset) => Some(entry_name(offset)),
        Target::MsixPending(_) => Some("MSIX.pba".to_owned()),
        Target::Frontend => hca.frontend.register_name(access),
    };
    let Hca { frontend, monitor, .. } = hca;
    let Some(trace) = monitor.trace() else { return };
    let kind = if access.write { Kind::Write } else { Kind::Read };
    trace.record(kind, name.as_deref().unwrap_or("unknown"), |to| {
        let bar = access.bar.number();
        format_args!("bar{bar}+{:#x}", access.offset).show("at", to);
        access.data.len().show("width", to);
        Hex(value(access.data)).show("value", to);
        if matches!(target, Target::Frontend) {
            frontend.describe_access(access, to);
        }
    });
}

/// Interprets the bytes as a little-endian number.
fn value(data: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(bytes)
}

/// Returns the name of a word in the MSI-X table. An entry is four words long (PCI local bus specification 3.0, section
/// 6.8.2).
fn entry_name(offset: usize) -> String {
    const WORDS: [&str; 4] = ["address_low", "address_high", "data", "control"];
    let word = WORDS.get(offset % 16 / 4).unwrap_or(&"");
    format!("MSIX[{}].{word}", offset / 16)
}
