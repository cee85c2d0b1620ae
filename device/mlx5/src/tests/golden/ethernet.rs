//! Replays the commands and port events of a guest with an Ethernet port.
//!
//! The netdev tests replay the frames of these recordings, with their WQEs, CQEs and CQ events.

use protocol::hca::mlx5::access_register::{AccessReg, PortRegister};
use protocol::hca::mlx5::eqe::PortChange;
use protocol::hca::mlx5::nic_vport::{NicVportContext, QueriedNicVport, VportState};
use protocol::ids::MacAddr;

use super::*;

/// The traces, in recording order. In the last one, the driver is unloaded and destroys the objects created earlier.
/// Traces eth-4 and eth-5 are omitted, as they contain only frames.
const TRACES: [&str; 7] = [
    include_str!("../../../../../protocol/tests/data/mlx5/eth-1-core-and-netdev-probe.txt"),
    include_str!("../../../../../protocol/tests/data/mlx5/eth-2-mlx5_ib-probe.txt"),
    include_str!("../../../../../protocol/tests/data/mlx5/eth-3-netdev-up.txt"),
    include_str!("../../../../../protocol/tests/data/mlx5/eth-6-vlan-mtu-promisc.txt"),
    include_str!("../../../../../protocol/tests/data/mlx5/eth-7-link-down-up.txt"),
    include_str!("../../../../../protocol/tests/data/mlx5/eth-8-statistics.txt"),
    include_str!("../../../../../protocol/tests/data/mlx5/eth-9-down-unload.txt"),
];

const MAC: MacAddr = MacAddr([2, 0, 0, 0x55, 0, 1]);

/// Returns the output expected from this device: the recorded output, adjusted for known differences.
fn expected_for_ethernet(heading: &str, command: &Command<'_>, recorded: &[u8], ours: &[u8]) -> Vec<u8> {
    let mut output = expected(heading, command, recorded, ours);
    let take_own = |output: &mut [u8], first: usize, len: usize| {
        output[first..first + len].copy_from_slice(&ours[first..first + len]);
    };
    match command {
        Command::QueryHcaCap(query) => match query.cap_type() {
            // This device permits changes to the counter set of an RQ, and can query 1024 flow counters at once. Query 17
            // returns what the recorded driver set.
            Some(CapType::General) if !heading.starts_with("17 ") => {
                output[0x10 + 0x30] |= 8;
                output[0x10 + 0x69] = 10;
            }
            // This device has a larger GID table.
            Some(CapType::Roce) => output[0x10 + 0x1e..0x10 + 0x20].copy_from_slice(&[0, 128]),
            // This device matches more fields of the outer headers.
            Some(CapType::FlowTable) => output[0x10 + 0x60..0x10 + 0x63].copy_from_slice(&[0xff, 0x0f, 0xfe]),
            _ => {}
        },
        Command::QueryNicVportContext(_) => {
            let read = |bytes: &[u8]| QueriedNicVport::parse(&self::output(bytes)).context;
            let (theirs, ours) = (read(recorded), read(ours));
            let context = NicVportContext {
                system_guid: ours.system_guid,
                port_guid: ours.port_guid,
                node_guid: ours.node_guid,
                // The recorded device returned no addresses.
                list_len: ours.list_len,
                ..theirs
            };
            output = QueriedNicVport { context }.emit().to_vec();
        }
        // The recorded device reported the link as up although the driver had disabled the port with PAOS.
        Command::QueryVportState(_) if heading.starts_with("180 ") => {
            take_own(&mut output, VportState::LEN - 1, 1)
        }
        // The recorded device returned a constant for each counter.
        Command::QueryVportCounter(_) => output[OutputHeader::LEN..].fill(0),
        Command::AccessReg(access, _) => match PortRegister::from_code(access.register) {
            Some(PortRegister::NodeDescription) => take_own(&mut output, AccessReg::LEN, 64),
            // The recorded device ignored writes to the MTU and the port state.
            Some(PortRegister::Pmtu) => take_own(&mut output, AccessReg::LEN + 8, 8),
            Some(PortRegister::Paos) => take_own(&mut output, AccessReg::LEN + 2, 2),
            Some(PortRegister::Ptys) => {
                // The recorded device could not disable autonegotiation.
                take_own(&mut output, AccessReg::LEN, 1);
                // The recorded device reported the mode of a link that the driver had brought down.
                take_own(&mut output, AccessReg::LEN + 0x24, 4);
            }
            // The recorded device returned each counter's offset as its value.
            Some(PortRegister::Ppcnt) => {
                output[AccessReg::LEN + 8..].fill(0);
                // The link failures of this session, in the physical group.
                take_own(&mut output, AccessReg::LEN + 0xc8, 4);
            }
            // The recorded device did not return the port number.
            Some(PortRegister::Pfcc) => take_own(&mut output, AccessReg::LEN + 1, 1),
            _ => {}
        },
        _ => {}
    }
    output
}

/// Returns whether a line is a port change EQE.
fn is_port_event(line: &str) -> bool {
    line.starts_with("EQE eqn=2 ")
}

/// Returns whether a line belongs to a command, is a port change EQE, or is a doorbell for the command EQ or for the EQ
/// that receives port events.
fn is_replayed(line: &str) -> bool {
    let other = ["ETHWQE ", "ETHRX ", "FRAME ", "CQE ", "EQE "].iter().any(|kind| line.starts_with(kind));
    let is_doorbell = line.starts_with("DB ");
    let of_eq = ["width=4 01", "width=4 02"].iter().any(|eq| line.contains(eq));
    is_port_event(line) || !other && (!is_doorbell || of_eq)
}

impl Session<'_> {
    fn ethernet_command(&mut self, heading: &str, by_event: bool, input: &[u8], recorded: &[u8]) {
        let command = Command::parse(input).unwrap();
        self.queues.prepare(self.driver, &command);
        let ours = self.driver.execute(input, recorded.len());
        assert_eq!(ours, expected_for_ethernet(heading, &command, recorded, &ours), "{heading}");
        self.queues.apply(self.driver, &command, &ours);
        // The command that destroys the command EQ does not raise an event.
        if by_event && !heading.starts_with("478 ") {
            let (event, owner) = self.queues.event(self.driver, self.events);
            assert_eq!((event, owner), (Eqe::Command(1), self.events & 256 != 0), "{heading}");
            self.events += 1;
        }
    }

    /// Sets the link state as in the recording and checks the resulting event.
    fn port_event(&mut self, line: &'static str) {
        let ([number, index], words) = fields(line.strip_prefix("EQE ").unwrap(), [16, 10]);
        // By now, this device has raised two more events than the recorded one. The driver disabled and enabled the
        // port with PAOS writes, which the recorded device ignored.
        let entry = Entry { kind: Kind::Eqe, number, index: index + 2, bytes: bytes(words) };
        let (event, _) = Eqe::parse(&output(&entry.bytes)).unwrap();
        self.driver.hca.set_link(matches!(event, Eqe::Port { change: PortChange::Up, .. }));
        self.driver.settle();
        self.queues.check(self.driver, &[entry]);
    }
}

/// Replays all traces and returns the number of commands in each.
fn replay(driver: &mut Driver) -> Vec<usize> {
    let mut session = Session { driver, queues: Queues::default(), events: 0, doorbells: 0 };
    let mut counts = Vec::new();
    for trace in TRACES {
        let mut count = 0;
        let lines: Vec<_> = trace.lines().filter(|line| is_replayed(line)).collect();
        for part in lines.split_inclusive(|line| is_port_event(line)) {
            let (events, commands): (Vec<_>, Vec<_>) = part.iter().partition(|line| is_port_event(line));
            for Step { action, .. } in steps(commands.into_iter()) {
                match action {
                    Action::Command { heading, by_event, input, output } => {
                        count += 1;
                        session.ethernet_command(heading, by_event, &input, &output);
                    }
                    Action::Doorbell { page, offset, bytes } => session.doorbell(page, offset, &bytes, &[]),
                }
            }
            events.into_iter().for_each(|event| session.port_event(event));
        }
        counts.push(count);
    }
    counts
}

fn recorded_with_ethernet() -> Driver {
    let identity = Identity { mac: MAC, ..Identity::from_lid(Lid::new(LID)) };
    powered_on_as(identity, Options { port: Port::Ethernet, ..recorded() })
}

#[test]
fn ethernet_outputs_match_recording() {
    let mut driver = recorded_with_ethernet();
    assert_eq!(replay(&mut driver), [120, 34, 52, 86, 14, 26, 149]);
}

/// Object numbers start over when the driver is unloaded and loaded again.
#[test]
fn ethernet_object_numbers_restart_after_unload() {
    let mut driver = recorded_with_ethernet();
    replay(&mut driver);
    replay(&mut driver);
}

#[test]
fn ethernet_guest_does_not_violate_rules() {
    let mut driver = recorded_with_ethernet();
    driver.hca.set_strict(true);
    replay(&mut driver);
    let monitor = driver.hca.monitor();
    assert_eq!(monitor.violations().collect::<Vec<_>>(), []);
    assert_eq!(monitor.ignored_counts().collect::<Vec<_>>(), []);
}
