//! Warnings that a guest's kernel has logged.

use agent::wire::Dmesg;
use anyhow::Result;

use crate::vm::Vm;

/// Log level of warnings. Lower levels are more severe.
const WARNING: u8 = 4;

/// Substrings of warnings that only show a lack of CPU time. An emulated guest on a busy host can log them at any time.
const BUSY_HOST: &[&str] = &["hrtimer: interrupt took", "hogged CPU for"];

/// Returns the kernel messages at warning level or above, except those that only report a busy host.
pub(super) async fn warnings(vm: &mut Vm) -> Result<Vec<String>> {
    let mut lines = vm.call(Dmesg { level: Some(WARNING) }).await?.lines;
    lines.retain(|line| !BUSY_HOST.iter().any(|text| line.contains(text)));
    Ok(lines)
}
