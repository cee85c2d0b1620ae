//! Echo requests of many lengths, over both IP versions.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::net::Wire;
use super::station::{Address, Station};

/// Payload lengths: zero, one byte, lengths around the longest that needs no fragmentation at an MTU of 1500 (for IPv6
/// and for IPv4), and lengths that need many fragments.
const SIZES: &[u32] = &[0, 1, 56, 1452, 1453, 1472, 1473, 4000, 9000, 20_000, 65_000];
/// A few of these lengths, for pairs of stations that have already been tested with all of them.
const SOME: &[u32] = &[56, 1473, 20_000];
/// Timeout for all lengths with one IP version.
const LIMIT: Duration = Duration::from_secs(600);
/// How long a busy guest may take to count all packets that arrived.
const LATE: Duration = Duration::from_secs(60);
/// Number of requests per length.
const COUNT: u32 = 5;
/// Number of requests on a lossy link.
const LOSSY_COUNT: u32 = 20;

/// Shell functions that send echo requests and print the number of replies. Usage: SIZE COUNT [OPTION...] ADDRESS.
/// After the first reply, `ping` waits only two round-trip times for the remaining ones, which is too short for a busy
/// guest. To count every reply, `echo_all` polls the kernel's counters for up to a minute.
const FUNCTIONS: &str = r#"
counted() { nstat -asz IcmpInEchoReps Icmp6InEchoReplies | awk '!/^#/ { n += $2 } END { print n + 0 }'; }
send() { size=$1 count=$2; shift 2; ping -n -q -c $count -i 0.02 -W 5 -s $size "$@" 2>&1; }
echo_lossy() { send "$@" | sed -n "s/.*, \([0-9]*\) received.*/size $1: \1 replies/p"; }
echo_all() {
    before=$(counted)
    send "$@"
    for i in $(seq 300); do
        replies=$(($(counted) - before))
        [ $replies -lt $2 ] || break
        sleep 0.2
    done
    echo "size $1: $replies replies"
}
"#;

/// Shell script that sends `count` echo requests of one length on a lossless link. [`all_answered`] checks its output.
pub(in crate::scenario) fn script(size: u32, count: u32, address: &str) -> String {
    format!("{FUNCTIONS}echo_all {size} {count} {address}")
}

/// Checks that each of `count` requests received exactly one reply.
pub(in crate::scenario) fn all_answered(text: &str, size: u32, count: u32) -> Result<()> {
    let answered = replies(text, size)?;
    ensure!(answered == count, "{size} bytes: {answered} replies to {count} requests: {text}");
    Ok(())
}

pub(super) async fn all_sizes(from: &mut Station, address: &str, wire: Wire) -> Result<()> {
    sizes(from, address, SIZES, wire).await
}

pub(super) async fn some_sizes(from: &mut Station, address: &str, wire: Wire) -> Result<()> {
    sizes(from, address, SOME, wire).await
}

async fn sizes(from: &mut Station, address: &str, sizes: &[u32], wire: Wire) -> Result<()> {
    let count = if wire == Wire::Good { COUNT } else { LOSSY_COUNT };
    let mut script = FUNCTIONS.to_owned();
    for size in sizes {
        script += &format!("{} {size} {count} {address}\n", echo(wire));
    }
    let text = from.vm.run_within(LIMIT, &["sh", "-c", &script]).await?;
    for &size in sizes {
        let answered = replies(&text, size)?;
        let least = if wire == Wire::Good { count } else { least_of(count, size) };
        ensure!(
            answered >= least && answered <= count,
            "{size} bytes: {answered} of {count} requests received a reply: {text}"
        );
    }
    Ok(())
}

/// Sends pings of one length, without fragmentation. On a lossless link, every ping must be answered.
pub(super) async fn one_size(from: &mut Station, address: &str, size: u32, wire: Wire) -> Result<()> {
    let count = if wire == Wire::Good { 3 } else { LOSSY_COUNT };
    let script = format!("{FUNCTIONS}{} {size} {count} -M do {address}", echo(wire));
    let text = from.vm.run_within(LIMIT, &["sh", "-c", &script]).await?;
    let answered = replies(&text, size)?;
    let least = if wire == Wire::Good { count } else { least_of(count, 0) };
    ensure!(answered >= least, "{size} bytes: {answered} of {count} requests received a reply: {text}");
    Ok(())
}

/// Returns the name of the shell function that sends requests on a link.
const fn echo(wire: Wire) -> &'static str {
    match wire {
        Wire::Good => "echo_all",
        Wire::Lossy => "echo_lossy",
    }
}

/// Parses the number of replies for a size from the output of the shell functions.
fn replies(text: &str, size: u32) -> Result<u32> {
    let start = format!("size {size}: ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    let count = line.and_then(|line| line.strip_suffix(" replies")?.parse().ok());
    count.with_context(|| format!("no number of replies to {size} bytes: {text}"))
}

/// Waits until an address answers. The first requests may be lost while a driver programs its NIC's filters.
pub(super) async fn until_answered(from: &mut Station, address: &str) -> Result<()> {
    let line = format!("for i in $(seq 20); do ping -n -q -c 1 -W 1 {address} && exit 0; done; exit 1");
    from.sh(&line).await.map(drop).context("the peer never replied")
}

/// Checks that all members of a group reply, each from its own address.
pub(super) async fn group(from: &mut Station, members: &[Address], wire: Wire) -> Result<()> {
    /// Maximum number of attempts. A busy guest may reply only after `ping` has exited.
    const ROUNDS: u32 = 20;
    let count = if wire == Wire::Good { 3 } else { LOSSY_COUNT };
    let device = from.device.clone();
    let mut missing = String::new();
    for _ in 0..ROUNDS {
        let ping = |group: &str| format!("ping -n -c {count} -i 0.05 -W 1 -I {device} {group}; true");
        let text = from.sh(&ping("224.0.0.1")).await?;
        let silent = members.iter().find(|member| !text.contains(&format!("from {}:", member.ipv4)));
        // Pings to a link-local group are answered from link-local addresses. The sender is a member of the group too,
        // which adds one reply to those of `members`.
        let local = from.sh(&ping("ff02::1")).await?;
        let answering: BTreeSet<&str> = local
            .lines()
            .filter_map(|line| line.split_once("bytes from ")?.1.split_once(' '))
            .map(|(address, _)| address)
            .collect();
        ensure!(answering.len() <= members.len() + 1, "{answering:?} replied: {local}");
        missing = match silent {
            Some(member) => format!("no reply from {}: {text}", member.ipv4),
            None if answering.len() == members.len() + 1 => return Ok(()),
            None => format!("only {answering:?} replied: {local}"),
        };
    }
    bail!("{missing}")
}

/// Checks that ECN marks (RFC 3168, section 5) arrive unchanged, and that replies carry the same marks.
pub(super) async fn congestion_marks(a: &mut Station, b: &mut Station, wire: Wire) -> Result<()> {
    /// Counters of marked packets, by the value of the two ECN bits.
    const COUNTERS: [(u32, &str); 3] = [(1, "InECT1Pkts"), (2, "InECT0Pkts"), (3, "InCEPkts")];
    let count = if wire == Wire::Good { 3 } else { LOSSY_COUNT };
    let least = u64::from(if wire == Wire::Good { count } else { least_of(count, 0) });
    let address = b.address(0).ipv4;
    for (mark, counter) in COUNTERS {
        let before = [counted(a, counter).await?, counted(b, counter).await?];
        let line = format!("ping -n -q -c {count} -i 0.02 -W 1 -Q {mark} {address}; true");
        a.sh(&line).await?;
        let sent = Instant::now();
        loop {
            let after = [counted(a, counter).await?, counted(b, counter).await?];
            let seen = [after[0] - before[0], after[1] - before[1]];
            if seen.iter().all(|&seen| seen >= least) {
                break;
            }
            ensure!(sent.elapsed() < LATE, "{counter} of {count} requests and replies: {seen:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    Ok(())
}

/// Returns an IP counter of the guest.
async fn counted(station: &mut Station, counter: &str) -> Result<u64> {
    let text = station.sh("grep ^IpExt: /proc/net/netstat").await?;
    let mut lines = text.lines().map(str::split_whitespace);
    let (names, values) = (lines.next().context("no names")?, lines.next().context("no values")?);
    let value = names.zip(values).find_map(|(name, value)| (name == counter).then_some(value));
    Ok(value.with_context(|| format!("{counter} is missing in {text}"))?.parse()?)
}

/// Returns the minimum number of replies to `count` requests on a link that loses 1% of the frames. At most one run in
/// a million has fewer. The number of fragments is overestimated: a fragment actually holds up to 1480 bytes.
fn least_of(count: u32, size: u32) -> u32 {
    let frames = 2 * (size / 1400 + 1);
    match frames {
        0..4 => count / 2,
        4..16 => count / 4,
        _ => 0,
    }
}
