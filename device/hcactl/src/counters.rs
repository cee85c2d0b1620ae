//! Prints device counters, either once or repeatedly along with their rates.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use control_api::message::{Counters, Request, Response};
use serde_json::{Map, Value};

use crate::table::Text;
use crate::{Daemon, json, print};

/// Minimum sampling period. Each sample takes one iteration of the device's event loop, so a shorter period would slow
/// down the device.
const MIN_PERIOD: Duration = Duration::from_millis(100);

/// Moves the cursor to the top left of the terminal and clears the screen below it.
const CLEAR: &str = "\x1b[H\x1b[J";

pub(crate) fn period(text: &str) -> anyhow::Result<Duration> {
    let seconds: f64 = text.parse().context("the interval is not a valid number of seconds")?;
    let period = Duration::try_from_secs_f64(seconds).context("the interval is negative or too long")?;
    ensure!(period >= MIN_PERIOD, "the interval must be at least {} s", MIN_PERIOD.as_secs_f64());
    Ok(period)
}

pub(crate) fn of(daemon: &mut Daemon, device: u16) -> anyhow::Result<Counters> {
    match daemon.ask(&Request::Counters { device })? {
        Response::Counters(counters) => Ok(*counters),
        _ => bail!("unexpected response from hcad"),
    }
}

/// Returns the counters of the chosen devices, or of all devices if none were chosen, as text or JSON. For several
/// devices, the JSON is an object with one key per device.
pub(crate) fn once(daemon: &mut Daemon, chosen: &[u16], as_json: bool) -> anyhow::Result<String> {
    let all = Sample::take(daemon, chosen)?;
    match (as_json, all.devices.as_slice()) {
        (true, [(_, only)]) => json(only),
        (true, _) => json(&all.to_json()),
        (false, _) => Ok(all.table()),
    }
}

/// Prints counters and rates periodically until the reader closes standard output. If no devices were chosen, the
/// output covers devices from when they are added until they are removed.
pub(crate) fn watch(
    daemon: &mut Daemon,
    chosen: &[u16],
    period: Duration,
    as_json: bool,
) -> anyhow::Result<()> {
    let clear = if io::stdout().is_terminal() && !as_json { CLEAR } else { "" };
    let mut before = Sample::take(daemon, chosen)?;
    loop {
        std::thread::sleep(period);
        daemon.begin();
        let now = Sample::take(daemon, chosen)?;
        let text = if as_json { json(&now.since(&before))? } else { now.table_since(&before) + "\n" };
        if !print(&format!("{clear}{text}"))? {
            return Ok(());
        }
        before = now;
    }
}

/// Each device's counters at one point in time, as JSON.
struct Sample {
    at: Instant,
    devices: Vec<(u16, Value)>,
}

impl Sample {
    fn take(daemon: &mut Daemon, chosen: &[u16]) -> anyhow::Result<Self> {
        let mut sample = Self { at: Instant::now(), devices: Vec::new() };
        for device in daemon.several(chosen)? {
            match of(daemon, device) {
                Ok(counters) => sample.devices.push((device, serde_json::to_value(counters)?)),
                Err(error) => daemon
                    .ignore_if_removed(chosen, device, error)
                    .with_context(|| format!("cannot read the counters of device {device}"))?,
            }
        }
        Ok(sample)
    }

    fn to_json(&self) -> Value {
        let devices = self.devices.iter().map(|(device, counters)| (device.to_string(), counters.clone()));
        Value::Object(devices.collect())
    }

    /// Formats the counters as a table with one line per counter and one column per device.
    fn table(&self) -> String {
        let mut text = Text::default();
        let mut head = vec!["COUNTER".to_owned()];
        match self.devices.as_slice() {
            [_] => head.push("VALUE".to_owned()),
            several => head.extend(several.iter().map(|(device, _)| format!("DEVICE-{device}"))),
        }
        text.line(head);
        for (name, values) in self.flat() {
            let cells =
                values.iter().map(|value| value.map_or_else(|| "-".to_owned(), |value| value.to_string()));
            text.line([name].into_iter().chain(cells).collect());
        }
        text.finish()
    }

    /// Formats the counters and their rates since `before` as a table. Counters that are zero on all devices are
    /// omitted.
    fn table_since(&self, before: &Self) -> String {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let mut text = Text::default();
        let mut head = vec!["COUNTER".to_owned()];
        for (device, _) in &self.devices {
            head.push(if self.devices.len() == 1 { "VALUE".to_owned() } else { format!("DEVICE-{device}") });
            head.push("PER-SECOND".to_owned());
        }
        text.line(head);
        let earlier: std::collections::BTreeMap<_, _> = before.flat().into_iter().collect();
        let position = |(device, _): &(u16, Value)| before.devices.iter().position(|(id, _)| id == device);
        let positions: Vec<_> = self.devices.iter().map(position).collect();
        for (name, values) in self.flat() {
            if values.iter().all(|value| value.unwrap_or(0) == 0) {
                continue;
            }
            let earlier = earlier.get(&name);
            let mut cells = vec![name];
            for (value, position) in values.iter().zip(&positions) {
                let earlier = earlier.and_then(|values| *values.get((*position)?)?).unwrap_or(0);
                let rate = value.map(|value| rate(earlier, value, seconds));
                cells.push(value.map_or_else(|| "-".to_owned(), |value| value.to_string()));
                cells.push(rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}")));
            }
            text.line(cells);
        }
        text.finish()
    }

    /// Returns the counters and, under the same keys, their rates since `before`, as JSON.
    fn since(&self, before: &Self) -> Value {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let empty = Value::Null;
        let rates = self.devices.iter().map(|(device, counters)| {
            let earlier =
                before.devices.iter().find(|(id, _)| id == device).map_or(&empty, |(_, earlier)| earlier);
            (device.to_string(), rates(earlier, counters, seconds))
        });
        let rates: Map<String, Value> = rates.collect();
        json!({ "seconds": seconds, "counters": self.to_json(), "per_second": rates })
    }

    /// Returns each counter's path and its value on every device, or `None` for devices that do not have the counter.
    fn flat(&self) -> Vec<(String, Vec<Option<u64>>)> {
        let mut all: Vec<(String, Vec<Option<u64>>)> = Vec::new();
        let mut places = std::collections::HashMap::new();
        for (index, (_, counters)) in self.devices.iter().enumerate() {
            walk("", counters, &mut |name, value| {
                let place = *places.entry(name.to_owned()).or_insert_with(|| {
                    all.push((name.to_owned(), vec![None; self.devices.len()]));
                    all.len() - 1
                });
                if let Some(cell) = all.get_mut(place).and_then(|(_, values)| values.get_mut(index)) {
                    *cell = Some(value);
                }
            });
        }
        all
    }
}

/// Returns a counter's rate per second. If the counter has decreased, its device was reset in between, so the count
/// restarted from zero.
pub(crate) fn rate(earlier: u64, now: u64, seconds: f64) -> f64 {
    let gained = now.checked_sub(earlier).unwrap_or(now);
    #[expect(clippy::cast_precision_loss, reason = "for people, and far below 2^53")]
    let gained = gained as f64;
    gained / seconds
}

fn rates(earlier: &Value, now: &Value, seconds: f64) -> Value {
    match now {
        Value::Object(parts) => {
            let parts = parts.iter().map(|(name, now)| {
                (name.clone(), rates(earlier.get(name).unwrap_or(&Value::Null), now, seconds))
            });
            Value::Object(parts.collect())
        }
        Value::Array(parts) => {
            let earlier = |index: usize| earlier.get(index).unwrap_or(&Value::Null);
            parts.iter().enumerate().map(|(index, now)| rates(earlier(index), now, seconds)).collect()
        }
        leaf => json!(rate(earlier.as_u64().unwrap_or(0), leaf.as_u64().unwrap_or(0), seconds)),
    }
}

fn walk(name: &str, value: &Value, each: &mut impl FnMut(&str, u64)) {
    match value {
        Value::Object(parts) => {
            for (part, value) in parts {
                let name = if name.is_empty() { part.clone() } else { format!("{name}.{part}") };
                walk(&name, value, each);
            }
        }
        // Histogram buckets are omitted.
        Value::Array(_) => {}
        leaf => each(name, leaf.as_u64().unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: Instant, devices: &[(u16, Value)]) -> Sample {
        Sample { at, devices: devices.to_vec() }
    }

    #[test]
    fn rate_treats_decreased_counter_as_reset() {
        let began = Instant::now();
        let before =
            sample(began, &[(1, json!({ "a": { "x": 10, "y": 0 } })), (2, json!({ "a": { "x": 500 } }))]);
        let now = sample(
            began + Duration::from_secs(2),
            &[(1, json!({ "a": { "x": 30, "y": 0 } })), (2, json!({ "a": { "x": 100, "z": 4 } }))],
        );
        assert_eq!(
            now.table_since(&before),
            "COUNTER  DEVICE-1  PER-SECOND  DEVICE-2  PER-SECOND\n\
             a.x      30        10          100       50\n\
             a.z      -         -           4         2\n"
        );
        assert_eq!(
            now.since(&before)["per_second"],
            json!({ "1": { "a": { "x": 10.0, "y": 0.0 } }, "2": { "a": { "x": 50.0, "z": 2.0 } } })
        );
        let without_first = sample(now.at, &[now.devices[1].clone()]);
        assert_eq!(
            without_first.table_since(&before),
            "COUNTER  VALUE  PER-SECOND\n\
             a.x      100    50\n\
             a.z      4      2\n",
            "a device that has been removed does not affect the rates of others"
        );
        let one = sample(began, &[(7, json!({ "a": { "x": 3 } }))]);
        assert_eq!(one.table(), "COUNTER  VALUE\na.x      3\n");
    }

    #[test]
    fn rejects_invalid_period() {
        assert_eq!(period("0.5").unwrap(), Duration::from_millis(500));
        for text in ["", "0", "-1", "nan", "0.01", "1e300"] {
            assert!(period(text).is_err(), "{text}");
        }
    }
}
