//! Strict-mode checks of register accesses.

use card::frontend::strict::Findings;
use card::vfio::Bar;
use protocol::hca::e810::interrupt::{DynCtl, Route};
use protocol::hca::e810::regs::Register;

use super::Strict;
use super::rules::{
    CLEAR_WITHOUT_ENABLE, HEAD_NOT_POLLED, NARROW_WRITE, NO_SUCH_QUEUE, READ_ONLY_WRITE, RING_INDEX,
    RING_MOVED, ROUTE_NO_VECTOR,
};
use crate::admin::ring::{RingName, RingRegister, Rings};
use crate::options::Options;
use crate::vectors::RouteRegister;

/// Tracks reads of the admin send queue's head register.
pub(in super::super) fn read(strict: &mut Strict, bar: Bar, offset: u64) {
    if bar == Bar::Bar0 && Register::at(offset) == Some((Register::PfFwAtqh, 0)) {
        strict.head_unread = false;
    }
}

/// Function state used by the checks.
#[derive(Clone, Copy)]
pub(in super::super) struct View<'a> {
    pub(in super::super) options: &'a Options,
    pub(in super::super) rings: &'a Rings,
}

/// Checks a write to BAR0 before it takes effect.
pub(in super::super) fn write(strict: &mut Strict, view: View<'_>, offset: u64, data: &[u8]) -> Findings {
    let mut found = Findings::default();
    if !offset.is_multiple_of(4) || !matches!(data.len(), 4 | 8) {
        found.add(
            &NARROW_WRITE,
            format!(
                "ignored {}-byte write at bar0+{offset:#x}, expected an aligned write of 4 or 8 bytes",
                data.len()
            ),
        );
        return found;
    }
    let (words, _) = data.as_chunks::<4>();
    for (offset, word) in (offset..).step_by(4).zip(words) {
        // Do not report unknown registers, since drivers also write to registers of hardware blocks that this device
        // lacks.
        if let Some((register, 0)) = Register::at(offset) {
            if let Some((ring, field)) = RingRegister::of(register) {
                ring_register(
                    strict,
                    view.rings,
                    ring,
                    field,
                    u32::from_le_bytes(*word),
                    register,
                    &mut found,
                );
            }
            other_register(view, register, word, &mut found);
        }
    }
    found
}

fn ring_register(
    strict: &mut Strict,
    rings: &Rings,
    name: RingName,
    field: RingRegister,
    value: u32,
    register: Register,
    found: &mut Findings,
) {
    let ring = rings.get(name);
    let in_use = ring.is_enabled() && ring.read(RingRegister::Head) != ring.read(RingRegister::Tail);
    match field {
        RingRegister::BaseLow | RingRegister::BaseHigh
            if name == RingName::Send && in_use && ring.read(field) != value =>
        {
            found.add(&RING_MOVED, format!("{register} changed while the ring holds commands"));
        }
        RingRegister::Head | RingRegister::Tail
            if ring.is_enabled() && value != 0 && value >= ring.entries().into() =>
        {
            found.add(
                &RING_INDEX,
                format!("{register} is {value}, but the ring has {} entries", ring.entries()),
            );
        }
        RingRegister::Tail
            if name == RingName::Send
                && ring.is_enabled()
                && std::mem::replace(&mut strict.head_unread, true) =>
        {
            found.add(
                &HEAD_NOT_POLLED,
                format!(
                    "{register} set to {value} before the driver read the completion of the previous commands"
                ),
            );
        }
        _ => {}
    }
}

fn other_register(view: View<'_>, register: Register, word: &[u8; 4], found: &mut Findings) {
    match register {
        Register::PfFuncRid
        | Register::GlgenRstat
        | Register::GlnvmUld
        | Register::GlnvmGens
        | Register::GlnvmFla
        | Register::GlMngFwsm
        | Register::GlpeCpustatus(_)
        | Register::QtxCommHead(_) => {
            found.add(&READ_ONLY_WRITE, format!("write to read-only register {register}"));
        }
        Register::QtxCommDbell(queue)
        | Register::QintTqctl(queue)
        | Register::QintRqctl(queue)
        | Register::QrxCtrl(queue)
        | Register::QrxTail(queue)
        | Register::QrxContext(_, queue)
            if queue >= view.options.queues.get() =>
        {
            found.add(&NO_SUCH_QUEUE, format!("write to {register}, which the function does not have"));
        }
        Register::GlintDynCtl(vector) if vector >= view.options.vectors.get() => {
            found.add(&NO_SUCH_QUEUE, format!("write to {register}, which the function does not have"));
        }
        Register::GlintDynCtl(_) => {
            let control = DynCtl::parse(word);
            if control.clear_pending && !control.enable {
                found.add(&CLEAR_WITHOUT_ENABLE, format!("{register}: CLEARPBA written without INTENA"));
            }
        }
        _ => {}
    }
    if RouteRegister::of(register).is_some() {
        let route = Route::parse(word);
        if route.enable && route.vector >= view.options.vectors.get() {
            found.add(
                &ROUTE_NO_VECTOR,
                format!("{register} selects vector {}, which the function does not have", route.vector),
            );
        }
    }
}
