//! Which processors of the host processes run on.

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this process may run on, in order.
///
/// # Errors
/// The host does not tell.
pub(crate) fn ours() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect())
}

/// Lets all threads that a process has run on these processors alone. What it starts later inherits that.
///
/// # Errors
/// There is no such process, or none of its processors.
pub(crate) fn keep(process: u32, processors: &[usize]) -> Result<()> {
    ensure!(!processors.is_empty(), "no processors");
    let mut set = CpuSet::new();
    processors.iter().for_each(|&processor| set.set(processor));
    let path = format!("/proc/{process}/task");
    for thread in std::fs::read_dir(&path).context(path)? {
        let name = thread?.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        match sched_setaffinity(Some(thread.context("a thread without a number")?), &set) {
            // It ended meanwhile.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error).with_context(|| format!("thread {name:?} of process {process}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn allowed(child: &Child) -> Vec<usize> {
        let pid = Pid::from_child(child);
        let set = sched_getaffinity(Some(pid)).expect("the child runs");
        (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
    }

    #[test]
    fn a_process_is_kept_on_a_processor_and_let_go() {
        let ours = ours().expect("we run somewhere");
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
        assert_eq!(allowed(&child), ours);
        keep(child.id(), &ours[..1]).expect("it runs");
        assert_eq!(allowed(&child), ours[..1]);
        keep(child.id(), &ours).expect("it runs");
        assert_eq!(allowed(&child), ours);
        keep(child.id(), &[]).expect_err("it has to run somewhere");
        child.kill().expect("it runs");
        child.wait().expect("it was killed");
    }
}
