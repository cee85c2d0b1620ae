//! Status codes of commands, and errors in their input.
//!
//! # Spec
//! mlx5 interface, section 3.3.

use thiserror::Error;

use super::code::codes;

codes! {
    /// Status of a command. The documentation of each status names the error that the driver derives from it.
    pub enum Status(u8) {
        /// The command has succeeded.
        Ok = 0x00 "OK",
        /// Internal error, which drivers report as EIO.
        InternalError = 0x01 "INTERNAL_ERR",
        /// Unknown opcode, which drivers report as EINVAL.
        BadOpcode = 0x02 "BAD_OP",
        /// Unsupported register, argument or geometry: EINVAL.
        BadParameter = 0x03 "BAD_PARAM",
        /// The command requires ENABLE_HCA or INIT_HCA: EIO.
        BadSystemState = 0x04 "BAD_SYS_STATE",
        /// Unknown number of a PD, CQ, QP or another object: EINVAL.
        BadResource = 0x05 "BAD_RES",
        /// The object is in use: EBUSY.
        Busy = 0x06 "RES_BUSY",
        /// Not ready, which drivers report as EAGAIN.
        NotReady = 0x07 "NOT_READY",
        /// More than the capabilities allow: ENOMEM.
        ExceedsLimit = 0x08 "LIM_ERR",
        /// The object is in the wrong state: EINVAL.
        BadResourceState = 0x09 "BAD_RES_STATE",
        /// GID or P_Key index outside its table: EINVAL.
        BadIndex = 0x0a "BAD_INDEX",
        /// No resources, which drivers report as EAGAIN.
        NoResources = 0x0f "NO_RES",
        /// The transition is not allowed in the current QP state: EINVAL.
        BadQpState = 0x10 "BAD_QP_STATE",
        /// MAD of a class that the device does not answer: EINVAL.
        BadPacket = 0x30 "BAD_PKT",
        /// The unread CQEs do not fit in the new size: EINVAL.
        TooManyCqes = 0x40 "BAD_SIZE",
        /// Bad input length: EIO.
        BadInputLength = 0x50 "BAD_INP_LEN",
        /// Bad output length: EIO.
        BadOutputLength = 0x51 "BAD_OUTP_LEN",
    }
}

/// Error in the bytes of a command's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InputError {
    /// The input ends before its fixed part.
    #[error("{what} requires {need} bytes of input, but only {have} are available")]
    Short {
        /// Name of the command.
        what: &'static str,
        /// Number of bytes required.
        need: usize,
        /// Number of bytes available.
        have: usize,
    },
    /// The opcode is not supported.
    #[error("unsupported opcode {0:#05x}")]
    Opcode(u16),
}

impl InputError {
    /// Returns the status to report.
    pub const fn status(self) -> Status {
        match self {
            Self::Short { .. } => Status::BadInputLength,
            Self::Opcode(_) => Status::BadOpcode,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for code in 0..=255 {
            let Some(status) = Status::from_code(code) else { continue };
            assert_eq!(status.code(), code);
        }
        assert_eq!(Status::from_code(0x0b), None);
        assert!(Status::ALL.is_sorted_by_key(|status| status.code()));
    }

    #[test]
    fn input_errors_map_to_status() {
        let short = InputError::Short { what: "CREATE_EQ", need: 272, have: 16 };
        assert_eq!(short.status(), Status::BadInputLength);
        assert_eq!(InputError::Opcode(0x710).status(), Status::BadOpcode);
    }
}
