//! Operations on the guest itself: kernel messages, modules, PCI functions, root file system, programs and shutdown.

pub(crate) mod file;
mod kernel;
pub(crate) mod mount;
pub(crate) mod pci;
mod program;
mod root;

pub(crate) use kernel::{info, load_crash_kernel, load_modules, messages, say, shell, shutdown, uptime};
pub(crate) use program::{PATH, Programs, pidfd, wait_for};
pub(crate) use root::{enter as enter_root, mount_share};
