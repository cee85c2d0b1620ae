//! Converts memory protection table (MPT) entries to memory regions.
//!
//! # Spec
//! mthca interface, sections 6.1 and 6.2.

use card::memory::region::{Kind, MemoryRegion, Origin, PageShift, Rights, Translation};
use hcr::mtt::ENTRY_LEN;
use protocol::hca::mthca::mpt::{END_KEY, Mpt, MptFlags};
use protocol::hca::status::{CmdError, CmdStatus};
use protocol::ids::Iova;

/// Maximum number of pages in one region and in all regions together.
const MAX_PAGES: u64 = 1 << 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEntries {
    /// Index of the first entry, counted from ICM address 0.
    pub first: u64,
    pub count: usize,
}

/// Returns the region that an MPT entry describes, and the region's MTT entries if it has pages.
///
/// # Errors
/// - BAD_INDEX for the key that terminates scatter lists.
/// - BAD_PARAM for misaligned MTT entries.
/// - EXCEED_LIM for more than 2^24 pages.
pub fn region(mpt: &Mpt) -> Result<(MemoryRegion, Option<PageEntries>), CmdError> {
    if mpt.key == END_KEY {
        return Err(CmdError::new(
            CmdStatus::BadIndex,
            "key is reserved as list terminator:",
            END_KEY.get().into(),
        ));
    }
    let (translation, entries) = if mpt.flags.contains(MptFlags::PHYSICAL) {
        (Translation::Contiguous { bus: Iova::new(mpt.start.get()) }, None)
    } else {
        let entries = entries(mpt)?;
        // The fallback is never used, since MPT entries have only valid page sizes.
        let page_shift = PageShift::new(mpt.page_shift).unwrap_or(PageShift::MIN);
        (Translation::paged(page_shift, entries.first, mpt.start), Some(entries))
    };
    let region = MemoryRegion {
        key: mpt.key,
        pd: mpt.pd,
        start: mpt.start,
        len: mpt.length,
        origin: Origin::Zero,
        rights: rights(mpt.flags),
        translation,
        kind: Kind::Registered,
    };
    Ok((region, entries))
}

fn entries(mpt: &Mpt) -> Result<PageEntries, CmdError> {
    const ALIGN: u64 = ENTRY_LEN as u64;
    let mtt = mpt.mtt.get();
    if !mtt.is_multiple_of(ALIGN) {
        return Err(CmdError::param("unaligned MTT address", mtt));
    }
    let in_page = mpt.start.get() & ((1 << mpt.page_shift) - 1);
    let pages = u128::from(in_page) + u128::from(mpt.length);
    let pages = pages.div_ceil(1 << mpt.page_shift);
    let count = u64::try_from(pages).ok().filter(|pages| *pages <= MAX_PAGES);
    let count = count.and_then(|pages| usize::try_from(pages).ok());
    let count = count.ok_or(CmdError::new(CmdStatus::ExceedLim, "memory region length", mpt.length))?;
    Ok(PageEntries { first: mtt / ALIGN, count })
}

fn rights(flags: MptFlags) -> Rights {
    let right = |flag| match flag {
        MptFlags::LOCAL_WRITE => Rights::LOCAL_WRITE,
        MptFlags::REMOTE_WRITE => Rights::REMOTE_WRITE,
        MptFlags::REMOTE_READ => Rights::REMOTE_READ,
        MptFlags::REMOTE_ATOMIC => Rights::REMOTE_ATOMIC,
        // Local reads are always permitted, and the other flags grant no rights.
        _ => Rights::empty(),
    };
    flags.iter().map(right).collect()
}
