//! Handles the client's requests: accesses to config space and BARs, changes to DMA mappings and interrupt vectors, and
//! resets.

use std::ops::Range;

use super::{Hca, trace};
use crate::frontend::reason::MEMORY_SPACE_OFF;
use crate::frontend::{Context, Frontend, RegisterAccess};
use crate::limited;
use crate::memory::GuestMemory;
use crate::record::Input;
use crate::vfio::Bar;
use crate::vfio::msix::Interrupts;
use crate::vfio::pci::{CONFIG_LEN, Effect};
use crate::vfio::server::{Device, Region, RegionFile};

/// Widest access passed to a front-end, in bytes.
const ACCESS_LEN: u64 = 8;

impl<F: Frontend> Hca<F> {
    fn bar_read(&mut self, bar: Bar, offset: u64, out: &mut [u8]) {
        if !self.config.memory_enabled() {
            // Reads return all ones, as on a bus where no device claims the access.
            out.fill(0xff);
            return;
        }
        for (at, part) in pieces(offset, out.len()) {
            let part = &mut out[part];
            match self.decode(bar, at) {
                Target::MsixTable(offset) => self.interrupts.read_table(offset, part),
                Target::MsixPending(offset) => self.interrupts.read_pba(offset, part),
                Target::Frontend => {
                    let cx = &mut context!(self);
                    self.frontend.bar_read(cx, bar, at, part);
                }
            }
            self.trace_access(&RegisterAccess { bar, offset: at, data: part, write: false });
        }
        self.report_events();
    }

    fn bar_write(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        if !self.config.memory_enabled() {
            let reason = MEMORY_SPACE_OFF;
            return self.monitor.ignored_store(reason, bar.number(), offset);
        }
        for (at, part) in pieces(offset, data.len()) {
            let part = &data[part];
            // Trace the access before its effects.
            self.trace_access(&RegisterAccess { bar, offset: at, data: part, write: true });
            match self.decode(bar, at) {
                Target::MsixTable(offset) => self.interrupts.write_table(offset, part),
                Target::MsixPending(_) => {}
                Target::Frontend => {
                    let cx = &mut context!(self);
                    self.frontend.bar_write(cx, bar, at, part);
                }
            }
        }
        self.report_events();
    }

    fn trace_access(&mut self, access: &RegisterAccess<'_>) {
        if self.monitor.trace().is_some() {
            trace::access(self, access);
        }
    }

    /// Returns the target of an access at `offset`. Each piece of an access has only one target, because the MSI-X
    /// structures begin and end at multiples of 8.
    pub(super) fn decode(&self, bar: Bar, offset: u64) -> Target {
        let inside = |(of, start): (Bar, u32), len: u64| {
            let within = offset.checked_sub(u64::from(start)).filter(|within| of == bar && *within < len);
            within.and_then(|within| usize::try_from(within).ok())
        };
        let table = inside(self.pci.msix.table, self.interrupts.table_len()).map(Target::MsixTable);
        let pending = || inside(self.pci.msix.pending, self.interrupts.pba_len()).map(Target::MsixPending);
        table.or_else(pending).unwrap_or(Target::Frontend)
    }
}

impl<F: Frontend> Device for Hca<F> {
    fn region_len(&self, region: Region) -> u64 {
        match region {
            Region::Bar(bar) => self.pci.bars.len_of(bar),
            Region::Config => CONFIG_LEN,
        }
    }

    fn region_read(&mut self, region: Region, offset: u64, out: &mut [u8]) {
        self.step(Input::RegionRead { region: region.index(), offset, len: out.len() });
        match region {
            Region::Bar(bar) => self.bar_read(bar, offset, out),
            Region::Config => self.config.read(offset, out),
        }
        self.record_answer(out);
    }

    fn region_write(&mut self, region: Region, offset: u64, data: &[u8]) {
        self.step(Input::RegionWrite { region: region.index(), offset, data: data.into() });
        self.expect_doorbells();
        match region {
            Region::Bar(bar) => self.bar_write(bar, offset, data),
            Region::Config => match self.config.write(offset, data) {
                Effect::None => self.apply_config(),
                Effect::FunctionLevelReset => {
                    limited!(info, "guest requested a function-level reset");
                    self.trace_reset("function_level");
                    let mac = self.port.addresses().own.mac;
                    self.power_on();
                    if F::FLR_KEEPS_MAC {
                        self.port.set_mac(mac);
                    }
                }
            },
        }
    }

    fn region_file(&mut self, region: Region) -> Option<RegionFile> {
        self.doorbells.as_mut()?.share(region)
    }

    fn memory(&mut self) -> &mut GuestMemory {
        &mut self.memory
    }

    fn interrupts(&mut self) -> &mut Interrupts {
        &mut self.interrupts
    }

    fn reset(&mut self) {
        self.step(Input::Reset);
        self.trace_reset("vfio");
        self.power_on();
    }
}

pub(super) enum Target {
    MsixTable(usize),
    MsixPending(usize),
    Frontend,
}

/// Splits an access into pieces of at most 8 bytes that do not cross multiples of 8.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset.wrapping_add(done as u64);
        let room = usize::try_from(ACCESS_LEN - at % ACCESS_LEN).unwrap_or(1);
        let end = done + room.min(len - done);
        let part = done..end;
        done = end;
        (!part.is_empty()).then_some((at, part))
    })
}
