//! Counters for a client's messages.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::message::Command;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageStats {
    pub version: u64,
    pub dma_map: u64,
    pub dma_unmap: u64,
    pub get_info: u64,
    pub get_region_info: u64,
    pub get_irq_info: u64,
    pub set_irqs: u64,
    pub region_read: u64,
    pub region_write: u64,
    pub region_write_multi: u64,
    pub reset: u64,
    /// Commands that are not supported.
    pub other: u64,
    /// Messages that were answered with an error, whatever their command.
    pub refused: u64,
}

impl MessageStats {
    pub(super) fn count(&mut self, command: Option<Command>) {
        let counter = match command {
            Some(Command::Version) => &mut self.version,
            Some(Command::DmaMap) => &mut self.dma_map,
            Some(Command::DmaUnmap) => &mut self.dma_unmap,
            Some(Command::GetInfo) => &mut self.get_info,
            Some(Command::GetRegionInfo) => &mut self.get_region_info,
            Some(Command::GetIrqInfo) => &mut self.get_irq_info,
            Some(Command::SetIrqs) => &mut self.set_irqs,
            Some(Command::RegionRead) => &mut self.region_read,
            Some(Command::RegionWrite) => &mut self.region_write,
            Some(Command::RegionWriteMulti) => &mut self.region_write_multi,
            Some(Command::Reset) => &mut self.reset,
            None => &mut self.other,
        };
        *counter += 1;
    }
}

impl AddAssign for MessageStats {
    fn add_assign(&mut self, more: Self) {
        let Self {
            version,
            dma_map,
            dma_unmap,
            get_info,
            get_region_info,
            get_irq_info,
            set_irqs,
            region_read,
            region_write,
            region_write_multi,
            reset,
            other,
            refused,
        } = self;
        *version += more.version;
        *dma_map += more.dma_map;
        *dma_unmap += more.dma_unmap;
        *get_info += more.get_info;
        *get_region_info += more.get_region_info;
        *get_irq_info += more.get_irq_info;
        *set_irqs += more.set_irqs;
        *region_read += more.region_read;
        *region_write += more.region_write;
        *region_write_multi += more.region_write_multi;
        *reset += more.reset;
        *other += more.other;
        *refused += more.refused;
    }
}
