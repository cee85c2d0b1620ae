//! Activity of devices and queue pairs between two polls of a daemon.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use card::frontend::snapshot::{Peer, QpCounters, QpRow};
use control_api::message::{Counters, DeviceRow, DeviceState, PortState};
use serde::Serialize;

use crate::{Daemon, counters};

/// Maximum number of queue pairs polled per device. It limits the load on the device, whose event loop spends one
/// iteration on each page of queue pairs.
const MAX_QPS: usize = 1024;

/// Counters obtained from one poll.
pub(super) struct Sample {
    at: Instant,
    /// Devices and their totals; `None` if the device did not respond.
    devices: Vec<(DeviceRow, Option<Totals>)>,
    qps: Vec<(u16, QpRow)>,
    /// Devices of which some queue pairs may be missing because they did not respond.
    unlisted: HashSet<u16>,
    /// Whether a device has at least [`MAX_QPS`] queue pairs, in which case some may be missing.
    pub(super) truncated: bool,
}

/// Line for one device. Unless stated otherwise, numbers are rates per second.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeviceLine {
    pub(super) id: u16,
    pub(super) interface: String,
    pub(super) state: &'static str,
    /// Whether the device is running with its link up.
    pub(super) is_healthy: bool,
    /// Current number of queue pairs, in any state.
    pub(super) qps: u64,
    /// Bytes sent on the wire.
    pub(super) sent: f64,
    pub(super) received: f64,
    /// RoCE packets and NIC frames, in both directions.
    pub(super) packets: f64,
    pub(super) retransmitted: f64,
    /// NAKs, both sent and received.
    pub(super) naks: f64,
    pub(super) dropped: f64,
}

/// Line for one queue pair. Unless stated otherwise, numbers are rates per second.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct QpLine {
    pub(super) device: u16,
    pub(super) qpn: u32,
    pub(super) service: &'static str,
    pub(super) state: String,
    pub(super) peer: String,
    /// Completed send requests per second.
    pub(super) sends: f64,
    pub(super) receives: f64,
    /// Current number of send requests that have started but not completed.
    pub(super) waiting: u64,
    /// Total number of failed requests.
    pub(super) failed: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct View {
    pub(super) devices: Vec<DeviceLine>,
    pub(super) qps: Vec<QpLine>,
    /// Whether queue pairs may be missing.
    pub(super) truncated: bool,
}

impl Sample {
    /// Polls the chosen devices, or all devices if none is chosen.
    pub(super) fn take(daemon: &mut Daemon, chosen: &[u16]) -> anyhow::Result<Self> {
        daemon.begin();
        let mut rows = daemon.devices()?;
        rows.retain(|row| chosen.is_empty() || chosen.contains(&row.id));
        let mut sample = Self {
            at: Instant::now(),
            devices: Vec::new(),
            qps: Vec::new(),
            unlisted: HashSet::new(),
            truncated: false,
        };
        for row in rows {
            let mut counted = None;
            sample.unlisted.insert(row.id);
            // A device that stops responding during the poll is still listed, but its counters or some of its queue
            // pairs may be missing.
            if row.state == DeviceState::Running
                && let Ok(counters) = counters::of(daemon, row.id)
            {
                counted = Some(Totals::of(&counters));
                if let Ok(truncated) = sample.list(daemon, row.id) {
                    sample.truncated |= truncated;
                    sample.unlisted.remove(&row.id);
                }
            }
            sample.devices.push((row, counted));
        }
        Ok(sample)
    }

    /// Adds a device's queue pairs, up to [`MAX_QPS`]. Returns whether this limit was reached.
    fn list(&mut self, daemon: &mut Daemon, device: u16) -> anyhow::Result<bool> {
        let mut count = 0;
        daemon.pages(device, "qps", |rows: Vec<QpRow>| {
            count += rows.len();
            self.qps.extend(rows.into_iter().map(|row| (device, row)));
            count < MAX_QPS
        })?;
        Ok(count >= MAX_QPS)
    }

    /// Returns the activity since `before`. New devices and queue pairs are counted from zero. The activity of a device
    /// that did not respond to one of the polls is unknown, and shown as 0.
    pub(super) fn since(&self, before: &Self) -> View {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let devices = self.devices.iter().map(|(row, counted)| {
            let earlier = before.devices.iter().find(|(other, _)| other.id == row.id);
            let earlier = match earlier {
                Some((_, earlier)) => earlier.or(*counted).unwrap_or_default(),
                None => Totals::default(),
            };
            let now = counted.unwrap_or(earlier);
            let rate = |of: fn(&Totals) -> u64| counters::rate(of(&earlier), of(&now), seconds);
            let (state, is_healthy) = state(row);
            DeviceLine {
                id: row.id,
                interface: row.interface.clone(),
                state,
                is_healthy,
                qps: now.qps,
                sent: rate(|totals| totals.sent),
                received: rate(|totals| totals.received),
                packets: rate(|totals| totals.packets),
                retransmitted: rate(|totals| totals.retransmitted),
                naks: rate(|totals| totals.naks),
                dropped: rate(|totals| totals.dropped),
            }
        });
        let earlier: HashMap<_, _> =
            before.qps.iter().map(|(device, row)| ((*device, row.qpn), row.counters)).collect();
        let qps = self.qps.iter().map(|(device, row)| {
            let now = &row.counters;
            let unknown = before.unlisted.contains(device).then_some(*now);
            let earlier = earlier.get(&(*device, row.qpn)).copied().or(unknown).unwrap_or_default();
            let rate = |of: fn(&QpCounters) -> u64| counters::rate(of(&earlier), of(now), seconds);
            QpLine {
                device: *device,
                qpn: row.qpn,
                service: row.service.name(),
                state: row.state.to_string(),
                peer: row.peer.as_ref().map(peer).unwrap_or_default(),
                sends: rate(|counters| counters.sends_completed),
                receives: rate(|counters| counters.receives_completed),
                waiting: now.sends_outstanding(),
                failed: now.failed,
            }
        });
        View { devices: devices.collect(), qps: qps.collect(), truncated: self.truncated }
    }
}

#[derive(Clone, Copy, Default)]
struct Totals {
    qps: u64,
    sent: u64,
    received: u64,
    packets: u64,
    retransmitted: u64,
    naks: u64,
    dropped: u64,
}

impl Totals {
    fn of(counters: &Counters) -> Self {
        let Counters { engine, port, fabric, qps, .. } = counters;
        // A network may flood frames for other devices to this port. Discarding them does not count as loss.
        let passed: u64 =
            ["other_mac", "reflected"].iter().filter_map(|reason| port.dropped.get(*reason)).sum();
        let at_port = port.dropped.values().sum::<u64>().saturating_sub(passed)
            + port.lost_link_down
            + port.lost_unresolved
            + port.lost_malformed;
        let at_fabric = fabric.tx_refused
            + fabric.tx_no_peer
            + fabric.rx_stranger
            + fabric.rx_bad_length
            + fabric.rx_over_rate
            + fabric.rx_foreign_mac
            + fabric.rx_foreign_ip
            + fabric.rx_overflow;
        Self {
            qps: sum(qps),
            sent: port.transmit.octets + port.nic_transmit.octets,
            received: port.receive.octets + port.nic_receive.octets,
            packets: [port.transmit, port.nic_transmit, port.receive, port.nic_receive]
                .iter()
                .map(|traffic| traffic.packets)
                .sum(),
            retransmitted: engine.recovery.retransmitted_packets,
            naks: sum(&engine.naks_sent) + sum(&engine.naks_received),
            dropped: sum(&engine.drops) + at_port + at_fabric,
        }
    }
}

/// Returns the sum of all fields in a counter struct.
fn sum(counters: &impl Serialize) -> u64 {
    let value = serde_json::to_value(counters).unwrap_or_default();
    value.as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
}

fn state(row: &DeviceRow) -> (&'static str, bool) {
    match (row.state, row.port) {
        (DeviceState::Restarting, _) => ("restarting", false),
        (DeviceState::NotAnswering, _) => ("no reply", false),
        (DeviceState::Running, _) if row.port_disabled => ("disabled", false),
        (DeviceState::Running, Some(PortState::Down)) => ("down", false),
        (DeviceState::Running, _) if !row.connected => ("no VMM", true),
        (DeviceState::Running, _) => ("up", true),
    }
}

fn peer(Peer { qpn, ip, .. }: &Peer) -> String {
    format!("{ip} {qpn:#x}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    /// Returns a sample of a device with a QP. `total` is the number of bytes sent and of completed requests, or `None`
    /// if the device did not respond.
    fn sample(at: Instant, total: Option<u64>) -> Sample {
        let row = json!({
            "id": 1, "interface": "mthca", "mac": "02:00:00:00:00:01", "ipv4": "10.77.0.1", "ipv6": "fe80::1",
            "connected": true, "state": "running", "restarts": 0, "port": "up",
        });
        let totals = total.map(|sent| Totals { sent, ..Totals::default() });
        let qp = |total| {
            let counters = QpCounters { sends_completed: total, ..QpCounters::default() };
            let row = json!({
                "qpn": 5, "state": "rts", "service": "rc", "pd": 1, "send_psn": 0, "unacked_psn": 0,
                "expected_psn": 0, "send_cqn": 1, "recv_cqn": 1, "send_slots": 8, "send_waiting": 0,
                "recv_slots": 8, "remote_rights": [], "max_rd_atomic": 1, "max_dest_rd_atomic": 1,
                "counters": counters,
            });
            (1, serde_json::from_value(row).unwrap())
        };
        Sample {
            at,
            devices: vec![(serde_json::from_value(row).unwrap(), totals)],
            qps: total.into_iter().map(qp).collect(),
            unlisted: total.is_none().then_some(1).into_iter().collect(),
            truncated: false,
        }
    }

    #[test]
    fn rates_are_zero_after_poll_without_response() {
        let begun = Instant::now();
        let polls = [Some(1000), None, Some(5000), Some(5700)];
        let polls: Vec<Sample> = (0..)
            .zip(polls)
            .map(|(second, total)| sample(begun + Duration::from_secs(second), total))
            .collect();
        let rates: Vec<(String, Vec<String>)> = polls
            .windows(2)
            .map(|pair| {
                let View { devices, qps, .. } = pair[1].since(&pair[0]);
                let text = |rate: f64| format!("{rate:.0}");
                (text(devices[0].sent), qps.iter().map(|qp| text(qp.sends)).collect())
            })
            .collect();
        let of =
            |rate: &str, qps: &[&str]| (rate.to_owned(), qps.iter().map(|qp| (*qp).to_owned()).collect());
        assert_eq!(rates, [of("0", &[]), of("0", &["0"]), of("700", &["700"])]);
        let partial = Sample { qps: Vec::new(), unlisted: HashSet::from([1]), ..sample(begun, Some(1000)) };
        let View { devices, qps, .. } = polls[2].since(&partial);
        let rates = format!("{:.0} {:.0}", devices[0].sent, qps[0].sends);
        assert_eq!(rates, "2000 0", "no response to the request for queue pairs");
        let nothing = Sample { devices: Vec::new(), ..sample(begun, None) };
        assert_eq!(format!("{:.0}", polls[0].since(&nothing).devices[0].sent), "1000000", "a new device");
    }
}
