//! Network impairments requested with `--impair`, implemented with hcad's impairment rules.
//!
//! A [`Plan`] is a sequence of [`Episode`]s. Each episode adds rules or takes links down, and later reverts its
//! changes. A plan depends only on its profile, its seed and the guests, so it is reproducible. The `keeper` executes
//! the plan.

mod keeper;
mod plan;

use std::fmt;
use std::str::FromStr;

pub(super) use self::keeper::{Keeper, Link, seed_of_now};
pub use self::plan::{Episode, Fault, Plan};

/// A value of `--impair`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Impairment {
    /// Impairments of one kind.
    Profile(Profile),
    /// Random impairments, determined by the seed. If the seed is `None`, the supervisor chooses one.
    Random(Option<u64>),
}

/// A kind of network impairment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The fabric drops a small fraction of the frames.
    Lossy,
    /// The fabric delays all frames.
    Slow,
    /// The fabric delivers some frames out of order.
    Reordering,
    /// Links go down for a short time.
    Flapping,
    /// Half of the guests cannot reach the other half for some time.
    Partition,
    /// Frames are delayed, ECN-marked and sometimes lost, as in the queue of a congested switch.
    Congested,
    /// The fabric flips bits in some frames.
    Corrupting,
}

impl Profile {
    pub const ALL: [Self; 7] = [
        Self::Lossy,
        Self::Slow,
        Self::Reordering,
        Self::Flapping,
        Self::Partition,
        Self::Congested,
        Self::Corrupting,
    ];

    /// Returns the profile's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lossy => "lossy",
            Self::Slow => "slow",
            Self::Reordering => "reordering",
            Self::Flapping => "flapping",
            Self::Partition => "partition",
            Self::Congested => "congested",
            Self::Corrupting => "corrupting",
        }
    }
}

/// Name of random impairments on the command line. A colon and a seed may follow.
const RANDOM: &str = "random";

impl FromStr for Impairment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(profile) = Profile::ALL.into_iter().find(|profile| profile.name() == text) {
            return Ok(Self::Profile(profile));
        }
        let seed = match text.strip_prefix(RANDOM) {
            Some("") => Some(None),
            Some(rest) => rest.strip_prefix(':').and_then(|seed| seed.parse().ok()).map(Some),
            None => None,
        };
        seed.map(Self::Random).ok_or_else(|| {
            let names = Profile::ALL.map(Profile::name).join(", ");
            format!("a profile is one of {names}, {RANDOM}, and {RANDOM}:SEED, where SEED is a number")
        })
    }
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Profile(profile) => f.write_str(profile.name()),
            Self::Random(None) => f.write_str(RANDOM),
            Self::Random(Some(seed)) => write!(f, "{RANDOM}:{seed}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impairment_names_parse_and_print() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse(), Ok(Impairment::Profile(profile)));
        }
        for (text, seed) in [("random", None), ("random:0", Some(0)), ("random:8391", Some(8391))] {
            let parsed: Impairment = text.parse().unwrap();
            assert_eq!((parsed, parsed.to_string().as_str()), (Impairment::Random(seed), text));
        }
        for wrong in ["", "loss", "lossy:3", "random:", "random:x", "random-3"] {
            let error = wrong.parse::<Impairment>().unwrap_err();
            assert!(error.contains("corrupting, random, and random:SEED"), "{error}");
        }
    }
}
