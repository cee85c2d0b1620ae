//! Registers without side effects: constant registers and registers that return the last value written.
//!
//! # Spec
//! E810 interface, sections 2.1 and 2.2.

use std::collections::BTreeMap;

use protocol::hca::e810::regs::Register;

use super::options::Options;

/// GLNVM_ULD: all modules are loaded after a reset.
const LOADED: u32 = 0x73f;
/// GLNVM_GENS: the size of the shadow RAM is 2^6 KiB.
const SHADOW_RAM_SIZE: u32 = 6 << 5;
/// GLNVM_FLA.LOCKED: the flash is locked by firmware, as on a card with a programmed image.
const FLASH_LOCKED: u32 = 1 << 6;
/// GL_PWR_MODE_CTL: interrupt intervals have a granularity of 2 us.
const POWER_MODE: u32 = 1 << 30;
/// GLPCI_LBARCTRL: the size of the doorbell space is 8 MiB.
const DOORBELL_SPACE: u32 = 2 << 4;
/// GLPE_CPUSTATUS: a processor of the RDMA block is ready.
const PROCESSOR_READY: u32 = 0x80;
/// PRTDCB_GENS: DCB is disabled in firmware and left to the driver.
const DCB_DISABLED: u32 = 7;
/// GLQF_FD_SIZE: 512 guaranteed and 512 best-effort flow director filters.
const FLOW_DIRECTOR_SIZE: u32 = 0x200 << 16 | 0x200;

/// GLFLXP_RXDID_FLAGS of descriptor profiles 2 and 22, as word offsets in the GLFLXP block.
const PROFILE_FLAGS: [u16; 2] = [0x200 + 2, 0x200 + 22];
/// Default value of a profile's first flag word. DPDK takes a nonzero value to mean that the package has
/// configured the profile.
const PROFILE_LOADED: u32 = 1;

pub(super) fn constant(register: Register) -> Option<u32> {
    Some(match register {
        Register::PfFuncRid
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

/// Returns PFLAN_RX_QALLOC: the first and last receive queues of the function. The function owns all queues.
pub(super) fn receive_queues(count: u16) -> u32 {
    const VALID: u32 = 1 << 31;
    VALID | u32::from(count.saturating_sub(1)) << 16
}

/// Returns whether a register belongs to a queue or a vector that the function does not have. Doorbells of transmit
/// queues are excluded, because they are checked against the enabled queues.
pub(super) const fn is_past_limit(register: Register, options: &Options) -> bool {
    match register {
        Register::QrxCtrl(queue)
        | Register::QrxContext(_, queue)
        | Register::QrxflxpCntxt(queue)
        | Register::QrxTail(queue)
        | Register::QintTqctl(queue)
        | Register::QintRqctl(queue) => queue >= options.queues.get(),
        Register::GlintDynCtl(vector) | Register::GlintItr(_, vector) | Register::GlintRate(vector) => {
            vector >= options.vectors.get()
        }
        _ => false,
    }
}

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

/// Registers that return the last value written. [`is_stored`] accepts about 8,000 registers, which need 20 bytes each.
#[derive(Debug, Default)]
pub struct Stored(BTreeMap<u32, u32>);

impl Stored {
    /// Returns the last value written, or the default if there is none.
    pub(super) fn read(&self, register: Register) -> u32 {
        self.0.get(&register.offset()).copied().unwrap_or(match register {
            Register::Glflxp(index) if PROFILE_FLAGS.contains(&index) => PROFILE_LOADED,
            _ => 0,
        })
    }

    /// Stores a value. Returns false if the register does not store values.
    pub(super) fn write(&mut self, register: Register, value: u32) -> bool {
        if !is_stored(register) {
            return false;
        }
        self.0.insert(register.offset(), value);
        true
    }
}
