//! An hour of traffic between two ConnectX cards: TCP in both directions, UDP, and files with verified content. The run
//! fails on any kernel warning, such as one from the transmit watchdog about a queue whose completions have stopped.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::content;
use super::net::Wire;
use super::station::{Station, shape, strict_card};
use super::streams::{Amount, Protocol, Streams};
use crate::daemon::HcaSpec;
use crate::lab::Lab;
use crate::report::Report;
use crate::testbed::kind::Device;

/// Default duration of a run, in minutes.
const MINUTES: u64 = 60;
/// Time allowed beyond the configured duration, mainly to finish the last round.
const MARGIN: Duration = Duration::from_secs(600);
/// Seed for the content of the transferred file.
const SEED: u64 = 34;

/// The streams of a round.
const ROUND: [Streams; 3] = [
    stream(Protocol::Tcp, false, Amount::Seconds(20)),
    stream(Protocol::Tcp, true, Amount::Seconds(20)),
    stream(Protocol::Udp, false, Amount::Seconds(5)),
];

const fn stream(protocol: Protocol, back: bool, amount: Amount) -> Streams {
    Streams { protocol, count: 4, back, ipv6: back, amount }
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, hca: Device) -> Result<()> {
    let run = lab.new_run(&format!("{}-soak", hca.name()))?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    let [a, b] = HcaSpec::pair()?.map(|spec| strict_card(hca, lab, spec));
    let (mut a, mut b) = tokio::try_join!(
        Station::with_hca(hca, lab, &run, &image, &a, shape(&a.name)),
        Station::with_hca(hca, lab, &run, &image, &b, shape(&b.name)),
    )
    .context(hint.clone())?;
    let minutes = lab.chance().minutes.unwrap_or(MINUTES);
    let length = Duration::from_secs(60 * minutes);
    let name = format!("{minutes} minutes of traffic without a kernel warning");
    report.case_within(length + MARGIN, &name, &hint, traffic(&mut a, &mut b, length)).await?;
    let stop = async {
        a.stop().await?;
        b.stop().await
    };
    report.case("the daemons exit cleanly on SIGTERM", &hint, stop).await
}

/// Runs rounds until `length` has elapsed. At least one round is run.
async fn traffic(a: &mut Station, b: &mut Station, length: Duration) -> Result<()> {
    let checksum = content::make(a, SEED).await?;
    let begun = Instant::now();
    for round in 1.. {
        let round = async {
            for streams in ROUND {
                streams.arrive(a, b, 0, Wire::Good).await?;
            }
            content::send(a, b, &checksum, Wire::Good).await?;
            a.no_warnings().await?;
            b.no_warnings().await
        }
        .await
        .with_context(|| format!("round {round}, after {} s", begun.elapsed().as_secs()));
        round?;
        if begun.elapsed() >= length {
            break;
        }
    }
    Ok(())
}
