//! Requirements that the interface places on software but the device does not enforce.

use card::strict_rules;

strict_rules! {
    /// A write that is misaligned, or not 4 or 8 bytes long. The device ignores it.
    NARROW_WRITE "narrow_write" "2.1, 5.1";
    /// A write to an address without a register.
    NO_REGISTER "no_register" "2.1, 5.1";
    /// A write to the catastrophic error buffer.
    READ_ONLY_WRITE "read_only_write" "2.6";
    /// A write that has no effect: a command word without the go bit, or a value other than 1 in the reset register.
    NO_EFFECT "no_effect" "1.5, 2.2";
    /// Reserved bits set in the HCR.
    HCR_RESERVED "hcr_reserved" "2.2";
    /// A write to the HCR before software has read the go bit as 0. Hardware may still be executing the previous
    /// command.
    HCR_NOT_POLLED "hcr_not_polled" "2.2";
    /// Arming an EQ that is not valid, or updating the consumer index of such an EQ.
    EQ_NOTHING "eq_nothing" "2.4, 7.8";
    /// An EQ consumer index that is past the producer index, or that moves backwards.
    EQ_CONSUMER "eq_consumer" "2.4, 7.8";
    /// A read from a UAR page.
    DOORBELL_READ "doorbell_read" "5.1";
    /// The second half of a doorbell without a preceding first half.
    DOORBELL_HALF "doorbell_half" "5.1";
    /// Reserved bits set in a doorbell.
    DOORBELL_RESERVED "doorbell_reserved" "5.2, 5.3";
    /// A doorbell that does not post any requests.
    DOORBELL_EMPTY "doorbell_empty" "5.2";
    /// A doorbell for a QP that is in RESET or does not exist.
    DOORBELL_NO_QP "doorbell_no_qp" "5.2";
    /// A doorbell for a QP in INIT or RTR.
    DOORBELL_STATE "doorbell_state" "5.2";
    /// A doorbell in a UAR page other than the one in the queue's context.
    DOORBELL_PAGE "doorbell_page" "5.1";
    /// A doorbell rung before its doorbell record is updated.
    DOORBELL_RECORD "doorbell_record" "5.2, 5.4";
    /// A doorbell that does not start where the previous one ended.
    DOORBELL_ORDER "doorbell_order" "5.2";
    /// A doorbell that describes its first WQE differently from the link in the preceding slot, or that is rung before
    /// that link is written.
    DOORBELL_LINK "doorbell_link" "5.2, 7.3";
    /// More requests posted than the send queue has slots.
    SQ_OVERRUN "sq_overrun" "7.3";
    /// More requests posted than a receive queue has slots. In an SRQ, one slot must remain unused.
    RQ_OVERRUN "rq_overrun" "5.4, 6.6, 7.3";
    /// Posting work while the doorbell record does not contain the type and number of its queue.
    RECORD_TAG "record_tag" "5.4";
    /// A queue whose doorbell record is not in mapped ICM.
    RECORD_UNMAPPED "record_unmapped" "4.4, 5.4";
    /// A queue that shares its doorbell record with another queue.
    RECORD_SHARED "record_shared" "5.4";
    /// A queue with a UAR page that does not exist or is reserved.
    UAR_RESERVED "uar_reserved" "5.1";
    /// Arming a CQ that is not valid.
    ARM_NO_CQ "arm_no_cq" "5.3";
    /// Arming a CQ with an undefined command.
    ARM_COMMAND "arm_command" "5.3";
    /// Arming a CQ before its doorbell record is updated.
    ARM_RECORD "arm_record" "5.3, 5.4";
    /// Arming a CQ with a sequence number that does not match the events received. Hardware ignores it.
    ARM_SEQUENCE "arm_sequence" "5.3, 7.6";
    /// A CQ consumer index that is past the producer index.
    CQ_CONSUMER "cq_consumer" "5.4, 7.6";
    /// A CQ entry that software has consumed but not returned to hardware.
    CQE_OWNER "cqe_owner" "7.6";
    /// An EQ entry that software has consumed but not returned to hardware.
    EQE_OWNER "eqe_owner" "7.7, 7.8";
    /// A WQE with size 0, or larger than its slot.
    WQE_SIZE "wqe_size" "7.1, 7.3";
    /// A WQE with an invalid opcode or invalid segments.
    WQE_MALFORMED "wqe_malformed" "7.1, 7.2, 7.4";
    /// Reserved bits set in a WQE.
    WQE_RESERVED "wqe_reserved" "7.1";
    /// A WQE in which bit 0 of the flags, which must always be set, is clear.
    WQE_CONSTANT "wqe_constant" "7.1";
    /// A WQE that accesses memory without permission: wrong key, protection domain, access right or bounds.
    WQE_KEY "wqe_key" "6.2, 7.1";
    /// A datagram whose address vector has a protection domain or port other than that of its QP.
    WQE_VECTOR "wqe_vector" "6.8";
    /// An SRQ WQE whose link does not point to a slot.
    SRQ_LINK "srq_link" "7.4";
    /// A nonzero parameter that the command table defines as 0.
    UNUSED_PARAMETER "unused_parameter" "3.1";
    /// An op_modifier that the command table does not define.
    UNDOCUMENTED_MODIFIER "undocumented_modifier" "3.1";
    /// A mailbox that is not page-aligned.
    MAILBOX_ALIGNMENT "mailbox_alignment" "2.2";
    /// A command with the event bit set while no EQ receives command events.
    EVENT_DROPPED "event_dropped" "2.2, 3.5";
    /// RUN_FW before MAP_FA, MAP_ICM before MAP_ICM_AUX, or INIT_HCA before RUN_FW.
    FIRMWARE_ORDER "firmware_order" "3.2";
    /// Unmapping firmware memory before CLOSE_HCA.
    FIRMWARE_IN_USE "firmware_in_use" "3.6";
    /// A second INIT_HCA without CLOSE_HCA.
    INIT_TWICE "init_twice" "3.2, 3.6";
    /// INIT_HCA with tables that overlap in ICM.
    INIT_OVERLAP "init_overlap" "4.2";
    /// CLOSE_HCA while objects are in use.
    CLOSE_IN_USE "close_in_use" "3.6";
    /// CLOSE_HCA without a preceding INIT_HCA.
    CLOSE_TWICE "close_twice" "3.6";
    /// MAP_ICM over pages that are already mapped.
    MAP_OVER_MAPPED "map_over_mapped" "4.4";
    /// MAP_ICM of a bus page that is already mapped elsewhere.
    MAP_SAME_PAGE "map_same_page" "4.4";
    /// UNMAP_ICM of pages that hold contexts, page table entries or doorbell records in use.
    UNMAP_IN_USE "unmap_in_use" "3.6, 4.4";
    /// UNMAP_ICM of pages that are not mapped.
    UNMAP_NOTHING "unmap_nothing" "3.3.4, 4.4";
    /// An object whose context is not in mapped ICM.
    CONTEXT_UNMAPPED "context_unmapped" "3.2, 4.4";
    /// HW2SW_MPT of a region that is the buffer of a queue in use.
    MPT_IN_USE "mpt_in_use" "3.6, 6.2";
    /// SW2HW_MPT with page table entries that software has not written.
    MPT_PAGES "mpt_pages" "4.5, 6.2";
    /// A CQ whose buffer is not completely writable by the device.
    CQ_BUFFER "cq_buffer" "6.4";
    /// A CQ with entries that hardware does not own.
    CQ_OWNER "cq_owner" "7.6";
    /// A CQ context whose CQ number differs from that of the command.
    CQ_NUMBER "cq_number" "6.4";
    /// A CQ with an EQ that is not valid.
    CQ_EQ "cq_eq" "6.4";
    /// HW2SW_CQ of a CQ that QPs still use.
    CQ_IN_USE "cq_in_use" "3.6";
    /// An EQ whose buffer is not completely writable by the device.
    EQ_BUFFER "eq_buffer" "6.3";
    /// An EQ with entries that hardware does not own.
    EQ_OWNER "eq_owner" "6.3, 7.7";
    /// An EQ with an interrupt vector that does not exist.
    EQ_VECTOR "eq_vector" "1.3, 1.7";
    /// MAP_EQ with the mask bit for completion events, which the mask does not control.
    EQ_EVENTS "eq_events" "3.5";
    /// HW2SW_EQ of an EQ that CQs still use.
    EQ_IN_USE "eq_in_use" "3.6";
    /// HW2SW_EQ of an EQ to which events are still routed.
    EQ_MAPPED "eq_mapped" "3.6";
    /// An SRQ whose buffer is not completely readable by the device.
    SRQ_BUFFER "srq_buffer" "6.6";
    /// An SRQ context whose SRQ number differs from that of the command.
    SRQ_NUMBER "srq_number" "6.6";
    /// HW2SW_SRQ of an SRQ that QPs still use.
    SRQ_IN_USE "srq_in_use" "3.6";
    /// A QP context whose QP number differs from that of the command.
    QP_NUMBER "qp_number" "6.5";
    /// A QP with a CQ that is not valid.
    QP_CQ "qp_cq" "6.5";
    /// A QP with an SRQ that is not valid.
    QP_SRQ "qp_srq" "6.5";
    /// A QP whose queues are not completely readable by the device.
    QP_BUFFER "qp_buffer" "6.5";
    /// opt_param_mask with bits that the transition does not accept.
    QP_ATTRIBUTES "qp_attributes" "6.5";
    /// A value that the command ignores because its bit in opt_param_mask is clear.
    QP_UNNAMED "qp_unnamed" "6.5";
}
