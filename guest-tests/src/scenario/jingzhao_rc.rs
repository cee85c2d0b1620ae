//! RC traffic between two JingZhao HCAs, with various operations, sizes, MTUs and memory layouts, and with many
//! simultaneous flows.

use agent::wire::{Path, SendOp};
use anyhow::{Result, ensure};

use super::connection::{Attributes, Connection};
use super::pair::{Direction, Pair};
use super::transfer::{Plan, Planned, exchange, transfer};
use crate::lab::Lab;
use crate::report::Report;

/// Operations and their printed names.
pub(super) const OPS: [(&str, SendOp); 5] = [
    ("SEND", SendOp::Send),
    ("SEND_IMM", SendOp::SendImm),
    ("WRITE", SendOp::Write),
    ("WRITE_IMM", SendOp::WriteImm),
    ("READ", SendOp::Read),
];
/// Message sizes in bytes, from empty messages to messages of several thousand packets.
pub(super) const SIZES: [u32; 8] = [0, 1, 17, 256, 4096, 65536, 1 << 20, 16 << 20];

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let mut pair = Pair::start_open(lab, "jingzhao-rc").await?;
    let hint = pair.hint();
    let mut case = async |report: &mut Report, name: &str, case: Case| {
        report.case(name, &hint, case.run(&mut pair)).await
    };
    for mtu in [4096, 256] {
        for (op_name, op) in OPS {
            // With the smallest MTU, the longest message would take 65,536 packets per operation without covering
            // anything new.
            for len in SIZES.into_iter().filter(|len| *len <= 1 << 20 || mtu == 4096) {
                let name = format!("{op_name} of {len} bytes, path MTU {mtu}");
                case(report, &name, Case { mtu, ..Case::of(Plan::new(op, len)) }).await?;
            }
        }
    }
    for (op_name, op) in OPS {
        for pieces in [3, 16] {
            let plan = Plan { pieces, ..Plan::new(op, 20_011) };
            let name = format!("{op_name} with {pieces} scatter/gather elements across pages");
            case(report, &name, Case::of(plan)).await?;
        }
    }
    for (op_name, op) in &OPS[..4] {
        for len in [0, 1, 300] {
            let plan = Plan { inline: true, ..Plan::new(*op, len) };
            case(report, &format!("{op_name} of {len} bytes inline"), Case::of(plan)).await?;
        }
        let plan = Plan { batch: 8, ..Plan::new(*op, 5000) };
        case(report, &format!("{op_name}, 8 linked WQEs with one doorbell"), Case::of(plan)).await?;
    }
    for (op_name, op) in OPS {
        let directions = &[Direction::AToB, Direction::BToA];
        let name = format!("{op_name} in both directions at the same time");
        case(report, &name, Case { directions, ..Case::of(Plan::new(op, 65536)) }).await?;
        let name = format!("{op_name} on two QPs at the same time");
        case(report, &name, Case { connections: 2, ..Case::of(Plan::new(op, 65536)) }).await?;
        let name = format!("{op_name} with PSNs that wrap");
        case(report, &name, Case { mtu: 256, psn: [0xff_fff0; 2], ..Case::of(Plan::new(op, 4096)) }).await?;
    }
    for (name, path) in
        [("MAC address", mac_path as fn(u8) -> Path), ("IPv4 address", ip_path), ("LID", lid_path)]
    {
        let case_ = Case { path: [path(2), path(1)], ..Case::of(Plan::new(SendOp::Send, 4096)) };
        case(report, &format!("peer addressed by its {name}"), case_).await?;
    }
    report.case("READ in one direction, each operation in the other", &hint, crossing(&mut pair)).await?;
    report.case("daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

/// A plan to execute on several connections, in each of the given directions.
#[derive(Clone, Copy, Debug)]
struct Case {
    plan: Plan,
    mtu: u16,
    psn: [u32; 2],
    path: [Path; 2],
    directions: &'static [Direction],
    connections: usize,
}

impl Case {
    fn of(plan: Plan) -> Self {
        let Attributes { mtu, psn, path, .. } = Attributes::default();
        Self { plan, mtu, psn, path, directions: &[Direction::AToB], connections: 1 }
    }

    async fn run(self, pair: &mut Pair) -> Result<()> {
        let attributes =
            Attributes { mtu: self.mtu, psn: self.psn, path: self.path, ..Attributes::default() };
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            connections.push(Connection::create(pair, &attributes).await?);
        }
        let mut planned = Vec::new();
        for connection in &connections {
            for &direction in self.directions {
                // Give each flow its own content so that data from different flows cannot be confused.
                let plan = Plan { seed: self.plan.seed + 1000 * planned.len() as u64, ..self.plan };
                planned.push(Planned { connection, direction, plan });
            }
        }
        exchange(pair, &planned).await?;
        for connection in &connections {
            for &direction in self.directions {
                self.check_psns(pair, connection, direction).await?;
            }
        }
        for connection in connections {
            connection.destroy(pair).await?;
        }
        Ok(())
    }

    /// Checks that the messages have consumed one PSN per packet. A READ consumes one PSN per response packet.
    async fn check_psns(&self, pair: &mut Pair, connection: &Connection, direction: Direction) -> Result<()> {
        let packets = self.plan.len.div_ceil(u32::from(self.mtu)).max(1) * self.plan.count;
        let first = self.psn[usize::from(direction == Direction::BToA)];
        let next = (first + packets) & 0xff_ffff;
        let (requester, responder) = connection.towards(direction);
        let (requester_vm, responder_vm) = pair.towards(direction);
        let sent = requester.query(requester_vm).await?;
        let expected = responder.query(responder_vm).await?;
        ensure!(
            (sent.next_send_psn, sent.unacked_psn, expected.expected_psn) == (next, next, next),
            "next, unacknowledged and expected PSN are {:06x}, {:06x}, {:06x} after {packets} packets from {first:06x}",
            sent.next_send_psn,
            sent.unacked_psn,
            expected.expected_psn
        );
        Ok(())
    }
}

/// Makes each end of a connection both requester and responder at once.
async fn crossing(pair: &mut Pair) -> Result<()> {
    let connection = Connection::create(pair, &Attributes { mtu: 1024, ..Attributes::default() }).await?;
    for (i, (_, op)) in OPS.iter().cycle().take(2 * OPS.len()).enumerate() {
        let direction = if i % 2 == 0 { Direction::AToB } else { Direction::BToA };
        let back = if i % 2 == 0 { Direction::BToA } else { Direction::AToB };
        let plan = Plan::new(*op, 9001);
        let other = Plan { seed: 77, ..Plan::new(SendOp::Read, 9001) };
        let planned = [
            Planned { connection: &connection, direction, plan },
            Planned { connection: &connection, direction: back, plan: other },
        ];
        exchange(pair, &planned).await?;
    }
    transfer(pair, &connection, Plan::new(SendOp::Send, 0)).await?;
    connection.destroy(pair).await
}

fn mac_path(id: u8) -> Path {
    Path { dmac: Some([2, 0, 0, 0, 0, id]), ..Path::default() }
}

fn ip_path(id: u8) -> Path {
    Path { dip: Some([10, 77, 0, id].into()), ..Path::default() }
}

fn lid_path(id: u8) -> Path {
    Path { dlid: Some(id.into()), ..Path::default() }
}
