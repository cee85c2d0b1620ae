//! Exchanges verified messages between the members of a group.

use std::cell::Cell;
use std::time::Duration;

use agent::wire::{CreateCq, CreateQp, Failure, FailureKind, Flow, Path, ReceiveFlow, SendFlow, Traffic};
use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::groups::SENDERS;
use super::member::{Member, Victim};
use crate::scenario::codes::syndrome;
use crate::scenario::connection::{Attributes, End};

/// Number of messages per flow.
const COUNT: u32 = 32;
/// Number of slots per flow, which is also the maximum number of outstanding messages.
const SLOTS: u32 = 16;
/// Length of a message in bytes. It is not a multiple of the path MTU.
const LEN: u32 = 20_011;
const STRIDE: u64 = 20_480;
const AREA: u64 = SLOTS as u64 * STRIDE;
/// Length of a member's region: one area to send from, and one for each flow that it receives.
pub(super) const REGION: u64 = AREA * (SENDERS as u64 + 1);
/// ACK timeout code (537 ms). With 7 retries, a lost peer is reported after four seconds.
const ACK_TIMEOUT: u8 = 17;
/// Timeout for an exchange in emulated guests on a busy host.
const TRAFFIC_MS: u32 = 120_000;
const LIMIT: Duration = Duration::from_secs(150);
/// Number of packets that the victim receives before it is killed.
const UNDER_WAY: u64 = 100;
const BEGIN: Duration = Duration::from_secs(60);

/// A connection for one flow.
struct Line {
    sender: (usize, End),
    receiver: (usize, End),
    seed: u64,
}

/// Connects the members, sends [`COUNT`] messages on each flow, and disconnects. The receivers check each message's
/// content. Returns the number of messages.
pub(super) async fn talk(members: &mut [Member], flows: &[(usize, usize)]) -> Result<u64> {
    let lines = connect(members, flows).await?;
    let work = work(members, &lines, COUNT)?;
    let calls = members.iter_mut().zip(work).map(|(member, flows)| async move {
        member.vm.call_within(LIMIT, Traffic { flows, timeout_ms: TRAFFIC_MS }).await
    });
    // Wait for all members, since a cancelled call would leave an agent in an unknown state.
    let reports = join_all(calls).await;
    let mut verified = 0;
    for report in reports {
        verified += report?.flows.iter().map(|flow| flow.verified).sum::<u64>();
    }
    let expected = u64::from(COUNT) * flows.len() as u64;
    ensure!(verified == expected, "{verified} of {expected} messages were compared");
    for line in &lines {
        for (member, end) in [&line.sender, &line.receiver] {
            end.destroy(&mut at(members, *member)?.vm).await?;
        }
    }
    Ok(verified)
}

/// Kills the first member or its daemon while both members are sending to each other. The second member must report
/// that it has lost its peer.
pub(super) async fn strike(pair: &mut [Member; 2], kind: Victim) -> Result<()> {
    let lines = connect(pair, &[(0, 1), (1, 0)]).await?;
    let mut work = work(pair, &lines, u32::MAX)?.into_iter();
    let mut flows = || work.next().context("no flows");
    let (of_victim, of_peer) = (flows()?, flows()?);
    let [victim, peer] = pair;
    let process = victim.process(kind)?;
    let control = victim.daemon.controls();
    let before = control.counter("/port/roce").await?;
    let struck = Cell::new(false);
    let strike = async {
        let deadline = Instant::now() + BEGIN;
        while control.counter("/port/roce").await? < before + UNDER_WAY {
            ensure!(Instant::now() < deadline, "no traffic started within {BEGIN:?}");
            sleep(Duration::from_millis(50)).await;
        }
        struck.set(true);
        let id = Pid::from_raw(i32::try_from(process)?).context("no process has this number")?;
        anyhow::Ok(kill_process(id, Signal::KILL)?)
    };
    let timeout_ms = TRAFFIC_MS;
    let victim_ends = async {
        let result = victim.vm.call_within(LIMIT, Traffic { flows: of_victim, timeout_ms }).await;
        if !struck.get() {
            return result;
        }
        // Ignore the victim's result, since its guest will be replaced.
        std::future::pending().await
    };
    let peer_ends =
        async { tokio::join!(peer.vm.call_within(LIMIT, Traffic { flows: of_peer, timeout_ms }), strike) };
    let outcome = tokio::select! {
        (outcome, struck) = peer_ends => {
            struck?;
            outcome
        }
        result = victim_ends => bail!("the traffic ended before the kill: {result:?}"),
    };
    let Err(error) = outcome else { bail!("the peer of a killed guest reported no error") };
    let expected = FailureKind::Completion { syndrome: syndrome::RETRY_EXCEEDED };
    let is_right = error.downcast_ref::<Failure>().is_some_and(|failure| failure.kind == expected);
    ensure!(is_right, "requests to a killed guest completed with a wrong status: {error:#}");
    for line in &lines {
        for (_, end) in [line.sender, line.receiver].iter().filter(|(member, _)| *member == 1) {
            end.destroy(&mut peer.vm).await?;
        }
    }
    Ok(())
}

/// Creates a connection for each flow.
async fn connect(members: &mut [Member], flows: &[(usize, usize)]) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (seed, &(from, to)) in (1_u64..).zip(flows) {
        let path = |ip| Path { dip: Some(ip), ..Path::default() };
        let path = [path(at(members, to)?.ip()), path(at(members, from)?.ip())];
        let attributes = Attributes { timeout: ACK_TIMEOUT, path, ..Attributes::default() };
        let sender = create(at(members, from)?).await?;
        let receiver = create(at(members, to)?).await?;
        sender.connect(&mut at(members, from)?.vm, &receiver, &attributes, 0).await?;
        receiver.connect(&mut at(members, to)?.vm, &sender, &attributes, 1).await?;
        lines.push(Line { sender: (from, sender), receiver: (to, receiver), seed: seed << 32 });
    }
    Ok(lines)
}

async fn create(member: &mut Member) -> Result<End> {
    End::create(&mut member.vm, CreateQp::default(), CreateCq::default()).await
}

/// Returns each member's flows, with `count` messages per flow.
fn work(members: &mut [Member], lines: &[Line], count: u32) -> Result<Vec<Vec<Flow>>> {
    let mut work: Vec<Vec<Flow>> = members.iter().map(|_| Vec::new()).collect();
    // The first area of each region is for sending.
    let mut areas: Vec<u64> = members.iter().map(|_| 1).collect();
    for Line { sender: (from, sender), receiver: (to, receiver), seed } in lines {
        let send = SendFlow {
            qp: sender.qp.id,
            count,
            len: LEN,
            depth: SLOTS,
            mr: at(members, *from)?.mr.id,
            stride: STRIDE,
            slots: SLOTS,
            seed: *seed,
            fresh: true,
            ..SendFlow::default()
        };
        let area = areas.get_mut(*to).context("a member is missing")?;
        let receive = ReceiveFlow {
            qp: receiver.qp.id,
            count,
            len: LEN,
            depth: SLOTS,
            mr: at(members, *to)?.mr.id,
            off: *area * AREA,
            stride: STRIDE,
            slots: SLOTS,
            seed: *seed,
            fresh: true,
            ..ReceiveFlow::default()
        };
        *area += 1;
        work.get_mut(*from).context("a member is missing")?.push(Flow::Send(send));
        work.get_mut(*to).context("a member is missing")?.push(Flow::Receive(receive));
    }
    Ok(work)
}

fn at(members: &mut [Member], index: usize) -> Result<&mut Member> {
    members.get_mut(index).context("a member is missing")
}
