//! Reliable multi-packet transaction protocol (RMPP): responses longer than one MAD.
//!
//! # Spec
//! IBTA volume 1, section 13.6.

use super::field::attribute;

/// `RMPPType` of a data segment.
pub const DATA: u8 = 1;
/// `RMPPType` of an acknowledgement.
pub const ACK: u8 = 2;
/// `RMPPType` that stops a transfer for lack of resources.
pub const STOP: u8 = 3;
/// `RMPPType` that aborts a transfer after an error.
pub const ABORT: u8 = 4;

/// RMPP version that this crate supports.
pub const VERSION: u8 = 1;

attribute! {
    /// RMPP header, which follows the common header.
    pub struct Rmpp[12] {
        /// [`VERSION`]; 0 if the transfer has a single MAD.
        version: u8 = 0, 8;
        /// `RMPPType`: [`DATA`], [`ACK`], [`STOP`] or [`ABORT`].
        kind: u8 = 8, 8;
        /// Response time: 4.096 us * 2^n; 31 means unspecified.
        resp_time: u8 = 16, 5;
        /// Last segment of the transfer.
        last: bool = 21, 1;
        /// First segment of the transfer.
        first: bool = 22, 1;
        /// RMPP is in use. If clear, the other fields are undefined.
        active: bool = 23, 1;
        /// Reason of a STOP or ABORT.
        status: u8 = 24, 8;
        /// Segment number, from 1. In an ACK, the last segment received.
        segment: u32 = 32, 32;
        /// In the first segment, payload length of the whole transfer in bytes. In the last segment, its own
        /// payload length. In an ACK, the last segment that the sender is allowed to send.
        length_or_window: u32 = 64, 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 166 of the specification: type 1, response time 31, flags Last, First and Active.
    #[test]
    fn single_segment_round_trips() {
        let rmpp = Rmpp {
            version: VERSION,
            kind: DATA,
            resp_time: 31,
            last: true,
            first: true,
            active: true,
            status: 0,
            segment: 1,
            length_or_window: 0x84,
        };
        let bytes = [1, 1, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 0x84];
        assert_eq!(rmpp.emit(), bytes);
        assert_eq!(Rmpp::parse(&bytes), rmpp);
        let active = Rmpp::parse(&[1, 1, 0xf9, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
        assert!(active.active && !active.first && !active.last);
    }
}
