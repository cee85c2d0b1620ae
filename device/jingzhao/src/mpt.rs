//! Converts memory protection table (MPT) entries to memory regions.
//!
//! # Spec
//! JingZhao interface, sections 4.6 and 9.

use card::memory::region::{Kind, MemoryRegion, Origin, PageShift, Rights, Translation};
use protocol::hca::jingzhao::mpt::{Mpt, MptFlags};
use protocol::ids::Iova;

pub fn region(mpt: &Mpt) -> MemoryRegion {
    let translation = if mpt.is_physical() {
        Translation::Contiguous { bus: Iova::new(mpt.start.get()) }
    } else {
        // The fallback is never used, since every page size has a valid shift.
        let page_shift = PageShift::new(mpt.page_size.log2()).unwrap_or(PageShift::MIN);
        Translation::paged(page_shift, mpt.mtt, mpt.start)
    };
    let zero_based = mpt.flags.contains(MptFlags::ZERO_BASED);
    MemoryRegion {
        key: mpt.key,
        pd: mpt.pd,
        start: mpt.start,
        len: mpt.length,
        origin: if zero_based { Origin::Start } else { Origin::Zero },
        rights: rights(mpt.flags),
        translation,
        kind: Kind::Registered,
    }
}

fn rights(flags: MptFlags) -> Rights {
    [
        (MptFlags::LOCAL_WRITE, Rights::LOCAL_WRITE),
        (MptFlags::REMOTE_WRITE, Rights::REMOTE_WRITE),
        (MptFlags::REMOTE_READ, Rights::REMOTE_READ),
        (MptFlags::REMOTE_ATOMIC, Rights::REMOTE_ATOMIC),
    ]
    .into_iter()
    .filter(|(flag, _)| flags.contains(*flag))
    .map(|(_, right)| right)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The user region from section 14.5.
    const USER: [u8; 0x40] = {
        let mut bytes = [0; 0x40];
        let head = [
            0xf0, 0x02, 0x01, 0x87, 0x00, 0x00, 0x10, 0x00, 0x00, 0x02, 0x00, 0x05, 0x00, 0x00, 0x00, 0x03,
            0x00, 0x00, 0x7f, 0x00, 0x12, 0x34, 0x56, 0x78, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x21, 0x00,
        ];
        let mut i = 0;
        while i < head.len() {
            bytes[i] = head[i];
            i += 1;
        }
        bytes[0x33] = 0x10;
        bytes
    };

    #[test]
    fn documented_mpt_entry_describes_expected_region() {
        let region = region(&Mpt::parse(&USER).unwrap());
        assert_eq!(region.rights, Rights::LOCAL_WRITE | Rights::REMOTE_WRITE | Rights::REMOTE_READ);
        assert_eq!((region.key.get(), region.pd.get(), region.len), (0x20005, 3, 0x2100));
        assert_eq!(region.start.get(), 0x7f00_1234_5678);
        assert_eq!(region.origin, Origin::Zero);
        assert_eq!(region.translation, Translation::paged(PageShift::MIN, 0x10, region.start));
    }

    #[test]
    fn physical_flag_or_full_length_makes_region_physical() {
        let mpt = Mpt::parse(&USER).unwrap();
        let flagged = Mpt { flags: mpt.flags | MptFlags::PHYSICAL, ..mpt };
        assert_eq!(region(&flagged).translation, Translation::Contiguous { bus: Iova::new(mpt.start.get()) });
        let mut all = USER;
        all[0x10..0x18].fill(0);
        all[0x18..0x20].fill(0xff);
        let all = region(&Mpt::parse(&all).unwrap());
        assert_eq!(all.translation, Translation::Contiguous { bus: Iova::new(0) });
    }

    #[test]
    fn zero_based_region_is_addressed_by_offset() {
        let mpt = Mpt::parse(&USER).unwrap();
        let zero_based = Mpt { flags: mpt.flags | MptFlags::ZERO_BASED, ..mpt };
        assert_eq!(region(&zero_based).origin, Origin::Start);
    }
}
