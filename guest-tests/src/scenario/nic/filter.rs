//! A NIC's receive filters: its own address, multicast groups, and promiscuous mode.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::time::Instant;

use super::station::{Station, mac_text};
use crate::line_program::LineProgram;

/// The program that runs in both guests.
pub(in crate::scenario) const FRAMES: &str = include_str!("../../../guest/frames.py");
pub(in crate::scenario) const LIMIT: Duration = Duration::from_secs(60);
/// How long the driver may take to program the filters, which it does asynchronously.
const SETTLED: Duration = Duration::from_secs(60);
/// How long the last frame may take to arrive, in seconds.
const ARRIVAL_SECONDS: u32 = 10;

/// Destination addresses: a group that guest `b` joins, a group that it does not join, and broadcast.
const GROUP: &str = "01:00:5e:51:00:01";
const OTHER_GROUP: &str = "01:00:5e:51:00:02";
pub(in crate::scenario) const EVERYBODY: &str = "ff:ff:ff:ff:ff:ff";
/// A unicast address that no station has, so frames sent to it are flooded.
const UNKNOWN_MAC: &str = "02:00:00:00:77:77";

/// Marks in the test frames, one per destination.
const TO_OWN: u32 = 1;
const TO_BROADCAST: u32 = 2;
const TO_GROUP: u32 = 3;
const TO_OTHER_GROUP: u32 = 4;
const TO_UNKNOWN: u32 = 5;
/// Mark of the last frame, which guest `b` always accepts.
const END: u32 = 99;

/// Receive modes of guest `b`: a name, the kind of packet socket membership to add, and the marks of the frames to
/// accept.
const CASES: &[(&str, Option<&str>, &[u32])] = &[
    ("no membership", None, &[TO_OWN, TO_BROADCAST]),
    ("one group", Some("group"), &[TO_OWN, TO_BROADCAST, TO_GROUP]),
    ("all groups", Some("all_groups"), &[TO_OWN, TO_BROADCAST, TO_GROUP, TO_OTHER_GROUP]),
    ("promiscuous", Some("promiscuous"), &[TO_OWN, TO_BROADCAST, TO_GROUP, TO_OTHER_GROUP, TO_UNKNOWN]),
    ("no membership, again", None, &[TO_OWN, TO_BROADCAST]),
];

/// Sends frames to every destination in each receive mode and checks which of them guest `b` accepts.
pub(in crate::scenario) async fn let_in(a: &mut Station, b: &mut Station) -> Result<()> {
    let sender = open(a).await?;
    let receiver = open(b).await?;
    let result = all(a, sender, b, receiver).await;
    sender.close(LIMIT, &mut a.vm).await?;
    receiver.close(LIMIT, &mut b.vm).await?;
    result
}

async fn all(a: &mut Station, sender: LineProgram, b: &mut Station, receiver: LineProgram) -> Result<()> {
    let own = mac_text(b.id);
    let frames = [
        (own.as_str(), TO_OWN),
        (EVERYBODY, TO_BROADCAST),
        (GROUP, TO_GROUP),
        (OTHER_GROUP, TO_OTHER_GROUP),
        (UNKNOWN_MAC, TO_UNKNOWN),
        (own.as_str(), END),
    ];
    for &(name, kind, expected) in CASES {
        let member = |on: bool| {
            let mac = if kind == Some("group") { GROUP } else { "" };
            json!({ "kind": kind, "mac": mac, "on": on })
        };
        if kind.is_some() {
            receiver.ask::<()>(LIMIT, &mut b.vm, "member", member(true)).await?;
        }
        let deadline = Instant::now() + SETTLED;
        loop {
            sender.ask::<()>(LIMIT, &mut a.vm, "send", json!({ "frames": frames })).await?;
            let until = json!({ "until": END, "seconds": ARRIVAL_SECONDS });
            let marks = receiver.ask::<Vec<u32>>(LIMIT, &mut b.vm, "marks", until).await;
            let marks = marks.with_context(|| format!("receive mode {name:?}"))?;
            if marks == expected {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "receive mode {name:?}: received {marks:?}, expected {expected:?}"
            );
        }
        if kind.is_some() {
            receiver.ask::<()>(LIMIT, &mut b.vm, "member", member(false)).await?;
        }
    }
    Ok(())
}

async fn open(station: &mut Station) -> Result<LineProgram> {
    let program = LineProgram::start(&mut station.vm, FRAMES).await?;
    let device = json!({ "device": station.device });
    program.ask::<()>(LIMIT, &mut station.vm, "open", device).await?;
    Ok(program)
}
