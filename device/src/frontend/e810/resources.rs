//! Things of which there are only so many, and which software asks for before it uses them: 0208 to 020A.
//!
//! # Spec
//! E810 interface, section 5.8.

use std::collections::BTreeMap;

use protocol::hca::e810::admin::resource::{AllocatedResources, ResourceHeader, ResourceKind};
use protocol::hca::e810::admin::{AdminError, AdminStatus};

use super::buffer::Buffer;
use super::limits::{FUNCTION_FILTERS, MAX_COUNTER_BLOCKS, MAX_LISTS, MAX_PROFILES, MAX_TCAM_ENTRIES};
use super::numbers::Numbers;

/// What was given to software.
#[derive(Debug)]
pub(super) struct Resources {
    /// Resources with identifiers.
    numbered: BTreeMap<ResourceKind, Numbers>,
    /// Resources of which only the amount counts: how much is left.
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
            numbered: numbered.map(|(kind, count)| (kind, Numbers::new(1, count))).into(),
            left: [ResourceKind::OwnFilters, ResourceKind::SharedFilters]
                .map(|kind| (kind, FUNCTION_FILTERS))
                .into(),
        }
    }
}

impl Resources {
    /// "Allocate resources": fills in the identifiers. An amount without identifiers is answered with none.
    ///
    /// # Errors
    /// EINVAL for a kind that there is not, or a buffer that is too short; ENOSPC, and then none is allocated.
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
        for (bytes, number) in identifiers.iter_mut().zip(std::iter::from_fn(|| numbers.take())) {
            *bytes = number.to_le_bytes();
        }
        Ok(())
    }

    /// "Free resources".
    ///
    /// # Errors
    /// EINVAL for a kind that there is not, or a buffer that is too short; ENOENT for what is not allocated.
    pub(super) fn free(&mut self, buffer: &mut [u8]) -> Result<(), AdminError> {
        let mut left = Buffer::new(buffer);
        let ResourceHeader { kind, count, .. } = ResourceHeader::parse(left.next()?);
        if let Some(room) = self.left.get_mut(&kind) {
            let after = room.checked_add(count).filter(|after| *after <= FUNCTION_FILTERS);
            *room = after.ok_or(AdminError::no_entry(
                "more filters freed than allocated, allocated:",
                (FUNCTION_FILTERS - *room).into(),
            ))?;
            return Ok(());
        }
        let numbers = self.numbered.get_mut(&kind).ok_or(unknown(kind))?;
        let identifiers: &mut [[u8; 2]] = left.next_all(count)?;
        for bytes in identifiers {
            let number = u16::from_le_bytes(*bytes);
            if !numbers.give_back(number) {
                return Err(AdminError::no_entry("resource", number.into()));
            }
        }
        Ok(())
    }

    /// "Get allocated resource descriptors": fills in identifiers as far as there is room. There is one function, so it does
    /// not matter whether they are shared.
    ///
    /// # Errors
    /// EINVAL for a kind without identifiers.
    pub(super) fn allocated(
        &self,
        asked: AllocatedResources,
        buffer: &mut [u8],
    ) -> Result<AllocatedResources, AdminError> {
        let numbers = self.numbered.get(&asked.kind).ok_or(unknown(asked.kind))?;
        let mut used = numbers.used_from(asked.first);
        let mut count = 0;
        for (place, number) in buffer.as_chunks_mut::<2>().0.iter_mut().zip(&mut used) {
            *place = number.to_le_bytes();
            count += 1;
        }
        Ok(AllocatedResources { first: used.next().unwrap_or(0), count, ..asked })
    }

    /// Whether software was given this.
    pub(super) fn is_allocated(&self, kind: ResourceKind, number: u16) -> bool {
        self.numbered.get(&kind).is_some_and(|numbers| numbers.is_used(number))
    }
}

fn unknown(kind: ResourceKind) -> AdminError {
    AdminError::invalid("resource type", u8::from(kind).into())
}

#[cfg(test)]
mod tests;
