//! QP states in which requests are processed (IBTA volume 1, section 10.3.1).

use agent::wire::Transition;
use anyhow::Result;

use super::case;
use crate::scenario::wire_rc::Case;
use crate::scenario::wire_rc::link::{Link, message, state, syndrome};

pub(in crate::scenario::wire_rc) const CASES: &[Case] = &[
    case("requests are dropped in INIT", in_init),
    case("requests are executed in RTR", in_rtr),
    case("requests are executed in SQD", in_sqd),
    case("requests are dropped in ERR entered by software", in_err),
    case("the connection restarts after RESET", after_reset),
];

fn in_init(link: &mut Link<'_>) -> Result<()> {
    link.back_to_init()?;
    link.post_receive(0, 64)?;
    let packets = link.send_message(0, &message(8));
    link.expect_drops("/engine/drops/wrong_state", &packets)?;
    link.expect_state(state::INIT)
}

fn in_rtr(link: &mut Link<'_>) -> Result<()> {
    link.back_to_init()?;
    link.ready_to_receive()?;
    link.expect_receives(0, 1)?;
    link.expect_state(state::RTR)
}

fn in_sqd(link: &mut Link<'_>) -> Result<()> {
    link.modify(Transition::ToSqd { notify: false })?;
    link.expect_receives(0, 1)
}

fn in_err(link: &mut Link<'_>) -> Result<()> {
    link.modify(Transition::ToErr)?;
    let packets = link.send_message(0, &message(8));
    link.expect_drops("/engine/drops/wrong_state", &packets)?;
    link.expect_state(state::ERR)
}

fn after_reset(link: &mut Link<'_>) -> Result<()> {
    link.expect_receives(0, 1)?;
    let late = link.send_message(3, &message(8)).remove(0);
    link.reconnect()?;
    // The PSN of this packet from the old connection is ahead of the expected one.
    link.send(&late)?;
    link.expect_acknowledge(0, syndrome::NAK_SEQUENCE, 0)?;
    link.expect_receives(0, 1)
}
