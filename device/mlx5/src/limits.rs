//! Device limits. QUERY_HCA_CAP reports some of them.
//!
//! # Spec
//! mlx5 interface, section 6.1.

use card::frontend::count::Count;
use protocol::hca::mlx5::capability::GeneralCaps;
use protocol::hca::mlx5::command::MAX_INPUT;
use protocol::hca::mlx5::regs::FIRST_UAR;
use schemars::JsonSchema;
use serde::Deserialize;

pub const MAX_EQS: u32 = 64;
/// Speed that PTYS reports for an Ethernet port, in Gbit/s.
pub const GBPS: u16 = 100;
/// Number of GIDs in an InfiniBand port's table.
pub const GIDS: u8 = 8;
/// Number of GIDs in an Ethernet port's table. Each combination of IP address and VLAN takes one.
pub const ROCE_GIDS: u16 = 128;
/// Maximum number of entries in each list of the NIC vport context.
pub const MAX_LIST: u16 = 128;
/// Number of P_Keys in an InfiniBand port's table. Kept small because the driver sends one query per P_Key when it
/// loads.
pub const PKEYS: u16 = 128;
/// Number of Q counter sets. Set numbers are eight bits wide, and set 0 does not exist.
pub const MAX_COUNTER_SETS: u32 = 255;
/// Maximum number of QPs in a multicast group.
pub const MAX_GROUP_QPS: usize = 56;
/// Log2 of the maximum receive queue entry size in bytes.
pub const LOG_MAX_RECV_ENTRY: u8 = 9;
/// Log2 of the maximum number of entries per CQ, as on a ConnectX-5. The golden traces were recorded with a 2^16-entry
/// limit, but libfabric creates larger CQs.
const LOG_MAX_CQES: u8 = 22;
/// Log2 of the maximum SRQ entry size in bytes. Such an entry has room for a link and at least 32 scatter entries.
pub const LOG_MAX_SRQ_ENTRY: u8 = 11;

/// Maximum number of DevX user contexts. Each program that opens the device has one.
pub const MAX_USER_CONTEXTS: u32 = 1 << 10;
pub const MAX_UMEMS: u32 = 1 << 12;
/// Maximum number of transport domains. Each user context of a verbs program has one.
pub const MAX_TRANSPORT_DOMAINS: u32 = 1 << 10;

/// Maximum number of pages that the driver can give to the device. Their addresses occupy 512 KiB. A correct driver
/// does not give any, because QUERY_PAGES requests 0.
pub const MAX_GIVEN_PAGES: usize = 1 << 16;
/// Maximum total number of pages in all queues, keys and UMEMs. Their addresses occupy 128 MiB. With 4 KiB pages,
/// queues and keys can cover 64 GiB in total.
pub const MAX_QUEUE_PAGES: usize = 1 << 24;

/// Maximum number of pages that a command can list, as CREATE_MKEY does for a large memory region. This many 4 KiB
/// pages are 16 GiB.
pub const MAX_LISTED_PAGES: usize = 1 << 22;
const _: () = assert!(MAX_LISTED_PAGES * size_of::<u64>() < MAX_INPUT);

/// Number of UAR pages whose doorbells always trap, even on a device with mapped doorbells. The Linux driver allocates
/// one such page for its EQs.
pub const TRAPPED_UARS: u32 = 16;

/// Flow table limits. [`resources`](super::resources) lists how much memory they let a guest use.
///
/// # Spec
/// mlx5 interface, section 16.4.
pub mod flow {
    /// Log2 of the maximum number of entries per table. The driver creates tables with up to 2^16 entries. It fails to
    /// load if QUERY_HCA_CAP reports 12 here (section 20, M-9).
    pub const LOG_MAX_TABLE_SIZE: u8 = 24;
    pub const MAX_TABLES: u32 = 1 << 8;
    pub const MAX_GROUPS: u32 = 1 << 13;
    /// Maximum number of groups per table. A frame is looked up once in each group.
    pub const MAX_TABLE_GROUPS: usize = 1 << 7;
    /// Maximum number of entries in all tables together. Accelerated RFS uses up to 2^18 of them.
    pub const MAX_ENTRIES: usize = 1 << 20;
    /// Maximum number of destinations per entry.
    pub const MAX_ENTRY_DESTINATIONS: usize = 1 << 5;
    /// Maximum number of destinations in all entries together.
    pub const MAX_DESTINATIONS: usize = 1 << 21;
    /// Maximum number of counters per entry.
    pub const MAX_ENTRY_COUNTERS: usize = 4;
    pub const MAX_COUNTERS: u32 = 1 << 16;
    /// Maximum number of counters that one command can query. Their values occupy 16 KiB.
    pub const MAX_QUERIED_COUNTERS: u16 = 1 << 10;
    /// Maximum number of tables that a frame visits.
    pub const MAX_HOPS: usize = 64;
    /// Maximum number of copies of a frame.
    pub const MAX_DELIVERIES: usize = 64;
}

/// Netdev object limits.
///
/// # Spec
/// mlx5 interface, section 6.1.
pub mod netdev {
    /// Maximum number of TISs. The driver creates eight, and each user context creates one per raw QP.
    pub const MAX_TISS: u32 = 1 << 12;
    pub const MAX_TIRS: u32 = 1 << 12;
    pub const MAX_RQTS: u32 = 1 << 10;
    pub const MAX_RQT_ENTRIES: u16 = 1 << 8;
    /// Highest SQ or RQ number. SQs and RQs share a range of 2^13 numbers that QPs do not use.
    pub const LAST_WORK_QUEUE: u32 = super::first::WORK_QUEUE + (1 << 13) - 1;
    /// Log2 of the maximum number of blocks in an SQ and of entries in an RQ.
    pub const LOG_MAX_WORK_QUEUE: u8 = 14;
    /// Log2 of the minimum RQ entry size in bytes, which is one data segment.
    pub const LOG_MIN_RECV_ENTRY: u8 = 4;
    /// Maximum frame length without the frame check sequence. The maximum in the PMTU register, 9978, includes it.
    pub const MAX_FRAME: usize = 9978 - 4;
    /// Maximum payload of an LSO. The driver sends up to 512 KiB (BIG TCP).
    pub const MAX_LSO_PAYLOAD: u32 = 1 << 20;
}

/// First object numbers, as in the golden traces. Lower numbers are unused, so 0 is never a valid number.
pub mod first {
    pub const CQ: u32 = 0x40;
    /// First QP number. QPs 0 and 1 belong to the port.
    pub const QP: u32 = 0x80;
    /// First memory key index. Indices 1 and 4 must not be used, since key 100h terminates scatter/gather lists and key
    /// 400h begins strided lists.
    pub const MKEY: u32 = 8;
    pub const SRQ: u32 = 0x10;
    /// First number of an SQ or RQ.
    pub const WORK_QUEUE: u32 = 0x4000;
}

/// Limits that the device reports to the driver in its reply to QUERY_HCA_CAP. All limits must be powers of two.
///
/// # Spec
/// mlx5 interface, section 6.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Maximum number of QPs, 2^8 to 2^17.
    pub max_qps: Count<8, 17>,
    /// Maximum number of CQs, 2^8 to 2^16.
    pub max_cqs: Count<8, 16>,
    /// Maximum number of SRQs, 2^8 to 2^16.
    pub max_srqs: Count<8, 16>,
    /// Maximum number of memory keys, 2^14 to 2^20. The driver of Linux 6.12 creates about 6,100 of them when it loads.
    pub max_mkeys: Count<14, 20>,
    /// Maximum number of entries per CQ, 2^8 to 2^22.
    pub max_cqes: Count<8, 22>,
    /// Maximum number of work requests per SRQ, 2^8 to 2^15.
    pub max_srq_wqes: Count<8, 15>,
    /// Maximum number of outstanding READs and atomics per QP in each direction, 1 to 2^4.
    pub max_rd_atomic: Count<0, 4>,
    /// Size in MiB of the BAR that holds the UAR pages, 1 to 2^5. Each guest process that opens the device uses several
    /// pages.
    pub bar_mib: Count<0, 5>,
}

impl Default for Limits {
    fn default() -> Self {
        let caps = GeneralCaps::infiniband();
        Self {
            max_qps: Count::of_log(caps.log_max_qps),
            max_cqs: Count::of_log(caps.log_max_cqs),
            max_srqs: Count::of_log(caps.log_max_srqs),
            max_mkeys: Count::of_log(caps.log_max_mkeys),
            max_cqes: Count::of_log(LOG_MAX_CQES),
            max_srq_wqes: Count::of_log(caps.log_max_srq_entries),
            max_rd_atomic: Count::of_log(caps.log_max_requester_depth),
            bar_mib: Count::of_log(caps.log_uar_size),
        }
    }
}

impl Limits {
    /// Returns the maximum general capabilities.
    pub fn caps(&self) -> GeneralCaps {
        GeneralCaps {
            log_max_qps: self.max_qps.log(),
            log_max_cqs: self.max_cqs.log(),
            log_max_srqs: self.max_srqs.log(),
            log_max_mkeys: self.max_mkeys.log(),
            log_max_cq_entries: self.max_cqes.log(),
            log_max_srq_entries: self.max_srq_wqes.log(),
            log_max_requester_depth: self.max_rd_atomic.log(),
            log_max_responder_depth: self.max_rd_atomic.log(),
            log_uar_size: self.bar_mib.log(),
            ..GeneralCaps::infiniband()
        }
    }

    /// Returns the length of BAR0 in bytes.
    pub const fn bar_len(&self) -> u64 {
        1 << (20 + self.bar_mib.log())
    }

    /// Returns the numbers of the first and the last UAR page that the device may allocate.
    pub const fn uar_pages(&self) -> [u32; 2] {
        const PER_MIB: u32 = 256;
        [FIRST_UAR, (PER_MIB << self.bar_mib.log()) - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Limits, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn missing_limits_use_defaults() {
        let caps = GeneralCaps { log_max_cq_entries: LOG_MAX_CQES, ..GeneralCaps::infiniband() };
        assert_eq!(parse("{}").unwrap().caps(), caps);
        let limits = Limits::default();
        assert_eq!((limits.bar_len(), limits.uar_pages()), (32 << 20, [16, 8191]));
        assert_eq!(1 << caps.log_max_transport_domains, MAX_TRANSPORT_DOMAINS);
        let log_max_counter_query = caps.with_ethernet_port().log_max_counter_query;
        assert_eq!(1 << log_max_counter_query, flow::MAX_QUERIED_COUNTERS);
    }

    #[test]
    fn configured_limits_are_advertised() {
        let limits = parse(r#"{"max_qps": 1024, "bar_mib": 1, "max_rd_atomic": 4}"#).unwrap();
        let caps = limits.caps();
        assert_eq!((caps.log_max_qps, caps.log_max_requester_depth, caps.log_uar_size), (10, 2, 0));
        assert_eq!((limits.bar_len(), limits.uar_pages()), (1 << 20, [16, 255]));
    }

    #[test]
    fn rejects_counts_out_of_range() {
        for (text, problem) in [
            (r#"{"max_mkeys": 8192}"#, "8192 is not a power of two from 16384 to 1048576"),
            (r#"{"max_qps": 1000}"#, "1000 is not a power of two from 256 to 131072"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(problem), "{error}");
        }
    }
}
