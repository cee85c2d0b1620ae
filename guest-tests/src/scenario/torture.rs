//! Disturbs daemons, QEMU processes and guests at random, several at a time, while guests and clients exchange messages
//! and check each message. A disturbance may affect only its own target.
//!
//! ```text
//! hcad-a   HCA a -- HCA b   stock guests a and b
//!          HCA e -- HCA f   vfio-user clients without a guest
//!          HCA h, HCA g     a hostile client, and a bystander
//! hcad-c   HCA c -.
//! hcad-d   HCA d -'         stock guests c and d
//! ```
//!
//! hcad-a is never restarted, and a disturbance of one of its HCAs must not affect the others. The other two daemons
//! are killed and restarted. HCAs c and d are connected by a shared-memory ring, and so are e and f if the seed is
//! even. All other links use UDP. HCAs e and f send as fast as they can.
//!
//! Disturbances run in independent lanes: one for each pair of guests, one for the clients, and one for hcad-a. Each
//! lane executes a plan ([`plan`]) drawn from the seed. Some disturbances destroy one end of the lane's connection, and
//! the other end must then report the loss. All other disturbances must leave the connection intact. Any other effect
//! is a failure, regardless of its cause.

mod account;
mod clients;
mod guests;
mod hostile;
mod neighbour;
mod plan;
mod talk;
mod timeline;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use self::account::Account;
use self::clients::Clients;
use self::guests::Pair;
use self::hostile::Attack;
use self::neighbour::Neighbour;
use self::plan::Plan;
use self::timeline::Timeline;
use crate::daemon::{Control, Daemon, Fabric, HcaSpec, Interface, Peer, free_udp_ports};
use crate::lab::Lab;
use crate::report::{Report, Skip, line};
use crate::run_dir::RunDir;
use crate::vm::Image;

/// ACK timeout code for all connections (1.07 s).
const ACK_TIMEOUT: u8 = 18;
/// How long a requester waits for a silent peer before it gives up, with this ACK timeout and 7 retries.
const RETRY_TIME: Duration = Duration::from_micros(8 * (4096 << ACK_TIMEOUT) / 1000);
/// Default duration of a run, in minutes.
const MINUTES: u64 = 5;
/// Additional time to finish disturbances in progress and, on a slow host, to run each kind that has not occurred yet.
const MARGIN: Duration = Duration::from_secs(10 * 60);

/// Maximum number of times to read the daemons' resources until two successive readings agree.
const POLLS: usize = 20;
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long the daemons may take to release resources on a slow host.
const RELEASED: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct LaneContext<'a> {
    lab: &'a Lab,
    run: &'a RunDir,
    image: &'a Image,
    seed: u64,
    timeline: &'a Timeline,
}

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let chance = lab.chance();
    let minutes = chance.minutes.unwrap_or(MINUTES);
    let seed = chance.seed.map_or_else(seed_of_now, Ok)?;
    line(&format!(
        "      seed {seed}; repeat with: guest-lab run torture --seed {seed} --minutes {minutes}"
    ))?;
    let run = lab.new_run("torture")?;
    let timeline = Timeline::create(&run.file("timeline.log"))?;
    let hint = format!("seed {seed}; timeline, logs and consoles: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    let ground = LaneContext { lab, run: &run, image: &image, seed, timeline: &timeline };

    let mut attacks = Vec::new();
    for attack in Attack::ALL {
        match attack.obstacle() {
            None => attacks.push(*attack),
            Some(why) => {
                report.case(&format!("{attack:?}"), &hint, async { Err(Skip(why).into()) }).await?;
            }
        }
    }
    let mut all = All::start(&ground, attacks).await.with_context(|| hint.clone())?;
    let before = all.accounts().await?;
    let length = Duration::from_secs(60 * minutes);
    let name = format!("{minutes} minutes of disturbances");
    let failed = report.counts().failed;
    report.case_within(length + MARGIN, &name, &hint, all.run_plan(length)).await?;
    line(&timeline.summary())?;
    if report.counts().failed > failed {
        // A comparison would be meaningless, because aborted lanes still hold resources.
        return Ok(());
    }
    report.case("all guests still communicate", &hint, all.go_on()).await?;
    report
        .case("memory and descriptors of the daemons are unchanged", &hint, all.hold_what_they_held(&before))
        .await?;
    report.case("no kernel warnings about an HCA", &hint, all.no_complaints()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, all.stop()).await
}

/// The connected pairs of guests and clients, and the daemon that serves most of the HCAs.
struct All<'a> {
    seed: u64,
    guests: [Pair<'a>; 2],
    clients: Clients<'a>,
    neighbour: Neighbour<'a>,
}

impl<'a> All<'a> {
    async fn start(ground: &'a LaneContext<'a>, attacks: Vec<Attack>) -> Result<Self> {
        let [a, b, c, d, e, f, h, g] = specs(ground)?;
        let hcad = ground.lab.hcad()?;
        let shared = [a, b, e, f, h, g];
        let first = Daemon::start_by(Command::new(&hcad), &shared, ground.run).await?;
        let seat = |index: usize| -> Result<_> {
            let spec = &shared[index];
            let socket = first.sockets().get(index).context("an HCA has no socket")?;
            Ok((spec.name.clone(), socket.clone(), first.controls_of(spec.id)))
        };
        let guest = |index| -> Result<_> {
            let (name, socket, control) = seat(index)?;
            Ok(guests::Attachment { name, socket, control, own: None })
        };
        let client = |index| -> Result<_> {
            let (name, socket, control) = seat(index)?;
            Ok(clients::Attachment { name, socket, control })
        };
        let alone = async |spec: HcaSpec| -> Result<_> {
            let daemon = Daemon::start(&hcad, &spec, ground.run).await?;
            let (name, socket, control) = (spec.name.clone(), daemon.socket().to_owned(), daemon.controls());
            Ok(guests::Attachment { name, socket, control, own: Some((spec, daemon)) })
        };
        let clients = Clients::start(ground, [client(2)?, client(3)?]).await?;
        // Start the pairs one after the other because each booting guest needs a whole CPU.
        let near = Pair::start(ground, [guest(0)?, guest(1)?]).await?;
        let apart = Pair::start(ground, [alone(c).await?, alone(d).await?]).await?;
        let [hostile, bystander] = [seat(4)?, seat(5)?].map(|(_, socket, control)| (socket, control));
        let mut neighbour = Neighbour { ground, daemon: first, hostile, bystander, attacks };
        neighbour.warm_up().await?;
        Ok(Self { seed: ground.seed, guests: [near, apart], clients, neighbour })
    }

    async fn run_plan(&mut self, length: Duration) -> Result<()> {
        let until = Instant::now() + length;
        let seed = self.seed;
        let Self { guests: [near, apart], clients, neighbour, .. } = self;
        let disturbances = neighbour::Disturbance::with(&neighbour.attacks);
        tokio::try_join!(
            near.run_plan(Plan::new(seed, 1, guests::Disturbance::GUEST), until),
            apart.run_plan(Plan::new(seed, 2, guests::Disturbance::ALL), until),
            clients.run_plan(Plan::new(seed, 3, clients::Disturbance::ALL), until),
            neighbour.run_plan(Plan::new(seed, 4, &disturbances), until),
        )
        .map(drop)
    }

    async fn go_on(&mut self) -> Result<()> {
        let [near, apart] = &mut self.guests;
        tokio::try_join!(
            near.expect_progress(),
            apart.expect_progress(),
            self.clients.talk_during(async { Ok(()) })
        )
        .map(drop)
    }

    /// Returns the daemons' resources. Waits until the hostile client and the bystander have disconnected and two
    /// successive readings agree.
    async fn accounts(&mut self) -> Result<Vec<(String, Account)>> {
        self.neighbour.settle().await?;
        let mut before = self.accounts_now()?;
        for _ in 0..POLLS {
            sleep(POLL_INTERVAL).await;
            let now = self.accounts_now()?;
            if before.iter().zip(&now).all(|((_, before), (_, now))| now.is_as_open_as(before)) {
                return Ok(now);
            }
            before = now;
        }
        bail!("memory or descriptors of the daemons changed although no client connected or left")
    }

    fn accounts_now(&mut self) -> Result<Vec<(String, Account)>> {
        let process = self.neighbour.daemon.process().id()?;
        let mut accounts = vec![("hcad-a".to_owned(), Account::of(process)?)];
        for pair in &mut self.guests {
            accounts.extend(pair.accounts()?);
        }
        Ok(accounts)
    }

    async fn hold_what_they_held(&mut self, before: &[(String, Account)]) -> Result<()> {
        let deadline = Instant::now() + RELEASED;
        loop {
            let after = self.accounts().await?;
            ensure!(after.len() == before.len(), "{} processes, then {}", before.len(), after.len());
            let pairs = || before.iter().zip(&after);
            let is_like = pairs()
                .try_for_each(|((name, before), (_, after))| after.is_like(before).context(name.clone()));
            // A daemon releases a client's resources only some time after the client has disconnected.
            if is_like.is_ok() || Instant::now() > deadline {
                for ((name, before), (_, after)) in pairs() {
                    line(&format!("      {name}: {before}; then {after}"))?;
                }
                return is_like;
            }
        }
    }

    async fn no_complaints(&mut self) -> Result<()> {
        for pair in &mut self.guests {
            pair.no_complaints().await?;
        }
        Ok(())
    }

    async fn stop(self) -> Result<()> {
        for pair in self.guests {
            pair.stop().await?;
        }
        drop(self.clients);
        self.neighbour.daemon.stop().await
    }
}

/// Returns the specifications of HCAs `a` to `f`, `h` and `g`, numbered from 1. Each HCA has one peer.
fn specs(ground: &LaneContext<'_>) -> Result<[HcaSpec; 8]> {
    let ports = free_udp_ports::<8>()?;
    let [example, _] = HcaSpec::pair()?;
    let mut specs = ["a", "b", "c", "d", "e", "f", "h", "g"].map(|name| HcaSpec {
        name: name.into(),
        capture: false,
        ..example.clone()
    });
    for (index, spec) in specs.iter_mut().enumerate() {
        let number = |index: usize| u16::try_from(index + 1);
        let other = index ^ 1;
        (spec.id, spec.default_peer) = (number(index)?, number(other)?);
        spec.bind = ports[index];
        spec.peers = vec![Peer { addr: ports[other], leaf: false, id: None }];
        spec.interface = if index < 4 { Interface::Mthca } else { Interface::Jingzhao };
    }
    let [_, _, c, d, e, f, ..] = &mut specs;
    for spec in [c, d] {
        spec.fabric = Fabric::Ring(ground.run.socket("ring"));
    }
    if ground.seed.is_multiple_of(2) {
        for spec in [e, f] {
            spec.fabric = Fabric::Ring(ground.run.socket("ring-clients"));
        }
    }
    Ok(specs)
}

/// Takes a port down for the given time.
async fn take_port_down(control: &Control, length: Duration) -> Result<()> {
    control.ask(&["port", "down"]).await?;
    sleep(length).await;
    control.ask(&["port", "up"]).await.map(drop)
}

/// Enables the capture for the given time, then deletes the file, which is large.
async fn switch_capture(
    ground: &LaneContext<'_>,
    name: &str,
    control: &Control,
    length: Duration,
) -> Result<()> {
    let file = ground.run.file(format!("{name}.capture"));
    control.ask(&["capture", "on", &file.display().to_string()]).await?;
    sleep(length).await;
    control.ask(&["capture", "off"]).await?;
    let taken = std::fs::metadata(&file)?.len();
    std::fs::remove_file(&file)?;
    ensure!(taken > 0, "the capture is empty");
    Ok(())
}

fn seed_of_now() -> Result<u64> {
    // A short seed is easy to type.
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() % 1_000_000)
}
