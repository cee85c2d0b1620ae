//! Sixteen guests on one host, each with its own daemon and little memory. They exchange verified messages in pairs and
//! in 8-to-1 incasts, while daemons and guests are killed and replaced. No other guest may be affected.
//!
//! Traffic runs in rounds. In a round, each guest belongs to at most one group: a pair, or an incast with one receiver.
//! A disturbance takes two rounds. In the first, a daemon or a guest is killed during its pair's traffic, and its peer
//! must report the loss. In the second, the victim is replaced. Meanwhile, all other groups communicate.

mod groups;
mod member;
mod traffic;
mod usage;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::sync::watch;
use tokio::time::Instant;

use self::groups::Group;
use self::member::{Member, Site, Victim};
use self::usage::Usage;
use super::lab_tool;
use super::pair::VFIO_MODULES;
use crate::daemon::HcaSpec;
use crate::lab::{Lab, guests_per_wave};
use crate::report::{Report, line};

const GUESTS: usize = 16;
/// The processes to kill, in order. The guest number advances by `DISTANCE` each time, modulo the number of guests, so
/// each process belongs to a different guest.
const KILLS: [Victim; 6] =
    [Victim::Guest, Victim::Daemon, Victim::Guest, Victim::Daemon, Victim::Guest, Victim::Daemon];
const DISTANCE: usize = 5;
/// Minimum duration of the traffic.
const LENGTH: Duration = Duration::from_secs(60);
/// Extra time allowed for the traffic on a slow host.
const MARGIN: Duration = Duration::from_secs(20 * 60);
/// Timeout for booting sixteen emulated guests in waves.
const UP: Duration = Duration::from_secs(15 * 60);

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("many-guests")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let image = lab.image(&run, VFIO_MODULES)?;
    let site = Site { lab, run: &run, image: &image };
    let length = lab.chance().minutes.map_or(LENGTH, |minutes| Duration::from_secs(60 * minutes));
    let mut host = None;
    let boot = async {
        host = Some(Host::start(site).await?);
        Ok(())
    };
    report.case_within(UP, &format!("{GUESTS} guests boot in waves"), &hint, boot).await?;
    if let Some(mut host) = host {
        let name = format!(
            "{} s of all pairs and 8-to-1 incasts; {} daemons and guests are killed and replaced",
            length.as_secs(),
            KILLS.len()
        );
        report.case_within(length + MARGIN, &name, &hint, host.communicate(length)).await?;
        report.case("no other daemon or guest was restarted", &hint, host.others_are_unchanged()).await?;
        line(&host.table()?)?;
        report.case("the daemons exit cleanly on SIGTERM", &hint, host.stop()).await?;
    }
    let case = lab_tool::many::run(lab, &run);
    report.case_within(UP, "guest-lab up --count 16: eight pairs exchange messages", &hint, case).await
}

struct Host<'a> {
    site: Site<'a>,
    /// All guests and daemons. An entry is `None` while the member exchanges messages.
    members: Vec<Option<Member>>,
    /// Processes and resource usage of each member before the traffic starts.
    begun: Vec<Usage>,
    killed: BTreeSet<usize>,
    messages: u64,
    incast_messages: u64,
}

impl<'a> Host<'a> {
    async fn start(site: Site<'a>) -> Result<Self> {
        let mut specs = HcaSpec::mesh_of(GUESTS)?;
        for spec in &mut specs {
            spec.capture = false;
        }
        let boots = specs.into_iter().map(|spec| Member::start(site, spec));
        let mut members: Vec<Member> = stream::iter(boots).buffered(guests_per_wave()).try_collect().await?;
        let begun = members.iter_mut().map(Member::usage).collect::<Result<_>>()?;
        let members = members.into_iter().map(Some).collect();
        Ok(Self { site, members, begun, killed: BTreeSet::new(), messages: 0, incast_messages: 0 })
    }

    /// Runs rounds until the time is up, all kills have occurred, and every pair of guests has communicated.
    async fn communicate(&mut self, length: Duration) -> Result<()> {
        let until = Instant::now() + length;
        let all: Vec<usize> = (0..GUESTS).collect();
        let turns = groups::turns(GUESTS);
        let least = turns.len().max(KILLS.len());
        let mut turn = 0;
        while Instant::now() < until || turn < least {
            let pairs = turns.get(turn % turns.len()).context("no pairs")?;
            match KILLS.get(turn) {
                Some(&kind) => {
                    let victim = (2 + turn * DISTANCE) % GUESTS;
                    let disturbed = self.disturb(pairs, victim, kind).await;
                    disturbed.with_context(|| format!("{kind:?} {} was killed", victim + 1))?;
                }
                None => self.round(pairs, async { Ok(()) }).await?,
            }
            self.round(&groups::incast(&all, turn), async { Ok(()) }).await?;
            turn += 1;
        }
        line(&format!(
            "      {} messages in {turn} turns, all compared, {} of them in incasts",
            self.messages, self.incast_messages
        ))
    }

    /// Kills and replaces a daemon or a guest that carries traffic, while all other groups communicate.
    async fn disturb(&mut self, pairs: &[Group], victim: usize, kind: Victim) -> Result<()> {
        let (with_victim, others): (Vec<&Group>, Vec<&Group>) =
            pairs.iter().partition(|group| group.members.contains(&victim));
        let pair = with_victim.first().context("the victim has no pair")?;
        let peer = pair.members.iter().copied().find(|member| *member != victim).context("no peer")?;
        let others: Vec<Group> = others.into_iter().cloned().collect();
        let site = self.site;
        let mut struck = [self.take(victim)?, self.take(peer)?];
        self.round(&others, traffic::strike(&mut struck, kind)).await?;
        let [mut replaced, survivor] = struck;
        self.put(peer, survivor);
        let live: Vec<usize> = (0..GUESTS).filter(|member| *member != victim).collect();
        self.round(&groups::incast(&live, victim), replaced.replace(site, kind)).await?;
        self.put(victim, replaced);
        self.killed.insert(victim);
        Ok(())
    }

    /// Runs all groups' traffic while `beside` runs. Each group repeats its traffic until `beside` has completed, but
    /// runs it at least once.
    async fn round(&mut self, groups: &[Group], beside: impl Future<Output = Result<()>>) -> Result<()> {
        let (over, seen) = watch::channel(false);
        let beside = async {
            let result = beside.await;
            over.send_replace(true);
            result
        };
        let mut talks = Vec::new();
        for group in groups {
            let members =
                group.members.iter().map(|&member| self.take(member)).collect::<Result<Vec<_>>>()?;
            talks.push(talk_until(group, members, seen.clone()));
        }
        let (beside, ended) = tokio::join!(beside, join_all(talks));
        let mut outcome = beside;
        for (group, (members, result)) in groups.iter().zip(ended) {
            for (&index, member) in group.members.iter().zip(members) {
                self.put(index, member);
            }
            match result {
                Ok(messages) => {
                    self.messages += messages;
                    self.incast_messages += if group.is_incast() { messages } else { 0 };
                }
                Err(error) => outcome = outcome.and(Err(error.context(group.to_string()))),
            }
        }
        outcome
    }

    fn take(&mut self, member: usize) -> Result<Member> {
        let taken = self.members.get_mut(member).and_then(Option::take);
        taken.with_context(|| format!("guest {} is missing", member + 1))
    }

    fn put(&mut self, index: usize, member: Member) {
        if let Some(place) = self.members.get_mut(index) {
            *place = Some(member);
        }
    }

    /// Checks that exactly the killed processes have been replaced and that no device has failed.
    async fn others_are_unchanged(&mut self) -> Result<()> {
        for (index, begun) in self.begun.iter().enumerate() {
            let member = self.members.get_mut(index).and_then(Option::as_mut);
            let member = member.with_context(|| format!("guest {} is missing", index + 1))?;
            let now = member.usage()?;
            let was_killed = self.killed.contains(&index);
            ensure!(
                now.is_of_same_processes(begun) != was_killed,
                "guest {}: {begun:?}, then {now:?}",
                index + 1
            );
            member.is_well().await.with_context(|| format!("guest {}", index + 1))?;
        }
        ensure!(self.killed.len() == KILLS.len(), "{} of {} kills", self.killed.len(), KILLS.len());
        Ok(())
    }

    /// Returns a table of each guest's and daemon's memory and CPU time.
    fn table(&mut self) -> Result<String> {
        let mut rows = vec!["      guest  QEMU MiB  hcad MiB  QEMU CPU s  hcad CPU s".to_owned()];
        for (index, begun) in self.begun.iter().enumerate() {
            let Some(Some(member)) = self.members.get_mut(index) else { continue };
            let row = member.usage()?.since(begun).row();
            let note = if self.killed.contains(&index) { "  replaced" } else { "" };
            rows.push(format!("      {:5}  {row}{note}", index + 1));
        }
        Ok(rows.join("\n"))
    }

    async fn stop(self) -> Result<()> {
        for member in self.members.into_iter().flatten() {
            member.stop().await?;
        }
        Ok(())
    }
}

/// Repeats a group's traffic until `over` is set. Returns the members and the number of messages.
async fn talk_until(
    group: &Group,
    mut members: Vec<Member>,
    over: watch::Receiver<bool>,
) -> (Vec<Member>, Result<u64>) {
    let mut messages = 0;
    loop {
        match traffic::talk(&mut members, &group.flows).await {
            Ok(count) => messages += count,
            Err(error) => return (members, Err(error)),
        }
        if *over.borrow() {
            return (members, Ok(messages));
        }
    }
}
