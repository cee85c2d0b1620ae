//! Checks work requests that change memory keys.

use card::frontend::strict::Findings;
use card::memory::GuestMemory;
use engine::{Initiator, LocalToken};
use protocol::hca::mlx5::mkey::{AccessMode, MkeyContext};
use protocol::hca::mlx5::qp::Service;
use protocol::hca::mlx5::strided::{RepeatBlock, StridedList};
use protocol::hca::mlx5::umr::MkeyMask;
use protocol::hca::mlx5::wqe::{Operation, SendWqe, Translation, Umr};
use protocol::ids::MkeyIndex;

use super::rules::{KEY_REUSED, UMR_CONTROL, UMR_STRIDED};
use super::wqe_at;
use crate::resources::Resources;
use crate::work;

pub(in super::super) fn umr(
    resources: &Resources,
    initiator: Initiator,
    token: &LocalToken,
    dma: &GuestMemory,
) -> Findings {
    let mut found = Findings::default();
    let qp = resources.qps.get(initiator.qpn.get());
    let (Some(qp), Some(index)) = (qp, work::index_of(token)) else { return found };
    let Ok(bytes) = qp.reread(index, dma) else { return found };
    let Ok(wqe) = SendWqe::parse(&bytes, qp.service(), qp.qpn) else { return found };
    let Operation::Umr(umr) = &wqe.operation else { return found };
    let (place, key) = (wqe_at(index, qp.qpn), wqe.control.key());
    control(umr, key, &place, &mut found);
    let Some(mkey) = resources.mkeys.get(MkeyIndex::of(key)) else { return found };
    let current = MkeyIndex::of(key).key(mkey.context.key);
    // The low byte of a free key is not checked. It may be left over from the key's last use.
    if !mkey.context.free && current != key {
        found.add(
            &UMR_CONTROL,
            format!("{place} names key {key:#x}, but the current key at this index is {current:#x}"),
        );
    }
    let new = mkey.context.updated(umr.control.mask, &umr.mkey);
    if new.access_mode() == Some(AccessMode::Ranges) && umr.control.offset() == 0 {
        let copy = match umr.translation {
            Translation::Pointer(at) => resources.umr_list(dma, initiator, umr.control.units, &at).ok(),
            Translation::None | Translation::Inline(_) => None,
        };
        let list = match umr.translation {
            Translation::Inline(list) => Some(list),
            Translation::None | Translation::Pointer(_) => copy.as_deref(),
        };
        if let Some(strided) = list.and_then(StridedList::parse) {
            strided_list(&strided, &new, &place, &mut found);
        }
    }
    // The kernel's UMR QP is exempt, since it keeps a key's low byte when it reuses the key for another region.
    if qp.service() != Service::Umr
        && umr.control.mask.contains(MkeyMask::KEY)
        && !new.free
        && mkey.last_valid == Some(new.key)
    {
        let key = MkeyIndex::of(key).key(new.key);
        found.add(&KEY_REUSED, format!("{place} makes key {key:#x} valid again with the same low byte"));
    }
    found
}

fn strided_list(strided: &StridedList<'_>, mkey: &MkeyContext, place: &str, found: &mut Findings) {
    let RepeatBlock { byte_count, repetitions, entries, .. } = strided.header;
    let room = mkey.translation_units.saturating_sub(1);
    if u32::from(entries) > room {
        let what = format!("{place} counts {entries} strided entries, but the key has room for {room}");
        return found.add(&UMR_STRIDED, what);
    }
    let sum: u64 = strided.entries().map(|entry| u64::from(entry.byte_count)).sum();
    // If this WQE writes only some of the entries, the others are already in the key's list, and their byte counts are
    // not known here.
    if strided.entries().count() == usize::from(entries) && sum != u64::from(byte_count) {
        let what = format!("{place} states {byte_count} bytes for strided entries that have {sum}");
        found.add(&UMR_STRIDED, what);
    }
    let total = u64::from(byte_count) * u64::from(repetitions);
    if total < mkey.length {
        let len = mkey.length;
        let what = format!("{place} describes {total} bytes of a key that has {len}");
        found.add(&UMR_STRIDED, what);
    }
}

fn control(umr: &Umr<'_>, key: u32, place: &str, found: &mut Findings) {
    if umr.control.check_used && umr.control.check_free {
        found.add(&UMR_CONTROL, format!("{place} requires key {key:#x} to be both free and in use"));
    }
    let mut names = umr.control.mask.iter_names();
    names.by_ref().for_each(drop);
    let undefined = names.remaining().bits();
    if undefined != 0 {
        found.add(&UMR_CONTROL, format!("the mask of {place} has undefined bits {undefined:#x}"));
    }
}
