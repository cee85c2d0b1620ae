//! Which processor runs what. Each end of a wire has one of its own, as two machines have: where the scheduler may put
//! both on one, now and then, a figure says more of the scheduler than of what is measured.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Two of the processors this process may use; the same one twice where it has only one.
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

/// Binds the calling thread to `processor`, for good.
pub(crate) fn bind(processor: &CpuSet) -> io::Result<()> {
    Ok(sched_setaffinity(None, processor)?)
}

/// Runs `what` bound to `processor`. Threads and processes it starts stay bound.
pub(crate) fn bound<T>(processor: &CpuSet, what: impl FnOnce() -> T) -> io::Result<T> {
    let before = sched_getaffinity(None)?;
    bind(processor)?;
    let result = what();
    sched_setaffinity(None, &before)?;
    Ok(result)
}
