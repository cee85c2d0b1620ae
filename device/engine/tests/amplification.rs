//! Whoever sends one packet makes us send at most one short answer: neither a peer nor somebody who forges its address can
//! use us against a third. A READ request draws what it asks for, as it must; that takes a key that permits it. How often
//! marks are answered is in `congestion.rs`.

use crate::common::*;
use protocol::ids::{Msn, Rkey, Va};
use protocol::roce::{Aeth, Ext, NakCode, Operation, Reth, Syndrome};

/// Bytes of an acknowledge, four more than the shortest request has.
const ACKNOWLEDGE: usize = 14 + 20 + 8 + 12 + 4 + 4;
const FLOOD: usize = 1000;

/// One packet of a flood.
type Question = fn(&mut Pair);

/// What a flood draws.
fn flood(question: Question) -> Vec<Vec<u8>> {
    let mut pair = Pair::new();
    let mut answers = Vec::new();
    for _ in 0..FLOOD {
        question(&mut pair);
        let frames = pair.frames(B);
        assert!(frames.len() <= 1, "{frames:02x?}");
        answers.extend(frames);
    }
    answers
}

fn send_only(pair: &mut Pair, ahead: u32) {
    pair.inject(B, Operation::SendOnly, psn_a().advance(ahead), Ext::None, &[1; 8]);
}

#[test]
fn a_gap_is_complained_about_once() {
    let answers = flood(|pair| send_only(pair, 5));
    assert_eq!(answers.iter().map(|frame| frame.len()).collect::<Vec<_>>(), [ACKNOWLEDGE]);
}

#[test]
fn a_send_without_a_receive_draws_one_rnr_nak_each_time() {
    let answers = flood(|pair| send_only(pair, 0));
    assert_eq!(answers.len(), FLOOD);
    assert!(answers.iter().all(|frame| frame.len() == ACKNOWLEDGE));
}

#[test]
fn what_is_refused_is_refused_once() {
    let answers = flood(|pair| {
        let reth = Reth { va: Va::new(0), rkey: Rkey::new(0xbad), dma_len: 8 };
        pair.inject(B, Operation::WriteOnly, psn_a(), Ext::Reth(reth), &[0; 8]);
    });
    assert_eq!(answers.len(), 1);
    let answers = flood(|pair| pair.inject(B, Operation::SendMiddle, psn_a(), Ext::None, &[0; 1024]));
    assert_eq!(answers.len(), 1);
}

/// A WRITE that is executed the first time and a duplicate afterwards.
fn repeated_write(pair: &mut Pair) {
    let reth = Reth { va: Va::new(VA), rkey: Rkey::new(KEY), dma_len: 8 };
    pair.inject(B, Operation::WriteOnly, psn_a(), Ext::Reth(reth), &[1; 8]);
}

#[test]
fn a_duplicate_draws_one_acknowledge() {
    let answers = flood(repeated_write);
    assert_eq!(answers.len(), FLOOD);
    assert!(answers.iter().all(|frame| frame.len() == ACKNOWLEDGE));
}

/// As a burst they are answered by one acknowledge: it covers them all.
#[test]
fn duplicates_that_come_together_draw_one_acknowledge() {
    let mut pair = Pair::new();
    for _ in 0..FLOOD {
        repeated_write(&mut pair);
    }
    assert_eq!(pair.frames(B).len(), 1);
}

#[test]
fn answers_draw_no_answers() {
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
