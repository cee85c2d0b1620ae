//! The guest around the agent: its kernel's messages, modules and PCI functions, and its end.

mod kernel;
pub(crate) mod pci;

pub(crate) use kernel::{info, load_modules, messages, say, shell, shutdown, uptime};
