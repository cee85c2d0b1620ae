//! `hcactl impair`: making the wire of a device bad.

use clap::{Args, Subcommand, ValueEnum};
use device::fabric::impair::{Action, Direction, ImpairmentRow, Probability, RuleEntry};

/// What to do with impairments.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Impair {
    /// List them, and what they did
    List,
    /// Add one; prints its number
    ///
    /// It meets the frames that all selectors fit, and hits each of them, the n-th, or some by probability. For example
    /// `hcactl impair add tx --qpn 0x12 --opcode "RDMA READ response Middle" --nth 3 drop`.
    Add(Box<Add>),
    /// Take one away, or all
    Clear {
        /// Its number
        id: Option<u32>,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Add {
    /// Frames that leave the device, or frames that arrive at it
    #[arg(value_enum)]
    direction: Way,
    /// Destination QP in the BTH
    #[arg(long, value_name = "N", value_parser = number)]
    qpn: Option<u32>,
    /// Packet sequence number
    #[arg(long, value_name = "N", value_parser = number)]
    psn: Option<u32>,
    /// Operation by its IBTA name, with or without its service
    #[arg(long, value_name = "NAME")]
    opcode: Option<String>,
    /// MAC or IP address of the other side
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<String>,
    /// Hit the n-th frame only, counted from 1
    #[arg(long, value_name = "N", conflicts_with = "probability")]
    nth: Option<u64>,
    /// Hit so many in a row from the n-th on
    #[arg(long, value_name = "N", requires = "nth")]
    count: Option<u64>,
    /// Hit a frame with this probability, 0 to 1
    #[arg(long, value_name = "P", value_parser = probability)]
    probability: Option<Probability>,
    /// Of everything left to chance
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(subcommand)]
    action: What,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    Tx,
    Rx,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum What {
    /// It vanishes
    Drop,
    /// It comes twice
    Duplicate {
        /// Second time this much later, microseconds
        #[arg(long, default_value_t = 0)]
        after_us: u64,
    },
    /// It comes later
    Delay {
        /// Microseconds
        us: u64,
        /// Up to this much more, microseconds
        #[arg(long, default_value_t = 0)]
        jitter_us: u64,
    },
    /// Later frames overtake it
    Reorder {
        /// How many
        by: u32,
        /// It waits no longer than this, microseconds
        #[arg(long, default_value_t = 10_000)]
        within_us: u64,
    },
    /// One bit is inverted
    Corrupt,
    /// ECN says that congestion was experienced
    MarkCe,
}

impl Add {
    pub(crate) fn rule(&self) -> RuleEntry {
        RuleEntry {
            direction: match self.direction {
                Way::Tx => Direction::Tx,
                Way::Rx => Direction::Rx,
            },
            action: match self.action {
                What::Drop => Action::Drop,
                What::Duplicate { after_us } => Action::Duplicate { after_us },
                What::Delay { us, jitter_us } => Action::Delay { us, jitter_us },
                What::Reorder { by, within_us } => Action::Reorder { by, within_us },
                What::Corrupt => Action::Corrupt,
                What::MarkCe => Action::MarkCe,
            },
            qpn: self.qpn,
            psn: self.psn,
            opcode: self.opcode.clone(),
            peer: self.peer.clone(),
            nth: self.nth,
            count: self.count,
            probability: self.probability,
            seed: self.seed,
        }
    }
}

/// Cells of a row: number, direction, action, selectors, which are hit, how many were met and hit.
pub(crate) fn cells(row: &ImpairmentRow) -> Vec<String> {
    let rule = &row.rule;
    let direction = match rule.direction {
        Direction::Tx => "tx",
        Direction::Rx => "rx",
    };
    let action = match rule.action {
        Action::Drop => "drop".to_owned(),
        Action::Duplicate { after_us } => format!("duplicate after {after_us} us"),
        Action::Delay { us, jitter_us: 0 } => format!("delay {us} us"),
        Action::Delay { us, jitter_us } => format!("delay {us} to {} us", us.saturating_add(jitter_us)),
        Action::Reorder { by, within_us } => format!("reorder by {by} within {within_us} us"),
        Action::Corrupt => "corrupt".to_owned(),
        Action::MarkCe => "mark-ce".to_owned(),
    };
    let selectors: Vec<String> = [
        rule.qpn.map(|qpn| format!("QP {qpn:#x}")),
        rule.psn.map(|psn| format!("PSN {psn:#x}")),
        rule.opcode.clone(),
        rule.peer.as_ref().map(|peer| format!("peer {peer}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    let when = match (rule.nth, rule.count, rule.probability) {
        (Some(nth), Some(count), _) => format!("{count} from {nth}"),
        (Some(nth), None, _) => format!("number {nth}"),
        (None, _, Some(probability)) => format!("p={probability} seed {}", rule.seed.unwrap_or(0)),
        (None, _, None) => "each".to_owned(),
    };
    vec![
        row.id.to_string(),
        direction.to_owned(),
        action,
        if selectors.is_empty() { "all".to_owned() } else { selectors.join(", ") },
        when,
        row.matched.to_string(),
        row.hits.to_string(),
    ]
}

/// Decimal, or hexadecimal with 0x.
pub(crate) fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| error.to_string())
}

fn probability(text: &str) -> Result<Probability, String> {
    let number: f64 = text.parse().map_err(|error: std::num::ParseFloatError| error.to_string())?;
    Probability::try_from(number).map_err(|error| error.to_string())
}
