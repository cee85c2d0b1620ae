//! The command register (HCR). A command is issued by writing seven words in order. The last word is then polled until
//! the command completes.
//!
//! # Spec
//! JingZhao interface, sections 1.2 to 1.4 and 2.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::error::timeout;
use crate::wire::{Failure, FailureKind, HcrBase};

/// Timeout for a command. The public driver (`ib_hgrnic`) waits 60 s, but a working device is much faster.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Offset of the word that starts a command and reports its completion.
const CONTROL: u64 = 0x18;
/// The go bit, at the position specified in the interface document.
const GO: u32 = 1 << 23;
/// The go bit, at the position polled by the public driver.
const GO_DRIVER: u32 = 1 << 15;
/// The E bit: the device also reports the completion through an event.
const EVENT: u32 = 1 << 22;
/// Token that the public driver always writes.
const TOKEN: u16 = 0xffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Op {
    QueryDevLim = 0x003,
    QueryAdapter = 0x006,
    InitHca = 0x007,
    CloseHca = 0x008,
    Sw2HwMpt = 0x00d,
    Hw2SwMpt = 0x00f,
    WriteMtt = 0x011,
    MapEq = 0x012,
    Sw2HwEq = 0x013,
    Hw2SwEq = 0x014,
    Sw2HwCq = 0x016,
    Hw2SwCq = 0x017,
    Rst2Init = 0x019,
    Init2Rtr = 0x01a,
    Rtr2Rts = 0x01b,
    Rts2Rts = 0x01c,
    SqErr2Rts = 0x01d,
    ToErr = 0x01e,
    Rts2Sqd = 0x01f,
    Sqd2Rts = 0x020,
    ToReset = 0x021,
    QueryQp = 0x022,
    Init2Init = 0x02d,
    Sqd2Sqd = 0x038,
    UnmapIcm = 0xff9,
    MapIcm = 0xffa,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) op: u16,
    pub(crate) op_modifier: u8,
    pub(crate) in_modifier: u32,
    pub(crate) in_param: u64,
    pub(crate) out_param: u64,
    /// Token of the completion event, if one is requested.
    pub(crate) event: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) status: u8,
    pub(crate) word: u32,
    /// Number of polls that found the go bit set.
    pub(crate) busy_polls: u32,
}

/// Access to the 32-bit registers of BAR0.
pub(crate) trait Registers {
    fn read(&self, offset: u64) -> Result<u32>;
    fn write(&self, offset: u64, value: u32) -> Result<()>;
}

/// Returns the BAR0 offset of the command register.
pub(crate) const fn base(place: HcrBase) -> u64 {
    match place {
        HcrBase::Zero => 0,
        HcrBase::Document => 0x8_0000,
    }
}

pub(crate) fn execute(registers: &impl Registers, base: u64, command: &Command) -> Result<Outcome> {
    let event = if command.event.is_some() { EVENT } else { 0 };
    let words = [
        high(command.in_param),
        low(command.in_param),
        command.in_modifier,
        high(command.out_param),
        low(command.out_param),
        u32::from(command.event.unwrap_or(TOKEN)) << 16,
        GO | event | u32::from(command.op_modifier) << 12 | u32::from(command.op & 0xfff),
    ];
    for (offset, word) in (base..).step_by(4).zip(words) {
        registers.write(offset, word)?;
    }
    let deadline = Instant::now() + TIMEOUT;
    let mut busy_polls = 0;
    loop {
        let word = registers.read(base + CONTROL)?;
        // Some drivers poll bit 23 and others bit 15, so the two bits must agree.
        ensure!(
            (word & GO != 0) == (word & GO_DRIVER != 0),
            "control word {word:#010x} after command {:#05x}: bits 23 and 15 disagree",
            command.op
        );
        if word & GO == 0 {
            return Ok(Outcome { status: (word >> 24) as u8, word, busy_polls });
        }
        if Instant::now() > deadline {
            return Err(timeout(format!("command {:#05x} did not complete within {TIMEOUT:?}", command.op)));
        }
        busy_polls += 1;
    }
}

pub(crate) fn check(command: &Command, outcome: Outcome) -> Result<()> {
    if outcome.status == 0 {
        return Ok(());
    }
    let Outcome { status, .. } = outcome;
    Err(Failure::new(
        FailureKind::Command { op: command.op, status },
        format!(
            "command {:#05x} (op_modifier {:#x}, in_modifier {:#x}) failed with status {status:#04x} {}",
            command.op,
            command.op_modifier,
            command.in_modifier,
            status_name(status)
        ),
    )
    .into())
}

const fn status_name(status: u8) -> &'static str {
    match status {
        0x00 => "OK",
        0x01 => "INTERNAL_ERR",
        0x02 => "BAD_OP",
        0x03 => "BAD_PARAM",
        0x04 => "BAD_SYS_STATE",
        0x05 => "BAD_RESOURCE",
        0x06 => "RESOURCE_BUSY",
        0x08 => "EXCEED_LIM",
        0x09 => "BAD_RES_STATE",
        0x0a => "BAD_INDEX",
        0x10 => "BAD_QPEE_STATE",
        _ => "unknown",
    }
}

const fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "only the low half is requested")]
const fn low(value: u64) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Records register writes. Reads of the control word return values from a prepared list.
    struct Script {
        written: RefCell<Vec<(u64, [u8; 4])>>,
        control: RefCell<Vec<u32>>,
    }

    impl Registers for Script {
        fn read(&self, _offset: u64) -> Result<u32> {
            Ok(self.control.borrow_mut().remove(0))
        }

        fn write(&self, offset: u64, value: u32) -> Result<()> {
            self.written.borrow_mut().push((offset, value.to_le_bytes()));
            Ok(())
        }
    }

    fn script(control: &[u32]) -> Script {
        Script { written: RefCell::default(), control: RefCell::new(control.to_vec()) }
    }

    #[test]
    fn go_bit_is_written_last() {
        let registers = script(&[0x0080_9ffa, 0x0000_1ffa]);
        let command = Command {
            op: Op::MapIcm as u16,
            op_modifier: 1,
            in_modifier: 3,
            in_param: 0x1_2345_6000,
            out_param: 0x2_0000_1000,
            event: None,
        };
        let outcome = execute(&registers, 0x8_0000, &command).unwrap();
        assert_eq!(outcome, Outcome { status: 0, word: 0x1ffa, busy_polls: 1 });
        assert_eq!(
            *registers.written.borrow(),
            [
                (0x8_0000, [1, 0, 0, 0]),
                (0x8_0004, [0x00, 0x60, 0x45, 0x23]),
                (0x8_0008, [3, 0, 0, 0]),
                (0x8_000c, [2, 0, 0, 0]),
                (0x8_0010, [0x00, 0x10, 0, 0]),
                (0x8_0014, [0, 0, 0xff, 0xff]),
                // Test vector from section 14.1: the word that starts MAP_ICM with op_modifier 1.
                (0x8_0018, [0xfa, 0x1f, 0x80, 0x00]),
            ]
        );
    }

    #[test]
    fn event_request_sets_token_and_e_bit() {
        let registers = script(&[0x31]);
        let command = Command { op: 0x31, event: Some(0x1234), ..Command::default() };
        execute(&registers, 0, &command).unwrap();
        let written = registers.written.borrow();
        assert_eq!(written[5..], [(0x14, [0, 0, 0x34, 0x12]), (0x18, [0x31, 0x00, 0xc0, 0x00])]);
    }

    #[test]
    fn unknown_opcode_returns_bad_opcode_status() {
        let registers = script(&[u32::from_le_bytes([0x55, 0x00, 0x00, 0x02])]);
        let command = Command { op: 0x55, ..Command::default() };
        let outcome = execute(&registers, 0, &command).unwrap();
        let error = check(&command, outcome).unwrap_err();
        let failure = error.downcast_ref::<Failure>().unwrap();
        assert_eq!(failure.kind, FailureKind::Command { op: 0x55, status: 2 });
    }

    #[test]
    fn mismatched_go_bits_are_rejected() {
        let registers = script(&[0x0080_0003]);
        assert!(execute(&registers, 0, &Command { op: 3, ..Command::default() }).is_err());
    }
}
