//! Executes impairment plans while a testbed runs.

use std::fs::File;
use std::io::{LineWriter, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::{Episode, Fault, Impairment, Plan};
use crate::daemon::Control;
use crate::testbed::name::GuestName;

/// Name of the log file in the testbed's run directory.
const LOG: &str = "impairments.log";

/// The data needed to impair the network connection of a guest's device.
#[derive(Clone, Debug)]
pub(in crate::testbed) struct Link {
    pub(in crate::testbed) guest: GuestName,
    pub(in crate::testbed) mac: [u8; 6],
    pub(in crate::testbed) control: Control,
}

/// Executes plans until it is dropped.
#[derive(Debug)]
pub(in crate::testbed) struct Keeper {
    _plans: JoinSet<()>,
}

impl Keeper {
    /// Starts the plans. Permanent impairments are already in effect when this function returns.
    ///
    /// # Errors
    /// Fails if a device rejects a rule, or the log cannot be created.
    pub(in crate::testbed) async fn start(
        impairments: &[Impairment],
        links: Vec<Link>,
        folder: &Path,
    ) -> Result<Self> {
        let mut plans = JoinSet::new();
        if impairments.is_empty() {
            return Ok(Self { _plans: plans });
        }
        let network = Arc::new(Network { links, log: Log::create(&folder.join(LOG))? });
        let macs: Vec<String> = network.links.iter().map(|link| mac_text(link.mac)).collect();
        for impairment in impairments {
            network.log.line(&format!("plan {impairment}"))?;
            let mut plan = match *impairment {
                Impairment::Profile(profile) => Plan::of_profile(profile, macs.clone()),
                Impairment::Random(seed) => Plan::random(seed.unwrap_or_default(), macs.clone()),
            }
            .peekable();
            while let Some(episode) =
                plan.next_if(|episode| episode.start.is_zero() && episode.length.is_none())
            {
                network.begin(&episode).await?;
            }
            let network = Arc::clone(&network);
            let begun = network.log.begun;
            plans.spawn(async move {
                for episode in plan {
                    if let Err(error) = network.run(begun, &episode).await {
                        tracing::warn!("cannot impair the network ({}): {error:#}", episode.profile.name());
                    }
                }
            });
        }
        Ok(Self { _plans: plans })
    }
}

/// The devices of a testbed.
#[derive(Debug)]
struct Network {
    links: Vec<Link>,
    log: Log,
}

/// A fault in effect.
struct Active<'a> {
    link: &'a Link,
    /// The command that reverts it.
    undo: Vec<String>,
}

impl Network {
    /// Executes an episode, including its end. A device that does not respond, such as one whose daemon was killed,
    /// does not affect the others.
    async fn run(&self, begun: Instant, episode: &Episode) -> Result<()> {
        sleep_until(begun + episode.start).await;
        let (active, mut outcome) = self.apply(episode).await;
        let Some(length) = episode.length else { return outcome };
        sleep_until(begun + episode.start + length).await;
        for Active { link, undo } in active {
            let words: Vec<&str> = undo.iter().map(String::as_str).collect();
            let undone = link.control.ask(&words).await.with_context(|| format!("guest {}", link.guest));
            outcome = outcome.and(undone.map(drop));
        }
        self.log.line(&format!("{} ends", episode.profile.name()))?;
        outcome
    }

    /// Begins an episode that has no end.
    async fn begin(&self, episode: &Episode) -> Result<()> {
        self.apply(episode).await.1
    }

    /// Applies all of an episode's faults. Returns the faults that are now in effect, and the first error.
    async fn apply(&self, episode: &Episode) -> (Vec<Active<'_>>, Result<()>) {
        let (mut active, mut outcome) = (Vec::new(), Ok(()));
        for fault in &episode.faults {
            match self.inject(episode, fault).await {
                Ok(one) => active.extend(one),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        (active, outcome)
    }

    async fn inject(&self, episode: &Episode, fault: &Fault) -> Result<Option<Active<'_>>> {
        let (guest, words): (usize, Vec<&str>) = match fault {
            Fault::Rule { guest, rule } => {
                (*guest, ["impair", "add"].into_iter().chain(rule.iter().map(String::as_str)).collect())
            }
            Fault::LinkDown { guest } => (*guest, vec!["port", "down"]),
        };
        let Some(link) = self.links.get(guest) else { return Ok(None) };
        let name = episode.profile.name();
        self.log.line(&format!("{name}: guest {}: hcactl {}", link.guest, words.join(" ")))?;
        let answer = link.control.ask(&words).await.with_context(|| format!("guest {}", link.guest))?;
        let undo = match fault {
            Fault::Rule { .. } => {
                let id =
                    answer.as_u64().with_context(|| format!("the reply has no rule number: {answer}"))?;
                vec!["impair".to_owned(), "clear".to_owned(), id.to_string()]
            }
            Fault::LinkDown { .. } => vec!["port".to_owned(), "up".to_owned()],
        };
        Ok(Some(Active { link, undo }))
    }
}

/// A log of all changes. Each line begins with the time in seconds since the start of the log.
#[derive(Debug)]
struct Log {
    begun: Instant,
    file: Mutex<LineWriter<File>>,
}

impl Log {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { begun: Instant::now(), file: Mutex::new(LineWriter::new(file)) })
    }

    fn line(&self, text: &str) -> Result<()> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(file, "{seconds:9.3} {text}").context("cannot write to the log of impairments")
    }
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Returns a short seed, which is easy to type.
pub(in crate::testbed) fn seed_of_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() % 1_000_000)
}
