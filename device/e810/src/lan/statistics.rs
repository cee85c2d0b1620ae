//! Port and VSI statistics and their registers.
//!
//! Counters are never reset; drivers subtract their first reading. The port's byte counters include the frame check
//! sequence (FCS), as in hardware. The VSIs' byte counters include it for received frames, but not for transmitted
//! frames. The port's counters include the packets of the RDMA function, which no VSI counts.
//!
//! # Spec
//! E810 interface, section 8.6.

use std::collections::BTreeMap;

use card::net::PortStats;
use protocol::hca::e810::regs::Register;
use protocol::ids::MacAddr;

/// Length of the frame check sequence (FCS), in bytes.
const FCS_LEN: u64 = 4;

/// Bytes that Ethernet, IPv4, UDP and the FCS add to an RDMA packet. The headers of IPv6 packets are 20 bytes longer,
/// but this length is used for them too, because [`PortStats`] does not count IPv6 packets separately.
const ROCE_OVERHEAD: u64 = 14 + 20 + 8 + FCS_LEN;

/// Counters are 40 bits wide and wrap, as drivers expect. A 32-bit register returns the low 32 bits.
const WIDTH_MASK: u64 = (1 << 40) - 1;

/// Traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Traffic {
    pub(super) bytes: u64,
    pub(super) unicast: u64,
    pub(super) multicast: u64,
    pub(super) broadcast: u64,
}

/// Frame counts, by size; see [`SIZES`]. A frame's size includes the FCS.
type Sizes = [u64; 7];

/// Upper bounds of the first six size bins, in bytes. The last bin is unbounded.
const SIZES: [u64; 6] = [64, 127, 255, 511, 1023, 1522];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct PortStatistics {
    pub(in super::super) receive: Traffic,
    receive_sizes: Sizes,
    pub(in super::super) transmit: Traffic,
    transmit_sizes: Sizes,
    /// Received frames that exceed the maximum frame size.
    pub(super) oversize: u64,
    /// Frames dropped on transmission because the link was down.
    pub(in super::super) dropped_link_down: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct VsiStatistics {
    pub(super) receive: Traffic,
    pub(super) transmit: Traffic,
    /// Received frames that could not be delivered to a queue.
    pub(super) receive_dropped: u64,
    pub(super) transmit_errors: u64,
}

#[derive(Debug, Default)]
pub(super) struct Statistics {
    pub(super) port: PortStatistics,
    vsis: BTreeMap<u16, VsiStatistics>,
}

impl Traffic {
    pub(in super::super) const fn frames(&self) -> u64 {
        self.unicast + self.multicast + self.broadcast
    }

    fn count(&mut self, frame: &[u8], overhead: u64) {
        self.bytes += frame.len() as u64 + overhead;
        let dst = frame.first_chunk().map_or(MacAddr::default(), |dst| MacAddr(*dst));
        *if dst == MacAddr::BROADCAST {
            &mut self.broadcast
        } else if dst.is_multicast() {
            &mut self.multicast
        } else {
            &mut self.unicast
        } += 1;
    }
}

/// Adds the packets of the RDMA function to the value of a port counter. The counters by size count only frames of the
/// NIC.
pub(in super::super) fn add_roce(value: u64, register: Register, stats: &PortStats) -> u64 {
    let PortStats { receive, transmit, .. } = stats;
    let more = match register {
        Register::GlprtGorc => receive.octets + receive.packets * ROCE_OVERHEAD,
        Register::GlprtUprc => receive.packets - receive.multicast_packets,
        Register::GlprtMprc => receive.multicast_packets,
        Register::GlprtGotc => transmit.octets + transmit.packets * ROCE_OVERHEAD,
        Register::GlprtUptc => transmit.packets - transmit.multicast_packets,
        Register::GlprtMptc => transmit.multicast_packets,
        _ => return value,
    };
    value.wrapping_add(more) & WIDTH_MASK
}

fn count_size(sizes: &mut Sizes, frame: &[u8]) {
    let len = frame.len() as u64 + FCS_LEN;
    let bin = SIZES.iter().position(|longest| len <= *longest).unwrap_or(SIZES.len());
    if let Some(count) = sizes.get_mut(bin) {
        *count += 1;
    }
}

impl Statistics {
    pub(super) fn port_received(&mut self, frame: &[u8]) {
        self.port.receive.count(frame, FCS_LEN);
        count_size(&mut self.port.receive_sizes, frame);
    }

    pub(super) fn port_transmitted(&mut self, frame: &[u8]) {
        self.port.transmit.count(frame, FCS_LEN);
        count_size(&mut self.port.transmit_sizes, frame);
    }

    pub(super) fn transmitted(&mut self, vsi: u16, frame: &[u8]) {
        self.vsi_mut(vsi).transmit.count(frame, 0);
    }

    /// Counts a frame received by a VSI. Unlike a VSI's transmitted bytes, its received bytes include the FCS (section
    /// 8.6).
    pub(super) fn received(&mut self, vsi: u16, frame: &[u8]) {
        self.vsi_mut(vsi).receive.count(frame, FCS_LEN);
    }

    pub(super) fn vsi(&self, vsi: u16) -> VsiStatistics {
        self.vsis.get(&vsi).copied().unwrap_or_default()
    }

    pub(super) fn vsi_mut(&mut self, vsi: u16) -> &mut VsiStatistics {
        self.vsis.entry(vsi).or_default()
    }

    /// Reads a statistics register. Returns `None` for other registers and for counters that are always 0:
    /// symbol errors do not occur, and pause frames are neither sent nor honoured.
    pub(super) fn read(&self, register: Register) -> Option<u64> {
        self.count(register).map(|count| count & WIDTH_MASK)
    }

    fn count(&self, register: Register) -> Option<u64> {
        let Self { port, .. } = self;
        let [r64, r127, r255, r511, r1023, r1522, r_longer] = port.receive_sizes;
        let [t64, t127, t255, t511, t1023, t1522, t_longer] = port.transmit_sizes;
        Some(match register {
            Register::GlprtGorc => port.receive.bytes,
            Register::GlprtUprc => port.receive.unicast,
            Register::GlprtMprc => port.receive.multicast,
            Register::GlprtBprc => port.receive.broadcast,
            Register::GlprtRoc => port.oversize,
            Register::GlprtPrc64 => r64,
            Register::GlprtPrc127 => r127,
            Register::GlprtPrc255 => r255,
            Register::GlprtPrc511 => r511,
            Register::GlprtPrc1023 => r1023,
            Register::GlprtPrc1522 => r1522,
            Register::GlprtPrc9522 => r_longer,
            Register::GlprtGotc => port.transmit.bytes,
            Register::GlprtUptc => port.transmit.unicast,
            Register::GlprtMptc => port.transmit.multicast,
            Register::GlprtBptc => port.transmit.broadcast,
            Register::GlprtTdold => port.dropped_link_down,
            Register::GlprtPtc64 => t64,
            Register::GlprtPtc127 => t127,
            Register::GlprtPtc255 => t255,
            Register::GlprtPtc511 => t511,
            Register::GlprtPtc1023 => t1023,
            Register::GlprtPtc1522 => t1522,
            Register::GlprtPtc9522 => t_longer,
            Register::GlvGorc(vsi) => self.vsi(vsi).receive.bytes,
            Register::GlvUprc(vsi) => self.vsi(vsi).receive.unicast,
            Register::GlvMprc(vsi) => self.vsi(vsi).receive.multicast,
            Register::GlvBprc(vsi) => self.vsi(vsi).receive.broadcast,
            Register::GlvRdpc(vsi) => self.vsi(vsi).receive_dropped,
            Register::GlvGotc(vsi) => self.vsi(vsi).transmit.bytes,
            Register::GlvUptc(vsi) => self.vsi(vsi).transmit.unicast,
            Register::GlvMptc(vsi) => self.vsi(vsi).transmit.multicast,
            Register::GlvBptc(vsi) => self.vsi(vsi).transmit.broadcast,
            Register::GlvTepc(vsi) => self.vsi(vsi).transmit_errors,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(dst: [u8; 6], len: usize) -> Vec<u8> {
        [&dst[..], &vec![0; len - 6]].concat()
    }

    const STATION: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn counter(statistics: &Statistics, offset: u64) -> u64 {
        statistics.read(Register::at(offset).unwrap().0).unwrap()
    }

    #[test]
    fn port_counters_distinguish_destinations_and_include_fcs() {
        let mut statistics = Statistics::default();
        for dst in [STATION, [1, 0, 0x5e, 0, 0, 1], [0xff; 6], STATION] {
            statistics.port_received(&frame(dst, 96));
            statistics.port_transmitted(&frame(dst, 60));
        }
        let at = |offset| counter(&statistics, offset);
        assert_eq!([0x38_1300, 0x38_1340, 0x38_1380].map(at), [2, 1, 1]);
        assert_eq!([0x38_11c0, 0x38_1200, 0x38_1240].map(at), [2, 1, 1]);
        assert_eq!((at(0x38_0000), at(0x38_0b40)), (400, 256));
    }

    #[test]
    fn frame_size_counters_include_fcs() {
        let mut statistics = Statistics::default();
        for len in [60, 61, 123, 124, 251, 252, 507, 508, 1019, 1020, 1518, 1519, 9724] {
            statistics.port_received(&frame(STATION, len));
            statistics.port_transmitted(&frame(STATION, len));
        }
        let bins =
            |first: u64| -> Vec<u64> { (0..7).map(|bin| counter(&statistics, first + bin * 0x40)).collect() };
        assert_eq!(bins(0x38_0900), [1, 2, 2, 2, 2, 2, 2]);
        assert_eq!(bins(0x38_0b80), [1, 2, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn each_vsi_has_separate_counters() {
        let mut statistics = Statistics::default();
        statistics.received(1, &frame(STATION, 100));
        statistics.received(2, &frame([0xff; 6], 60));
        statistics.transmitted(2, &frame([1, 0, 0x5e, 0, 0, 1], 60));
        statistics.vsi_mut(2).receive_dropped += 5;
        statistics.vsi_mut(2).transmit_errors += 6;
        let at = |offset| counter(&statistics, offset);
        assert_eq!([0x3b_0008, 0x3b_0010, 0x30_0010].map(at), [104, 64, 60]);
        assert_eq!([0x3b_2008, 0x3b_2010, 0x3b_6010, 0x30_c010].map(at), [1, 0, 1, 1]);
        assert_eq!([0x29_4c0c, 0x31_2008].map(at), [5, 6]);
    }

    #[test]
    fn counters_wrap_at_40_bits() {
        let mut statistics = Statistics::default();
        statistics.port.receive.bytes = 0x12_3456_789a_bcde;
        assert_eq!(counter(&statistics, 0x38_0000), 0x56_789a_bcde);
    }
}
