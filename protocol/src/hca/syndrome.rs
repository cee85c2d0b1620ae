//! Error syndromes in CQEs of the HCR interfaces.

use crate::describe::{Code, Field, Visitor};

/// Reason why a work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Syndrome {
    /// 01h: local length error.
    LocalLength,
    /// 02h: local QP operation error.
    LocalQpOperation,
    /// 04h: local protection error.
    LocalProtection,
    /// 05h: work request flushed.
    Flushed,
    /// 06h: memory window bind error.
    WindowBind,
    /// 10h: the peer sent an invalid response.
    BadResponse,
    /// 12h: remote invalid request.
    RemoteInvalidRequest,
    /// 13h: remote access error.
    RemoteAccess,
    /// 14h: remote operation error.
    RemoteOperation,
    /// 15h: transport retry counter exceeded.
    RetryExceeded,
    /// 16h: RNR retry counter exceeded.
    RnrRetryExceeded,
    /// 21h: remote invalid RD request.
    RemoteInvalidRdRequest,
    /// A code that the device never writes.
    Other(u8),
}

impl Syndrome {
    /// Decodes a syndrome. Every code is valid.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0x01 => Self::LocalLength,
            0x02 => Self::LocalQpOperation,
            0x04 => Self::LocalProtection,
            0x05 => Self::Flushed,
            0x06 => Self::WindowBind,
            0x10 => Self::BadResponse,
            0x12 => Self::RemoteInvalidRequest,
            0x13 => Self::RemoteAccess,
            0x14 => Self::RemoteOperation,
            0x15 => Self::RetryExceeded,
            0x16 => Self::RnrRetryExceeded,
            0x21 => Self::RemoteInvalidRdRequest,
            other => Self::Other(other),
        }
    }

    /// Returns the byte that identifies the syndrome in a CQE.
    pub const fn code(self) -> u8 {
        match self {
            Self::LocalLength => 0x01,
            Self::LocalQpOperation => 0x02,
            Self::LocalProtection => 0x04,
            Self::Flushed => 0x05,
            Self::WindowBind => 0x06,
            Self::BadResponse => 0x10,
            Self::RemoteInvalidRequest => 0x12,
            Self::RemoteAccess => 0x13,
            Self::RemoteOperation => 0x14,
            Self::RetryExceeded => 0x15,
            Self::RnrRetryExceeded => 0x16,
            Self::RemoteInvalidRdRequest => 0x21,
            Self::Other(code) => code,
        }
    }

    /// Returns the name that the drivers use, or `None` for a code that the device never writes.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::LocalLength => "LOCAL_LENGTH_ERR",
            Self::LocalQpOperation => "LOCAL_QP_OP_ERR",
            Self::LocalProtection => "LOCAL_PROT_ERR",
            Self::Flushed => "WR_FLUSH_ERR",
            Self::WindowBind => "MW_BIND_ERR",
            Self::BadResponse => "BAD_RESP_ERR",
            Self::RemoteInvalidRequest => "REMOTE_INVAL_REQ_ERR",
            Self::RemoteAccess => "REMOTE_ACCESS_ERR",
            Self::RemoteOperation => "REMOTE_OP_ERR",
            Self::RetryExceeded => "RETRY_EXC_ERR",
            Self::RnrRetryExceeded => "RNR_RETRY_EXC_ERR",
            Self::RemoteInvalidRdRequest => "REMOTE_INVAL_RD_REQ_ERR",
            Self::Other(_) => return None,
        })
    }
}

impl Field for Syndrome {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        Code(self.code().into(), self.name()).show(name, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndrome_codes_round_trip() {
        for code in 0..=255 {
            assert_eq!(Syndrome::from_code(code).code(), code);
        }
        assert_eq!(Syndrome::from_code(0x11), Syndrome::Other(0x11));
    }
}
