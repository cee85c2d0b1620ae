//! Quotas for DevX user contexts. All programs in a guest share the device's objects with the kernel. So that programs
//! cannot exhaust them, the device limits how many scarce objects a single program can own and how many all programs
//! together can own.
//!
//! QPs, CQs, SRQs, PDs, XRC domains and UAR pages have no quota. Verbs programs create these objects and may rely on
//! the maximum numbers that the device reports.
//!
//! # Spec
//! mlx5 interface, section 23.1.

use std::collections::BTreeMap;

use protocol::hca::mlx5::user_context::User;
use protocol::ids::UserId;

use super::limits::flow::{MAX_COUNTERS, MAX_ENTRIES, MAX_GROUPS, MAX_TABLES};
use super::limits::netdev::{LAST_WORK_QUEUE, MAX_RQTS, MAX_TIRS, MAX_TISS};
use super::limits::{MAX_COUNTER_SETS, MAX_TRANSPORT_DOMAINS, MAX_UMEMS, first};
use super::uses::Object;

/// Kind of object that has a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scarce {
    CounterSet,
    Domain,
    FlowCounter,
    FlowEntry,
    FlowGroup,
    FlowTable,
    Rqt,
    Tir,
    Tis,
    Umem,
    WorkQueue,
}

impl Scarce {
    /// Returns the kind of an object, or `None` if it has no quota. Flow groups and flow table entries are charged to
    /// the owner of their table.
    pub const fn of(object: Object) -> Option<Self> {
        Some(match object {
            Object::CounterSet(_) => Self::CounterSet,
            Object::Domain(_) => Self::Domain,
            Object::FlowCounter(_) => Self::FlowCounter,
            Object::FlowTable(_) => Self::FlowTable,
            Object::Rqt(_) => Self::Rqt,
            Object::Tir(_) => Self::Tir,
            Object::Tis(_) => Self::Tis,
            Object::Umem(_) => Self::Umem,
            Object::Rq(_) | Object::Sq(_) => Self::WorkQueue,
            Object::Pd(_)
            | Object::Uar(_)
            | Object::Xrcd(_)
            | Object::Eq(_)
            | Object::Cq(_)
            | Object::Srq(_)
            | Object::Qp(_)
            | Object::Mkey(_) => return None,
        })
    }

    /// Returns the device's capacity for objects of this kind.
    const fn capacity(self) -> usize {
        (match self {
            Self::CounterSet => MAX_COUNTER_SETS,
            Self::Domain => MAX_TRANSPORT_DOMAINS,
            Self::FlowCounter => MAX_COUNTERS,
            Self::FlowEntry => return MAX_ENTRIES,
            Self::FlowGroup => MAX_GROUPS,
            Self::FlowTable => MAX_TABLES,
            Self::Rqt => MAX_RQTS,
            Self::Tir => MAX_TIRS,
            Self::Tis => MAX_TISS,
            Self::Umem => MAX_UMEMS,
            Self::WorkQueue => LAST_WORK_QUEUE - first::WORK_QUEUE + 1,
        }) as usize
    }

    /// Returns whether a user context that already owns `owned` objects of this kind can create another one. All user
    /// contexts together own `total`. A single user context can own up to a quarter of the device's objects; all user
    /// contexts together can own up to three quarters. The rest is reserved for the kernel.
    pub const fn has_room(self, owned: usize, total: usize) -> bool {
        owned < self.capacity() / 4 && total < self.capacity() / 4 * 3
    }
}

/// Number of scarce objects that user contexts own.
#[derive(Debug, Default)]
pub struct Owned {
    /// Number of objects of each kind that each user context owns. Zero counts are removed, which bounds the map.
    by_user: BTreeMap<(UserId, Scarce), usize>,
    /// Number of objects of each kind that all user contexts together own.
    totals: BTreeMap<Scarce, usize>,
}

impl Owned {
    /// Updates the counts when the owner of an object changes from `old` to `new`.
    pub fn pass(&mut self, object: Object, old: User, new: User) {
        let Some(kind) = Scarce::of(object) else { return };
        if let User::Context(user) = old {
            decrement(&mut self.by_user, (user, kind));
            decrement(&mut self.totals, kind);
        }
        if let User::Context(user) = new {
            *self.by_user.entry((user, kind)).or_default() += 1;
            *self.totals.entry(kind).or_default() += 1;
        }
    }

    pub fn by(&self, user: UserId, kind: Scarce) -> usize {
        self.by_user.get(&(user, kind)).copied().unwrap_or(0)
    }

    pub fn total(&self, kind: Scarce) -> usize {
        self.totals.get(&kind).copied().unwrap_or(0)
    }
}

/// Decrements a count and removes it when it reaches 0.
fn decrement<K: Ord + Copy>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: [UserId; 2] = [UserId::new(1), UserId::new(2)];

    #[test]
    fn quotas_leave_a_quarter_for_the_kernel() {
        assert!(Scarce::FlowTable.has_room(63, 191));
        assert!(!Scarce::FlowTable.has_room(64, 64) && !Scarce::FlowTable.has_room(0, 192));
        assert!(Scarce::WorkQueue.has_room(2047, 2047) && !Scarce::WorkQueue.has_room(2048, 2048));
    }

    #[test]
    fn owner_change_moves_object_between_counts() {
        let mut owned = Owned::default();
        let [first, second] = USERS.map(User::Context);
        let (table, queues) = (Object::FlowTable(1), [Object::Sq(2), Object::Rq(3)]);
        owned.pass(table, User::Kernel, first);
        for queue in queues {
            owned.pass(queue, User::Kernel, second);
        }
        owned.pass(Object::Cq(4), User::Kernel, second);
        let count = |owned: &Owned, kind| (USERS.map(|user| owned.by(user, kind)), owned.total(kind));
        assert_eq!(count(&owned, Scarce::FlowTable), ([1, 0], 1));
        assert_eq!(count(&owned, Scarce::WorkQueue), ([0, 2], 2));
        owned.pass(table, first, second);
        owned.pass(queues[0], second, User::Shared);
        assert_eq!(count(&owned, Scarce::FlowTable), ([0, 1], 1));
        assert_eq!(count(&owned, Scarce::WorkQueue), ([0, 1], 1));
        owned.pass(table, second, User::Kernel);
        owned.pass(queues[1], second, User::Kernel);
        assert!(owned.by_user.is_empty() && owned.totals.is_empty());
    }
}
