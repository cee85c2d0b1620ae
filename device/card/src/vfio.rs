//! The PCI function as a vfio-user client sees it: socket protocol, config space, BARs, interrupts.

mod function;
pub mod msix;
pub mod pages;
pub mod pci;
pub mod server;

pub use function::{Bar, BarRange, Bars, MemoryBar, MsixLayout, PciFunction};
