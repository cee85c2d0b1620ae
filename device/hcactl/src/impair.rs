//! `hcactl impair`: fault injection between a device and its fabric.

use anyhow::bail;
use card::fabric::impair::{Action, Direction, ImpairmentRow, Probability, RuleEntry};
use clap::{Args, Subcommand, ValueEnum};
use control_api::message::{Request, Response};

use crate::table::{self, RowOf};
use crate::{Cli, Daemon, json, of_device};

/// Commands of `hcactl impair`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Impair {
    /// List impairments: rules, frames matched, frames affected
    List,
    /// Add an impairment and print its number
    ///
    /// An impairment applies to every frame that matches all selectors. --nth and --probability restrict it
    /// to some of these frames. Example: `hcactl impair add tx --qpn 0x12 --opcode "RDMA READ response
    /// Middle" --nth 3 drop`.
    Add(Box<Add>),
    /// Remove one impairment, or all of them
    Clear {
        /// Impairment number [default: all]
        id: Option<u32>,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Add {
    /// Affect only frames that the device sends (tx) or receives (rx)
    #[arg(value_enum)]
    direction: Way,
    /// Affect only packets with this destination QP number in the BTH
    #[arg(long, value_name = "N", value_parser = number)]
    qpn: Option<u32>,
    /// Affect only packets with this packet sequence number (PSN) in the BTH
    #[arg(long, value_name = "N", value_parser = number)]
    psn: Option<u32>,
    /// Affect only packets with this IBTA opcode name, such as "RC SEND Only" ("SEND Only" matches any transport
    /// service)
    #[arg(long, value_name = "NAME")]
    opcode: Option<String>,
    /// Affect only frames to or from the peer with this MAC or IP address
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<String>,
    /// Affect only the Nth matching frame, counting from 1
    #[arg(long, value_name = "N", conflicts_with = "probability")]
    nth: Option<u64>,
    /// Number of consecutive matching frames to affect, starting with the Nth [default: 1]
    #[arg(long, value_name = "N", requires = "nth")]
    count: Option<u64>,
    /// Affect each matching frame with this probability, from 0 to 1
    #[arg(long, value_name = "P", value_parser = probability)]
    probability: Option<Probability>,
    /// Seed for random choices (--probability, delay jitter and corruption) [default: 0]
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
    /// Drop the frame
    Drop,
    /// Duplicate the frame
    Duplicate {
        /// How long to delay the duplicate, in microseconds
        #[arg(long, default_value_t = 0)]
        after_us: u64,
    },
    /// Delay the frame
    Delay {
        /// How long to delay the frame, in microseconds
        us: u64,
        /// Maximum additional random delay, in microseconds
        #[arg(long, default_value_t = 0)]
        jitter_us: u64,
    },
    /// Hold the frame until later frames have overtaken it
    Reorder {
        /// Number of frames that overtake this frame
        by: u32,
        /// Maximum time to hold the frame, in microseconds
        #[arg(long, default_value_t = 10_000)]
        within_us: u64,
    },
    /// Invert one random bit of the frame
    Corrupt,
    /// Set the ECN field to Congestion Experienced
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

/// Returns a list of the impairments of all chosen devices.
pub(crate) fn list(daemon: &mut Daemon, cli: &Cli) -> anyhow::Result<String> {
    let devices = daemon.several(&cli.device)?;
    let (mut text, mut all) = (table::Text::default(), Vec::new());
    for device in devices.iter().copied() {
        let of = (devices.len() > 1).then_some(device);
        match daemon.ask(&Request::Impairments { device }) {
            Ok(Response::Impairments(rows)) => {
                text.add(&table::impairments(&rows), of);
                all.extend(rows.into_iter().map(|row| RowOf { row, device: of }));
            }
            Ok(_) => bail!("unexpected response from hcad"),
            Err(error) => daemon.ignore_if_removed(&cli.device, device, of_device(error, of))?,
        }
    }
    if cli.json { json(&all) } else { Ok(text.finish()) }
}

/// Returns a row's cells, in the order of the headings in `table::impairments`.
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
        (Some(nth), Some(count), _) => format!("{count} from #{nth}"),
        (Some(nth), None, _) => format!("#{nth}"),
        (None, _, Some(probability)) => format!("p={probability} seed {}", rule.seed.unwrap_or(0)),
        (None, _, None) => "always".to_owned(),
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

/// Parses a decimal number, or a hexadecimal number with the prefix 0x.
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
