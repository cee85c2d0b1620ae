//! Compares the guests' port counters with those that `hcactl` reads on the host.

use std::time::Duration;

use agent::wire::ExitStatus;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::stock_pair::{StockNode, StockPair};

const LIMIT: Duration = Duration::from_secs(60);

/// Maximum number of attempts to read stable counters. They keep changing at first, while the kernels leave multicast
/// groups.
const ATTEMPTS: usize = 20;

/// Counter values, each with the counter's name in `perfquery`.
type Named = [(&'static str, u64); 8];

/// Checks that `perfquery -x`, `perfquery` and `hcactl counters` agree exactly.
pub(super) async fn agree(pair: &mut StockPair) -> Result<()> {
    for node in [&mut pair.a, &mut pair.b] {
        node.vm.run(&["ip", "link", "set", "ib0", "down"]).await?;
    }
    for node in [&mut pair.a, &mut pair.b] {
        let extended = quiet(node, "perfquery -x").await?;
        let moved = |name| extended.expected.iter().any(|(is, value)| *is == name && *value > 0);
        ensure!(
            moved("PortUnicastXmitPkts") && moved("PortMulticastRcvPkts"),
            "no traffic before the measurement: {extended:?}"
        );
        extended.compare(|value| value, 8)?;
        // The 32-bit counters saturate. Only the first four counters have a 32-bit version; those of unicast and
        // multicast packets do not.
        quiet(node, "perfquery").await?.compare(|value| value.min(u32::MAX.into()), 4)?;
    }
    Ok(())
}

/// Counter values from the guest and from the host, read while they were stable.
#[derive(Debug)]
struct Readings {
    guest: String,
    expected: Named,
}

impl Readings {
    /// Checks that the first `count` counters are equal in the guest and on the host, after `fit` has been applied to
    /// the host's values.
    fn compare(&self, fit: impl Fn(u64) -> u64, count: usize) -> Result<()> {
        for (name, expected) in self.expected.iter().take(count) {
            let found = perfquery(&self.guest, name)?;
            ensure!(found == fit(*expected), "{name} is {found}, but {expected} in hcactl: {}", self.guest);
        }
        Ok(())
    }
}

async fn quiet(node: &mut StockNode, command: &str) -> Result<Readings> {
    for _ in 0..ATTEMPTS {
        let before = hcactl(&node.daemon.control(&["counters"]).await?)?;
        let end = node.vm.program(LIMIT, command).await?;
        ensure!(end.status == ExitStatus::Code(0), "{:?}: {}{}", end.status, end.stdout, end.stderr);
        let expected = hcactl(&node.daemon.control(&["counters"]).await?)?;
        if before == expected {
            return Ok(Readings { guest: end.stdout, expected });
        }
    }
    anyhow::bail!("traffic did not stop within {ATTEMPTS} polls")
}

/// Returns the counters from `hcactl counters` under their names in PortCountersExtended (IBTA volume 1, section
/// 16.1.4.11). Data is counted in units of four octets.
fn hcactl(counters: &Value) -> Result<Named> {
    let read = |place: &str| {
        let value = counters.pointer(place).and_then(Value::as_u64);
        value.with_context(|| format!("no counter {place} in {counters}"))
    };
    let [sent, received] = [read("/port/transmit/packets")?, read("/port/receive/packets")?];
    let sent_to_groups = read("/port/transmit/multicast_packets")?;
    let received_of_groups = read("/port/receive/multicast_packets")?;
    Ok([
        ("PortXmitData", read("/port/transmit/octets")? / 4),
        ("PortRcvData", read("/port/receive/octets")? / 4),
        ("PortXmitPkts", sent),
        ("PortRcvPkts", received),
        ("PortUnicastXmitPkts", sent - sent_to_groups),
        ("PortUnicastRcvPkts", received - received_of_groups),
        ("PortMulticastXmitPkts", sent_to_groups),
        ("PortMulticastRcvPkts", received_of_groups),
    ])
}

/// Returns a counter's value from the output of `perfquery`, where each line contains a name, a colon, dots and a
/// value.
fn perfquery(text: &str, name: &str) -> Result<u64> {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let value = values.next().and_then(|value| value.trim_start_matches('.').trim().parse().ok());
    value.with_context(|| format!("{name} is missing in {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_lookup_matches_whole_name() {
        let text = "# Port extended counters: Lid 1 port 1 (CapMask: 0x300)\nPortSelect:......................1\n\
                    PortXmitPkts:....................17\nPortUnicastXmitPkts:.............9\n";
        assert_eq!(perfquery(text, "PortXmitPkts").unwrap(), 17);
        assert_eq!(perfquery(text, "PortUnicastXmitPkts").unwrap(), 9);
        assert!(perfquery(text, "PortXmit").is_err());
    }

    #[test]
    fn host_counters_are_mapped_to_guest_names() {
        let counters = serde_json::json!({"port": {
            "transmit": {"packets": 10, "multicast_packets": 3, "octets": 1003},
            "receive": {"packets": 7, "multicast_packets": 7, "octets": 8},
        }});
        let values = hcactl(&counters).unwrap().map(|(_, value)| value);
        assert_eq!(values, [250, 2, 10, 7, 7, 0, 3, 7]);
        assert!(hcactl(&serde_json::json!({})).is_err());
    }
}
