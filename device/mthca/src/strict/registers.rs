//! Checks accesses to registers.

use card::frontend::strict::Findings;
use card::vfio::Bar;
use hcr::strict::HcrRules;
use protocol::hca::hcr::HcrWord;
use protocol::hca::mthca::doorbell::{UAR_PAGE, UarRegister};
use protocol::hca::mthca::regs::{RESET_VALUE, Register};
use protocol::hca::words;
use protocol::ids::Eqn;

use super::Strict;
use super::rules::{
    DOORBELL_HALF, DOORBELL_READ, DOORBELL_RESERVED, EQ_CONSUMER, EQ_NOTHING, HCR_NOT_POLLED, HCR_RESERVED,
    NARROW_WRITE, NO_EFFECT, NO_REGISTER, READ_ONLY_WRITE,
};
use crate::resources::DeviceState;

const HCR: HcrRules =
    HcrRules { reserved: &HCR_RESERVED, not_polled: &HCR_NOT_POLLED, no_effect: &NO_EFFECT };

pub(in super::super) fn read(strict: &mut Strict, bar: Bar, offset: u64, len: usize) -> Findings {
    let mut found = Findings::default();
    match bar {
        Bar::Bar0 => {
            let end = offset.saturating_add(len as u64);
            let mut registers = (offset & !3..end).step_by(4).map(Register::at);
            if registers.any(|register| register == Some(Register::Hcr(HcrWord::Command))) {
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
    match bar {
        Bar::Bar0 => {
            for (offset, word) in words::writes(offset, data) {
                bar0(strict, offset, u32::from_be_bytes(word), &mut found);
            }
        }
        _ => bar2(strict, offset, data, &mut found),
    }
    found
}

fn bar0(strict: &mut Strict, offset: u64, value: u32, found: &mut Findings) {
    match Register::at(offset) {
        Some(Register::Hcr(word)) => strict.hcr.write(&HCR, word, value, found),
        Some(Register::Reset) if value != RESET_VALUE => {
            found.add(&NO_EFFECT, format!("{value:#x} written to the reset register, which has no effect"));
        }
        Some(Register::Catastrophe) => {
            found.add(
                &READ_ONLY_WRITE,
                format!("{value:#x} written to the catastrophic error buffer, which is read-only"),
            );
        }
        Some(Register::Reset | Register::EqArm(_) | Register::EqSetCi(_) | Register::ClearInterrupt) => {}
        None => found.add(&NO_REGISTER, format!("write to bar0+{offset:#x}, where no register exists")),
    }
}

fn bar2(strict: &mut Strict, offset: u64, data: &[u8], found: &mut Findings) {
    let page = offset / UAR_PAGE;
    let Some((register, second)) = UarRegister::at(offset % UAR_PAGE) else {
        found.add(&NO_REGISTER, format!("write to bar2+{offset:#x}, where no register exists"));
        return;
    };
    let reserved = match register {
        UarRegister::Send => [0xc0, 0xc0],
        UarRegister::ArmCq => [0xc000_0000, 0],
    };
    let (words, _) = data.as_chunks::<4>();
    for (word, reserved) in words.iter().zip(reserved.into_iter().skip(usize::from(second))) {
        let bits = u32::from_be_bytes(*word) & reserved;
        if bits != 0 {
            found.add(
                &DOORBELL_RESERVED,
                format!("reserved bits {bits:#x} set in a doorbell in UAR page {page}"),
            );
        }
    }
    match (second, data.len()) {
        (false, 4) => strict.half = Some((page, register)),
        (true, 4) if strict.half.take() != Some((page, register)) => {
            found.add(
                &DOORBELL_HALF,
                format!("second half of a doorbell without a first half in UAR page {page}"),
            );
        }
        _ => {}
    }
}

pub(in super::super) fn write_register(state: &DeviceState, offset: u64, value: u32) -> Findings {
    match Register::at(offset) {
        Some(Register::EqArm(first)) => arm_eqs(state, first, value),
        Some(Register::EqSetCi(eqn)) => set_consumer(state, eqn, value),
        _ => Findings::default(),
    }
}

fn arm_eqs(state: &DeviceState, first: Eqn, mask: u32) -> Findings {
    let mut found = Findings::default();
    let valid = |eqn: &u32| state.resources().is_some_and(|all| all.eqs.contains(Eqn::new(*eqn)));
    let armed = (0..u32::BITS).filter(|bit| mask >> bit & 1 != 0).map(|bit| first.get() + bit);
    if let Some(eqn) = armed.into_iter().find(|eqn| !valid(eqn)) {
        found.add(&EQ_NOTHING, format!("EQ {eqn:#x} armed, but it is not valid"));
    }
    found
}

fn set_consumer(state: &DeviceState, eqn: Eqn, value: u32) -> Findings {
    const AHEAD: u32 = 1 << 31;
    let mut found = Findings::default();
    let Some(queue) = state.resources().and_then(|all| all.eqs.get(eqn)) else {
        found.add(&EQ_NOTHING, format!("consumer index {value:#x} written for EQ {eqn}, which is not valid"));
        return found;
    };
    let (producer, consumer) = (queue.ring().producer(), queue.consumer());
    if producer.wrapping_sub(value) >= AHEAD {
        found.add(
            &EQ_CONSUMER,
            format!("EQ {eqn}: consumer index {value:#x} is past producer index {producer:#x}"),
        );
    } else if value.wrapping_sub(consumer) >= AHEAD {
        found.add(
            &EQ_CONSUMER,
            format!("EQ {eqn}: consumer index moved back from {consumer:#x} to {value:#x}"),
        );
    }
    found
}
