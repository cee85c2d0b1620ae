//! Replays the sessions of a guest with an Ethernet port.
//!
//! Commands that this device does not support yet are replaced by NOP, which raises the same event. A test lists these
//! commands.

use std::collections::BTreeSet;

use protocol::hca::mlx5::access_register::{AccessReg, PortRegister};
use protocol::hca::mlx5::nic_vport::{NicVportContext, QueriedNicVport};
use protocol::ids::MacAddr;

use super::*;

/// The traces in the order in which they were recorded.
const TRACES: [&str; 2] = [
    include_str!("../../../../../protocol/tests/data/mlx5/eth-1-core-and-netdev-probe.txt"),
    include_str!("../../../../../protocol/tests/data/mlx5/eth-2-mlx5_ib-probe.txt"),
];

const MAC: MacAddr = MacAddr([2, 0, 0, 0x55, 0, 1]);

/// Returns the output expected from this device: the recorded output, adjusted for the known differences between the
/// devices.
fn expected_of_ethernet(heading: &str, command: &Command<'_>, recorded: &[u8], ours: &[u8]) -> Vec<u8> {
    let mut output = expected(heading, command, recorded, ours);
    let take_own = |output: &mut [u8], first: usize, len: usize| {
        output[first..first + len].copy_from_slice(&ours[first..first + len]);
    };
    match command {
        Command::QueryHcaCap(query) => match query.cap_type() {
            // This device has a larger GID table.
            Some(CapType::Roce) => output[0x10 + 0x1e..0x10 + 0x20].copy_from_slice(&[0, 128]),
            // This device also matches source MACs.
            Some(CapType::FlowTable) => output[0x10 + 0x60] |= 0x40,
            _ => {}
        },
        Command::QueryNicVportContext(_) => {
            let read = |bytes: &[u8]| QueriedNicVport::parse(&self::output(bytes)).context;
            let (theirs, ours) = (read(recorded), read(ours));
            let context = NicVportContext {
                system_guid: ours.system_guid,
                port_guid: ours.port_guid,
                node_guid: ours.node_guid,
                ..theirs
            };
            output = QueriedNicVport { context }.emit().to_vec();
        }
        // The recorded device returned a constant for each counter.
        Command::QueryVportCounter(_) => output[OutputHeader::LEN..].fill(0),
        Command::AccessReg(access, _) => match PortRegister::from_code(access.register) {
            Some(PortRegister::NodeDescription) => take_own(&mut output, AccessReg::LEN, 64),
            // The recorded device ignored writes of the MTU and of the state of the port.
            Some(PortRegister::Pmtu) => take_own(&mut output, AccessReg::LEN + 8, 8),
            Some(PortRegister::Paos) => take_own(&mut output, AccessReg::LEN + 2, 2),
            // The recorded device reported the mode of a link that the driver had brought down.
            Some(PortRegister::Ptys) => take_own(&mut output, AccessReg::LEN + 0x24, 4),
            // The recorded device returned the offset of each counter as its value.
            Some(PortRegister::Ppcnt) => output[AccessReg::LEN + 8..].fill(0),
            _ => {}
        },
        _ => {}
    }
    output
}

impl Session<'_> {
    fn ethernet_command(&mut self, heading: &str, by_event: bool, input: &[u8], recorded: &[u8]) -> bool {
        let command = Command::parse(input).ok();
        let is_supported = command.is_some();
        let command = command.unwrap_or(Command::Nop(BARE));
        self.queues.prepare(self.driver, &command);
        let ours = if is_supported {
            let ours = self.driver.execute(input, recorded.len());
            assert_eq!(ours, expected_of_ethernet(heading, &command, recorded, &ours), "{heading}");
            ours
        } else {
            self.driver.ok(&command)
        };
        self.queues.apply(self.driver, &command, &ours);
        if by_event {
            let (event, owner) = self.queues.event(self.driver, self.events);
            assert_eq!((event, owner), (Eqe::Command(1), self.events & 256 != 0), "{heading}");
            self.events += 1;
        }
        is_supported
    }
}

/// Replays all traces. Returns the number of commands in each trace, and the names of the unsupported commands.
fn replay(driver: &mut Driver) -> (Vec<usize>, BTreeSet<&'static str>) {
    let mut session = Session { driver, queues: Queues::default(), events: 0, doorbells: 0 };
    let (mut counts, mut unsupported) = (Vec::new(), BTreeSet::new());
    for trace in TRACES {
        let mut count = 0;
        for Step { action, entries } in steps(trace) {
            match action {
                Action::Command { heading, by_event, input, output } => {
                    count += 1;
                    if !session.ethernet_command(heading, by_event, &input, &output) {
                        unsupported.insert(heading.split(' ').nth(1).unwrap());
                    }
                    assert!(entries.is_empty(), "{heading}");
                }
                Action::Doorbell { page, offset, bytes } => session.doorbell(page, offset, &bytes, &entries),
            }
        }
        counts.push(count);
    }
    (counts, unsupported)
}

fn recorded_with_ethernet() -> Driver {
    let identity = Identity { mac: MAC, ..Identity::from_lid(Lid::new(LID)) };
    powered_on_as(identity, Options { port: Port::Ethernet, ..recorded() })
}

#[test]
fn ethernet_outputs_match_recording() {
    let mut driver = recorded_with_ethernet();
    let (counts, unsupported) = replay(&mut driver);
    assert_eq!(counts, [120, 34]);
    let pending = [
        "CREATE_FLOW_GROUP",
        "CREATE_FLOW_TABLE",
        "CREATE_RQ",
        "CREATE_RQT",
        "CREATE_TIR",
        "CREATE_TIS",
        "MODIFY_RQ",
        "SET_FLOW_TABLE_ENTRY",
        "SET_FLOW_TABLE_ROOT",
    ];
    assert!(unsupported.iter().all(|name| pending.contains(name)), "{unsupported:?}");
}

#[test]
fn ethernet_guest_violates_no_rule() {
    let mut driver = recorded_with_ethernet();
    driver.hca.set_strict(true);
    replay(&mut driver);
    let monitor = driver.hca.monitor();
    assert_eq!(monitor.violations().collect::<Vec<_>>(), []);
    assert_eq!(monitor.ignored_counts().collect::<Vec<_>>(), []);
}
