//! Initial contexts, modelled on those of `ib_mthca`.
//!
//! # Spec
//! mthca interface, section 6.

use protocol::Psn;
use protocol::hca::mthca::init::InitHca;
use protocol::hca::mthca::modify::QpAttributes;
use protocol::hca::mthca::path::{Address, Path};
use protocol::hca::mthca::qpc::{Qpc, Requester, Responder};
use protocol::hca::table::Table;
use protocol::ids::{IcmAddr, Lid, Qpn};

use super::UAR;

/// INIT_HCA parameters for a few objects of each type, with one page of doorbell records per UAR page. The doorbell
/// records start at ICM address 0. The device does not use the addresses of the other tables.
///
/// # Spec
/// mthca interface, sections 3.3.5 and 4.2.
pub const SMALL_LAYOUT: InitHca = InitHca {
    qpc: Table { base: IcmAddr::new(0), log_entries: 5 },
    srqc: Table { base: IcmAddr::new(0), log_entries: 4 },
    cqc: Table { base: IcmAddr::new(0), log_entries: 4 },
    eqc: Table { base: IcmAddr::new(0), log_entries: 3 },
    mpt: Table { base: IcmAddr::new(0), log_entries: 6 },
    group_buckets: 8,
    log_groups: 4,
    log_uarc: 12,
    log_uar_page: 0,
    uarc_base: IcmAddr::new(0),
};

/// An MPT entry (section 6.2).
#[derive(Clone, Copy, Debug)]
pub struct Mpt {
    pub flags: u32,
    /// Log2 of the page size in bytes, minus 12.
    pub log_pages: u32,
    /// The region's index in the low bits and its generation in the bits above the index.
    pub key: u32,
    pub pd: u32,
    pub start: u64,
    pub len: u64,
    /// ICM address of the first page table entry.
    pub mtt: u64,
}

impl Mpt {
    /// Flags for local reads and writes, without remote access.
    pub const LOCAL: u32 = 0xf002_0d00;
    /// Flags for local reads, without remote access.
    pub const READ_ONLY: u32 = 0xf002_0500;
    /// Flags for local access and all types of remote access.
    pub const REMOTE: u32 = 0xf002_7d00;

    /// Returns a region for a queue buffer, in protection domain 1.
    pub const fn buffer(slot: u32, len: u64, mtt: u64) -> Self {
        // `ib_mthca` copies bit 3 of the index to bit 23 so that keys are spread over the device's banks (section 6.1).
        let key = slot | (slot >> 3 & 1) << 23;
        Self { flags: Self::LOCAL, log_pages: 0, key, pd: 1, start: 0, len, mtt }
    }

    /// Returns a region that covers the whole address space, like the first region that `ib_mthca` registers.
    pub const fn everything() -> Self {
        Self { flags: 0xf002_0f00, log_pages: 0, key: 0x10, pd: 1, start: 0, len: u64::MAX, mtt: 0 }
    }

    /// Returns the key as it appears in work requests and contexts.
    pub const fn lkey(&self) -> u32 {
        self.key.rotate_left(8)
    }

    /// Returns the inbox of SW2HW_MPT.
    pub fn bytes(&self) -> Vec<u8> {
        let Self { flags, log_pages, key, pd, start, len, mtt } = *self;
        let mut bytes = words(&[flags, log_pages, key, pd], 0x10);
        bytes.extend([start, len].map(u64::to_be_bytes).concat());
        bytes.resize(0x2c, 0);
        bytes.extend(mtt.to_be_bytes());
        bytes.resize(0x40, 0);
        bytes
    }
}

/// Returns the inbox of SW2HW_EQ for an EQ that signals an MSI-X vector (section 6.3).
pub fn eq_context(log_entries: u8, vector: u8, pd: u32, lkey: u32) -> Vec<u8> {
    words(&[0x0104_0900, 0, 0, u32::from(log_entries) << 24, 0, u32::from(0x80 | vector), pd, lkey], 0x40)
}

/// A CQ that uses EQ 1 for completion events and EQ 2 for asynchronous events (section 6.4).
#[derive(Clone, Copy, Debug)]
pub struct Cq {
    pub cqn: u32,
    pub log_entries: u8,
    pub pd: u32,
    pub lkey: u32,
    /// Index of the doorbell record that holds the consumer index.
    pub record: u32,
    /// Index of the doorbell record that holds the arm state.
    pub arm_record: u32,
}

impl Cq {
    /// Returns the inbox of SW2HW_CQ.
    pub fn bytes(&self) -> Vec<u8> {
        let Self { cqn, log_entries, pd, lkey, record, arm_record } = *self;
        let size = u32::from(log_entries) << 24 | UAR;
        words(&[0x0004_0000, 0, 0, size, 2, 1, pd, lkey, 0, 0, 0, 0, cqn, record, arm_record], 0x40)
    }
}

/// Returns the inbox of SW2HW_SRQ for a queue with `1 << log_slots` slots of `16 << log_slot` bytes each (section 6.6).
pub fn srq_context(srqn: u32, [log_slots, log_slot]: [u32; 2], pd: u32, lkey: u32, record: u32) -> Vec<u8> {
    words(&[log_slots << 24 | srqn & 0xff_ffff, lkey, record, log_slot << 29 | UAR, 0, 0, pd], 0x30)
}

/// Returns the context of a QP whose peer is the QP with the same number at `dlid`. The work queue fields are zero, and
/// the PSNs are about to wrap. UD and management QPs have MTU 2048. All other QPs have MTU 256 and no limit on the
/// message length.
pub fn qpc(kind: u8, qpn: u32, dlid: u16) -> Qpc {
    const UD: u8 = 3;
    const MLX: u8 = 7;
    let address = Address { dlid: Lid::new(dlid), ..Address::default() };
    let (mtu, log_max_msg) = if matches!(kind, UD | MLX) { (4, 11) } else { (1, 31) };
    Qpc {
        kind,
        mtu,
        log_max_msg,
        page: UAR,
        local_qpn: Qpn::new(qpn),
        remote_qpn: Qpn::new(qpn),
        primary: Path { port: 1, rnr_retry: 7, ack_timeout: 14, address, ..Path::default() },
        requester: Requester::new().with_reads(true).with_atomics(true).with_retry_count(7).with_log_depth(2),
        next_send_psn: Psn::new(0xff_fffe),
        responder: Responder::new().with_reads(true).with_writes(true).with_atomics(true).with_log_depth(2),
        min_rnr_timer: 1,
        recv_psn: Psn::new(0xff_fffe),
        ..Qpc::default()
    }
}

/// Returns the inbox of a command that modifies the QP attributes in `named`.
pub fn modify(named: QpAttributes, qpc: &Qpc) -> Vec<u8> {
    [&named.bits().to_be_bytes()[..], &[0; 4], &qpc.emit()].concat()
}

/// Returns words as big-endian bytes, padded with zeros to `len` bytes.
pub fn words(words: &[u32], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    bytes.resize(len, 0);
    bytes
}
