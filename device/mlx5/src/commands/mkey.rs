//! Commands for memory keys.
//!
//! # Spec
//! mlx5 interface, sections 5.3 and 13.1.

use protocol::hca::mlx5::device::SpecialContexts;
use protocol::hca::mlx5::mkey::{CreateMkey, MkeyContext, QueriedMkey, TERMINATE_KEY};
use protocol::hca::mlx5::resource::MkeyNumber;
use protocol::hca::mlx5::strided::REPEAT_KEY;
use protocol::hca::mlx5::user_memory::UmemPlace;
use protocol::ids::{Lkey, MkeyIndex};

use super::{Call, Output, nothing};
use crate::check::{Check, Rejection};
use crate::mkey;
use crate::resources::Resources;

/// Returns the special keys that end scatter lists and begin strided lists. No capability advertises the other special
/// keys, and drivers do not use them.
pub(super) fn special() -> Output {
    let terminate_key = Lkey::new(TERMINATE_KEY);
    let repeat_key = Lkey::new(REPEAT_KEY);
    SpecialContexts { terminate_key, repeat_key, ..SpecialContexts::default() }.emit().to_vec()
}

pub(super) fn create(call: Call<'_, '_>, create: &CreateMkey, list: &[u8]) -> Result<Output, Rejection> {
    let resources = call.resources;
    let context = create.context;
    if !resources.pds.contains(context.pd.get()) {
        return Err(Check::MkeyPd.rejects(context.pd.get()));
    }
    if let Some(place) = create.place() {
        return create_in(resources, &context, place);
    }
    // Section 13.1: the input contains a list if the list length is not 0, regardless of the "page access" bit.
    let (list, pages) = mkey::list(create.translation_units, list)?;
    resources.take_pages(pages)?;
    let inserted = resources.mkeys.insert(context, list);
    if inserted.is_err() {
        resources.release_pages(pages);
    }
    let index = inserted?;
    if let Some(mkey) = resources.mkeys.get(index) {
        resources.uses.add(&mkey.uses());
    }
    Ok(MkeyNumber { index }.emit().to_vec())
}

/// Creates a key for a region of a UMEM.
fn create_in(
    resources: &mut Resources,
    context: &MkeyContext,
    place: UmemPlace,
) -> Result<Output, Rejection> {
    let Resources { umems, mkeys, budget, uses, .. } = resources;
    let umem = umems.get(place.umem.get()).ok_or_else(|| Check::Umem.rejects(place.umem.get()))?;
    let outside = || Check::UmemRange.rejects(place.offset);
    let part = umem.part(place.offset, context.length).ok_or_else(outside)?;
    let pages = part.pages.len();
    if !budget.take(pages) {
        return Err(Check::QueueMemory.rejects(pages as u64));
    }
    let index = mkeys.insert_in(*context, place, &part).inspect_err(|_| budget.give_back(pages))?;
    if let Some(mkey) = mkeys.get(index) {
        uses.add(&mkey.uses());
    }
    Ok(MkeyNumber { index }.emit().to_vec())
}

/// Destroys a key, even if no UMR has invalidated it first.
pub(super) fn destroy(call: Call<'_, '_>, index: MkeyIndex) -> Result<Output, Rejection> {
    let resources = call.resources;
    let mkey = resources.mkeys.remove(index).ok_or_else(|| Check::Mkey.rejects(index.get()))?;
    resources.uses.remove(&mkey.uses());
    resources.release_pages(mkey.pages());
    Ok(nothing())
}

pub(super) fn query(call: Call<'_, '_>, index: MkeyIndex) -> Result<Output, Rejection> {
    let mkey = call.resources.mkeys.get(index).ok_or_else(|| Check::Mkey.rejects(index.get()))?;
    Ok(QueriedMkey { context: mkey.context }.emit().to_vec())
}
