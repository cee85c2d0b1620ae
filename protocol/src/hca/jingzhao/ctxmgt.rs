//! Messages between the device's units and its context manager, in a bit-exact form for comparison with the RTL.
//!
//! In the tables of the CtxMgt document, the first field of a request header occupies the highest of its 128 bits, and
//! the first row of a payload is the lowest of its 32-bit words.
//!
//! The available copy of the CtxMgt document is incomplete. It lacks the payloads for Requester Recv Control and
//! Execution Engine, and the words beyond 192 bits for Requester Trans Control (the PD and L_Key of the EQ, and the
//! MSI-X vector). None of these are implemented. The document does not give the numeric values of the types and opcodes
//! of engine requests. The values used here are from the public RTL.
//!
//! # Spec
//! CtxMgt document, tables 2.1, 2.2, 3.1 and 3.2; JingZhao interface, section 5.5.

use std::net::Ipv4Addr;

use crate::Psn;
use crate::ids::{Cqn, Lid, Lkey, MacAddr, Pdn, Qpn};

/// Requests from the command unit (table 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CeuRequest {
    /// RD_QP_ALL, with the QP number.
    ReadQp(u32),
    /// WR_QP_ALL, with the QP number.
    WriteQp(u32),
    /// WR_CQ_ALL, with the CQ number.
    WriteCq(u32),
    /// WR_CQ_MODIFY, with the CQ number.
    ModifyCq(u32),
    /// WR_CQ_INVALID, with the CQ number.
    InvalidateCq(u32),
    /// WR_EQ_ALL, with the EQ number.
    WriteEq(u32),
    /// WR_EQ_FUNC: maps events to an EQ or unmaps them.
    MapEq {
        /// EQ number, 31 bits.
        eqn: u32,
        /// Whether to unmap the events.
        remove: bool,
        /// Low half of the event mask.
        events: u32,
    },
    /// WR_EQ_INVALID, with the EQ number.
    InvalidateEq(u32),
    /// WR_ICMMAP_EN: creates the ICM mapping tables.
    CreateTables,
    /// WR_ICMMAP_DIS: invalidates the ICM mapping tables.
    InvalidateTables,
    /// MAP_ICM_EN: maps ICM pages.
    Map {
        /// Number of chunks, at most 64.
        chunks: u32,
    },
    /// MAP_ICM_DIS: unmaps ICM pages.
    Unmap {
        pages: u32,
        /// ICM address of the first page.
        virt: u64,
    },
}

impl CeuRequest {
    /// Returns the request header (table 2.1): type, opcode, 24 reserved bits, address and data.
    pub const fn header(self) -> u128 {
        let (kind, opcode, addr, data) = match self {
            Self::ReadQp(qpn) => (1, 1, qpn, 0),
            Self::WriteQp(qpn) => (2, 1, qpn, 0),
            Self::WriteCq(cqn) => (3, 1, cqn, 0),
            Self::ModifyCq(cqn) => (3, 2, cqn, 0),
            Self::InvalidateCq(cqn) => (3, 3, cqn, 0),
            Self::WriteEq(eqn) => (4, 1, eqn, 0),
            Self::MapEq { eqn, remove, events } => {
                (4, 2, (remove as u32) << 31 | eqn & 0x7fff_ffff, events as u64)
            }
            Self::InvalidateEq(eqn) => (4, 4, eqn, 0),
            Self::CreateTables => (5, 1, 0, 0),
            Self::InvalidateTables => (5, 2, 0, 0),
            Self::Map { chunks } => (6, 1, chunks, 0),
            Self::Unmap { pages, virt } => (6, 2, pages, virt),
        };
        header(kind, opcode, 0) | (addr as u128) << 64 | data as u128
    }
}

/// Requests from the RDMA engine units, each for one QP (tables 2.2 and 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineRequest {
    /// RD_QP_NPST from Requester Trans Control.
    ReadNpst,
    /// RD_QP_SST from Doorbell Processing.
    ReadSst,
    /// RD_QP_RST from Execution Engine.
    ReadRst,
    /// RD_QP_STATE from WQE Parser.
    ReadState,
    /// RD_ENCAP from Frame Encap.
    ReadEncap,
    /// RD_CQ_CST from Requester Recv Control.
    ReadCst,
    /// WR_QP_UAPST from Requester Recv Control.
    WriteUapst,
    /// WR_QP_NPST from Requester Trans Control.
    WriteNpst,
    /// WR_QP_EPST from Execution Engine.
    WriteEpst,
}

impl EngineRequest {
    /// Returns the request header: type, opcode and QP number. The low 96 bits are zero.
    pub const fn header(self, qpn: Qpn) -> u128 {
        let (kind, opcode) = match self {
            Self::ReadNpst => (1, 2),
            Self::ReadSst => (1, 3),
            Self::ReadRst => (1, 4),
            Self::ReadState => (1, 5),
            Self::ReadEncap => (1, 6),
            Self::ReadCst => (7, 2),
            Self::WriteUapst => (2, 2),
            Self::WriteNpst => (2, 3),
            Self::WriteEpst => (2, 4),
        };
        header(kind, opcode, qpn.get())
    }
}

/// Returns the fields common to both kinds of header: type, opcode and a 24-bit number.
const fn header(kind: u8, opcode: u8, number: u32) -> u128 {
    (kind as u128 & 0xf) << 124 | (opcode as u128 & 0xf) << 120 | (number as u128 & 0xff_ffff) << 96
}

/// Response to the RD_QP_SST request from Doorbell Processing, 256 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorbellPayload {
    /// DstQPN: QP number of the peer. The payload contains only the low 16 bits.
    pub remote_qpn: Qpn,
    /// ST: service type code.
    pub service: u8,
    /// PMTU_MSGMAX: path MTU and largest message size.
    pub mtu_msgmax: u8,
    /// P_Key of the QP.
    pub pkey: u16,
    /// L_Key of the send queue.
    pub sq_lkey: Lkey,
    /// Protection domain of the QP.
    pub pd: Pdn,
    /// SQ_Entry_Size_Log: log2 of the send WQE slot size in bytes.
    pub log_sq_slot: u8,
    /// SQ_Length: length of the send queue.
    pub sq_len: u32,
}

impl DoorbellPayload {
    /// Returns the payload as words, lowest first.
    pub const fn words(&self) -> [u32; 8] {
        [
            (self.remote_qpn.get() & 0xffff) << 16 | self.service as u32,
            (self.mtu_msgmax as u32) << 16 | self.pkey as u32,
            self.sq_lkey.get(),
            self.pd.get(),
            self.log_sq_slot as u32,
            self.sq_len,
            0,
            0,
        ]
    }
}

/// Response to the RD_QP_STATE request from WQE Parser, 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParserPayload {
    /// QP state code, in the high byte of word 0.
    pub state: u8,
    /// SQ_Entry_Size_Log: log2 of the send WQE slot size in bytes.
    pub log_sq_slot: u8,
    /// SQ_Length: length of the send queue.
    pub sq_len: u32,
}

impl ParserPayload {
    /// Returns the payload as words, lowest first.
    pub const fn words(&self) -> [u32; 4] {
        [(self.state as u32) << 24 | self.log_sq_slot as u32, self.sq_len, 0, 0]
    }
}

/// Response to the RD_QP_NPST request from Requester Trans Control, 192 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct TransPayload {
    /// Next PSN to send.
    pub next_psn: Psn,
    /// QPState: QP state code, 4 bits.
    pub state: u8,
    /// L_Key of the send CQ.
    pub cq_lkey: Lkey,
    /// SCQ_Length: length of the send CQ.
    pub cq_len: u32,
    /// Protection domain of the send CQ.
    pub cq_pd: Pdn,
    /// EQN of the EQ that the send CQ reports to.
    pub eqn: u8,
    /// CQN of the send CQ, 24 bits.
    pub cqn: Cqn,
    pub eq_len: u8,
    pub rlid: Lid,
}

impl TransPayload {
    /// Returns the payload as words, lowest first.
    pub const fn words(&self) -> [u32; 6] {
        [
            self.next_psn.get() << 8 | self.state as u32 & 0xf,
            self.cq_lkey.get(),
            self.cq_len,
            self.cq_pd.get(),
            (self.eqn as u32) << 24 | self.cqn.get() & 0xff_ffff,
            (self.eq_len as u32) << 24 | self.rlid.get() as u32,
        ]
    }
}

/// Returns the 128-bit payload of WR_QP_NPST: a PSN and a 3-bit state code.
pub const fn psn_and_state(psn: Psn, state: u8) -> [u32; 4] {
    [psn.get() << 8 | state as u32 & 0x7, 0, 0, 0]
}

/// Response to the RD_ENCAP request from Frame Encap, 256 bits. The bit that distinguishes InfiniBand from RoCE is 0,
/// as table 3.2 specifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct EncapPayload {
    /// P_Key of the QP.
    pub pkey: u16,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Port number, 3 bits.
    pub port: u8,
    pub source_ip: Ipv4Addr,
    pub dest_ip: Ipv4Addr,
    /// Source MAC address. Its low 16 bits are also the source LID.
    pub source_mac: MacAddr,
    /// Destination MAC address. Its low 16 bits are also the destination LID.
    pub dest_mac: MacAddr,
}

impl EncapPayload {
    /// Returns the payload as words, lowest first.
    pub const fn words(&self) -> [u32; 8] {
        let [s0, s1, s2, s3, s4, s5] = self.source_mac.0;
        let [d0, d1, d2, d3, d4, d5] = self.dest_mac.0;
        [
            (self.pkey as u32) << 16 | (self.service_level as u32 & 0xf) << 4 | self.port as u32 & 0x7,
            self.source_ip.to_bits(),
            self.dest_ip.to_bits(),
            u32::from_be_bytes([s2, s3, s4, s5]),
            u32::from_be_bytes([d4, d5, s0, s1]),
            u32::from_be_bytes([d0, d1, d2, d3]),
            0,
            0,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requests are in the same order as the rows of table 3.1.
    #[test]
    fn command_unit_headers_match_table_3_1() {
        for (request, header) in [
            (CeuRequest::ReadQp(0x9c_0005), 0x1100_0000_009c_0005_0000_0000_0000_0000_u128),
            (CeuRequest::WriteQp(5), 0x2100_0000_0000_0005_0000_0000_0000_0000),
            (CeuRequest::WriteCq(6), 0x3100_0000_0000_0006_0000_0000_0000_0000),
            (CeuRequest::ModifyCq(6), 0x3200_0000_0000_0006_0000_0000_0000_0000),
            (CeuRequest::InvalidateCq(6), 0x3300_0000_0000_0006_0000_0000_0000_0000),
            (CeuRequest::WriteEq(7), 0x4100_0000_0000_0007_0000_0000_0000_0000),
            (
                CeuRequest::MapEq { eqn: 7, remove: false, events: 0x3_033c },
                0x4200_0000_0000_0007_0000_0000_0003_033c,
            ),
            (
                CeuRequest::MapEq { eqn: 7, remove: true, events: 1 << 9 },
                0x4200_0000_8000_0007_0000_0000_0000_0200,
            ),
            (CeuRequest::InvalidateEq(7), 0x4400_0000_0000_0007_0000_0000_0000_0000),
            (CeuRequest::CreateTables, 0x5100_0000_0000_0000_0000_0000_0000_0000),
            (CeuRequest::InvalidateTables, 0x5200_0000_0000_0000_0000_0000_0000_0000),
            (CeuRequest::Map { chunks: 64 }, 0x6100_0000_0000_0040_0000_0000_0000_0000),
            (CeuRequest::Unmap { pages: 64, virt: 0x1_0004_0000 }, 0x6200_0000_0000_0040_0000_0001_0004_0000),
        ] {
            assert_eq!(request.header(), header, "{request:?}");
        }
    }

    /// According to table 2.1, the 24 bits after the opcode in an engine header are the QP number.
    #[test]
    fn engine_headers_match_table_2_1() {
        for (request, high) in [
            (EngineRequest::ReadNpst, 0x129c_0005_u32),
            (EngineRequest::ReadSst, 0x139c_0005),
            (EngineRequest::ReadRst, 0x149c_0005),
            (EngineRequest::ReadState, 0x159c_0005),
            (EngineRequest::ReadEncap, 0x169c_0005),
            (EngineRequest::ReadCst, 0x729c_0005),
            (EngineRequest::WriteUapst, 0x229c_0005),
            (EngineRequest::WriteNpst, 0x239c_0005),
            (EngineRequest::WriteEpst, 0x249c_0005),
        ] {
            assert_eq!(request.header(Qpn::new(0x9c_0005)), u128::from(high) << 96, "{request:?}");
        }
    }

    /// The expected layouts are from table 3.2.
    #[test]
    fn engine_payloads_match_table_3_2() {
        let doorbell = DoorbellPayload {
            remote_qpn: Qpn::new(0x9c_1234),
            service: 3,
            mtu_msgmax: 0xab,
            pkey: 0x7f,
            sq_lkey: Lkey::new(0x2_0021),
            pd: Pdn::new(0x45_8002),
            log_sq_slot: 7,
            sq_len: 0x4000,
        };
        assert_eq!(doorbell.words(), [0x1234_0003, 0x00ab_007f, 0x2_0021, 0x45_8002, 7, 0x4000, 0, 0]);
        let parser = ParserPayload { state: 3, log_sq_slot: 7, sq_len: 0x4000 };
        assert_eq!(parser.words(), [0x0300_0007, 0x4000, 0, 0]);
        let trans = TransPayload {
            next_psn: Psn::new(0x12_3456),
            state: 3,
            cq_lkey: Lkey::new(0x33),
            cq_len: 10,
            cq_pd: Pdn::new(4),
            eqn: 5,
            cqn: Cqn::new(0x21_0001),
            eq_len: 7,
            rlid: Lid::new(0x1010),
        };
        assert_eq!(trans.words(), [0x1234_5603, 0x33, 10, 4, 0x0521_0001, 0x0700_1010]);
        assert_eq!(psn_and_state(Psn::new(0x12_3456), 6), [0x1234_5606, 0, 0, 0]);
        let encap = EncapPayload {
            pkey: 0x7f,
            service_level: 5,
            port: 1,
            source_ip: Ipv4Addr::new(10, 77, 0, 1),
            dest_ip: Ipv4Addr::new(10, 77, 0, 2),
            source_mac: MacAddr([2, 0, 0, 1, 0x0c, 0x0d]),
            dest_mac: MacAddr([2, 0, 0, 2, 0x0a, 0x0b]),
        };
        let words = [0x007f_0051, 0x0a4d_0001, 0x0a4d_0002, 0x0001_0c0d, 0x0a0b_0200, 0x0200_0002, 0, 0];
        assert_eq!(encap.words(), words);
    }
}
