//! Counters of the context manager, by channel.

use serde::{Deserialize, Serialize};

use super::request_controller::{Channel, Writer};

/// Requests to the context manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CtxStats {
    /// Requests from the command unit.
    pub ceu_parser: CeuStats,
    /// Requests on channel RD_QP_SST.
    pub doorbell_processing: ReadStats,
    /// Requests on channel RD_QP_STATE.
    pub wqe_parser: ReadStats,
    /// Requests on channels RD_QP_NPST and WR_QP_NPST.
    pub requester_trans_control: WriterStats,
    /// Requests on channels RD_CQ_CST and WR_QP_UAPST.
    pub requester_recv_control: WriterStats,
    /// Requests on channels RD_QP_RST and WR_QP_EPST.
    pub execution_engine: WriterStats,
    /// Requests on channel RD_ENCAP.
    pub frame_encap: ReadStats,
}

/// Requests from the command unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CeuStats {
    pub reads: u64,
    /// Contexts written or invalidated.
    pub writes: u64,
    /// Changes to the ICM mapping.
    pub maps: u64,
}

/// Requests from a unit that only reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadStats {
    /// Requests answered from the key data.
    pub hits: u64,
    /// Requests for a QP in RESET or for a QP whose CQ does not exist.
    pub misses: u64,
}

/// Requests from a unit that also writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriterStats {
    #[serde(flatten)]
    pub reads: ReadStats,
    /// Changes made to the key data.
    pub writes: u64,
    /// Changes written to guest memory. The count is lower than `writes` if several changes are merged into one
    /// write-back.
    pub write_backs: u64,
    /// Write-backs dropped because the ICM page is not mapped.
    pub unmapped: u64,
}

impl CtxStats {
    pub(super) fn reads(&mut self, channel: Channel) -> &mut ReadStats {
        match channel {
            Channel::DoorbellProcessing => &mut self.doorbell_processing,
            Channel::WqeParser => &mut self.wqe_parser,
            Channel::RequesterTransControl => &mut self.requester_trans_control.reads,
            Channel::RequesterRecvControl => &mut self.requester_recv_control.reads,
            Channel::ExecutionEngine => &mut self.execution_engine.reads,
            Channel::FrameEncap => &mut self.frame_encap,
        }
    }

    pub(super) fn writer(&mut self, writer: Writer) -> &mut WriterStats {
        match writer {
            Writer::RequesterTransControl => &mut self.requester_trans_control,
            Writer::RequesterRecvControl => &mut self.requester_recv_control,
            Writer::ExecutionEngine => &mut self.execution_engine,
        }
    }
}
