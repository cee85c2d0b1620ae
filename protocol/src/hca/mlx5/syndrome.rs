//! Syndromes of error CQEs.
//!
//! # Spec
//! mlx5 interface, section 9.4.

use super::code::codes;

codes! {
    /// Reason why a work request failed.
    pub enum Syndrome(u8) {
        /// The message exceeds the receive buffer or the maximum message length.
        LocalLength = 0x01 "LOCAL_LENGTH_ERR",
        /// The WQE or the QP does not allow the operation.
        LocalQpOperation = 0x02 "LOCAL_QP_OP_ERR",
        /// A local key does not allow the access.
        LocalProtection = 0x04 "LOCAL_PROT_ERR",
        /// The work request was flushed because its QP is in the error state.
        Flushed = 0x05 "WR_FLUSH_ERR",
        /// A UMR request failed.
        WindowBind = 0x06 "MW_BIND_ERR",
        /// The peer sent an unexpected response.
        BadResponse = 0x10 "BAD_RESP_ERR",
        /// The receive buffer could not be written.
        LocalAccess = 0x11 "LOCAL_ACCESS_ERR",
        /// The peer rejected the request as invalid.
        RemoteInvalidRequest = 0x12 "REMOTE_INVAL_REQ_ERR",
        /// The peer rejected the access to its memory.
        RemoteAccess = 0x13 "REMOTE_ACCESS_ERR",
        /// The peer could not execute the request.
        RemoteOperation = 0x14 "REMOTE_OP_ERR",
        /// The peer did not acknowledge the request within the retry limit.
        RetryExceeded = 0x15 "TRANSPORT_RETRY_EXC_ERR",
        /// The peer still had no receive buffer after the last RNR retry.
        RnrRetryExceeded = 0x16 "RNR_RETRY_EXC_ERR",
        /// The peer aborted the operation.
        RemoteAborted = 0x22 "REMOTE_ABORTED_ERR",
    }
}
