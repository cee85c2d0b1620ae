//! Handles SET_IRQS, which configures interrupt vectors.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, fstat};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_MASK, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_ACTION_TYPE_MASK,
    VFIO_IRQ_SET_ACTION_UNMASK, VFIO_IRQ_SET_DATA_BOOL, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
    VFIO_IRQ_SET_DATA_TYPE_MASK, VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS,
};

use super::message::IrqSet;
use super::session::Errno;
use crate::vfio::msix::Interrupts;

/// Executes a SET_IRQS command. Only MSI-X has vectors, but a client may disable the other interrupt types. An eventfd
/// for device errors is accepted and closed, because the device never reports such errors.
pub(super) fn set(
    set: &IrqSet,
    booleans: &[u8],
    fds: Vec<OwnedFd>,
    interrupts: &mut Interrupts,
) -> Result<(), Errno> {
    let data = set.flags & VFIO_IRQ_SET_DATA_TYPE_MASK;
    let action = set.flags & VFIO_IRQ_SET_ACTION_TYPE_MASK;
    if set.flags != data | action || set.index >= VFIO_PCI_NUM_IRQS {
        return Err(Errno::INVALID);
    }
    let disables = data == VFIO_IRQ_SET_DATA_NONE
        && action == VFIO_IRQ_SET_ACTION_TRIGGER
        && (set.start, set.count) == (0, 0);
    if set.index != VFIO_PCI_MSIX_IRQ_INDEX {
        let listens_for_errors = set.index == VFIO_PCI_ERR_IRQ_INDEX
            && data == VFIO_IRQ_SET_DATA_EVENTFD
            && action == VFIO_IRQ_SET_ACTION_TRIGGER
            && (set.start, set.count) == (0, 1)
            && fds.len() <= 1;
        return if disables || listens_for_errors { Ok(()) } else { Err(Errno::INVALID) };
    }
    if disables {
        interrupts.disconnect();
        return Ok(());
    }

    let (start, count) = (to_usize(set.start)?, to_usize(set.count)?);
    if start > interrupts.count() || count > interrupts.count() - start {
        return Err(Errno::INVALID);
    }
    let vectors = start..start + count;
    let execute: fn(&mut Interrupts, usize) = match action {
        VFIO_IRQ_SET_ACTION_TRIGGER => Interrupts::trigger,
        VFIO_IRQ_SET_ACTION_MASK => |interrupts, vector| interrupts.set_masked(vector, true),
        VFIO_IRQ_SET_ACTION_UNMASK => |interrupts, vector| interrupts.set_masked(vector, false),
        _ => return Err(Errno::INVALID),
    };
    match data {
        VFIO_IRQ_SET_DATA_NONE => vectors.for_each(|vector| execute(interrupts, vector)),
        VFIO_IRQ_SET_DATA_BOOL => {
            let booleans = booleans.get(..count).ok_or(Errno::INVALID)?;
            for (vector, _) in vectors.zip(booleans).filter(|(_, wanted)| **wanted != 0) {
                execute(interrupts, vector);
            }
        }
        // Eventfds that mask or unmask vectors are not supported. Clients mask vectors with messages instead.
        VFIO_IRQ_SET_DATA_EVENTFD if action != VFIO_IRQ_SET_ACTION_TRIGGER => {
            return Err(Errno::NOT_SUPPORTED);
        }
        VFIO_IRQ_SET_DATA_EVENTFD if fds.is_empty() => {
            vectors.for_each(|vector| interrupts.set_eventfd(vector, None));
        }
        VFIO_IRQ_SET_DATA_EVENTFD if fds.len() == count => {
            if !fds.iter().all(may_be_eventfd) {
                return Err(Errno::INVALID);
            }
            for (vector, fd) in vectors.zip(fds) {
                interrupts.set_eventfd(vector, Some(fd));
            }
        }
        _ => return Err(Errno::INVALID),
    }
    Ok(())
}

/// Returns whether a descriptor may be an eventfd, for which `fstat` reports no file type. Other descriptors are
/// rejected, because a write to a pipe, a terminal or a file on FUSE may block indefinitely.
fn may_be_eventfd(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Unknown)
}

fn to_usize(value: u32) -> Result<usize, Errno> {
    usize::try_from(value).map_err(|_| Errno::INVALID)
}
