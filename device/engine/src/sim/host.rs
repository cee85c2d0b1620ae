//! Work queues and memory of a simulated machine.

use std::collections::{BTreeMap, VecDeque};

use protocol::ids::{Lkey, Pdn, Qpn, Rkey, Va};
use smallvec::SmallVec;

use crate::{
    Access, AccessError, AtomicOp, Bind, FastRegister, Fetch, GroupDatagram, Host, Initiator, LocalOp, Pages,
    RecvRequest, Rights, SendRequest, Sge, WindowKind,
};

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

/// What work requests may do with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A region for fast registration.
    Fast,
    /// A window.
    Window(WindowKind),
}

/// A key that work requests make valid and invalid. Its index is above its low 8 bits.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The whole key, as it is now.
    pub key: u32,
    /// Its protection domain.
    pub pd: Pdn,
    /// What it is.
    pub kind: KeyKind,
    /// Where it leads, while it is valid.
    pub mapping: Option<Mapping>,
}

/// What a valid key stands for: a part of a region.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Key of the region.
    pub region: u32,
    /// Address of the first byte in the region.
    pub first: u64,
    /// Address of the first byte through the key.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// What is allowed.
    pub rights: Rights,
    /// The only QP that may use it.
    pub qpn: Option<Qpn>,
    /// Of a window on a region that was fast-registered: that one's index.
    pub parent: Option<u32>,
}

impl Key {
    /// The address in the region.
    fn grant(
        &self,
        initiator: Initiator,
        key: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<u64, AccessError> {
        if self.key != key {
            return Err(AccessError::Key);
        }
        let mapping = self.mapping.ok_or(AccessError::Invalid)?;
        if self.kind != KeyKind::Fast && access.is_local() {
            return Err(AccessError::Kind);
        }
        self.admit(initiator)?;
        if !mapping.rights.permit(access) {
            return Err(AccessError::Right);
        }
        let offset = va.checked_sub(mapping.start).filter(|&offset| offset <= mapping.len);
        let offset = offset.filter(|offset| len <= mapping.len - offset).ok_or(AccessError::Bounds)?;
        Ok(mapping.first + offset)
    }

    fn admit(&self, initiator: Initiator) -> Result<(), AccessError> {
        if self.pd != initiator.pd {
            return Err(AccessError::Pd);
        }
        match self.mapping.and_then(|mapping| mapping.qpn) {
            Some(qpn) if qpn != initiator.qpn => Err(AccessError::Qp),
            _ => Ok(()),
        }
    }

    fn invalidate(&mut self, initiator: Initiator, key: u32) -> Result<(), AccessError> {
        if self.key != key {
            return Err(AccessError::Key);
        }
        if self.kind == KeyKind::Window(WindowKind::Type1) {
            return Err(AccessError::Kind);
        }
        self.admit(initiator)?;
        self.mapping.take().map(drop).ok_or(AccessError::Invalid)
    }

    /// What a window that is bound to this key leads to: of its rights, and of where its first byte is.
    fn open(&self, initiator: Initiator, of: &Bind) -> Result<(Rights, Mapping), AccessError> {
        if self.key != of.parent.get() {
            return Err(AccessError::Key);
        }
        if self.kind != KeyKind::Fast {
            return Err(AccessError::Kind);
        }
        let mapping = self.mapping.ok_or(AccessError::Invalid)?;
        self.admit(initiator)?;
        let offset = of.va.get().checked_sub(mapping.start).filter(|offset| *offset <= mapping.len);
        let offset = offset.filter(|offset| of.len <= mapping.len - offset).ok_or(AccessError::Bounds)?;
        let parent = Some(index(self.key));
        Ok((mapping.rights, Mapping { first: mapping.first + offset, parent, ..mapping }))
    }
}

/// Work queues of one QP.
#[derive(Clone, Debug, Default)]
pub struct WorkQueues {
    /// Send and receive requests that the engine took.
    pub taken: [usize; 2],
    /// Posted and not fetched.
    pub send: VecDeque<Fetch<SendRequest>>,
    /// Posted and not fetched.
    pub recv: VecDeque<Fetch<RecvRequest>>,
}

/// What the engine did to its owner's memory and queues, for somebody initiator judges it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It stored bytes.
    Write {
        /// Key of the region, whatever key led there.
        key: u32,
        /// First address in the region.
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
    /// It executed work on a key.
    Local {
        /// In the name of which QP.
        qpn: Qpn,
        /// The work.
        op: LocalOp,
    },
    /// It invalidated a key that a peer named.
    Invalidated {
        /// In the name of which QP.
        qpn: Qpn,
        /// The whole key.
        key: u32,
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
    /// Keys that work requests change, by their index.
    pub keys: BTreeMap<u32, Key>,
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
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: u64,
        access: Access,
    ) -> Result<(u32, usize), AccessError> {
        let (key, va) = match self.keys.get(&index(key.get())) {
            Some(found) => {
                let va = found.grant(initiator, key.get(), va.get(), len, access)?;
                (found.mapping.ok_or(AccessError::Invalid)?.region, va)
            }
            None => {
                let region = self.regions.get(&key.get()).ok_or(AccessError::Key)?;
                if region.pd != initiator.pd {
                    return Err(AccessError::Pd);
                }
                if !region.rights.permit(access) {
                    return Err(AccessError::Right);
                }
                (key.get(), va.get())
            }
        };
        let region = self.regions.get(&key).ok_or(AccessError::Key)?;
        let size = region.bytes.len() as u64;
        let offset = va.checked_sub(region.va.get()).filter(|&offset| offset <= size);
        let offset = offset.filter(|offset| len <= size - offset).ok_or(AccessError::Bounds)?;
        Ok((key, usize::try_from(offset).map_err(|_| AccessError::Bounds)?))
    }

    fn key_mut(&mut self, key: u32) -> Result<&mut Key, AccessError> {
        self.keys.get_mut(&index(key)).ok_or(AccessError::Key)
    }

    /// Pages of the simulation are addresses in regions.
    fn fast_register(&mut self, initiator: Initiator, of: &FastRegister) -> Result<(), AccessError> {
        let found = self.key_mut(of.key.get())?;
        if found.kind != KeyKind::Fast {
            return Err(AccessError::Kind);
        }
        found.admit(initiator)?;
        if found.mapping.is_some() {
            return Err(AccessError::Valid);
        }
        let Pages::Contiguous { base, .. } = of.pages else { return Err(AccessError::Unmapped) };
        let region = u32::try_from(base.get() >> 32).map_err(|_| AccessError::Unmapped)?;
        let start = if of.zero_based { 0 } else { of.start.get() };
        let first = base.get() & u64::from(u32::MAX);
        found.key = of.key.get();
        found.mapping =
            Some(Mapping { region, first, start, len: of.len, rights: of.rights, qpn: None, parent: None });
        let base = self.regions.get(&region).ok_or(AccessError::Unmapped)?.va.get();
        if let Some(mapping) = &mut self.key_mut(of.key.get())?.mapping {
            mapping.first += base;
        }
        Ok(())
    }

    fn bind(&mut self, initiator: Initiator, of: &Bind) -> Result<(), AccessError> {
        // What takes a window away names no region.
        let opened = if of.len == 0 { None } else { Some(self.open(initiator, of)?) };
        let found = self.key_mut(of.window.get())?;
        if found.kind != KeyKind::Window(of.kind) {
            return Err(AccessError::Kind);
        }
        found.admit(initiator)?;
        let qpn = match of.kind {
            WindowKind::Type1 => None,
            WindowKind::Type2B if found.mapping.is_some() => return Err(AccessError::Valid),
            WindowKind::Type2B => Some(initiator.qpn),
        };
        found.key = of.window.get();
        let start = if of.zero_based { 0 } else { of.va.get() };
        found.mapping = opened.map(|opened| Mapping { start, len: of.len, rights: of.rights, qpn, ..opened });
        Ok(())
    }

    /// Where the first byte of a window is.
    fn open(&self, initiator: Initiator, of: &Bind) -> Result<Mapping, AccessError> {
        let (rights, opened) = match self.keys.get(&index(of.parent.get())) {
            Some(parent) => parent.open(initiator, of)?,
            None => {
                let parent = self.regions.get(&of.parent.get()).ok_or(AccessError::Key)?;
                if parent.pd != initiator.pd {
                    return Err(AccessError::Pd);
                }
                let (region, first) = (of.parent.get(), of.va.get());
                let all = Mapping {
                    region,
                    first,
                    start: first,
                    len: of.len,
                    rights: parent.rights,
                    qpn: None,
                    parent: None,
                };
                (parent.rights, all)
            }
        };
        if rights.contains(Rights::BIND) { Ok(opened) } else { Err(AccessError::Right) }
    }

    /// A key ends that no window is bound to.
    fn invalidate(&mut self, initiator: Initiator, key: u32) -> Result<(), AccessError> {
        let parent = Some(index(key));
        let is_bound = self.keys.values().filter_map(|key| key.mapping).any(|of| of.parent == parent);
        let found = self.key_mut(key)?;
        if is_bound && found.key == key {
            found.admit(initiator)?;
            return Err(AccessError::Bound);
        }
        found.invalidate(initiator, key)
    }
}

/// Index of a key that work requests change.
fn index(key: u32) -> u32 {
    key >> 8
}

impl Host for SimHost {
    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest> {
        let Some(queues) = self.queues.get_mut(&qpn.get()) else { return Fetch::Empty };
        let next = queues.send.pop_front();
        queues.taken[0] += usize::from(next.is_some());
        next.unwrap_or(Fetch::Empty)
    }

    fn next_recv(&mut self, qpn: Qpn) -> Fetch<RecvRequest> {
        let next = self.receives(qpn).and_then(VecDeque::pop_front);
        match &next {
            Some(Fetch::Ready(wr)) if self.shares.contains_key(&qpn.get()) => {
                let wr_id = wr.wr_id;
                self.note(|| Touch::Took { qpn, wr_id });
            }
            Some(_) => self.queues.entry(qpn.get()).or_default().taken[1] += 1,
            None => self.note(|| Touch::NoRecv { qpn }),
        }
        next.unwrap_or(Fetch::Empty)
    }

    fn posted_receives(&self, qpn: Qpn) -> Option<u32> {
        let queued = self.queues.get(&qpn.get()).map_or(0, |queues| queues.recv.len());
        self.counts_receives.then(|| u32::try_from(queued).unwrap_or(u32::MAX))
    }

    fn group_members(&self, datagram: &GroupDatagram) -> SmallVec<[Qpn; 8]> {
        self.groups.get(&datagram.gid).into_iter().flatten().copied().collect()
    }

    fn check(
        &self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: u64,
        access: Access,
    ) -> Result<(), AccessError> {
        self.locate(initiator, key, va, len, access).map(|_| ())
    }

    fn read(
        &self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: usize,
        out: &mut Vec<u8>,
        access: Access,
    ) -> Result<(), AccessError> {
        assert!(len > 0, "length 0 is never passed");
        let (key, offset) = self.locate(initiator, key, va, len as u64, access)?;
        let region = self.regions.get(&key).ok_or(AccessError::Key)?;
        out.extend_from_slice(region.bytes.get(offset..offset + len).ok_or(AccessError::Bounds)?);
        Ok(())
    }

    fn write(
        &mut self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        data: &[u8],
        access: Access,
    ) -> Result<(), AccessError> {
        assert!(!data.is_empty(), "length 0 is never passed");
        let (key, offset) = self.locate(initiator, key, va, data.len() as u64, access)?;
        let region = self.regions.get_mut(&key).ok_or(AccessError::Key)?;
        let va = region.va.get() + offset as u64;
        let place = region.bytes.get_mut(offset..offset + data.len()).ok_or(AccessError::Bounds)?;
        place.copy_from_slice(data);
        self.note(|| Touch::Write { key, va, data: data.to_vec(), access });
        Ok(())
    }

    fn atomic(&mut self, initiator: Initiator, key: Lkey, va: Va, op: AtomicOp) -> Result<u64, AccessError> {
        let (key, offset) = self.locate(initiator, key, va, 8, Access::RemoteAtomic)?;
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

    fn run_local(&mut self, initiator: Initiator, op: &LocalOp) -> Result<(), AccessError> {
        match op {
            LocalOp::Invalidate(key) => self.invalidate(initiator, key.get())?,
            LocalOp::FastRegister(of) => self.fast_register(initiator, of)?,
            LocalOp::Bind(of) => self.bind(initiator, of)?,
        }
        self.note(|| Touch::Local { qpn: initiator.qpn, op: *op });
        Ok(())
    }

    fn remote_invalidate(&mut self, initiator: Initiator, key: Rkey) -> Result<(), AccessError> {
        match self.keys.get(&index(key.get())) {
            Some(_) => self.invalidate(initiator, key.get())?,
            None if self.regions.contains_key(&key.get()) => return Err(AccessError::Kind),
            None => return Err(AccessError::Key),
        }
        self.note(|| Touch::Invalidated { qpn: initiator.qpn, key: key.get() });
        Ok(())
    }
}
