//! Tests both sides of each NIC limit (E810 interface, sections 5.4 to 5.9 and 6.1): the last object within a limit
//! works, and the next one is rejected with the right status, counted, and logged on a single line.

use card::frontend::snapshot::QueueRow;
use card::frontend::testing::logged;
use protocol::hca::e810::admin::queue::{AddQueue, AddRdmaSet, QueueGroup, RdmaSetGroup};
use protocol::hca::e810::admin::scheduler::{Element, ElementData, ElementKind, Group, RateProfile, Teid};
use protocol::hca::e810::admin::switch::{LargeAction, RuleHeader, RuleKind, RuleList};
use protocol::hca::e810::admin::vsi::{ClassQueues, SwitchSection, VlanSection, VsiContext};
use protocol::hca::e810::admin::{AdminStatus, Opcode};
use protocol::hca::e810::regs::Register;
use protocol::hca::e810::ring_address::RingAddress;
use protocol::hca::e810::tx_context::TxContext;
use protocol::ids::Iova;

use super::*;
use crate::Options;
use crate::testing::MAC;

const QUEUES: u16 = 4;
const VECTORS: u16 = 8;
const RING_LEN: u16 = 64;
const TRANSMIT_RING: u64 = 0x100_0000;
const RECEIVE_RING: u64 = 0x101_0000;
const TRANSMIT_BUFFER: u64 = 0x110_0000;
/// Maximum number of children of a scheduler element.
const SIBLINGS: u16 = 8;

/// Returns a device with few queues and vectors.
fn small() -> Driver {
    let queues = QUEUES.try_into().unwrap();
    let vectors = VECTORS.try_into().unwrap();
    let mut driver = powered_on(Options { queues, vectors, ..Options::default() });
    driver.open_admin_queue();
    driver
}

/// Returns the parameters of a command whose buffer holds `count` entries.
fn entries(count: usize) -> [u8; 16] {
    let mut parameters = [0; 16];
    parameters[..2].copy_from_slice(&u16::try_from(count).unwrap().to_le_bytes());
    parameters
}

fn list(opcode: Opcode, count: usize, buffer: &[u8]) -> AdminCommand {
    AdminCommand::with_input(opcode, entries(count), buffer)
}

/// Asserts that a command fails with `status`, is counted, and is logged.
#[track_caller]
fn refused(driver: &mut Driver, command: &AdminCommand, status: AdminStatus) {
    let name = Opcode::from_code(command.opcode).unwrap().name();
    let count = |driver: &Driver| {
        let counted = driver.bus.hca.monitor().commands().get(name);
        counted.and_then(|by_status| by_status.get(status.name())).copied().unwrap_or(0)
    };
    let before = count(driver);
    let text = logged(|| assert_eq!(driver.execute(command).status, status.code(), "{name}"));
    assert_eq!(count(driver), before + 1, "{name}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(name), "{text}");
}

/// Returns the number of register writes that were ignored because the register does not exist.
fn unknown_registers(driver: &Driver) -> u64 {
    let mut counts = driver.bus.hca.monitor().ignored_counts();
    counts.find(|(name, _)| *name == "no_register").map_or(0, |(_, count)| count)
}

fn add_vsi() -> AdminCommand {
    let mut context = VsiContext {
        switch: SwitchSection { lan: true, allow_loopback: true, ..SwitchSection::default() },
        vlan: VlanSection { transmit: 3, ..VlanSection::default() },
        ..VsiContext::default()
    };
    // Each of the eight traffic classes has a queue, although all frames use class 0.
    for (first, class) in (0..).zip(&mut context.queues.classes) {
        *class = ClassQueues { first, log2_count: 0 };
    }
    let mut parameters = [0; 16];
    parameters[6] = 2;
    AdminCommand::with_input(Opcode::AddVsi, parameters, &context.emit())
}

fn vsi(driver: &mut Driver) -> u16 {
    let reply = driver.succeed(&add_vsi());
    u16::from_le_bytes([reply.parameters[0], reply.parameters[1]])
}

#[test]
fn vsi_limit_is_enforced() {
    let mut driver = started();
    for number in 1..=768 {
        assert_eq!(vsi(&mut driver), number, "the 384 VSIs in the function capability must not be a limit");
    }
    refused(&mut driver, &add_vsi(), AdminStatus::NoSpace);
}

/// The function's 512 guaranteed and 512 best-effort filters add up to the device's 1,024 filters.
#[test]
fn resource_limits_are_enforced() {
    let allocate = |kind: u8, count: u16| {
        let [low, high] = count.to_le_bytes();
        let mut buffer = vec![kind, 0, low, high];
        buffer.resize(4 + 2 * usize::from(count), 0);
        list(Opcode::AllocateResources, 1, &buffer)
    };
    let mut driver = started();
    for (kind, count, numbered) in [
        (0x03, 1023, true),
        (0x04, 1023, true),
        (0x21, 64, true),
        (0x22, 512, false),
        (0x23, 512, false),
        (0x58, 128, true),
        (0x59, 512, true),
        (0x60, 128, true),
        (0x61, 512, true),
    ] {
        let reply = driver.succeed(&allocate(kind, count));
        if numbered {
            assert_eq!(reply.buffer.last_chunk(), Some(&count.to_le_bytes()), "type {kind:#x}");
        }
        refused(&mut driver, &allocate(kind, 1), AdminStatus::NoSpace);
    }
}

fn add_queue(queue: u16, vsi: u16) -> AdminCommand {
    let context = TxContext {
        ring: RingAddress::new(Iova::new(TRANSMIT_RING)),
        vsi,
        ring_len: RING_LEN,
        ..TxContext::default()
    };
    let element = ElementData { generic_valid: true, ..ElementData::default() };
    let record = AddQueue { queue, teid: Teid::new(0), context, element };
    let group = QueueGroup { parent: Teid::new(8), count: 1 };
    list(Opcode::AddTxQueues, 1, &[&group.emit()[..], &record.emit()].concat())
}

/// Programs and enables a receive queue, as in section 8.4. Returns whether the queue is enabled.
fn enable_receive(driver: &mut Driver, queue: u16) -> bool {
    let ring = u128::from(RECEIVE_RING >> 7) << 32 | u128::from(RING_LEN) << 89;
    let low = ring | 16 << 102 | 1 << 116 | 1 << 117 | 1 << 119;
    let high: u128 = 9728 << 46;
    let context = [low.to_le_bytes(), high.to_le_bytes()].concat();
    for (index, word) in (0..).zip(context.as_chunks().0) {
        driver.write(Register::QrxContext(index, queue), u32::from_le_bytes(*word));
    }
    driver.write(Register::QrxCtrl(queue), 1);
    driver.read(Register::QrxCtrl(queue)) & 4 != 0
}

#[test]
fn nic_queue_pair_limit_is_enforced() {
    let mut driver = small();
    let vsi = vsi(&mut driver);
    let last = QUEUES - 1;
    driver.succeed(&add_queue(last, vsi));
    let frame = [&[2, 0, 0, 0, 0, 9][..], &MAC.0, &[0x08, 0x06], &[0; 46]].concat();
    driver.poke(TRANSMIT_BUFFER, &frame);
    let descriptor = [TRANSMIT_BUFFER, 0b11 << 4 | (frame.len() as u64) << 34].map(u64::to_le_bytes);
    driver.poke(TRANSMIT_RING, descriptor.as_flattened());
    driver.write(Register::QtxCommDbell(last), 1);
    assert_eq!(driver.settle(), [frame]);
    assert!(enable_receive(&mut driver, last));
    assert_eq!(driver.hca.rows::<QueueRow>(0).len(), 2);
    assert_eq!(unknown_registers(&driver), 0);

    refused(&mut driver, &add_queue(QUEUES, vsi), AdminStatus::Invalid);
    assert!(!enable_receive(&mut driver, QUEUES));
    assert_eq!(unknown_registers(&driver), 9, "the eight context words and the control register");
    driver.write(Register::QintRqctl(QUEUES), 1 << 30);
    assert_eq!((driver.read(Register::QintRqctl(QUEUES)), unknown_registers(&driver)), (0, 10));
}

/// Section 6.2: `ice` needs a queue pair for flow director. It uses a vector per queue pair of the interface, and one
/// for other causes.
#[test]
fn default_leaves_queue_pair_for_flow_director() {
    let Options { queues, vectors, .. } = Options::default();
    assert!(queues.get() > vectors.get() - 1);
}

#[test]
fn msix_vector_limit_is_enforced() {
    const ENABLE_AND_TRIGGER: u32 = 0b101;
    let mut driver = small();
    let last = VECTORS - 1;
    driver.write(Register::GlintDynCtl(last), ENABLE_AND_TRIGGER);
    assert_eq!(driver.interrupts(last.into()), 1);
    driver.write(Register::GlintItr(1, last), 25);
    assert_eq!((driver.read(Register::GlintItr(1, last)), unknown_registers(&driver)), (25, 0));
    let absent =
        [Register::GlintDynCtl(VECTORS), Register::GlintItr(1, VECTORS), Register::GlintRate(VECTORS)];
    for (count, register) in (1..).zip(absent) {
        driver.write(register, ENABLE_AND_TRIGGER);
        assert_eq!((driver.read(register), unknown_registers(&driver)), (0, count), "{register}");
    }
}

fn add_elements(parent: u32, count: u16) -> AdminCommand {
    let parent = Teid::new(parent);
    let data = ElementData { kind: ElementKind::Generic, ..ElementData::default() };
    let element = Element { parent, teid: Teid::new(0), data };
    let elements = vec![element.emit(); count.into()];
    list(Opcode::AddElements, 1, &[&Group { parent, count }.emit()[..], elements.as_flattened()].concat())
}

/// Adds children to each parent up to the maximum. The first parent already has the child `child`. Returns all elements
/// of the children's layer.
fn fill_layer(driver: &mut Driver, parents: &[u32], child: u32) -> Vec<u32> {
    let mut layer = vec![child];
    for (number, parent) in parents.iter().enumerate() {
        let count = if number == 0 { SIBLINGS - 1 } else { SIBLINGS };
        let reply = driver.succeed(&add_elements(*parent, count));
        let (elements, _) = reply.buffer[Group::LEN..].as_chunks::<{ Element::LEN }>();
        layer.extend(elements.iter().map(|bytes| Element::parse(bytes).teid.get()));
    }
    layer
}

/// After a reset, elements 1 to 9 form a branch with one element per layer. Element 2 is the traffic class.
#[test]
fn scheduler_element_limit_is_enforced() {
    let mut driver = started();
    let mut layer = vec![2];
    for child in 3..6 {
        layer = fill_layer(&mut driver, &layer, child);
        refused(&mut driver, &add_elements(2, 1), AdminStatus::NoSpace);
    }
    assert_eq!(layer.len(), 512, "a layer must hold 512 elements");
    let last = fill_layer(&mut driver, &layer[..64], 6);
    assert_eq!(last.len(), 512);
    // This parent has no children yet, but its children's layer is full.
    refused(&mut driver, &add_elements(layer[64], 1), AdminStatus::NoSpace);
}

/// The device reports a maximum of 64 elements per command, but only the buffer length is checked.
#[test]
fn reported_command_element_limit_is_not_enforced() {
    let mut driver = started();
    let element = Element { teid: Teid::new(2), ..Element::default() };
    for count in [64, 65] {
        let buffer = vec![element.emit(); count];
        let reply = driver.succeed(&list(Opcode::GetElements, count, buffer.as_flattened()));
        assert_eq!(reply.buffer.len(), count * Element::LEN);
    }
}

#[test]
fn rdma_queue_set_limit_is_enforced() {
    let add = |parent: u32, sets: std::ops::Range<u16>| {
        let group = RdmaSetGroup { parent: Teid::new(parent), count: sets.end - sets.start };
        let set = |set| AddRdmaSet { set, teid: Teid::new(0), element: ElementData::default() }.emit();
        let sets: Vec<_> = sets.map(set).collect();
        list(Opcode::AddRdmaQueueSet, 1, &[&group.emit()[..], sets.as_flattened()].concat())
    };
    let mut driver = started();
    let parents = fill_layer(&mut driver, &[6], 7);
    let parents = fill_layer(&mut driver, &parents, 8);
    // Like Linux, delete the leaf of the default branch, which counts towards its layer's limit.
    let leaf = [&Group { parent: Teid::new(8), count: 1 }.emit()[..], &9_u32.to_le_bytes()].concat();
    driver.succeed(&list(Opcode::DeleteElements, 1, &leaf));
    for (parent, first) in parents.iter().zip((0..).step_by(SIBLINGS.into())) {
        driver.succeed(&add(*parent, first..first + SIBLINGS));
    }
    refused(&mut driver, &add(8, 512..513), AdminStatus::NoSpace);
}

/// The reported limit of 64 profiles includes profile 0, which always exists.
#[test]
fn rate_profile_limit_is_enforced() {
    let profile = RateProfile { level: 3, kind: 0, burst: 1500, ..RateProfile::default() }.emit();
    let mut driver = started();
    let reply = driver.succeed(&list(Opcode::AddRateProfiles, 63, vec![profile; 63].as_flattened()));
    assert_eq!(RateProfile::parse_prefix(&reply.buffer[62 * RateProfile::LEN..]).unwrap().profile, 63);
    refused(&mut driver, &list(Opcode::AddRateProfiles, 1, &profile), AdminStatus::NoSpace);
}

#[test]
fn switch_rule_limit_is_enforced() {
    const RULES: u16 = 8192;
    const PER_COMMAND: u16 = 128;
    let mut driver = started();
    let vsi = vsi(&mut driver);
    let rule = |number: u16| {
        let action: u32 = 0x2_0004 | u32::from(vsi) << 4;
        let [vsi_low, vsi_high] = vsi.to_le_bytes();
        let [high, low] = number.to_be_bytes();
        [
            &[1, 0, 0, 0, 1, 0, vsi_low, vsi_high][..],
            &action.to_le_bytes(),
            &[0, 0, 16, 0],
            &[2, 1, 0, 0, high, low],
            &[2, 0, 0, 0, 0, 0, 0x81, 0, 0, 0],
        ]
        .concat()
    };
    for first in (0..RULES).step_by(PER_COMMAND.into()) {
        let rules: Vec<u8> = (first..first + PER_COMMAND).flat_map(rule).collect();
        driver.succeed(&list(Opcode::AddRules, PER_COMMAND.into(), &rules));
    }
    refused(&mut driver, &list(Opcode::AddRules, 1, &rule(RULES)), AdminStatus::NoSpace);
}

#[test]
fn limits_on_large_actions_are_enforced() {
    let mut driver = started();
    let vsi = vsi(&mut driver);
    let large = |index: u16, count: u16| {
        let header = RuleHeader { kind: RuleKind::LargeAction, status: 0 };
        let action = LargeAction { target: vsi, valid: true, ..LargeAction::default() }.emit();
        let actions = vec![action; count.into()];
        [&header.emit()[..], &RuleList { index, count }.emit(), actions.as_flattened()].concat()
    };
    for range in [0..256, 256..512] {
        let actions: Vec<u8> = range.flat_map(|index| large(index, 1)).collect();
        driver.succeed(&list(Opcode::AddRules, 256, &actions));
    }
    refused(&mut driver, &list(Opcode::AddRules, 1, &large(512, 1)), AdminStatus::NoSpace);
    driver.succeed(&list(Opcode::UpdateRules, 1, &large(511, 4)));
    refused(&mut driver, &list(Opcode::UpdateRules, 1, &large(511, 5)), AdminStatus::Invalid);
}

#[test]
fn rss_keys_and_tables_have_fixed_sizes() {
    let mut driver = started();
    let [low, high] = vsi(&mut driver).to_le_bytes();
    let set = |opcode, selection: u8, len: usize| {
        let mut parameters = [0; 16];
        parameters[..3].copy_from_slice(&[low, high | 0x80, selection]);
        AdminCommand::with_input(opcode, parameters, &vec![0; len])
    };
    // The function's table has 128, 512 or 2,048 entries. Size code 3 is reserved.
    let function = |code: u8| 1 | code << 2;
    for (opcode, selection, last, next_selection, next) in [
        (Opcode::SetRssKey, 0, 52, 0, 51),
        (Opcode::SetRssTable, 0, 64, 0, 63),
        (Opcode::SetRssTable, function(2), 2048, function(2), 2047),
        (Opcode::SetRssTable, function(2), 2048, function(3), 4096),
    ] {
        driver.succeed(&set(opcode, selection, last));
        refused(&mut driver, &set(opcode, next_selection, next), AdminStatus::Invalid);
    }
}
