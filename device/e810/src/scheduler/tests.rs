use protocol::hca::e810::admin::AdminStatus;

use super::*;

const TC: u32 = 2;

fn generic() -> ElementData {
    ElementData { kind: ElementKind::Generic, ..ElementData::default() }
}

fn add_command(parent: u32, elements: &[ElementData]) -> Vec<u8> {
    let parent = Teid::new(parent);
    let count = u16::try_from(elements.len()).unwrap();
    let mut buffer = Group { parent, count }.emit().to_vec();
    for data in elements {
        buffer.extend(Element { parent, teid: Teid::new(0), data: *data }.emit());
    }
    buffer
}

/// Adds a node and returns its TEID.
#[track_caller]
fn add(scheduler: &mut Scheduler, parent: u32) -> u32 {
    let mut buffer = add_command(parent, &[generic()]);
    assert_eq!(scheduler.add(1, &mut buffer), Ok(1));
    Element::parse_prefix(&buffer[Group::LEN..]).unwrap().teid.get()
}

/// Adds a branch from a traffic class to the layer above the leaves and returns its TEIDs.
fn add_branch(scheduler: &mut Scheduler) -> Vec<u32> {
    let mut branch = vec![TC];
    for _ in 2..LEAF_LAYER {
        branch.push(add(scheduler, *branch.last().unwrap()));
    }
    branch
}

fn delete(scheduler: &mut Scheduler, parent: u32, teid: u32) -> Result<u16, AdminStatus> {
    let mut buffer = Group { parent: Teid::new(parent), count: 1 }.emit().to_vec();
    buffer.extend(teid.to_le_bytes());
    scheduler.delete(1, &mut buffer).map_err(|error| error.status)
}

fn move_to(scheduler: &mut Scheduler, source: u32, destination: u32, teid: u32) -> Result<u16, AdminStatus> {
    let header = Move { source: Teid::new(source), destination: Teid::new(destination), count: 1 };
    let mut buffer = [&header.emit()[..], &teid.to_le_bytes()].concat();
    scheduler.relocate(1, &mut buffer).map_err(|error| error.status)
}

fn get(scheduler: &Scheduler, teid: u32) -> Result<Element, AdminStatus> {
    let mut buffer = Element { teid: Teid::new(teid), ..Element::default() }.emit();
    scheduler.get(1, &mut buffer).map_err(|error| error.status)?;
    Ok(Element::parse(&buffer))
}

#[test]
fn default_branch_has_nine_layers() {
    let scheduler = Scheduler::default();
    let mut buffer = [0xa5; 4096];
    assert_eq!(scheduler.default_topology(&mut buffer), Ok(8 + 9 * 24));
    assert_eq!(Group::parse_prefix(&buffer), Some(Group { parent: Teid::NONE, count: 9 }));
    let (elements, _) = buffer[Group::LEN..8 + 9 * 24].as_chunks();
    let kinds: Vec<_> = elements.iter().map(|bytes| u8::from(Element::parse(bytes).data.kind)).collect();
    assert_eq!(kinds, [1, 2, 4, 3, 3, 3, 3, 3, 5]);
}

#[test]
fn leaf_added_at_default_leaf_becomes_its_sibling() {
    let mut scheduler = Scheduler::default();
    let queue = scheduler.add_leaf(Teid::new(9), ElementData::default()).unwrap();
    assert_eq!(get(&scheduler, queue.get()).unwrap().parent, Teid::new(8));
    assert_eq!(delete(&mut scheduler, 8, 9), Ok(1));
    let refused = scheduler.add_leaf(Teid::new(9), ElementData::default()).unwrap_err();
    assert_eq!(refused.status, AdminStatus::NoEntry);
}

#[test]
fn query_scheduler_resources_returns_320_bytes() {
    let mut buffer = [0xa5; 400];
    assert_eq!(Scheduler::resources(&mut buffer), Ok(320));
    assert_eq!(buffer[..8], [9, 0, 9, 0, 0, 8, 8, 0], "the response must match section 16.3");
    assert!(Scheduler::resources(&mut buffer[..319]).is_err());
}

#[test]
fn added_elements_can_be_queried_by_teid() {
    let mut scheduler = Scheduler::default();
    let mut buffer = add_command(TC, &[generic(), ElementData { committed_weight: 7, ..generic() }]);
    buffer.extend(add_command(4, &[generic()]));
    assert_eq!(scheduler.add(2, &mut buffer), Ok(2));
    for (at, parent, weight) in [(8, TC, 0), (32, TC, 7), (64, 4, 0)] {
        let element = Element::parse_prefix(&buffer[at..]).unwrap();
        assert_eq!(get(&scheduler, element.teid.get()), Ok(element));
        assert_eq!((element.parent.get(), element.data.committed_weight), (parent, weight));
    }
    assert_eq!(get(&scheduler, 13), Err(AdminStatus::NoEntry));
}

#[test]
fn teids_are_never_reused() {
    let mut scheduler = Scheduler::default();
    let first = add(&mut scheduler, TC);
    assert_eq!(delete(&mut scheduler, TC, first), Ok(1));
    assert_ne!(add(&mut scheduler, TC), first);
    assert_eq!(get(&scheduler, first), Err(AdminStatus::NoEntry));
}

#[test]
fn rejects_elements_when_teids_are_exhausted() {
    let mut scheduler = Scheduler { last_teid: u32::MAX - 2, ..Scheduler::default() };
    assert_eq!(add(&mut scheduler, TC), u32::MAX - 1);
    let refused = scheduler.add(1, &mut add_command(TC, &[generic()])).unwrap_err();
    assert_eq!(refused.status, AdminStatus::NoSpace, "TEID FFFFFFFFh means no element and is never assigned");
}

#[test]
fn rejected_group_does_not_add_elements() {
    let leaf = ElementData { kind: ElementKind::Leaf, ..generic() };
    let other_parent = {
        let mut buffer = add_command(TC, &[generic()]);
        buffer[8] = 3;
        buffer
    };
    let cases = [
        ("an unknown parent", add_command(77, &[generic()]), AdminStatus::NoEntry),
        ("a leaf in the group", add_command(TC, &[generic(), leaf]), AdminStatus::Invalid),
        ("a generic node on the leaf layer", add_command(8, &[generic()]), AdminStatus::Invalid),
        ("a node below a leaf", add_command(9, &[generic()]), AdminStatus::Invalid),
        ("more children than the limit", add_command(TC, &[generic(); 8]), AdminStatus::NoSpace),
        ("an element whose parent is not its group's", other_parent, AdminStatus::Invalid),
        ("half an element", add_command(TC, &[generic()])[..31].to_vec(), AdminStatus::Invalid),
        ("half a header", vec![0; 7], AdminStatus::Invalid),
    ];
    for (what, mut buffer, status) in cases {
        let mut scheduler = Scheduler::default();
        assert_eq!(scheduler.add(1, &mut buffer).unwrap_err().status, status, "{what}");
        assert_eq!(scheduler.elements.len(), 9, "{what}");
    }
}

#[test]
fn rejects_elements_past_layer_limit() {
    let mut scheduler = Scheduler::default();
    let mut parents = vec![TC];
    // In addition to the default branch, layers 2, 3 and 4 get 7, 56 and 448 elements. Layer 5 would get 3584
    // elements, which exceeds the limit.
    for layer in 2..=5 {
        let mut children = vec![];
        for parent in parents {
            while let Ok(1) = {
                let mut buffer = add_command(parent, &[generic()]);
                let added = scheduler.add(1, &mut buffer);
                children.push(Element::parse_prefix(&buffer[8..]).unwrap().teid.get());
                added
            } {}
            children.pop();
        }
        assert!(scheduler.per_layer[layer] <= MAX_LAYER_ELEMENTS);
        parents = children;
    }
    assert_eq!(scheduler.per_layer[5], MAX_LAYER_ELEMENTS);
}

#[test]
fn deleting_element_removes_its_descendants() {
    let mut scheduler = Scheduler::default();
    let branch = add_branch(&mut scheduler);
    let leaf = scheduler.add_leaf(Teid::new(branch[6]), generic()).unwrap();
    assert_eq!(scheduler.elements.len(), 9 + 7);
    assert_eq!(delete(&mut scheduler, TC, branch[1]), Ok(1));
    assert_eq!(scheduler.elements.len(), 9);
    assert_eq!(scheduler.per_layer, [1; LAYERS]);
    scheduler.remove_leaf(leaf);
}

#[test]
fn rejects_invalid_deletions() {
    let mut scheduler = Scheduler::default();
    assert_eq!(delete(&mut scheduler, TC, 4), Err(AdminStatus::NoEntry), "element 4 is a child of element 3");
    assert_eq!(delete(&mut scheduler, 1, TC), Err(AdminStatus::NotPermitted));
    assert_eq!(delete(&mut scheduler, u32::MAX, 1), Err(AdminStatus::NotPermitted));
    assert_eq!(scheduler.elements.len(), 9);
}

#[test]
fn moved_element_keeps_its_subtree_and_layer() {
    let mut scheduler = Scheduler::default();
    let (from, to) = (add_branch(&mut scheduler), add_branch(&mut scheduler));
    assert_eq!(move_to(&mut scheduler, from[2], to[2], from[3]), Ok(1));
    assert_eq!(get(&scheduler, from[3]).unwrap().parent.get(), to[2]);
    assert_eq!(
        move_to(&mut scheduler, from[2], to[2], from[3]),
        Err(AdminStatus::NoEntry),
        "the element has already moved"
    );
    assert_eq!(
        move_to(&mut scheduler, to[2], from[3], to[3]),
        Err(AdminStatus::Invalid),
        "the new parent is on a different layer"
    );
    assert_eq!(delete(&mut scheduler, TC, to[1]), Ok(1));
    assert_eq!(get(&scheduler, from[4]), Err(AdminStatus::NoEntry));
    assert_eq!(delete(&mut scheduler, TC, from[1]), Ok(1));
    assert_eq!(scheduler.per_layer, [1; LAYERS]);
}

#[test]
fn rejects_move_past_child_limit() {
    let mut scheduler = Scheduler::default();
    let (full, other) = (add(&mut scheduler, TC), add(&mut scheduler, TC));
    for _ in 0..MAX_SIBLINGS {
        add(&mut scheduler, full);
    }
    let child = add(&mut scheduler, other);
    assert_eq!(move_to(&mut scheduler, other, full, child), Err(AdminStatus::NoSpace));
    assert_eq!(get(&scheduler, child).unwrap().parent.get(), other);
}

#[test]
fn elements_can_be_configured_suspended_and_resumed() {
    let mut scheduler = Scheduler::default();
    let teid = Teid::new(add(&mut scheduler, TC));
    let configure = |scheduler: &mut Scheduler, data| {
        let mut buffer = Element { parent: Teid::new(TC), teid, data }.emit();
        scheduler.configure(1, &mut buffer).map_err(|error| error.status)
    };
    let weighed = ElementData { excess_valid: true, excess_weight: 100, ..generic() };
    assert_eq!(configure(&mut scheduler, weighed), Ok(1));
    assert_eq!(get(&scheduler, teid.get()).unwrap().data, weighed);
    let leaf = ElementData { kind: ElementKind::Leaf, ..weighed };
    assert_eq!(configure(&mut scheduler, leaf), Err(AdminStatus::Invalid));
    let limited = ElementData { committed_valid: true, committed_profile: 1, ..weighed };
    assert_eq!(
        configure(&mut scheduler, limited),
        Err(AdminStatus::Invalid),
        "rate profile 1 does not exist yet"
    );
    let mut profile = RateProfile { level: 2, kind: 0, ..RateProfile::default() }.emit();
    assert_eq!(scheduler.add_profiles(1, &mut profile), Ok(1));
    assert_eq!(configure(&mut scheduler, limited), Ok(1));

    assert_eq!(scheduler.set_suspended(true, 1, &mut teid.get().to_le_bytes()), Ok(1));
    assert!(get(&scheduler, teid.get()).unwrap().data.suspended);
    assert_eq!(scheduler.set_suspended(false, 1, &mut teid.get().to_le_bytes()), Ok(1));
    assert_eq!(get(&scheduler, teid.get()).unwrap().data, limited);
    let unknown = scheduler.set_suspended(true, 1, &mut 99_u32.to_le_bytes());
    assert_eq!(unknown.unwrap_err().status, AdminStatus::NoEntry);
}

#[test]
fn rejects_rate_profiles_past_limit() {
    let mut scheduler = Scheduler::default();
    let template = RateProfile { level: 3, kind: 2, burst: 1500, ..RateProfile::default() };
    for number in 1..MAX_RATE_PROFILES {
        let mut buffer = template.emit();
        assert_eq!(scheduler.add_profiles(1, &mut buffer), Ok(1));
        assert_eq!(RateProfile::parse(&buffer), RateProfile { profile: number, ..template });
    }
    assert_eq!(scheduler.add_profiles(1, &mut template.emit()).unwrap_err().status, AdminStatus::NoSpace);
    let mut seventh = RateProfile { profile: 7, ..template }.emit();
    assert_eq!(scheduler.remove_profiles(1, &mut seventh), Ok(1));
    assert_eq!(scheduler.remove_profiles(1, &mut seventh).unwrap_err().status, AdminStatus::NoEntry);
    for wrong in [RateProfile { level: 9, ..template }, RateProfile { kind: 3, ..template }] {
        let refused = scheduler.add_profiles(1, &mut wrong.emit()).unwrap_err();
        assert_eq!(refused.status, AdminStatus::Invalid, "{wrong:?}");
    }
}

/// Returns the enabled traffic classes and the TEIDs of their elements.
fn classes(scheduler: &Scheduler) -> (u8, [u32; 8]) {
    let mut buffer = [0xa5; 64];
    assert_eq!(scheduler.port_ets(Scheduler::ROOT, &mut buffer), Ok(64));
    let ets = PortEts::parse(&buffer);
    (ets.valid_classes, ets.classes)
}

#[test]
fn enabled_traffic_classes_have_elements() {
    const NONE: u32 = u32::MAX;
    let mut scheduler = Scheduler::default();
    assert_eq!(scheduler.enable_classes(0b101), Ok(()));
    let (enabled, teids) = classes(&scheduler);
    let second = teids[2];
    assert_eq!((enabled, teids), (0b101, [TC, NONE, second, NONE, NONE, NONE, NONE, NONE]));
    let element = get(&scheduler, second).unwrap();
    assert_eq!((element.parent, element.data.kind), (Scheduler::ROOT, ElementKind::TrafficClass));
    let mut branch = second;
    for _ in 2..LEAF_LAYER {
        branch = add(&mut scheduler, branch);
    }
    assert!(scheduler.add_leaf(Teid::new(branch), ElementData::default()).is_ok());
    assert_eq!(delete(&mut scheduler, 1, second), Err(AdminStatus::NotPermitted));

    assert_eq!(scheduler.enable_classes(0), Ok(()));
    assert_eq!(classes(&scheduler).0, 1, "class 0 is always enabled");
    assert!(get(&scheduler, branch).is_ok(), "the branch of a disabled class remains");
    assert_eq!(scheduler.enable_classes(u8::MAX), Ok(()));
    let (enabled, teids) = classes(&scheduler);
    assert_eq!((enabled, teids[2]), (u8::MAX, second), "a class keeps its element");
    assert!(teids.iter().all(|teid| *teid != NONE));
    assert_eq!(scheduler.enable_classes(u8::MAX), Ok(()));
    assert_eq!(scheduler.elements.len(), 9 + 7 + LEAF_LAYER - 1);
}

#[test]
fn query_port_ets_returns_traffic_class_zero() {
    let scheduler = Scheduler::default();
    let mut buffer = [0xa5; 64];
    assert_eq!(scheduler.port_ets(Teid::new(1), &mut buffer), Ok(64));
    let mut golden = [0; 64];
    golden[0] = 1;
    golden[32..].fill(0xff);
    golden[32..36].copy_from_slice(&[2, 0, 0, 0]);
    assert_eq!(buffer, golden, "the response must match command 040E in run73-vlan.aq.gz");
    assert_eq!(scheduler.port_ets(Teid::new(2), &mut buffer).unwrap_err().status, AdminStatus::NoEntry);
}

#[test]
fn queue_requires_parent_directly_above_leaf_layer() {
    let mut scheduler = Scheduler::default();
    let branch = add_branch(&mut scheduler);
    let leaf = scheduler.add_leaf(Teid::new(branch[6]), ElementData::default()).unwrap();
    assert_eq!(get(&scheduler, leaf.get()).unwrap().data.kind, ElementKind::Leaf);
    let refused = scheduler.add_leaf(Teid::new(branch[5]), ElementData::default()).unwrap_err();
    assert_eq!(refused.status, AdminStatus::Invalid);
    scheduler.remove_leaf(Teid::new(branch[6]));
    assert!(get(&scheduler, branch[6]).is_ok(), "`remove_leaf` must ignore a node that is not a leaf");
    scheduler.remove_leaf(leaf);
    assert_eq!(get(&scheduler, leaf.get()), Err(AdminStatus::NoEntry));
}

impl Scheduler {
    /// Checks that every element is in its parent's list of children, is one layer below its parent, and is counted in
    /// `per_layer`.
    pub(crate) fn assert_is_a_tree(&self) {
        let mut per_layer = [0; LAYERS];
        for (teid, node) in &self.elements {
            per_layer[node.layer] += 1;
            if node.parent == Teid::NONE {
                assert_eq!((*teid, node.layer), (Self::ROOT, 0));
            } else {
                let parent = &self.elements[&node.parent];
                assert_eq!(parent.layer + 1, node.layer, "{teid}");
                assert_eq!(parent.children.iter().filter(|child| *child == teid).count(), 1, "{teid}");
            }
            assert!(node.children.len() <= MAX_SIBLINGS.into(), "{teid}");
            assert!(node.children.iter().all(|child| self.elements[child].parent == *teid), "{teid}");
        }
        assert_eq!(per_layer, self.per_layer);
        assert!(per_layer.iter().all(|count| *count <= MAX_LAYER_ELEMENTS));
    }
}
