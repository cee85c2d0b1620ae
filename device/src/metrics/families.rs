//! The metric families for devices, named according to Prometheus conventions.

use std::collections::BTreeMap;

use card::net::Traffic;
use control_api::message::{Counters, PortState};
use engine::Durations;
use serde::Serialize;

use super::exposition::{Exposition, Family, Kind, Label};
use crate::control::call::{Health, Status};

/// State of a device at the time of a scrape.
#[derive(Debug)]
pub struct Reading {
    pub id: u16,
    /// Configuration key of the device interface.
    pub interface: &'static str,
    pub connected: bool,
    pub health: Health,
    /// Status and counters, if the device responded.
    pub answer: Option<(Status, Box<Counters>)>,
}

/// Writes the metric families for all devices.
pub fn expose(to: &mut Exposition, devices: &[Reading]) {
    let mut writer = Writer { to, devices };
    writer.devices();
    writer.transport();
    writer.port();
    writer.fabric();
    writer.interface();
    writer.vmm();
}

/// A function that writes a sample for a device. The labels distinguish the sample from the device's other samples in
/// the family.
type SampleWriter<'a> = &'a mut dyn FnMut(&[Label<'_>], u64);

struct Writer<'a> {
    to: &'a mut Exposition,
    devices: &'a [Reading],
}

impl Writer<'_> {
    /// Writes a family with one sample per device.
    fn each(
        &mut self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        of: impl Fn(&Reading) -> Option<u64>,
    ) {
        let mut family = self.to.family(kind, name, help);
        for device in self.devices {
            if let Some(value) = of(device) {
                family.sample(&[("device", &device.id.to_string())], value);
            }
        }
    }

    fn counter(&mut self, name: &'static str, help: &'static str, of: impl Fn(&Counters) -> u64) {
        self.each(Kind::Counter, name, help, |device| {
            device.answer.as_ref().map(|(_, counters)| of(counters))
        });
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, of: impl Fn(&Counters) -> u64) {
        self.each(Kind::Gauge, name, help, |device| device.answer.as_ref().map(|(_, counters)| of(counters)));
    }

    /// Writes a family with any number of samples per device, distinguished by labels.
    fn samples(
        &mut self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        of: impl Fn(&Counters, SampleWriter<'_>),
    ) {
        let mut family = self.to.family(kind, name, help);
        for_answers(self.devices, |device, counters| of(counters, &mut labelled(&mut family, device)));
    }

    /// Writes a family with a sample for each field of a counter structure.
    fn fields<T: Serialize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        label: &'static str,
        of: impl Fn(&Counters) -> T,
    ) {
        self.samples(Kind::Counter, name, help, |counters, sample| {
            for (field, value) in fields(&of(counters)) {
                sample(&[(label, &field)], value);
            }
        });
    }

    fn histogram(&mut self, name: &'static str, help: &'static str, of: impl Fn(&Counters) -> Durations) {
        let mut family = self.to.family(Kind::Histogram, name, help);
        for_answers(self.devices, |device, counters| family.histogram(&[("device", device)], &of(counters)));
    }

    fn devices(&mut self) {
        let mut family = self.to.family(
            Kind::Gauge,
            "hcad_build_info",
            "The hcad version, as a label. The value is always 1.",
        );
        family.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        let mut family = self.to.family(
            Kind::Gauge,
            "hcad_device_up",
            "1 if the device responds, 0 if not. The `interface` label names the device interface.",
        );
        for device in self.devices {
            let labels = [("device", &*device.id.to_string()), ("interface", device.interface)];
            family.sample(&labels, device.answer.is_some().into());
        }
        self.each(
            Kind::Counter,
            "hcad_device_restarts_total",
            "Number of times the device was restarted after a failure.",
            |device| Some(device.health.restarts),
        );
        self.each(Kind::Gauge, "hcad_vmm_connected", "1 if a VMM is connected, 0 if not.", |device| {
            Some(device.connected.into())
        });
        self.each(Kind::Gauge, "hcad_port_up", "1 if the port's link is up, 0 if not.", |device| {
            device.answer.as_ref().map(|(status, _)| (status.port == PortState::Up).into())
        });
    }

    fn transport(&mut self) {
        self.samples(Kind::Gauge, "hcad_queue_pairs", "Queue pairs, by state.", |counters, sample| {
            for (state, count) in fields(&counters.qps) {
                sample(&[("state", &state)], count);
            }
        });
        self.samples(
            Kind::Counter,
            "hcad_sent_packets_total",
            "RoCE packets sent by queue pairs, by opcode.",
            |counters, sample| {
                counters
                    .engine
                    .sent_opcodes
                    .iter()
                    .for_each(|(name, count)| sample(&[("opcode", &name)], count));
            },
        );
        self.samples(
            Kind::Counter,
            "hcad_received_packets_total",
            "RoCE packets received for queue pairs, by opcode.",
            |counters, sample| {
                let opcodes = &counters.engine.received_opcodes;
                opcodes.iter().for_each(|(name, count)| sample(&[("opcode", &name)], count));
            },
        );
        self.counter("hcad_sent_payload_bytes_total", "Payload bytes sent in RoCE packets.", |counters| {
            counters.engine.sent_payload_bytes
        });
        self.counter(
            "hcad_received_payload_bytes_total",
            "Payload bytes received in RoCE packets.",
            |counters| counters.engine.received_payload_bytes,
        );
        self.fields(
            "hcad_requested_messages_total",
            "Completed messages for which this device was the requester, by operation.",
            "operation",
            |counters| counters.engine.requested,
        );
        self.fields(
            "hcad_executed_messages_total",
            "Executed messages for which this device was the responder, by operation.",
            "operation",
            |counters| counters.engine.executed,
        );
        self.fields(
            "hcad_transport_drops_total",
            "Received RoCE packets that the transport dropped, by reason.",
            "reason",
            |counters| counters.engine.drops,
        );
        self.fields(
            "hcad_sent_naks_total",
            "Negative acknowledgements (NAKs) sent, by kind.",
            "kind",
            |counters| counters.engine.naks_sent,
        );
        self.fields(
            "hcad_received_naks_total",
            "Negative acknowledgements (NAKs) received and processed, by kind.",
            "kind",
            |counters| counters.engine.naks_received,
        );
        self.counter("hcad_retransmitted_packets_total", "Request packets retransmitted.", |counters| {
            counters.engine.recovery.retransmitted_packets
        });
        self.counter("hcad_ack_timeouts_total", "Acknowledgement timeouts.", |counters| {
            counters.engine.recovery.timeouts
        });
        self.counter(
            "hcad_implied_naks_total",
            "Packet losses inferred from a later response (implied NAKs).",
            |counters| counters.engine.recovery.implied_naks,
        );
        self.counter(
            "hcad_duplicate_requests_total",
            "Duplicate requests received and answered.",
            |counters| counters.engine.recovery.duplicates,
        );
        self.counter(
            "hcad_window_cuts_total",
            "Number of times a congestion window was halved.",
            |counters| counters.engine.recovery.window_cuts,
        );
        self.fields(
            "hcad_congestion_packets_total",
            "Packets with an ECN congestion mark, and congestion notification packets (CNPs), by kind.",
            "kind",
            |counters| counters.engine.congestion,
        );
        self.histogram(
            "hcad_send_request_duration_seconds",
            "Time from the doorbell to the completion of an RC send request. If the send window is full, the time starts when space becomes available.",
            |counters| counters.engine.request_time,
        );
    }

    fn port(&mut self) {
        let of = |counters: &Counters, sample: SampleWriter<'_>, value: fn(&Traffic) -> u64| {
            let port = &counters.port;
            for (direction, kind, traffic) in [
                ("sent", "roce", &port.transmit),
                ("received", "roce", &port.receive),
                ("sent", "nic", &port.nic_transmit),
                ("received", "nic", &port.nic_receive),
            ] {
                sample(&[("direction", direction), ("kind", kind)], value(traffic));
            }
        };
        self.samples(
            Kind::Counter,
            "hcad_port_frames_total",
            "Frames that the port sent to or received from the fabric, by direction and kind (RoCE or NIC).",
            |counters, sample| of(counters, sample, |traffic| traffic.packets),
        );
        self.samples(
            Kind::Counter,
            "hcad_port_bytes_total",
            "Bytes in the frames that hcad_port_frames_total counts, by direction and kind. RoCE frames are counted from the BTH to the ICRC, NIC frames as a whole.",
            |counters, sample| of(counters, sample, |traffic| traffic.octets),
        );
        self.samples(
            Kind::Counter,
            "hcad_port_drops_total",
            "Received frames dropped by the port, by reason.",
            |counters, sample| {
                let dropped = &counters.port.dropped;
                dropped.iter().for_each(|(reason, count)| sample(&[("reason", reason)], *count));
            },
        );
        self.samples(
            Kind::Counter,
            "hcad_port_lost_total",
            "Outgoing frames dropped by the port, by reason.",
            |counters, sample| {
                let port = &counters.port;
                sample(&[("reason", "link_down")], port.lost_link_down);
                sample(&[("reason", "unresolved")], port.lost_unresolved);
                sample(&[("reason", "malformed")], port.lost_malformed);
            },
        );
        self.counter(
            "hcad_port_link_downed_total",
            "Number of times the port's link went down.",
            |counters| counters.port.link_downed,
        );
    }

    fn fabric(&mut self) {
        self.samples(
            Kind::Counter,
            "hcad_fabric_frames_total",
            "Frames sent to the network, received from it, or forwarded between peers, by direction.",
            |counters, sample| {
                let fabric = &counters.fabric;
                sample(&[("direction", "sent")], fabric.tx_frames);
                sample(&[("direction", "received")], fabric.rx_frames);
                sample(&[("direction", "passed_on")], fabric.passed_on);
            },
        );
        self.counter(
            "hcad_fabric_send_calls_total",
            "System calls made to send frames to the network.",
            |counters| counters.fabric.tx_calls,
        );
        self.counter(
            "hcad_fabric_rings_broken_total",
            "Ring members rejected or disconnected because of a protocol violation.",
            |counters| counters.fabric.rings_broken,
        );
        self.samples(
            Kind::Counter,
            "hcad_fabric_drops_total",
            "Frames dropped between the device and the network, by reason.",
            |counters, sample| {
                let fabric = &counters.fabric;
                for (reason, count) in [
                    ("tx_refused", fabric.tx_refused),
                    ("tx_foreign_mac", fabric.tx_foreign_mac),
                    ("tx_foreign_ip", fabric.tx_foreign_ip),
                    ("tx_no_peer", fabric.tx_no_peer),
                    ("rx_stranger", fabric.rx_stranger),
                    ("rx_bad_length", fabric.rx_bad_length),
                    ("rx_over_rate", fabric.rx_over_rate),
                    ("rx_foreign_mac", fabric.rx_foreign_mac),
                    ("rx_foreign_ip", fabric.rx_foreign_ip),
                    ("rx_overflow", fabric.rx_overflow),
                ] {
                    sample(&[("reason", reason)], count);
                }
            },
        );
    }

    fn interface(&mut self) {
        self.samples(
            Kind::Counter,
            "hcad_commands_total",
            "Driver commands, by name and status.",
            |counters, sample| {
                for (command, statuses) in &counters.interface.commands {
                    for (status, count) in statuses {
                        sample(&[("command", command), ("status", status)], *count);
                    }
                }
            },
        );
        self.histogram("hcad_command_duration_seconds", "Execution time of driver commands.", |counters| {
            counters.interface.command_time
        });
        self.samples(
            Kind::Counter,
            "hcad_doorbells_total",
            "Doorbells executed, by kind.",
            |counters, sample| {
                let doorbells = &counters.interface.doorbells;
                doorbells.iter().for_each(|(kind, count)| sample(&[("kind", kind)], *count));
            },
        );
        self.samples(
            Kind::Counter,
            "hcad_ignored_total",
            "Doorbells, register writes and NIC frames that were ignored, by reason.",
            |counters, sample| {
                let ignored = &counters.interface.ignored;
                ignored.iter().for_each(|(reason, count)| sample(&[("reason", reason)], *count));
            },
        );
        self.samples(
            Kind::Counter,
            "hcad_refused_requests_total",
            "Requests that failed because a memory access was denied, by cause.",
            |counters, sample| {
                let refused = &counters.interface.refused;
                refused.iter().for_each(|(cause, count)| sample(&[("cause", cause)], *count));
            },
        );
        self.samples(
            Kind::Counter,
            "hcad_violations_total",
            "Driver violations reported in strict mode, by rule.",
            |counters, sample| {
                let violations = &counters.interface.violations;
                violations.iter().for_each(|(rule, count)| sample(&[("rule", rule)], *count));
            },
        );
    }

    fn vmm(&mut self) {
        self.counter("hcad_vfio_clients_total", "VMM connections accepted.", |counters| {
            counters.vfio.clients
        });
        self.samples(
            Kind::Counter,
            "hcad_vfio_messages_total",
            "vfio-user messages received from the VMM, by kind.",
            |counters, sample| {
                for (kind, count) in fields(&counters.vfio.messages) {
                    if kind != "refused" {
                        sample(&[("kind", &kind)], count);
                    }
                }
            },
        );
        self.counter(
            "hcad_vfio_refused_messages_total",
            "vfio-user messages that the device answered with an error.",
            |counters| counters.vfio.messages.refused,
        );
        self.gauge("hcad_dma_ranges", "Mapped ranges of guest memory.", |counters| counters.vfio.dma_ranges);
        self.fields(
            "hcad_interrupts_total",
            "Interrupts raised by the device, by outcome.",
            "outcome",
            |counters| counters.vfio.interrupts,
        );
    }
}

fn for_answers(devices: &[Reading], mut each: impl FnMut(&str, &Counters)) {
    for device in devices {
        if let Some((_, counters)) = &device.answer {
            each(&device.id.to_string(), counters);
        }
    }
}

/// Returns a function that writes samples for a device into a family.
fn labelled(family: &mut Family<'_>, device: &str) -> impl FnMut(&[Label<'_>], u64) {
    move |labels, value| {
        let mut all = vec![("device", device)];
        all.extend_from_slice(labels);
        family.sample(&all, value);
    }
}

/// Returns the numeric fields of a counter structure, by name.
fn fields(counters: &impl Serialize) -> BTreeMap<String, u64> {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(counters) else {
        return BTreeMap::new();
    };
    fields.into_iter().filter_map(|(name, value)| Some((name, value.as_u64()?))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::metrics::process::Process;

    const BOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/grafana.json");

    /// Returns the names of all exposed time series: family names, with suffixes for histograms.
    fn exposed() -> BTreeSet<String> {
        let mut exposition = Exposition::default();
        expose(&mut exposition, &[]);
        Process::new().expose(&mut exposition);
        let text = exposition.finish();
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let names = families.flat_map(|(name, kind)| match kind {
            "histogram" => ["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")).to_vec(),
            _ => vec![name.to_owned()],
        });
        names.collect()
    }

    /// Collects all queries in a dashboard.
    fn collect_queries(board: &Value, found: &mut Vec<String>) {
        match board {
            Value::Object(parts) => {
                for (key, part) in parts {
                    match part {
                        Value::String(text) if key == "expr" || key == "query" => found.push(text.clone()),
                        part => collect_queries(part, found),
                    }
                }
            }
            Value::Array(parts) => parts.iter().for_each(|part| collect_queries(part, found)),
            _ => {}
        }
    }

    #[test]
    fn dashboard_covers_exposed_metrics() {
        let board = serde_json::from_slice(&std::fs::read(BOARD).unwrap()).unwrap();
        let mut found = Vec::new();
        collect_queries(&board, &mut found);
        assert!(found.len() > 30, "{found:?}");
        let words = found
            .iter()
            .flat_map(|text| text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_'));
        let named: BTreeSet<_> =
            words.filter(|word| word.starts_with("hcad_") || word.starts_with("process_")).collect();
        let exposed = exposed();
        let unknown: Vec<_> = named.iter().filter(|name| !exposed.contains(**name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let apart = [
            "hcad_command_duration_seconds_count",
            "hcad_command_duration_seconds_sum",
            "hcad_dma_ranges",
            "hcad_fabric_rings_broken_total",
            "hcad_send_request_duration_seconds_count",
            "hcad_send_request_duration_seconds_sum",
            "hcad_vfio_clients_total",
            "process_start_time_seconds",
            "process_virtual_memory_bytes",
        ];
        let unseen: Vec<_> =
            exposed.iter().map(String::as_str).filter(|name| !named.contains(name)).collect();
        assert_eq!(unseen, apart);
    }
}
