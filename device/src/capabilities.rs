//! Capabilities of a process that was started with some, as root is: given up once it serves, but for the few that are named.
//!
//! The kernel keeps them for each thread, and a thread has those of the one that made it. So threads that are there before the
//! process has confined itself give up theirs themselves, and the rest is made by one that has.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use rustix::io;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Whether the process confines itself.
static CONFINED: AtomicBool = AtomicBool::new(false);

/// From here on [`spawn_without`] does so. To be called before there are other threads.
pub fn begin() {
    CONFINED.store(true, Ordering::Release);
}

/// Starts a thread that only writes to what is open, and waits until it has given up all it has, if the process confines itself:
/// once system calls are confined too it could not any more.
///
/// # Errors
/// The host refuses threads.
pub fn spawn_without(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let (done, given_up) = mpsc::sync_channel(1);
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        give_up_all();
        let _ = done.send(());
        run();
    })?;
    // It sends, or has ended.
    let _ = given_up.recv();
    Ok(())
}

/// Leaves this thread none, if the process confines itself.
fn give_up_all() {
    if CONFINED.load(Ordering::Acquire) {
        // Whoever may do nothing needs no leave to give it up, and a kernel without them has none to take.
        let _ = keep(CapabilitySet::empty());
    }
}

/// Leaves this thread, and those it will make, no more than `kept`, and returns what of that it has.
///
/// # Errors
/// The kernel refuses.
pub fn keep(kept: CapabilitySet) -> io::Result<CapabilitySet> {
    let had = capabilities(None)?;
    // What a program that is executed could have again. Refused where the process may not do that; then nothing of it is in
    // force as long as there are no new privileges.
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

/// What `ask` says while this thread has the right to use no capability.
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
