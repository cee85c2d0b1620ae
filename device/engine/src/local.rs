//! Local operations of a send queue, such as fast registration: work that takes no packet. The engine orders it and
//! knows nothing else of it.
//!
//! # Spec
//! IBTA volume 1, section 10.8.3.3 (ordering).

/// Description of a local operation. Only the [`Host`](crate::Host) that created it understands it. A host whose operations
/// do not fit keeps them, and passes their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalToken(pub [u64; 4]);

/// A local operation. It executes once, after all earlier requests have started and before any later one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalOp {
    /// It waits until all earlier requests are done, because these may be retransmitted and gathered again. An
    /// invalidation requires this.
    pub wait_for_older: bool,
    /// The operation, for [`Host::run_local`](crate::Host::run_local).
    pub token: LocalToken,
}
