//! Limits of the device. The limits on RDMA objects are configurable and reported by "query FPM"; all other limits are
//! fixed. Unless another reason is given, a fixed limit bounds the memory that a driver can consume on the host.
//!
//! `irdma` uses as many objects as the device offers: it sizes its tables accordingly and commits context memory for
//! all of them.
//!
//! # Spec
//! E810 interface, sections 5.8, 6.1 and 11.2.

use card::frontend::count::Count;
use schemars::JsonSchema;
use serde::Deserialize;

/// Maximum number of CEQs.
pub const MAX_CEQS: u16 = 16;
/// Maximum message size on a connection, in bytes. `irdma` reports it as `max_msg_sz`.
pub const MAX_MESSAGE: u32 = (1 << 31) - 1;
/// Maximum number of VSIs on the device.
pub const DEVICE_VSIS: u32 = 768;
/// Maximum number of VSIs per function, as reported. It is not enforced because `ice` ignores it and instead divides
/// [`DEVICE_VSIS`] by the number of functions. With only one function, `ice` may use all VSIs.
pub const FUNCTION_VSIS: u32 = 384;
/// Maximum number of VSI lists of each kind. A rule's list number is ten bits wide, and number 0 is not assigned.
pub const MAX_LISTS: u16 = 1023;
/// Number of flow director filters of the device, both guaranteed and best-effort.
pub const DEVICE_FILTERS: u32 = 1024;
/// Number of guaranteed flow director filters per function, and also the number of best-effort filters. `ice` warns if
/// both are 0.
pub const FUNCTION_FILTERS: u16 = 512;
/// Number of counter blocks for flow director filters.
pub const MAX_COUNTER_BLOCKS: u16 = 64;
/// Maximum number of flow director profiles and of RSS profiles. A driver uses about 30 profiles, one per flow type.
pub const MAX_PROFILES: u16 = 128;
/// Maximum number of TCAM entries that select a profile. A driver uses a few entries per profile.
pub const MAX_TCAM_ENTRIES: u16 = 512;

/// Number of traffic classes, as reported. All frames use traffic class 0.
pub const TRAFFIC_CLASSES: u32 = 8;
/// Maximum number of lookup rules, which need about 100 bytes each. If the driver cannot add a rule for an address, it
/// falls back to promiscuous mode.
pub const MAX_RULES: u16 = 8192;
/// Maximum number of large actions. Each one has at most [`MAX_ACTIONS`] actions.
pub const MAX_LARGE_ACTIONS: usize = 512;
/// Maximum number of actions in a large action.
pub const MAX_ACTIONS: usize = 4;
/// Maximum number of children per scheduler element. Drivers read it with "query scheduler resources" and group queues
/// accordingly.
pub const MAX_SIBLINGS: u16 = 8;
/// Maximum number of scheduler elements per layer.
pub const MAX_LAYER_ELEMENTS: u16 = 512;
/// Maximum number of elements in a scheduler command, as reported. It is not enforced; the command's buffer limits the
/// number.
pub const MAX_COMMAND_ELEMENTS: u16 = 64;
/// Maximum number of rate profiles per kind and layer, including profile 0, which always exists.
pub const MAX_RATE_PROFILES: u16 = 64;
/// Maximum number of RDMA queue sets, equal to the maximum number of scheduler leaves. The sets need a limit of their
/// own, because a set remains when its leaf is deleted together with an ancestor.
pub const MAX_RDMA_SETS: usize = 512;
/// Maximum number of entries in the function's RSS lookup table. Drivers accept no other maximum.
pub const RSS_FUNCTION_ENTRIES: u16 = 2048;
/// Number of entries in a VSI's RSS lookup table.
pub const RSS_VSI_ENTRIES: usize = 64;
/// Maximum number of CQP ring entries. Ring indices in registers have eleven bits.
pub const MAX_CQP_ENTRIES: u32 = 2048;
/// Maximum size of a work queue in quanta. WQE indices in CQEs are 15 bits wide.
pub const MAX_WORK_QUANTA: u32 = 1 << 15;
/// Maximum number of work scheduler nodes. For each traffic class of a VSI, a driver needs three nodes.
pub const MAX_NODES: usize = 512;
/// Number of handles for queue sets of the work scheduler. Handles are ten bits wide and start at 1.
pub const MAX_SETS: u16 = 1023;
/// Maximum number of RDMA timers, as reported. The device does not use the timers.
pub const MAX_TIMERS: u32 = 4096;

/// Limits on the number of RDMA objects. The driver reads these limits with the "query FPM" operation. All
/// limits must be powers of two.
///
/// # Spec
/// E810 interface, section 11.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Maximum number of queue pairs, 2^5 to 2^13. The driver reserves three of them. This limit is also the
    /// maximum number of multicast groups.
    pub max_qps: Count<5, 13>,
    /// Maximum number of completion queues, 2^6 to 2^14. The driver uses two per queue pair.
    pub max_cqs: Count<6, 14>,
    /// Maximum number of memory regions and windows, 2^8 to 2^20.
    pub max_regions: Count<8, 20>,
    /// Maximum number of page list entries (PBLEs), 2^16 to 2^28. Each registered 4 KiB page of memory needs one entry.
    /// Each entry in use occupies 8 bytes of guest memory.
    pub max_pbles: Count<16, 28>,
    /// Maximum number of neighbours that RDMA can reach at the same time, 2^4 to 2^12. The driver adds an
    /// entry for each valid neighbour of the guest kernel and rarely removes one.
    pub max_arp_entries: Count<4, 12>,
    /// Maximum number of address handles, 2^6 to 2^16.
    pub max_ahs: Count<6, 16>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qps: Count::of_log(10),
            max_cqs: Count::of_log(11),
            max_regions: Count::of_log(14),
            // Enough for 256 GiB in 4 KiB pages. A higher limit would make `irdma` allocate a contiguous segment table
            // of more than 32 KiB.
            max_pbles: Count::of_log(26),
            // The ARP index in "manage ARP" is twelve bits wide.
            max_arp_entries: Count::of_log(12),
            max_ahs: Count::of_log(12),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Limits, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn missing_keys_keep_their_defaults() {
        let limits = parse(r#"{"max_pbles": 65536}"#).unwrap();
        assert_eq!(limits, Limits { max_pbles: Count::of_log(16), ..Limits::default() });
    }

    #[test]
    fn rejects_counts_out_of_range() {
        for (text, problem) in [
            (r#"{"max_pbles": 536870912}"#, "536870912 is not a power of two from 65536 to 268435456"),
            (r#"{"max_arp_entries": 8192}"#, "8192 is not a power of two from 16 to 4096"),
            (r#"{"max_qps": 1000}"#, "1000 is not a power of two from 32 to 8192"),
            (r#"{"max_srqs": 1}"#, "unknown field `max_srqs`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(problem), "{error}");
        }
    }
}
