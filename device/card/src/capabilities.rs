//! Drops Linux capabilities. A process that starts with capabilities, for example as root, keeps only those needed to
//! serve devices.
//!
//! Capabilities are per thread, and a new thread inherits those of its creator. A thread created before the sandbox is
//! complete must therefore drop its own. Threads created later inherit the reduced set.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use rustix::io;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

static CONFINED: AtomicBool = AtomicBool::new(false);

/// Makes [`spawn_without`] drop capabilities. Call this before creating other threads.
pub fn begin() {
    CONFINED.store(true, Ordering::Release);
}

/// Starts a thread that needs no capabilities, such as one that only writes to open descriptors. If the sandbox is
/// enabled, the thread drops its capabilities before this function returns, since the seccomp filter installed later
/// would block the system call.
///
/// # Errors
/// Fails if the process cannot create another thread.
pub fn spawn_without(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let (done, given_up) = mpsc::sync_channel(1);
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        drop_all();
        let _ = done.send(());
        run();
    })?;
    // An error means that the thread has ended.
    let _ = given_up.recv();
    Ok(())
}

fn drop_all() {
    if CONFINED.load(Ordering::Acquire) {
        // Errors are ignored. Dropping capabilities requires no privilege and fails only on a kernel without capability
        // support, where there is nothing to drop.
        let _ = keep(CapabilitySet::empty());
    }
}

/// Limits this thread and the threads it creates later to the capabilities in `kept`. Returns those that remain.
///
/// # Errors
/// Fails if the kernel rejects the change.
pub fn keep(kept: CapabilitySet) -> io::Result<CapabilitySet> {
    let had = capabilities(None)?;
    // The bounding set limits the capabilities that an executed program could gain. Without CAP_SETPCAP, reducing it
    // fails. This is harmless, because no_new_privs also prevents such a gain.
    for capability in CapabilitySet::all().iter() {
        let _ = remove_capability_from_bounding_set(capability);
    }
    let _ = clear_ambient_capability_set();
    let kept = kept & had.permitted;
    set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )?;
    Ok(kept)
}

/// Runs `ask` without this thread's effective capabilities, then restores them.
pub fn without<T>(ask: impl FnOnce() -> T) -> T {
    let had = capabilities(None);
    if let Ok(had) = had {
        let _ = set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..had });
    }
    let answer = ask();
    if let Ok(had) = had {
        let _ = set_capabilities(None, had);
    }
    answer
}
