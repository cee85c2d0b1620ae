//! Tests the device with a driver that writes random commands, mailboxes and doorbells. The device must complete every
//! command and stay usable.

pub(super) mod ethernet;

use drivers::mlx5::Layout;

use super::user_contexts::world::World;
use super::*;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).unwrap()
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_be_bytes();
            chunk.iter_mut().zip(word).for_each(|(to, from)| *to = from);
        }
    }
}

/// Returns a driver with a few objects, so that some of the random object numbers are valid.
fn populated() -> Driver {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::COMMAND, 0x40_0000);
    for _ in 0..4 {
        driver.alloc_pd();
        driver.create_cq(uar, eqn, 0x41_0000);
    }
    driver
}

/// Returns a random command input. Most words are zero or small, so that many inputs get past the first checks.
fn input(random: &mut Random) -> Vec<u8> {
    let opcode = Command::OPCODES[random.below(Command::OPCODES.len())];
    let mut input = vec![0; 16 + random.below(72) * 16];
    for word in input.as_chunks_mut::<4>().0 {
        let number = random.next();
        let high = u32::try_from(number >> 32).unwrap();
        let value = match number % 8 {
            0 => high,
            1 => high & 0xff,
            2 => 0x40 + (high & 7),
            3 => 1 << (high & 31),
            _ => 0,
        };
        word.copy_from_slice(&value.to_be_bytes());
    }
    input[..2].copy_from_slice(&opcode.code().to_be_bytes());
    input[2..4].fill(0);
    input
}

#[test]
fn random_commands_complete() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut driver = populated();
    for round in 0..20_000 {
        if round % 500 == 0 {
            driver = populated();
        }
        let len = random.below(600);
        driver.post(0, &input(&mut random), len);
        driver.submit(1);
        assert_eq!(driver.owner_byte(0) & 1, 0, "round {round}");
    }
    driver.ok(&Command::EnableHca(Function { function: 0 }));
    driver.ok(&Command::InitHca(InitHca::default()));
}

/// Like [`random_commands_complete`], but most commands come from three user contexts, each with its own objects.
#[test]
fn random_user_commands_complete() {
    let mut random = Random(0x0dd0_57ab_1e5e_ed01);
    let mut driver = with_users();
    for round in 0..20_000 {
        if round % 500 == 0 {
            driver = with_users();
        }
        let mut input = input(&mut random);
        let user = [0, 1, 2, 3, 3, 4, 0xffff][random.below(7)];
        input[2..4].copy_from_slice(&u16::to_be_bytes(user));
        driver.post(0, &input, random.below(600));
        driver.submit(1);
        assert_eq!(driver.owner_byte(0) & 1, 0, "round {round}");
    }
    driver.ok(&Command::EnableHca(Function { function: 0 }));
    driver.ok(&Command::InitHca(InitHca::default()));
}

/// Random commands from one user do not change another user's objects.
#[test]
fn random_commands_do_not_affect_other_users() {
    let mut random = Random(0x5eed_0f0e_75ca_9a11);
    for round in 0..20 {
        let mut driver = with_users();
        let before = user_objects(&mut driver, 1);
        for _ in 0..500 {
            let mut input = input(&mut random);
            input[2..4].copy_from_slice(&[0, 2]);
            driver.execute(&input, random.below(600));
        }
        assert_eq!(user_objects(&mut driver, 1), before, "round {round}");
    }
}

fn with_users() -> Driver {
    let mut driver = initialised_with_ethernet();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::empty(), 0x40_0000);
    for _ in 0..3 {
        World::new(&mut driver, eqn);
    }
    driver
}

/// Returns the outputs of all queries for a user's objects, in ascending opcode order.
fn user_objects(driver: &mut Driver, user: u16) -> Vec<Vec<u8>> {
    let mut outputs = Vec::new();
    for opcode in Command::OPCODES.iter().filter(|opcode| opcode.name().starts_with("QUERY")) {
        for number in (0..4).chain(0x10..0x13).chain(0x40..0x43).chain(0x80..0x83).chain(0x4000..0x4006) {
            let mut input = [0; 0x40];
            input[..2].copy_from_slice(&opcode.code().to_be_bytes());
            input[2..4].copy_from_slice(&user.to_be_bytes());
            input[8..12].copy_from_slice(&u32::to_be_bytes(number));
            input[0x14..0x18].copy_from_slice(&u32::to_be_bytes(number));
            input[0x1c..0x20].copy_from_slice(&u32::to_be_bytes(number));
            outputs.push(driver.execute(&input, 0x200));
        }
    }
    outputs
}

#[test]
fn device_works_after_random_mailbox_chains() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut driver = populated();
    let set = [&driver::bare(Opcode::SetHcaCap.code())[..], &[0; 4096]].concat();
    for _ in 0..5_000 {
        driver.post(0, &set, 4112);
        for _ in 0..=random.below(3) {
            let block = random.below(8);
            let block = if random.next().is_multiple_of(2) {
                Layout::LARGE.input(0, block)
            } else {
                Layout::LARGE.output(0, block)
            };
            let mut tail = [0; 16];
            let len = random.below(16);
            random.fill(&mut tail[..len]);
            driver.poke(block + 0x230, &tail);
        }
        let mut fields = [0; 4];
        random.fill(&mut fields);
        let place = [4, 8, 12, 0x30, 0x34, 0x38, 0x3c][random.below(7)];
        driver.poke(Layout::LARGE.slot(0) + place, &fields);
        driver.submit(1);
    }
    driver.ok(&Command::Nop(BARE));
}

#[test]
fn device_can_restart_after_random_bar_stores() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut driver = populated();
    for _ in 0..20_000 {
        let offset = match random.next() % 4 {
            0 => random.next() % 0x2000,
            1 => random.next() % (32 << 20),
            _ => (16 << 12) + random.next() % 4096,
        };
        let len = [1, 2, 4, 8][random.below(4)];
        let offset = offset / len as u64 * len as u64;
        let mut data = [0; 8];
        random.fill(&mut data);
        driver.store(card::vfio::Bar::Bar0, offset, &data[..len]);
    }
    // The random stores may have changed the command queue address, so set it again.
    driver.start();
    driver.ok(&Command::EnableHca(Function { function: 0 }));
}
