//! The engine's limits and the reason for each.
//!
//! The table shows how much memory a malicious guest and malicious peers can make one engine hold, assuming the largest
//! number of QPs that any front-end supports (2^17).
//!
//! | object | size | maximum number | total |
//! |---|---|---|---|
//! | QP | 1 KiB | 2^17 | 128 MiB |
//! | table leaf | 2 KiB | 2^16 (2^24 QP numbers) | 128 MiB |
//! | request, with 60 data segments | 0.2 + 1 KiB | 2^17 x [`KEPT_REQUESTS`] + [`POOLED_REQUESTS`] | 700 MiB |
//! | buffer of a request queue that has shrunk | 35 KiB | [`SPARE_BUFFERS`] | 1.1 MiB |
//! | pending reply | 48 B | 2^17 x [`KEPT_REPLIES`] + [`POOLED_REPLIES`] | 40 MiB |
//! | executed READ or atomic, kept for replay | 32 B | 2^17 x 128 (mthca) | 512 MiB |
//! | fetched receive request, with 60 data segments | 1 KiB | 2^17 | 128 MiB |
//! | event | 88 B | [`EVENT_BACKLOG`] plus the events caused by one input | 36 MiB |
//!
//! Requests account for the largest share, but only if a guest uses all QPs at once with the longest WQEs.

use std::time::Duration;

/// Maximum number of outstanding send requests per QP. A request is outstanding from the time it is fetched until it
/// completes. The limit bounds the memory that a peer can tie up by never sending acknowledgements.
pub(crate) const OUTSTANDING_REQUESTS: usize = 128;

/// Request slots reserved for each QP. They guarantee progress no matter how many slots other QPs use.
pub(crate) const KEPT_REQUESTS: usize = 4;

/// Additional request slots shared by all QPs, enough for about 500 QPs to fill their queues. Without this limit, 2^17
/// QPs could hold 20 GiB.
pub(crate) const POOLED_REQUESTS: usize = 1 << 16;

/// Maximum number of request queue buffers kept for reuse. This is enough for 16 QPs that send bursts at the same time,
/// since each QP releases a small buffer when its queue grows and a large one when its queue shrinks.
pub(crate) const SPARE_BUFFERS: usize = 32;

/// Number of packets after which a QP's turn ends. The last frame can exceed it, because a frame can carry several
/// packets. A turn is long enough to fill one of the kernel's 64 KiB segmentation offload (GSO) buffers with frames of
/// equal length, but short enough that other QPs wait only briefly.
pub(crate) const PACKETS_PER_QP_TURN: u32 = 32;

/// Maximum number of send requests that a QP fetches in one step without producing a frame (NOPs, flushed requests).
/// Without the limit, a guest could make the step endless by linking a request to itself.
pub(crate) const REQUESTS_PER_STEP: u32 = 64;

/// Number of steps without a frame after which `poll_transmit` returns. `poll_timeout` then returns a time in the past
/// to request another call. The number is low because each step fetches up to [`FLUSHES_PER_STEP`] requests, and a host
/// may write a trace line for each request.
pub(crate) const IDLE_STEPS_PER_POLL: u32 = 4;

/// Maximum number of requests flushed from one queue per step. The rest are flushed in later turns.
pub(crate) const FLUSHES_PER_STEP: usize = 256;

/// Maximum number of deadlines handled per `handle_timeout` call.
pub(crate) const TIMEOUTS_PER_CALL: u32 = 1024;

/// Maximum number of pending READ and atomic replies per QP. Requests beyond this limit are dropped as if lost on the
/// wire. The limit is the largest value of `max_dest_rd_atomic`, so that only duplicates can exceed it. If the
/// responder dropped a request that the connection permits, a requester with a retry count of 0 would fail.
pub(crate) const PENDING_REPLIES: usize = u8::MAX as usize;

/// Maximum number of pending replies per QP, including acknowledgements. ACKs coalesce, so a conforming peer triggers
/// at most one more reply than [`PENDING_REPLIES`]. A malicious peer can prevent coalescing by alternating between
/// requests that trigger different kinds of replies. Replies beyond the limit are dropped.
pub(crate) const PENDING_ANSWERS: usize = 2 * PENDING_REPLIES;

/// Reply slots reserved for each QP.
pub(crate) const KEPT_REPLIES: usize = 4;

/// Additional reply slots shared by all QPs, enough for 500 QPs to fill their queues.
pub(crate) const POOLED_REPLIES: usize = 1 << 18;

/// Flushing and deadline handling stop when this many events are queued. Without this limit, events would accumulate
/// indefinitely if the owner polled them more slowly than queues are flushed.
pub(crate) const EVENT_BACKLOG: usize = 1 << 14;

/// Number of events after which a call that handles deadlines or QPs in ERR returns. A host may write a trace line for
/// each event, so the limit keeps such a call short.
pub(crate) const EVENTS_PER_CALL: usize = 1024;

/// Polling interval for QPs in ERR. Polling finds receive requests posted after the error, for which there is no
/// doorbell. JingZhao interface, section 10.5, requires 1 to 10 ms.
pub(crate) const ERROR_POLL_PERIOD: Duration = Duration::from_millis(10);

/// Number of QPs in ERR polled per [`ERROR_POLL_PERIOD`]. Polling an empty receive queue takes a fraction of a
/// microsecond, so idle QPs in ERR use well under one percent of a core. With more QPs, each QP is polled less often,
/// and the cost stays the same.
pub(crate) const ERROR_POLLS_PER_PERIOD: usize = 256;

/// Minimum congestion window in packets. Any UDP socket can buffer this many full frames.
pub(crate) const MIN_WINDOW: u32 = 8;

/// Longest RDMA message in bytes (2^31, IBTA volume 1, section 9.4).
pub(crate) const MAX_RDMA_LEN: u32 = 1 << 31;

/// Maximum distance from the oldest unacknowledged to the newest assigned PSN: half the PSN space. Beyond this
/// distance, a peer cannot distinguish old packets from new ones.
pub(crate) const PSN_SPAN: u32 = 1 << 23;

/// Maximum number of QPs that receive a copy of one multicast packet: the capacity of an mthca multicast table entry,
/// rounded up. A larger number would make each packet sent to the group expensive for other guests.
pub(crate) const GROUP_MEMBERS: usize = 64;

/// Number of bytes in the GRH area in front of a received datagram.
pub(crate) const GRH_BYTES: usize = 40;
