//! Memory regions and windows: control queue operations on STags.
//!
//! # Spec
//! E810 interface, sections 10.3 and 13.7.

use card::memory::key_op::{Pages, WindowKind};
use card::memory::keys::{Allocated, KeyTable, Purpose};
use card::memory::region::{Kind, MemoryRegion, Origin, PageShift, Rights, Translation};
use engine::AccessError;
use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::page_list::ListLevel;
use protocol::hca::e810::rdma::region::{AllocateStag, DeallocateStag, RegisterMr, StagRights};
use protocol::ids::Lkey;

use super::dispatch::{Done, Outcome};
use crate::limits::Limits;

/// Number of key bits below the index in an STag.
const KEY_BITS: u32 = 8;

/// Regions and windows, indexed by STag. The low index bits of an STag select the table entry. The driver chooses the
/// other index bits and the key bits freely, and an access must specify the whole STag.
#[derive(Debug)]
pub(in super::super) struct Regions {
    pub(super) keys: KeyTable,
}

impl Regions {
    pub(super) fn new(limits: &Limits) -> Self {
        Self { keys: KeyTable::rotated(limits.max_regions.log(), KEY_BITS) }
    }

    /// Executes "Allocate STag".
    ///
    /// # Errors
    /// Fails if the table entry is in use or the table is full.
    pub(super) fn allocate(&mut self, command: &AllocateStag) -> Outcome {
        let AllocateStag { index, pd, len, .. } = *command;
        let purpose = match (command.region, command.wide) {
            (true, _) => Purpose::Region { most: len },
            (false, true) => Purpose::Window(WindowKind::Type1),
            (false, false) => Purpose::Window(WindowKind::Type2B),
        };
        let key = Lkey::new(index << KEY_BITS);
        self.ensure_free(key)?;
        self.keys.allocate(Allocated { key, pd, purpose }).map_err(|_| full(key))?;
        Ok(Done::Plain)
    }

    /// Executes "Register MR".
    ///
    /// # Errors
    /// The same as for [`Regions::allocate`]. Also fails if the page size or page list level is invalid.
    pub(super) fn register(&mut self, command: &RegisterMr) -> Outcome {
        let region = region(command)?;
        self.ensure_free(region.key)?;
        self.keys.insert(region).map_err(|_| full(region.key))?;
        Ok(Done::Plain)
    }

    /// Executes "Deallocate STag".
    ///
    /// # Errors
    /// Fails if the STag is not allocated or if windows are bound to it.
    pub(super) fn deallocate(&mut self, command: &DeallocateStag) -> Outcome {
        let unknown = CqpError::no_object("STag", command.index.into());
        let index = self.keys.index(Lkey::new(command.index << KEY_BITS));
        let entry = self.keys.entry(index).ok_or(unknown)?;
        if entry.key().get() >> KEY_BITS != command.index {
            return Err(unknown);
        }
        match self.keys.deregister(index) {
            Ok(_) => Ok(Done::Plain),
            Err(AccessError::Bound) => Err(CqpError::new(CqpErrorCode::InUse, "STag", command.index.into())),
            Err(_) => Err(unknown),
        }
    }

    fn ensure_free(&self, key: Lkey) -> Result<(), CqpError> {
        match self.keys.entry(self.keys.index(key)) {
            Some(entry) => Err(CqpError::new(CqpErrorCode::Exists, "STag", entry.key().get().into())),
            None => Ok(()),
        }
    }
}

fn full(key: Lkey) -> CqpError {
    CqpError::new(CqpErrorCode::NoRoom, "STag", key.get().into())
}

fn region(command: &RegisterMr) -> Result<MemoryRegion, CqpError> {
    let page_shift = command.page.shift().and_then(PageShift::new);
    let page_shift = page_shift.ok_or(CqpError::invalid("page size", u8::from(command.page).into()))?;
    let key = Lkey::new(command.stag);
    let rights = rights(command.rights);
    // Section 13.7: a length of 0 registers all memory. The kernel registers its DMA region this way.
    if command.len == 0 {
        return Ok(MemoryRegion::whole_memory(key, command.pd, rights));
    }
    let first = command.first_page.get().into();
    let pages = match command.level {
        ListLevel::Contiguous => Pages::Contiguous { base: command.address, page_shift },
        ListLevel::One => Pages::List { first, page_shift },
        ListLevel::Two => Pages::TwoLevel { first, page_shift },
        ListLevel::Reserved => {
            return Err(CqpError::invalid("page list levels", u8::from(command.level).into()));
        }
    };
    Ok(MemoryRegion {
        key,
        pd: command.pd,
        start: command.start,
        len: command.len,
        origin: if command.virtual_address { Origin::Zero } else { Origin::Start },
        rights,
        translation: Translation::of(&pages, command.start),
        kind: Kind::Registered,
    })
}

/// Converts access rights. Local read is always granted.
fn rights(asked: StagRights) -> Rights {
    let pairs = [
        (StagRights::LOCAL_WRITE, Rights::LOCAL_WRITE),
        (StagRights::REMOTE_READ, Rights::REMOTE_READ),
        (StagRights::REMOTE_WRITE, Rights::REMOTE_WRITE),
        (StagRights::BIND, Rights::BIND),
    ];
    pairs.into_iter().filter(|(right, _)| asked.contains(*right)).map(|(_, right)| right).collect()
}
