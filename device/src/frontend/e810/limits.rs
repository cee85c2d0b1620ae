//! How much of everything a device has. Of the RDMA half's objects the configuration says it, and "query FPM" answers it; the
//! rest is fixed.
//!
//! The driver of the RDMA half takes all that it is offered: it sizes its own tables by it, and commits context memory for it.
//!
//! # Spec
//! E810 interface, sections 5.8, 6.1 and 11.2.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::frontend::count::Count;

/// Completion event queues of the RDMA half.
pub const MAX_CEQS: u16 = 16;
/// Longest message of a connection, bytes: what the driver says of its device (`max_msg_sz`).
pub const MAX_MESSAGE: u32 = (1 << 31) - 1;
/// VSIs of the device.
pub const DEVICE_VSIS: u32 = 768;
/// VSIs of a function.
pub const FUNCTION_VSIS: u32 = 384;
/// Lists of VSIs of either kind.
///
/// Bound: rules have ten bits for them, and list 0 is not given out.
pub const MAX_LISTS: u16 = 1023;
/// Filters of the flow director that the device guarantees to all functions together.
pub const DEVICE_FILTERS: u32 = 1024;
/// Filters of the flow director of a function: guaranteed, and as far as there is room. Without them drivers warn.
pub const FUNCTION_FILTERS: u16 = 512;
/// Blocks of counters of flow director filters.
pub const MAX_COUNTER_BLOCKS: u16 = 64;
/// Profiles of the flow director or of the receive hash.
///
/// Bound: of what a driver can have; it programs one for each kind of flow, some 30 at once.
pub const MAX_PROFILES: u16 = 128;
/// Entries of the tables that choose a profile.
///
/// Bound: of what a driver can have, a few for each profile.
pub const MAX_TCAM_ENTRIES: u16 = 512;

/// Limits of RDMA objects, which the driver reads by "query FPM". All are powers of two.
///
/// # Spec
/// E810 interface, section 11.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Maximum number of queue pairs, 2^5 to 2^13. The driver reserves three of them. This is also the
    /// maximum number of multicast groups.
    pub max_qps: Count<5, 13>,
    /// Maximum number of completion queues, 2^6 to 2^14. The driver uses two per queue pair.
    pub max_cqs: Count<6, 14>,
    /// Maximum number of memory regions and windows, 2^8 to 2^20.
    pub max_regions: Count<8, 20>,
    /// Maximum number of page list entries (PBLEs), 2^16 to 2^28. Each registered 4 KiB page of memory takes
    /// one. Each entry in use takes 8 bytes of guest memory.
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
            // 256 GiB of small pages. The driver's own table of segments, which it allocates in one piece, then takes 32 KiB.
            max_pbles: Count::of_log(26),
            // What the twelve bits of "manage ARP" can name.
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
    fn counts_out_of_range_are_refused() {
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
