//! Requirements that the interface places on software but the device does not enforce.

use card::strict_rules;

strict_rules! {
    /// A write whose width or alignment its register does not support. The device ignores it.
    NARROW_WRITE "narrow_write" "2.1, 7.1";
    /// A write to an address without a register, or to a read-only register.
    NO_REGISTER "no_register" "2.1, 7.1";
    /// A command that reuses the token of the previous command, so that stale mailbox blocks look valid.
    TOKEN_REUSED "token_reused" "3.1";
    /// A page that the driver gives to the device although the device already has it.
    PAGE_GIVEN_TWICE "page_given_twice" "5.1";
    /// TEARDOWN_HCA or DISABLE_HCA while objects exist.
    TEARDOWN_IN_USE "teardown_in_use" "4.3";
    /// An EQ or a CQ with entries that software would mistake for new ones.
    ENTRY_OWNER "entry_owner" "8.2, 9.3";
    /// A queue that shares its doorbell record with another queue.
    RECORD_SHARED "record_shared" "7.3";
    /// A doorbell for a queue that does not exist, or in a UAR page other than that of the queue.
    DOORBELL_NOTHING "doorbell_nothing" "2.2, 7.1";
    /// A send doorbell for a QP in RESET, INIT or RTR.
    DOORBELL_STATE "doorbell_state" "7.2, 10.2";
    /// A send doorbell rung before its doorbell record is updated.
    DOORBELL_RECORD "doorbell_record" "7.2, 7.3";
    /// A send doorbell that differs from the start of the WQE in the send queue.
    DOORBELL_WQE "doorbell_wqe" "7.2";
    /// A WQE copied to a send doorbell register, although the device does not support BlueFlame.
    BLUE_FLAME "blue_flame" "6.1, 7.2";
    /// More blocks in use than the send queue has. The blocks of a WQE are in use until it completes.
    SQ_OVERRUN "sq_overrun" "11";
    /// More requests posted than a receive queue has entries.
    RQ_OVERRUN "rq_overrun" "12.1, 12.2";
    /// An EQ consumer index that is past the producer index, or that moves backwards.
    EQ_CONSUMER "eq_consumer" "7.1, 8.1";
    /// A CQ consumer index that is past the producer index.
    CQ_CONSUMER "cq_consumer" "7.3, 9.2";
    /// A completion for a CQ whose entries are all unread. The device reports an error and fails the QPs of the CQ.
    CQ_OVERRUN "cq_overrun" "9.6";
    /// Arming a CQ before its doorbell record is updated.
    ARM_RECORD "arm_record" "7.3, 9.2";
    /// Arming a CQ with a sequence number that does not match the events received.
    ARM_SEQUENCE "arm_sequence" "7.1, 9.2";
    /// A WQE whose index differs from that of its first block.
    WQE_INDEX "wqe_index" "11.1";
    /// A WQE with an invalid size, queue number, opcode or segment. The WQE fails with a local QP operation error, or
    /// with a window bind error if it is a UMR.
    WQE_MALFORMED "wqe_malformed" "11.1, 11.3";
    /// A work request that accesses local memory without permission: wrong key, protection domain, access right or
    /// bounds.
    WQE_KEY "wqe_key" "13.4";
    /// An SRQ entry that links to an entry beyond the SRQ.
    SRQ_LINK "srq_link" "12.2";
    /// A UMR that requires a key to be both free and in use, sets undefined mask bits, or has the wrong low byte for a
    /// key in use.
    UMR_CONTROL "umr_control" "13.1, 13.3";
    /// A UMR that writes a strided list with an invalid header: more entries than fit in the key's list, a byte count
    /// other than the sum of the entries' byte counts, or a total length shorter than the key's.
    UMR_STRIDED "umr_strided" "13.2, 13.3";
    /// A UMR that makes a key valid again with the same low byte, on a QP other than the kernel's UMR QP.
    KEY_REUSED "key_reused" "13.3";

    /// An SQ or RQ doorbell record that counts fewer work requests than the device has consumed.
    RECORD_BACK "record_back" "7.3";
    /// An LSO whose inline header does not end with a TCP or UDP header, or whose payload is empty or too long.
    LSO_HEADER "lso_header" "16.1, 16.5";
    /// A frame sent by an SQ that has no TIS.
    SQ_WITHOUT_TIS "sq_without_tis" "16.1";
}
