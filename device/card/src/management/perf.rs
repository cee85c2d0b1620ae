//! Performance management agents (PMAs) for the port and the switch.
//!
//! # Spec
//! IBTA volume 1, section 16.1; mthca interface, section 8.6.

use protocol::mad::class_port_info::{self, ClassPortInfo};
use protocol::mad::header::Header;
use protocol::mad::perf::{self, PerfMad, PortCounters, PortCountersExtended, attribute};
use protocol::mad::{Mad, MadStatus, Method};

use super::Counters;
use super::port::response;

/// Values of the device's counters when a Set request last reset them. The counters themselves keep running, and
/// responses report the difference.
#[derive(Clone, Debug, Default)]
pub(super) struct Perf {
    base: Counters,
    extended_base: Counters,
}

impl Counters {
    /// Returns the PortCounters attribute without its port and its mask.
    pub fn attribute(&self) -> PortCounters {
        PortCounters {
            link_downed: saturated(self.link_downed),
            receive_errors: saturated(self.receive_errors),
            transmit_discards: saturated(self.transmit_discards),
            receive_constraint_errors: saturated(self.pkey_violations),
            vl15_dropped: saturated(self.vl15_dropped),
            transmit_data: saturated(self.transmit_octets / 4),
            receive_data: saturated(self.receive_octets / 4),
            transmit_packets: saturated(self.transmit_packets),
            receive_packets: saturated(self.receive_packets),
            ..PortCounters::default()
        }
    }
}

impl Perf {
    /// Answers a performance management request or returns `None` if it must be discarded.
    pub(super) fn answer(&mut self, counters: &Counters, request: &Mad) -> Option<Mad> {
        let header = protocol::mad::header(request);
        if !header.method.is_request() {
            return None;
        }
        let mut answer = *request;
        let data = &mut PerfMad::of_mut(&mut answer).data;
        let result = check(&header).and_then(|set| match (header.attribute, set) {
            (class_port_info::ATTRIBUTE, false) => {
                put(data, &class_info().emit());
                Ok(())
            }
            (attribute::PORT_COUNTERS, _) => self.port_counters(counters, set, data),
            (attribute::PORT_COUNTERS_EXTENDED, _) => self.extended(counters, set, data),
            _ => Err(MadStatus::BAD_ATTRIBUTE),
        });
        let status = result.err().unwrap_or(MadStatus::OK);
        protocol::mad::set_header(&mut answer, &response(&header, status));
        Some(answer)
    }

    fn port_counters(&mut self, now: &Counters, set: bool, data: &mut [u8; 192]) -> Result<(), MadStatus> {
        let requested = PortCounters::parse(prefix(data));
        check_port(requested.port)?;
        if set {
            let base = &mut self.base;
            let counters = [
                (2, &mut base.link_downed, now.link_downed),
                (3, &mut base.receive_errors, now.receive_errors),
                (6, &mut base.transmit_discards, now.transmit_discards),
                (8, &mut base.pkey_violations, now.pkey_violations),
                (11, &mut base.vl15_dropped, now.vl15_dropped),
                (12, &mut base.transmit_octets, now.transmit_octets),
                (13, &mut base.receive_octets, now.receive_octets),
                (14, &mut base.transmit_packets, now.transmit_packets),
                (15, &mut base.receive_packets, now.receive_packets),
            ];
            reset(requested.select, counters);
        }
        let PortCounters { port, select, .. } = requested;
        put(data, &PortCounters { port, select, ..self.since_reset(now) }.emit());
        Ok(())
    }

    /// Returns the PortCounters attribute since software last reset the counters, without its port and its mask.
    pub(super) fn since_reset(&self, now: &Counters) -> PortCounters {
        now.since(&self.base).attribute()
    }

    fn extended(&mut self, now: &Counters, set: bool, data: &mut [u8; 192]) -> Result<(), MadStatus> {
        let requested = PortCountersExtended::parse(prefix(data));
        check_port(requested.port)?;
        if set {
            let base = &mut self.extended_base;
            let counters = [
                (0, &mut base.transmit_octets, now.transmit_octets),
                (1, &mut base.receive_octets, now.receive_octets),
                (2, &mut base.transmit_packets, now.transmit_packets),
                (3, &mut base.receive_packets, now.receive_packets),
                (4, &mut base.transmit_unicast_packets, now.transmit_unicast_packets),
                (5, &mut base.receive_unicast_packets, now.receive_unicast_packets),
                (6, &mut base.transmit_multicast_packets, now.transmit_multicast_packets),
                (7, &mut base.receive_multicast_packets, now.receive_multicast_packets),
            ];
            reset(requested.select, counters);
        }
        let since = now.since(&self.extended_base);
        let counters = PortCountersExtended {
            port: requested.port,
            select: requested.select,
            transmit_data: since.transmit_octets / 4,
            receive_data: since.receive_octets / 4,
            transmit_packets: since.transmit_packets,
            receive_packets: since.receive_packets,
            unicast_transmit_packets: since.transmit_unicast_packets,
            unicast_receive_packets: since.receive_unicast_packets,
            multicast_transmit_packets: since.transmit_multicast_packets,
            multicast_receive_packets: since.receive_multicast_packets,
        };
        put(data, &counters.emit());
        Ok(())
    }
}

/// Answers a performance management request for the switch, which has ports 0 to `ports`, or returns `None` if the
/// request must be discarded. The switch is virtual: it does not forward packets, and its counters are zero.
pub(super) fn answer_for_switch(ports: u8, request: &Mad) -> Option<Mad> {
    let header = protocol::mad::header(request);
    if !header.method.is_request() {
        return None;
    }
    let mut answer = *request;
    let data = &mut PerfMad::of_mut(&mut answer).data;
    let result = check(&header).and_then(|set| zero_counters(ports, header.attribute, set, data));
    let status = result.err().unwrap_or(MadStatus::OK);
    protocol::mad::set_header(&mut answer, &response(&header, status));
    Some(answer)
}

fn zero_counters(ports: u8, attribute: u16, set: bool, data: &mut [u8; 192]) -> Result<(), MadStatus> {
    let check_port = |port: u8| match port {
        perf::ALL_PORTS => Ok(()),
        port if port <= ports => Ok(()),
        _ => Err(MadStatus::BAD_VALUE),
    };
    match (attribute, set) {
        (class_port_info::ATTRIBUTE, false) => put(data, &class_info().emit()),
        (attribute::PORT_COUNTERS, _) => {
            let PortCounters { port, select, .. } = PortCounters::parse(prefix(data));
            check_port(port)?;
            put(data, &PortCounters { port, select, ..PortCounters::default() }.emit());
        }
        (attribute::PORT_COUNTERS_EXTENDED, _) => {
            let PortCountersExtended { port, select, .. } = PortCountersExtended::parse(prefix(data));
            check_port(port)?;
            put(data, &PortCountersExtended { port, select, ..PortCountersExtended::default() }.emit());
        }
        _ => return Err(MadStatus::BAD_ATTRIBUTE),
    }
    Ok(())
}

/// Checks a request. Returns whether it is a Set.
fn check(header: &Header) -> Result<bool, MadStatus> {
    if header.base_version != Header::BASE_VERSION || header.class_version != 1 {
        return Err(MadStatus::BAD_VERSION);
    }
    match header.method {
        Method::GET => Ok(false),
        Method::SET => Ok(true),
        _ => Err(MadStatus::BAD_METHOD),
    }
}

fn class_info() -> ClassPortInfo {
    ClassPortInfo {
        base_version: Header::BASE_VERSION,
        class_version: 1,
        capabilities: perf::ALL_PORT_SELECT | perf::EXTENDED_WIDTH,
        capabilities2: 0,
        resp_time: 16,
    }
}

/// Resets the counters whose bits are set in `select` to 0, which is the only value that they can be set to.
fn reset<const N: usize>(select: u16, counters: [(u8, &mut u64, u64); N]) {
    for (bit, base, now) in counters {
        if select >> bit & 1 != 0 {
            *base = now;
        }
    }
}

fn check_port(port: u8) -> Result<(), MadStatus> {
    if matches!(port, 1 | perf::ALL_PORTS) { Ok(()) } else { Err(MadStatus::BAD_VALUE) }
}

fn prefix<const LEN: usize>(data: &[u8; 192]) -> &[u8; LEN] {
    const { assert!(LEN <= 192) };
    data.first_chunk().unwrap_or(&[0; LEN])
}

fn put(data: &mut [u8; 192], attribute: &[u8]) {
    *data = [0; 192];
    for (to, from) in data.iter_mut().zip(attribute) {
        *to = *from;
    }
}

/// Converts a counter to the width of a PortCounters field, saturating at the field's maximum.
fn saturated<T: TryFrom<u64> + std::ops::Not<Output = T> + Default>(value: u64) -> T {
    T::try_from(value).unwrap_or(!T::default())
}
