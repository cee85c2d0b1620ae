//! Registers without behaviour: those whose value never changes, and those that only keep what is written.
//!
//! # Spec
//! E810 interface, sections 2.1 and 2.2.

use std::collections::BTreeMap;

use protocol::hca::e810::regs::Register;

/// Everything that a reset makes the device load is loaded.
const LOADED: u32 = 0x73f;
/// The shadow RAM has 2^6 KiB.
const SHADOW_RAM_SIZE: u32 = 6 << 5;
/// The flash is locked by the firmware: it is not blank.
const FLASH_LOCKED: u32 = 1 << 6;
/// Intervals of interrupts count in units of 2 us.
const POWER_MODE: u32 = 1 << 30;
/// The doorbell space has 8 MiB.
const DOORBELL_SPACE: u32 = 2 << 4;
/// The processors of the RDMA block are done.
const PROCESSOR_READY: u32 = 0x80;
/// DCB is disabled in the firmware: the driver does it itself.
const DCB_DISABLED: u32 = 7;
/// Filters of the flow director: guaranteed, and as far as there is room.
const FLOW_DIRECTOR_SIZE: u32 = 0x200 << 16 | 0x200;

/// GLFLXP_RXDID_FLAGS of the profiles that receive queues have, 2 and 22, as words of the GLFLXP block.
const PROFILE_FLAGS: [u16; 2] = [0x200 + 2, 0x200 + 22];
/// A flag is in the first place, which DPDK takes for a profile that the package has set up.
const PROFILE_IS_THERE: u32 = 1;

/// Value of a register that is always the same.
pub(super) fn constant(register: Register) -> Option<u32> {
    Some(match register {
        Register::PfFuncRid
        | Register::GlgenRstat
        | Register::GlgenRstctl
        | Register::GlMngFwsm
        | Register::GlgenClkstatSrc
        | Register::GlgenMacLinkTopo
        | Register::GlpciCnf2
        | Register::GlgenStat
        | Register::PrtdcbTup2tc
        | Register::PfpmWus
        | Register::GlqfFdCnt => 0,
        Register::GlnvmUld => LOADED,
        Register::GlnvmGens => SHADOW_RAM_SIZE,
        Register::GlnvmFla => FLASH_LOCKED,
        Register::GlPwrModeCtl => POWER_MODE,
        Register::GlpciLbarctrl => DOORBELL_SPACE,
        Register::GlpeCpustatus(_) => PROCESSOR_READY,
        Register::PrtdcbGens => DCB_DISABLED,
        Register::GlqfFdSize => FLOW_DIRECTOR_SIZE,
        _ => return None,
    })
}

/// PFLAN_RX_QALLOC: the first and the last of the function's receive queues, which are all that the device has.
pub(super) fn receive_queues(count: u16) -> u32 {
    const VALID: u32 = 1 << 31;
    VALID | u32::from(count.saturating_sub(1)) << 16
}

/// Whether a register only keeps what is written to it.
fn is_stored(register: Register) -> bool {
    matches!(
        register,
        Register::GlMdckTxTdpu
            | Register::PfpmWufc
            | Register::PfpmApm
            | Register::GlintRate(_)
            | Register::GlintVect2func(_)
            | Register::GlintCtl
            | Register::GlPreext(_)
            | Register::GlqfHsymm(_)
            | Register::GlqfHmask(_)
            | Register::GlqfHmaskSel(_)
            | Register::GlqfFdmaskSel(_)
            | Register::GlqfFdmask(_)
            | Register::GlqfFdinset(_)
            | Register::GlqfFdswap(_)
            | Register::PfqfFdEna
            | Register::VsiqfPeCtl1(_)
            | Register::Glflxp(_)
    )
}

/// Registers that only keep what is written.
///
/// Bound: the registers of which [`is_stored`] is true, some 8,000 of 20 bytes.
#[derive(Debug, Default)]
pub struct Stored(BTreeMap<u32, u32>);

impl Stored {
    /// What was written last.
    pub(super) fn read(&self, register: Register) -> u32 {
        self.0.get(&register.offset()).copied().unwrap_or(match register {
            Register::Glflxp(index) if PROFILE_FLAGS.contains(&index) => PROFILE_IS_THERE,
            _ => 0,
        })
    }

    /// Keeps a value. Whether the register is of this kind.
    pub(super) fn write(&mut self, register: Register, value: u32) -> bool {
        if !is_stored(register) {
            return false;
        }
        self.0.insert(register.offset(), value);
        true
    }
}
