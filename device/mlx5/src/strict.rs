//! Strict mode: reports violations of the interface that the device tolerates.
//!
//! Checks do not change the device's behaviour. A command is checked before it executes, while the objects that it
//! removes still exist. The violations are reported only if the command succeeds, since a rejected command already
//! returns an error status.
//!
//! Section 7.3: a doorbell record may be newer than the doorbell being checked, as stores to the BAR are posted. Only a
//! record older than the doorbell is a violation.
//!
//! # Spec
//! mlx5 interface; [`rules`] cites the sections.

mod commands;
mod doorbells;
mod keys;
mod netdev;
mod queues;
mod registers;
pub mod rules;
mod work;

use card::frontend::strict::Findings;
use protocol::ids::Qpn;

use self::rules::TOKEN_REUSED;

pub(super) use self::commands::command;
pub(super) use self::doorbells::{
    arm_doorbell, arm_record, eq_doorbell, send_doorbell, send_record, sq_doorbell, sq_record, uar_write,
};
pub(super) use self::keys::umr;
pub(super) use self::netdev::{frame_done, frame_not_received, frame_receives, frame_wqe};
pub(super) use self::queues::{cqe, receives};
pub(super) use self::registers::write;
pub(super) use self::work::{completion, send_wqe};

/// State of strict mode. Cleared when software writes the command queue address.
#[derive(Debug, Default)]
pub struct Strict {
    token: Option<u8>,
}

impl Strict {
    pub(super) fn command(&mut self, slot: usize, token: u8) -> Findings {
        let mut found = Findings::default();
        if self.token.replace(token) == Some(token) {
            found.add(
                &TOKEN_REUSED,
                format!("the command in slot {slot} reuses token {token:#x} of the previous command"),
            );
        }
        found
    }
}

/// Returns whether a 24-bit index is past `end`, taking wraparound into account.
fn is_past(index: u32, end: u32) -> bool {
    const INDEX: u32 = 0xff_ffff;
    const HALF: u32 = 1 << 23;
    end.wrapping_sub(index) & INDEX >= HALF
}

fn wqe_at(index: u16, qpn: Qpn) -> String {
    wqe_of(index, &format!("QP {qpn}"))
}

fn wqe_of(index: u16, queue: &str) -> String {
    format!("the WQE at block {index:#x} of {queue}")
}

/// Returns whether a 16-bit producer counter is behind the consumer counter. The distance is unambiguous, as an SQ or
/// RQ has at most 2^14 units.
const fn has_moved_back(posted: u16, taken: u16) -> bool {
    posted.wrapping_sub(taken).cast_signed() < 0
}
