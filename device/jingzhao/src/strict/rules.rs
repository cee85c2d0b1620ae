//! Requirements that the interface places on software but the device does not enforce.

use card::strict_rules;

strict_rules! {
    /// A write that is misaligned, or not 4 or 8 bytes long. The device ignores it.
    NARROW_WRITE "narrow_write" "1.3";
    /// A write to an address without a register.
    NO_REGISTER "no_register" "1.1, 1.6";
    /// A write to a read-only register.
    READ_ONLY_WRITE "read_only_write" "1.5";
    /// A write that has no effect: a command word without the go bit, or a reset register value without bit 0.
    NO_EFFECT "no_effect" "1.3, 1.5";
    /// Reserved bits set in the HCR.
    HCR_RESERVED "hcr_reserved" "1.2";
    /// A write to the HCR before software has polled the previous command to completion. Hardware may still be
    /// executing that command.
    HCR_NOT_POLLED "hcr_not_polled" "1.3, 1.4";
    /// A read from a UAR page.
    DOORBELL_READ "doorbell_read" "1.6";
    /// The second half of a doorbell without a preceding first half.
    DOORBELL_HALF "doorbell_half" "1.6";
    /// Reserved bits 7:6 set in the first word of a doorbell.
    DOORBELL_RESERVED "doorbell_reserved" "1.6";
    /// A doorbell for a QP that is in RESET or does not exist.
    DOORBELL_NO_QP "doorbell_no_qp" "1.6, 10.1";
    /// A doorbell for a QP in INIT or RTR.
    DOORBELL_STATE "doorbell_state" "1.6, 10.1";
    /// A doorbell in a UAR page other than the one in the QP's context.
    DOORBELL_PAGE "doorbell_page" "1.6 (J-13)";
    /// A doorbell with the number of an earlier QP that had the same index.
    DOORBELL_NUMBER "doorbell_number" "7.1 (J-33)";
    /// More requests posted than the send queue has slots.
    SQ_OVERRUN "sq_overrun" "6.7";
    /// Arming a CQ or EQ that is not valid.
    ARM_NOTHING "arm_nothing" "1.6, 8.5";
    /// Reserved bits set in a WQE.
    WQE_RESERVED "wqe_reserved" "6.2 to 6.5";
    /// A WQE that does not start at a slot boundary, or is larger than its slot.
    WQE_SLOT "wqe_slot" "6.1, 6.7";
    /// A receive WQE without the valid bit in a user queue.
    RECV_UNMARKED "recv_unmarked" "6.8 (J-23)";
    /// A nonzero parameter that the command table defines as 0.
    UNUSED_PARAMETER "unused_parameter" "2";
    /// An op_modifier that the device accepts but the document does not define.
    UNDOCUMENTED_MODIFIER "undocumented_modifier" "2 (J-35, J-36)";
    /// A mailbox that is not page-aligned.
    MAILBOX_ALIGNMENT "mailbox_alignment" "0";
    /// Nonzero mailbox bits that the device ignores.
    MAILBOX_IGNORED "mailbox_ignored" "3, 4";
    /// A command with the event bit set while no EQ receives command events.
    EVENT_DROPPED "event_dropped" "1.4";
    /// A second INIT_HCA without CLOSE_HCA.
    INIT_TWICE "init_twice" "3.3";
    /// INIT_HCA with a table of more entries than QUERY_DEV_LIM reports.
    INIT_COUNTS "init_counts" "3.1 (J-09)";
    /// INIT_HCA with tables that overlap in ICM.
    INIT_OVERLAP "init_overlap" "3.3";
    /// CLOSE_HCA while objects are in use.
    CLOSE_IN_USE "close_in_use" "3.4, 13";
    /// CLOSE_HCA without a preceding INIT_HCA.
    CLOSE_TWICE "close_twice" "3.4";
    /// MAP_ICM over pages that are already mapped.
    MAP_OVER_MAPPED "map_over_mapped" "3.5";
    /// MAP_ICM of a bus page that is already mapped elsewhere.
    MAP_SAME_PAGE "map_same_page" "3.5, 5.1";
    /// MAP_ICM with more entries than the context manager accepts at once (the pages of one 256 KiB chunk).
    MAP_COUNT "map_count" "3.5, 5.3; CtxMgt document, 3.1";
    /// UNMAP_ICM of pages that hold contexts in use.
    UNMAP_IN_USE "unmap_in_use" "3.6, 5.1";
    /// UNMAP_ICM of pages that are not mapped.
    UNMAP_NOTHING "unmap_nothing" "3.6";
    /// SW2HW_MPT with the previous key of the entry. Holders of the old key can then access the new region.
    KEY_REUSE "key_reuse" "9.1 (J-33)";
    /// HW2SW_MPT of a region that is the buffer of a queue in use.
    MPT_IN_USE "mpt_in_use" "3.7, 7";
    /// SW2HW_MPT with page table entries that no WRITE_MTT has written.
    MPT_PAGES "mpt_pages" "3.7, 9.4";
    /// WRITE_MTT over page table entries of a region in use.
    MTT_IN_USE "mtt_in_use" "3.8";
    /// WRITE_MTT with more entries than a mailbox holds.
    MTT_COUNT "mtt_count" "3.8 (J-11)";
    /// A CQ whose buffer is not completely writable by the device.
    CQ_BUFFER "cq_buffer" "7, 9.2";
    /// A CQ with entries that hardware does not own.
    CQ_OWNER "cq_owner" "7";
    /// A CQ context whose CQ number differs from that of the command.
    CQ_NUMBER "cq_number" "4.4";
    /// An armed CQ with an EQ that is not valid.
    CQ_EQ "cq_eq" "8.5";
    /// HW2SW_CQ of a CQ that QPs still use.
    CQ_IN_USE "cq_in_use" "3.11";
    /// A CQ with fewer entries than its queues have slots.
    CQ_OVERRUN_RISK "cq_overrun_risk" "7";
    /// An EQ whose buffer is not completely writable by the device.
    EQ_BUFFER "eq_buffer" "8.2, 9.2";
    /// An EQ with entries that hardware does not own.
    EQ_OWNER "eq_owner" "8.2";
    /// An EQ with an interrupt vector that does not exist.
    EQ_VECTOR "eq_vector" "8.5";
    /// MAP_EQ with mask bits for completion events, which the mask does not control, or for undefined event types.
    EQ_EVENTS "eq_events" "3.9, 8.3";
    /// HW2SW_EQ of an EQ that an armed CQ still uses.
    EQ_IN_USE "eq_in_use" "3.10, 8.5";
    /// A QP context whose QP number differs from that of the command.
    QP_NUMBER "qp_number" "4.3";
    /// A QP that starts using a CQ that is not valid.
    QP_CQ "qp_cq" "4.3";
    /// A QP that starts using a queue that is not completely readable by the device.
    QP_BUFFER "qp_buffer" "4.3, 9.2";
    /// opt_param_mask with attributes that the transition does not accept.
    QP_ATTRIBUTES "qp_attributes" "10.2";
    /// A value that the command ignores because its bit in opt_param_mask is clear or the QP is already running.
    QP_UNNAMED "qp_unnamed" "10.3 (J-28)";
    /// A QP context with a source address other than that of the port. Packets carry the address of the port
    /// regardless.
    QP_SOURCE "qp_source" "4.3, 11.4";
    /// QUERY_QP of a QP in RESET.
    QUERY_RESET "query_reset" "3.13";
}
