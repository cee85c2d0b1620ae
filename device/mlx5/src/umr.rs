//! Work requests that change memory keys: registration, invalidation and memory window binding.
//!
//! The engine determines when a UMR executes. The device reads the WQE again at that time, so software must not change
//! the WQE before the request completes.
//!
//! # Spec
//! mlx5 interface, section 13.3.

use card::limited;
use card::memory::GuestMemory;
use card::memory::translate::AccessTarget;
use engine::{Access, AccessError, Initiator, LocalToken};
use protocol::hca::mlx5::mkey::UNIT;
use protocol::hca::mlx5::qp::Service;
use protocol::hca::mlx5::umr::MkeyMask;
use protocol::hca::mlx5::wqe::{DataSegment, Operation, SendWqe, Translation};
use protocol::ids::Lkey;

use super::mkey::Change;
use super::resources::Resources;
use super::uses::{Object, Used};
use super::work;

impl Resources {
    /// Executes the UMR identified by a token.
    ///
    /// # Errors
    /// Fails if any check fails. The key is then unchanged.
    pub fn run_umr(
        &mut self,
        dma: &GuestMemory,
        initiator: Initiator,
        token: &LocalToken,
    ) -> Result<(), AccessError> {
        let index = work::index_of(token).ok_or(AccessError::Kind)?;
        let qp = self.qps.get(initiator.qpn.get()).ok_or(AccessError::Qp)?;
        let bytes = qp.reread(index, dma).map_err(|_| AccessError::Unmapped)?;
        let service = qp.service();
        let wqe = SendWqe::parse(&bytes, service, initiator.qpn).map_err(|_| AccessError::Kind)?;
        let Operation::Umr(umr) = wqe.operation else { return Err(AccessError::Kind) };
        let copy = match umr.translation {
            Translation::Pointer(segment) => {
                Some(self.umr_list(dma, initiator, umr.control.units, &segment)?)
            }
            Translation::None | Translation::Inline(_) => None,
        };
        let list = match umr.translation {
            Translation::Inline(list) => Some(list),
            _ => copy.as_deref(),
        };
        let pd = umr.mkey.pd.get();
        if umr.control.mask.contains(MkeyMask::PD) && !self.pds.contains(pd) {
            return Err(AccessError::Pd);
        }
        let change = Change {
            control: umr.control,
            context: umr.mkey,
            list,
            // Only the kernel has a UMR QP. It uses this QP to move keys between protection domains.
            any_pd: service == Service::Umr,
            // The kernel permits fast registration only on its own QPs.
            maps_pages: service == Service::Umr || qp.context.fast_registration,
        };
        let Self { mkeys, budget, uses, .. } = self;
        let key = wqe.control.key();
        let changed = mkeys.change(initiator, key, &change, budget).inspect_err(|error| {
            let key = Lkey::new(key);
            limited!(debug, qpn = %initiator.qpn, wr = index, %key, "cannot change a memory key: {error}");
        });
        let [old, new] = changed?;
        uses.add(&Used::from_slice(&[Object::Pd(new.get())]));
        uses.remove(&Used::from_slice(&[Object::Pd(old.get())]));
        Ok(())
    }

    /// Reads a translation list from memory, with the same checks as for the data of a SEND.
    pub(super) fn umr_list(
        &self,
        dma: &GuestMemory,
        initiator: Initiator,
        units: u16,
        segment: &DataSegment,
    ) -> Result<Vec<u8>, AccessError> {
        let most = usize::from(units) * UNIT;
        let len = usize::try_from(segment.byte_count).map_or(most, |len| len.min(most));
        let target = AccessTarget::address(initiator, segment.lkey, segment.va);
        let mut list = Vec::new();
        self.mkeys.access(dma).append(target, len, &mut list, Access::LocalRead)?;
        Ok(list)
    }
}
