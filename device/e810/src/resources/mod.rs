//! Limited resources that software allocates before use: admin commands 0208 to 020A.
//!
//! # Spec
//! E810 interface, section 5.8.

use std::collections::BTreeMap;

use protocol::hca::e810::admin::resource::{AllocatedResources, ResourceHeader, ResourceKind};
use protocol::hca::e810::admin::{AdminError, AdminStatus};

use super::buffer::Buffer;
use super::id_pool::IdPool;
use super::limits::{FUNCTION_FILTERS, MAX_COUNTER_BLOCKS, MAX_LISTS, MAX_PROFILES, MAX_TCAM_ENTRIES};

#[derive(Debug)]
pub(super) struct Resources {
    numbered: BTreeMap<ResourceKind, IdPool>,
    /// Number of free resources per type, for types without identifiers.
    left: BTreeMap<ResourceKind, u16>,
}

impl Default for Resources {
    fn default() -> Self {
        let numbered = [
            (ResourceKind::VsiList, MAX_LISTS),
            (ResourceKind::PruneList, MAX_LISTS),
            (ResourceKind::FilterCounters, MAX_COUNTER_BLOCKS),
            (ResourceKind::FilterProfile, MAX_PROFILES),
            (ResourceKind::FilterTcam, MAX_TCAM_ENTRIES),
            (ResourceKind::HashProfile, MAX_PROFILES),
            (ResourceKind::HashTcam, MAX_TCAM_ENTRIES),
        ];
        Self {
            numbered: numbered.map(|(kind, count)| (kind, IdPool::new(1, count))).into(),
            left: [ResourceKind::OwnFilters, ResourceKind::SharedFilters]
                .map(|kind| (kind, FUNCTION_FILTERS))
                .into(),
        }
    }
}

impl Resources {
    /// Executes "Allocate resources": fills in the identifiers. Resources without identifiers are only counted.
    ///
    /// # Errors
    /// EINVAL for an unknown type or a short buffer; ENOSPC if too few resources are free, in which case none are
    /// allocated.
    pub(super) fn allocate(&mut self, buffer: &mut [u8]) -> Result<(), AdminError> {
        let mut left = Buffer::new(buffer);
        let ResourceHeader { kind, count, .. } = ResourceHeader::parse(left.next()?);
        let none_left =
            AdminError::new(AdminStatus::NoSpace, "too few free resources of type", u8::from(kind).into());
        if let Some(room) = self.left.get_mut(&kind) {
            *room = room.checked_sub(count).ok_or(none_left)?;
            return Ok(());
        }
        let numbers = self.numbered.get_mut(&kind).ok_or(unknown(kind))?;
        let identifiers: &mut [[u8; 2]] = left.next_all(count)?;
        if numbers.free() < count {
            return Err(none_left);
        }
        for (bytes, number) in identifiers.iter_mut().zip(std::iter::from_fn(|| numbers.allocate())) {
            *bytes = number.to_le_bytes();
        }
        Ok(())
    }

    /// Executes "Free resources".
    ///
    /// # Errors
    /// EINVAL for an unknown type or a short buffer; ENOENT for a resource that is not allocated.
    pub(super) fn free(&mut self, buffer: &mut [u8]) -> Result<(), AdminError> {
        let mut left = Buffer::new(buffer);
        let ResourceHeader { kind, count, .. } = ResourceHeader::parse(left.next()?);
        if let Some(room) = self.left.get_mut(&kind) {
            let after = room.checked_add(count).filter(|after| *after <= FUNCTION_FILTERS);
            *room = after.ok_or(AdminError::no_entry(
                "more filters freed than were allocated; number allocated:",
                (FUNCTION_FILTERS - *room).into(),
            ))?;
            return Ok(());
        }
        let numbers = self.numbered.get_mut(&kind).ok_or(unknown(kind))?;
        let identifiers: &mut [[u8; 2]] = left.next_all(count)?;
        for bytes in identifiers {
            let number = u16::from_le_bytes(*bytes);
            if !numbers.release(number) {
                return Err(AdminError::no_entry("resource", number.into()));
            }
        }
        Ok(())
    }

    /// Executes "Get allocated resource descriptors": fills in as many identifiers as fit in the buffer. The "shared"
    /// flag is ignored, because there is only one function.
    ///
    /// # Errors
    /// EINVAL for a type without identifiers.
    pub(super) fn allocated(
        &self,
        request: AllocatedResources,
        buffer: &mut [u8],
    ) -> Result<AllocatedResources, AdminError> {
        let numbers = self.numbered.get(&request.kind).ok_or(unknown(request.kind))?;
        let mut used = numbers.used_from(request.first);
        let mut count = 0;
        for (place, number) in buffer.as_chunks_mut::<2>().0.iter_mut().zip(&mut used) {
            *place = number.to_le_bytes();
            count += 1;
        }
        Ok(AllocatedResources { first: used.next().unwrap_or(0), count, ..request })
    }

    pub(super) fn is_allocated(&self, kind: ResourceKind, number: u16) -> bool {
        self.numbered.get(&kind).is_some_and(|numbers| numbers.is_used(number))
    }
}

fn unknown(kind: ResourceKind) -> AdminError {
    AdminError::invalid("resource type", u8::from(kind).into())
}

#[cfg(test)]
mod tests;
