//! Rules of the interface that the device does not enforce.

use card::strict_rules;

strict_rules! {
    /// A write that is misaligned, or not 4 or 8 bytes long. The device ignores it.
    NARROW_WRITE "narrow_write" "2";
    /// A write to a read-only register.
    READ_ONLY_WRITE "read_only_write" "2.1, 2.2";
    /// A write to a register of a queue or vector that the function does not have.
    NO_SUCH_QUEUE "no_such_queue" "2.2, 6.1";
    /// Moving or resizing a ring that holds commands.
    RING_MOVED "ring_moved" "4.1";
    /// A head or tail index outside the ring.
    RING_INDEX "ring_index" "4.1";
    /// Posting commands before reading the completion of the previous ones.
    HEAD_NOT_POLLED "head_not_polled" "4.1";
    /// Routing an enabled interrupt cause to a vector that the function does not have.
    ROUTE_NO_VECTOR "route_no_vector" "3.3";
    /// A write of CLEARPBA without INTENA.
    CLEAR_WITHOUT_ENABLE "clear_without_enable" "3.2";
    /// A new command with completion flags set.
    COMMAND_FLAGS "command_flags" "4.2";
    /// A large-buffer flag that does not match the buffer length.
    BUFFER_LARGE "buffer_large" "4.2";
    /// A command with a buffer that it does not use, or without a buffer that it requires.
    BUFFER_MISSING "buffer_missing" "4.2, 5";
    /// A buffer direction flag that does not match the command.
    BUFFER_DIRECTION "buffer_direction" "4.2, 5";
    /// Requesting a lock that the driver already holds.
    LOCK_TWICE "lock_twice" "5.2";
    /// Releasing a lock that the driver does not hold.
    LOCK_NOT_TAKEN "lock_not_taken" "5.2";
    /// Reading the flash, or loading or changing a package, without holding the required lock.
    LOCK_MISSING "lock_missing" "5.2, 5.3, 6.3, 7.1";
    /// A doorbell for a transmit queue that is not enabled.
    DOORBELL_NO_QUEUE "doorbell_no_queue" "8.2";
    /// Descriptors of one frame with conflicting commands.
    FRAME_COMMANDS "frame_commands" "8.2";
    /// A receive queue with no descriptors, with 16-byte descriptors, or with a maximum frame size of more
    /// than five buffers.
    RECEIVE_CONTEXT "receive_context" "8.3";
    /// Changing the context of a receive queue that is enabled.
    CONTEXT_IN_USE "context_in_use" "8.4";
    /// Posting a receive descriptor with the done bit set.
    RECEIVE_ENTRY "receive_entry" "8.3";
    /// Shutting down while transmit queues or VSIs exist.
    SHUTDOWN_IN_USE "shutdown_in_use" "17.3";
    /// Starting the RDMA control queue while it is running.
    CQP_RUNNING "cqp_running" "9.1";
    /// Destroying the RDMA control queue while queue pairs or regions exist.
    CQP_IN_USE "cqp_in_use" "17.3";
    /// A control queue operation whose polarity bit does not match the current pass through the ring.
    CQP_POLARITY "cqp_polarity" "10.2";
    /// A kernel doorbell for a queue pair that does not exist.
    SEND_NO_QP "send_no_qp" "9.1";
    /// Arming a completion queue that does not exist.
    ARM_NO_CQ "arm_no_cq" "9.1, 12.3";
    /// Acknowledging more asynchronous events than were reported.
    AEQ_CREDITS "aeq_credits" "12.6";
    /// Destroying a completion queue that queue pairs still use.
    CQ_IN_USE "cq_in_use" "14.3";
    /// Destroying a completion event queue that completion queues still use, not counting that of the control queue.
    CEQ_IN_USE "ceq_in_use" "14.3, 17.3";
    /// Destroying a queue pair that is in RTS.
    QP_RUNNING "qp_running" "13.3";
    /// Flushing a queue pair that is neither in the error state nor in SQD.
    FLUSH_STATE "flush_state" "14.2";
    /// Unmapping context memory while queue pairs or regions exist.
    SEGMENT_IN_USE "segment_in_use" "11.3";
    /// A remote access flag that contradicts the access rights of its region.
    REGION_REMOTE "region_remote" "10.3";
}
