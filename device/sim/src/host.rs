//! Work queues and memory of a simulated host.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use protocol::ids::{Lkey, Pdn, Qpn, Rkey, Srqn, Va};
use smallvec::SmallVec;

use crate::key_op::{Bind, FastRegister, KeyOp, WindowKind};
use engine::{
    Access, AccessError, AtomicOp, DetachedPayload, Fetch, GroupDatagram, Host, Initiator, Instant,
    LocalToken, PayloadRef, PeerRequest, ReceivedNak, RecvRequest, RecvSource, Retry, Rights, SendRequest,
    Sge, XrcError,
};

#[derive(Clone, Debug)]
pub struct Region {
    pub pd: Pdn,
    /// Virtual address of the first byte.
    pub va: Va,
    pub rights: Rights,
    pub bytes: Vec<u8>,
}

/// Part of a region that contains detached payload.
#[derive(Clone, Debug)]
pub struct RegionRange {
    key: u32,
    range: Range<usize>,
}

/// Type of a key that work requests can modify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Region for fast registration.
    Fast,
    Window(WindowKind),
}

/// A key that work requests can validate and invalidate. A key's index is its value without the low 8 bits.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Current value of the complete key.
    pub key: u32,
    pub pd: Pdn,
    pub kind: KeyKind,
    /// Memory that is accessible through the key while the key is valid.
    pub mapping: Option<Mapping>,
}

/// The part of a region that is accessible through a valid key.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    pub region: u32,
    /// Start of the key's range, as an address in the region.
    pub first: u64,
    /// Start of the range, as addressed through the key.
    pub start: u64,
    pub len: u64,
    pub rights: Rights,
    /// The only QP that can use the key, if it is restricted to one.
    pub qpn: Option<Qpn>,
    /// Index of the region's key, for a window bound to a fast-registered region.
    pub parent: Option<u32>,
}

impl Key {
    /// Returns the address in the region that corresponds to `va`, if the access is permitted.
    fn translate(
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
        self.check_owner(initiator)?;
        if !mapping.rights.permit(access) {
            return Err(AccessError::Right);
        }
        let offset = va.checked_sub(mapping.start).filter(|&offset| offset <= mapping.len);
        let offset = offset.filter(|offset| len <= mapping.len - offset).ok_or(AccessError::Bounds)?;
        Ok(mapping.first + offset)
    }

    fn check_owner(&self, initiator: Initiator) -> Result<(), AccessError> {
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
        self.check_owner(initiator)?;
        self.mapping.take().map(drop).ok_or(AccessError::Invalid)
    }

    /// Returns this key's rights and the mapping for a window bound to it.
    fn open(&self, initiator: Initiator, of: &Bind) -> Result<(Rights, Mapping), AccessError> {
        if self.key != of.parent.get() {
            return Err(AccessError::Key);
        }
        if self.kind != KeyKind::Fast {
            return Err(AccessError::Kind);
        }
        let mapping = self.mapping.ok_or(AccessError::Invalid)?;
        self.check_owner(initiator)?;
        let offset = of.va.get().checked_sub(mapping.start).filter(|offset| *offset <= mapping.len);
        let offset = offset.filter(|offset| of.len <= mapping.len - offset).ok_or(AccessError::Bounds)?;
        let parent = Some(index(self.key));
        Ok((mapping.rights, Mapping { first: mapping.first + offset, parent, ..mapping }))
    }
}

#[derive(Clone, Debug, Default)]
pub struct WorkQueues {
    /// Number of send requests and number of receive requests that the engine has fetched.
    pub taken: [usize; 2],
    /// Send requests that have been posted but not fetched.
    pub send: VecDeque<Fetch<SendRequest>>,
    /// Receive requests that have been posted but not fetched.
    pub recv: VecDeque<Fetch<RecvRequest>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcSrq {
    pub domain: u32,
    /// Protection domain (PD) of the SRQ. Memory accesses of requests that name the SRQ are checked against this PD.
    pub pd: Pdn,
}

/// A memory access or queue operation by the engine, recorded for the checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEvent {
    Write {
        /// Key of the region, even if the access used a different key.
        key: u32,
        /// First byte written, as an address in the region.
        va: u64,
        data: Vec<u8>,
        access: Access,
    },
    Atomic {
        key: u32,
        va: u64,
        op: AtomicOp,
        original: u64,
    },
    Local {
        qpn: Qpn,
        op: KeyOp,
    },
    /// A key named by the peer was invalidated.
    Invalidated {
        qpn: Qpn,
        /// Complete key, including its low 8 bits.
        key: u32,
    },
    /// A request was fetched from a shared receive queue.
    Took {
        qpn: Qpn,
        /// XRC SRQ that the request came from; `None` for the QP's own SRQ.
        srqn: Option<Srqn>,
        wr_id: u64,
    },
    /// A receive queue was found empty.
    NoRecv {
        qpn: Qpn,
    },
}

/// Memory and work queues of a simulated host.
#[derive(Clone, Debug, Default)]
pub struct SimHost {
    pub regions: BTreeMap<u32, Region>,
    /// Keys that work requests can modify, by index.
    pub keys: BTreeMap<u32, Key>,
    /// Work queues by QP number.
    pub queues: BTreeMap<u32, WorkQueues>,
    /// Shared receive queues by number.
    pub shared: BTreeMap<u32, VecDeque<Fetch<RecvRequest>>>,
    /// Shared receive queue of each QP that uses one, by QP number.
    pub shares: BTreeMap<u32, u32>,
    /// XRC SRQs by number. Their requests are in `shared`.
    pub xrc_srqs: BTreeMap<u32, XrcSrq>,
    /// XRC domain of each XRC target, by QP number.
    pub xrc_domains: BTreeMap<u32, u32>,
    /// Attached QPs by multicast group.
    pub groups: BTreeMap<[u8; 16], Vec<Qpn>>,
    /// Whether the host counts posted receive requests, which lets responders advertise credits.
    pub counts_receives: bool,
    /// Return value of [`Host::next_recv_due`].
    pub recv_due: Option<Instant>,
    /// Recorded events, if recording is enabled. The simulation drains them for the checker.
    pub host_events: Option<Vec<HostEvent>>,
    pub naks: Vec<ReceivedNak>,
    pub retries: Vec<Retry>,
    /// Peer requests executed by a responder, and duplicates that it has acknowledged or answered again.
    pub executed: Vec<PeerRequest>,
}

impl SimHost {
    /// Adds a region of `len` zero bytes at address `va` with `key` in protection domain `pd`.
    pub fn add_region(&mut self, key: u32, pd: u32, va: u64, len: usize, rights: Rights) {
        let region = Region { pd: Pdn::new(pd), va: Va::new(va), rights, bytes: vec![0; len] };
        self.regions.insert(key, region);
    }

    /// Returns the memory of a region.
    ///
    /// # Panics
    /// Panics if the key is unknown.
    pub fn bytes(&mut self, key: u32) -> &mut Vec<u8> {
        &mut self.regions.get_mut(&key).expect("the caller added the region").bytes
    }

    /// Posts a send request. The caller must then call `notify_send` on the engine.
    pub fn post_send(&mut self, qpn: Qpn, wr: SendRequest) {
        self.queues.entry(qpn.get()).or_default().send.push_back(Fetch::Ready(wr));
    }

    pub fn post_recv(&mut self, qpn: Qpn, wr_id: u64, sges: &[Sge]) {
        let wr = RecvRequest { wr_id, sges: sges.into() };
        self.queues.entry(qpn.get()).or_default().recv.push_back(Fetch::Ready(wr));
    }

    pub fn post_shared(&mut self, srq: u32, wr_id: u64, sges: &[Sge]) {
        let wr = RecvRequest { wr_id, sges: sges.into() };
        self.shared.entry(srq).or_default().push_back(Fetch::Ready(wr));
    }

    fn receive_queue(&mut self, source: RecvSource) -> Option<&mut VecDeque<Fetch<RecvRequest>>> {
        let qpn = match source {
            RecvSource::XrcSrq { srqn, .. } => return self.shared.get_mut(&srqn.get()),
            RecvSource::Qp(qpn) => qpn,
        };
        match self.shares.get(&qpn.get()) {
            Some(srq) => self.shared.get_mut(srq),
            None => self.queues.get_mut(&qpn.get()).map(|queues| &mut queues.recv),
        }
    }

    fn record(&mut self, event: impl FnOnce() -> HostEvent) {
        if let Some(host_events) = &mut self.host_events {
            host_events.push(event());
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
                let va = found.translate(initiator, key.get(), va.get(), len, access)?;
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

    /// Executes a fast registration. In the simulation, the bus address encodes the key of a region and an offset in
    /// that region.
    fn fast_register(&mut self, initiator: Initiator, of: &FastRegister) -> Result<(), AccessError> {
        let found = self.key_mut(of.key.get())?;
        if found.kind != KeyKind::Fast {
            return Err(AccessError::Kind);
        }
        found.check_owner(initiator)?;
        if found.mapping.is_some() {
            return Err(AccessError::Valid);
        }
        let region = u32::try_from(of.base.get() >> 32).map_err(|_| AccessError::Unmapped)?;
        let start = if of.zero_based { 0 } else { of.start.get() };
        let first = of.base.get() & u64::from(u32::MAX);
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
        // A zero-length bind unbinds the window and does not use a region.
        let opened = if of.len == 0 { None } else { Some(self.open(initiator, of)?) };
        let found = self.key_mut(of.window.get())?;
        if found.kind != KeyKind::Window(of.kind) {
            return Err(AccessError::Kind);
        }
        found.check_owner(initiator)?;
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

    /// Returns the mapping for a window, if the window may be bound to its parent.
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

    /// Invalidates a key. Fails if a window is bound to it.
    fn invalidate_key(&mut self, initiator: Initiator, key: u32) -> Result<(), AccessError> {
        let parent = Some(index(key));
        let is_bound = self.keys.values().filter_map(|key| key.mapping).any(|of| of.parent == parent);
        let found = self.key_mut(key)?;
        if is_bound && found.key == key {
            found.check_owner(initiator)?;
            return Err(AccessError::Bound);
        }
        found.invalidate(initiator, key)
    }
}

/// Returns the index of a key that work requests can modify.
fn index(key: u32) -> u32 {
    key >> 8
}

impl SimHost {
    /// Inserts detached payload into the frame that begins at the start of `frame`.
    pub fn insert(&self, frame: &mut Vec<u8>, payload: DetachedPayload, ranges: &[RegionRange]) {
        assert_eq!(usize::from(payload.ranges), ranges.len());
        let bytes_of = |range: &RegionRange| self.regions[&range.key].bytes[range.range.clone()].to_vec();
        let bytes: Vec<u8> = ranges.iter().flat_map(bytes_of).collect();
        assert_eq!(payload.len.get() as usize, bytes.len());
        let at = usize::from(payload.at);
        frame.splice(at..at, bytes);
    }
}

impl Host for SimHost {
    type Range = RegionRange;

    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest> {
        let Some(queues) = self.queues.get_mut(&qpn.get()) else { return Fetch::Empty };
        let next = queues.send.pop_front();
        queues.taken[0] += usize::from(next.is_some());
        next.unwrap_or(Fetch::Empty)
    }

    fn next_recv_due(&self, _: Qpn) -> Option<Instant> {
        self.recv_due
    }

    fn next_recv(&mut self, source: RecvSource) -> Fetch<RecvRequest> {
        let (RecvSource::Qp(qpn) | RecvSource::XrcSrq { qpn, .. }) = source;
        let srqn = source.srqn();
        let next = self.receive_queue(source).and_then(VecDeque::pop_front);
        match &next {
            Some(Fetch::Ready(wr)) if srqn.is_some() || self.shares.contains_key(&qpn.get()) => {
                let wr_id = wr.wr_id;
                self.record(|| HostEvent::Took { qpn, srqn, wr_id });
            }
            Some(_) => self.queues.entry(qpn.get()).or_default().taken[1] += 1,
            None => self.record(|| HostEvent::NoRecv { qpn }),
        }
        next.unwrap_or(Fetch::Empty)
    }

    fn xrc_srq(&self, qpn: Qpn, srqn: Srqn) -> Result<Pdn, XrcError> {
        let srq = self.xrc_srqs.get(&srqn.get()).ok_or(XrcError::InvalidXrceth)?;
        if self.xrc_domains.get(&qpn.get()) != Some(&srq.domain) {
            return Err(XrcError::DomainViolation);
        }
        Ok(srq.pd)
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
        assert!(len > 0, "the engine must never pass a length of 0");
        let (key, offset) = self.locate(initiator, key, va, len as u64, access)?;
        let region = self.regions.get(&key).ok_or(AccessError::Key)?;
        out.extend_from_slice(region.bytes.get(offset..offset + len).ok_or(AccessError::Bounds)?);
        Ok(())
    }

    fn locate(
        &self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        len: usize,
        ranges: &mut Vec<RegionRange>,
        access: Access,
    ) -> Result<bool, AccessError> {
        assert!(len > 0, "the engine must never pass a length of 0");
        let (key, offset) = self.locate(initiator, key, va, len as u64, access)?;
        ranges.push(RegionRange { key, range: offset..offset + len });
        Ok(true)
    }

    fn write(
        &mut self,
        initiator: Initiator,
        key: Lkey,
        va: Va,
        data: PayloadRef<'_>,
        access: Access,
    ) -> Result<(), AccessError> {
        let data = data.to_vec();
        assert!(!data.is_empty(), "the engine must never pass a length of 0");
        let (key, offset) = self.locate(initiator, key, va, data.len() as u64, access)?;
        let region = self.regions.get_mut(&key).ok_or(AccessError::Key)?;
        let va = region.va.get() + offset as u64;
        let place = region.bytes.get_mut(offset..offset + data.len()).ok_or(AccessError::Bounds)?;
        place.copy_from_slice(&data);
        self.record(|| HostEvent::Write { key, va, data, access });
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
        self.record(|| HostEvent::Atomic { key, va: va.get(), op, original });
        Ok(original)
    }

    fn run_local(&mut self, initiator: Initiator, token: &LocalToken) -> Result<(), AccessError> {
        let op = KeyOp::of(token).ok_or(AccessError::Kind)?;
        match &op {
            KeyOp::Invalidate(key) => self.invalidate_key(initiator, key.get())?,
            KeyOp::FastRegister(of) => self.fast_register(initiator, of)?,
            KeyOp::Bind(of) => self.bind(initiator, of)?,
        }
        self.record(|| HostEvent::Local { qpn: initiator.qpn, op });
        Ok(())
    }

    fn invalidate(&mut self, initiator: Initiator, key: Lkey) -> Result<(), AccessError> {
        self.invalidate_key(initiator, key.get())?;
        self.record(|| HostEvent::Local { qpn: initiator.qpn, op: KeyOp::Invalidate(key) });
        Ok(())
    }

    fn remote_invalidate(&mut self, initiator: Initiator, key: Rkey) -> Result<(), AccessError> {
        match self.keys.get(&index(key.get())) {
            Some(_) => self.invalidate_key(initiator, key.get())?,
            None if self.regions.contains_key(&key.get()) => return Err(AccessError::Kind),
            None => return Err(AccessError::Key),
        }
        self.record(|| HostEvent::Invalidated { qpn: initiator.qpn, key: key.get() });
        Ok(())
    }

    fn request_executed(&mut self, _: Qpn, request: PeerRequest) {
        self.executed.push(request);
    }

    fn nak_received(&mut self, nak: &ReceivedNak) {
        self.naks.push(*nak);
    }

    fn retrying(&mut self, retry: &Retry) {
        self.retries.push(*retry);
    }
}
