//! Tests that one packet triggers at most one short reply, so that the responder cannot be used to amplify traffic,
//! even with forged source addresses. The exception is a READ: its response has the requested length, but requires a
//! valid key. The rate of congestion notifications is tested in `congestion.rs`.

use crate::common::*;
use protocol::ids::{Msn, Rkey, Va};
use protocol::roce::{Aeth, Ext, NakCode, Operation, Reth, Syndrome};

/// Length of an ACK frame, four bytes more than the shortest request.
const ACK_LEN: usize = 14 + 20 + 8 + 12 + 4 + 4;
const FLOOD: usize = 1000;

/// Sends one round of a flood.
type Trigger = fn(&mut Pair);

/// Returns all replies to a flood.
fn flood(trigger: Trigger) -> Vec<Vec<u8>> {
    let mut pair = Pair::new();
    let mut replies = Vec::new();
    for _ in 0..FLOOD {
        trigger(&mut pair);
        let frames = pair.frames(B);
        assert!(frames.len() <= 1, "one packet caused several replies: {frames:02x?}");
        replies.extend(frames);
    }
    replies
}

fn send_only(pair: &mut Pair, ahead: u32) {
    pair.inject(B, Operation::SendOnly, psn_a().advance(ahead), Ext::None, &[1; 8]);
}

#[test]
fn psn_gap_triggers_one_sequence_nak() {
    let replies = flood(|pair| send_only(pair, 5));
    assert_eq!(replies.iter().map(|frame| frame.len()).collect::<Vec<_>>(), [ACK_LEN]);
}

#[test]
fn each_send_without_receive_triggers_rnr_nak() {
    let replies = flood(|pair| send_only(pair, 0));
    assert_eq!(replies.len(), FLOOD);
    assert!(replies.iter().all(|frame| frame.len() == ACK_LEN));
}

#[test]
fn invalid_request_triggers_one_nak() {
    let replies = flood(|pair| {
        let reth = Reth { va: Va::new(0), rkey: Rkey::new(0xbad), dma_len: 8 };
        pair.inject(B, Operation::WriteOnly, psn_a(), Ext::Reth(reth), &[0; 8]);
    });
    assert_eq!(replies.len(), 1);
    let replies = flood(|pair| pair.inject(B, Operation::SendMiddle, psn_a(), Ext::None, &[0; 1024]));
    assert_eq!(replies.len(), 1);
}

/// Sends a WRITE, which is new on the first call and a duplicate on later calls.
fn repeated_write(pair: &mut Pair) {
    let reth = Reth { va: Va::new(VA), rkey: Rkey::new(KEY), dma_len: 8 };
    pair.inject(B, Operation::WriteOnly, psn_a(), Ext::Reth(reth), &[1; 8]);
}

#[test]
fn duplicate_write_triggers_one_ack() {
    let replies = flood(repeated_write);
    assert_eq!(replies.len(), FLOOD);
    assert!(replies.iter().all(|frame| frame.len() == ACK_LEN));
}

#[test]
fn burst_of_duplicates_coalesces_into_one_ack() {
    let mut pair = Pair::new();
    for _ in 0..FLOOD {
        repeated_write(&mut pair);
    }
    assert_eq!(pair.frames(B).len(), 1);
}

#[test]
fn unsolicited_acks_and_naks_are_not_answered() {
    for syndrome in [
        Syndrome::ACK,
        Syndrome::Nak(NakCode::PsnSequence),
        Syndrome::Nak(NakCode::RemoteAccess),
        Syndrome::RnrNak { timer: 0 },
    ] {
        let mut pair = Pair::new();
        for n in 0..100 {
            let aeth = Aeth { syndrome, msn: Msn::default() };
            pair.inject(B, Operation::Acknowledge, psn_b().advance(n), Ext::Aeth(aeth), &[]);
        }
        assert_eq!(pair.frames(B).len(), 0, "{syndrome:?}");
    }
}
