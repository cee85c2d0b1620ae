//! Every bound of the engine, with what it protects.

use std::time::Duration;

/// Send requests a QP holds at once, from the first packet to the completion. A peer that never acknowledges makes us
/// keep so many, and no more; at one packet each they fill the largest useful window.
pub(crate) const OUTSTANDING_REQUESTS: usize = 128;

/// Frames one QP may send before the next QP has its turn. Long enough that a run of equal frames fills one
/// segmentation offload of the kernel (64 KiB), short enough that a QP waits little for its neighbours.
pub(crate) const FRAMES_PER_TURN: u32 = 32;

/// Send requests a QP may take in one step without giving a frame (NOPs, flushed requests). A guest can link a request
/// to itself, so the chain may have no end.
pub(crate) const REQUESTS_PER_STEP: u32 = 64;

/// Steps without a frame before `poll_transmit` returns to its caller and asks for another call by a deadline in the
/// past.
pub(crate) const IDLE_STEPS_PER_POLL: u32 = 64;

/// Requests of one queue flushed at once. The rest follows in later turns.
pub(crate) const FLUSHES_PER_STEP: u32 = 256;

/// QPs whose deadline is handled by one `handle_timeout`.
pub(crate) const TIMEOUTS_PER_CALL: u32 = 1024;

/// Answers a QP owes its peer at once. A peer within its READ and atomic limits never comes near; requests that would
/// exceed it are dropped as if the wire had lost them.
pub(crate) const PENDING_REPLIES: usize = 64;

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

/// Bytes in front of a datagram in its receive buffer.
pub(crate) const GRH_BYTES: usize = 40;
