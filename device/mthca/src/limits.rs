//! The configured limits that QUERY_DEV_LIM advertises.
//!
//! The driver does not use all of these limits: its module parameters determine the QP, CQ and MPT table sizes. The
//! device accepts table sizes up to the bounds of INIT_HCA (section 12, T17), but checks CQ and SRQ lengths against the
//! advertised limits.
//!
//! # Spec
//! mthca interface, section 3.4.

use card::frontend::count::Count;
use protocol::hca::mthca::caps::DevLim;
use schemars::JsonSchema;
use serde::Deserialize;
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "LimitsEntry")]
pub struct Limits(DevLim);

impl Limits {
    /// Returns the limits in the form that QUERY_DEV_LIM reports.
    pub const fn dev_lim(&self) -> &DevLim {
        &self.0
    }

    /// Returns the size of BAR2 in bytes.
    pub const fn bar2_len(&self) -> u64 {
        1 << (20 + self.0.log_uar_mib)
    }

    pub const fn uar_pages(&self) -> u32 {
        256 << self.0.log_uar_mib
    }

    pub const fn gids(&self) -> u8 {
        1 << self.0.log_max_gids
    }

    pub const fn pkeys(&self) -> u16 {
        1 << self.0.log_max_pkeys
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self(DevLim::RECOMMENDED)
    }
}

/// Limits that the device reports to the driver in its reply to QUERY_DEV_LIM. All limits except `max_send_sges` and
/// `max_recv_sges` must be powers of two.
///
/// # Spec
/// mthca interface, section 3.4.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsEntry {
    /// Maximum number of QPs, 2^8 to 2^17. The driver uses its module parameter `num_qp` instead.
    pub max_qps: Count<8, 17>,
    /// Maximum number of CQs, 2^8 to 2^17. The driver uses its module parameter `num_cq` instead.
    pub max_cqs: Count<8, 17>,
    /// Maximum number of SRQs, 2^12 to 2^16. The minimum fills one ICM chunk of the driver's table.
    pub max_srqs: Count<12, 16>,
    /// Maximum number of MPT entries (memory regions), 2^8 to 2^20. The driver uses its module parameter
    /// `num_mpt` instead.
    pub max_mpts: Count<8, 20>,
    /// Maximum number of work requests per send or receive queue, 1 to 2^15.
    pub max_wqes: Count<0, 15>,
    /// Maximum number of work requests per SRQ, 1 to 2^14.
    pub max_srq_wqes: Count<0, 14>,
    /// Maximum number of entries per CQ, 1 to 2^17.
    pub max_cqes: Count<0, 17>,
    /// Maximum number of outstanding READs and atomics of a QP as requester, 1 to 2^4.
    pub max_rd_atomic: Count<0, 4>,
    /// Number of GIDs of the port, 2^3 to 2^5. The driver queries all of them when it loads.
    pub max_gids: Count<3, 5>,
    /// Number of P_Keys of the port, 2^5 or 2^6. The driver queries each of them when it loads.
    pub max_pkeys: Count<5, 6>,
    /// Size of BAR2 (the UAR pages) in MiB, 1 to 2^3.
    pub uar_mib: Count<0, 3>,
    /// Maximum number of gather list elements per send WQE, 4 to 30.
    #[schemars(range(min = 4, max = 30))]
    pub max_send_sges: u8,
    /// Maximum number of scatter list elements per receive WQE, 4 to 30.
    #[schemars(range(min = 4, max = 30))]
    pub max_recv_sges: u8,
}

impl Default for LimitsEntry {
    fn default() -> Self {
        let most = DevLim::RECOMMENDED;
        Self {
            max_qps: Count::of_log(most.log_max_qps),
            max_cqs: Count::of_log(most.log_max_cqs),
            max_srqs: Count::of_log(most.log_max_srqs),
            max_mpts: Count::of_log(most.log_max_mpts),
            max_wqes: Count::of_log(most.log_max_wqes),
            max_srq_wqes: Count::of_log(most.log_max_srq_wqes),
            max_cqes: Count::of_log(most.log_max_cqes),
            max_rd_atomic: Count::of_log(most.log_max_requester_resources),
            max_gids: Count::of_log(most.log_max_gids),
            max_pkeys: Count::of_log(most.log_max_pkeys),
            uar_mib: Count::of_log(most.log_uar_mib),
            max_send_sges: most.max_send_sges,
            max_recv_sges: most.max_recv_sges,
        }
    }
}

/// Error for a list length that is too large for a WQE, or too small for the driver's management datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{key}: {sges} is not between 4 and 30")]
pub struct LimitsError {
    key: &'static str,
    sges: u8,
}

impl TryFrom<LimitsEntry> for Limits {
    type Error = LimitsError;

    fn try_from(entry: LimitsEntry) -> Result<Self, LimitsError> {
        for (key, sges) in [("max_send_sges", entry.max_send_sges), ("max_recv_sges", entry.max_recv_sges)] {
            if !(4..=30).contains(&sges) {
                return Err(LimitsError { key, sges });
            }
        }
        Ok(Self(DevLim {
            log_max_qps: entry.max_qps.log(),
            log_max_cqs: entry.max_cqs.log(),
            log_max_srqs: entry.max_srqs.log(),
            log_max_mpts: entry.max_mpts.log(),
            log_max_wqes: entry.max_wqes.log(),
            log_max_srq_wqes: entry.max_srq_wqes.log(),
            log_max_cqes: entry.max_cqes.log(),
            log_max_requester_resources: entry.max_rd_atomic.log(),
            log_max_gids: entry.max_gids.log(),
            log_max_pkeys: entry.max_pkeys.log(),
            log_uar_mib: entry.uar_mib.log(),
            max_send_sges: entry.max_send_sges,
            max_recv_sges: entry.max_recv_sges,
            ..DevLim::RECOMMENDED
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Limits, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn omitted_limits_default_to_recommended_values() {
        assert_eq!(parse("{}").map(|limits| *limits.dev_lim()), Ok(DevLim::RECOMMENDED));
    }

    #[test]
    fn configured_limits_are_advertised() {
        let limits = parse(r#"{"max_wqes": 256, "max_gids": 8, "uar_mib": 1, "max_recv_sges": 4}"#).unwrap();
        assert_eq!((limits.gids(), limits.bar2_len()), (8, 1 << 20));
        let out = limits.dev_lim().emit();
        assert_eq!((out[0x11], out[0x3b], out[0x49], out[0x55]), (8, 3, 0, 4));
    }

    #[test]
    fn rejects_limits_that_driver_cannot_use() {
        for (text, problem) in [
            (r#"{"max_srqs": 2048}"#, "2048 is not a power of two from 4096 to 65536"),
            (r#"{"max_cqes": 262144}"#, "262144 is not a power of two from 1 to 131072"),
            (r#"{"max_send_sges": 3}"#, "max_send_sges: 3 is not between 4 and 30"),
            (r#"{"max_recv_sges": 31}"#, "max_recv_sges: 31 is not between 4 and 30"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(problem), "{error}");
        }
    }
}
