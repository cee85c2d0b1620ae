//! Checks accesses to registers.

use card::vfio::Bar;
use hcr::strict::HcrRules;
use protocol::hca::jingzhao::doorbell::{UAR_PAGE, UarRegister};
use protocol::hca::jingzhao::regs::{HcrWord, Register};

use super::rules::{
    ARM_NOTHING, DOORBELL_HALF, DOORBELL_READ, DOORBELL_RESERVED, HCR_NOT_POLLED, HCR_RESERVED, NARROW_WRITE,
    NO_EFFECT, NO_REGISTER, READ_ONLY_WRITE,
};
use super::{Findings, Strict};

const HCR: HcrRules =
    HcrRules { reserved: &HCR_RESERVED, not_polled: &HCR_NOT_POLLED, no_effect: &NO_EFFECT };

pub(in super::super) fn read(strict: &mut Strict, bar: Bar, offset: u64, len: usize) -> Findings {
    let mut found = Findings::default();
    match bar {
        Bar::Bar0 => {
            let end = offset.saturating_add(len as u64);
            let mut words = (offset & !3..end).step_by(4).map(Register::at);
            if words.any(|word| word == Some(Register::Hcr(HcrWord::Command))) {
                strict.hcr.read(HcrWord::Command);
            }
        }
        _ => found.add(
            &DOORBELL_READ,
            format!("{len}-byte read from a UAR page, at bar{}+{offset:#x}", bar.number()),
        ),
    }
    found
}

/// Checks a register write before it takes effect.
pub(in super::super) fn write(strict: &mut Strict, bar: Bar, offset: u64, data: &[u8]) -> Findings {
    let mut found = Findings::default();
    let number = bar.number();
    if !offset.is_multiple_of(4) || !matches!(data.len(), 4 | 8) {
        let len = data.len();
        found.add(
            &NARROW_WRITE,
            format!(
                "ignored {len}-byte write at bar{number}+{offset:#x}, expected an aligned write of 4 or 8 bytes"
            ),
        );
        return found;
    }
    let (words, _) = data.as_chunks::<4>();
    match bar {
        Bar::Bar0 => {
            for (offset, word) in (offset..).step_by(4).zip(words) {
                bar0(strict, offset, u32::from_le_bytes(*word), &mut found);
            }
        }
        _ => bar2(strict, offset, words, &mut found),
    }
    found
}

fn bar0(strict: &mut Strict, offset: u64, value: u32, found: &mut Findings) {
    match Register::at(offset) {
        Some(Register::Hcr(word)) => strict.hcr.write(&HCR, word, value, found),
        Some(Register::Reset) if value & 1 == 0 => {
            found.add(&NO_EFFECT, format!("{value:#x} written to the reset register, which has no effect"));
        }
        Some(Register::Reset) => {}
        Some(Register::InitDone) => found.add(&READ_ONLY_WRITE, "write to read-only register init_done"),
        None => found.add(&NO_REGISTER, format!("write to bar0+{offset:#x}, where no register exists")),
    }
}

fn bar2(strict: &mut Strict, offset: u64, words: &[[u8; 4]], found: &mut Findings) {
    const LOW_RESERVED: u32 = 0xc0;
    let page = offset / UAR_PAGE;
    let register = UarRegister::at(offset % UAR_PAGE);
    if let (Some(UarRegister::SendLow), [low, ..]) = (register, words) {
        let reserved = u32::from_le_bytes(*low) & LOW_RESERVED;
        if reserved != 0 {
            found.add(
                &DOORBELL_RESERVED,
                format!("reserved bits {reserved:#x} set in a doorbell in UAR page {page}"),
            );
        }
    }
    match (register, words.len()) {
        (Some(UarRegister::SendLow), 1) => strict.half_page = Some(page),
        (Some(UarRegister::SendHigh), _) if strict.half_page.take() != Some(page) => {
            found.add(
                &DOORBELL_HALF,
                format!("second half of a doorbell without a first half in UAR page {page}"),
            );
        }
        (Some(_), _) => {}
        (None, _) => found.add(&NO_REGISTER, format!("write to bar2+{offset:#x}, where no register exists")),
    }
}

pub(in super::super) fn arm(queue: &str, number: u32) -> Findings {
    let mut found = Findings::default();
    found.add(&ARM_NOTHING, format!("arm doorbell for {queue} {number:#x}, which is not valid"));
    found
}
