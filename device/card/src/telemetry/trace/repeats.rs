//! Limits the number of trace records for events that a peer can trigger at an arbitrary rate, such as ignored packets.
//! Without a limit, a flood of packets would push everything else out of a trace ring.
//!
//! Records with the same kind, name, QP, opcode and reason form a group, which has a limit per period. At the end of
//! the period, one more record per group reports how many records were suppressed. Periods follow the device's clock so
//! that a replay suppresses the same records.

use std::time::Duration;

use engine::Instant;
use protocol::describe::{Field as _, Visitor};
use protocol::ids::Qpn;
use protocol::roce::Opcode;

use super::Kind;

/// Number of records that a group may write in one period.
const BURST: u64 = 16;

const PERIOD: Duration = Duration::from_secs(1);

/// Maximum number of groups that write records in one period. This limit is needed because a peer can send packets to
/// any number of QPs. Events from further groups are only counted.
const MAX_GROUPS: usize = 64;

/// A group of records that share a limit, identified by their common attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub kind: Kind,
    /// Name shared by the records.
    pub name: &'static str,
    pub qpn: Option<Qpn>,
    pub opcode: Option<Opcode>,
    pub reason: Option<&'static str>,
}

impl Group {
    /// Returns the group that counts events from groups beyond [`MAX_GROUPS`].
    fn rest(self) -> Self {
        Self { qpn: None, opcode: None, reason: None, ..self }
    }

    /// Passes the QPN and opcode to a visitor. They precede the fields of the individual event.
    pub(super) fn show_object(&self, to: &mut dyn Visitor) {
        self.qpn.show("qpn", to);
        if let Some(opcode) = self.opcode {
            format_args!("{opcode}").show("opcode", to);
        }
    }

    /// Passes the reason to a visitor. It follows the fields of the individual event.
    pub(super) fn show_reason(&self, to: &mut dyn Visitor) {
        self.reason.show("reason", to);
    }
}

/// The groups of the current period.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    ends: Option<Instant>,
    groups: Vec<Counted>,
}

#[derive(Debug)]
struct Counted {
    group: Group,
    written: u64,
    suppressed: u64,
}

impl Repeats {
    /// Counts an event and returns whether to write its record. The first event starts a period.
    pub(super) fn admit(&mut self, now: Instant, group: Group) -> bool {
        self.ends.get_or_insert(now + PERIOD);
        let is_full = self.groups.len() >= MAX_GROUPS;
        let known = self.groups.iter().position(|counted| counted.group == group);
        let (group, burst) = match known {
            None if is_full => (group.rest(), 0),
            _ => (group, BURST),
        };
        let index = self.groups.iter().position(|counted| counted.group == group).unwrap_or_else(|| {
            self.groups.push(Counted { group, written: 0, suppressed: 0 });
            self.groups.len() - 1
        });
        let Some(counted) = self.groups.get_mut(index) else { return false };
        let is_written = counted.written < burst;
        if is_written {
            counted.written += 1;
        } else {
            counted.suppressed += 1;
        }
        is_written
    }

    /// Returns the end of the period, or `None` if no records have been suppressed in it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.ends.filter(|_| self.groups.iter().any(|counted| counted.suppressed > 0))
    }

    /// If the period has ended by `now`, returns the groups with suppressed records, each with the number of those
    /// records.
    pub(super) fn end_at(&mut self, now: Instant) -> Vec<(Group, u64)> {
        if self.ends.is_none_or(|ends| now < ends) { Vec::new() } else { self.end() }
    }

    /// Like [`Repeats::end_at`], but ends the period early.
    pub(super) fn end(&mut self) -> Vec<(Group, u64)> {
        self.ends = None;
        let counted = self.groups.drain(..).map(|counted| (counted.group, counted.suppressed));
        counted.filter(|(_, suppressed)| *suppressed > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Group = Group {
        kind: Kind::Ignored,
        name: "packet",
        qpn: Some(Qpn::new(5)),
        opcode: None,
        reason: Some("no_receive"),
    };

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn of(qpn: u32) -> Group {
        Group { qpn: Some(Qpn::new(qpn)), ..PACKET }
    }

    #[test]
    fn group_writes_limited_records_per_period() {
        let mut repeats = Repeats::default();
        let mut admitted = |now, count| (0..count).filter(|_| repeats.admit(now, PACKET)).count();
        assert_eq!(admitted(at(10), 100), 16);
        assert_eq!(admitted(at(1009), 100), 0);
        assert_eq!(repeats.deadline(), Some(at(1010)));
        assert!(repeats.end_at(at(1009)).is_empty());
        assert_eq!(repeats.end_at(at(1010)), [(PACKET, 184)]);
        assert_eq!((repeats.deadline(), repeats.end_at(at(9000))), (None, Vec::new()));
        assert!(repeats.admit(at(9000), PACKET));
    }

    #[test]
    fn flood_does_not_suppress_other_groups() {
        let mut repeats = Repeats::default();
        assert_eq!((0..1000).filter(|_| repeats.admit(at(0), PACKET)).count(), 16);
        let other = Group { reason: Some("out_of_sequence"), ..PACKET };
        assert!(repeats.admit(at(1), other) && repeats.admit(at(2), of(6)));
        assert_eq!(repeats.end(), [(PACKET, 984)], "only the flooding group is suppressed");
    }

    #[test]
    fn flood_to_many_qps_writes_limited_number_of_records() {
        let mut repeats = Repeats::default();
        let written = (0..1000).filter(|qpn| repeats.admit(at(0), of(*qpn))).count();
        assert_eq!(written, MAX_GROUPS);
        assert!(repeats.admit(at(1), of(0)), "an existing group may still write records");
        assert_eq!(repeats.end(), [(PACKET.rest(), 1000 - MAX_GROUPS as u64)]);
    }
}
