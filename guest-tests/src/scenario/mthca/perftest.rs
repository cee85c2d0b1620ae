//! perftest between two guests: every operation, service and size; and its figures beside those of soft-RoCE, measured
//! by the same programs in the same guests.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::stock_pair::StockPair;
use crate::lab::Lab;
use crate::report::{Report, line};
use crate::tools::{Exchange, Ready};

/// Program and arguments, and how many sizes it reports.
const CASES: &[(&str, usize)] = &[
    ("ib_write_bw -a -n 50", 23),
    ("ib_read_bw -a -n 20", 23),
    ("ib_send_bw -a -n 20", 23),
    ("ib_write_bw -a -n 20 -b", 23),
    ("ib_read_bw -a -n 10 -b", 23),
    ("ib_send_bw -a -n 10 -b", 23),
    ("ib_write_bw -s 4096 -n 1000 -q 8", 1),
    ("ib_read_bw -s 65536 -n 100 -q 4", 1),
    ("ib_send_bw -s 4096 -n 1000 -q 8", 1),
    ("ib_send_bw -s 4096 -n 1000 -q 4 -b", 1),
    ("ib_write_bw -s 64 -n 5000 -I 64", 1),
    ("ib_send_bw -s 64 -n 5000 -I 64", 1),
    ("ib_send_bw -s 4096 -n 1000 -e", 1),
    ("ib_send_bw -s 4096 -n 1000 -r 4", 1),
    ("ib_write_bw -s 4096 -n 1000 -m 256", 1),
    ("ib_send_bw -s 4096 -n 1000 -m 1024 -x 0", 1),
    // What does not fit into a socket of the host is lost, and UC does not ask again: few messages at a time, and pauses
    // as long as 100 MiB/s ask for, in which a starved peer catches up.
    ("ib_send_bw -c UC -s 4096 -n 500 -t 8 -r 512", 1),
    ("ib_send_bw -c UC -a -n 5 -t 1 --rate_limit=100 --rate_units=M --rate_limit_type=SW", 23),
    ("ib_write_bw -c UC -a -n 20", 23),
    ("ib_send_bw -c UD -a -n 100", 11),
    ("ib_send_bw -c UD -s 2048 -n 500 -q 2", 1),
    ("ib_atomic_bw -A FETCH_AND_ADD -n 1000", 1),
    ("ib_atomic_bw -A CMP_AND_SWAP -n 1000 -q 2", 1),
    ("ib_atomic_bw -A FETCH_AND_ADD -n 500 -b", 1),
    ("ib_write_lat -a -n 50", 23),
    ("ib_read_lat -a -n 20", 23),
    ("ib_send_lat -a -n 50", 23),
    ("ib_read_bw -s 4096 -n 1000 -e", 1),
    // Not `ib_send_lat -e`: it takes every event for a completion. A queue that is armed before it is polled raises one
    // more for what is there (mthca interface, section 7.6), as ibv_get_cq_event(3) tells programs to expect.
    ("ib_send_lat -s 64 -n 500 -I 0", 1),
    ("ib_write_lat -s 64 -n 500 -I 64", 1),
    ("ib_write_lat -c UC -a -n 20", 23),
    ("ib_send_lat -c UC -a -n 20", 23),
    ("ib_send_lat -c UD -a -n 50", 11),
    ("ib_atomic_lat -A FETCH_AND_ADD -n 500", 1),
    ("ib_atomic_lat -A CMP_AND_SWAP -n 500", 1),
];

/// A figure measured on both.
struct Figure {
    program: &'static str,
    size: u32,
    /// Messages, for the HCA and for soft-RoCE, which is slower.
    messages: [u32; 2],
    /// What the HCA must reach, as a multiple of soft-RoCE's.
    bound: Option<Bound>,
}

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

const FIGURES: &[Figure] = &[
    bandwidth("ib_write_bw", 65536, [1000, 60], Some(Bound::AtLeast(40.0))),
    bandwidth("ib_write_bw", 1 << 20, [200, 10], Some(Bound::AtLeast(40.0))),
    bandwidth("ib_send_bw", 65536, [1000, 60], None),
    bandwidth("ib_read_bw", 65536, [1000, 60], None),
    bandwidth("ib_send_bw", 64, [5000, 2000], None),
    latency("ib_write_lat", Some(Bound::AtMost(0.2))),
    latency("ib_send_lat", None),
    latency("ib_read_lat", None),
];

const fn bandwidth(program: &'static str, size: u32, messages: [u32; 2], bound: Option<Bound>) -> Figure {
    Figure { program, size, messages, bound }
}

const fn latency(program: &'static str, bound: Option<Bound>) -> Figure {
    Figure { program, size: 64, messages: [1000, 300], bound }
}

/// Where all of them wait for their client.
const PORT: u16 = 18515;
const LIMIT: Duration = Duration::from_secs(120);

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let mut pair = StockPair::start(lab, "mthca-perftest").await?;
    let hint = pair.hint();
    report.case("both ports are active", &hint, pair.load()).await?;
    for &(case, sizes) in CASES {
        report
            .case(case, &hint, async {
                let rows = measure(&mut pair, case, "mthca0").await?;
                ensure!(rows.len() == sizes, "{} sizes reported, not {sizes}: {rows:?}", rows.len());
                Ok(())
            })
            .await?;
    }
    report.case("no kernel warned of anything", &hint, pair.no_warnings()).await?;

    report.case("soft-RoCE on the same guests' Ethernet", &hint, pair.add_soft_roce()).await?;
    let mut table = format!("\n{:34}{:>12}{:>12}{:>10}\n", "", "ib_mthca", "soft-RoCE", "ratio");
    for figure in FIGURES {
        let name = figure.name();
        report.case(&name, &hint, figure.compare(&mut pair, &mut table)).await?;
    }
    line(&table)?;
    report.case("the daemons end with success on SIGTERM", &hint, pair.stop()).await
}

impl Figure {
    fn is_latency(&self) -> bool {
        self.program.ends_with("_lat")
    }

    fn name(&self) -> String {
        let bound = match self.bound {
            Some(Bound::AtLeast(ratio)) => format!(", at least {ratio} times soft-RoCE's"),
            Some(Bound::AtMost(ratio)) => format!(", at most {ratio} of soft-RoCE's"),
            None => ", beside soft-RoCE's".into(),
        };
        format!("{} of {} bytes{bound}", self.program, self.size)
    }

    async fn compare(&self, pair: &mut StockPair, table: &mut String) -> Result<()> {
        let mut values = [0.0; 2];
        // The GID of soft-RoCE's IPv4 address.
        for (index, device) in ["mthca0", "rxe0 -x 1"].into_iter().enumerate() {
            let command = format!("{} -s {} -n {}", self.program, self.size, self.messages[index]);
            let rows = measure(pair, &command, device).await?;
            let row = rows.first().context("no figure")?;
            // Bandwidth on average, or the typical latency.
            values[index] = *row.get(if self.is_latency() { 4 } else { 3 }).context("too few columns")?;
        }
        let [ours, theirs] = values;
        let ratio = ours / theirs;
        let unit = if self.is_latency() { "us" } else { "MiB/s" };
        let name = format!("{} {} B, {unit}", self.program, self.size);
        writeln!(table, "{name:34}{ours:>12.1}{theirs:>12.1}{ratio:>10.2}")?;
        match self.bound {
            Some(Bound::AtLeast(least)) => {
                ensure!(ratio >= least, "{ours} {unit}: {ratio:.1} times {theirs}")
            }
            Some(Bound::AtMost(most)) => ensure!(ratio <= most, "{ours} {unit}: {ratio:.2} times {theirs}"),
            None => {}
        }
        Ok(())
    }
}

/// Runs a program of perftest on both sides; the rows of the client's table as numbers.
pub(in super::super) async fn measure(
    pair: &mut StockPair,
    command: &str,
    device: &str,
) -> Result<Vec<Vec<f64>>> {
    // Without -F it complains of processors whose frequency it cannot find out.
    let server = format!("{command} -F -d {device}");
    let client = format!("{server} {}", pair.b.ip);
    let ends = pair.exchange(&Exchange { server, client, ready: Ready::Tcp(PORT), limit: LIMIT }).await?;
    let rows = rows(&ends.client.stdout);
    ensure!(!rows.is_empty(), "no figures: {}{}", ends.client.stdout, ends.client.stderr);
    Ok(rows)
}

/// Lines that are all numbers, the first of them a size in bytes.
fn rows(text: &str) -> Vec<Vec<f64>> {
    let numbers =
        |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    text.lines().filter_map(numbers).filter(|row| row.len() >= 5).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_lines_of_numbers() {
        let text = " Number of qps   : 1\t\tTransport type : IB\n\
             #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n \
             65536      1000           612.04             611.98\t\t   0.009792\n---------------\n";
        assert_eq!(rows(text), [[65536.0, 1000.0, 612.04, 611.98, 0.009_792]]);
    }
}
