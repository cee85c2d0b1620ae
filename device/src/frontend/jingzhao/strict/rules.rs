//! What the interface demands of software and a device does not enforce.

use crate::frontend::strict::rules;
use crate::telemetry::monitor::Rule;

rules! {
    /// A store of another width than four or eight aligned bytes, which the device ignores.
    NARROW_WRITE "narrow_write" "1.3";
    /// A store where no register is.
    NO_REGISTER "no_register" "1.1, 1.6";
    /// A store to a read-only register.
    READ_ONLY_WRITE "read_only_write" "1.5";
    /// A store that does nothing: the command word without go, the reset register without bit 0.
    NO_EFFECT "no_effect" "1.3, 1.5";
    /// Bits of the HCR that software must leave 0.
    HCR_RESERVED "hcr_reserved" "1.2";
    /// A store to the HCR before software has seen the end of the command before: hardware may still execute it.
    HCR_NOT_POLLED "hcr_not_polled" "1.3, 1.4";
    /// A load from a UAR page.
    DOORBELL_READ "doorbell_read" "1.6";
    /// The second half of a doorbell without a first half of its own.
    DOORBELL_HALF "doorbell_half" "1.6";
    /// Bits 7:6 of a doorbell's first word.
    DOORBELL_RESERVED "doorbell_reserved" "1.6";
    /// A doorbell of a QP that is in RESET or never was.
    DOORBELL_NO_QP "doorbell_no_qp" "1.6, 10.1";
    /// A doorbell of a QP in INIT or RTR.
    DOORBELL_STATE "doorbell_state" "1.6, 10.1";
    /// A doorbell in another UAR page than the QP's context names.
    DOORBELL_PAGE "doorbell_page" "1.6 (J-13)";
    /// A doorbell with the number of an earlier QP of the same index.
    DOORBELL_NUMBER "doorbell_number" "7.1 (J-33)";
    /// More requests posted than the send queue has slots.
    SQ_OVERRUN "sq_overrun" "6.7";
    /// Arming a CQ or EQ that is not valid.
    ARM_NOTHING "arm_nothing" "1.6, 8.5";
    /// Bits of a WQE that are reserved.
    WQE_RESERVED "wqe_reserved" "6.2 to 6.5";
    /// A WQE that does not begin with its slot, or is longer than it.
    WQE_SLOT "wqe_slot" "6.1, 6.7";
    /// A receive WQE of a user's queue without the valid bit.
    RECV_UNMARKED "recv_unmarked" "6.8 (J-23)";
    /// A parameter that the command table has as 0.
    UNUSED_PARAMETER "unused_parameter" "2";
    /// An op_modifier that the device accepts and the document does not have.
    UNDOCUMENTED_MODIFIER "undocumented_modifier" "2 (J-35, J-36)";
    /// A mailbox that does not begin with a page.
    MAILBOX_ALIGNMENT "mailbox_alignment" "0";
    /// Bits of a mailbox that the device ignores.
    MAILBOX_IGNORED "mailbox_ignored" "3, 4";
    /// The event bit, and no EQ that takes the event.
    EVENT_DROPPED "event_dropped" "1.4";
    /// INIT_HCA without CLOSE_HCA before.
    INIT_TWICE "init_twice" "3.3";
    /// More entries than QUERY_DEV_LIM reports.
    INIT_COUNTS "init_counts" "3.1 (J-09)";
    /// Tables that overlap in ICM.
    INIT_OVERLAP "init_overlap" "3.3";
    /// CLOSE_HCA with objects in use.
    CLOSE_IN_USE "close_in_use" "3.4, 13";
    /// CLOSE_HCA without INIT_HCA.
    CLOSE_TWICE "close_twice" "3.4";
    /// MAP_ICM over pages that are mapped.
    MAP_OVER_MAPPED "map_over_mapped" "3.5";
    /// MAP_ICM of a bus page that the device has already.
    MAP_SAME_PAGE "map_same_page" "3.5, 5.1";
    /// MAP_ICM with more entries than the context manager takes at once, which are the pages of a chunk of 256 KiB.
    MAP_COUNT "map_count" "3.5, 5.3; CtxMgt document, 3.1";
    /// UNMAP_ICM of pages with contexts in use.
    UNMAP_IN_USE "unmap_in_use" "3.6, 5.1";
    /// UNMAP_ICM of pages none of which is mapped.
    UNMAP_NOTHING "unmap_nothing" "3.6";
    /// SW2HW_MPT with the key that was last in the same place: what still holds it reaches the new region.
    KEY_REUSE "key_reuse" "9.1 (J-33)";
    /// HW2SW_MPT of the buffer of a queue in use.
    MPT_IN_USE "mpt_in_use" "3.7, 7";
    /// SW2HW_MPT with pages that no WRITE_MTT gave.
    MPT_PAGES "mpt_pages" "3.7, 9.4";
    /// WRITE_MTT over the pages of a region in use.
    MTT_IN_USE "mtt_in_use" "3.8";
    /// WRITE_MTT with more entries than a mailbox holds.
    MTT_COUNT "mtt_count" "3.8 (J-11)";
    /// A CQ whose buffer the device cannot write as a whole.
    CQ_BUFFER "cq_buffer" "7, 9.2";
    /// A CQ whose entries software has not all given to the device.
    CQ_OWNER "cq_owner" "7";
    /// A CQ context with the number of another.
    CQ_NUMBER "cq_number" "4.4";
    /// A CQ that is armed and names no valid EQ.
    CQ_EQ "cq_eq" "8.5";
    /// HW2SW_CQ of a CQ that QPs use.
    CQ_IN_USE "cq_in_use" "3.11";
    /// A CQ with fewer entries than the queues have that complete to it.
    CQ_OVERRUN_RISK "cq_overrun_risk" "7";
    /// An EQ whose buffer the device cannot write as a whole.
    EQ_BUFFER "eq_buffer" "8.2, 9.2";
    /// An EQ whose entries software has not all given to the device.
    EQ_OWNER "eq_owner" "8.2";
    /// An EQ whose interrupt vector is not there.
    EQ_VECTOR "eq_vector" "8.5";
    /// MAP_EQ of events that never come by masks.
    EQ_EVENTS "eq_events" "3.9, 8.3";
    /// HW2SW_EQ of an EQ that an armed CQ names.
    EQ_IN_USE "eq_in_use" "3.10, 8.5";
    /// A QP context with the number of another.
    QP_NUMBER "qp_number" "4.3";
    /// A QP that begins to use a CQ that is not valid.
    QP_CQ "qp_cq" "4.3";
    /// A QP that begins to use a queue the device cannot read as a whole.
    QP_BUFFER "qp_buffer" "4.3, 9.2";
    /// opt_param_mask names attributes that the transition does not take.
    QP_ATTRIBUTES "qp_attributes" "10.2";
    /// A value that a command does not take, since its mask does not name the attribute, or the QP already runs.
    QP_UNNAMED "qp_unnamed" "10.3 (J-28)";
    /// A context with another source address than the port's, which packets have all the same.
    QP_SOURCE "qp_source" "4.3, 11.4";
    /// QUERY_QP of a QP in RESET.
    QUERY_RESET "query_reset" "3.13";
}
