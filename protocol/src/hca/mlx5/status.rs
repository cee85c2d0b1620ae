//! Command status codes and errors in command inputs.
//!
//! # Spec
//! mlx5 interface, section 3.3.

use thiserror::Error;

use super::code::codes;

codes! {
    /// Command status, with the errno that drivers return for each failure.
    pub enum Status(u8) {
        /// The command has succeeded.
        Ok = 0x00 "OK",
        /// Internal error. Drivers return EIO.
        InternalError = 0x01 "INTERNAL_ERR",
        /// Unknown opcode. Drivers return EINVAL.
        BadOpcode = 0x02 "BAD_OP",
        /// Unsupported register, argument or geometry. Drivers return EINVAL.
        BadParameter = 0x03 "BAD_PARAM",
        /// The command requires ENABLE_HCA or INIT_HCA first. Drivers return EIO.
        BadSystemState = 0x04 "BAD_SYS_STATE",
        /// Unknown PD, CQ, QP or other object. Drivers return EINVAL.
        BadResource = 0x05 "BAD_RES",
        /// The object is in use. Drivers return EBUSY.
        Busy = 0x06 "RES_BUSY",
        /// The device is not ready. Drivers return EAGAIN.
        NotReady = 0x07 "NOT_READY",
        /// The request exceeds a limit in the capabilities. Drivers return ENOMEM.
        ExceedsLimit = 0x08 "LIM_ERR",
        /// The object is in the wrong state. Drivers return EINVAL.
        BadResourceState = 0x09 "BAD_RES_STATE",
        /// A GID or P_Key index is out of range. Drivers return EINVAL.
        BadIndex = 0x0a "BAD_INDEX",
        /// The device has no resources left. Drivers return EAGAIN.
        NoResources = 0x0f "NO_RES",
        /// The transition is not allowed in the current QP state. Drivers return EINVAL.
        BadQpState = 0x10 "BAD_QP_STATE",
        /// The device does not answer MADs of this class. Drivers return EINVAL.
        BadPacket = 0x30 "BAD_PKT",
        /// The unread CQEs do not fit in the new ring. Drivers return EINVAL.
        TooManyCqes = 0x40 "BAD_SIZE",
        /// Invalid input length. Drivers return EIO.
        BadInputLength = 0x50 "BAD_INP_LEN",
        /// Invalid output length. Drivers return EIO.
        BadOutputLength = 0x51 "BAD_OUTP_LEN",
    }
}

/// Error in a command's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InputError {
    /// The input is shorter than the fixed part of its command.
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
    /// Returns the command status that reports this error.
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
    fn status_codes_round_trip() {
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
