//! Interrupt registers: vector control and cause routing.
//!
//! # Spec
//! E810 interface, sections 2.2 and 3.

use crate::layout;

layout! {
    /// GLINT_DYN_CTL: controls an interrupt vector.
    pub struct DynCtl[4] {
        /// Enables the vector. The device clears this bit when it signals the interrupt.
        @0[0]    enable: bool,
        /// Clears pending interrupts if `enable` is also set.
        @0[1]    clear_pending: bool,
        /// Triggers a software interrupt.
        @0[2]    trigger: bool,
        /// Index of the vector's interval that is set to the value in `interval`, or [`NO_INTERVAL`].
        [4:3]    interval_index: u8,
        /// Moderation interval, in units of [`INTERVAL_UNIT_US`].
        [16:5]   interval: u16,
        /// Whether `software_interval_index` applies to software interrupts.
        [24]     software_interval: bool,
        /// Index of the interval for software interrupts.
        [26:25]  software_interval_index: u8,
        /// Writes completed descriptors back at the end of the interval, without an interrupt.
        [30]     write_back: bool,
        /// Whether the write leaves `enable` unchanged.
        [31]     keep_enable: bool,
    }
}

/// Interval index that selects none of a vector's three intervals.
pub const NO_INTERVAL: u8 = 3;

layout! {
    /// Routing of an interrupt cause: QINT_TQCTL, QINT_RQCTL, PFINT_FW_CTL and similar registers.
    pub struct Route[4] {
        /// Vector that the cause signals.
        [10:0]   vector: u16,
        /// Selects which of the vector's moderation intervals applies to the cause.
        [12:11]  interval_index: u8,
        /// Whether the cause is enabled.
        [30]     enable: bool,
    }
}

bitflags::bitflags! {
    /// Other interrupt causes: PFINT_OICR and PFINT_OICR_ENA.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OtherCauses: u32 {
        /// Uncorrectable memory (ECC) error.
        const ECC = 1 << 16;
        /// Malicious driver behaviour was detected.
        const MALICIOUS_DRIVER = 1 << 19;
        /// A global reset was requested or has completed.
        const GLOBAL_RESET = 1 << 20;
        /// A PCI exception occurred.
        const PCI_EXCEPTION = 1 << 21;
        /// HMC error: an error in the RDMA block's context memory.
        const HMC_ERROR = 1 << 26;
        /// Error in a push page.
        const PUSH_ERROR = 1 << 27;
        /// Critical error in the RDMA block (protocol engine).
        const PE_CRITICAL_ERROR = 1 << 28;
        /// A virtual function was reset.
        const VF_RESET = 1 << 29;
        /// Software triggered the interrupt.
        const SOFTWARE = 1 << 31;
    }
}

layout! {
    /// GLINT_ITR: an interrupt moderation interval.
    pub struct Interval[4] {
        /// Interval in units of [`INTERVAL_UNIT_US`].
        [11:0]   interval: u16,
    }
}

/// Microseconds per unit of a moderation interval, in the power mode that the device reports.
pub const INTERVAL_UNIT_US: u16 = 2;

layout! {
    /// GLINT_RATE: limit on the rate of a vector's interrupts, regardless of their causes.
    pub struct RateLimit[4] {
        /// Interval in units of [`RATE_UNIT_US`].
        [5:0]    interval: u8,
        /// Whether the limit applies.
        [6]      enable: bool,
    }
}

/// Microseconds per unit of a rate limit's interval. Linux uses this unit in every power mode.
pub const RATE_UNIT_US: u8 = 4;

layout! {
    /// PFINT_OICR and PFINT_OICR_ENA as shown in traces.
    pub struct OtherCausesWord[4] {
        /// The bits of [`OtherCauses`].
        @0       causes: u32 => Hex,
    }
}
