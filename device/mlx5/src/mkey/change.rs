//! Changes to memory keys by work requests, and invalidation by peers.
//!
//! # Spec
//! mlx5 interface, section 13.3.

use engine::{AccessError, Initiator};
use protocol::hca::mlx5::mkey::{ANY_QP, AccessMode, MkeyContext};
use protocol::hca::mlx5::umr::{MkeyMask, UmrControl};
use protocol::ids::{MkeyIndex, Pdn, Rkey};

use super::Mkeys;
use super::region::{changed_region, with_layout};
use crate::buffer::PageBudget;

#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Selects the checks to make and the fields to change.
    pub control: UmrControl,
    /// New values of the fields to change.
    pub context: MkeyContext,
    /// New entries for part of the translation list. `None` keeps the list.
    pub list: Option<&'a [u8]>,
    /// Whether the request may change a key in any protection domain and may move it to another one.
    pub any_pd: bool,
    /// Whether the request may map guest pages. If not, a key with a page list can only be invalidated.
    pub maps_pages: bool,
}

impl Mkeys {
    /// Applies the change that a work request makes to a key. Returns the key's old and new protection domains.
    ///
    /// # Errors
    /// Fails if any check fails. The key is then unchanged.
    pub fn change(
        &mut self,
        initiator: Initiator,
        key: u32,
        change: &Change<'_>,
        budget: &mut PageBudget,
    ) -> Result<[Pdn; 2], AccessError> {
        let Change { control, context, list, any_pd, maps_pages } = change;
        let index = MkeyIndex::of(key);
        let mkey = self.objects.get_mut(index.get()).ok_or(AccessError::Key)?;
        let old = mkey.context;
        if !old.umr_enabled {
            return Err(AccessError::Kind);
        }
        // Section 20, M-5: the driver can require the key to be in use or to be free.
        if control.check_used && old.free {
            return Err(AccessError::Invalid);
        }
        if control.check_free && !old.free {
            return Err(AccessError::Valid);
        }
        if control.check_qpn {
            check_qp(&old, initiator)?;
        }
        let new = old.updated(control.mask, context);
        if !any_pd && (old.pd != initiator.pd || new.pd != initiator.pd) {
            return Err(AccessError::Pd);
        }
        // Section 23.3: a request that may not map pages cannot change a key with a page list, except to invalidate it.
        // If it could, a user program could map any guest page.
        let is_invalidation = control.mask == MkeyMask::FREE && new.free && list.is_none_or(<[u8]>::is_empty);
        let has_ranges = matches!(old.access_mode(), Some(AccessMode::Ranges | AccessMode::FixedRanges));
        if !maps_pages && !has_ranges && !is_invalidation {
            return Err(AccessError::Right);
        }
        let region = changed_region(index, &new)?;
        if let Some(list) = list {
            mkey.list.write(control.offset(), list, old.translation_units, budget)?;
        }
        mkey.context = new;
        if !new.free {
            mkey.last_valid = Some(new.key);
        }
        let region = region.map(|region| with_layout(region, &mkey.list));
        // Cannot fail: the key is already in the table.
        self.set(index, &new, region).map_err(|_| AccessError::Key)?;
        Ok([old.pd, new.pd])
    }

    /// Invalidates a key on behalf of a peer. The key becomes free.
    ///
    /// # Errors
    /// Section 13.3: fails if the key is unknown, does not permit remote invalidation, is already free, or belongs to
    /// another QP or protection domain. In each case, the key is unchanged.
    pub fn remote_invalidate(&mut self, initiator: Initiator, key: Rkey) -> Result<(), AccessError> {
        let index = MkeyIndex::of(key.get());
        let mkey = self.objects.get_mut(index.get()).ok_or(AccessError::Key)?;
        let context = &mut mkey.context;
        if index.key(context.key) != key.get() {
            return Err(AccessError::Key);
        }
        if context.free {
            return Err(AccessError::Invalid);
        }
        if context.pd != initiator.pd {
            return Err(AccessError::Pd);
        }
        if context.qpn != ANY_QP && context.qpn != initiator.qpn {
            return Err(AccessError::Qp);
        }
        if !context.remote_invalidate {
            return Err(AccessError::Right);
        }
        context.free = true;
        let context = *context;
        self.set(index, &context, None).map_err(|_| AccessError::Key)
    }
}

/// Checks whether a QP may change a key.
///
/// # Errors
/// Fails if the key belongs to another QP or is an unbound window, which does not belong to any QP. Section 20, M-34: a
/// valid key that any QP can use is accepted, since libmlx5 requests this check even when it invalidates an indirect
/// key, which any QP can use.
fn check_qp(context: &MkeyContext, initiator: Initiator) -> Result<(), AccessError> {
    let is_shared = context.qpn == ANY_QP && !context.free;
    if is_shared || context.qpn == initiator.qpn { Ok(()) } else { Err(AccessError::Qp) }
}
