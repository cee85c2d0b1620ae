//! Work queues and memory of a simulated machine.

use std::collections::{BTreeMap, VecDeque};

use protocol::ids::{Lkey, Pdn, Qpn, Va};
use smallvec::SmallVec;

use crate::{Access, AccessError, Accessor, AtomicOp, Fetch, Host, RecvRequest, SendRequest, Sge};

/// What a region allows beyond being read locally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Rights {
    pub local_write: bool,
    pub remote_read: bool,
    pub remote_write: bool,
    pub remote_atomic: bool,
}

impl Rights {
    /// Everything.
    pub const ALL: Self =
        Self { local_write: true, remote_read: true, remote_write: true, remote_atomic: true };
    /// Reading locally.
    pub const NONE: Self =
        Self { local_write: false, remote_read: false, remote_write: false, remote_atomic: false };

    fn grants(self, access: Access) -> bool {
        match access {
            Access::LocalRead => true,
            Access::LocalWrite => self.local_write,
            Access::RemoteRead => self.remote_read,
            Access::RemoteWrite => self.remote_write,
            Access::RemoteAtomic => self.remote_atomic,
        }
    }
}

/// A memory region.
#[derive(Clone, Debug)]
pub struct Region {
    /// Its protection domain.
    pub pd: Pdn,
    /// Address of its first byte.
    pub va: Va,
    /// What it allows.
    pub rights: Rights,
    /// Its memory.
    pub bytes: Vec<u8>,
}

/// Work queues of one QP.
#[derive(Clone, Debug, Default)]
pub struct WorkQueues {
    /// Posted and not fetched.
    pub send: VecDeque<Fetch<SendRequest>>,
    /// Posted and not fetched.
    pub recv: VecDeque<Fetch<RecvRequest>>,
}

/// What the engine did to its owner's memory and queues, for somebody who judges it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It stored bytes.
    Write {
        /// Key of the region.
        key: u32,
        /// First address.
        va: u64,
        /// What it stored.
        data: Vec<u8>,
        /// With which right.
        access: Access,
    },
    /// It executed an atomic operation.
    Atomic {
        /// Key of the region.
        key: u32,
        /// Address of the word.
        va: u64,
        /// Operation.
        op: AtomicOp,
        /// What it found there.
        original: u64,
    },
    /// It took a receive request of a shared queue.
    Took {
        /// For which QP.
        qpn: Qpn,
        /// The request.
        wr_id: u64,
    },
    /// It asked for a receive request, and there was none.
    NoRecv {
        /// Of which QP.
        qpn: Qpn,
    },
}

/// Regions by key and work queues by QP number.
#[derive(Clone, Debug, Default)]
pub struct SimHost {
    /// Regions.
    pub regions: BTreeMap<u32, Region>,
    /// Queues.
    pub queues: BTreeMap<u32, WorkQueues>,
    /// Receive queues that QPs share, by number.
    pub shared: BTreeMap<u32, VecDeque<Fetch<RecvRequest>>>,
    /// Which of them a QP takes its requests from, by the number of the QP.
    pub shares: BTreeMap<u32, u32>,
    /// QPs attached to groups.
    pub groups: BTreeMap<[u8; 16], Vec<Qpn>>,
    /// Whether peers are told of posted receive requests.
    pub counts_receives: bool,
    /// What the engine did, if somebody wants to know. Whoever does empties it.
    pub touches: Option<Vec<Touch>>,
}

impl SimHost {
    /// Makes a region of `len` zero bytes at `va` with number `key` in protection domain `pd`.
    pub fn add_region(&mut self, key: u32, pd: u32, va: u64, len: usize, rights: Rights) {
        let region = Region { pd: Pdn::new(pd), va: Va::new(va), rights, bytes: vec![0; len] };
        self.regions.insert(key, region);
    }

    /// Memory of a region.
    ///
    /// # Panics
    /// When there is none with this key.
    pub fn bytes(&mut self, key: u32) -> &mut Vec<u8> {
        &mut self.regions.get_mut(&key).expect("the caller made the region").bytes
    }

    /// Posts a send request. The engine has to be told by `ring`.
    pub fn post_send(&mut self, qpn: Qpn, wr: SendRequest) {
        self.queues.entry(qpn.get()).or_default().send.push_back(Fetch::Ready(wr));
    }

    /// Posts a receive request.
    pub fn post_recv(&mut self, qpn: Qpn, wr_id: u64, sges: &[Sge]) {
        let wr = RecvRequest { wr_id, sges: sges.into() };
        self.queues.entry(qpn.get()).or_default().recv.push_back(Fetch::Ready(wr));
    }

    /// Posts a receive request to a shared queue.
    pub fn post_shared(&mut self, srq: u32, wr_id: u64, sges: &[Sge]) {
        let wr = RecvRequest { wr_id, sges: sges.into() };
        self.shared.entry(srq).or_default().push_back(Fetch::Ready(wr));
    }

    fn receives(&mut self, qpn: Qpn) -> Option<&mut VecDeque<Fetch<RecvRequest>>> {
        match self.shares.get(&qpn.get()) {
            Some(srq) => self.shared.get_mut(srq),
            None => self.queues.get_mut(&qpn.get()).map(|queues| &mut queues.recv),
        }
    }

    fn note(&mut self, touch: impl FnOnce() -> Touch) {
        if let Some(touches) = &mut self.touches {
            touches.push(touch());
        }
    }

    fn locate(
        &self,
        who: Accessor,
        key: Lkey,
        va: Va,
        len: u64,
        access: Access,
    ) -> Result<(u32, usize), AccessError> {
        let region = self.regions.get(&key.get()).ok_or(AccessError::Key)?;
        if region.pd != who.pd {
            return Err(AccessError::Pd);
        }
        if !region.rights.grants(access) {
            return Err(AccessError::Right);
        }
        let size = region.bytes.len() as u64;
        let offset = va.get().checked_sub(region.va.get()).filter(|&offset| offset <= size);
        let offset = offset.filter(|offset| len <= size - offset).ok_or(AccessError::Bounds)?;
        Ok((key.get(), usize::try_from(offset).map_err(|_| AccessError::Bounds)?))
    }
}

impl Host for SimHost {
    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest> {
        self.queues.get_mut(&qpn.get()).and_then(|queues| queues.send.pop_front()).unwrap_or(Fetch::Empty)
    }

    fn next_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest> {
        let next = self.receives(qpn).and_then(VecDeque::pop_front);
        match &next {
            Some(Fetch::Ready(wr)) if self.shares.contains_key(&qpn.get()) => {
                let wr_id = wr.wr_id;
                self.note(|| Touch::Took { qpn, wr_id });
            }
            Some(_) => {}
            None => self.note(|| Touch::NoRecv { qpn }),
        }
        next.unwrap_or(Fetch::Empty)
    }

    fn posted_receives(&self, qpn: Qpn) -> Option<u32> {
        let queued = self.queues.get(&qpn.get()).map_or(0, |queues| queues.recv.len());
        self.counts_receives.then(|| u32::try_from(queued).unwrap_or(u32::MAX))
    }

    fn group_members(&self, gid: &[u8; 16]) -> SmallVec<[Qpn; 8]> {
        self.groups.get(gid).into_iter().flatten().copied().collect()
    }

    fn check(&self, who: Accessor, key: Lkey, va: Va, len: u64, access: Access) -> Result<(), AccessError> {
        self.locate(who, key, va, len, access).map(|_| ())
    }

    fn read(
        &self,
        who: Accessor,
        key: Lkey,
        va: Va,
        len: usize,
        out: &mut Vec<u8>,
        access: Access,
    ) -> Result<(), AccessError> {
        assert!(len > 0, "length 0 is never passed");
        let (key, offset) = self.locate(who, key, va, len as u64, access)?;
        let region = self.regions.get(&key).ok_or(AccessError::Key)?;
        out.extend_from_slice(region.bytes.get(offset..offset + len).ok_or(AccessError::Bounds)?);
        Ok(())
    }

    fn write(
        &mut self,
        who: Accessor,
        key: Lkey,
        va: Va,
        data: &[u8],
        access: Access,
    ) -> Result<(), AccessError> {
        assert!(!data.is_empty(), "length 0 is never passed");
        let (key, offset) = self.locate(who, key, va, data.len() as u64, access)?;
        let region = self.regions.get_mut(&key).ok_or(AccessError::Key)?;
        let place = region.bytes.get_mut(offset..offset + data.len()).ok_or(AccessError::Bounds)?;
        place.copy_from_slice(data);
        self.note(|| Touch::Write { key, va: va.get(), data: data.to_vec(), access });
        Ok(())
    }

    fn atomic(&mut self, who: Accessor, key: Lkey, va: Va, op: AtomicOp) -> Result<u64, AccessError> {
        let (key, offset) = self.locate(who, key, va, 8, Access::RemoteAtomic)?;
        let region = self.regions.get_mut(&key).ok_or(AccessError::Key)?;
        let word = region.bytes.get_mut(offset..).and_then(|rest| rest.first_chunk_mut::<8>());
        let word = word.ok_or(AccessError::Bounds)?;
        let original = u64::from_le_bytes(*word);
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if original == compare => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd { add } => original.wrapping_add(add),
        };
        *word = new.to_le_bytes();
        self.note(|| Touch::Atomic { key, va: va.get(), op, original });
        Ok(original)
    }
}
