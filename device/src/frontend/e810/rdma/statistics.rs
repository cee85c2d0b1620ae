//! Counters of the transport, as the driver collects them.
//!
//! # Spec
//! E810 interface, section 10.7.

use protocol::hca::e810::rdma::error::{CqpError, Refusal};
use protocol::hca::e810::rdma::statistics::{GatherStatistics, Statistics};

use super::dispatch::Outcome;
use crate::frontend::Context;

/// "Gather statistics".
///
/// # Errors
/// The buffer cannot be reached.
pub(super) fn gather(cx: &Context<'_>, command: &GatherStatistics) -> Outcome {
    let statistics = Statistics::default();
    let unreachable = |_| CqpError::new(Refusal::Unreachable, "buffer", command.buffer.get());
    cx.dma.write(command.buffer, &statistics.emit()).map_err(unreachable)?;
    Ok(0)
}
