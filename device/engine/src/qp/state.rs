//! QP state machine: the transitions that software can request, and how each state treats work requests and packets.
//!
//! | state | send queue | receive queue | packets |
//! |---|---|---|---|
//! | RESET, INIT | doorbells ignored | not processed | dropped |
//! | RTR | doorbells ignored | processed | accepted |
//! | RTS | processed | processed | accepted |
//! | SQD | started messages finish | processed | accepted |
//! | SQE | flushed | processed | accepted (UC, UD) |
//! | ERR | flushed | flushed | dropped |
//!
//! An XRC initiator has no receive queue, and an XRC target has no send queue. XRC QPs pass through the same states as
//! other QPs.
//!
//! # Spec
//! IBTA volume 1, section 10.3.1; JingZhao interface, sections 10.1, 10.2 and 10.5.

use super::attr::{Service, State};

/// A transition that software can request, and the services that support it. Transitions to RESET and ERR are always
/// legal and are not listed.
struct Transition {
    from: State,
    to: State,
    services: &'static [Service],
}

const ALL: &[Service] =
    &[Service::Rc, Service::XrcIni, Service::XrcTgt, Service::Uc, Service::Ud, Service::Smi, Service::Gsi];
const UNRELIABLE: &[Service] = &[Service::Uc, Service::Ud, Service::Smi, Service::Gsi];

const TRANSITIONS: [Transition; 9] = [
    Transition { from: State::Reset, to: State::Init, services: ALL },
    Transition { from: State::Init, to: State::Init, services: ALL },
    Transition { from: State::Init, to: State::Rtr, services: ALL },
    Transition { from: State::Rtr, to: State::Rts, services: ALL },
    Transition { from: State::Rts, to: State::Rts, services: ALL },
    Transition { from: State::Rts, to: State::Sqd, services: ALL },
    Transition { from: State::Sqd, to: State::Sqd, services: ALL },
    Transition { from: State::Sqd, to: State::Rts, services: ALL },
    // A reliable connection has no SQE state: a send error moves it to ERR.
    Transition { from: State::Sqe, to: State::Rts, services: UNRELIABLE },
];

impl State {
    /// Returns whether software can move a QP of `service` from state `from` to state `to`.
    pub fn may_move(service: Service, from: Self, to: Self) -> bool {
        matches!(to, Self::Reset | Self::Err)
            || TRANSITIONS.iter().any(|m| m.from == from && m.to == to && m.services.contains(&service))
    }

    /// Returns whether incoming packets are processed.
    pub fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Returns whether started requests are continued and retried.
    pub(crate) fn sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }

    /// Returns whether the path, including its MTU, can still be changed.
    pub(crate) fn is_unconnected(self) -> bool {
        matches!(self, Self::Reset | Self::Init)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use State::*;

    const STATES: [State; 7] = [Reset, Init, Rtr, Rts, Sqe, Sqd, Err];

    /// Table from the JingZhao interface, section 10.2: for each state, the states that a QP can move to.
    #[test]
    fn state_transitions_match_specification_table() {
        let rows = |sqe: &'static [State]| -> [(State, &'static [State]); 7] {
            [
                (Reset, &[Reset, Init, Err]),
                (Init, &[Reset, Init, Rtr, Err]),
                (Rtr, &[Reset, Rts, Err]),
                (Rts, &[Reset, Rts, Sqd, Err]),
                (Sqe, sqe),
                (Sqd, &[Reset, Rts, Sqd, Err]),
                (Err, &[Reset, Err]),
            ]
        };
        for (service, sqe) in [
            (Service::Rc, &[Reset, Err][..]),
            (Service::XrcIni, &[Reset, Err]),
            (Service::XrcTgt, &[Reset, Err]),
            (Service::Uc, &[Reset, Rts, Err]),
            (Service::Ud, &[Reset, Rts, Err]),
            (Service::Smi, &[Reset, Rts, Err]),
            (Service::Gsi, &[Reset, Rts, Err]),
        ] {
            for (from, allowed) in rows(sqe) {
                for to in STATES {
                    let legal = State::may_move(service, from, to);
                    assert_eq!(legal, allowed.contains(&to), "{service:?} {from:?} -> {to:?}");
                }
            }
        }
    }
}
