//! What the interface demands of software and a device does not enforce.

use crate::frontend::strict::rules;
use crate::telemetry::monitor::Rule;

rules! {
    /// A write that is not 4 or 8 aligned bytes, which the device ignores.
    NARROW_WRITE "narrow_write" "2";
    /// A write to a register that only the device changes.
    READ_ONLY_WRITE "read_only_write" "2.1, 2.2";
    /// A write to a register of a queue or vector that the function does not have.
    NO_SUCH_QUEUE "no_such_queue" "2.2, 6.1";
    /// A ring is moved or resized while it holds commands.
    RING_MOVED "ring_moved" "4.1";
    /// A head or tail index outside the ring.
    RING_INDEX "ring_index" "4.1";
    /// New commands are posted before the driver has read the completion of the previous ones.
    HEAD_NOT_POLLED "head_not_polled" "4.1";
    /// An interrupt cause is enabled and routed to a vector that the function does not have.
    ROUTE_NO_VECTOR "route_no_vector" "3.3";
    /// CLEARPBA written without INTENA.
    CLEAR_WITHOUT_ENABLE "clear_without_enable" "3.2";
    /// A new command with completion flags set.
    COMMAND_FLAGS "command_flags" "4.2";
    /// The large-buffer flag does not match the buffer length.
    BUFFER_LARGE "buffer_large" "4.2";
    /// A command with a buffer that it does not use, or without a buffer that it requires.
    BUFFER_MISSING "buffer_missing" "4.2, 5";
    /// The buffer direction flag does not match the command.
    BUFFER_DIRECTION "buffer_direction" "4.2, 5";
    /// A lock is requested while the driver already holds it.
    LOCK_TWICE "lock_twice" "5.2";
    /// A lock is released that the driver does not hold.
    LOCK_NOT_TAKEN "lock_not_taken" "5.2";
    /// The flash is read, or a package is loaded or changed, without holding the required lock.
    LOCK_MISSING "lock_missing" "5.2, 5.3, 6.3, 7.1";
    /// A doorbell for a transmit queue that is not enabled.
    DOORBELL_NO_QUEUE "doorbell_no_queue" "8.2";
    /// Descriptors of one frame with conflicting commands.
    FRAME_COMMANDS "frame_commands" "8.2";
    /// A receive queue with no descriptors, with 16-byte descriptors, or with frames larger than five buffers.
    RECEIVE_CONTEXT "receive_context" "8.3";
    /// A receive queue context is changed while the queue is enabled.
    CONTEXT_IN_USE "context_in_use" "8.4";
    /// A receive descriptor is posted with the done bit still set.
    RECEIVE_ENTRY "receive_entry" "8.3";
    /// The driver shuts down while it still has transmit queues or VSIs.
    SHUTDOWN_IN_USE "shutdown_in_use" "17.3";
    /// The RDMA control queue is started while it is running.
    CQP_RUNNING "cqp_running" "9.1";
    /// The RDMA control queue is destroyed while queue pairs or regions exist.
    CQP_IN_USE "cqp_in_use" "17.3";
    /// An operation without the polarity of the current pass through the ring.
    CQP_POLARITY "cqp_polarity" "10.2";
    /// A doorbell of the kernel for a queue pair that does not exist.
    SEND_NO_QP "send_no_qp" "9.1";
    /// A completion queue is armed that does not exist.
    ARM_NO_CQ "arm_no_cq" "9.1, 12.3";
    /// More asynchronous events are acknowledged than were reported.
    AEQ_CREDITS "aeq_credits" "12.6";
    /// A completion queue is destroyed while queue pairs still use it.
    CQ_IN_USE "cq_in_use" "14.3";
    /// A completion event queue is destroyed while completion queues other than the control queue's still use it.
    CEQ_IN_USE "ceq_in_use" "14.3, 17.3";
    /// A queue pair is destroyed while it is sending.
    QP_RUNNING "qp_running" "13.3";
    /// A queue pair is flushed that is not in the error state.
    FLUSH_STATE "flush_state" "14.2";
    /// Context memory is unmapped while queue pairs or regions exist.
    SEGMENT_IN_USE "segment_in_use" "11.3";
    /// The remote access flag of a region contradicts its access rights.
    REGION_REMOTE "region_remote" "10.3";
}
