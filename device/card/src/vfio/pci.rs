//! PCI config space of a single-function PCI Express endpoint.
//!
//! Config space is stored as several images: the current bytes, the power-on bytes, the bits that software may write,
//! and the bits that software clears by writing 1 (RW1C). Methods such as [`ConfigSpace::bus_master`] derive the
//! effects of a write from the resulting bytes. A function-level reset is an exception: its bit always reads as 0.
//!
//! # Spec
//! PCI Local Bus 3.0, chapter 6; PCI Express Base 4.0, chapter 7; PCI Power Management 1.2, section 3.2. Registers and
//! fields are named as in these specifications.

use super::{Bar, MemoryBar, PciFunction};
use crate::vfio::msix::Gate;

/// Length of PCI Express config space in bytes.
pub const CONFIG_LEN: u64 = LEN as u64;

const LEN: usize = 4096;

/// Offsets in the type 0 header.
mod header {
    pub(super) const VENDOR_ID: usize = 0x00;
    pub(super) const DEVICE_ID: usize = 0x02;
    pub(super) const COMMAND: usize = 0x04;
    pub(super) const STATUS: usize = 0x06;
    pub(super) const REVISION_ID: usize = 0x08;
    pub(super) const CLASS_CODE: usize = 0x09;
    pub(super) const CACHE_LINE_SIZE: usize = 0x0c;
    pub(super) const BAR0: usize = 0x10;
    pub(super) const SUBSYSTEM_VENDOR_ID: usize = 0x2c;
    pub(super) const SUBSYSTEM_ID: usize = 0x2e;
    pub(super) const CAPABILITIES_POINTER: usize = 0x34;
    pub(super) const INTERRUPT_LINE: usize = 0x3c;
}

const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
/// Writable command bits: memory space, bus master, parity error response, SERR# enable, interrupt disable.
/// I/O space is not supported.
const COMMAND_WRITABLE: u16 = COMMAND_MEMORY | COMMAND_MASTER | 1 << 6 | 1 << 8 | 1 << 10;
const STATUS_CAPABILITIES: u16 = 1 << 4;
/// RW1C status bits: data parity error, signalled and received aborts, system error, detected parity error.
const STATUS_CLEARED_BY_ONE: u16 = 0xf900;
const BAR_MEMORY_64: u64 = 0b100;
const BAR_PREFETCHABLE: u64 = 0b1000;
/// Bits of a memory BAR that are not part of its address.
const BAR_ATTRIBUTES: u64 = 0xf;

/// Power management capability, 8 bytes.
const PM_POINTER: u8 = 0x40;
const PM: usize = PM_POINTER as usize;
const PM_PMCSR: usize = PM + 4;
/// Version 3, no PME, no D1, no D2.
const PM_PMC: u16 = 3;
const PMCSR_POWER_STATE: u16 = 0b11;
const PMCSR_NO_SOFT_RESET: u16 = 1 << 3;
const POWER_D0: u16 = 0;
const POWER_D3: u16 = 3;

/// MSI-X capability, 12 bytes.
const MSIX_POINTER: u8 = 0x50;
const MSIX: usize = MSIX_POINTER as usize;
const MSIX_CONTROL: usize = MSIX + 2;
const MSIX_FUNCTION_MASK: u16 = 1 << 14;
const MSIX_ENABLE: u16 = 1 << 15;

/// PCI Express capability, 60 bytes.
const EXPRESS_POINTER: u8 = 0x60;
const EXPRESS: usize = EXPRESS_POINTER as usize;
const DEVICE_CONTROL: usize = EXPRESS + 8;
const DEVICE_CONTROL_FLR: u16 = 1 << 15;
/// Writable device control bits: error reporting enables, relaxed ordering, payload size, extended tags, no snoop, read
/// request size. Phantom functions and auxiliary power are not supported. Initiate Function Level Reset reads as 0.
const DEVICE_CONTROL_WRITABLE: u16 = 0x791f | 0b111 << 5;
/// Device control after reset: relaxed ordering and no snoop enabled, payload 128 bytes, read requests 512 bytes.
const DEVICE_CONTROL_RESET: u16 = 1 << 4 | 1 << 11 | 2 << 12;
/// RW1C device status bits: correctable, non-fatal and fatal error, unsupported request.
const DEVICE_STATUS_CLEARED_BY_ONE: u16 = 0xf;
/// Device capabilities: payload up to 512 bytes, extended tags, role-based error reporting, function level reset.
const DEVICE_CAPABILITIES: u32 = 2 | 1 << 5 | 1 << 15 | 1 << 28;
/// Link speed encoding for 8 GT/s.
const LINK_SPEED: u16 = 3;
const LINK_WIDTH: u16 = 16;
/// Writable link control bits: read completion boundary, common clock, extended synch.
const LINK_CONTROL_WRITABLE: u16 = 1 << 3 | 1 << 6 | 1 << 7;
/// Supported link speeds: 2.5, 5 and 8 GT/s.
const LINK_SPEEDS: u32 = 0b111 << 1;

/// Offset of the first extended capability.
const EXTENDED: usize = 0x100;

/// Config space of one function.
#[derive(Debug)]
pub struct ConfigSpace {
    bytes: Box<[u8; LEN]>,
    writable: Box<[u8; LEN]>,
    cleared_by_one: Box<[u8; LEN]>,
    power_on: Box<[u8; LEN]>,
}

fn zeros() -> Box<[u8; LEN]> {
    Box::new([0; LEN])
}

/// Side effect of a write to config space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// The write has no side effect.
    None,
    /// The caller must reset the function, including config space.
    FunctionLevelReset,
}

impl ConfigSpace {
    /// Creates config space in its power-on state.
    pub fn new(function: &PciFunction) -> Self {
        let mut space =
            Self { bytes: zeros(), writable: zeros(), cleared_by_one: zeros(), power_on: zeros() };
        space.lay_out_header(function);
        space.lay_out_power_management();
        space.lay_out_msix(function);
        space.lay_out_express();
        if let Some(number) = function.serial_number {
            space.lay_out_serial_number(number);
        }
        space.power_on.clone_from(&space.bytes);
        space
    }

    /// Restores the power-on state.
    pub fn reset(&mut self) {
        self.bytes.clone_from(&self.power_on);
    }

    /// Reads bytes at any offset. Bytes beyond config space read as 0.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        out.fill(0);
        let Some(from) = usize::try_from(offset).ok().and_then(|offset| self.bytes.get(offset..)) else {
            return;
        };
        for (byte, value) in out.iter_mut().zip(from) {
            *byte = *value;
        }
    }

    /// Writes bytes at any offset. Read-only bits keep their values.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        let power_state = self.word(PM_PMCSR) & PMCSR_POWER_STATE;
        let mut effect = Effect::None;
        for (at, new) in data.iter().enumerate() {
            let Some(at) = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(at)) else {
                break;
            };
            let (Some(byte), Some(writable), Some(cleared)) =
                (self.bytes.get_mut(at), self.writable.get(at), self.cleared_by_one.get(at))
            else {
                break;
            };
            *byte = (*byte & !writable | new & writable) & !(new & cleared);
            if at == DEVICE_CONTROL + 1 && u16::from(*new) << 8 & DEVICE_CONTROL_FLR != 0 {
                effect = Effect::FunctionLevelReset;
            }
        }
        let wanted = self.word(PM_PMCSR) & PMCSR_POWER_STATE;
        if wanted != POWER_D0 && wanted != POWER_D3 {
            // D1 and D2 are not supported. A write that selects them completes without changing the state.
            self.put(PM_PMCSR, &(self.word(PM_PMCSR) & !PMCSR_POWER_STATE | power_state).to_le_bytes());
        }
        effect
    }

    /// Returns whether BARs respond, which requires memory space enable and full power.
    pub fn memory_enabled(&self) -> bool {
        self.word(header::COMMAND) & COMMAND_MEMORY != 0 && self.full_power()
    }

    /// Returns whether the function may access memory, which requires bus master enable and full power.
    pub fn bus_master(&self) -> bool {
        self.word(header::COMMAND) & COMMAND_MASTER != 0 && self.full_power()
    }

    /// Returns the bus address that software assigned to a memory BAR, or 0 if none was assigned.
    pub fn bar_address(&self, bar: Bar) -> u64 {
        let at = header::BAR0 + 4 * usize::from(bar.number());
        let dword = |at| u64::from(self.word(at)) | u64::from(self.word(at + 2)) << 16;
        (dword(at) | dword(at + 4) << 32) & !BAR_ATTRIBUTES
    }

    pub fn msix_gate(&self) -> Gate {
        let control = self.word(MSIX_CONTROL);
        Gate {
            enabled: control & MSIX_ENABLE != 0,
            function_masked: control & MSIX_FUNCTION_MASK != 0,
            bus_master: self.bus_master(),
        }
    }

    fn full_power(&self) -> bool {
        self.word(PM_PMCSR) & PMCSR_POWER_STATE == POWER_D0
    }

    fn lay_out_header(&mut self, function: &PciFunction) {
        let [class, subclass, interface] = function.class;
        self.put(header::VENDOR_ID, &function.vendor.to_le_bytes());
        self.put(header::DEVICE_ID, &function.device.to_le_bytes());
        self.allow(header::COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        self.put(header::STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        self.clear_by_one(header::STATUS, &STATUS_CLEARED_BY_ONE.to_le_bytes());
        self.put(header::REVISION_ID, &[function.revision]);
        self.put(header::CLASS_CODE, &[interface, subclass, class]);
        self.allow(header::CACHE_LINE_SIZE, &[0xff]);
        for (bar, MemoryBar { len, prefetchable }) in function.bars.iter() {
            let at = header::BAR0 + 4 * usize::from(bar.number());
            let kind = if prefetchable { BAR_MEMORY_64 | BAR_PREFETCHABLE } else { BAR_MEMORY_64 };
            self.put(at, &kind.to_le_bytes());
            // Software determines the size by writing all ones and reading back.
            self.allow(at, &len.wrapping_neg().to_le_bytes());
        }
        self.put(header::SUBSYSTEM_VENDOR_ID, &function.subsystem_vendor.to_le_bytes());
        self.put(header::SUBSYSTEM_ID, &function.subsystem.to_le_bytes());
        self.put(header::CAPABILITIES_POINTER, &[PM_POINTER]);
        self.allow(header::INTERRUPT_LINE, &[0xff]);
    }

    fn lay_out_power_management(&mut self) {
        const ID: u8 = 0x01;
        self.put(PM, &[ID, MSIX_POINTER]);
        self.put(PM + 2, &PM_PMC.to_le_bytes());
        self.put(PM_PMCSR, &PMCSR_NO_SOFT_RESET.to_le_bytes());
        self.allow(PM_PMCSR, &PMCSR_POWER_STATE.to_le_bytes());
    }

    fn lay_out_msix(&mut self, function: &PciFunction) {
        const ID: u8 = 0x11;
        self.put(MSIX, &[ID, EXPRESS_POINTER]);
        self.put(MSIX_CONTROL, &(function.msix.vectors.saturating_sub(1) & 0x7ff).to_le_bytes());
        self.allow(MSIX_CONTROL, &(MSIX_ENABLE | MSIX_FUNCTION_MASK).to_le_bytes());
        // The low three bits are the BAR number.
        let location = |(bar, offset): (Bar, u32)| (offset & !0b111 | u32::from(bar.number())).to_le_bytes();
        self.put(MSIX + 4, &location(function.msix.table));
        self.put(MSIX + 8, &location(function.msix.pending));
    }

    fn lay_out_express(&mut self) {
        const ID: u8 = 0x10;
        /// Capability version 2, endpoint.
        const CAPABILITIES: u16 = 2;
        /// ASPM optionality compliance; no ASPM, port 0.
        const LINK_OPTIONALITY: u32 = 1 << 22;
        const LINK_STATUS_CLOCK: u16 = 1 << 12;

        let link = LINK_SPEED | LINK_WIDTH << 4;
        self.put(EXPRESS, &[ID, 0]);
        self.put(EXPRESS + 0x02, &CAPABILITIES.to_le_bytes());
        self.put(EXPRESS + 0x04, &DEVICE_CAPABILITIES.to_le_bytes());
        self.put(DEVICE_CONTROL, &DEVICE_CONTROL_RESET.to_le_bytes());
        self.allow(DEVICE_CONTROL, &DEVICE_CONTROL_WRITABLE.to_le_bytes());
        self.clear_by_one(EXPRESS + 0x0a, &DEVICE_STATUS_CLEARED_BY_ONE.to_le_bytes());
        self.put(EXPRESS + 0x0c, &(u32::from(link) | LINK_OPTIONALITY).to_le_bytes());
        self.allow(EXPRESS + 0x10, &LINK_CONTROL_WRITABLE.to_le_bytes());
        self.put(EXPRESS + 0x12, &(link | LINK_STATUS_CLOCK).to_le_bytes());
        self.put(EXPRESS + 0x2c, &LINK_SPEEDS.to_le_bytes());
        // Link Control 2: target link speed.
        self.put(EXPRESS + 0x30, &LINK_SPEED.to_le_bytes());
        self.allow(EXPRESS + 0x30, &[0xf]);
    }

    /// Lays out the Device Serial Number capability (PCI Express Base 4.0, section 7.9.3). Without it, the first
    /// extended capability header is all zeros, which means that no extended capability exists.
    fn lay_out_serial_number(&mut self, serial_number: u64) {
        const ID: u16 = 0x0003;
        const VERSION: u16 = 1;
        self.put(EXTENDED, &ID.to_le_bytes());
        self.put(EXTENDED + 2, &VERSION.to_le_bytes());
        self.put(EXTENDED + 4, &serial_number.to_le_bytes());
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    fn clear_by_one(&mut self, at: usize, mask: &[u8]) {
        self.cleared_by_one[at..at + mask.len()].copy_from_slice(mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfio::{Bars, MsixLayout};

    fn function() -> PciFunction {
        PciFunction {
            vendor: 0x10ee,
            device: 0x7028,
            subsystem_vendor: 0x10ee,
            subsystem: 7,
            revision: 1,
            class: [2, 7, 0],
            bars: Bars::new([
                (Bar::Bar0, MemoryBar { len: 1 << 20, prefetchable: false }),
                (Bar::Bar2, MemoryBar { len: 8 << 20, prefetchable: false }),
            ]),
            msix: MsixLayout { vectors: 64, table: (Bar::Bar0, 0x20000), pending: (Bar::Bar0, 0x30000) },
            serial_number: None,
        }
    }

    fn space() -> ConfigSpace {
        ConfigSpace::new(&function())
    }

    fn dword(space: &ConfigSpace, offset: u64) -> u32 {
        let mut bytes = [0xa5; 4];
        space.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn write32(space: &mut ConfigSpace, offset: u64, value: u32) -> Effect {
        space.write(offset, &value.to_le_bytes())
    }

    fn write16(space: &mut ConfigSpace, offset: u64, value: u16) -> Effect {
        space.write(offset, &value.to_le_bytes())
    }

    /// Compares config space with the output of `lspci -xxx` for this function after power-on.
    #[test]
    fn power_on_config_space_matches_lspci_dump() {
        let mut bytes = [0; 0xa0];
        space().read(0, &mut bytes);
        #[rustfmt::skip]
        let expected: [u8; 0xa0] = [
            0xee, 0x10, 0x28, 0x70, 0x00, 0x00, 0x10, 0x00, 0x01, 0x00, 0x07, 0x02, 0x00, 0x00, 0x00, 0x00,
            0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xee, 0x10, 0x07, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x01, 0x50, 0x03, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x11, 0x60, 0x3f, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x10, 0x00, 0x02, 0x00, 0x22, 0x80, 0x00, 0x10, 0x10, 0x28, 0x00, 0x00, 0x03, 0x01, 0x40, 0x00,
            0x00, 0x00, 0x03, 0x11, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0e, 0x00, 0x00, 0x00,
            0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn bar_sizing_returns_length() {
        let mut space = space();
        for (at, len) in [(0x10, 1_u64 << 20), (0x18, 8 << 20)] {
            let _ = write32(&mut space, at, u32::MAX);
            let _ = write32(&mut space, at + 4, u32::MAX);
            let mask = u64::from(dword(&space, at)) | u64::from(dword(&space, at + 4)) << 32;
            assert_eq!(mask & 0xf, 0b100, "the BAR is a 64-bit memory BAR");
            assert_eq!((!(mask & !0xf)).wrapping_add(1), len);
            let _ = write32(&mut space, at, 0xfe12_3456);
            assert_eq!(u64::from(dword(&space, at)), 0xfe12_3456 & (len.wrapping_neg() & 0xffff_ffff) | 4);
        }
        for unimplemented in [0x20, 0x24, 0x30] {
            let _ = write32(&mut space, unimplemented, u32::MAX);
            assert_eq!(dword(&space, unimplemented), 0);
        }
    }

    #[test]
    fn bar_address_excludes_attributes() {
        let mut space = space();
        assert_eq!(space.bar_address(Bar::Bar0), 0);
        let _ = write32(&mut space, 0x10, 0xfe10_0000);
        let _ = write32(&mut space, 0x14, 0x38);
        assert_eq!(space.bar_address(Bar::Bar0), 0x38_fe10_0000);
        space.reset();
        assert_eq!(space.bar_address(Bar::Bar0), 0);
    }

    #[test]
    fn read_only_bits_do_not_change() {
        let mut space = space();
        let before: Vec<u32> = (0..64).map(|n| dword(&space, n * 4)).collect();
        for at in [0x00, 0x08, 0x2c, 0x34, 0x40, 0x54, 0x58, 0x60, 0x64, 0x6c, 0x8c] {
            let flipped = !dword(&space, at);
            let _ = write32(&mut space, at, flipped);
            assert_eq!(dword(&space, at), before[usize::try_from(at).unwrap() / 4], "{at:#x}");
        }
    }

    #[test]
    fn memory_and_bus_master_follow_command_register() {
        let mut space = space();
        assert!(!space.memory_enabled() && !space.bus_master());
        let _ = write16(&mut space, 4, 0xffff);
        assert_eq!(dword(&space, 4) & 0xffff, 0x0546, "I/O space and special cycles cannot be enabled");
        assert!(space.memory_enabled() && space.bus_master());
        let _ = write16(&mut space, 4, 2);
        assert!(space.memory_enabled() && !space.bus_master());
    }

    #[test]
    fn d3hot_disables_memory_space_and_bus_mastering() {
        let mut space = space();
        let _ = write16(&mut space, 4, 6);
        let _ = write16(&mut space, 0x44, 1);
        assert_eq!(dword(&space, 0x44), 0x8, "the function stays in D0, because D1 is not supported");
        let _ = write16(&mut space, 0x44, 3);
        assert_eq!(dword(&space, 0x44), 0xb);
        assert!(!space.memory_enabled() && !space.bus_master());
        let _ = write16(&mut space, 0x44, 2);
        assert_eq!(dword(&space, 0x44), 0xb);
        let _ = write16(&mut space, 0x44, 0);
        assert!(space.memory_enabled() && space.bus_master());
    }

    #[test]
    fn msix_gate_follows_control_and_bus_master() {
        let mut space = space();
        let _ = write16(&mut space, 0x52, 0xffff);
        assert_eq!(dword(&space, 0x50) >> 16, 0xc03f, "the table size is read-only");
        assert_eq!(space.msix_gate(), Gate { enabled: true, function_masked: true, bus_master: false });
        let _ = write16(&mut space, 4, 4);
        let _ = write16(&mut space, 0x52, 0x8000);
        assert_eq!(space.msix_gate(), Gate { enabled: true, function_masked: false, bus_master: true });
    }

    #[test]
    fn every_read_request_size_is_accepted() {
        let mut space = space();
        for code in 0..6_u16 {
            let control = u16::try_from(dword(&space, 0x68) & 0x8fff).unwrap() | code << 12;
            assert_eq!(write16(&mut space, 0x68, control), Effect::None);
            assert_eq!(dword(&space, 0x68) >> 12 & 0b111, u32::from(code));
        }
    }

    #[test]
    fn flr_bit_requests_reset_and_reads_zero() {
        let mut space = space();
        let _ = write16(&mut space, 4, 6);
        assert_eq!(write16(&mut space, 0x68, 0x2810 | 0x8000), Effect::FunctionLevelReset);
        assert_eq!(dword(&space, 0x68) & 0x8000, 0);
        assert_eq!(
            space.write(0x69, &[0x80]),
            Effect::FunctionLevelReset,
            "a byte write also requests the reset"
        );
        space.reset();
        assert!(!space.memory_enabled());
        assert_eq!(dword(&space, 0x68), 0x2810);
    }

    #[test]
    fn config_accesses_past_capabilities_have_no_effect() {
        let mut space = space();
        let mut out = [0xa5; 16];
        space.read(0xf8, &mut out);
        assert_eq!(out, [0; 16]);
        assert_eq!(space.write(0xfc, &[0xff; 64]), Effect::None);
        assert_eq!(space.write(u64::MAX, &[0xff; 4]), Effect::None);
        space.read(0x100, &mut out);
        assert_eq!(out, [0; 16], "there are no extended capabilities");
        assert_eq!(space.write(0xffc, &[0xff; 64]), Effect::None);
        space.read(u64::MAX, &mut out);
    }

    #[test]
    fn serial_number_is_first_extended_capability() {
        let mut space =
            ConfigSpace::new(&PciFunction { serial_number: Some(0x0200_00ff_ff00_0001), ..function() });
        let _ = write32(&mut space, 0x104, 0xffff_ffff);
        let words = [0x100, 0x104, 0x108, 0x10c].map(|at| dword(&space, at));
        assert_eq!(words, [0x0001_0003, 0xff00_0001, 0x0200_00ff, 0]);
    }

    #[test]
    fn msix_structures_may_have_their_own_bar() {
        let bars = Bars::new([
            (Bar::Bar0, MemoryBar { len: 8 << 20, prefetchable: true }),
            (Bar::Bar3, MemoryBar { len: 64 << 10, prefetchable: true }),
        ]);
        let msix = MsixLayout { vectors: 64, table: (Bar::Bar3, 0), pending: (Bar::Bar3, 0x8000) };
        let space = ConfigSpace::new(&PciFunction { bars, msix, ..function() });
        assert_eq!([0x54, 0x58].map(|at| dword(&space, at)), [3, 0x8003]);
        assert_eq!([0x10, 0x14, 0x18, 0x1c, 0x20].map(|at| dword(&space, at)), [0xc, 0, 0, 0xc, 0]);
    }
}
