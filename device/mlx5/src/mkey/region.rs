//! The memory regions of keys: the rights, bounds and translation that a key's context describes.
//!
//! # Spec
//! mlx5 interface, sections 13.1 and 13.2.

use card::memory::key_op::WindowKind;
use card::memory::region::{EntryLen, Kind, MemoryRegion, Origin, PageShift, Translation};
use engine::{AccessError, Rights};
use protocol::hca::mlx5::mkey::{ANY_QP, AccessMode, MkeyContext};
use protocol::ids::{Iova, Lkey, MkeyIndex};

use super::LIST_BITS;
use super::list::{TranslationList, UNIT_PAGES};
use crate::check::{Check, Rejection};

/// Returns the number of bytes that a key's translation list can cover.
pub(super) fn capacity(context: &MkeyContext) -> u64 {
    let pages = u64::from(context.translation_units) * UNIT_PAGES as u64;
    pages.checked_shl(context.log_page.into()).unwrap_or(u64::MAX)
}

/// Returns the region of a new key, or `None` if the key does not permit access until a UMR makes the key valid.
pub(super) fn created_region(
    index: MkeyIndex,
    context: &MkeyContext,
    list: &TranslationList,
) -> Result<Option<MemoryRegion>, Rejection> {
    let mode = context.access_mode().ok_or_else(|| unsupported(context))?;
    if context.free {
        return match mode {
            AccessMode::Pages | AccessMode::Ranges | AccessMode::FixedRanges => Ok(None),
            _ => Err(unsupported(context)),
        };
    }
    let page_shift =
        || PageShift::new(context.log_page).ok_or_else(|| Check::MkeyPageSize.rejects(context.log_page));
    let translation = match mode {
        AccessMode::Physical => Translation::Contiguous { bus: Iova::new(context.start.get()) },
        AccessMode::Pages => {
            let page_shift = page_shift()?;
            // Section 13.2: the first byte of the region has the same page offset as the start address.
            let offset = context.start.get() & page_shift.offset_mask();
            let covered = (list.pages() as u64).checked_shl(page_shift.get().into()).unwrap_or(u64::MAX);
            if context.length64 || offset.checked_add(context.length).is_none_or(|end| end > covered) {
                return Err(Check::MkeyRange.rejects(context.length));
            }
            Translation::paged(page_shift, first_entry(index), context.start)
        }
        AccessMode::Ranges | AccessMode::FixedRanges if context.length64 => {
            return Err(Check::MkeyRange.rejects(context.length));
        }
        AccessMode::Ranges => indirect(index, context, EntryLen::PerEntry),
        AccessMode::FixedRanges => indirect(index, context, EntryLen::Fixed(page_shift()?)),
        _ => return Err(unsupported(context)),
    };
    if context.length64 {
        let key = Lkey::new(index.key(context.key));
        return Ok(Some(MemoryRegion::whole_memory(key, context.pd, rights(context))));
    }
    Ok(Some(with_layout(region(index, context, translation), list)))
}

/// Returns the region of a key after a UMR, or `None` if the key is free. The region may be longer than the translation
/// list. Accesses past the end of the list fail.
///
/// # Errors
/// Fails if a key cannot be valid with the given context.
pub(super) fn changed_region(
    index: MkeyIndex,
    context: &MkeyContext,
) -> Result<Option<MemoryRegion>, AccessError> {
    if context.free {
        return Ok(None);
    }
    let page_shift = || PageShift::new(context.log_page).ok_or(AccessError::Kind);
    let translation = match context.access_mode() {
        _ if context.length64 => return Err(AccessError::Bounds),
        Some(AccessMode::Pages) => Translation::paged(page_shift()?, first_entry(index), context.start),
        Some(AccessMode::Ranges) => indirect(index, context, EntryLen::PerEntry),
        Some(AccessMode::FixedRanges) => indirect(index, context, EntryLen::Fixed(page_shift()?)),
        _ => return Err(AccessError::Kind),
    };
    Ok(Some(region(index, context, translation)))
}

fn indirect(index: MkeyIndex, context: &MkeyContext, entry_len: EntryLen) -> Translation {
    let count = context.translation_units;
    Translation::Indirect { entry_len, count, first_entry: first_entry(index), offset: 0 }
}

pub(super) fn first_entry(index: MkeyIndex) -> u64 {
    u64::from(index.get()) << LIST_BITS
}

pub(super) fn region(index: MkeyIndex, context: &MkeyContext, translation: Translation) -> MemoryRegion {
    // A key that belongs to one QP is a type 2 window. Each access also checks the parent key, which is in the window's
    // list. The field `parent` serves only to count a region's windows. This device does not count them, so the field
    // holds the window's own index.
    let kind = if context.qpn == ANY_QP {
        Kind::Registered
    } else {
        Kind::Window { kind: WindowKind::Type2B, owner: Some(context.qpn), parent: index.get() }
    };
    MemoryRegion {
        key: Lkey::new(index.key(context.key)),
        pd: context.pd,
        start: context.start,
        len: context.length,
        origin: Origin::Zero,
        rights: rights(context),
        translation,
        kind,
    }
}

pub(super) fn unsupported(context: &MkeyContext) -> Rejection {
    Check::MkeyMode.rejects(context.mode_high << 2 | context.mode_low)
}

/// Returns the region of a key whose KLM list has been written. The list determines whether the region is strided.
pub(super) fn with_layout(mut region: MemoryRegion, list: &TranslationList) -> MemoryRegion {
    if let Translation::Indirect { entry_len: entry_len @ EntryLen::PerEntry, .. } = &mut region.translation
        && list.pattern().is_some()
    {
        *entry_len = EntryLen::Strided;
    }
    region
}

fn rights(context: &MkeyContext) -> Rights {
    let mut rights = Rights::BIND;
    rights.set(Rights::LOCAL_WRITE, context.local_write);
    rights.set(Rights::REMOTE_WRITE, context.remote_write);
    rights.set(Rights::REMOTE_READ, context.remote_read);
    rights.set(Rights::REMOTE_ATOMIC, context.atomic);
    rights
}
