//! What the RDMA half says of itself.
//!
//! # Spec
//! E810 interface, section 10.6.

use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::features::{
    FirmwareFeature, HARDWARE_VERSION, HardwareFeature, QueryFeatures,
};

use super::dispatch::Outcome;
use crate::memory::GuestMemory;

/// Words of the answer, of eight bytes each.
const WORDS: u16 = 2;
/// Bytes of it.
const LEN: usize = FirmwareFeature::LEN + HardwareFeature::LEN;

/// Of firmware that drivers know: 1.70.
const FIRMWARE: FirmwareFeature = FirmwareFeature { minor: 70, major: 1, count: WORDS, kind: 0 };
/// Of this generation.
const HARDWARE: HardwareFeature = HardwareFeature { minor: 0, major: 2, kind: HARDWARE_VERSION };

/// "Query features".
///
/// # Errors
/// The buffer is too short or cannot be reached.
pub(super) fn query(dma: &GuestMemory, command: &QueryFeatures) -> Outcome {
    if usize::try_from(command.len).is_ok_and(|len| len < LEN) {
        return Err(CqpError::invalid("buffer length", command.len.into()));
    }
    let words = [FIRMWARE.emit(), HARDWARE.emit()];
    let unreachable = |_| CqpError::new(CqpErrorCode::Unreachable, "buffer at", command.buffer.get());
    dma.write(command.buffer, words.as_flattened()).map_err(unreachable)?;
    Ok(0)
}
