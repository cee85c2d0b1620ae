//! JingZhao interface codes that the test cases expect.

/// Queue pair state codes (section 10.1).
pub(super) mod state {
    pub(in super::super) const RESET: u8 = 0;
    pub(in super::super) const INIT: u8 = 1;
    pub(in super::super) const RTR: u8 = 2;
    pub(in super::super) const RTS: u8 = 3;
    pub(in super::super) const SQE: u8 = 4;
    pub(in super::super) const SQD: u8 = 5;
    pub(in super::super) const ERR: u8 = 6;
    /// A state that only QUERY_QP reports.
    pub(in super::super) const DRAINING: u8 = 7;
}

/// Error completion syndromes (section 7.4).
pub(super) mod syndrome {
    pub(in super::super) const LOCAL_LENGTH: u8 = 0x01;
    pub(in super::super) const LOCAL_QP_OPERATION: u8 = 0x02;
    pub(in super::super) const LOCAL_PROTECTION: u8 = 0x04;
    pub(in super::super) const FLUSHED: u8 = 0x05;
    pub(in super::super) const REMOTE_INVALID_REQUEST: u8 = 0x12;
    pub(in super::super) const REMOTE_ACCESS: u8 = 0x13;
    pub(in super::super) const REMOTE_OPERATION: u8 = 0x14;
    pub(in super::super) const RETRY_EXCEEDED: u8 = 0x15;
    pub(in super::super) const RNR_RETRY_EXCEEDED: u8 = 0x16;
}
