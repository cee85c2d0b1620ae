//! Device capabilities: outboxes of QUERY_DEV_LIM and QUERY_ADAPTER.
//!
//! # Spec
//! JingZhao interface, sections 3.1 and 3.2.

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::describe::{Hex, describe};

/// Device limits (QUERY_DEV_LIM). Fields whose names start with `log_` contain base-2 logarithms. Reserved object
/// numbers start at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DevLim {
    pub log_reserved_qps: u8,
    pub log_reserved_cqs: u8,
    pub log_reserved_eqs: u8,
    pub log_reserved_mtts: u8,
    pub log_reserved_pds: u8,
    pub log_reserved_lkeys: u8,
    /// Maximum number of WQEs in a work queue.
    pub log_max_wqes: u16,
    /// Maximum number of CQEs in a CQ.
    pub log_max_cqes: u16,
    pub log_max_qps: u8,
    pub log_max_cqs: u8,
    pub log_max_eqs: u8,
    pub log_max_mpts: u8,
    pub log_max_pds: u8,
    /// Maximum number of GIDs per port.
    pub log_max_gids: u8,
    /// Maximum number of P_Keys per port.
    pub log_max_pkeys: u8,
    /// Length of an MTT entry in bytes; always 8.
    pub mtt_entry_len: u8,
    /// Length of a QPC in ICM, in bytes.
    pub qpc_len: u16,
    /// Length of a CQC in ICM, in bytes.
    pub cqc_len: u16,
    /// Length of an EQC in ICM, in bytes.
    pub eqc_len: u16,
    /// Length of an MPT entry in ICM, in bytes.
    pub mpt_len: u16,
    /// Local ACK delay, a 4-bit timeout code.
    pub ack_delay: u8,
    /// Largest path MTU code, 1 to 5 for 256 to 4096 bytes.
    pub max_mtu: u8,
    /// Maximum link width of a port.
    pub max_port_width: u8,
    /// Number of virtual lanes.
    pub max_vl: u8,
    /// Number of ports. Drivers accept only 1.
    pub ports: u8,
    /// Smallest page size for a memory region, in bytes.
    pub log_min_page: u8,
    /// Maximum number of gather list entries.
    pub max_send_sges: u8,
    /// Maximum length of a send WQE in bytes.
    pub max_send_wqe_len: u16,
    /// Maximum number of scatter list entries.
    pub max_recv_sges: u8,
    /// Maximum length of a receive WQE in bytes.
    pub max_recv_wqe_len: u16,
    /// Size of the ICM address space in bytes.
    pub max_icm_len: u64,
}

impl DevLim {
    /// Length of the outbox in bytes.
    pub const LEN: usize = 0x40;

    /// Default limits of this device.
    pub const RECOMMENDED: Self = Self {
        log_reserved_qps: 1,
        log_reserved_cqs: 0,
        log_reserved_eqs: 0,
        log_reserved_mtts: 0,
        log_reserved_pds: 0,
        log_reserved_lkeys: 0,
        log_max_wqes: 14,
        log_max_cqes: 16,
        log_max_qps: 16,
        log_max_cqs: 16,
        log_max_eqs: 5,
        log_max_mpts: 17,
        log_max_pds: 15,
        log_max_gids: 0,
        log_max_pkeys: 0,
        mtt_entry_len: 8,
        qpc_len: 256,
        cqc_len: 64,
        eqc_len: 64,
        mpt_len: 64,
        ack_delay: 0,
        max_mtu: 5,
        max_port_width: 0,
        max_vl: 1,
        ports: 1,
        log_min_page: 12,
        max_send_sges: 16,
        max_send_wqe_len: 512,
        max_recv_sges: 16,
        max_recv_wqe_len: 512,
        max_icm_len: 1 << 40,
    };

    /// Parses an outbox as a driver does. Accepts any content.
    pub fn parse(outbox: &[u8; Self::LEN]) -> Self {
        let raw: RawDevLim = transmute!(*outbox);
        Self {
            log_reserved_qps: raw.log_reserved_qps,
            log_reserved_cqs: raw.log_reserved_cqs,
            log_reserved_eqs: raw.log_reserved_eqs,
            log_reserved_mtts: raw.log_reserved_mtts,
            log_reserved_pds: raw.log_reserved_pds,
            log_reserved_lkeys: raw.log_reserved_lkeys,
            log_max_wqes: raw.log_max_wqes.get(),
            log_max_cqes: raw.log_max_cqes.get(),
            log_max_qps: raw.log_max_qps,
            log_max_cqs: raw.log_max_cqs,
            log_max_eqs: raw.log_max_eqs,
            log_max_mpts: raw.log_max_mpts,
            log_max_pds: raw.log_max_pds,
            log_max_gids: raw.log_max_gids,
            log_max_pkeys: raw.log_max_pkeys,
            mtt_entry_len: raw.mtt_entry_len,
            qpc_len: raw.qpc_len.get(),
            cqc_len: raw.cqc_len.get(),
            eqc_len: raw.eqc_len.get(),
            mpt_len: raw.mpt_len.get(),
            ack_delay: raw.ack_delay.low(),
            max_mtu: raw.mtu_width.high(),
            max_port_width: raw.mtu_width.low(),
            max_vl: raw.vl_ports.high(),
            ports: raw.vl_ports.low(),
            log_min_page: raw.log_min_page,
            max_send_sges: raw.max_send_sges,
            max_send_wqe_len: raw.max_send_wqe_len.get(),
            max_recv_sges: raw.max_recv_sges,
            max_recv_wqe_len: raw.max_recv_wqe_len.get(),
            max_icm_len: raw.max_icm_len.get(),
        }
    }

    /// Returns the outbox in wire format. Values that exceed their fields are truncated.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let nibbles = |high, low| Nibbles::new().with_high(high & 0xf).with_low(low & 0xf);
        let raw = RawDevLim {
            log_reserved_qps: self.log_reserved_qps,
            log_reserved_cqs: self.log_reserved_cqs,
            log_reserved_eqs: self.log_reserved_eqs,
            log_reserved_mtts: self.log_reserved_mtts,
            reserved_04: 0,
            log_reserved_pds: self.log_reserved_pds,
            reserved_06: 0,
            log_reserved_lkeys: self.log_reserved_lkeys,
            log_max_wqes: self.log_max_wqes.into(),
            log_max_cqes: self.log_max_cqes.into(),
            log_max_qps: self.log_max_qps,
            log_max_cqs: self.log_max_cqs,
            log_max_eqs: self.log_max_eqs,
            log_max_mpts: self.log_max_mpts,
            log_max_pds: self.log_max_pds,
            reserved_11: 0,
            log_max_gids: self.log_max_gids,
            log_max_pkeys: self.log_max_pkeys,
            reserved_14: 0,
            mtt_entry_len: self.mtt_entry_len,
            reserved_16: [0; 2],
            qpc_len: self.qpc_len.into(),
            cqc_len: self.cqc_len.into(),
            eqc_len: self.eqc_len.into(),
            mpt_len: self.mpt_len.into(),
            ack_delay: nibbles(0, self.ack_delay),
            mtu_width: nibbles(self.max_mtu, self.max_port_width),
            reserved_22: 0,
            vl_ports: nibbles(self.max_vl, self.ports),
            reserved_24: 0,
            log_min_page: self.log_min_page,
            reserved_26: [0; 3],
            max_send_sges: self.max_send_sges,
            max_send_wqe_len: self.max_send_wqe_len.into(),
            reserved_2c: 0,
            max_recv_sges: self.max_recv_sges,
            max_recv_wqe_len: self.max_recv_wqe_len.into(),
            max_icm_len: self.max_icm_len.into(),
            reserved_38: [0; 8],
        };
        transmute!(raw)
    }
}

/// Identity of the adapter (QUERY_ADAPTER).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Adapter {
    pub board_id: u64,
}

impl Adapter {
    /// Length of the outbox in bytes.
    pub const LEN: usize = 0x20;

    /// Adapter with the board ID that the public RTL reports.
    pub const DEFAULT: Self = Self { board_id: 0x0123_4567_89ab_cdef };

    /// Parses an outbox as a driver does.
    pub fn parse(outbox: &[u8; Self::LEN]) -> Self {
        let raw: RawAdapter = transmute!(*outbox);
        Self { board_id: raw.board_id.get() }
    }

    /// Returns the outbox in wire format.
    pub fn emit(&self) -> [u8; Self::LEN] {
        transmute!(RawAdapter { reserved_00: [0; 0x18], board_id: self.board_id.into() })
    }
}

describe!(DevLim {
    log_reserved_qps,
    log_reserved_cqs,
    log_reserved_eqs,
    log_reserved_mtts,
    log_reserved_pds,
    log_reserved_lkeys,
    log_max_wqes,
    log_max_cqes,
    log_max_qps,
    log_max_cqs,
    log_max_eqs,
    log_max_mpts,
    log_max_pds,
    log_max_gids,
    log_max_pkeys,
    mtt_entry_len,
    qpc_len,
    cqc_len,
    eqc_len,
    mpt_len,
    ack_delay,
    max_mtu,
    max_port_width,
    max_vl,
    ports,
    log_min_page,
    max_send_sges,
    max_send_wqe_len,
    max_recv_sges,
    max_recv_wqe_len,
    max_icm_len as Hex,
});

describe!(Adapter { board_id as Hex });

#[bitfield(u8)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Nibbles {
    #[bits(4)]
    low: u8,
    #[bits(4)]
    high: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawDevLim {
    log_reserved_qps: u8,
    log_reserved_cqs: u8,
    log_reserved_eqs: u8,
    log_reserved_mtts: u8,
    reserved_04: u8,
    log_reserved_pds: u8,
    reserved_06: u8,
    log_reserved_lkeys: u8,
    log_max_wqes: U16,
    log_max_cqes: U16,
    log_max_qps: u8,
    log_max_cqs: u8,
    log_max_eqs: u8,
    log_max_mpts: u8,
    log_max_pds: u8,
    reserved_11: u8,
    log_max_gids: u8,
    log_max_pkeys: u8,
    reserved_14: u8,
    mtt_entry_len: u8,
    reserved_16: [u8; 2],
    qpc_len: U16,
    cqc_len: U16,
    eqc_len: U16,
    mpt_len: U16,
    ack_delay: Nibbles,
    mtu_width: Nibbles,
    reserved_22: u8,
    vl_ports: Nibbles,
    reserved_24: u8,
    log_min_page: u8,
    reserved_26: [u8; 3],
    max_send_sges: u8,
    max_send_wqe_len: U16,
    reserved_2c: u8,
    max_recv_sges: u8,
    max_recv_wqe_len: U16,
    max_icm_len: U64,
    reserved_38: [u8; 8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAdapter {
    reserved_00: [u8; 0x18],
    board_id: U64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::jingzhao::cmd::Op;

    /// Example outbox from section 14.2.
    const DEV_LIM: [u8; 0x40] = [
        0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0e, 0x00, 0x10, 0x10, 0x10, 0x05,
        0x11, //
        0x0f, 0x00, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x01, 0x00, 0x00, 0x40, 0x00, 0x40, 0x00,
        0x40, //
        0x00, 0x50, 0x00, 0x11, 0x00, 0x0c, 0x00, 0x00, 0x00, 0x10, 0x02, 0x00, 0x00, 0x10, 0x02,
        0x00, //
        0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn recommended_limits_match_documented_outbox() {
        assert_eq!(DevLim::RECOMMENDED.emit(), DEV_LIM);
        assert_eq!(DevLim::parse(&DEV_LIM), DevLim::RECOMMENDED);
        assert_eq!(Op::QueryDevLim.spec().outbox_len, DevLim::LEN);
    }

    #[test]
    fn board_id_fills_last_eight_bytes() {
        let mut bytes = [0; 0x20];
        bytes[0x18..].copy_from_slice(&[0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        assert_eq!(Adapter::DEFAULT.emit(), bytes);
        assert_eq!(Adapter::parse(&bytes), Adapter::DEFAULT);
        assert_eq!(Op::QueryAdapter.spec().outbox_len, Adapter::LEN);
    }
}
