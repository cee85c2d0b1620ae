//! Replays sessions that were recorded with stock drivers. The response to each command must match the recorded one.
//!
//! Each line of a session is either a function reset or a command. A command has these fields: opcode, flags, buffer
//! length and parameters of the request; return value, length and parameters of the response; the request buffer
//! without trailing zeros; and the recorded part of the response buffer. Some sessions contain only the switch,
//! scheduler and queue commands.

use std::collections::BTreeMap;

use protocol::hca::e810::admin::Opcode;
use protocol::hca::e810::admin::descriptor::Flags;
use protocol::hca::e810::regs::Register;

use super::*;

pub(super) const RESET: &str = "reset";

/// A probe with a package and flow director, and an unload.
pub(super) const WITH_PACKAGE: &str = include_str!("sessions/probe-synth-fd.txt");

pub(super) struct Line<'a> {
    text: &'a str,
    pub(super) command: AdminCommand,
    reply: AdminReply,
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap())
        .collect()
}

pub(super) fn parse(text: &str) -> Line<'_> {
    let mut fields = text.split(' ');
    let mut next = || fields.next().expect("each command has all fields");
    let opcode = u16::from_str_radix(next(), 16).unwrap();
    let flags = Flags::from_bits_retain(u16::from_str_radix(next(), 16).unwrap());
    let len: usize = next().parse().unwrap();
    let parameters = |hex: &str| {
        let mut parameters = [0; 16];
        let given = bytes(hex);
        parameters[..given.len()].copy_from_slice(&given);
        parameters
    };
    let asked = parameters(next());
    let status = next().parse().unwrap();
    let answer_len: usize = next().parse().unwrap();
    let answer = parameters(next());
    let (mut input, mut output) = (Vec::new(), Vec::new());
    for field in fields {
        match field.split_once('=').unwrap() {
            ("in", hex) => input = bytes(hex),
            (_, hex) => output = bytes(hex),
        }
    }
    input.resize(len, 0);
    let command = AdminCommand { opcode, parameters: asked, flags, buffer: input };
    output.truncate(answer_len);
    Line { text, command, reply: AdminReply { status, parameters: answer, buffer: output } }
}

/// Returns whether the response to a command may differ from the recording. The capabilities differ, because the
/// recorded devices had no RDMA.
fn may_differ(opcode: Option<Opcode>) -> bool {
    matches!(opcode, Some(Opcode::FunctionCapabilities | Opcode::DeviceCapabilities))
}

/// Maps recorded numbers to the numbers that this device assigned.
#[derive(Default)]
struct NumberMap {
    /// Assigned resource numbers, by resource type and recorded number.
    resources: BTreeMap<(u8, u16), u16>,
    /// Assigned rule indices, by recorded rule index.
    rules: BTreeMap<u16, u16>,
}

const PRUNE_LIST: u8 = 4;

impl NumberMap {
    /// Replaces the recorded numbers in a command or an expected response with this device's numbers.
    fn translate(&self, opcode: Option<Opcode>, buffer: &mut [u8]) {
        match opcode {
            Some(Opcode::FreeResources) => {
                let kind = buffer[0] & 0x7f;
                for id in buffer[4..].as_chunks_mut::<2>().0 {
                    rename(id, |id| self.resources.get(&(kind, id)).copied());
                }
            }
            Some(Opcode::AddRules | Opcode::UpdateRules | Opcode::RemoveRules) => {
                each_rule(buffer, |kind, rule| match kind {
                    0 | 1 => {
                        let action = u32::from_le_bytes(*rule[8..].first_chunk().unwrap());
                        let list = self.resources.get(&(PRUNE_LIST, (action >> 4 & 0x3ff) as u16));
                        if let Some(list) = list.filter(|_| action & 1 << 14 != 0) {
                            let action = action & !(0x3ff << 4) | u32::from(*list) << 4;
                            rule[8..12].copy_from_slice(&action.to_le_bytes());
                        }
                        rename(rule[12..].first_chunk_mut().unwrap(), |index| {
                            self.rules.get(&index).copied()
                        });
                    }
                    _ => rename(rule[4..].first_chunk_mut().unwrap(), |list| {
                        self.resources.get(&(PRUNE_LIST, list)).copied()
                    }),
                });
            }
            _ => {}
        }
    }

    /// Records the numbers that this device assigned in `reply`.
    fn learn(&mut self, opcode: Option<Opcode>, recorded: &[u8], reply: &[u8]) {
        match opcode {
            Some(Opcode::AllocateResources) => {
                let kind = recorded[0] & 0x7f;
                let ids = |bytes: &[u8]| {
                    bytes[4..].as_chunks().0.iter().map(|id| u16::from_le_bytes(*id)).collect::<Vec<_>>()
                };
                let pairs = ids(recorded).into_iter().zip(ids(reply));
                self.resources.extend(pairs.map(|(theirs, ours)| ((kind, theirs), ours)));
            }
            Some(Opcode::AddRules) => {
                let (mut recorded, mut reply) = (recorded.to_vec(), reply.to_vec());
                let index = |rule: &[u8]| u16::from_le_bytes([rule[12], rule[13]]);
                let (mut theirs, mut ours) = (Vec::new(), Vec::new());
                each_rule(&mut recorded, |kind, rule| theirs.extend((kind < 2).then(|| index(rule))));
                each_rule(&mut reply, |kind, rule| ours.extend((kind < 2).then(|| index(rule))));
                self.rules.extend(theirs.into_iter().zip(ours));
            }
            _ => {}
        }
    }
}

fn rename(number: &mut [u8; 2], find: impl FnOnce(u16) -> Option<u16>) {
    if let Some(other) = find(u16::from_le_bytes(*number)) {
        *number = other.to_le_bytes();
    }
}

/// Calls `visit` for each rule. A lookup rule occupies 16 bytes plus the packet header, and a VSI list occupies 8 bytes
/// plus the members (section 5.8).
fn each_rule(mut rest: &mut [u8], mut visit: impl FnMut(u8, &mut [u8])) {
    while let Some(&kind) = rest.first() {
        let len = match kind {
            0 | 1 => (16 + usize::from(rest[14])).next_multiple_of(2),
            _ => (8 + 2 * usize::from(rest[6])).next_multiple_of(2),
        };
        let (rule, after) = rest.split_at_mut(len.min(rest.len()));
        visit(kind, rule);
        rest = after;
    }
}

fn replay(session: &str) {
    let mut driver = started();
    driver.bus.hca.set_strict(true);
    let mut given = NumberMap::default();
    for (number, text) in session.lines().enumerate() {
        if text == RESET {
            driver.write(Register::PfgenCtrl, 1);
            driver.open_admin_queue();
            given = NumberMap::default();
            continue;
        }
        let mut line = parse(text);
        let place = format!("line {}: {}", number + 1, line.text);
        let opcode = Opcode::from_code(line.command.opcode);
        given.translate(opcode, &mut line.command.buffer);
        let reply = driver.execute(&line.command);
        assert_eq!(reply.status, line.reply.status, "{place}");
        // The recorded device claimed to support wake on LAN in word 19h of its flash.
        let is_wake_on_lan = opcode == Some(Opcode::ReadNvm) && line.command.parameters[..3] == [0x32, 0, 0];
        if may_differ(opcode) || is_wake_on_lan {
            continue;
        }
        let parameters = match opcode {
            // The recorded device miscounted the remaining VSIs, so compare only the VSI number.
            Some(Opcode::AddVsi | Opcode::UpdateVsi | Opcode::FreeVsi) => 4,
            // Skip the number of elements. The recorded device had no default VSI and returned only its port.
            Some(Opcode::GetSwitchConfig) => 4,
            _ if line.command.flags.contains(Flags::BUFFER) => 8,
            _ => 16,
        };
        assert_eq!(reply.parameters[..parameters], line.reply.parameters[..parameters], "{place}");
        given.learn(opcode, &line.reply.buffer, &reply.buffer);
        given.translate(opcode, &mut line.reply.buffer);
        if opcode == Some(Opcode::AllocateResources) {
            continue;
        }
        let recorded = line.reply.buffer.len();
        assert_eq!(reply.buffer[..recorded], line.reply.buffer, "{place}");
    }
    let violations: Vec<_> = driver.bus.hca.monitor().violations().collect();
    assert_eq!(violations, [], "stock drivers must not violate any rule");
}

/// Linux 7.3: probe, VLANs, link flaps, unload, second probe.
#[test]
fn linux_7_3_session_matches_recording() {
    replay(include_str!("sessions/run73-all-switch.txt"));
}

/// Linux 6.12: the same sequence as in the Linux 7.3 session.
#[test]
fn linux_6_12_session_matches_recording() {
    replay(include_str!("sessions/run612-all-switch.txt"));
}

/// Linux 7.3 with two queues and VLAN devices.
#[test]
fn vlan_session_matches_recording() {
    replay(include_str!("sessions/run73-vlan-switch.txt"));
}

#[test]
fn session_without_package_matches_recording() {
    replay(include_str!("sessions/safe-mode.txt"));
}

#[test]
fn session_with_package_matches_recording() {
    replay(WITH_PACKAGE);
}
