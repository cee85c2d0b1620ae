//! Draws a pair's fault script and schedules its actions.

use protocol::ids::Pkey;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{Action, Pair};
use engine::{Instant, Service, State};

/// Time from resetting both sides to reconnecting them, in nanoseconds. By then, the network has delivered or lost all
/// earlier packets. On a real network, the connection manager's TimeWait state ensures this.
const TIME_WAIT_NS: u64 = 300_000;

/// What happens to a pair during its first connection, apart from network faults. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    /// Nothing but network faults.
    Plain,
    /// One of side 0's requests fails. If its QP enters SQE, software recovers it.
    Poison,
    /// The RNR retry limit may be reached before receive requests are posted.
    Unready,
    /// Software moves a side to ERR.
    Error { side: usize, at: u64, connects_again: bool },
    /// Software drains a send queue and resumes it.
    Drain { side: usize, at: u64, until: u64 },
    /// Software resets both sides.
    Reset { at: u64 },
    /// A side's P_Key changes.
    Partition { side: usize, at: u64, pkey: Pkey, connects_again: bool },
    /// The network loses every packet to a side.
    Silence { side: usize, at: u64, connects_again: bool },
}

impl Script {
    pub(super) fn draw(rng: &mut ChaCha8Rng, service: Service, span_ns: u64) -> Self {
        let at = rng.random_range(0..span_ns);
        let side = rng.random_range(0..2);
        let connects_again = rng.random();
        match rng.random_range(0..12) {
            0 | 1 => Self::Poison,
            2 if service.is_reliable() => Self::Unready,
            3 if service.is_reliable() => Self::Silence { side, at, connects_again },
            4 => Self::Error { side, at, connects_again },
            5 => Self::Drain { side, at, until: at + rng.random_range(0..span_ns) },
            6 => Self::Reset { at },
            7 if service != Service::Ud => {
                let pkey = Pkey::new(if rng.random() { 0 } else { rng.random() });
                Self::Partition { side, at, pkey, connects_again }
            }
            _ => Self::Plain,
        }
    }

    pub(super) fn connects_again(&self) -> bool {
        match *self {
            Self::Error { connects_again, .. }
            | Self::Silence { connects_again, .. }
            | Self::Partition { connects_again, .. } => connects_again,
            Self::Reset { .. } => true,
            _ => false,
        }
    }

    pub(super) fn may_become_unreachable(&self) -> bool {
        matches!(self, Self::Error { .. } | Self::Silence { .. } | Self::Partition { .. })
    }
}

pub(super) fn schedule(
    rng: &mut ChaCha8Rng,
    span_ns: u64,
    pair: &Pair,
    script: &Script,
    actions: &mut Vec<(Instant, Action)>,
) {
    let index = pair.index;
    let mut push = |at, action| actions.push((Instant::from_nanos(at), action));
    let go = |side, to| Action::Move { pair: index, side, to };
    match *script {
        Script::Plain | Script::Unready | Script::Reset { .. } => {}
        Script::Poison => {
            for _ in 0..rng.random_range(0..4) {
                push(rng.random_range(0..span_ns * 2), go(0, State::Rts));
            }
            if rng.random_ratio(1, 4) {
                push(rng.random_range(0..span_ns), go(0, State::Sqd));
                push(span_ns * 2, go(0, State::Rts));
            }
        }
        Script::Error { side, at, .. } => push(at, go(side, State::Err)),
        Script::Drain { side, at, until } => {
            push(at, go(side, State::Sqd));
            push(until, go(side, State::Rts));
        }
        Script::Partition { side, at, pkey, .. } => {
            push(at, Action::Partition { pair: index, side, pkey });
        }
        Script::Silence { side, at, .. } => push(at, Action::Silence { pair: index, side }),
    }
    let mut end = u64::MAX;
    if script.connects_again() {
        let resets = match *script {
            Script::Reset { at } => [at, at + rng.random_range(0..50_000)],
            _ => {
                let at = span_ns + rng.random_range(0..span_ns);
                [at, at]
            }
        };
        end = resets[0];
        let connect = resets[1] + TIME_WAIT_NS;
        let first = rng.random_range(0..2);
        push(resets[0], go(first, State::Reset));
        push(resets[1], go(1 - first, State::Reset));
        push(connect, Action::Connect { pair: index });
        post(rng, pair, 1, connect..connect + span_ns, u64::MAX, actions);
    }
    post(rng, pair, 0, 0..span_ns, end, actions);
}

/// Schedules bursts of posts within `span` for the pair's connection number `life`. Bursts due at `end` or later are
/// omitted.
fn post(
    rng: &mut ChaCha8Rng,
    pair: &Pair,
    life: usize,
    span: std::ops::Range<u64>,
    end: u64,
    actions: &mut Vec<(Instant, Action)>,
) {
    let index = pair.index;
    let late_ns = pair.lives[life].late_ns;
    if late_ns > 0 && span.start + late_ns < end {
        let at = Instant::from_nanos(span.start + late_ns);
        actions.push((at, Action::Move { pair: index, side: 1, to: State::Rts }));
    }
    for (side, work) in pair.lives[life].sides.iter().enumerate() {
        let begin = if side == 1 { span.start + late_ns } else { span.start };
        let span = begin..span.end.max(begin + 1);
        let mut burst = |total: usize, action: &dyn Fn(usize) -> Action| {
            let early = rng.random_bool(0.5);
            let mut left = total;
            while left > 0 {
                let count = rng.random_range(1..=left);
                let at = if early && left == total { span.start } else { rng.random_range(span.clone()) };
                if at < end {
                    actions.push((Instant::from_nanos(at), action(count)));
                }
                left -= count;
            }
        };
        burst(work.ops.len(), &|count| Action::Send { pair: index, side, count });
        burst(work.recvs.len(), &|count| Action::Recv { pair: index, side, count });
    }
}
