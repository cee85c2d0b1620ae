//! Runs perftest between two guests, parses its output, and defines the benchmarks that compare devices.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::tools::{Exchange, Ready};
use crate::vm::Vm;

/// TCP port of servers that do not use `rdma_cm`.
const PORT: u16 = 18515;
const LIMIT: Duration = Duration::from_secs(120);
/// Maximum number of attempts per program. perftest calibrates the CPU's cycle counter against the clock and may print
/// an infinite result if it is interrupted. The program is then run again.
const CALIBRATIONS: usize = 3;

/// Two guests whose devices are on the same network. The server runs in guest `b`.
#[derive(Debug)]
pub(super) struct Ends<'a> {
    pub(super) a: &'a mut Vm,
    pub(super) b: &'a mut Vm,
}

/// One device in each guest, both of the same kind.
#[derive(Clone, Debug)]
pub(super) struct Device {
    /// Name of the device in tables.
    pub(super) title: &'static str,
    /// Device names in guests `a` and `b`, each optionally followed by further arguments such as the GID index.
    pub(super) names: [String; 2],
    /// The server's IP address.
    pub(super) server: String,
    /// Whether the device is slow. Benchmarks send fewer messages on slow devices.
    pub(super) slow: bool,
}

#[derive(Debug)]
pub(super) struct Figure {
    program: &'static str,
    size: u32,
    /// Message counts for fast and for slow devices.
    messages: [u32; 2],
    /// Required ratio of an HCA's result to soft-RoCE's.
    pub(super) bound: Option<Bound>,
    rounds: usize,
    estimate: Estimate,
}

/// How the results of several runs of a benchmark are combined into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Estimate {
    /// Uses the best result. Other load on the host can only slow a run down.
    Best,
    /// Uses the mean. The median would be unstable for benchmarks whose result depends on how the host places threads
    /// on CPUs.
    Mean,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

pub(super) const FIGURES: &[Figure] = &[
    // The message counts make a run last at least a quarter of a second, which keeps short disturbances from dominating
    // the ratio.
    bounded(bandwidth("ib_write_bw", 65536, [4000, 200], Some(Bound::AtLeast(40.0)))),
    bounded(bandwidth("ib_write_bw", 1 << 20, [400, 20], Some(Bound::AtLeast(40.0)))),
    bounded(bandwidth("ib_send_bw", 65536, [4000, 60], None)),
    bounded(bandwidth("ib_read_bw", 65536, [4000, 60], None)),
    // The message counts are high enough for the host to move threads between CPUs several times per run.
    typical(9, bandwidth("ib_send_bw", 64, [100_000, 2000], None)),
    latency("ib_write_lat", Some(Bound::AtMost(0.2))),
    latency("ib_send_lat", None),
    latency("ib_read_lat", None),
];

const fn bandwidth(program: &'static str, size: u32, messages: [u32; 2], bound: Option<Bound>) -> Figure {
    Figure { program, size, messages, bound, rounds: 3, estimate: Estimate::Best }
}

const fn bounded(figure: Figure) -> Figure {
    Figure { rounds: 5, ..figure }
}

/// Creates a latency benchmark. The result is the mean of several runs, since each run depends on thread placement.
const fn latency(program: &'static str, bound: Option<Bound>) -> Figure {
    typical(5, bandwidth(program, 64, [3000, 300], bound))
}

const fn typical(rounds: usize, figure: Figure) -> Figure {
    Figure { rounds, estimate: Estimate::Mean, ..figure }
}

impl Figure {
    pub(super) fn is_latency(&self) -> bool {
        self.program.ends_with("_lat")
    }

    /// Returns the operation that the benchmark measures: `write`, `read` or `send`.
    pub(super) fn operation(&self) -> &'static str {
        self.program.split('_').nth(1).unwrap_or_default()
    }

    /// Returns the message size in bytes.
    pub(super) const fn size(&self) -> u32 {
        self.size
    }

    /// Returns the benchmark's name in result files, such as `rc_send_64k_bw`.
    pub(super) fn key(&self) -> String {
        let size = match self.size {
            size if size >= 1 << 20 => format!("{}m", size >> 20),
            size if size >= 1 << 10 => format!("{}k", size >> 10),
            size => format!("{size}b"),
        };
        let quantity = if self.is_latency() { "latency" } else { "bw" };
        format!("rc_{}_{size}_{quantity}", self.operation())
    }

    pub(super) fn name(&self) -> String {
        format!("{} of {} bytes", self.program, self.size)
    }

    /// Returns the first column of the benchmark's row in a table.
    pub(super) fn row(&self) -> String {
        format!("{:34}", format!("{} {} B, {}", self.program, self.size, self.unit()))
    }

    pub(super) fn unit(&self) -> &'static str {
        if self.is_latency() { "us" } else { "MiB/s" }
    }

    fn estimate(&self, values: &[f64]) -> f64 {
        let values = values.iter().copied();
        match self.estimate {
            Estimate::Best => values.fold(f64::NAN, f64::max),
            Estimate::Mean => values.clone().sum::<f64>() / values.len() as f64,
        }
    }

    /// Measures several devices in turn. A slow device is measured only once if the benchmark has no bound.
    pub(super) async fn in_turns(&self, ends: &mut Ends<'_>, devices: &[&Device]) -> Result<Vec<f64>> {
        let mut values = vec![Vec::new(); devices.len()];
        for round in 0..self.rounds {
            for (device, values) in devices.iter().zip(&mut values) {
                if round == 0 || !device.slow || self.bound.is_some() {
                    values.push(self.take(ends, device).await.context(device.title)?);
                }
            }
        }
        Ok(values.iter().map(|values| self.estimate(values)).collect())
    }

    /// Runs the benchmark once and returns the average bandwidth or the typical latency.
    pub(super) async fn take(&self, ends: &mut Ends<'_>, device: &Device) -> Result<f64> {
        let [fast, slow] = self.messages;
        let messages = if device.slow { slow } else { fast };
        let command = format!("{} -s {} -n {messages}", self.program, self.size);
        for _ in 0..CALIBRATIONS {
            let rows = measure(ends, &command, device).await?;
            let row = rows.first().context("no figure")?;
            let column = if self.is_latency() { 4 } else { 3 };
            let value = row.get(column).copied().context("too few columns")?;
            if value.is_finite() {
                return Ok(value);
            }
        }
        bail!("{command} could not measure the CPU's clock rate in {CALIBRATIONS} attempts");
    }
}

impl Bound {
    /// Checks that `value / of` is within the bound.
    pub(super) fn judge(self, value: f64, of: f64) -> Result<()> {
        let ratio = value / of;
        match self {
            Self::AtLeast(least) => {
                ensure!(ratio >= least, "{value}: {ratio:.2} times {of}, expected at least {least}")
            }
            Self::AtMost(most) => {
                ensure!(ratio <= most, "{value}: {ratio:.2} times {of}, expected at most {most}")
            }
        }
        Ok(())
    }

    /// Returns the bound as text for the name of a case.
    pub(super) fn text(self) -> String {
        match self {
            Self::AtLeast(ratio) => format!("at least {ratio} times"),
            Self::AtMost(ratio) => format!("at most {ratio:.2} times"),
        }
    }
}

/// Returns the heading of a results table: the devices, followed by the ratios of the first device to the others.
pub(super) fn heading(devices: &[&Device]) -> String {
    let mut text = format!("\n{:34}", "");
    for device in devices {
        write!(text, "{:>12}", device.title).expect("writing to a String cannot fail");
    }
    for device in devices.iter().skip(1) {
        write!(text, "{:>14}", format!("/{}", device.title)).expect("writing to a String cannot fail");
    }
    text.push('\n');
    text
}

/// Returns a benchmark's row in the table that starts with [`heading`].
pub(super) fn table_line(figure: &Figure, values: &[f64]) -> String {
    table_row(&figure.row(), values)
}

/// Returns a row with title `title` for the table that starts with [`heading`].
pub(super) fn table_row(title: &str, values: &[f64]) -> String {
    let mut text = format!("{title:34}");
    for value in values {
        write!(text, "{value:>12.1}").expect("writing to a String cannot fail");
    }
    if let [first, others @ ..] = values {
        for other in others {
            write!(text, "{:>14.2}", first / other).expect("writing to a String cannot fail");
        }
    }
    text.push('\n');
    text
}

/// Runs a perftest program in both guests. Returns the rows of the client's table as numbers.
pub(super) async fn measure(ends: &mut Ends<'_>, command: &str, device: &Device) -> Result<Vec<Vec<f64>>> {
    let [of_a, of_b] = &device.names;
    // Without -F, the program warns about CPUs whose frequency is unknown.
    let server = format!("{command} -F -d {of_b}");
    let client = format!("{command} -F -d {of_a} {}", device.server);
    let ready = if is_by_cm(command) { Ready::Cm } else { Ready::Tcp(PORT) };
    let ended = Exchange { server, client, ready, limit: LIMIT }.run(ends.b, ends.a).await?;
    let rows = rows(&ended.client.stdout);
    ensure!(!rows.is_empty(), "no figures in the output: {}{}", ended.client.stdout, ended.client.stderr);
    Ok(rows)
}

/// Returns whether the program connects through `rdma_cm`.
pub(super) fn is_by_cm(command: &str) -> bool {
    command.contains(" -R")
}

/// Runs a program with [`measure`] and checks that it reports one row per message size.
pub(super) async fn complete(
    ends: &mut Ends<'_>,
    command: &str,
    sizes: usize,
    device: &Device,
) -> Result<()> {
    let rows = measure(ends, command, device).await?;
    ensure!(rows.len() == sizes, "{} sizes reported, expected {sizes}: {rows:?}", rows.len());
    Ok(())
}

/// Parses the lines that consist of at least five numbers. The first number in each is the message size in bytes.
fn rows(text: &str) -> Vec<Vec<f64>> {
    let numbers =
        |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    text.lines().filter_map(numbers).filter(|row| row.len() >= 5).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_lines_are_parsed_as_rows() {
        let text = " Number of qps   : 1\t\tTransport type : IB\n\
             #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n \
             65536      1000           612.04             611.98\t\t   0.009792\n---------------\n";
        assert_eq!(rows(text), [[65536.0, 1000.0, 612.04, 611.98, 0.009_792]]);
    }

    #[test]
    fn best_bandwidth_and_mean_latency_are_reported() {
        let values = [3.0, 1.0, 9.0, 2.0, 2.5];
        assert_eq!(bandwidth("ib_send_bw", 64, [1, 1], None).estimate(&values), 9.0);
        assert_eq!(latency("ib_send_lat", None).estimate(&values), 3.5);
        assert!(latency("ib_send_lat", None).estimate(&[]).is_nan());
    }

    #[test]
    fn result_key_names_operation_size_and_metric() {
        assert_eq!(bandwidth("ib_send_bw", 65536, [1, 1], None).key(), "rc_send_64k_bw");
        assert_eq!(latency("ib_read_lat", None).key(), "rc_read_64b_latency");
    }

    #[test]
    fn bounds_are_inclusive() {
        assert!(Bound::AtLeast(40.0).judge(80.0, 2.0).is_ok());
        assert!(Bound::AtLeast(40.0).judge(79.0, 2.0).is_err());
        assert!(Bound::AtMost(0.2).judge(2.0, 10.0).is_ok());
        assert!(Bound::AtMost(0.2).judge(2.1, 10.0).is_err());
    }
}
