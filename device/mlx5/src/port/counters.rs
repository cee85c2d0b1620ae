//! Frame counters of the network device, by kind of destination and by length.
//!
//! # Spec
//! mlx5 interface, section 17.1.

use card::net::PortStats;
use protocol::hca::mlx5::counter::TrafficCounter;
use protocol::hca::mlx5::port_register::{
    CounterGroup, IeeeCounters, PhysicalCounters, PriorityCounters, Rfc2819Counters,
};
use protocol::ids::MacAddr;

/// Length of the frame check sequence, which the physical port counters include.
const FCS_LEN: u64 = 4;
/// Bytes that Ethernet, IPv4, UDP and the FCS add to an InfiniBand packet. The headers of IPv6 packets are 20 bytes
/// longer, but this length is used for them too, because the engine's statistics do not count IPv6 packets separately.
const ROCE_OVERHEAD: u64 = 14 + 20 + 8 + FCS_LEN;
/// Maximum frame length, including the frame check sequence, for each row of [`Rfc2819Counters`] except the last.
const LENGTHS: [u64; 9] = [64, 127, 255, 511, 1023, 1518, 2047, 4095, 8191];

/// Frames in one direction. Byte counts include the Ethernet header but not the frame check sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    pub unicast: TrafficCounter,
    pub multicast: TrafficCounter,
    pub broadcast: TrafficCounter,
}

impl Frames {
    fn count(&mut self, frame: &[u8]) {
        let Some(mac) = frame.first_chunk().map(|mac| MacAddr(*mac)) else { return };
        let counter = match mac {
            MacAddr::BROADCAST => &mut self.broadcast,
            mac if mac.is_multicast() => &mut self.multicast,
            _ => &mut self.unicast,
        };
        counter.packets += 1;
        counter.bytes += frame.len() as u64;
    }

    /// Returns the total number of frames.
    pub const fn packets(&self) -> u64 {
        self.unicast.packets + self.multicast.packets + self.broadcast.packets
    }

    /// Returns the unicast, multicast and broadcast counters added together.
    fn all(&self) -> TrafficCounter {
        let Self { unicast, multicast, broadcast } = self;
        TrafficCounter {
            packets: unicast.packets + multicast.packets + broadcast.packets,
            bytes: unicast.bytes + multicast.bytes + broadcast.bytes,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct FrameCounters {
    /// Frames that arrived at the port, including those that no flow table entry forwards to a TIR.
    arrived: Frames,
    /// Frames that the flow tables forward to TIRs.
    pub received: Frames,
    pub sent: Frames,
    /// Frames from the wire that were dropped because they exceed the port's MTU.
    pub oversize: u64,
    arrived_by_length: [u64; 10],
}

impl FrameCounters {
    pub fn count_arrived(&mut self, frame: &[u8]) {
        self.arrived.count(frame);
        let len = frame.len() as u64 + FCS_LEN;
        let row = LENGTHS.iter().position(|most| len <= *most).unwrap_or(LENGTHS.len());
        if let Some(count) = self.arrived_by_length.get_mut(row) {
            *count += 1;
        }
    }

    pub fn count_received(&mut self, frame: &[u8]) {
        self.received.count(frame);
    }

    pub fn count_sent(&mut self, frame: &[u8]) {
        self.sent.count(frame);
    }

    /// Returns the counters of a PPCNT group. RoCE packets are included in all counters except those by length. In
    /// groups without counters of traffic or link failures, all counters are zero.
    pub fn group(&self, group: CounterGroup, priority: u8, stats: &PortStats) -> [u8; 248] {
        let (arrived, sent) = (self.arrived.all(), self.sent.all());
        let rx_packets = arrived.packets + stats.receive.packets;
        let tx_packets = sent.packets + stats.transmit.packets;
        let rx_bytes = arrived.bytes
            + arrived.packets * FCS_LEN
            + stats.receive.octets
            + stats.receive.packets * ROCE_OVERHEAD;
        let tx_bytes = sent.bytes
            + sent.packets * FCS_LEN
            + stats.transmit.octets
            + stats.transmit.packets * ROCE_OVERHEAD;
        match (group, priority) {
            (CounterGroup::Ieee, _) => IeeeCounters {
                tx_packets,
                rx_packets,
                rx_crc_errors: 0,
                tx_bytes,
                rx_bytes,
                tx_multicast: self.sent.multicast.packets + stats.transmit.multicast_packets,
                tx_broadcast: self.sent.broadcast.packets,
                rx_multicast: self.arrived.multicast.packets + stats.receive.multicast_packets,
                rx_broadcast: self.arrived.broadcast.packets,
                rx_too_long: self.oversize,
            }
            .emit(),
            (CounterGroup::Rfc2819, _) => Rfc2819Counters { rx_by_length: self.arrived_by_length }.emit(),
            // All frames count as priority 0, because the device does not classify frames by priority.
            (CounterGroup::Priority, 0) => {
                PriorityCounters { rx_bytes, rx_packets, tx_bytes, tx_packets, rx_pause: 0 }.emit()
            }
            (CounterGroup::Physical, _) => {
                let link_down_events = u32::try_from(stats.link_downed).unwrap_or(u32::MAX);
                PhysicalCounters { link_down_events }.emit()
            }
            _ => [0; 248],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, len: usize) -> Vec<u8> {
        let mut frame = vec![first; 6];
        frame.resize(len, 0);
        frame
    }

    #[test]
    fn frames_are_counted_by_destination_and_length() {
        let mut counters = FrameCounters::default();
        for (first, len) in [(2, 60), (2, 1514), (1, 61), (0xff, 9000)] {
            counters.count_arrived(&frame(first, len));
            counters.count_received(&frame(first, len));
        }
        counters.count_sent(&frame(2, 100));
        counters.oversize = 3;
        counters.count_arrived(&[]);
        let Frames { unicast, multicast, broadcast } = counters.received;
        assert_eq!((unicast.packets, unicast.bytes), (2, 1574));
        assert_eq!((multicast.packets, broadcast.bytes), (1, 9000));
        let stats = PortStats::default();
        let lengths = Rfc2819Counters::parse(&counters.group(CounterGroup::Rfc2819, 0, &stats));
        assert_eq!(lengths.rx_by_length, [2, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
        let ieee = IeeeCounters::parse(&counters.group(CounterGroup::Ieee, 0, &stats));
        assert_eq!((ieee.rx_packets, ieee.rx_multicast, ieee.rx_broadcast), (4, 1, 1));
        assert_eq!((ieee.tx_packets, ieee.tx_bytes, ieee.rx_too_long), (1, 104, 3));
    }

    /// Section 17.1: the port counts frames that the vport does not receive.
    #[test]
    fn undelivered_frame_counts_only_at_port() {
        let mut counters = FrameCounters::default();
        counters.count_arrived(&frame(1, 60));
        assert_eq!(counters.received, Frames::default());
        let stats = PortStats::default();
        let ieee = IeeeCounters::parse(&counters.group(CounterGroup::Ieee, 0, &stats));
        assert_eq!((ieee.rx_packets, ieee.rx_bytes, ieee.rx_multicast), (1, 64, 1));
    }

    #[test]
    fn roce_packets_count_as_frames() {
        let counters = FrameCounters::default();
        let mut stats = PortStats::default();
        stats.receive.packets = 2;
        stats.receive.octets = 200;
        let group = |priority| counters.group(CounterGroup::Priority, priority, &stats);
        let first = PriorityCounters::parse(&group(0));
        assert_eq!((first.rx_packets, first.rx_bytes), (2, 200 + 2 * 46));
        assert_eq!(group(1), [0; 248]);
    }

    #[test]
    fn physical_group_counts_link_failures() {
        let mut stats = PortStats::default();
        stats.link_downed = 3;
        let physical = FrameCounters::default().group(CounterGroup::Physical, 0, &stats);
        assert_eq!(PhysicalCounters::parse(&physical).link_down_events, 3);
    }
}
