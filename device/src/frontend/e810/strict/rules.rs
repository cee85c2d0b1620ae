//! What the interface demands of software and a device does not enforce.

use crate::frontend::strict::rules;
use crate::telemetry::monitor::Rule;

rules! {
    /// A store of another width than four or eight aligned bytes, which the device ignores.
    NARROW_WRITE "narrow_write" "2";
    /// A store to a register that only the device changes.
    READ_ONLY_WRITE "read_only_write" "2.1, 2.2";
    /// A store to a register of a queue or vector that the function has not.
    NO_SUCH_QUEUE "no_such_queue" "2.2, 6.1";
    /// A ring is moved or resized while commands are in it.
    RING_MOVED "ring_moved" "4.1";
    /// A head or tail outside of its ring.
    RING_INDEX "ring_index" "4.1";
    /// Commands are started before the end of those before was seen.
    HEAD_NOT_POLLED "head_not_polled" "4.1";
    /// A cause is enabled and routed to a vector that the function has not.
    ROUTE_NO_VECTOR "route_no_vector" "3.3";
    /// CLEARPBA without INTENA.
    CLEAR_WITHOUT_ENABLE "clear_without_enable" "3.2";
    /// Completion flags in a command that is not complete.
    COMMAND_FLAGS "command_flags" "4.2";
    /// The flag of large buffers, and the buffer's length, contradict each other.
    BUFFER_LARGE "buffer_large" "4.2";
    /// A command with a buffer that it has no use for, or without one that it needs.
    BUFFER_MISSING "buffer_missing" "4.2, 5";
    /// The flag that says who fills the buffer is that of another command.
    BUFFER_DIRECTION "buffer_direction" "4.2, 5";
    /// A lock is taken twice.
    LOCK_TWICE "lock_twice" "5.2";
    /// A lock is given back that was not taken.
    LOCK_NOT_TAKEN "lock_not_taken" "5.2";
    /// The flash is read, or a package loaded or changed, without the lock for that.
    LOCK_MISSING "lock_missing" "5.2, 5.3, 6.3, 7.1";
    /// A doorbell of a transmit queue that is not enabled.
    DOORBELL_NO_QUEUE "doorbell_no_queue" "8.2";
    /// Descriptors of one frame that ask for different things.
    FRAME_COMMANDS "frame_commands" "8.2";
    /// A receive queue without descriptors, of short descriptors, or of frames longer than five of its buffers.
    RECEIVE_CONTEXT "receive_context" "8.3";
    /// A context of a receive queue is changed while the queue is enabled.
    CONTEXT_IN_USE "context_in_use" "8.4";
    /// An entry of a receive ring that looks as if the device had filled it.
    RECEIVE_ENTRY "receive_entry" "8.3";
    /// The driver is unloaded and still has transmit queues or VSIs.
    SHUTDOWN_IN_USE "shutdown_in_use" "17.3";
    /// The RDMA control queue is started while it runs.
    CQP_RUNNING "cqp_running" "9.1";
    /// It is ended while there are queue pairs or regions.
    CQP_IN_USE "cqp_in_use" "17.3";
    /// An operation has not the polarity of the ring's round.
    CQP_POLARITY "cqp_polarity" "10.2";
    /// The kernel rings for a queue pair that there is not.
    SEND_NO_QP "send_no_qp" "9.1";
    /// The kernel arms a completion queue that there is not.
    ARM_NO_CQ "arm_no_cq" "9.1, 12.3";
    /// More asynchronous events are given back than were told.
    AEQ_CREDITS "aeq_credits" "12.6";
    /// A completion queue is destroyed while queue pairs complete into it.
    CQ_IN_USE "cq_in_use" "14.3";
    /// A completion event queue is destroyed while completion queues other than the control queue's report to it.
    CEQ_IN_USE "ceq_in_use" "14.3, 17.3";
    /// A queue pair is destroyed while it sends.
    QP_RUNNING "qp_running" "13.3";
    /// A queue pair is flushed that is not in error.
    FLUSH_STATE "flush_state" "14.2";
    /// Context memory is taken back while there are queue pairs or regions.
    SEGMENT_IN_USE "segment_in_use" "11.3";
    /// The bit that says whether peers may use a region contradicts its rights.
    REGION_REMOTE "region_remote" "10.3";
}
