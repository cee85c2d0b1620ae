//! DevX user contexts and the objects that they own.
//!
//! The kernel forwards a user program's commands unchecked and adds the user context number. The device must therefore
//! keep the objects of different user contexts apart.
//!
//! # Spec
//! mlx5 interface, section 23.1.

use std::collections::BTreeMap;

use protocol::hca::mlx5::user_context::{User, UserRights};
use protocol::ids::{FlowTableId, UserId};

use super::limits::MAX_USER_CONTEXTS;
use super::numbered::Numbered;
use super::quota::{Owned, Scarce};
use super::uses::Object;

#[derive(Debug)]
pub struct Users {
    contexts: Numbered<UserRights>,
    /// Owners of all objects that do not belong to the kernel.
    owners: BTreeMap<Object, User>,
    owned: Owned,
}

impl Default for Users {
    fn default() -> Self {
        let contexts = Numbered::new(1, MAX_USER_CONTEXTS);
        Self { contexts, owners: BTreeMap::new(), owned: Owned::default() }
    }
}

impl Users {
    /// Creates a user context. Returns `None` if there are too many.
    pub fn insert(&mut self, rights: UserRights) -> Option<UserId> {
        self.contexts.insert(rights).and_then(|number| u16::try_from(number).ok()).map(UserId::new)
    }

    /// Removes a user context. The kernel becomes the owner of the context's remaining objects.
    pub fn remove(&mut self, user: UserId) {
        self.contexts.remove(user.get().into());
        let Self { owners, owned, .. } = self;
        owners.retain(|object, owner| {
            let is_other = *owner != User::Context(user);
            if !is_other {
                owned.pass(*object, *owner, User::Kernel);
            }
            is_other
        });
    }

    pub fn count(&self) -> usize {
        self.contexts.count()
    }

    /// Returns the rights of a user context, or `None` if it does not exist.
    pub fn rights(&self, user: UserId) -> Option<UserRights> {
        self.contexts.get(user.get().into()).copied()
    }

    pub fn owner(&self, object: Object) -> User {
        self.owners.get(&object).copied().unwrap_or(User::Kernel)
    }

    /// Returns whether a user context may change, query or destroy an object.
    pub fn may_change(&self, user: UserId, object: Object) -> bool {
        self.owner(object) == User::Context(user)
    }

    /// Returns whether a user context's objects may refer to an object.
    pub fn may_refer(&self, user: UserId, object: Object) -> bool {
        self.may_change(user, object) || self.owner(object) == User::Shared
    }

    pub fn set_owner(&mut self, object: Object, owner: User) {
        let old = match owner {
            User::Kernel => self.owners.remove(&object),
            User::Shared | User::Context(_) => self.owners.insert(object, owner),
        };
        self.owned.pass(object, old.unwrap_or(User::Kernel), owner);
    }

    /// Returns how many objects of one kind the user context owns and how many all user contexts own together.
    pub fn owned(&self, user: UserId, kind: Scarce) -> [usize; 2] {
        [self.owned.by(user, kind), self.owned.total(kind)]
    }

    /// Returns the flow tables of all user contexts, with their owners. A quota keeps their number small.
    pub fn flow_tables(&self) -> impl Iterator<Item = (FlowTableId, UserId)> {
        let tables = self.owners.range(Object::FlowTable(0)..=Object::FlowTable(u32::MAX));
        tables.filter_map(|(table, owner)| match owner {
            User::Context(user) => Some((FlowTableId::new(table.number()), *user)),
            User::Kernel | User::Shared => None,
        })
    }

    /// Returns the objects of a user context.
    pub fn objects(&self, user: UserId) -> Vec<Object> {
        let owned = self.owners.iter().filter(|(_, owner)| **owner == User::Context(user));
        owned.map(|(object, _)| *object).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: Object = Object::Pd(1);

    #[test]
    fn object_is_accessible_only_to_owner_unless_shared() {
        let mut users = Users::default();
        let [first, second] = [UserRights::empty(); 2].map(|rights| users.insert(rights).unwrap());
        assert!(!users.may_refer(first, PD), "the PD belongs to the kernel");
        users.set_owner(PD, User::Context(first));
        assert!(users.may_change(first, PD) && !users.may_refer(second, PD));
        assert!(!users.may_refer(first, Object::Cq(1)), "CQ 1 is a different object");
        users.set_owner(PD, User::Shared);
        assert!(users.may_refer(second, PD) && !users.may_change(second, PD));
        users.set_owner(PD, User::Kernel);
        assert!(users.owners.is_empty());
    }

    #[test]
    fn flow_tables_are_listed_with_owners() {
        let mut users = Users::default();
        let user = users.insert(UserRights::empty()).unwrap();
        for object in [PD, Object::FlowTable(0), Object::FlowTable(9), Object::FlowCounter(1)] {
            users.set_owner(object, User::Context(user));
        }
        users.set_owner(Object::FlowTable(3), User::Shared);
        let tables: Vec<_> = users.flow_tables().map(|(table, owner)| (table.get(), owner)).collect();
        assert_eq!(tables, [(0, user), (9, user)]);
        assert_eq!(users.owned(user, Scarce::FlowTable), [2, 2]);
        users.remove(user);
        assert_eq!(users.owned(user, Scarce::FlowTable), [0, 0]);
    }

    #[test]
    fn kernel_takes_over_objects_of_removed_user_context() {
        let mut users = Users::default();
        let user = users.insert(UserRights::RAW_TRANSMIT).unwrap();
        users.set_owner(PD, User::Context(user));
        assert_eq!(users.objects(user), [PD]);
        users.remove(user);
        assert_eq!((users.owner(PD), users.rights(user), users.count()), (User::Kernel, None, 0));
        let next = users.insert(UserRights::empty()).unwrap();
        assert_ne!(next, user, "freed numbers are reused last");
    }

    #[test]
    fn number_of_user_contexts_is_limited() {
        let mut users = Users::default();
        let created = (0..=MAX_USER_CONTEXTS).map_while(|_| users.insert(UserRights::empty())).count();
        assert_eq!(created, usize::try_from(MAX_USER_CONTEXTS).unwrap());
    }
}
