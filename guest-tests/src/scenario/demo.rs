//! The first thing a newcomer sees: all operations and sizes between two guests, as a table.

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use super::connection::{Attributes, Connection};
use super::jingzhao_rc::{OPS, SIZES};
use super::pair::Pair;
use super::transfer::{Plan, Transfer, transfer};
use crate::lab::Lab;
use crate::report::line;

/// Boots two guests, moves everything once and prints what happened.
///
/// # Errors
/// When a guest does not come up, or anything arrives late, wrong or not at all.
pub async fn run(lab: &Lab) -> Result<()> {
    let begun = Instant::now();
    line(&format!("booting two guests ({:?})", lab.accelerator()))?;
    let mut pair = Pair::start_open(lab, "demo").await?;
    line(&format!(
        "guests answered after {:.1} s and {:.1} s; moving data over a path MTU of 4096\n",
        pair.a.vm.boot_time().as_secs_f64(),
        pair.b.vm.boot_time().as_secs_f64()
    ))?;
    line("operation       size  messages        bytes        time        rate  verified")?;
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
        "\n{} messages, {} bytes, all of them compared at both ends; {:.0} s in all",
        total.messages,
        total.bytes,
        begun.elapsed().as_secs_f64()
    ))?;
    for capture in captures {
        line(&format!("capture: {}", capture.display()))?;
    }
    line(&format!("consoles, logs and command lines: {}", folder.display()))
}

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
        rate(moved.bytes, moved.time)
    )
}

fn size(len: u32) -> String {
    match len {
        0..1024 => format!("{len} B"),
        1024..0x10_0000 => format!("{} KiB", len >> 10),
        _ => format!("{} MiB", len >> 20),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate is printed with three digits")]
fn rate(bytes: u64, time: Duration) -> String {
    let mib = bytes as f64 / time.as_secs_f64().max(1e-9) / f64::from(1 << 20);
    format!("{mib:.1} MiB/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_with_their_heading() {
        let moved = Transfer { messages: 1, bytes: 16 << 20, time: Duration::from_millis(500) };
        assert_eq!(
            row("SEND", 16 << 20, &moved),
            "SEND          16 MiB         1     16777216   500.00 ms  32.0 MiB/s  both ends"
        );
    }
}
