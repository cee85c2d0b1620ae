//! The transmit scheduler tree: its elements, layers and rate profiles.
//!
//! The driver keeps a copy of the tree and trusts every response, so the device validates each change. Transmit queues
//! are served round-robin, which is a valid schedule if no rate limit is set.
//!
//! # Spec
//! E810 interface, section 5.5.

use std::collections::BTreeMap;

use card::frontend::snapshot::{NodeKind, NodeRow};
use protocol::hca::e810::admin::scheduler::{
    Element, ElementData, ElementKind, Group, LevelResources, Move, PortEts, RateProfile, SchedulerResources,
    Teid,
};
use protocol::hca::e810::admin::{AdminError, AdminStatus};
use smallvec::SmallVec;

use super::buffer::Buffer;
use super::id_pool::IdPool;
use super::limits::{MAX_COMMAND_ELEMENTS, MAX_LAYER_ELEMENTS, MAX_RATE_PROFILES, MAX_SIBLINGS};

/// Number of layers: port, traffic classes, several layers of generic nodes, and queues.
const LAYERS: usize = 9;
/// [`LAYERS`] in the type of the field that reports it to drivers.
const LEVELS: u16 = 9;
const _: () = assert!(LEVELS as usize == LAYERS);

/// Layer of the traffic classes. Elements on this layer or above cannot be deleted.
const CLASS_LAYER: usize = 1;

/// Traffic classes that are always enabled: only class 0.
const DEFAULT_CLASSES: u8 = 1;

/// Layer of the leaves, one per queue.
const LEAF_LAYER: usize = LAYERS - 1;

/// Number of rate profile kinds: committed (CIR), excess (EIR) and shared (SRL).
const PROFILE_KINDS: usize = 3;

#[derive(Debug)]
pub(super) struct Scheduler {
    elements: BTreeMap<Teid, Node>,
    /// Number of elements per layer.
    per_layer: [u16; LAYERS],
    /// Last TEID assigned. TEIDs are never reused, so a stale TEID cannot refer to a newer element.
    last_teid: u32,
    profiles: [[IdPool; PROFILE_KINDS]; LAYERS],
    /// Element of each traffic class that has been enabled since the reset.
    classes: BTreeMap<u8, Teid>,
    /// Traffic classes that are enabled, one bit each.
    enabled_classes: u8,
}

#[derive(Debug)]
struct Node {
    parent: Teid,
    layer: usize,
    data: ElementData,
    children: SmallVec<[Teid; MAX_SIBLINGS as usize]>,
}

impl Default for Scheduler {
    /// Returns the tree after a reset: the default branch, from the port to a leaf.
    fn default() -> Self {
        let mut scheduler = Self {
            elements: BTreeMap::new(),
            per_layer: [0; LAYERS],
            last_teid: 0,
            // Profile 0 means "unlimited" and always exists.
            profiles: std::array::from_fn(|_| std::array::from_fn(|_| IdPool::new(1, MAX_RATE_PROFILES - 1))),
            classes: BTreeMap::from([(0, Self::DEFAULT_CLASS)]),
            enabled_classes: DEFAULT_CLASSES,
        };
        let mut parent = Teid::NONE;
        for layer in 0..LAYERS {
            let kind = match layer {
                0 => ElementKind::RootPort,
                CLASS_LAYER => ElementKind::TrafficClass,
                // `ice` fails to probe if the entry point is the first element of the default branch.
                2 => ElementKind::EntryPoint,
                LEAF_LAYER => ElementKind::Leaf,
                _ => ElementKind::Generic,
            };
            parent = scheduler.insert(parent, layer, ElementData { kind, ..ElementData::default() });
        }
        scheduler
    }
}

impl Scheduler {
    /// TEID of the element that represents the port.
    const ROOT: Teid = Teid::new(1);
    /// TEID of traffic class 0.
    const DEFAULT_CLASS: Teid = Teid::new(2);
    /// TEID of the leaf in the default branch.
    const DEFAULT_LEAF: Teid = Teid::new(LEVELS as u32);

    /// Executes "Query scheduler resources". Returns the number of bytes written.
    ///
    /// # Errors
    /// EINVAL for a short buffer.
    pub(super) fn resources(buffer: &mut [u8]) -> Result<usize, AdminError> {
        /// Mask of the sections that an element may have. Drivers ignore this mask.
        const SECTIONS: u8 = 8;
        let mut left = Buffer::new(buffer);
        let header = SchedulerResources {
            physical_levels: LEVELS,
            logical_levels: LEVELS,
            max_device_reset: SECTIONS,
            max_function_reset: SECTIONS,
            max_command_elements: MAX_COMMAND_ELEMENTS,
            ..SchedulerResources::default()
        };
        *left.next()? = header.emit();
        for level in 0..LEVELS {
            let resources = LevelResources {
                // The level is below [`LEVELS`], so it fits in a byte.
                level: level.to_le_bytes()[0],
                sections: SECTIONS,
                max_device_elements: MAX_LAYER_ELEMENTS,
                max_function_elements: MAX_LAYER_ELEMENTS,
                max_siblings: if level == 0 { 1 } else { MAX_SIBLINGS },
                max_committed_profiles: MAX_RATE_PROFILES,
                max_excess_profiles: MAX_RATE_PROFILES,
                max_shared_profiles: MAX_RATE_PROFILES,
            };
            *left.next()? = resources.emit();
        }
        Ok(SchedulerResources::LEN + LAYERS * LevelResources::LEN)
    }

    /// Executes "Get default topology": lists the elements of the default branch that still exist. Returns the number
    /// of bytes written.
    ///
    /// # Errors
    /// EINVAL for a short buffer.
    pub(super) fn default_topology(&self, buffer: &mut [u8]) -> Result<usize, AdminError> {
        let mut left = Buffer::new(buffer);
        let header: &mut [u8; Group::LEN] = left.next()?;
        let mut count = 0;
        // The elements of the default branch have the lowest TEIDs, in ascending order from the port down.
        for (teid, node) in self.elements.range(..=Teid::new(LEVELS.into())) {
            *left.next()? = node.element(*teid).emit();
            count += 1;
        }
        *header = Group { parent: Teid::NONE, count }.emit();
        Ok(Group::LEN + usize::from(count) * Element::LEN)
    }

    /// Executes "Add elements": adds `groups` groups of elements and fills in their TEIDs. Returns the number
    /// of groups processed.
    ///
    /// # Errors
    /// ENOENT for an unknown parent; EINVAL if an element is not generic, or would be below the last generic
    /// layer; ENOSPC if a limit is reached. The groups that precede the rejected one are kept.
    pub(super) fn add(&mut self, groups: u16, buffer: &mut [u8]) -> Result<u16, AdminError> {
        let mut left = Buffer::new(buffer);
        for _ in 0..groups {
            let group = Group::parse(left.next()?);
            let elements: &mut [[u8; Element::LEN]] = left.next_all(group.count)?;
            let layer = self.room_below(group.parent, group.count)?;
            for bytes in &*elements {
                let Element { parent, data, .. } = Element::parse(bytes);
                if parent != group.parent {
                    return Err(AdminError::invalid(
                        "element parent differs from group parent, TEID",
                        parent.get().into(),
                    ));
                }
                if data.kind != ElementKind::Generic || layer >= LEAF_LAYER {
                    return Err(AdminError::invalid("element type", u8::from(data.kind).into()));
                }
            }
            for bytes in elements {
                let element = Element::parse(bytes);
                let teid = self.insert(group.parent, layer, element.data);
                *bytes = Element { teid, ..element }.emit();
            }
        }
        Ok(groups)
    }

    /// Executes "Get elements": looks up `count` elements by TEID and fills them in.
    ///
    /// # Errors
    /// ENOENT for an unknown TEID.
    pub(super) fn get(&self, count: u16, buffer: &mut [u8]) -> Result<u16, AdminError> {
        for bytes in Buffer::new(buffer).next_all(count)? {
            let teid = Element::parse(bytes).teid;
            *bytes = self.node(teid)?.element(teid).emit();
        }
        Ok(count)
    }

    /// Executes "Configure elements".
    ///
    /// # Errors
    /// ENOENT for an unknown TEID; EINVAL for a change of type or an unknown rate profile.
    pub(super) fn configure(&mut self, count: u16, buffer: &mut [u8]) -> Result<u16, AdminError> {
        let elements: &mut [[u8; Element::LEN]] = Buffer::new(buffer).next_all(count)?;
        for bytes in elements {
            let Element { teid, data, .. } = Element::parse(bytes);
            let node = self.node(teid)?;
            if data.kind != node.data.kind {
                return Err(AdminError::invalid("element type", u8::from(data.kind).into()));
            }
            let sections = [
                (data.committed_valid, data.committed_profile),
                (data.excess_valid, data.excess_profile),
                (data.shared_valid, data.shared_profile),
            ];
            let numbers = self.profiles.get(node.layer).into_iter().flatten();
            for ((valid, profile), numbers) in sections.into_iter().zip(numbers) {
                if valid && profile != 0 && !numbers.is_used(profile) {
                    return Err(AdminError::invalid("rate profile", profile.into()));
                }
            }
            self.node_mut(teid)?.data = data;
        }
        Ok(count)
    }

    /// Executes "Move elements": moves subtrees to another parent. The new parent must be on the same layer
    /// as the old one.
    ///
    /// # Errors
    /// ENOENT if an element is not a child of `source`; EINVAL for a destination on another layer; ENOSPC if
    /// the destination already has the maximum number of children.
    pub(super) fn relocate(&mut self, groups: u16, buffer: &mut [u8]) -> Result<u16, AdminError> {
        let mut left = Buffer::new(buffer);
        for _ in 0..groups {
            let Move { source, destination, count } = Move::parse(left.next()?);
            let teids: &mut [[u8; 4]] = left.next_all(count)?;
            if self.node(source)?.layer != self.node(destination)?.layer {
                return Err(AdminError::invalid(
                    "destination is on a different layer, TEID",
                    destination.get().into(),
                ));
            }
            for bytes in teids {
                let teid = Teid::new(u32::from_le_bytes(*bytes));
                self.child(source, teid)?;
                if source == destination {
                    continue;
                }
                self.room_for_child(destination)?;
                self.node_mut(source)?.children.retain(|child| *child != teid);
                self.node_mut(destination)?.children.push(teid);
                self.node_mut(teid)?.parent = destination;
            }
        }
        Ok(groups)
    }

    /// Executes "Suspend elements" or "Resume elements".
    ///
    /// # Errors
    /// ENOENT for an unknown TEID.
    pub(super) fn set_suspended(
        &mut self,
        suspended: bool,
        count: u16,
        buffer: &mut [u8],
    ) -> Result<u16, AdminError> {
        let teids: &mut [[u8; 4]] = Buffer::new(buffer).next_all(count)?;
        for bytes in teids {
            self.node_mut(Teid::new(u32::from_le_bytes(*bytes)))?.data.suspended = suspended;
        }
        Ok(count)
    }

    /// Executes "Delete elements": removes elements and all their descendants.
    ///
    /// # Errors
    /// ENOENT if an element is not a child of the given parent; EPERM for the port and traffic classes.
    pub(super) fn delete(&mut self, groups: u16, buffer: &mut [u8]) -> Result<u16, AdminError> {
        let mut left = Buffer::new(buffer);
        for _ in 0..groups {
            let group = Group::parse(left.next()?);
            let teids: &mut [[u8; 4]] = left.next_all(group.count)?;
            for bytes in teids {
                let teid = Teid::new(u32::from_le_bytes(*bytes));
                if self.child(group.parent, teid)?.layer <= CLASS_LAYER {
                    let status = AdminStatus::NotPermitted;
                    return Err(AdminError::new(
                        status,
                        "cannot delete the port or a traffic class, TEID",
                        teid.get().into(),
                    ));
                }
                self.remove(teid);
            }
        }
        Ok(groups)
    }

    /// Executes "Add rate profiles": allocates the profiles and fills in their identifiers.
    ///
    /// # Errors
    /// EINVAL for an unknown layer or kind; ENOSPC if the limit is reached.
    pub(super) fn add_profiles(&mut self, count: u16, buffer: &mut [u8]) -> Result<u16, AdminError> {
        for bytes in Buffer::new(buffer).next_all(count)? {
            let profile = RateProfile::parse(bytes);
            let Some(number) = self.profiles_of(&profile)?.allocate() else {
                return Err(AdminError::new(
                    AdminStatus::NoSpace,
                    "limit of rate profiles reached on layer",
                    profile.level.into(),
                ));
            };
            *bytes = RateProfile { profile: number, ..profile }.emit();
        }
        Ok(count)
    }

    /// Executes "Remove rate profiles".
    ///
    /// # Errors
    /// EINVAL for an unknown layer or kind; ENOENT for an unknown profile.
    pub(super) fn remove_profiles(&mut self, count: u16, buffer: &mut [u8]) -> Result<u16, AdminError> {
        for bytes in Buffer::new(buffer).next_all(count)? {
            let profile = RateProfile::parse(bytes);
            if !self.profiles_of(&profile)?.release(profile.profile) {
                return Err(AdminError::no_entry("rate profile", profile.profile.into()));
            }
        }
        Ok(count)
    }

    /// Enables traffic classes, one bit each, and adds an element for each new class. All other classes except class 0
    /// are disabled. Their elements remain, because the driver keeps the branches below them.
    ///
    /// # Errors
    /// ENOSPC if a limit is reached.
    pub(super) fn enable_classes(&mut self, classes: u8) -> Result<(), AdminError> {
        let missing = (0..8).filter(|class| classes >> class & 1 != 0 && !self.classes.contains_key(class));
        for class in missing.collect::<SmallVec<[u8; 8]>>() {
            let layer = self.room_below(Self::ROOT, 1)?;
            let data = ElementData { kind: ElementKind::TrafficClass, ..ElementData::default() };
            let teid = self.insert(Self::ROOT, layer, data);
            self.classes.insert(class, teid);
        }
        self.enabled_classes = classes | DEFAULT_CLASSES;
        Ok(())
    }

    /// Executes "Query port ETS". Returns the number of bytes written.
    ///
    /// # Errors
    /// ENOENT if the TEID is not the port's; EINVAL for a short buffer.
    pub(super) fn port_ets(&self, port: Teid, buffer: &mut [u8]) -> Result<usize, AdminError> {
        if port != Self::ROOT {
            return Err(AdminError::no_entry("port", port.get().into()));
        }
        let valid_classes = self.enabled_classes;
        let mut classes = [u32::from(Teid::NONE); 8];
        for (class, place) in (0..8).zip(&mut classes).filter(|(class, _)| valid_classes >> class & 1 != 0) {
            *place = self.classes.get(&class).copied().unwrap_or(Teid::NONE).get();
        }
        *Buffer::new(buffer).next()? = PortEts { valid_classes, classes }.emit();
        Ok(PortEts::LEN)
    }

    /// Adds the leaf for a transmit queue or an RDMA queue set.
    ///
    /// # Errors
    /// ENOENT for an unknown parent; EINVAL for a parent that is not directly above the leaf layer; ENOSPC if
    /// a limit is reached.
    pub(super) fn add_leaf(&mut self, parent: Teid, data: ElementData) -> Result<Teid, AdminError> {
        // iPXE specifies the leaf of the default branch as the parent of its queue. Add the queue as a sibling of that
        // leaf instead. Linux deletes the leaf before it adds queues and is unaffected.
        let parent = if parent == Self::DEFAULT_LEAF { self.node(parent)?.parent } else { parent };
        let layer = self.room_below(parent, 1)?;
        if layer != LEAF_LAYER {
            return Err(AdminError::invalid("queue parent is on the wrong layer, TEID", parent.get().into()));
        }
        Ok(self.insert(parent, layer, ElementData { kind: ElementKind::Leaf, ..data }))
    }

    /// Removes a queue's leaf. Has no effect if the leaf has already been deleted together with an ancestor.
    pub(super) fn remove_leaf(&mut self, leaf: Teid) {
        if self.elements.get(&leaf).is_some_and(|node| node.layer == LEAF_LAYER) {
            self.remove(leaf);
        }
    }

    /// Returns a row for each element, in TEID order, starting at `first`.
    pub(super) fn rows(&self, first: Teid) -> impl Iterator<Item = NodeRow> {
        self.elements.range(first..).map(|(teid, node)| node.row(*teid))
    }

    fn node(&self, teid: Teid) -> Result<&Node, AdminError> {
        self.elements.get(&teid).ok_or(unknown(teid))
    }

    fn node_mut(&mut self, teid: Teid) -> Result<&mut Node, AdminError> {
        self.elements.get_mut(&teid).ok_or(unknown(teid))
    }

    /// Returns an element, or an error if it is not a child of `parent`.
    fn child(&self, parent: Teid, teid: Teid) -> Result<&Node, AdminError> {
        let node = self.node(teid)?;
        if node.parent == parent { Ok(node) } else { Err(unknown(teid)) }
    }

    /// Returns the layer below `parent`. Fails if `parent` cannot have `count` more children or if the layer has no
    /// room for them.
    fn room_below(&self, parent: Teid, count: u16) -> Result<usize, AdminError> {
        let node = self.node(parent)?;
        let layer = node.layer + 1;
        let Some(in_layer) = self.per_layer.get(layer) else {
            return Err(AdminError::invalid("parent is on the last layer, TEID", parent.get().into()));
        };
        let children = node.children.len() + usize::from(count);
        if children > MAX_SIBLINGS.into() || count > MAX_LAYER_ELEMENTS - in_layer {
            return Err(AdminError::new(
                AdminStatus::NoSpace,
                "limit of children reached by parent, TEID",
                parent.get().into(),
            ));
        }
        // TEID 0xFFFFFFFF means "none" and must not be assigned.
        if u32::from(count) >= u32::MAX - self.last_teid {
            return Err(AdminError::new(AdminStatus::NoSpace, "TEIDs exhausted at", self.last_teid.into()));
        }
        Ok(layer)
    }

    fn room_for_child(&self, parent: Teid) -> Result<(), AdminError> {
        if self.node(parent)?.children.len() < MAX_SIBLINGS.into() {
            Ok(())
        } else {
            Err(AdminError::new(
                AdminStatus::NoSpace,
                "limit of children reached by parent, TEID",
                parent.get().into(),
            ))
        }
    }

    /// Adds an element. The caller must have checked that the parent has room for it.
    fn insert(&mut self, parent: Teid, layer: usize, data: ElementData) -> Teid {
        self.last_teid += 1;
        let teid = Teid::new(self.last_teid);
        self.elements.insert(teid, Node { parent, layer, data, children: SmallVec::new() });
        if let Some(count) = self.per_layer.get_mut(layer) {
            *count += 1;
        }
        if let Some(parent) = self.elements.get_mut(&parent) {
            parent.children.push(teid);
        }
        teid
    }

    /// Removes an element and its descendants.
    fn remove(&mut self, teid: Teid) {
        let parent = self.elements.get(&teid).map(|node| node.parent);
        if let Some(parent) = parent.and_then(|parent| self.elements.get_mut(&parent)) {
            parent.children.retain(|child| *child != teid);
        }
        let mut pending = vec![teid];
        while let Some(node) = pending.pop().and_then(|teid| self.elements.remove(&teid)) {
            pending.extend(node.children);
            if let Some(count) = self.per_layer.get_mut(node.layer) {
                *count -= 1;
            }
        }
    }

    fn profiles_of(&mut self, profile: &RateProfile) -> Result<&mut IdPool, AdminError> {
        let of_layer = self.profiles.get_mut(usize::from(profile.level));
        let of_kind = of_layer.and_then(|kinds| kinds.get_mut(usize::from(profile.kind)));
        of_kind.ok_or(AdminError::invalid("rate profile layer", profile.level.into()))
    }
}

impl Node {
    fn element(&self, teid: Teid) -> Element {
        Element { parent: self.parent, teid, data: self.data }
    }

    fn row(&self, teid: Teid) -> NodeRow {
        NodeRow {
            teid: teid.get(),
            parent: (self.parent != Teid::NONE).then_some(self.parent.get()),
            kind: match self.data.kind {
                ElementKind::RootPort => NodeKind::Port,
                ElementKind::TrafficClass => NodeKind::Class,
                ElementKind::EntryPoint => NodeKind::EntryPoint,
                ElementKind::Leaf => NodeKind::Queue,
                ElementKind::Generic | ElementKind::Other(_) => NodeKind::Generic,
            },
            layer: u8::try_from(self.layer).unwrap_or(u8::MAX),
            suspended: self.data.suspended,
            committed_weight: self.data.committed_weight,
            excess_weight: self.data.excess_weight,
        }
    }
}

fn unknown(teid: Teid) -> AdminError {
    AdminError::no_entry("TEID", teid.get().into())
}

#[cfg(test)]
mod tests;
