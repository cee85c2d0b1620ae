//! Registers of BAR0. Other offsets read as 0 and ignore writes.
//!
//! # Spec
//! E810 interface, sections 2, 8.6, 8.7 and 9.1. The register names come from these sections.

use crate::register_map;

register_map! {
    /// A register of BAR0. `wide` registers are 40-bit counters. All other registers are 32 bits wide.
    pub enum Register {
        /// Parser: header checks on transmit.
        GlMdckTxTdpu             "GL_MDCK_TX_TDPU"    at 0x04_9348;
        /// Admin send queue: address of the ring, low half.
        PfFwAtqbal               "PF_FW_ATQBAL"       at 0x08_0000;
        /// Admin receive queue: address of the ring, low half.
        PfFwArqbal               "PF_FW_ARQBAL"       at 0x08_0080;
        /// Admin send queue: address of the ring, high half.
        PfFwAtqbah               "PF_FW_ATQBAH"       at 0x08_0100;
        /// Admin receive queue: address of the ring, high half.
        PfFwArqbah               "PF_FW_ARQBAH"       at 0x08_0180;
        /// Admin send queue: length and enable bit.
        PfFwAtqlen               "PF_FW_ATQLEN"       at 0x08_0200;
        /// Admin receive queue: length and enable bit.
        PfFwArqlen               "PF_FW_ARQLEN"       at 0x08_0280;
        /// Admin send queue: head, updated by the device.
        PfFwAtqh                 "PF_FW_ATQH"         at 0x08_0300;
        /// Admin receive queue: head, updated by the device.
        PfFwArqh                 "PF_FW_ARQH"         at 0x08_0380;
        /// Admin send queue: tail. Writing it executes commands.
        PfFwAtqt                 "PF_FW_ATQT"         at 0x08_0400;
        /// Admin receive queue: tail, updated by the driver.
        PfFwArqt                 "PF_FW_ARQT"         at 0x08_0480;
        /// DCB state of the port.
        PrtdcbGens               "PRTDCB_GENS"        at 0x08_3020;
        /// Control register: resets the function.
        PfgenCtrl                "PFGEN_CTRL"         at 0x09_1000;
        /// Status of wake-up events.
        PfpmWus                  "PFPM_WUS"           at 0x09_db80;
        /// Enables filters for wake-up frames.
        PfpmWufc                 "PFPM_WUFC"          at 0x09_dc00;
        /// Size of the doorbell space.
        GlpciLbarctrl            "GLPCI_LBARCTRL"     at 0x09_de74;
        /// PCI function number of the device.
        PfFuncRid                "PF_FUNC_RID"        at 0x09_e880;
        /// Frames dropped by the port for lack of buffers.
        PrtrpbRdpc               "PRTRPB_RDPC"        at 0x0a_c260;
        /// Units that the device has finished loading after a reset.
        GlnvmUld                 "GLNVM_ULD"          at 0x0b_6008;
        /// Size of the shadow RAM.
        GlnvmGens                "GLNVM_GENS"         at 0x0b_6100;
        /// State of the flash memory.
        GlnvmFla                 "GLNVM_FLA"          at 0x0b_6108;
        /// General status; drivers read it to flush writes.
        GlgenStat                "GLGEN_STAT"         at 0x0b_612c;
        /// State of the firmware.
        GlMngFwsm                "GL_MNG_FWSM"        at 0x0b_6134;
        /// Power management settings of the port.
        PfpmApm                  "PFPM_APM"           at 0x0b_8080;
        /// Delay of a device reset.
        GlgenRstctl              "GLGEN_RSTCTL"       at 0x0b_8180;
        /// State of a device reset.
        GlgenRstat               "GLGEN_RSTAT"        at 0x0b_8188;
        /// Triggers a reset of the device.
        GlgenRtrig               "GLGEN_RTRIG"        at 0x0b_8190;
        /// MAC and link topology.
        GlgenMacLinkTopo         "GLGEN_MAC_LINK_TOPO" at 0x0b_81dc;
        /// Power mode, which determines the unit of interrupt moderation.
        GlPwrModeCtl             "GL_PWR_MODE_CTL"    at 0x0b_820c;
        /// Clock source of the transmit scheduler.
        GlgenClkstatSrc          "GLGEN_CLKSTAT_SRC"  at 0x0b_826c;
        /// Configuration of the PCI interface.
        GlpciCnf2                "GLPCI_CNF2"         at 0x0b_e004;
        /// Head index of a transmit queue.
        QtxCommHead(u16)         "QTX_COMM_HEAD"      at 0x0e_0000 [16384 by 4];
        /// Malicious driver detection: transmit descriptor event of this function.
        PfMdetTxTclan            "PF_MDET_TX_TCLAN"   at 0x0f_c000;
        /// Malicious driver detection: transmit descriptor event of the device.
        GlMdetTxTclan            "GL_MDET_TX_TCLAN"   at 0x0f_c068;
        /// Enables or disables a receive queue.
        QrxCtrl(u16)             "QRX_CTRL"           at 0x12_0000 [2048 by 4];
        /// Interrupt routing of a transmit queue.
        QintTqctl(u16)           "QINT_TQCTL"         at 0x14_0000 [16384 by 4];
        /// Interrupt routing of a receive queue.
        QintRqctl(u16)           "QINT_RQCTL"         at 0x15_0000 [2048 by 4];
        /// Moderation interval, by ITR index (0 to 2) and vector.
        GlintItr(u16, u16)       "GLINT_ITR"          at 0x15_4000 [3 by 0x2000][2048 by 4];
        /// Rate limit of a vector.
        GlintRate(u16)           "GLINT_RATE"         at 0x15_a000 [2048 by 4];
        /// Interrupt routing of a completion event queue.
        GlintCeqctl(u16)         "GLINT_CEQCTL"       at 0x15_c000 [2048 by 4];
        /// Dynamic control of an interrupt vector.
        GlintDynCtl(u16)         "GLINT_DYN_CTL"      at 0x16_0000 [2048 by 4];
        /// Function that owns a vector.
        GlintVect2func(u16)      "GLINT_VECT2FUNC"    at 0x16_2000 [2048 by 4];
        /// Interrupt routing of the mailbox.
        PfintMbxCtl              "PFINT_MBX_CTL"      at 0x16_b280;
        /// Interrupt routing of the sideband queue.
        PfintSbCtl               "PFINT_SB_CTL"       at 0x16_b600;
        /// Interrupt routing of the admin receive queue.
        PfintFwCtl               "PFINT_FW_CTL"       at 0x16_c800;
        /// Other interrupt causes: enabled causes.
        PfintOicrEna             "PFINT_OICR_ENA"     at 0x16_c900;
        /// Other interrupt causes: pending causes, cleared on read.
        PfintOicr                "PFINT_OICR"         at 0x16_ca00;
        /// Other interrupt causes: interrupt routing.
        PfintOicrCtl             "PFINT_OICR_CTL"     at 0x16_ca80;
        /// Interrupt routing of the asynchronous event queue.
        PfintAeqctl              "PFINT_AEQCTL"       at 0x16_cb00;
        /// Granularity of interrupt moderation.
        GlintCtl                 "GLINT_CTL"          at 0x16_cc54;
        /// Receive queues allocated to the function.
        PflanRxQalloc            "PFLAN_RX_QALLOC"    at 0x1d_2500;
        /// Vectors allocated to the function.
        PfintAlloc               "PFINT_ALLOC"        at 0x1d_2600;
        /// Mapping of priorities to traffic classes.
        PrtdcbTup2tc             "PRTDCB_TUP2TC"      at 0x1d_26c0;
        /// Parser: masks applied before parsing.
        GlPreext(u16)            "GL_PREEXT"          at 0x20_f0fc [3 by 4];
        /// Mailbox send queue: address of the ring, low half.
        PfMbxAtqbal              "PF_MBX_ATQBAL"      at 0x22_e100;
        /// Mailbox send queue: address of the ring, high half.
        PfMbxAtqbah              "PF_MBX_ATQBAH"      at 0x22_e180;
        /// Mailbox send queue: length and enable bit.
        PfMbxAtqlen              "PF_MBX_ATQLEN"      at 0x22_e200;
        /// Mailbox send queue: head, updated by the device.
        PfMbxAtqh                "PF_MBX_ATQH"        at 0x22_e280;
        /// Mailbox send queue: tail.
        PfMbxAtqt                "PF_MBX_ATQT"        at 0x22_e300;
        /// Mailbox receive queue: address of the ring, low half.
        PfMbxArqbal              "PF_MBX_ARQBAL"      at 0x22_e380;
        /// Mailbox receive queue: address of the ring, high half.
        PfMbxArqbah              "PF_MBX_ARQBAH"      at 0x22_e400;
        /// Mailbox receive queue: length and enable bit.
        PfMbxArqlen              "PF_MBX_ARQLEN"      at 0x22_e480;
        /// Mailbox receive queue: head, updated by the device.
        PfMbxArqh                "PF_MBX_ARQH"        at 0x22_e500;
        /// Mailbox receive queue: tail.
        PfMbxArqt                "PF_MBX_ARQT"        at 0x22_e580;
        /// Receive queue context, by word (0 to 7) and queue.
        QrxContext(u16, u16)     "QRX_CONTEXT"        at 0x28_0000 [8 by 0x2000][2048 by 4];
        /// Tail index of a receive queue.
        QrxTail(u16)             "QRX_TAIL"           at 0x29_0000 [2048 by 4];
        /// Malicious driver detection: receive event of this function.
        PfMdetRx                 "PF_MDET_RX"         at 0x29_4280;
        /// Malicious driver detection: receive event of the device.
        GlMdetRx                 "GL_MDET_RX"         at 0x29_4c00;
        /// Frames that a VSI dropped for lack of receive descriptors.
        GlvRdpc(u16)             "GLV_RDPC"           at 0x29_4c04 [768 by 4];
        /// Tail doorbell of a transmit queue.
        QtxCommDbell(u16)        "QTX_COMM_DBELL"     at 0x2c_0000 [16384 by 4];
        /// Malicious driver detection: transmit queue event of this function.
        PfMdetTxPqm              "PF_MDET_TX_PQM"     at 0x2d_2c80;
        /// Malicious driver detection: transmit queue event of the device.
        GlMdetTxPqm              "GL_MDET_TX_PQM"     at 0x2d_2e00;
        /// Bytes sent by a VSI.
        GlvGotc(u16)             "GLV_GOTC"           at 0x30_0000 [768 by 8] wide;
        /// Unicast frames sent by a VSI.
        GlvUptc(u16)             "GLV_UPTC"           at 0x30_a000 [768 by 8] wide;
        /// Multicast frames sent by a VSI.
        GlvMptc(u16)             "GLV_MPTC"           at 0x30_c000 [768 by 8] wide;
        /// Broadcast frames sent by a VSI.
        GlvBptc(u16)             "GLV_BPTC"           at 0x30_e000 [768 by 8] wide;
        /// Frames that a VSI dropped on transmit because of errors.
        GlvTepc(u16)             "GLV_TEPC"           at 0x31_2000 [768 by 4];
        /// Bytes received by the port.
        GlprtGorc                "GLPRT_GORC"         at 0x38_0000 wide;
        /// MAC local faults on the port.
        GlprtMlfc                "GLPRT_MLFC"         at 0x38_0040 wide;
        /// MAC remote faults on the port.
        GlprtMrfc                "GLPRT_MRFC"         at 0x38_0080 wide;
        /// Frames that the port received with a CRC error.
        GlprtCrcerrs             "GLPRT_CRCERRS"      at 0x38_0100 wide;
        /// Frames that the port received with a length error.
        GlprtRlec                "GLPRT_RLEC"         at 0x38_0140 wide;
        /// Illegal bytes received by the port.
        GlprtIllerrc             "GLPRT_ILLERRC"      at 0x38_01c0 wide;
        /// Undersized frames received by the port.
        GlprtRuc                 "GLPRT_RUC"          at 0x38_0200 wide;
        /// Oversized frames received by the port.
        GlprtRoc                 "GLPRT_ROC"          at 0x38_0240 wide;
        /// Link XON frames received by the port.
        GlprtLxonrxc             "GLPRT_LXONRXC"      at 0x38_0280 wide;
        /// Link XOFF frames received by the port.
        GlprtLxoffrxc            "GLPRT_LXOFFRXC"     at 0x38_02c0 wide;
        /// XON frames received by the port, by priority.
        GlprtPxonrxc(u16)        "GLPRT_PXONRXC"      at 0x38_0300 [8 by 0x40] wide;
        /// XOFF frames received by the port, by priority.
        GlprtPxoffrxc(u16)       "GLPRT_PXOFFRXC"     at 0x38_0500 [8 by 0x40] wide;
        /// 64-byte frames received by the port.
        GlprtPrc64               "GLPRT_PRC64"        at 0x38_0900 wide;
        /// 65- to 127-byte frames received by the port.
        GlprtPrc127              "GLPRT_PRC127"       at 0x38_0940 wide;
        /// 128- to 255-byte frames received by the port.
        GlprtPrc255              "GLPRT_PRC255"       at 0x38_0980 wide;
        /// 256- to 511-byte frames received by the port.
        GlprtPrc511              "GLPRT_PRC511"       at 0x38_09c0 wide;
        /// 512- to 1023-byte frames received by the port.
        GlprtPrc1023             "GLPRT_PRC1023"      at 0x38_0a00 wide;
        /// 1024- to 1522-byte frames received by the port.
        GlprtPrc1522             "GLPRT_PRC1522"      at 0x38_0a40 wide;
        /// Frames of 1523 bytes or more received by the port.
        GlprtPrc9522             "GLPRT_PRC9522"      at 0x38_0a80 wide;
        /// Frame fragments received by the port.
        GlprtRfc                 "GLPRT_RFC"          at 0x38_0ac0 wide;
        /// Jabbers (oversized frames with a CRC error) received by the port.
        GlprtRjc                 "GLPRT_RJC"          at 0x38_0b00 wide;
        /// Bytes sent by the port.
        GlprtGotc                "GLPRT_GOTC"         at 0x38_0b40 wide;
        /// 64-byte frames sent by the port.
        GlprtPtc64               "GLPRT_PTC64"        at 0x38_0b80 wide;
        /// 65- to 127-byte frames sent by the port.
        GlprtPtc127              "GLPRT_PTC127"       at 0x38_0bc0 wide;
        /// 128- to 255-byte frames sent by the port.
        GlprtPtc255              "GLPRT_PTC255"       at 0x38_0c00 wide;
        /// 256- to 511-byte frames sent by the port.
        GlprtPtc511              "GLPRT_PTC511"       at 0x38_0c40 wide;
        /// 512- to 1023-byte frames sent by the port.
        GlprtPtc1023             "GLPRT_PTC1023"      at 0x38_0c80 wide;
        /// 1024- to 1522-byte frames sent by the port.
        GlprtPtc1522             "GLPRT_PTC1522"      at 0x38_0cc0 wide;
        /// Frames of 1523 bytes or more sent by the port.
        GlprtPtc9522             "GLPRT_PTC9522"      at 0x38_0d00 wide;
        /// XON frames sent by the port, by priority.
        GlprtPxontxc(u16)        "GLPRT_PXONTXC"      at 0x38_0d40 [8 by 0x40] wide;
        /// XOFF frames sent by the port, by priority.
        GlprtPxofftxc(u16)       "GLPRT_PXOFFTXC"     at 0x38_0f40 [8 by 0x40] wide;
        /// Link XON frames sent by the port.
        GlprtLxontxc             "GLPRT_LXONTXC"      at 0x38_1140 wide;
        /// Link XOFF frames sent by the port.
        GlprtLxofftxc            "GLPRT_LXOFFTXC"     at 0x38_1180 wide;
        /// Unicast frames sent by the port.
        GlprtUptc                "GLPRT_UPTC"         at 0x38_11c0 wide;
        /// Multicast frames sent by the port.
        GlprtMptc                "GLPRT_MPTC"         at 0x38_1200 wide;
        /// Broadcast frames sent by the port.
        GlprtBptc                "GLPRT_BPTC"         at 0x38_1240 wide;
        /// Frames that the port dropped on transmit because the link was down.
        GlprtTdold               "GLPRT_TDOLD"        at 0x38_1280 wide;
        /// Unicast frames received by the port.
        GlprtUprc                "GLPRT_UPRC"         at 0x38_1300 wide;
        /// Multicast frames received by the port.
        GlprtMprc                "GLPRT_MPRC"         at 0x38_1340 wide;
        /// Broadcast frames received by the port.
        GlprtBprc                "GLPRT_BPRC"         at 0x38_1380 wide;
        /// Flow director: number of frames that matched a filter.
        GlstatFdCnt(u16)         "GLSTAT_FD_CNT0"     at 0x3a_0000 [4096 by 8] wide;
        /// Bytes received by a VSI.
        GlvGorc(u16)             "GLV_GORC"           at 0x3b_0000 [768 by 8] wide;
        /// Unicast frames received by a VSI.
        GlvUprc(u16)             "GLV_UPRC"           at 0x3b_2000 [768 by 8] wide;
        /// Multicast frames received by a VSI.
        GlvMprc(u16)             "GLV_MPRC"           at 0x3b_4000 [768 by 8] wide;
        /// Broadcast frames received by a VSI.
        GlvBprc(u16)             "GLV_BPRC"           at 0x3b_6000 [768 by 8] wide;
        /// RSS hash: symmetric fields of each profile.
        GlqfHsymm(u16)           "GLQF_HSYMM"         at 0x40_f000 [768 by 4];
        /// RSS hash: field masks.
        GlqfHmask(u16)           "GLQF_HMASK"         at 0x40_fc00 [32 by 4];
        /// RSS hash: masks that each profile selects.
        GlqfHmaskSel(u16)        "GLQF_HMASK_SEL"     at 0x41_0000 [128 by 4];
        /// Flow director: masks that each profile selects.
        GlqfFdmaskSel(u16)       "GLQF_FDMASK_SEL"    at 0x41_0400 [128 by 4];
        /// Flow director: field masks.
        GlqfFdmask(u16)          "GLQF_FDMASK"        at 0x41_0800 [32 by 4];
        /// Flow director: input set of each profile.
        GlqfFdinset(u16)         "GLQF_FDINSET"       at 0x41_2000 [768 by 4];
        /// Flow director: swapped fields of each profile.
        GlqfFdswap(u16)          "GLQF_FDSWAP"        at 0x41_3000 [768 by 4];
        /// Enables RDMA for a VSI.
        VsiqfPeCtl1(u16)         "VSIQF_PE_CTL1"      at 0x41_4000 [768 by 4];
        /// Enables the flow director.
        PfqfFdEna                "PFQF_FD_ENA"        at 0x43_a000;
        /// Field and flag layout of the receive descriptor profiles.
        Glflxp(u16)              "GLFLXP_RXDID"       at 0x45_c800 [576 by 4];
        /// Flow director: table size of the function.
        GlqfFdSize               "GLQF_FD_SIZE"       at 0x46_0010;
        /// Flow director: number of table entries in use.
        GlqfFdCnt                "GLQF_FD_CNT"        at 0x46_0018;
        /// Descriptor profile of a receive queue.
        QrxflxpCntxt(u16)        "QRXFLXP_CNTXT"      at 0x48_0000 [2048 by 4];
        /// Doorbell of the RDMA control queue.
        PfpeCqpdb                "PFPE_CQPDB"         at 0x50_0800;
        /// RDMA control queue: index of the next entry that the device executes.
        PfpeCqptail              "PFPE_CQPTAIL"       at 0x50_0880;
        /// Doorbell that arms kernel CQs.
        PfpeCqarm                "PFPE_CQARM"         at 0x50_2c00;
        /// Doorbell that acknowledges a completion event of a CQ.
        PfpeCqack                "PFPE_CQACK"         at 0x50_2c80;
        /// Asynchronous event queue: number of entries consumed since the last write.
        PfpeAeqalloc             "PFPE_AEQALLOC"      at 0x50_2d00;
        /// Doorbell of kernel send queues.
        PfpeWqealloc             "PFPE_WQEALLOC"      at 0x50_4400;
        /// Status of the RDMA control queue.
        PfpeCcqpstatus           "PFPE_CCQPSTATUS"    at 0x50_a000;
        /// RDMA control queue: address of its context, low half. Writing it starts or stops the queue.
        PfpeCcqplow              "PFPE_CCQPLOW"       at 0x50_a080;
        /// RDMA control queue: address of its context, high half.
        PfpeCcqphigh             "PFPE_CCQPHIGH"      at 0x50_a100;
        /// RDMA control queue: error codes of the last failed operation.
        PfpeCqperrcodes          "PFPE_CQPERRCODES"   at 0x50_a200;
        /// State of a processor in the RDMA block.
        GlpeCpustatus(u16)       "GLPE_CPUSTATUS"     at 0x50_ba5c [3 by 4];
        /// HMC: invalidates a page directory entry.
        PfhmcPdinv               "PFHMC_PDINV"        at 0x52_0300;
        /// Details of the last HMC error.
        PfhmcErrorinfo           "PFHMC_ERRORINFO"    at 0x52_0400;
        /// Address of the last HMC error.
        PfhmcErrordata           "PFHMC_ERRORDATA"    at 0x52_0500;
        /// A virtual function's HMC: invalidates a page directory entry.
        GlhmcVfpdinv(u16)        "GLHMC_VFPDINV"      at 0x52_8300 [32 by 4];
        /// Critical error code of the RDMA block.
        GlpeCriterr              "GLPE_CRITERR"       at 0x53_4000;
        /// Doorbell of user-space send queues.
        UserWqealloc             "USER_WQEALLOC"      at 0x7f_0000;
        /// Doorbell that arms user-space CQs.
        UserCqarm                "USER_CQARM"         at 0x7f_0040;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn register_offsets_match_specification() {
        for (offset, register) in [
            (0x91000, Some(Register::PfgenCtrl)),
            (0x80400, Some(Register::PfFwAtqt)),
            (0x140000 + 4 * 7, Some(Register::QintTqctl(7))),
            (0x154000 + 0x2000 * 2 + 4 * 5, Some(Register::GlintItr(2, 5))),
            (0x280000 + 0x2000 * 7 + 4 * 2047, Some(Register::QrxContext(7, 2047))),
            (0x2c0000 + 4 * 16383, Some(Register::QtxCommDbell(16383))),
            (0x380000, Some(Register::GlprtGorc)),
            (0x380d40, Some(Register::GlprtPxontxc(0))),
            (0x3b2000 + 8, Some(Register::GlvUprc(1))),
            (0x50ba64, Some(Register::GlpeCpustatus(2))),
            (0x160000 + 4 * 2048, Some(Register::GlintVect2func(0))),
            (0x91004, None),
            (0x152000, None),
            (0x38_00c0, None),
            (0x50_a080, Some(Register::PfpeCcqplow)),
            (0x50_2d00, Some(Register::PfpeAeqalloc)),
            (0x7f_0040, Some(Register::UserCqarm)),
            (0x7f_1000, None),
            (1 << 32 | 0x91000, None),
        ] {
            assert_eq!(Register::at(offset), register.map(|register| (register, 0)), "{offset:#x}");
            if let Some(register) = register {
                assert_eq!(u64::from(register.offset()), offset);
            }
        }
    }

    #[test]
    fn wide_counters_span_two_words() {
        assert_eq!(Register::at(0x380b44), Some((Register::GlprtGotc, 4)));
        assert_eq!(Register::at(0x380b48), None);
        assert_eq!(Register::GlprtGotc.width(), 8);
    }

    #[test]
    fn register_names_include_indices() {
        assert_eq!(Register::GlintItr(2, 5).to_string(), "GLINT_ITR[2][5]");
        assert_eq!(Register::QrxTail(0).to_string(), "QRX_TAIL[0]");
        assert_eq!(Register::PfFwArqlen.to_string(), "PF_FW_ARQLEN");
    }
}
