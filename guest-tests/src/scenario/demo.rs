//! The demo: every operation and size between two guests, then a ping-pong and bandwidth tests between two stock
//! guests.

use anyhow::Result;
use tokio::time::Instant;

use super::connection::{Attributes, Connection};
use super::jingzhao_rc::{OPS, SIZES};
use super::mthca;
use super::pair::Pair;
use super::perftest;
use super::stock_pair::StockPair;
use super::transfer::{Plan, Transfer, transfer};
use crate::lab::Lab;
use crate::qemu::Accelerator;
use crate::report::line;

/// Text printed at the end. `guest-lab` is replaced by the command that started this program.
const CLOSING_TEXT: &str = "\
What you saw:
  1. Two guests with JingZhao HCAs and a user-space driver ran all operations and sizes. Every byte was compared.
  2. Two guests with stock Debian kernels and ib_mthca ran a ping-pong and bandwidth tests with stock tools.
What to try next:
  guest-lab up mthca --name lab --share .:/t   # boot two guests with this directory at /t
  guest-lab exec lab:a -- ibv_devinfo          # run a command in guest a
  guest-lab shell lab:b                        # open a shell in guest b
  guest-lab down lab                           # stop both guests
See device/book/src/quick-start.md for these commands, and 'guest-lab help' for all commands.";

const HEADING: &str = "operation       size  messages        bytes        time        rate  verified";

/// Boots two guests and runs every operation and size once, then boots two stock guests and runs stock tools. Prints
/// all results.
///
/// # Errors
/// Fails if a guest does not boot or if data is lost, late or wrong.
pub async fn run(lab: &Lab) -> Result<()> {
    let begun = Instant::now();
    let accelerator = match lab.accelerator() {
        Accelerator::Kvm => "KVM",
        Accelerator::Tcg => "emulated, without KVM",
    };
    line(&format!("booting two guests with JingZhao HCAs ({accelerator})"))?;
    let mut pair = Pair::start_open(lab, "demo").await?;
    line(&format!(
        "guests booted in {:.1} s and {:.1} s; path MTU is 4096\n",
        pair.a.vm.boot_time().as_secs_f64(),
        pair.b.vm.boot_time().as_secs_f64()
    ))?;
    line(HEADING)?;
    let mut total = Totals::default();
    for (name, op) in OPS {
        let connection = Connection::create(&mut pair, &Attributes::default()).await?;
        for len in SIZES {
            let moved = transfer(&mut pair, &connection, Plan::new(op, len)).await?;
            total.add(&moved);
            line(&row(name, len, &moved))?;
        }
        connection.destroy(&mut pair).await?;
    }
    let captures = pair.run().captures()?;
    let folder = pair.run().path().to_owned();
    pair.stop().await?;
    line(&format!(
        "\n{} messages with {} bytes, all compared at both ends, in {:.0} s",
        total.messages,
        total.bytes,
        begun.elapsed().as_secs_f64()
    ))?;
    for capture in captures {
        line(&format!("capture for Wireshark: {}", capture.display()))?;
    }
    line(&format!("console output, logs and command lines: {}", folder.display()))?;
    stock(lab).await?;
    let program = std::env::args().next().unwrap_or_else(|| "guest-lab".into());
    line(&format!("\n{}", shown(&program)))
}

fn shown(program: &str) -> String {
    CLOSING_TEXT.replace("guest-lab ", &format!("{program} "))
}

/// Runs the second part of the demo, with Debian's kernel, drivers, user-space libraries and tools.
async fn stock(lab: &Lab) -> Result<()> {
    let begun = Instant::now();
    line("\nbooting two guests with stock Debian kernels and ib_mthca")?;
    let mut pair = StockPair::start(lab, "demo-stock").await?;
    pair.load().await?;
    for command in ["ibv_devices", "ibv_rc_pingpong -d mthca0 -c -s 4096 -n 1000"] {
        line(&format!("\n# {command}"))?;
        let output = if command.contains("pingpong") {
            mthca::pingpong::ping_pong(&mut pair, command).await?.stdout
        } else {
            pair.a.vm.run(&[command]).await?
        };
        line(output.trim_end())?;
    }
    let command = "ib_write_bw -a -n 100";
    line(&format!("\n# {command}\n{BANDWIDTH_HEADING}"))?;
    let device = pair.perftest_device();
    for row in perftest::measure(&mut pair.ends(), command, &device).await? {
        // The columns are message size, number of messages, peak bandwidth, average bandwidth, and millions of messages
        // per second.
        if let [size, messages, _, average, rate, ..] = row[..] {
            line(&format!("{size:>10} {messages:>9} {average:>10.1} {:>10.0}", rate * 1e6))?;
        }
    }
    let folder = pair.folder().to_owned();
    pair.stop().await?;
    line(&format!("\nstock guests ran for {:.0} s, from boot to shutdown", begun.elapsed().as_secs_f64()))?;
    line(&format!("console output, logs and command lines: {}", folder.display()))
}

const BANDWIDTH_HEADING: &str = "     bytes  messages      MiB/s      msg/s";

#[derive(Debug, Default)]
struct Totals {
    messages: u64,
    bytes: u64,
}

impl Totals {
    fn add(&mut self, moved: &Transfer) {
        self.messages += moved.messages;
        self.bytes += moved.bytes;
    }
}

fn row(name: &str, len: u32, moved: &Transfer) -> String {
    format!(
        "{name:9} {:>10}  {:>8}  {:>11}  {:>10}  {:>10}  both ends",
        size(len),
        moved.messages,
        moved.bytes,
        format!("{:.2} ms", moved.time.as_secs_f64() * 1e3),
        rate(moved)
    )
}

fn size(len: u32) -> String {
    match len {
        0..1024 => format!("{len} B"),
        1024..0x10_0000 => format!("{} KiB", len >> 10),
        _ => format!("{} MiB", len >> 20),
    }
}

/// Formats a rate, in bytes per second for large messages and in messages per second for small ones.
fn rate(moved: &Transfer) -> String {
    let seconds = moved.time.as_secs_f64().max(1e-9);
    if moved.bytes / moved.messages.max(1) < 4096 {
        format!("{:.0} msg/s", moved.messages as f64 / seconds)
    } else {
        format!("{:.0} MiB/s", moved.bytes as f64 / seconds / f64::from(1 << 20))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn closing_text_uses_program_path() {
        let text = shown("target/release/guest-lab");
        assert!(text.contains("  target/release/guest-lab up mthca --name lab"), "{text}");
        assert!(text.contains("'target/release/guest-lab help'"), "{text}");
        assert!(!text.contains("  guest-lab"), "{text}");
    }

    #[test]
    fn columns_align_with_headings() {
        let moved = Transfer { messages: 1, bytes: 16 << 20, time: Duration::from_millis(500) };
        let long = row("SEND", 16 << 20, &moved);
        assert_eq!(long, "SEND          16 MiB         1     16777216   500.00 ms    32 MiB/s  both ends");
        let moved = Transfer { messages: 24, bytes: 24, time: Duration::from_millis(12) };
        let short = row("READ", 1, &moved);
        assert_eq!(short, "READ             1 B        24           24    12.00 ms  2000 msg/s  both ends");
        for row in [long, short] {
            assert_eq!(row.len(), HEADING.len() + 1, "{row}");
        }
    }
}
