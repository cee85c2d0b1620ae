//! Records whether guests boot with KVM on this host. Opening `/dev/kvm` is not a sufficient test.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::vm::LastState;

/// Timeout from the start of QEMU to the agent's first reply.
pub(crate) const BOOT_TIMEOUT: Duration = Duration::from_secs(10);
/// Content of the [`result_file`] if guests boot with KVM.
pub(crate) const WORKS: &str = "yes";

/// Explains on one line why the test guest did not boot. The user did not start this guest, so its name is omitted.
pub(crate) fn explain(error: &anyhow::Error) -> String {
    let seconds = BOOT_TIMEOUT.as_secs();
    match error.downcast_ref::<LastState>() {
        Some(LastState { exited: None, .. }) => {
            format!("QEMU started, but the Linux kernel in the guest did not boot within {seconds} s")
        }
        Some(LastState { exited: Some(status), .. }) => {
            format!("QEMU ended with {status} before the Linux kernel in the guest had booted")
        }
        None => error.root_cause().to_string().lines().next().unwrap_or_default().to_owned(),
    }
}

/// Returns the file that records whether guests boot with KVM. It contains [`WORKS`], or the reason on the first line
/// and the complete error after it. The file's name contains the host's boot ID, so that the result is valid only until
/// the host restarts.
pub(crate) fn result_file(cache: &Path) -> PathBuf {
    let host = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    cache.join(format!("kvm-{}", host.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_failure_is_explained_on_one_line() {
        let state = |exited| LastState {
            guest: "probe".into(),
            exited,
            console: "end of guest-probe.console".into(),
            log: "end of guest-probe.log".into(),
        };
        let error = |exited| {
            let cause = anyhow::anyhow!("the guest agent did not reply to Ping within 10s");
            cause.context(state(exited)).context("the guest did not boot within 10 s")
        };
        let text = explain(&error(None));
        assert_eq!(text, "QEMU started, but the Linux kernel in the guest did not boot within 10 s");
        let text = explain(&error(Some(std::os::unix::process::ExitStatusExt::from_raw(256))));
        assert_eq!(text, "QEMU ended with exit status: 1 before the Linux kernel in the guest had booted");
        let text = explain(&anyhow::anyhow!("QEMU exited with exit status: 1").context("end of\na log"));
        assert_eq!(text, "QEMU exited with exit status: 1");
    }
}
