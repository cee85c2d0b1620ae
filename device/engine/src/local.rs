//! Local operations of a send queue, such as fast registration, that do not send packets. The engine only orders them;
//! the host defines what they do.
//!
//! # Spec
//! IBTA volume 1, section 10.8.3.3 (ordering).

/// An opaque local operation, which only the [`Host`](crate::Host) that created it can interpret. A host whose
/// operations do not fit into a token stores them elsewhere and puts their index into the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalToken(pub [u64; 4]);

/// A local operation. It executes once, after all earlier requests have started and before any later one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalOp {
    /// Whether the operation waits until all earlier requests are done. An invalidation must wait, because a
    /// retransmission of an earlier request gathers the data again and needs the key.
    pub wait_for_older: bool,
    /// The operation, for [`Host::run_local`](crate::Host::run_local).
    pub token: LocalToken,
}
