//! The configured limits that QUERY_DEV_LIM advertises.
//!
//! J-09: the public driver programs its own table sizes regardless of the advertised limits. Counts up to the bounds of
//! INIT_HCA are therefore accepted. Only CQ lengths are checked against the advertised limit, as the specification
//! requires.
//!
//! # Spec
//! JingZhao interface, sections 3.1, 3.3 and 3.11.

use std::num::NonZeroU64;

use card::frontend::count::Count;
use protocol::hca::jingzhao::caps::DevLim;
use protocol::hca::jingzhao::wqe::{GRANULE, UdUnit};
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

    /// Returns the port's number of GIDs.
    pub const fn gids(&self) -> u8 {
        1 << self.0.log_max_gids
    }

    /// Returns the port's number of P_Keys.
    pub const fn pkeys(&self) -> u16 {
        1 << self.0.log_max_pkeys
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self(DevLim::RECOMMENDED)
    }
}

/// Limits that the device reports to the driver in its reply to QUERY_DEV_LIM. All counts must be powers of two.
///
/// # Spec
/// JingZhao interface, section 3.1.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsEntry {
    /// Maximum number of QPs, 2 to 2^17.
    pub max_qps: Count<1, 17>,
    /// Maximum number of CQs, 1 to 2^17.
    pub max_cqs: Count<0, 17>,
    /// Maximum number of EQs, 1 to 2^7.
    pub max_eqs: Count<0, 7>,
    /// Maximum number of MPT entries (memory regions), 1 to 2^20.
    pub max_mpts: Count<0, 20>,
    /// Maximum number of protection domains, 1 to 2^24.
    pub max_pds: Count<0, 24>,
    /// Maximum number of work requests per send or receive queue, 1 to 2^16.
    pub max_wqes: Count<0, 16>,
    /// Maximum number of entries per CQ, 1 to 2^20. SW2HW_CQ and RESIZE_CQ reject larger CQs.
    pub max_cqes: Count<0, 20>,
    /// Maximum number of gather list elements per send WQE. The elements must fit in `max_send_wqe_len`
    /// bytes.
    pub max_send_sges: u8,
    /// Maximum size of a send WQE in bytes, a multiple of 16 up to 1008.
    pub max_send_wqe_len: u16,
    /// Maximum number of scatter list elements per receive WQE. The elements must fit in `max_recv_wqe_len`
    /// bytes.
    pub max_recv_sges: u8,
    /// Maximum size of a receive WQE in bytes, a multiple of 16 up to 4096.
    pub max_recv_wqe_len: u16,
    /// Number of reserved QP numbers, starting at 0, that software must not use: 1 to 2^15, and less than
    /// `max_qps`.
    pub reserved_qps: Count<0, 15>,
    /// Maximum size of context memory (ICM), in bytes. The public driver fails to load if its tables do not
    /// fit.
    #[schemars(with = "u64", range(min = 1))]
    pub max_icm_len: NonZeroU64,
}

impl Default for LimitsEntry {
    fn default() -> Self {
        let most = DevLim::RECOMMENDED;
        Self {
            max_qps: Count::of_log(most.log_max_qps),
            max_cqs: Count::of_log(most.log_max_cqs),
            max_eqs: Count::of_log(most.log_max_eqs),
            max_mpts: Count::of_log(most.log_max_mpts),
            max_pds: Count::of_log(most.log_max_pds),
            max_wqes: Count::of_log(u8::try_from(most.log_max_wqes).unwrap_or(0)),
            max_cqes: Count::of_log(u8::try_from(most.log_max_cqes).unwrap_or(0)),
            max_send_sges: most.max_send_sges,
            max_send_wqe_len: most.max_send_wqe_len,
            max_recv_sges: most.max_recv_sges,
            max_recv_wqe_len: most.max_recv_wqe_len,
            reserved_qps: Count::of_log(most.log_reserved_qps),
            max_icm_len: NonZeroU64::new(most.max_icm_len).unwrap_or(NonZeroU64::MIN),
        }
    }
}

/// Error for limits that contradict each other or do not fit the WQE format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LimitsError {
    #[error("{key}: {len} is not a multiple of 16 between 16 and {most}")]
    WqeLen { key: &'static str, len: u16, most: u16 },
    /// The scatter/gather list does not fit in a WQE.
    #[error("{key}: {sges} scatter/gather elements do not fit in a WQE of {len} bytes (maximum {most})")]
    Sges { key: &'static str, sges: u8, len: u16, most: usize },
    #[error("reserved_qps must be less than max_qps")]
    Reserved,
}

impl TryFrom<LimitsEntry> for Limits {
    type Error = LimitsError;

    fn try_from(entry: LimitsEntry) -> Result<Self, LimitsError> {
        /// Maximum length of a send WQE in bytes. The next unit of the preceding WQE stores the length in a six-bit
        /// field, as a number of 16-byte units.
        const MAX_SEND_LEN: u16 = 1008;
        /// Maximum slot size of a receive queue in bytes.
        const MAX_RECV_LEN: u16 = 4096;
        // Datagrams have the longest WQE header: the next unit and the ud unit.
        let send_head = GRANULE + UdUnit::LEN;
        check_len("max_send_wqe_len", entry.max_send_wqe_len, MAX_SEND_LEN)?;
        check_len("max_recv_wqe_len", entry.max_recv_wqe_len, MAX_RECV_LEN)?;
        check_sges("max_send_sges", entry.max_send_sges, entry.max_send_wqe_len, send_head)?;
        check_sges("max_recv_sges", entry.max_recv_sges, entry.max_recv_wqe_len, GRANULE)?;
        if entry.reserved_qps.log() >= entry.max_qps.log() {
            return Err(LimitsError::Reserved);
        }
        Ok(Self(DevLim {
            log_max_qps: entry.max_qps.log(),
            log_max_cqs: entry.max_cqs.log(),
            log_max_eqs: entry.max_eqs.log(),
            log_max_mpts: entry.max_mpts.log(),
            log_max_pds: entry.max_pds.log(),
            log_max_wqes: entry.max_wqes.log().into(),
            log_max_cqes: entry.max_cqes.log().into(),
            max_send_sges: entry.max_send_sges,
            max_send_wqe_len: entry.max_send_wqe_len,
            max_recv_sges: entry.max_recv_sges,
            max_recv_wqe_len: entry.max_recv_wqe_len,
            log_reserved_qps: entry.reserved_qps.log(),
            max_icm_len: entry.max_icm_len.get(),
            ..DevLim::RECOMMENDED
        }))
    }
}

fn check_len(key: &'static str, len: u16, most: u16) -> Result<(), LimitsError> {
    let legal = len != 0 && usize::from(len).is_multiple_of(GRANULE) && len <= most;
    if legal { Ok(()) } else { Err(LimitsError::WqeLen { key, len, most }) }
}

fn check_sges(key: &'static str, sges: u8, len: u16, head: usize) -> Result<(), LimitsError> {
    let most = usize::from(len).saturating_sub(head) / GRANULE;
    if usize::from(sges) <= most { Ok(()) } else { Err(LimitsError::Sges { key, sges, len, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DevLim, String> {
        serde_json::from_str::<Limits>(text).map(|limits| limits.0).map_err(|error| error.to_string())
    }

    #[test]
    fn omitted_limits_default_to_recommended_values() {
        assert_eq!(parse("{}"), Ok(DevLim::RECOMMENDED));
        assert_eq!(Limits::default().0, DevLim::RECOMMENDED);
    }

    /// Section 3.1 defines the layout of the outbox.
    #[test]
    fn query_dev_lim_reports_every_limit() {
        let limits = parse(
            r#"{"max_qps": 16384, "max_cqs": 8192, "max_eqs": 64, "max_mpts": 32768, "max_pds": 4096,
                "max_wqes": 8192, "max_cqes": 4096, "max_send_sges": 59, "max_send_wqe_len": 1008,
                "max_recv_sges": 7, "max_recv_wqe_len": 128, "reserved_qps": 8, "max_icm_len": 65536}"#,
        );
        let bytes = limits.unwrap().emit();
        assert_eq!(bytes[..0x11], [3, 0, 0, 0, 0, 0, 0, 0, 0, 13, 0, 12, 14, 13, 6, 15, 12]);
        assert_eq!(bytes[0x29..0x30], [59, 0x03, 0xf0, 0, 7, 0, 0x80]);
        assert_eq!(bytes[0x30..0x38], [0, 0, 0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn rejects_impossible_limits_with_reason() {
        for (text, reason) in [
            (r#"{"max_qps": 1000}"#, "1000 is not a power of two from 2 to 131072"),
            (r#"{"max_qps": 262144}"#, "262144 is not a power of two from 2 to 131072"),
            (r#"{"max_eqs": 0}"#, "0 is not a power of two from 1 to 128"),
            (
                r#"{"max_send_wqe_len": 1024}"#,
                "max_send_wqe_len: 1024 is not a multiple of 16 between 16 and 1008",
            ),
            (
                r#"{"max_recv_wqe_len": 40}"#,
                "max_recv_wqe_len: 40 is not a multiple of 16 between 16 and 4096",
            ),
            (
                r#"{"max_send_sges": 29}"#,
                "max_send_sges: 29 scatter/gather elements do not fit in a WQE of 512 bytes (maximum 28)",
            ),
            (
                r#"{"max_recv_sges": 32}"#,
                "max_recv_sges: 32 scatter/gather elements do not fit in a WQE of 512 bytes (maximum 31)",
            ),
            (r#"{"reserved_qps": 16, "max_qps": 16}"#, "reserved_qps must be less than max_qps"),
            (r#"{"max_icm_len": 0}"#, "expected a nonzero u64"),
            (r#"{"max_srqs": 1}"#, "unknown field `max_srqs`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{error:?} should contain {reason:?}");
        }
    }
}
