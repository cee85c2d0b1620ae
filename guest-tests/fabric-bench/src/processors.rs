//! CPU affinity. The `hcad` processes of a connection are bound to different CPUs, as if they were on two machines.
//! Otherwise, the scheduler would sometimes run both processes on one CPU, and their competition for that CPU would
//! dominate the result.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns two CPUs from the calling thread's affinity mask, or the same CPU twice if the mask has only one.
pub(crate) fn two() -> io::Result<[CpuSet; 2]> {
    let all = sched_getaffinity(None)?;
    let only = |cpu: Option<usize>| {
        let mut set = CpuSet::new();
        cpu.into_iter().for_each(|cpu| set.set(cpu));
        set
    };
    let mut usable = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu));
    let first = usable.next();
    Ok([only(first), only(usable.next().or(first))])
}

/// Binds the calling thread to `processor` permanently.
pub(crate) fn bind(processor: &CpuSet) -> io::Result<()> {
    Ok(sched_setaffinity(None, processor)?)
}

/// Binds the calling thread to `processor` while a function runs. Threads and processes that the function starts stay
/// bound.
pub(crate) fn bound<T>(processor: &CpuSet, what: impl FnOnce() -> T) -> io::Result<T> {
    let before = sched_getaffinity(None)?;
    bind(processor)?;
    let result = what();
    sched_setaffinity(None, &before)?;
    Ok(result)
}
