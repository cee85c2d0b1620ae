//! Key operations requested by work requests or by peers: fast registration, invalidation and window binding.
//! The table shows the state of a key after each operation, or "rejected" if the operation fails and the state does not
//! change.
//!
//! | state of a key | fast registration | binding, type 1 | binding, type 2 | invalidation |
//! |---|---|---|---|---|
//! | allocated for a region | valid | rejected | rejected | rejected |
//! | region, fast-registered | rejected | rejected | rejected | allocated, unless windows are bound to it |
//! | allocated for a window, type 1 | rejected | valid, or allocated if the length is 0 | rejected | rejected |
//! | allocated for a window, type 2 | rejected | rejected | valid, or allocated if the length is 0 | rejected |
//! | window, type 1 | rejected | valid, or allocated if the length is 0 | rejected | rejected |
//! | window, type 2 | rejected | rejected | rejected, or allocated if the length is 0 | allocated (only its own QP may invalidate it) |
//! | region, registered by a command | rejected | rejected | rejected | rejected |
//!
//! # Spec
//! IBTA volume 1, sections 10.6.5 (fast registration, invalidation), 10.6.7 (memory windows) and 11.2.8.

use engine::{AccessError, Initiator, Rights};
use protocol::ids::{Lkey, Qpn, Rkey};

use super::key_op::{Bind, FastRegister, KeyOp, WindowKind};
use super::keys::{Allocated, Entry, KeyTable, Purpose};
use super::region::{Kind, MemoryRegion, Origin, Translation};

const REMOTE: Rights = Rights::REMOTE_READ.union(Rights::REMOTE_WRITE).union(Rights::REMOTE_ATOMIC);
const REMOTE_CHANGES: Rights = Rights::REMOTE_WRITE.union(Rights::REMOTE_ATOMIC);

impl KeyTable {
    /// Executes a key operation requested by one of `initiator`'s work requests.
    ///
    /// # Errors
    /// If the operation is rejected, nothing changes and the error gives the reason.
    pub fn run(&mut self, initiator: Initiator, op: &KeyOp) -> Result<(), AccessError> {
        match op {
            KeyOp::Invalidate(key) => self.invalidate(initiator, *key),
            KeyOp::FastRegister(of) => self.fast_register(initiator, of),
            KeyOp::Bind(of) => self.bind(initiator, of),
        }
    }

    /// Executes a remote invalidation that the local QP `initiator` received from its peer.
    ///
    /// # Errors
    /// If the invalidation is rejected, nothing changes and the error gives the reason. Fails with
    /// [`AccessError::Right`] if a fast-registered region does not grant peers any access.
    pub fn remote_invalidate(&mut self, initiator: Initiator, key: Rkey) -> Result<(), AccessError> {
        let key = key.as_lkey();
        let region = self.find(key)?;
        region.admit(initiator)?;
        if matches!(region.kind, Kind::FastRegistered { .. }) && !region.rights.intersects(REMOTE) {
            return Err(AccessError::Right);
        }
        self.invalidate(initiator, key)
    }

    fn invalidate(&mut self, initiator: Initiator, key: Lkey) -> Result<(), AccessError> {
        let region = *self.find(key)?;
        // Only fast-registered regions and type 2 windows can be invalidated.
        let purpose = match region.kind {
            Kind::Registered | Kind::Window { kind: WindowKind::Type1, .. } => return Err(AccessError::Kind),
            Kind::FastRegistered { most } => Purpose::Region { most },
            Kind::Window { kind: kind @ WindowKind::Type2B, .. } => Purpose::Window(kind),
        };
        region.admit(initiator)?;
        if self.windows(self.index(key)) > 0 {
            return Err(AccessError::Bound);
        }
        self.set(Entry::Allocated(Allocated { key, pd: region.pd, purpose }));
        Ok(())
    }

    fn fast_register(&mut self, initiator: Initiator, of: &FastRegister) -> Result<(), AccessError> {
        let (pd, most) = match self.renamed(of.key)? {
            Entry::Valid(MemoryRegion { kind: Kind::FastRegistered { .. }, .. }) => {
                return Err(AccessError::Valid);
            }
            Entry::Allocated(Allocated { pd, purpose: Purpose::Region { most }, .. }) => (*pd, *most),
            _ => return Err(AccessError::Kind),
        };
        if pd != initiator.pd {
            return Err(AccessError::Pd);
        }
        check_remote_rights(of.rights, of.rights)?;
        if of.len == 0 || of.len > most || of.start.get().checked_add(of.len - 1).is_none() {
            return Err(AccessError::Bounds);
        }
        self.set(Entry::Valid(MemoryRegion {
            key: of.key,
            pd,
            start: of.start,
            len: of.len,
            origin: origin(of.zero_based),
            rights: of.rights,
            translation: Translation::of(&of.pages, of.start),
            kind: Kind::FastRegistered { most },
        }));
        Ok(())
    }

    fn bind(&mut self, initiator: Initiator, of: &Bind) -> Result<(), AccessError> {
        let key = of.window.as_lkey();
        let entry = *self.renamed(key)?;
        let (pd, kind) = match entry {
            Entry::Allocated(Allocated { pd, purpose: Purpose::Window(kind), .. }) => (pd, kind),
            Entry::Valid(MemoryRegion { pd, kind: Kind::Window { kind, .. }, .. }) => (pd, kind),
            _ => return Err(AccessError::Kind),
        };
        if kind != of.kind {
            return Err(AccessError::Kind);
        }
        if pd != initiator.pd {
            return Err(AccessError::Pd);
        }
        if let Entry::Valid(window) = entry {
            window.admit(initiator)?;
        }
        // A bind of length 0 unbinds the window.
        if of.len == 0 {
            self.set(Entry::Allocated(Allocated { key, pd, purpose: Purpose::Window(kind) }));
            return Ok(());
        }
        if kind == WindowKind::Type2B && entry.valid().is_some() {
            return Err(AccessError::Valid);
        }
        let window = self.window(initiator, of)?;
        self.set(Entry::Valid(window));
        Ok(())
    }

    fn window(&self, initiator: Initiator, of: &Bind) -> Result<MemoryRegion, AccessError> {
        let parent = self.find(of.parent)?;
        if matches!(parent.kind, Kind::Window { .. }) {
            return Err(AccessError::Kind);
        }
        parent.admit(initiator)?;
        if !parent.rights.contains(Rights::BIND) {
            return Err(AccessError::Right);
        }
        check_remote_rights(of.rights, parent.rights)?;
        let offset = parent.offset(of.va, Origin::Zero, of.len)?;
        let owner: Option<Qpn> = match of.kind {
            WindowKind::Type1 => None,
            WindowKind::Type2B => Some(initiator.qpn),
        };
        Ok(MemoryRegion {
            key: of.window.as_lkey(),
            pd: parent.pd,
            start: of.va,
            len: of.len,
            origin: origin(of.zero_based),
            rights: of.rights & REMOTE,
            translation: parent.translation_at(offset)?,
            kind: Kind::Window { kind: of.kind, owner, parent: self.index(of.parent) },
        })
    }
}

/// Rejects remote write and atomic rights if the region does not grant local write access.
///
/// # Spec
/// IBTA volume 1, section 10.6.3.2.
fn check_remote_rights(rights: Rights, of_region: Rights) -> Result<(), AccessError> {
    let refused = rights.intersects(REMOTE_CHANGES) && !of_region.contains(Rights::LOCAL_WRITE);
    if refused { Err(AccessError::Right) } else { Ok(()) }
}

const fn origin(zero_based: bool) -> Origin {
    if zero_based { Origin::Start } else { Origin::Zero }
}

#[cfg(test)]
mod tests;
