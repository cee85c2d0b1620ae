//! Plans for impairing a testbed's network.

use std::time::Duration;

use rand::RngExt as _;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::Profile;

const FLAP_EVERY: Duration = Duration::from_secs(5);
const FLAP: Duration = Duration::from_millis(300);
const PARTITION_EVERY: Duration = Duration::from_secs(30);
const PARTITION_AFTER: Duration = Duration::from_secs(10);
const PARTITION: Duration = Duration::from_secs(10);

/// Ranges, in milliseconds, of the pause before a random episode and of the episode's duration.
const PAUSE_MS: std::ops::Range<u64> = 1_000..5_000;
const LENGTH_MS: std::ops::Range<u64> = 1_000..8_000;
/// Range, in milliseconds, of the time that a random episode keeps a link down.
const DOWN_MS: std::ops::Range<u64> = 100..1_500;
/// Range of the factor by which a random episode multiplies probabilities and delays.
const FACTOR: std::ops::Range<u32> = 1..6;

/// Faults with a common start and duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Episode {
    pub profile: Profile,
    /// Time from the start of the plan.
    pub start: Duration,
    /// Duration, or `None` if the episode never ends.
    pub length: Option<Duration>,
    pub faults: Vec<Fault>,
}

/// A single change to the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Adds a rule to a guest's device, in the syntax of `hcactl impair add`.
    Rule {
        /// Index of the guest.
        guest: usize,
        rule: Vec<String>,
    },
    /// Takes a guest's link down. The guest's driver is notified.
    LinkDown {
        /// Index of the guest.
        guest: usize,
    },
}

/// A finite or infinite sequence of episodes that do not overlap.
#[derive(Clone, Debug)]
pub struct Plan {
    /// MAC addresses of the guests' devices, in the same order as the guests.
    macs: Vec<String>,
    source: Source,
    /// Number of episodes returned so far.
    count: u32,
}

#[derive(Clone, Debug)]
enum Source {
    Profile(Profile),
    Random {
        rng: Box<ChaCha8Rng>,
        /// End of the previous episode.
        end: Duration,
    },
}

impl Plan {
    /// Creates the plan for a profile.
    pub fn of_profile(profile: Profile, macs: Vec<String>) -> Self {
        Self { macs, source: Source::Profile(profile), count: 0 }
    }

    /// Creates a random plan. The same seed and the same guests yield the same plan.
    pub fn random(seed: u64, macs: Vec<String>) -> Self {
        let rng = Box::new(ChaCha8Rng::seed_from_u64(seed));
        Self { macs, source: Source::Random { rng, end: Duration::ZERO }, count: 0 }
    }
}

impl Iterator for Plan {
    type Item = Episode;

    fn next(&mut self) -> Option<Episode> {
        let number = self.count;
        self.count = self.count.saturating_add(1);
        match &mut self.source {
            Source::Profile(profile) => of_profile(*profile, &self.macs, number),
            Source::Random { rng, end } => {
                let episode = random(rng, *end, &self.macs);
                *end = episode.start + episode.length.unwrap_or_default();
                Some(episode)
            }
        }
    }
}

/// Returns the profile's episode `number`, counted from 0, or `None` if the profile has fewer episodes.
fn of_profile(profile: Profile, macs: &[String], number: u32) -> Option<Episode> {
    let (start, length, faults) = match profile {
        Profile::Flapping => {
            let guest = usize::try_from(number).unwrap_or_default() % macs.len().max(1);
            (FLAP_EVERY * (number + 1), Some(FLAP), vec![Fault::LinkDown { guest }])
        }
        Profile::Partition => {
            let start = PARTITION_AFTER + PARTITION_EVERY * number;
            (start, Some(PARTITION), partition(macs, |guest| guest < macs.len() / 2))
        }
        Profile::Lossy | Profile::Slow | Profile::Reordering | Profile::Congested | Profile::Corrupting => {
            if number > 0 {
                return None;
            }
            // Each frame is sent by a single device, so rules for sent frames affect it only once.
            let faults = (1..).zip(0..macs.len()).flat_map(|(seed, guest)| rules(profile, guest, 1, seed));
            (Duration::ZERO, None, faults.collect())
        }
    };
    Some(Episode { profile, start, length, faults })
}

/// Returns a profile's rules for one guest. `factor` multiplies probabilities and delays.
fn rules(profile: Profile, guest: usize, factor: u32, seed: u64) -> Vec<Fault> {
    let rule = |text: String| Fault::Rule { guest, rule: text.split(' ').map(str::to_owned).collect() };
    let chance = |permille: u32, action: &str| {
        let probability = f64::from(permille * factor) / 1000.0;
        rule(format!("tx --probability {probability} --seed {seed} {action}"))
    };
    let delay = |us: u32| rule(format!("tx delay {}", us * factor));
    match profile {
        Profile::Lossy => vec![chance(10, "drop")],
        Profile::Slow => vec![delay(5_000)],
        Profile::Reordering => vec![chance(20, "reorder 3")],
        Profile::Congested => vec![delay(1_000), chance(100, "mark-ce"), chance(2, "drop")],
        Profile::Corrupting => vec![chance(10, "corrupt")],
        Profile::Flapping | Profile::Partition => Vec::new(),
    }
}

/// Separates the guests for which `is_near` returns true from all others. The receivers drop the frames by sender. The
/// senders cannot do this, since broadcast and multicast frames do not identify their receivers.
fn partition(macs: &[String], is_near: impl Fn(usize) -> bool) -> Vec<Fault> {
    let mut faults = Vec::new();
    for guest in 0..macs.len() {
        for (_, mac) in macs.iter().enumerate().filter(|(other, _)| is_near(*other) != is_near(guest)) {
            let rule = ["rx", "--peer", mac, "drop"].map(str::to_owned).to_vec();
            faults.push(Fault::Rule { guest, rule });
        }
    }
    faults
}

/// Draws an episode that starts after `end`.
fn random(rng: &mut ChaCha8Rng, end: Duration, macs: &[String]) -> Episode {
    // Draw the same values for every episode, including those that its profile does not use. The values drawn for later
    // episodes then do not depend on this profile.
    let pause = rng.random_range(PAUSE_MS);
    let profile = Profile::ALL[rng.random_range(0..Profile::ALL.len())];
    let length = rng.random_range(LENGTH_MS);
    let down = rng.random_range(DOWN_MS);
    let factor = rng.random_range(FACTOR);
    let guest = rng.random_range(0..macs.len().max(1));
    let everywhere = rng.random_bool(0.5);
    // A short seed keeps the log readable.
    let seed: u64 = rng.random_range(0..1_000_000);
    let (length, faults) = match profile {
        Profile::Flapping => (down, vec![Fault::LinkDown { guest }]),
        Profile::Partition => (length, partition(macs, |other| other == guest)),
        _ if everywhere => {
            let faults = (seed..).zip(0..macs.len()).flat_map(|(seed, of)| rules(profile, of, factor, seed));
            (length, faults.collect())
        }
        _ => (length, rules(profile, guest, factor, seed)),
    };
    Episode {
        profile,
        start: end + Duration::from_millis(pause),
        length: Some(Duration::from_millis(length)),
        faults,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn macs(count: usize) -> Vec<String> {
        (1..=count).map(|id| format!("02:00:00:00:00:{id:02x}")).collect()
    }

    fn text(fault: &Fault) -> String {
        match fault {
            Fault::Rule { guest, rule } => format!("{guest}: {}", rule.join(" ")),
            Fault::LinkDown { guest } => format!("{guest}: down"),
        }
    }

    fn texts(episode: &Episode) -> Vec<String> {
        episode.faults.iter().map(text).collect()
    }

    #[test]
    fn permanent_profiles_have_one_episode() {
        for (profile, first) in [
            (Profile::Lossy, "0: tx --probability 0.01 --seed 1 drop"),
            (Profile::Slow, "0: tx delay 5000"),
            (Profile::Reordering, "0: tx --probability 0.02 --seed 1 reorder 3"),
            (Profile::Congested, "0: tx delay 1000"),
            (Profile::Corrupting, "0: tx --probability 0.01 --seed 1 corrupt"),
        ] {
            let episodes: Vec<_> = Plan::of_profile(profile, macs(2)).collect();
            let [episode] = episodes.as_slice() else { panic!("{episodes:?}") };
            assert_eq!((episode.start, episode.length), (Duration::ZERO, None));
            let faults = texts(episode);
            assert_eq!(faults[0], first);
            assert!(faults.last().unwrap().starts_with("1: "), "{faults:?}");
        }
    }

    #[test]
    fn flapping_takes_links_down_in_turn() {
        let episodes: Vec<_> = Plan::of_profile(Profile::Flapping, macs(2)).take(3).collect();
        let starts: Vec<_> = episodes.iter().map(|episode| episode.start.as_secs()).collect();
        assert_eq!(starts, [5, 10, 15]);
        let faults: Vec<_> = episodes.iter().flat_map(texts).collect();
        assert_eq!(faults, ["0: down", "1: down", "0: down"]);
    }

    #[test]
    fn partition_separates_halves_in_both_directions() {
        let episodes: Vec<_> = Plan::of_profile(Profile::Partition, macs(3)).take(2).collect();
        assert_eq!(episodes[1].start - episodes[0].start, PARTITION_EVERY);
        assert_eq!(
            texts(&episodes[0]),
            [
                "0: rx --peer 02:00:00:00:00:02 drop",
                "0: rx --peer 02:00:00:00:00:03 drop",
                "1: rx --peer 02:00:00:00:00:01 drop",
                "2: rx --peer 02:00:00:00:00:01 drop",
            ]
        );
        let single: Vec<_> = Plan::of_profile(Profile::Partition, macs(1)).take(1).collect();
        assert!(single[0].faults.is_empty());
    }

    #[test]
    fn random_plan_is_determined_by_seed() {
        let plan = |seed| Plan::random(seed, macs(3)).take(100).collect::<Vec<_>>();
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        for profile in Profile::ALL {
            assert!(plan(7).iter().any(|episode| episode.profile == profile), "{profile:?}");
        }
        let mut end = Duration::ZERO;
        for episode in plan(7) {
            assert!(episode.start > end && !episode.faults.is_empty(), "{episode:?}");
            end = episode.start + episode.length.unwrap();
        }
    }
}
