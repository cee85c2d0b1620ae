//! Command slots and mailboxes, including a hostile driver's invalid ones (mlx5 interface, section 3.1).

use drivers::mlx5::{Layout, link};
use protocol::hca::mlx5::capability::Query;
use protocol::hca::mlx5::command::{Delivery, MAX_OUTPUT, Slot};

use super::*;

const QUERY: Command<'_> = Command::QueryHcaCap(Query { cap_type: 0, current: true });

/// Length of the output of [`QUERY`] in bytes.
const LONG: usize = 4112;

fn enabled() -> Driver {
    let mut driver = powered_on();
    driver.ok(&Command::EnableHca(Function { function: 0 }));
    driver
}

/// Executes the command in slot 0. Returns the delivery status in the slot and the syndrome in the output.
fn submit(driver: &mut Driver) -> (Option<Delivery>, u32) {
    driver.submit(1);
    let byte = driver.owner_byte(0);
    assert_eq!(byte & 1, 0, "the driver owns the slot again");
    let header = OutputHeader::parse(&output(&driver.output(0, 16)));
    (Delivery::from_code(byte >> 1), header.syndrome)
}

fn failed(delivery: Delivery, check: Check) -> (Option<Delivery>, u32) {
    (Some(delivery), check.syndrome())
}

/// Section 20, M-31: the driver may request an output that is shorter than the output header.
#[test]
fn header_is_truncated_to_requested_output_length() {
    let mut driver = powered_on();
    let enable = Command::EnableHca(Function { function: 0 }).emit(0);
    assert_eq!(driver.execute(&enable, 12), [0; 12]);
    assert!(driver.execute(&enable, 0).is_empty());
}

#[test]
fn output_has_requested_length_and_zero_padding() {
    let mut driver = enabled();
    let output = driver.execute(&QUERY.emit(0), LONG);
    assert_eq!((output.len(), &output[LONG - 16..]), (LONG, &[0; 16][..]));
    let longer = driver.execute(&Command::Nop(BARE).emit(0), 40);
    assert_eq!(longer, [0; 40]);
    let after = driver.peek(Layout::LARGE.output(0, 0) + 24, 4);
    assert_eq!(after, [0xa5; 4], "bytes after the output are unchanged");
}

#[test]
fn doorbell_executes_only_selected_slots() {
    let mut driver = enabled();
    driver.post(0, &QUERY.emit(0), LONG);
    driver.post(30, &Command::QueryIssi(BARE).emit(0), 112);
    driver.post(31, &Command::Nop(BARE).emit(0), 16);
    driver.submit(1 << 30 | 1);
    assert_eq!([0, 30, 31].map(|slot| driver.owner_byte(slot)), [0, 0, 1]);
    assert_eq!(driver.output(30, 112)[0x6f], 2);
    driver.submit(1 << 31);
    assert_eq!(driver.owner_byte(31), 0);
}

/// A driver can post 1 GiB of input with one doorbell. In one turn of its event loop, the device executes only a part of
/// it.
#[test]
fn long_commands_execute_in_several_turns() {
    let mut driver = enabled();
    let long = [&driver::bare(Opcode::Nop.code())[..], &vec![0; 4 << 20]].concat();
    for slot in [0, 10, 20] {
        driver.post(slot, &long, 16);
    }
    driver.post(5, &Command::Nop(BARE).emit(0), 16);
    driver.submit(1 | 1 << 10 | 1 << 20);
    driver.submit(1 << 5);
    let owned = |driver: &mut Driver| [0, 10, 20, 5].map(|slot| driver.owner_byte(slot) & 1);
    assert_eq!(owned(&mut driver), [0, 1, 1, 1], "commands execute in the order of their doorbells");
    assert!(driver.hca.drain().other, "the device must not sleep");
    assert_eq!(owned(&mut driver), [0, 0, 1, 1]);
    driver.settle();
    assert_eq!(owned(&mut driver), [0; 4]);
    assert_eq!(driver.output(20, 16), [0; 16]);
}

/// A driver that writes the command queue address no longer waits for its earlier commands.
#[test]
fn restart_drops_pending_commands() {
    let mut driver = enabled();
    let long = [&driver::bare(Opcode::Nop.code())[..], &vec![0; 4 << 20]].concat();
    driver.post(0, &long, 16);
    driver.post(5, &Command::Nop(BARE).emit(0), 16);
    driver.submit(1 | 1 << 5);
    driver.start();
    driver.settle();
    assert_eq!([0, 5].map(|slot| driver.owner_byte(slot) & 1), [0, 1]);
}

#[test]
fn slot_owned_by_driver_is_ignored() {
    let mut driver = enabled();
    driver.post(3, &Command::Nop(BARE).emit(0), 16);
    let mut slot = Slot::parse(&output(&driver.peek(Layout::LARGE.slot(3), Slot::LEN)));
    slot.device_owned = false;
    driver.poke(Layout::LARGE.slot(3), &slot.emit());
    driver.submit(1 << 3);
    assert_eq!(driver.peek(Layout::LARGE.slot(3), Slot::LEN), slot.emit());
    let ignored: Vec<_> = driver.hca.monitor().ignored_counts().collect();
    assert_eq!(ignored, [("slot_not_owned", 1)]);
}

#[test]
fn doorbell_without_mapped_command_queue_is_ignored() {
    let mut driver = enabled();
    driver.write(driver::QUEUE_HIGH, 1);
    driver.submit(u32::MAX);
    let ignored: Vec<_> = driver.hca.monitor().ignored_counts().collect();
    assert_eq!(ignored, [("no_command_queue", 32)]);
}

#[test]
fn invalid_slots_are_rejected() {
    let mut driver = enabled();
    let mut of = |change: fn(&mut Slot)| {
        driver.post(0, &Command::Nop(BARE).emit(0), 16);
        let mut slot = Slot::parse(&output(&driver.peek(Layout::LARGE.slot(0), Slot::LEN)));
        change(&mut slot);
        driver.poke(Layout::LARGE.slot(0), &slot.emit());
        submit(&mut driver)
    };
    assert_eq!(of(|slot| slot.kind = 6), failed(Delivery::Kind, Check::SlotKind));
    assert_eq!(of(|slot| slot.input_len = 15), failed(Delivery::Ok, Check::InputLength));
    assert_eq!(of(|slot| slot.input_len = u32::MAX), failed(Delivery::Ok, Check::InputLength));
    assert_eq!(
        of(|slot| slot.output_len = u32::try_from(MAX_OUTPUT).unwrap() + 1),
        failed(Delivery::Ok, Check::OutputLength)
    );
    assert_eq!(of(|slot| slot.input_len = 17), failed(Delivery::InputPointer, Check::InputBlock));
    assert_eq!(of(|slot| slot.output_len = 17), failed(Delivery::OutputPointer, Check::OutputBlock));
    let misaligned = of(|slot| (slot.output_len, slot.output_block) = (17, Iova::new(0x100_0200)));
    assert_eq!(misaligned, failed(Delivery::OutputPointer, Check::OutputBlock));
    let unmapped = of(|slot| (slot.input_len, slot.input_block) = (17, Iova::new(!0x3ff)));
    assert_eq!(unmapped, failed(Delivery::InputPointer, Check::InputBlock));
}

/// When a circular chain returns to a block, the block's number does not match its new position in the chain.
#[test]
fn circular_mailbox_chain_causes_block_number_error() {
    let mut driver = enabled();
    let set = [&driver::bare(Opcode::SetHcaCap.code())[..], &[0; 4096]].concat();
    driver.post(0, &set, 16);
    driver.poke(link(Layout::LARGE.input(0, 2)), &Layout::LARGE.input(0, 0).to_be_bytes());
    assert_eq!(submit(&mut driver), failed(Delivery::BlockNumber, Check::BlockNumber));
    driver.post(0, &QUERY.emit(0), LONG);
    driver.poke(link(Layout::LARGE.output(0, 0)), &Layout::LARGE.output(0, 0).to_be_bytes());
    assert_eq!(submit(&mut driver), failed(Delivery::BlockNumber, Check::BlockNumber));
}

#[test]
fn short_mailbox_chain_is_rejected() {
    let mut driver = enabled();
    driver.post(0, &QUERY.emit(0), LONG);
    driver.poke(link(Layout::LARGE.output(0, 3)), &[0; 8]);
    assert_eq!(submit(&mut driver), failed(Delivery::OutputPointer, Check::OutputBlock));
    // The link in the last block is not followed.
    driver.post(0, &QUERY.emit(0), LONG);
    driver.poke(link(Layout::LARGE.output(0, 7)), &1_u64.to_be_bytes());
    assert_eq!(submit(&mut driver), (Some(Delivery::Ok), 0));
}

#[test]
fn wrong_mailbox_token_causes_token_error() {
    let mut driver = enabled();
    driver.post(0, &QUERY.emit(0), LONG);
    driver.poke(Layout::LARGE.output(0, 1) + 0x23d, &[0xee]);
    assert_eq!(submit(&mut driver), failed(Delivery::Token, Check::BlockToken));
    let set = [&driver::bare(Opcode::SetHcaCap.code())[..], &[0; 4096]].concat();
    driver.post(0, &set, 16);
    driver.poke(Layout::LARGE.input(0, 7) + 0x23d, &[0xee]);
    assert_eq!(submit(&mut driver), failed(Delivery::Token, Check::BlockToken));
}

#[test]
fn short_inputs_are_rejected() {
    let mut driver = initialised();
    for opcode in Command::OPCODES {
        let output = driver.execute(&driver::bare(opcode.code()), 16);
        let header = OutputHeader::parse(&self::output(&output));
        // These commands need an input that is longer than a header.
        let short =
            [Opcode::CreateEq, Opcode::CreateQp, Opcode::CreateMkey, Opcode::MadIfc, Opcode::ModifyRmp];
        if short.contains(opcode) {
            assert_eq!((header.status, header.syndrome), (0x50, Check::ShortInput.syndrome()));
        }
        if *opcode == Opcode::TeardownHca || *opcode == Opcode::DisableHca || *opcode == Opcode::EnableHca {
            driver = initialised();
        }
    }
}

#[test]
fn command_from_unknown_user_context_is_rejected() {
    let mut driver = initialised();
    let output = driver.execute(&Command::AllocPd(BARE).emit(7), 16);
    let header = OutputHeader::parse(&self::output(&output));
    assert_eq!((header.status, header.syndrome), (5, Check::UserContext.syndrome()));
}
