//! Fuzzes impairment rules and frames. Frames are identified by direction and length, neither of which a rule changes.
//! Each frame must come out exactly as often as the matching rules specify, or less often if too many frames are held
//! back. No other frame may come out.

use std::collections::HashMap;
use std::time::Duration;

use card::fabric::Origin;
use card::fabric::impair::{
    Action, Direction, Impairments, MAX_RULES, Probability, Rule, RuleEntry, Verdict,
};
use engine::Instant;

use super::OPERATIONS;
use super::input::Input;

/// Maximum number of held frames per direction: delayed frames and frames held back for reordering.
const HELD: u64 = 8192 + 256;
/// No frame may be lost while fewer frames than this are held.
const FITS: u64 = 256;

/// Maximum number of frames in one run. Each is matched against up to 64 rules.
const FRAMES: u64 = 1024;

/// Headers of a RoCE packet: Ethernet, IPv4, UDP, BTH. The rest of the packet is random.
const ROCE: [u8; 54] = *b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x08\0\
    \x45\0\0\x40\0\0\x40\0\x40\x11\0\0\x0a\x4d\0\x01\x0a\x4d\0\x02\
    \xc0\0\x12\xb7\0\x2c\0\0\
    \x04\x40\xff\xff\0\0\0\x12\x80\0\0\x05";

/// Expected and actual counts of all frames with a given direction and length.
#[derive(Default)]
struct Known {
    /// Number of frames, including copies, that should come out.
    due: u64,
    /// Number of frames, including copies, that have come out.
    out: u64,
    /// Whether some of the frames may have been lost.
    lost: bool,
}

#[derive(Default)]
struct Bench {
    impairments: Impairments,
    now: Instant,
    known: HashMap<(bool, usize), Known>,
    /// Upper bound on the number of frames currently held back, by direction. Lost frames are still counted.
    held: [u64; 2],
    frames: u64,
}

pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut bench = Bench::default();
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        match operation % 16 {
            0..=3 => bench.rule(&mut input),
            4 if input.byte() < 16 => assert!(bench.impairments.clear(None)),
            4 => {
                let id = u32::from(input.byte() % 8);
                let there = bench.impairments.rows().iter().any(|row| row.id == id);
                assert_eq!(bench.impairments.clear(Some(id)), there);
            }
            5 | 6 => bench.pass(Duration::from_micros(u64::from(input.half()))),
            7 => bench.pass(Duration::from_millis(u64::from(input.half()))),
            8 => {
                let (frame, direction) = frame(&mut input);
                (0..input.byte()).for_each(|_| bench.send(direction, &frame));
            }
            _ => {
                let (frame, direction) = frame(&mut input);
                bench.send(direction, &frame);
            }
        }
    }
    bench.finish();
}

/// Chooses an origin by the parity of the frame's length.
fn origin(frame: &[u8]) -> Origin {
    [Origin::Own, Origin::Answer][frame.len() % 2]
}

/// Returns a frame and its direction. The frame starts with all or part of the headers of a RoCE packet.
fn frame(input: &mut Input<'_>) -> (Vec<u8>, Direction) {
    let choice = input.byte();
    let mut frame = ROCE.to_vec();
    frame.extend(input.bytes(u8::MAX));
    for _ in 0..choice >> 1 & 3 {
        let at = usize::from(input.byte()) % frame.len();
        frame[at] = input.byte();
    }
    if choice >> 5 == 7 {
        frame.truncate(input.byte().into());
    }
    (frame, if choice & 1 == 0 { Direction::Tx } else { Direction::Rx })
}

fn entry(input: &mut Input<'_>) -> RuleEntry {
    let (choice, selectors) = (input.byte(), input.byte());
    let us = |input: &mut Input<'_>| match input.byte() % 4 {
        0 => 0,
        1 => u64::from(input.byte()),
        2 => u64::from(input.half()) * 1000,
        _ => input.word().into(),
    };
    let action = match choice >> 1 & 7 {
        0 => Action::Drop,
        1 | 2 => Action::Duplicate { after_us: us(input) },
        3 => Action::Delay { us: us(input), jitter_us: us(input) },
        4 | 5 => Action::Reorder { by: input.half().into(), within_us: us(input) },
        6 => Action::Corrupt,
        _ => Action::MarkCe,
    };
    let peers = ["02:00:00:00:00:01", "02:00:00:00:00:02", "10.77.0.1", "10.77.0.2", "fe80::1", "nobody"];
    let opcodes = ["SEND Only", "RC SEND Only", "UD SEND Only", "CNP", "nothing"];
    let chosen = |bit: u8| selectors & 1 << bit != 0;
    RuleEntry {
        direction: if choice & 1 == 0 { Direction::Tx } else { Direction::Rx },
        action,
        qpn: chosen(0).then(|| input.byte().into()),
        psn: chosen(1).then(|| input.byte().into()),
        opcode: chosen(2).then(|| opcodes[usize::from(input.byte()) % opcodes.len()].to_owned()),
        peer: chosen(3).then(|| peers[usize::from(input.byte()) % peers.len()].to_owned()),
        nth: chosen(4).then(|| input.byte().into()),
        count: chosen(5).then(|| [u64::from(input.byte()), u64::MAX][usize::from(input.byte() & 1)]),
        probability: chosen(6).then(|| {
            Probability::try_from(f64::from(input.byte()) / 255.0).expect("the probability is at most 1")
        }),
        seed: chosen(7).then(|| input.byte().into()),
    }
}

impl Bench {
    fn rule(&mut self, input: &mut Input<'_>) {
        let Ok(rule) = Rule::try_from(entry(input)) else { return };
        let before = self.impairments.rows().len();
        let many = if input.byte() == 255 { MAX_RULES } else { 1 };
        for _ in 0..many {
            let _ = self.impairments.add(rule.clone());
        }
        assert_eq!(self.impairments.rows().len(), (before + many).min(MAX_RULES));
    }

    fn send(&mut self, direction: Direction, frame: &[u8]) {
        self.frames += 1;
        if self.frames > FRAMES {
            return;
        }
        let before = self.impairments.rows();
        let verdict = self.impairments.apply_rules(self.now, direction, frame, origin(frame));
        let mut hit = Vec::new();
        for (before, after) in before.iter().zip(self.impairments.rows()) {
            let (matched, hits) = (after.matched - before.matched, after.hits - before.hits);
            assert!(hits <= matched && matched <= u64::from(after.rule.direction == direction));
            if hits > 0 {
                hit.push(after.rule.action);
            }
        }
        let count_hits =
            |matches: fn(&Action) -> bool| hit.iter().filter(|action| matches(action)).count() as u64;
        let dropped = count_hits(|action| matches!(action, Action::Drop)) > 0;
        let copies = count_hits(|action| matches!(action, Action::Duplicate { .. }));
        let altering = count_hits(|action| matches!(action, Action::Corrupt | Action::MarkCe)) > 0;
        let due = if dropped { 0 } else { 1 + copies };
        let side = usize::from(direction == Direction::Tx);
        self.held[side] += due;

        let known = self.known.entry((direction == Direction::Tx, frame.len())).or_default();
        known.due += due;
        match verdict {
            Verdict::Pass => {
                assert!(hit.is_empty(), "a frame hit by a rule must not pass unmodified");
                self.came_out(direction, frame);
            }
            Verdict::Modified { note, frames } => {
                assert!(
                    !hit.is_empty() && note.contains("dropped") == dropped,
                    "the note must report whether the frame was dropped: {note}"
                );
                if note.contains("; lost") {
                    known.lost = true;
                    assert!(self.held[side] >= FITS, "a frame must not be lost while few frames are held");
                }
                assert!(frames.len() <= 1);
                for out in &frames {
                    assert!(altering || out == frame, "no rule changes this frame");
                    self.came_out(direction, out);
                }
            }
        }
        self.release();
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.release();
    }

    fn release(&mut self) {
        for direction in [Direction::Tx, Direction::Rx] {
            while let Some(frame) = self.impairments.release(self.now, direction) {
                assert_eq!(frame.origin, origin(&frame.bytes), "a held frame must keep its origin");
                self.came_out(direction, &frame.bytes);
            }
        }
        let deadline = self.impairments.next_deadline();
        assert!(
            deadline.is_none_or(|deadline| deadline > self.now),
            "all due frames must have been released"
        );
    }

    fn came_out(&mut self, direction: Direction, frame: &[u8]) {
        let known = self.known.get_mut(&(direction == Direction::Tx, frame.len()));
        let known = known.expect("only frames that were sent may be output");
        known.out += 1;
        assert!(known.out <= known.due, "the {}-byte frame was output {} times", frame.len(), known.out);
        self.held[usize::from(direction == Direction::Tx)] -= 1;
    }

    /// Checks that held frames are eventually forwarded, even if their rules have been removed. Frames may be lost only
    /// if too many frames are held.
    fn finish(&mut self) {
        self.impairments.clear(None);
        let out = |known: &HashMap<_, Known>| known.values().map(|known| known.out).sum::<u64>();
        let before = out(&self.known);
        while let Some(deadline) = self.impairments.next_deadline() {
            assert!(deadline > self.now);
            self.now = deadline;
            self.release();
        }
        assert!(self.impairments.is_idle());
        assert!(out(&self.known) - before <= 2 * HELD);
        for ((_, len), known) in &self.known {
            assert!(
                known.lost || known.out == known.due,
                "the {len}-byte frame was output {} times instead of {}",
                known.out,
                known.due
            );
        }
    }
}
