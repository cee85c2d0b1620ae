//! The state model of queue pairs: which moves software may make, and what each state does with work and packets.
//!
//! | state | send queue | receive queue | packets |
//! |---|---|---|---|
//! | RESET, INIT | doorbells ignored | not processed | dropped |
//! | RTR | doorbells ignored | processed | answered |
//! | RTS | processed | processed | answered |
//! | SQD | started messages finish | processed | answered |
//! | SQE | flushed | processed | answered (UC, UD) |
//! | ERR | flushed | flushed | dropped |
//!
//! # Spec
//! IBTA volume 1, section 10.3.1; JingZhao interface, sections 10.1, 10.2 and 10.5.

use super::attr::{Service, State};

/// A legal move of software and the services that have it. Moves of every state to RESET and ERR are not listed: they
/// are always legal.
struct Move {
    from: State,
    to: State,
    services: &'static [Service],
}

const ALL: &[Service] = &[Service::Rc, Service::Uc, Service::Ud, Service::Smi, Service::Gsi];
const UNRELIABLE: &[Service] = &[Service::Uc, Service::Ud, Service::Smi, Service::Gsi];

const MOVES: [Move; 9] = [
    Move { from: State::Reset, to: State::Init, services: ALL },
    Move { from: State::Init, to: State::Init, services: ALL },
    Move { from: State::Init, to: State::Rtr, services: ALL },
    Move { from: State::Rtr, to: State::Rts, services: ALL },
    Move { from: State::Rts, to: State::Rts, services: ALL },
    Move { from: State::Rts, to: State::Sqd, services: ALL },
    Move { from: State::Sqd, to: State::Sqd, services: ALL },
    Move { from: State::Sqd, to: State::Rts, services: ALL },
    // A reliable connection goes from a send error straight to ERR.
    Move { from: State::Sqe, to: State::Rts, services: UNRELIABLE },
];

impl State {
    /// Whether software may move a QP of `service` from `from` to `to`.
    pub fn may_move(service: Service, from: Self, to: Self) -> bool {
        matches!(to, Self::Reset | Self::Err)
            || MOVES.iter().any(|m| m.from == from && m.to == to && m.services.contains(&service))
    }

    /// Whether packets from the wire are looked at.
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether requests that were started go on, and are retried.
    pub(crate) fn sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }

    /// Whether the path of a connection is not fixed yet: its MTU may still change.
    pub(crate) fn is_unconnected(self) -> bool {
        matches!(self, Self::Reset | Self::Init)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use State::*;

    const STATES: [State; 7] = [Reset, Init, Rtr, Rts, Sqe, Sqd, Err];

    /// The table of the JingZhao interface, section 10.2, one row per line: from state, then the states it may go to.
    #[test]
    fn moves_are_those_of_the_transition_table() {
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
