//! Registers of interrupts: control of vectors and routes of causes.
//!
//! # Spec
//! E810 interface, sections 2.2 and 3.

use crate::layout;

layout! {
    /// GLINT_DYN_CTL: control of a vector.
    pub struct DynCtl[4] {
        /// The vector may be signalled; the device clears it when it does.
        @0[0]    enable: bool,
        /// With `enable`: forget what is pending.
        @0[1]    clear_pending: bool,
        /// Signal as if a cause had fired.
        @0[2]    trigger: bool,
        /// Which of the vector's intervals `interval` is written to; [`NO_INTERVAL`] for none.
        [4:3]    interval_index: u8,
        /// Moderation interval.
        [16:5]   interval: u16,
        /// `software_interval_index` counts for software triggers.
        [24]     software_interval: bool,
        /// Which interval software triggers use.
        [26:25]  software_interval_index: u8,
        /// Write completed descriptors back when the interval ends, without an interrupt.
        [30]     write_back: bool,
        /// This write leaves `enable` as it is.
        [31]     keep_enable: bool,
    }
}

/// Interval index that names none of a vector's three.
pub const NO_INTERVAL: u8 = 3;

layout! {
    /// Where a cause goes: QINT_TQCTL, QINT_RQCTL, PFINT_FW_CTL and their like.
    pub struct Route[4] {
        /// Vector.
        [10:0]   vector: u16,
        /// Which of the vector's intervals holds for it.
        [12:11]  interval_index: u8,
        /// The cause is enabled.
        [30]     enable: bool,
    }
}

bitflags::bitflags! {
    /// Other causes: PFINT_OICR and PFINT_OICR_ENA.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OtherCauses: u32 {
        /// Uncorrectable error of memory.
        const ECC = 1 << 16;
        /// A driver did what it must not.
        const MALICIOUS_DRIVER = 1 << 19;
        /// The device is or was reset as a whole.
        const GLOBAL_RESET = 1 << 20;
        /// Error on the PCI bus.
        const PCI_EXCEPTION = 1 << 21;
        /// Error in context memory of the RDMA block.
        const HMC_ERROR = 1 << 26;
        /// Error at a push page.
        const PUSH_ERROR = 1 << 27;
        /// The RDMA block has failed.
        const PE_CRITICAL_ERROR = 1 << 28;
        /// A virtual function was reset.
        const VF_RESET = 1 << 29;
        /// Software asked for it.
        const SOFTWARE = 1 << 31;
    }
}

layout! {
    /// GLINT_ITR: a moderation interval.
    pub struct Interval[4] {
        /// In units of [`INTERVAL_UNIT_US`].
        [11:0]   interval: u16,
    }
}

/// Unit of moderation intervals at the power mode that the device reports, microseconds.
pub const INTERVAL_UNIT_US: u16 = 2;

layout! {
    /// PFINT_OICR and PFINT_OICR_ENA as traces show them.
    pub struct OtherCausesWord[4] {
        /// See [`OtherCauses`].
        @0       causes: u32 => Hex,
    }
}
