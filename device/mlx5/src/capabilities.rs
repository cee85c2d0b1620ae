//! Device capabilities: the maximum values and the current values set by the driver.
//!
//! # Spec
//! mlx5 interface, section 6.

use protocol::hca::mlx5::capability::{AREA_LEN, AtomicCaps, CapType, GeneralCaps, Query, SetHcaCap};
use protocol::hca::mlx5::ethernet_capability::{EthernetCaps, FlowTableCaps, RoceCaps};

use super::check::{Check, Rejection};
use super::limits::ROCE_GIDS;
use super::options::{Options, Port};

/// Capability types with all-zero areas: on-demand paging, quality of service, device memory, and the second area of
/// general capabilities. Zeros mean that the device lacks these features.
const ABSENT: [u16; 4] = [2, 0xc, 0xf, 0x20];

#[derive(Debug)]
pub struct Capabilities {
    port: Port,
    largest: GeneralCaps,
    /// Largest value of [`GeneralCaps::log_uar_page`].
    max_log_uar_page: u16,
    /// Area from the last SET_HCA_CAP. It is stored unparsed, because new drivers set bits that this device does not
    /// define.
    general: Box<[u8; AREA_LEN]>,
    atomic: AtomicCaps,
}

impl Capabilities {
    /// Returns the capabilities before the first SET_HCA_CAP.
    pub fn new(options: &Options) -> Self {
        let largest = options.caps();
        Self {
            port: options.port,
            largest,
            max_log_uar_page: options.max_log_uar_page(),
            general: Box::new(largest.area()),
            atomic: AtomicCaps::largest(),
        }
    }

    pub fn has_ethernet_port(&self) -> bool {
        self.port == Port::Ethernet
    }

    /// Returns the log2 of the UAR page size that the driver has set, in units of 4 KiB.
    pub fn log_uar_page(&self) -> u16 {
        GeneralCaps::parse_prefix(&*self.general).map_or(0, |caps| caps.log_uar_page)
    }

    pub const fn largest(&self) -> &GeneralCaps {
        &self.largest
    }

    /// Returns the capability area selected by a query.
    ///
    /// # Errors
    /// Fails if the type is unknown, or if the port is an InfiniBand port and the type applies only to Ethernet ports.
    pub fn query(&self, query: &Query) -> Result<[u8; AREA_LEN], Rejection> {
        Ok(match (query.cap_type(), query.current) {
            (Some(CapType::General), true) => *self.general,
            (Some(CapType::General), false) => self.largest.area(),
            (Some(CapType::Atomic), true) => self.atomic.area(),
            (Some(CapType::Atomic), false) => AtomicCaps::largest().area(),
            (Some(other), _) if self.port == Port::Ethernet => match other {
                CapType::EthernetOffloads => EthernetCaps::largest().area(),
                CapType::Roce => RoceCaps::with_gids(ROCE_GIDS).area(),
                CapType::FlowTable => FlowTableCaps::largest().area(),
                CapType::General | CapType::Atomic => return Err(Check::CapType.rejects(query.cap_type)),
            },
            (None, _) if ABSENT.contains(&query.cap_type) => [0; AREA_LEN],
            _ => return Err(Check::CapType.rejects(query.cap_type)),
        })
    }

    /// Sets the current capabilities. QUERY_HCA_CAP returns exactly the area that was set (section 20, M-13).
    ///
    /// # Errors
    /// Fails if the type is unknown, the area is too short, or the area contains an unsupported value.
    pub fn set(&mut self, set: &SetHcaCap, area: &[u8]) -> Result<(), Rejection> {
        let short = || Check::CapArea.rejects(area.len() as u64);
        match set.cap_type() {
            Some(CapType::General) => {
                let area: &[u8; AREA_LEN] = area.first_chunk().ok_or_else(short)?;
                let caps = GeneralCaps::parse_prefix(area).ok_or_else(short)?;
                if caps.log_max_qps > self.largest.log_max_qps {
                    return Err(Check::CapLimit.rejects(caps.log_max_qps));
                }
                if caps.port_type != self.largest.port_type {
                    return Err(Check::CapPort.rejects(caps.port_type));
                }
                if caps.log_uar_page > self.max_log_uar_page {
                    return Err(Check::CapUar.rejects(caps.log_uar_page));
                }
                *self.general = *area;
            }
            Some(CapType::Atomic) => {
                let caps = AtomicCaps::parse_prefix(area).ok_or_else(short)?;
                self.atomic = AtomicCaps::largest().with_endianness(&caps);
            }
            _ => return Err(Check::CapType.rejects(set.cap_type)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infiniband() -> Options {
        Options { port: Port::InfiniBand, ..Options::default() }
    }

    const GENERAL: SetHcaCap = SetHcaCap { cap_type: 0 };

    fn query(cap_type: u16, current: bool) -> Query {
        Query { cap_type, current }
    }

    #[test]
    fn current_capability_query_returns_values_set() {
        let mut caps = Capabilities::new(&infiniband());
        assert_eq!(caps.query(&query(0, true)), caps.query(&query(0, false)));
        let mut area = caps.largest().area();
        area[0x13] = 9;
        area[4000] = 0x5a;
        caps.set(&GENERAL, &area).unwrap();
        assert_eq!(caps.query(&query(0, true)), Ok(area));
        assert_ne!(caps.query(&query(0, false)), Ok(area));
    }

    #[test]
    fn only_byte_order_of_atomic_caps_can_be_set() {
        let mut caps = Capabilities::new(&infiniband());
        let mut area = [0; AREA_LEN];
        area[8] = 0x40;
        caps.set(&SetHcaCap { cap_type: 3 }, &area).unwrap();
        let current = caps.query(&query(3, true)).unwrap();
        assert_eq!((current[8], current[0x13]), (0x42, 3));
        assert_eq!(caps.query(&query(3, false)).unwrap()[8], 2);
    }

    #[test]
    fn ethernet_port_has_more_capability_types() {
        let caps = Capabilities::new(&Options::default());
        for (cap_type, at, byte) in [(0, 0x36, 0x41), (1, 0, 0xc0), (4, 0x1f, 128), (7, 0x40, 0x9e)] {
            let area = caps.query(&query(cap_type, true)).unwrap();
            assert_eq!(area[at], byte, "type {cap_type}");
            assert_eq!(caps.query(&query(cap_type, false)), Ok(area));
        }
        assert_eq!(caps.query(&query(5, true)), Err(Check::CapType.rejects(5_u8)));
    }

    #[test]
    fn rejects_unsupported_types_and_values() {
        let mut caps = Capabilities::new(&infiniband());
        assert_eq!(caps.query(&query(1, true)), Err(Check::CapType.rejects(1_u8)));
        assert_eq!(caps.set(&SetHcaCap { cap_type: 0x20 }, &[]), Err(Check::CapType.rejects(0x20_u8)));
        assert_eq!(caps.set(&GENERAL, &[0; 255]), Err(Check::CapArea.rejects(255_u8)));
        let mut area = caps.largest().area();
        area[0x13] = 18;
        assert_eq!(caps.set(&GENERAL, &area), Err(Check::CapLimit.rejects(18_u8)));
        let mut area = caps.largest().area();
        area[0x36] = 1;
        assert_eq!(caps.set(&GENERAL, &area), Err(Check::CapPort.rejects(1_u8)));
    }
}
