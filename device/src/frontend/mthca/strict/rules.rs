//! What the mthca interface demands of software and a device does not enforce.

use crate::frontend::strict::rules;
use crate::telemetry::monitor::Rule;

rules! {
    /// A store of another width than four or eight aligned bytes, which the device ignores.
    NARROW_WRITE "narrow_write" "2.1, 5.1";
    /// A store where no register is.
    NO_REGISTER "no_register" "2.1, 5.1";
    /// A store to the buffer of catastrophic errors.
    READ_ONLY_WRITE "read_only_write" "2.6";
    /// A store that does nothing: the command word without go, the reset register with another value than 1.
    NO_EFFECT "no_effect" "1.5, 2.2";
    /// Bits of the HCR that software must leave 0.
    HCR_RESERVED "hcr_reserved" "2.2";
    /// A store to the HCR before software has seen go clear: hardware may still execute the command before.
    HCR_NOT_POLLED "hcr_not_polled" "2.2";
    /// Arming an EQ that is not valid, or telling how far it was read.
    EQ_NOTHING "eq_nothing" "2.4, 7.8";
    /// Software says that it has read more of an EQ than was written, or less than it said before.
    EQ_CONSUMER "eq_consumer" "2.4, 7.8";
    /// A load from a UAR page.
    DOORBELL_READ "doorbell_read" "5.1";
    /// The second half of a doorbell without a first half of its own.
    DOORBELL_HALF "doorbell_half" "5.1";
    /// Bits of a doorbell that are no field.
    DOORBELL_RESERVED "doorbell_reserved" "5.2, 5.3";
    /// A doorbell that announces nothing.
    DOORBELL_EMPTY "doorbell_empty" "5.2";
    /// A doorbell of a QP that is in RESET or never was.
    DOORBELL_NO_QP "doorbell_no_qp" "5.2";
    /// A doorbell of a QP in INIT or RTR.
    DOORBELL_STATE "doorbell_state" "5.2";
    /// A doorbell in another UAR page than its queue's context names.
    DOORBELL_PAGE "doorbell_page" "5.1";
    /// A doorbell before its doorbell record says the same.
    DOORBELL_RECORD "doorbell_record" "5.2, 5.4";
    /// A doorbell that does not begin where the one before ended.
    DOORBELL_ORDER "doorbell_order" "5.2";
    /// A doorbell before the slot in front names its first WQE, or one that says otherwise of it.
    DOORBELL_LINK "doorbell_link" "5.2, 7.3";
    /// More requests posted than the send queue has slots.
    SQ_OVERRUN "sq_overrun" "7.3";
    /// More requests posted than a receive queue has slots; an SRQ has one that is never posted.
    RQ_OVERRUN "rq_overrun" "5.4, 6.6, 7.3";
    /// A doorbell record that does not say whose it is, when there is work.
    RECORD_TAG "record_tag" "5.4";
    /// A queue whose doorbell record is in no page that is lent.
    RECORD_UNMAPPED "record_unmapped" "4.4, 5.4";
    /// A queue whose doorbell record another one has.
    RECORD_SHARED "record_shared" "5.4";
    /// A queue with a UAR page that there is not, or that software leaves alone.
    UAR_RESERVED "uar_reserved" "5.1";
    /// Arming a CQ that is not valid.
    ARM_NO_CQ "arm_no_cq" "5.3";
    /// Arming a CQ for something that there is not.
    ARM_COMMAND "arm_command" "5.3";
    /// Arming a CQ before its doorbell record says the same.
    ARM_RECORD "arm_record" "5.3, 5.4";
    /// Arming a CQ with another sequence number than the events that software has had: hardware ignores it.
    ARM_SEQUENCE "arm_sequence" "5.3, 7.6";
    /// Software says that it has read more of a CQ than was written.
    CQ_CONSUMER "cq_consumer" "5.4, 7.6";
    /// An entry of a CQ that software has read and not given back.
    CQE_OWNER "cqe_owner" "7.6";
    /// An entry of an EQ that software has read and not given back.
    EQE_OWNER "eqe_owner" "7.7, 7.8";
    /// A WQE without size, or longer than its slot.
    WQE_SIZE "wqe_size" "7.1, 7.3";
    /// A WQE that cannot be read: its opcode, or its segments.
    WQE_MALFORMED "wqe_malformed" "7.1, 7.2, 7.4";
    /// Bits of a WQE that are no field.
    WQE_RESERVED "wqe_reserved" "7.1";
    /// A WQE without the bit that is always set.
    WQE_CONSTANT "wqe_constant" "7.1";
    /// A WQE that names memory which its QP may not use so: the key, the domain, a right, or the bounds.
    WQE_KEY "wqe_key" "6.2, 7.1";
    /// A datagram whose address vector is of another domain or port.
    WQE_VECTOR "wqe_vector" "6.8";
    /// A WQE of an SRQ whose successor is no slot.
    SRQ_LINK "srq_link" "7.4";
    /// A parameter that the command table has as 0.
    UNUSED_PARAMETER "unused_parameter" "3.1";
    /// An op_modifier that the command table does not have.
    UNDOCUMENTED_MODIFIER "undocumented_modifier" "3.1";
    /// A mailbox that does not begin with a page.
    MAILBOX_ALIGNMENT "mailbox_alignment" "2.2";
    /// The event bit, and no EQ that takes the event.
    EVENT_DROPPED "event_dropped" "2.2, 3.5";
    /// Firmware that is started before it has memory, ICM lent before its auxiliary pages, INIT_HCA before RUN_FW.
    FIRMWARE_ORDER "firmware_order" "3.2";
    /// Memory of the firmware taken back before CLOSE_HCA.
    FIRMWARE_IN_USE "firmware_in_use" "3.6";
    /// INIT_HCA without CLOSE_HCA before.
    INIT_TWICE "init_twice" "3.2, 3.6";
    /// Tables that overlap in ICM.
    INIT_OVERLAP "init_overlap" "4.2";
    /// CLOSE_HCA with objects in use.
    CLOSE_IN_USE "close_in_use" "3.6";
    /// CLOSE_HCA without INIT_HCA.
    CLOSE_TWICE "close_twice" "3.6";
    /// MAP_ICM over pages that are mapped.
    MAP_OVER_MAPPED "map_over_mapped" "4.4";
    /// MAP_ICM of a bus page that the device has already.
    MAP_SAME_PAGE "map_same_page" "4.4";
    /// UNMAP_ICM of pages with contexts, page table entries or doorbell records in use.
    UNMAP_IN_USE "unmap_in_use" "3.6, 4.4";
    /// UNMAP_ICM of pages none of which is mapped.
    UNMAP_NOTHING "unmap_nothing" "3.3.4, 4.4";
    /// An object whose context is in no page that is lent.
    CONTEXT_UNMAPPED "context_unmapped" "3.2, 4.4";
    /// HW2SW_MPT of the buffer of a queue in use.
    MPT_IN_USE "mpt_in_use" "3.6, 6.2";
    /// SW2HW_MPT with page table entries that software has not written.
    MPT_PAGES "mpt_pages" "4.5, 6.2";
    /// A CQ whose buffer the device cannot write as a whole.
    CQ_BUFFER "cq_buffer" "6.4";
    /// A CQ whose entries software has not all given to the device.
    CQ_OWNER "cq_owner" "7.6";
    /// A CQ context with the number of another.
    CQ_NUMBER "cq_number" "6.4";
    /// A CQ that names no valid EQ.
    CQ_EQ "cq_eq" "6.4";
    /// HW2SW_CQ of a CQ that QPs use.
    CQ_IN_USE "cq_in_use" "3.6";
    /// An EQ whose buffer the device cannot write as a whole.
    EQ_BUFFER "eq_buffer" "6.3";
    /// An EQ whose entries software has not all given to the device.
    EQ_OWNER "eq_owner" "6.3, 7.7";
    /// An EQ whose interrupt vector is not there.
    EQ_VECTOR "eq_vector" "1.3, 1.7";
    /// MAP_EQ of completion events, which never come by masks.
    EQ_EVENTS "eq_events" "3.5";
    /// HW2SW_EQ of an EQ that CQs name.
    EQ_IN_USE "eq_in_use" "3.6";
    /// HW2SW_EQ of an EQ that still takes events.
    EQ_MAPPED "eq_mapped" "3.6";
    /// An SRQ whose buffer the device cannot read as a whole.
    SRQ_BUFFER "srq_buffer" "6.6";
    /// An SRQ context with the number of another.
    SRQ_NUMBER "srq_number" "6.6";
    /// HW2SW_SRQ of an SRQ that QPs use.
    SRQ_IN_USE "srq_in_use" "3.6";
    /// A QP context with the number of another.
    QP_NUMBER "qp_number" "6.5";
    /// A QP with a CQ that is not valid.
    QP_CQ "qp_cq" "6.5";
    /// A QP with an SRQ that is not valid.
    QP_SRQ "qp_srq" "6.5";
    /// A QP whose queues the device cannot read as a whole.
    QP_BUFFER "qp_buffer" "6.5";
    /// opt_param_mask names what the transition does not take.
    QP_ATTRIBUTES "qp_attributes" "6.5";
    /// A value that a command does not take, since its mask does not name it.
    QP_UNNAMED "qp_unnamed" "6.5";
}
