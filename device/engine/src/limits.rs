//! Every bound of the engine, with what it protects.
//!
//! What a hostile guest and its hostile peers can make one engine hold, with the front-end's most QPs (2^17):
//!
//! | what | each | most of them | together |
//! |---|---|---|---|
//! | QP | 1 KiB | 2^17 | 128 MiB |
//! | table leaf | 2 KiB | 2^16 (2^24 numbers) | 128 MiB |
//! | request, with 60 data segments | 0.2 + 1 KiB | 2^17 x [`KEPT_REQUESTS`] + [`POOLED_REQUESTS`] | 700 MiB |
//! | answer due | 48 B | 2^17 x [`KEPT_REPLIES`] + [`POOLED_REPLIES`] | 40 MiB |
//! | READ or atomic that was executed | 32 B | 2^17 x 16 | 64 MiB |
//! | receive request that is held, with 60 data segments | 1 KiB | 2^17 | 128 MiB |
//! | event | 72 B | [`EVENT_BACKLOG`], and those of one input | 30 MiB |
//!
//! Requests dominate, and only for a guest that really uses all QPs at once with the longest WQEs there are.

use std::time::Duration;

/// Send requests a QP holds at once, from the first packet to the completion. A peer that never acknowledges makes us
/// keep so many, and no more.
pub(crate) const OUTSTANDING_REQUESTS: usize = 128;

/// Slots for requests that a QP keeps, and may always use: enough to go on, acknowledge by acknowledge, whatever other
/// QPs hold.
pub(crate) const KEPT_REQUESTS: usize = 4;

/// Slots for requests beyond those, of all QPs together: 512 QPs can fill their queues. Without it 2^17 of them held
/// 20 GiB.
pub(crate) const POOLED_REQUESTS: usize = 1 << 16;

/// Frames one QP may send before the next QP has its turn. Long enough that a run of equal frames fills one
/// segmentation offload of the kernel (64 KiB), short enough that a QP waits little for its neighbours.
pub(crate) const FRAMES_PER_QP_TURN: u32 = 32;

/// Send requests a QP may take in one step without giving a frame (NOPs, flushed requests). A guest can link a request
/// to itself, so the chain may have no end.
pub(crate) const REQUESTS_PER_STEP: u32 = 64;

/// Steps that used up their requests and gave no frame, before `poll_transmit` returns to its caller and asks for another
/// call by a deadline in the past. Each takes up to [`FLUSHES_PER_STEP`] requests, and a host may write a line to a trace
/// for every one of them.
pub(crate) const IDLE_STEPS_PER_POLL: u32 = 4;

/// Requests of one queue flushed at once. The rest follows in later turns.
pub(crate) const FLUSHES_PER_STEP: usize = 256;

/// QPs whose deadline is handled by one `handle_timeout`.
pub(crate) const TIMEOUTS_PER_CALL: u32 = 1024;

/// Answers a QP owes its peer at once, whatever its connection allows; requests that would exceed it are dropped as if
/// the wire had lost them.
pub(crate) const PENDING_REPLIES: usize = 64;

/// Answers of all kinds. Acknowledges join the one before them, so a peer that keeps to the protocol stays below
/// [`PENDING_REPLIES`] and one; a hostile one can make them alternate in kind. Beyond this they are lost.
pub(crate) const PENDING_ANSWERS: usize = 2 * PENDING_REPLIES;

/// Slots for answers that a QP keeps, and may always use.
pub(crate) const KEPT_REPLIES: usize = 4;

/// Slots for answers beyond those, of all QPs together: 2000 QPs with as many as they may have.
pub(crate) const POOLED_REPLIES: usize = 1 << 18;

/// Events that wait for the owner before work stops that makes more of them: flushes and deadlines. An owner that
/// reports slower than queues are flushed would collect them without end.
pub(crate) const EVENT_BACKLOG: usize = 1 << 14;

/// Events of one call for deadlines or for QPs in ERR, before it returns to its caller and asks for another. What makes
/// them costs a host with a trace a line each.
pub(crate) const EVENTS_PER_CALL: usize = 1024;

/// How often a QP in ERR is asked for receive requests posted late, for which there is no doorbell (JingZhao interface,
/// section 10.5, asks for 1 to 10 ms).
pub(crate) const ERROR_POLL_PERIOD: Duration = Duration::from_millis(10);

/// QPs asked in one such period. Looking at an empty receive queue costs a fraction of a microsecond, so idle QPs in
/// ERR take well under one percent of a core; above this number the period grows instead of the cost.
pub(crate) const ERROR_POLLS_PER_PERIOD: usize = 256;

/// Smallest congestion window, packets. Any UDP socket's buffer holds so many full frames.
pub(crate) const MIN_WINDOW: u32 = 8;

/// Longest RDMA message, bytes (IBTA volume 1, section 9.4: 2^31).
pub(crate) const MAX_RDMA_LEN: u32 = 1 << 31;

/// PSNs from the oldest unacknowledged to the newest assigned one: half of the number space, beyond which a peer cannot
/// tell old from new.
pub(crate) const PSN_SPAN: u32 = 1 << 23;

/// QPs that one packet to a group is delivered to: what an entry of mthca's multicast table holds, rounded up. A guest
/// that attaches more makes each of its groups' packets dear for others.
pub(crate) const GROUP_MEMBERS: usize = 64;

/// Bytes in front of a datagram in its receive buffer.
pub(crate) const GRH_BYTES: usize = 40;
