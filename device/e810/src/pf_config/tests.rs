//! Executes random admin commands, such as a misbehaving driver might send.

use protocol::hca::e810::admin::Opcode;
use protocol::hca::e810::admin::scheduler::{ElementData, Teid};
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::admin::{Command, scheduler, switch};

const SEEDS: std::ops::Range<u64> = 0..12;
const COMMANDS: usize = 4000;

const OPCODES: [Opcode; 26] = [
    Opcode::GetSwitchConfig,
    Opcode::AllocateResources,
    Opcode::FreeResources,
    Opcode::AddVsi,
    Opcode::UpdateVsi,
    Opcode::FreeVsi,
    Opcode::AddRules,
    Opcode::AddRules,
    Opcode::UpdateRules,
    Opcode::RemoveRules,
    Opcode::GetDefaultTopology,
    Opcode::AddElements,
    Opcode::AddElements,
    Opcode::ConfigureElements,
    Opcode::GetElements,
    Opcode::MoveElements,
    Opcode::SuspendElements,
    Opcode::ResumeElements,
    Opcode::QueryPortEts,
    Opcode::DeleteElements,
    Opcode::AddRateProfiles,
    Opcode::RemoveRateProfiles,
    Opcode::SetRssKey,
    Opcode::SetRssTable,
    Opcode::GetRssKey,
    Opcode::GetRssTable,
];

/// Returns a number below `likely` with a probability of 15/16, and any number otherwise.
fn number(rng: &mut impl Rng, likely: u32) -> u32 {
    if rng.random_ratio(15, 16) { rng.random_range(0..likely) } else { rng.random() }
}

fn words(rng: &mut impl Rng, likely: u32, count: usize) -> Vec<u8> {
    (0..count).flat_map(|_| number(rng, likely).to_le_bytes()).collect()
}

/// Returns a random buffer, usually with the layout that the command requires.
fn buffer(rng: &mut impl Rng, opcode: Opcode) -> Vec<u8> {
    let low = |value: u32| value.to_le_bytes()[0];
    let shaped = match opcode {
        Opcode::AllocateResources | Opcode::FreeResources => {
            let kinds = [3, 4, 0x21, 0x22, 0x23, 0x58, 0x59, 0x60, 0x61, number(rng, 0x80)];
            let kind = low(*kinds.choose(rng).unwrap());
            [&[kind, 0, low(number(rng, 4)), 0][..], &words(rng, 0x4_0004, 2)].concat()
        }
        Opcode::AddVsi | Opcode::UpdateVsi => {
            let mut context: Vec<u8> = (0..128).map(|_| rng.random()).collect();
            context[0..2].fill(0xff);
            context
        }
        Opcode::AddElements => {
            let parent = number(rng, 40);
            let element = |rng: &mut _| {
                let data = ElementData { kind: low(2 + number(rng, 3)).into(), ..ElementData::default() };
                [&parent.to_le_bytes()[..], &[0; 4], &data.emit()].concat()
            };
            let elements = [element(rng), element(rng)].concat();
            [&parent.to_le_bytes()[..], &number(rng, 3).to_le_bytes(), &elements].concat()
        }
        Opcode::AddRules | Opcode::UpdateRules | Opcode::RemoveRules => {
            let kind = low(number(rng, 8));
            let action = *[0x2_0014, 0x2_001c, 0x2_4014, 0x6_0000, 0x1_c01a, 0x4_0012].choose(rng).unwrap();
            let action = action ^ number(rng, 8) << 4;
            let recipe = low(number(rng, 10));
            let lookup =
                [&[kind, 0, 0, 0, recipe, 0, low(number(rng, 3)), 0][..], &action.to_le_bytes()].concat();
            let header = [low(number(rng, 4)), 0, 0, 0, 0, low(number(rng, 4))];
            let tag = [0x81, 0, 0, low(number(rng, 4))];
            let index = [low(number(rng, 60)), 0, 16, 0];
            let list = [kind, 0, 0, 0, low(number(rng, 4)), 0, low(number(rng, 3)), 0, 1, 0, 2, 0];
            if kind < 2 { [&lookup[..], &index, &header, &[2; 6], &tag].concat() } else { list.to_vec() }
        }
        Opcode::SetRssTable | Opcode::GetRssTable => vec![rng.random(); 2048],
        Opcode::GetDefaultTopology => vec![0; 4096],
        _ => {
            let count = rng.random_range(0..40);
            words(rng, 60, count)
        }
    };
    let cut = if rng.random_ratio(15, 16) { shaped.len() } else { rng.random_range(0..=shaped.len()) };
    shaped[..cut].to_vec()
}

fn parameters(rng: &mut impl Rng, opcode: Opcode) -> [u8; 16] {
    let mut parameters = [0; 16];
    match opcode {
        Opcode::AddVsi => parameters[6] = 2,
        Opcode::UpdateVsi | Opcode::FreeVsi | Opcode::SetRssKey | Opcode::GetRssKey => {
            parameters[..2].copy_from_slice(&[number(rng, 5).to_le_bytes()[0], 0x80]);
        }
        Opcode::SetRssTable | Opcode::GetRssTable => {
            parameters[..3].copy_from_slice(&[1, 0x80, number(rng, 16).to_le_bytes()[0]]);
        }
        _ => parameters[0] = number(rng, 3).to_le_bytes()[0],
    }
    if rng.random_ratio(1, 32) {
        rng.fill(&mut parameters);
    }
    parameters
}

fn layers(rng: &mut impl Rng) -> Layers {
    let mut byte = |likely| number(rng, likely).to_le_bytes()[0];
    let (dst, src) = ([byte(4), 0, 0, 0, 0, byte(4)], [byte(4), 0, 0, 0, 0, byte(4)]);
    let tag = [0x81, 0, 0, byte(4)];
    let ether_type = [0x08, byte(2)];
    Layers::parse(&[&dst[..], &src, &tag, &ether_type, &[0x45; 40]].concat()).unwrap()
}

#[test]
fn random_commands_keep_scheduler_and_switch_consistent() {
    for seed in SEEDS {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut device = PfConfig::default();
        let mut done = 0;
        for _ in 0..COMMANDS {
            let opcode = *OPCODES.choose(&mut rng).unwrap();
            let buffer = buffer(&mut rng, opcode);
            let len = buffer.len();
            let mut command = Command::of(parameters(&mut rng, opcode), buffer);
            let outcome = scheduler::dispatch(&mut device.scheduler, opcode, &mut command)
                .or_else(|| switch::dispatch(&mut device, opcode, &mut command));
            done += usize::from(outcome.expect("the dispatchers handle every opcode in the list").is_ok());
            assert!(command.buffer().len() == len, "seed {seed}");

            let parent = Teid::new(number(&mut rng, 60));
            if let Ok(leaf) = device.scheduler.add_leaf(parent, ElementData::default())
                && rng.random()
            {
                device.scheduler.remove_leaf(leaf);
            }
            device.scheduler.assert_is_a_tree();
            let frame = layers(&mut rng);
            let vsi = VsiNumber::new(rng.random_range(0..4));
            let to =
                *[Destination::Rules, Destination::Wire, Destination::Vsi(vsi)].choose(&mut rng).unwrap();
            let route = device.transmit(vsi, &frame, to);
            let receivers = device.receive(&frame);
            for receiver in receivers.iter().chain(route.iter().flat_map(|route| route.vsis.iter())) {
                let vsi = device.vsis.get(receiver).expect("frames go only to existing VSIs");
                device.vsis.steer(receiver, vsi, &frame);
            }
        }
        // If too few commands succeeded, the test would mostly cover rejections.
        assert!(done > COMMANDS / 4, "seed {seed}: only {done} commands succeeded");
    }
}
