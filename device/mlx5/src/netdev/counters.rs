//! Traffic counters of the netdev.
//!
//! # Spec
//! mlx5 interface, sections 17.1 and 17.2.

use protocol::hca::mlx5::counter::{TrafficCounter, VportCounters};
use protocol::ids::MacAddr;

/// Frames and bytes in one direction, without the frame check sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub unicast: TrafficCounter,
    pub multicast: TrafficCounter,
    pub broadcast: TrafficCounter,
}

impl Traffic {
    fn add(&mut self, frame: &[u8]) {
        let counter = match frame.first_chunk().copied().map(MacAddr) {
            Some(MacAddr::BROADCAST) => &mut self.broadcast,
            Some(mac) if mac.is_multicast() => &mut self.multicast,
            _ => &mut self.unicast,
        };
        add(counter, frame);
    }
}

fn add(counter: &mut TrafficCounter, frame: &[u8]) {
    counter.packets = counter.packets.wrapping_add(1);
    counter.bytes = counter.bytes.wrapping_add(frame.len() as u64);
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames from the wire that at least one TIR has received.
    pub rx: Traffic,
    /// Frames sent to the wire.
    pub tx: Traffic,
    /// Frames of an SQ that a TIR of this device has received.
    pub loopback: TrafficCounter,
    /// Frames from the wire that exceed the MTU of the port.
    pub rx_oversize: u64,
    /// Frames of an SQ that exceed the MTU of the port.
    pub tx_oversize: u64,
    /// Frames of an SQ that were dropped because the link was down.
    pub tx_link_down: u64,
}

impl PortCounters {
    pub fn received(&mut self, frame: &[u8]) {
        self.rx.add(frame);
    }

    pub fn sent(&mut self, frame: &[u8]) {
        self.tx.add(frame);
    }

    pub fn looped(&mut self, frame: &[u8]) {
        add(&mut self.loopback, frame);
    }

    /// Returns the output of QUERY_VPORT_COUNTER with the Ethernet rows of these counters.
    pub const fn fill(&self, vport: VportCounters) -> VportCounters {
        VportCounters {
            rx_eth_unicast: self.rx.unicast,
            rx_eth_multicast: self.rx.multicast,
            rx_eth_broadcast: self.rx.broadcast,
            tx_eth_unicast: self.tx.unicast,
            tx_eth_multicast: self.tx.multicast,
            tx_eth_broadcast: self.tx.broadcast,
            local_loopback: self.loopback,
            ..vport
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_by_destination_kind() {
        let mut counters = PortCounters::default();
        for first in [0xff, 0x33, 0x02] {
            counters.received(&[first; 60]);
            counters.sent(&[first; 100]);
        }
        counters.looped(&[0; 70]);
        let vport = counters.fill(VportCounters::default());
        let of = |packets, bytes| TrafficCounter { packets, bytes };
        assert_eq!((vport.rx_eth_broadcast, vport.rx_eth_multicast), (of(1, 60), of(1, 60)));
        assert_eq!((vport.tx_eth_unicast, vport.local_loopback), (of(1, 100), of(1, 70)));
    }
}
