//! Device capabilities: outboxes of QUERY_FW, QUERY_DEV_LIM and QUERY_ADAPTER.
//!
//! Since the mailboxes are mostly reserved, fields are read and written one by one, at the offsets in the interface
//! document.
//!
//! # Spec
//! mthca interface, sections 3.3.1, 3.3.6 and 3.4.

use super::regs;
use crate::describe::{Describe, Field as _, Hex, Visitor, describe};

/// Length of each outbox in bytes.
pub const LEN: usize = 0x100;

/// Outbox of QUERY_FW: firmware version and register addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryFw {
    /// Number of 4 KiB pages that the firmware requests. This device does not use them.
    pub area_pages: u16,
    /// Major, minor and subminor version.
    pub version: [u16; 3],
    /// Log2 of the maximum number of outstanding commands that complete with an event.
    pub log_max_commands: u8,
    /// Bus address of BAR0. The outbox reports registers by bus address. Linux uses only the offset within the BAR, but
    /// iPXE uses the full address.
    pub bar0: u64,
}

impl QueryFw {
    /// Parses the outbox as a driver does.
    pub fn parse(out: &[u8; LEN]) -> Self {
        let half = |at| u16::from_be_bytes(get(out, at));
        Self {
            area_pages: half(0x00),
            version: [half(0x02), half(0x06), half(0x04)],
            log_max_commands: out[0x0f],
            bar0: u64::from_be_bytes(get(out, 0x30)).wrapping_sub(regs::CATASTROPHE.into()),
        }
    }

    /// Returns the outbox with the lowest firmware version that the driver accepts without warning.
    pub const fn recommended(bar0: u64) -> Self {
        Self { area_pages: 1, version: [1, 2, 0], log_max_commands: 5, bar0 }
    }

    /// Returns the outbox in wire format. The registers are at the offsets in [`regs`].
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        let register = |offset: u32| self.bar0.wrapping_add(offset.into());
        let [major, minor, subminor] = self.version;
        put(&mut out, 0x00, self.area_pages.to_be_bytes());
        put(&mut out, 0x02, major.to_be_bytes());
        put(&mut out, 0x04, subminor.to_be_bytes());
        put(&mut out, 0x06, minor.to_be_bytes());
        out[0x0f] = self.log_max_commands;
        put(&mut out, 0x20, register(regs::CLEAR_INTERRUPT).to_be_bytes());
        put(&mut out, 0x30, register(regs::CATASTROPHE).to_be_bytes());
        put(&mut out, 0x38, regs::CATASTROPHE_DWORDS.to_be_bytes());
        put(&mut out, 0x40, register(regs::EQ_ARM).to_be_bytes());
        put(&mut out, 0x48, register(regs::EQ_SET_CI).to_be_bytes());
        out
    }
}

impl Describe for QueryFw {
    fn describe(&self, to: &mut dyn Visitor) {
        let Self { area_pages, version: [major, minor, subminor], log_max_commands, bar0 } = self;
        area_pages.show("area_pages", to);
        format_args!("{major}.{minor}.{subminor}").show("version", to);
        log_max_commands.show("log_max_commands", to);
        Hex(*bar0).show("bar0", to);
    }
}

/// Device limits. Fields named `log_...` hold the log2 of the value described. Fields that drivers do not read on a
/// device without local memory are omitted here and emitted as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DevLim {
    /// Maximum number of WQEs in an SRQ.
    pub log_max_srq_wqes: u8,
    /// Maximum number of WQEs in a QP's work queue.
    pub log_max_wqes: u8,
    /// Number of reserved QPs, starting with QP 0.
    pub log_reserved_qps: u8,
    pub log_max_qps: u8,
    /// Number of reserved SRQs, starting with SRQ 0.
    pub log_reserved_srqs: u8,
    /// Number of SRQs. The driver computes the size of its SRQ table from it.
    pub log_max_srqs: u8,
    /// Maximum number of CQEs in a CQ.
    pub log_max_cqes: u8,
    /// Number of reserved CQs, starting with CQ 0.
    pub log_reserved_cqs: u8,
    pub log_max_cqs: u8,
    /// Number of MPT entries.
    pub log_max_mpts: u8,
    /// Number of reserved EQs, starting with EQ 0.
    pub log_reserved_eqs: u8,
    pub log_max_eqs: u8,
    /// Number of reserved MTT entries, starting with entry 0.
    pub log_reserved_mtts: u8,
    /// Number of reserved MPT entries, starting with entry 0. There must be at least two: the key of entry 1 marks the
    /// end of scatter lists.
    pub log_reserved_mpts: u8,
    /// Number of MTT segments.
    pub log_max_mtt_segments: u8,
    /// Maximum length of a memory region in bytes.
    pub log_max_mr_len: u8,
    /// Maximum number of outstanding READs and atomics as the requester.
    pub log_max_requester_resources: u8,
    /// Maximum number of outstanding READs and atomics as the responder.
    pub log_max_responder_resources: u8,
    /// Local ACK delay, as a timeout code.
    pub ack_delay: u8,
    /// Largest path MTU code, 1 to 5.
    pub max_mtu: u8,
    /// Bit mask of the supported link widths.
    pub port_width: u8,
    /// Number of virtual lanes.
    pub max_vl: u8,
    pub ports: u8,
    /// Number of GIDs per port.
    pub log_max_gids: u8,
    /// Number of P_Keys per port.
    pub log_max_pkeys: u8,
    /// Bit mask of the supported static rates.
    pub static_rates: u16,
    /// Capability flags, for example [`DevLim::FLAG_RC`].
    pub flags: u32,
    /// Number of reserved UAR pages.
    pub reserved_uars: u8,
    /// Total size of all UAR pages in MiB.
    pub log_uar_mib: u8,
    /// Smallest page size of a memory region in bytes.
    pub log_min_page: u8,
    /// Maximum number of gather list entries.
    pub max_send_sges: u8,
    /// Maximum size of a send WQE in bytes.
    pub max_send_wqe_len: u16,
    /// Maximum number of scatter list entries.
    pub max_recv_sges: u8,
    /// Maximum size of a receive WQE in bytes.
    pub max_recv_wqe_len: u16,
    /// Maximum number of QPs in a multicast group.
    pub log_max_group_qps: u8,
    /// Number of multicast groups.
    pub log_max_groups: u8,
    /// Number of reserved protection domains.
    pub reserved_pds: u8,
    /// Number of protection domains.
    pub log_max_pds: u8,
    /// Size of the ICM address space in bytes.
    pub max_icm_len: u64,
}

impl DevLim {
    /// The device supports reliable connections.
    pub const FLAG_RC: u32 = 1 << 0;
    /// The device supports unreliable connections.
    pub const FLAG_UC: u32 = 1 << 1;
    /// The device supports unreliable datagrams.
    pub const FLAG_UD: u32 = 1 << 2;
    /// The device supports shared receive queues.
    pub const FLAG_SRQ: u32 = 1 << 6;
    /// The device counts P_Key and Q_Key violations.
    pub const FLAG_VIOLATIONS: u32 = 0b11 << 8;
    /// The device supports atomic operations.
    pub const FLAG_ATOMICS: u32 = 1 << 18;
    /// The device supports multicast datagrams.
    pub const FLAG_MULTICAST: u32 = 1 << 21;

    /// Limits that this device reports.
    pub const RECOMMENDED: Self = Self {
        log_max_srq_wqes: 14,
        log_max_wqes: 14,
        log_reserved_qps: 4,
        log_max_qps: 16,
        log_reserved_srqs: 4,
        log_max_srqs: 12,
        log_max_cqes: 17,
        log_reserved_cqs: 4,
        log_max_cqs: 16,
        log_max_mpts: 17,
        log_reserved_eqs: 0,
        // iPXE requires 64 EQs, the number in an MT25204.
        log_max_eqs: 6,
        log_reserved_mtts: 4,
        log_reserved_mpts: 4,
        log_max_mtt_segments: 20,
        log_max_mr_len: 30,
        log_max_requester_resources: 4,
        log_max_responder_resources: 2,
        ack_delay: 15,
        max_mtu: 4,
        port_width: 3,
        max_vl: 4,
        ports: 1,
        log_max_gids: 5,
        log_max_pkeys: 6,
        static_rates: 0xf,
        flags: Self::FLAG_RC
            | Self::FLAG_UC
            | Self::FLAG_UD
            | Self::FLAG_SRQ
            | Self::FLAG_VIOLATIONS
            | Self::FLAG_ATOMICS
            | Self::FLAG_MULTICAST,
        reserved_uars: 1,
        log_uar_mib: 3,
        log_min_page: 12,
        max_send_sges: 30,
        max_send_wqe_len: 1008,
        max_recv_sges: 30,
        max_recv_wqe_len: 1008,
        log_max_group_qps: 6,
        log_max_groups: 13,
        reserved_pds: 1,
        log_max_pds: 15,
        max_icm_len: 0x8_0000_0000,
    };

    /// Returns the QPN of the first special QP, called S in section 8.1.
    pub const fn special_qp_base(&self) -> u32 {
        (1u32 << self.log_reserved_qps).next_multiple_of(2)
    }

    /// Parses the outbox as a driver does.
    pub fn parse(out: &[u8; LEN]) -> Self {
        let half = |at| u16::from_be_bytes(get(out, at));
        Self {
            log_max_srq_wqes: out[0x10],
            log_max_wqes: out[0x11],
            log_reserved_qps: out[0x12] & 0xf,
            log_max_qps: out[0x13] & 0x1f,
            log_reserved_srqs: out[0x14] >> 4,
            log_max_srqs: out[0x15] & 0x1f,
            log_max_cqes: out[0x19],
            log_reserved_cqs: out[0x1a] & 0xf,
            log_max_cqs: out[0x1b] & 0x1f,
            log_max_mpts: out[0x1d] & 0x3f,
            log_reserved_eqs: out[0x1e] & 0xf,
            log_max_eqs: out[0x1f] & 0x7,
            log_reserved_mtts: out[0x20] >> 4,
            log_max_mr_len: out[0x21],
            log_reserved_mpts: out[0x22] & 0xf,
            log_max_mtt_segments: out[0x23] & 0x3f,
            log_max_requester_resources: out[0x29] & 0x3f,
            log_max_responder_resources: out[0x2b] & 0x3f,
            ack_delay: out[0x35] & 0x1f,
            max_mtu: out[0x36] >> 4,
            port_width: out[0x36] & 0xf,
            max_vl: out[0x37] >> 4,
            ports: out[0x37] & 0xf,
            log_max_gids: out[0x3b] & 0xf,
            static_rates: half(0x3c),
            log_max_pkeys: out[0x3f] & 0xf,
            flags: u32::from_be_bytes(get(out, 0x44)),
            reserved_uars: out[0x48] >> 4,
            log_uar_mib: out[0x49] & 0x3f,
            log_min_page: out[0x4b],
            max_send_sges: out[0x51],
            max_send_wqe_len: half(0x52),
            max_recv_sges: out[0x55],
            max_recv_wqe_len: half(0x56),
            log_max_group_qps: out[0x61],
            log_max_groups: out[0x63],
            reserved_pds: out[0x64] >> 4,
            log_max_pds: out[0x65] & 0x3f,
            max_icm_len: u64::from_be_bytes(get(out, 0xa0)),
        }
    }

    /// Returns the outbox in wire format. Values that exceed their fields are truncated.
    pub fn emit(&self) -> [u8; LEN] {
        const LOG_MAX_RESOURCES: u8 = 20;
        // Entry sizes, in bytes, of the tables that the driver reserves ICM space for.
        const EEC: u16 = 0x100;
        const QPC: u16 = 0x100;
        const EEEC: u16 = 0x20;
        const EQPC: u16 = 0x20;
        const EQC: u16 = 0x40;
        const CQC: u16 = 0x40;
        const SRQC: u16 = 0x40;
        const SCRATCH: u16 = 0x20;
        const MTT: u16 = 8;
        const MPT: u16 = 0x40;

        let mut out = [0; LEN];
        out[0x10] = self.log_max_srq_wqes;
        out[0x11] = self.log_max_wqes;
        out[0x12] = self.log_reserved_qps & 0xf;
        out[0x13] = self.log_max_qps & 0x1f;
        out[0x14] = self.log_reserved_srqs << 4;
        out[0x15] = self.log_max_srqs & 0x1f;
        out[0x19] = self.log_max_cqes;
        out[0x1a] = self.log_reserved_cqs & 0xf;
        out[0x1b] = self.log_max_cqs & 0x1f;
        out[0x1d] = self.log_max_mpts & 0x3f;
        out[0x1e] = self.log_reserved_eqs & 0xf;
        out[0x1f] = self.log_max_eqs & 0x7;
        out[0x20] = self.log_reserved_mtts << 4;
        out[0x21] = self.log_max_mr_len;
        out[0x22] = self.log_reserved_mpts & 0xf;
        out[0x23] = self.log_max_mtt_segments & 0x3f;
        out[0x29] = self.log_max_requester_resources & 0x3f;
        out[0x2b] = self.log_max_responder_resources & 0x3f;
        out[0x2f] = LOG_MAX_RESOURCES;
        out[0x35] = self.ack_delay & 0x1f;
        out[0x36] = self.max_mtu << 4 | self.port_width & 0xf;
        out[0x37] = self.max_vl << 4 | self.ports & 0xf;
        out[0x3b] = self.log_max_gids & 0xf;
        put(&mut out, 0x3c, self.static_rates.to_be_bytes());
        out[0x3f] = self.log_max_pkeys & 0xf;
        put(&mut out, 0x44, self.flags.to_be_bytes());
        out[0x48] = self.reserved_uars << 4;
        out[0x49] = self.log_uar_mib & 0x3f;
        out[0x4b] = self.log_min_page;
        out[0x51] = self.max_send_sges;
        put(&mut out, 0x52, self.max_send_wqe_len.to_be_bytes());
        out[0x55] = self.max_recv_sges;
        put(&mut out, 0x56, self.max_recv_wqe_len.to_be_bytes());
        out[0x61] = self.log_max_group_qps;
        out[0x63] = self.log_max_groups;
        out[0x64] = self.reserved_pds << 4;
        out[0x65] = self.log_max_pds & 0x3f;
        for (at, len) in (0x80..).step_by(2).zip([EEC, QPC, EEEC, EQPC, EQC, CQC, SRQC, SCRATCH, MTT, MPT]) {
            put(&mut out, at, len.to_be_bytes());
        }
        put(&mut out, 0xa0, self.max_icm_len.to_be_bytes());
        out
    }
}

describe!(DevLim {
    log_max_srq_wqes,
    log_max_wqes,
    log_reserved_qps,
    log_max_qps,
    log_reserved_srqs,
    log_max_srqs,
    log_max_cqes,
    log_reserved_cqs,
    log_max_cqs,
    log_max_mpts,
    log_reserved_eqs,
    log_max_eqs,
    log_reserved_mtts,
    log_reserved_mpts,
    log_max_mtt_segments,
    log_max_mr_len,
    log_max_requester_resources,
    log_max_responder_resources,
    ack_delay,
    max_mtu,
    port_width as Hex,
    max_vl,
    ports,
    log_max_gids,
    log_max_pkeys,
    static_rates as Hex,
    flags as Hex,
    reserved_uars,
    log_uar_mib,
    log_min_page,
    max_send_sges,
    max_send_wqe_len,
    max_recv_sges,
    max_recv_wqe_len,
    log_max_group_qps,
    log_max_groups,
    reserved_pds,
    log_max_pds,
    max_icm_len as Hex,
});

/// Outbox of QUERY_ADAPTER. The INTx pin is always reported as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Board ID, padded with NUL bytes. The driver exposes it in sysfs.
    pub board_id: [u8; 16],
}

impl Describe for Adapter {
    fn describe(&self, to: &mut dyn Visitor) {
        format_args!("{}", self.board_id.split(|byte| *byte == 0).next().unwrap_or_default().escape_ascii())
            .show("board_id", to);
    }
}

impl Adapter {
    /// Parses the outbox as a driver does.
    pub fn parse(out: &[u8; LEN]) -> Self {
        let mut board_id: [u8; 16] = get(out, 0xf0);
        board_id.as_chunks_mut::<4>().0.iter_mut().for_each(|dword| dword.reverse());
        Self { board_id }
    }

    /// Returns the outbox in wire format.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        let (dwords, _) = self.board_id.as_chunks::<4>();
        for (at, [a, b, c, d]) in (0xf0..).step_by(4).zip(dwords) {
            // Drivers swap the bytes of each 32-bit word when they read the board ID.
            put(&mut out, at, [*d, *c, *b, *a]);
        }
        out
    }
}

/// Writes a field of the outbox. Callers pass only offsets inside the outbox.
fn put<const N: usize>(out: &mut [u8; LEN], at: usize, field: [u8; N]) {
    if let Some(place) = out.get_mut(at..at + N) {
        place.copy_from_slice(&field);
    }
}

/// Returns a field of the outbox. Callers pass only offsets inside the outbox.
fn get<const N: usize>(out: &[u8; LEN], at: usize) -> [u8; N] {
    out.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(out: &[u8; LEN], lines: &[(usize, &[u8])]) {
        let mut expected = [0; LEN];
        for (at, bytes) in lines {
            expected[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        assert_eq!(out[..], expected[..]);
    }

    /// The expected values come from the last column of section 3.3.1.
    #[test]
    fn query_fw_matches_published_values() {
        check(
            &QueryFw::recommended(0x38_fe10_0000).emit(),
            &[
                (0x00, &[0, 1, 0, 1, 0, 0, 0, 2]),
                (0x0f, &[5]),
                (0x20, &[0, 0, 0, 0x38, 0xfe, 0x1f, 0x00, 0xd8]),
                (0x30, &[0, 0, 0, 0x38, 0xfe, 0x18, 0x30, 0x00]),
                (0x38, &[0, 0, 0, 1]),
                (0x40, &[0, 0, 0, 0x38, 0xfe, 0x18, 0x0a, 0x00]),
                (0x48, &[0, 0, 0, 0x38, 0xfe, 0x18, 0x0b, 0x00]),
            ],
        );
    }

    /// The expected values come from the last column of section 3.4.
    #[test]
    fn query_dev_lim_matches_published_values() {
        check(
            &DevLim::RECOMMENDED.emit(),
            &[
                (0x10, &[14, 14, 4, 16, 0x40, 12]),
                (0x19, &[17, 4, 16]),
                (0x1d, &[17, 0, 6, 0x40, 30, 4, 20]),
                (0x29, &[4, 0, 2]),
                (0x2f, &[20]),
                (0x35, &[15, 0x43, 0x41]),
                (0x3b, &[5, 0x00, 0x0f, 0, 6]),
                (0x44, &[0x00, 0x24, 0x03, 0x47]),
                (0x48, &[0x10, 3]),
                (0x4b, &[12]),
                (0x51, &[30, 0x03, 0xf0]),
                (0x55, &[30, 0x03, 0xf0]),
                (0x61, &[6, 0, 13, 0x10, 15]),
                (0x80, &[0x01, 0x00, 0x01, 0x00, 0x00, 0x20, 0x00, 0x20, 0x00, 0x40, 0x00, 0x40]),
                (0x8c, &[0x00, 0x40, 0x00, 0x20, 0x00, 0x08, 0x00, 0x40]),
                (0xa0, &[0, 0, 0, 0x08, 0, 0, 0, 0]),
            ],
        );
        assert_eq!(DevLim::RECOMMENDED.special_qp_base(), 16);
    }

    #[test]
    fn board_id_is_byte_swapped_per_word() {
        let out = Adapter { board_id: *b"HCAD_MT25204\0\0\0\0" }.emit();
        check(&out, &[(0xf0, b"DACH2TM_4025")]);
    }

    #[test]
    fn emitted_outboxes_round_trip() {
        let firmware = QueryFw::recommended(0x38_fe10_0000);
        assert_eq!(QueryFw::parse(&firmware.emit()), firmware);
        assert_eq!(DevLim::parse(&DevLim::RECOMMENDED.emit()), DevLim::RECOMMENDED);
        let adapter = Adapter { board_id: *b"HCAD_MT25204\0\0\0\0" };
        assert_eq!(Adapter::parse(&adapter.emit()), adapter);
    }
}
