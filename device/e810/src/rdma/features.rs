//! Features that the RDMA block reports ("query features").
//!
//! # Spec
//! E810 interface, section 10.6.

use card::memory::GuestMemory;
use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::features::{
    FirmwareFeature, HARDWARE_VERSION, HardwareFeature, QueryFeatures,
};

use super::dispatch::{Done, Outcome};

/// Number of 8-byte words in the response.
const WORDS: u16 = 2;
/// Length of the response in bytes.
const LEN: usize = FirmwareFeature::LEN + HardwareFeature::LEN;

/// Firmware version 1.70, which drivers support.
const FIRMWARE: FirmwareFeature = FirmwareFeature { minor: 70, major: 1, count: WORDS, kind: 0 };
/// Hardware generation 2 (E810).
const HARDWARE: HardwareFeature = HardwareFeature { minor: 0, major: 2, kind: HARDWARE_VERSION };

/// Executes "query features".
///
/// # Errors
/// Fails if the buffer is too short or not in mapped memory.
pub(super) fn query(dma: &GuestMemory, command: &QueryFeatures) -> Outcome {
    if usize::try_from(command.len).is_ok_and(|len| len < LEN) {
        return Err(CqpError::invalid("buffer length", command.len.into()));
    }
    let words = [FIRMWARE.emit(), HARDWARE.emit()];
    let unreachable = |_| CqpError::new(CqpErrorCode::Unreachable, "buffer at", command.buffer.get());
    dma.write(command.buffer, words.as_flattened()).map_err(unreachable)?;
    Ok(Done::Plain)
}
