//! Checks writes to BAR0.

use card::frontend::strict::Findings;
use protocol::hca::mlx5::doorbell::UarRegister;
use protocol::hca::mlx5::regs::Register;
use protocol::hca::words;

use super::rules::{BLUE_FLAME, NARROW_WRITE, NO_REGISTER};
use crate::doorbell;

pub(in super::super) fn write(log_uar_page: u16, offset: u64, data: &[u8]) -> Findings {
    let mut found = Findings::default();
    match doorbell::place(log_uar_page, offset) {
        Some((_, within)) => uar_page(offset, within, data.len(), &mut found),
        None => init_segment(offset, data, &mut found),
    }
    found
}

fn init_segment(offset: u64, data: &[u8], found: &mut Findings) {
    if !words::is_word_write(offset, data) {
        return narrow(offset, data.len(), found);
    }
    for (offset, _) in words::writes(offset, data) {
        match Register::at(offset) {
            Some((Register::QueueAddressHigh | Register::QueueAddressLow | Register::CommandDoorbell, _)) => {
            }
            Some((register, _)) => {
                found.add(&NO_REGISTER, format!("write to {}, which is read-only", register.name()));
            }
            None => found.add(&NO_REGISTER, format!("write to bar0+{offset:#x}, where no register exists")),
        }
    }
}

fn uar_page(offset: u64, within: u64, len: usize, found: &mut Findings) {
    match (UarRegister::at(within), len) {
        (None, _) => found.add(&NO_REGISTER, format!("write to bar0+{offset:#x}, where no register exists")),
        (Some(UarRegister::ArmCq(false) | UarRegister::Send { offset: 0, .. }), 4 | 8)
        | (Some(UarRegister::ArmCq(true) | UarRegister::ArmEq | UarRegister::UpdateEq), 4)
        | (Some(UarRegister::Send { offset: 4, .. }), 4) => {}
        (Some(UarRegister::Send { .. }), 4 | 8) => found.add(
            &BLUE_FLAME,
            format!("{len}-byte write at bar0+{offset:#x} copies a WQE, but BlueFlame is not supported"),
        ),
        _ => narrow(offset, len, found),
    }
}

fn narrow(offset: u64, len: usize, found: &mut Findings) {
    found.add(&NARROW_WRITE, format!("ignored {len}-byte write at bar0+{offset:#x}"));
}
