//! History of the requests executed by a responder, used to detect duplicates and to replay READs and atomics.
//!
//! A packet whose PSN is behind the expected PSN is not necessarily a duplicate. It may belong to an earlier connection
//! between the same QP numbers, or be forged. It is a duplicate only if it repeats a request made on this connection.
//! READs and atomics are replayed only from this history.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.4.1.2 (duplicate requests), 9.7.5.1 and 9.7.5.1.3 (responder resources).

use std::collections::VecDeque;

use protocol::roce::Reth;

use crate::segment::packet_count;

/// Requests executed on one connection. Packets are numbered from the start of the connection. Unlike PSNs, packet
/// numbers never wrap.
#[derive(Debug, Default)]
pub(crate) struct RequestHistory {
    packets: u64,
    /// The most recent READs and atomics, oldest first (IBTA: responder resources).
    resources: VecDeque<Resource>,
}

/// A READ or atomic that can be replayed.
#[derive(Debug)]
struct Resource {
    first: u64,
    request: Request,
}

const _: () = assert!(size_of::<Resource>() <= 32, "the table in `limits` gives the size of a record");

#[derive(Debug)]
enum Request {
    Read(Reth),
    Atomic { original: u64 },
}

impl RequestHistory {
    /// Records the execution of a request that consumes `packets` PSNs.
    pub(crate) fn advance(&mut self, packets: u32) {
        self.packets += u64::from(packets);
    }

    /// Returns the number of the packet that is `behind` packets before the expected one, or `None` if it would precede
    /// the first packet of the connection.
    pub(crate) fn packet(&self, behind: u32) -> Option<u64> {
        self.packets.checked_sub(behind.into())
    }

    /// Saves the READ being executed. At most `limit` READs and atomics are kept.
    pub(crate) fn save_read(&mut self, reth: Reth, limit: u8) {
        self.save(Request::Read(reth), limit);
    }

    /// Saves the result of the atomic being executed. At most `limit` READs and atomics are kept.
    pub(crate) fn save_atomic(&mut self, original: u64, limit: u8) {
        self.save(Request::Atomic { original }, limit);
    }

    fn save(&mut self, request: Request, limit: u8) {
        while self.resources.len() >= usize::from(limit.max(1)) {
            self.resources.pop_front();
        }
        self.resources.push_back(Resource { first: self.packets, request });
    }

    /// Returns whether a READ request with `reth`, received as packet number `packet`, repeats all or part of an
    /// executed READ. A requester that has received some of the responses repeats the request from the first missing
    /// response, with the same key and the address that matches the PSN.
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

    /// Returns the saved result of the atomic at `packet`.
    pub(crate) fn atomic_result(&self, packet: u64) -> Option<u64> {
        self.resources.iter().find(|resource| resource.first == packet).and_then(|resource| {
            match resource.request {
                Request::Atomic { original } => Some(original),
                Request::Read(_) => None,
            }
        })
    }
}
