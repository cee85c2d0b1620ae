//! What a responder remembers of the requests it executed.
//!
//! A PSN behind the expected one does not make a packet a duplicate: it may come from a former connection of the same QP
//! numbers, or from a forger. A duplicate repeats a request of this connection, and a READ or atomic is answered again
//! only from the record of its execution.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.4.1.2 (duplicate requests), 9.7.5.1 and 9.7.5.1.3 (responder resources).

use std::collections::VecDeque;

use protocol::roce::Reth;

use crate::segment::packet_count;

/// Requests of one connection. They are numbered by packets since its start, which unlike PSNs never wrap.
#[derive(Debug, Default)]
pub(crate) struct Executed {
    packets: u64,
    /// The newest READs and atomics, oldest first.
    resources: VecDeque<Resource>,
}

/// A READ or atomic that can be answered again.
#[derive(Debug)]
struct Resource {
    first: u64,
    request: Request,
}

#[derive(Debug)]
enum Request {
    Read(Reth),
    Atomic { original: u64 },
}

impl Executed {
    /// A request of `packets` PSNs was executed.
    pub(crate) fn advance(&mut self, packets: u32) {
        self.packets += u64::from(packets);
    }

    /// Number of the packet that lies `behind` the expected one; `None` if the connection had not begun by then.
    pub(crate) fn packet(&self, behind: u32) -> Option<u64> {
        self.packets.checked_sub(behind.into())
    }

    /// The READ that is being executed. `most`: READs and atomics to remember.
    pub(crate) fn remember_read(&mut self, reth: Reth, most: u8) {
        self.remember(Request::Read(reth), most);
    }

    /// The atomic that is being executed, with its result.
    pub(crate) fn remember_atomic(&mut self, original: u64, most: u8) {
        self.remember(Request::Atomic { original }, most);
    }

    fn remember(&mut self, request: Request, most: u8) {
        while self.resources.len() >= usize::from(most.max(1)) {
            self.resources.pop_front();
        }
        self.resources.push_back(Resource { first: self.packets, request });
    }

    /// Whether a READ that was executed covers `reth` at `packet`. A requester that has a part of the responses asks
    /// again from the first missing one: the same key, and the address that belongs to the PSN.
    pub(crate) fn covers_read(&self, packet: u64, reth: &Reth, mtu: usize) -> bool {
        self.resources.iter().any(|Resource { first, request }| {
            let (Request::Read(whole), Some(skipped)) = (request, packet.checked_sub(*first)) else {
                return false;
            };
            if skipped >= packet_count(whole.dma_len, mtu).into() {
                return false;
            }
            let offset = skipped * mtu as u64;
            reth.rkey == whole.rkey
                && reth.va.get() == whole.va.get().wrapping_add(offset)
                && offset + u64::from(reth.dma_len) <= whole.dma_len.into()
        })
    }

    /// The saved result of the atomic at `packet`.
    pub(crate) fn atomic_result(&self, packet: u64) -> Option<u64> {
        self.resources.iter().find(|resource| resource.first == packet).and_then(|resource| {
            match resource.request {
                Request::Atomic { original } => Some(original),
                Request::Read(_) => None,
            }
        })
    }
}
