//! RC queue pairs: their contexts and state transitions.
//!
//! # Spec
//! mlx5 interface, section 10.

use anyhow::Result;

use super::bytes::{put_u32, put_u64};
use super::command::{Function, Op};
use super::objects::{INPUT, NONE, with_pages};
use super::work_queue::QueueMemory;

/// Offset of a QP context in a command's input.
const CONTEXT: usize = 0x18;
/// Migration state of a QP without an alternate path.
const MIGRATED: u32 = 3 << 11;
/// Number of the only port.
const PORT: u32 = 1 << 16;

/// Fields that the driver sets when it creates the QP, and again when the QP enters INIT.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    pub(super) pd: u32,
    pub(super) uar: u32,
    pub(super) send_cqn: u32,
    pub(super) recv_cqn: u32,
    /// Number that the device puts into the QP's completions.
    pub(super) user_index: u32,
}

impl Fields {
    /// User index for a QP that does not need one.
    pub(super) const NO_INDEX: u32 = NONE;
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) lid: u16,
    pub(super) qpn: u32,
}

#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) qpn: u32,
    fields: Fields,
    /// Bus address of the doorbell record.
    record: u64,
}

impl QueuePair {
    pub(super) fn create(function: &mut Function<'_>, memory: &QueueMemory, fields: Fields) -> Result<Self> {
        const NO_RECEIVES: u32 = 3 << 24;
        let record = function.arena.iova(memory.record);
        let mut input = with_pages(function.arena, memory.place());
        put_fields(&mut input, fields, record);
        // A receive WQE is 16 bytes long. This is the smallest stride, encoded as 0.
        let log_receives = u32::from(memory.log_receives.unwrap_or(0));
        put_u32(&mut input, CONTEXT + 0x08, log_receives << 19 | u32::from(memory.log_sends) << 11);
        put_u32(&mut input, CONTEXT + 0x0c, fields.uar);
        put_u32(&mut input, CONTEXT + 0xac, if memory.log_receives.is_some() { 0 } else { NO_RECEIVES });
        let qpn = function.create(Op::CreateQp, input)?;
        Ok(Self { qpn, fields, record })
    }

    /// Connects a new or reset QP to its peer.
    pub(super) fn connect(&self, function: &mut Function<'_>, peer: Peer) -> Result<()> {
        const MTU_4096: u32 = 5 << 29;
        const LOG_MAX_MESSAGE: u32 = 30 << 24;
        const REMOTE_READ_AND_WRITE: u32 = 3 << 14;
        // 0.01 ms, so that the peer retries soon if the driver is late to post receives.
        const RNR_TIMER: u32 = 1 << 24;
        // 268 ms, longer than the scheduling delays on a busy host.
        const ACK_TIMEOUT: u32 = 16 << 27;
        const RETRIES: u32 = 7 << 16;
        const RNR_RETRIES_UNLIMITED: u32 = 7 << 13;
        let context = || {
            let mut input = vec![0; INPUT];
            put_u32(&mut input, 0x08, self.qpn);
            put_u32(&mut input, CONTEXT, MIGRATED);
            put_u32(&mut input, CONTEXT + 0x3c, PORT);
            input
        };
        let mut input = context();
        put_fields(&mut input, self.fields, self.record);
        put_u32(&mut input, CONTEXT + 0x90, REMOTE_READ_AND_WRITE);
        function.modify(Op::ResetToInit, input)?;
        let mut input = context();
        put_u32(&mut input, CONTEXT + 0x08, MTU_4096 | LOG_MAX_MESSAGE);
        put_u32(&mut input, CONTEXT + 0x14, peer.qpn);
        put_u32(&mut input, CONTEXT + 0x1c, peer.lid.into());
        put_u32(&mut input, CONTEXT + 0x94, RNR_TIMER);
        function.modify(Op::InitToRtr, input)?;
        let mut input = context();
        put_u32(&mut input, CONTEXT + 0x20, ACK_TIMEOUT);
        put_u32(&mut input, CONTEXT + 0x70, RETRIES | RNR_RETRIES_UNLIMITED);
        function.modify(Op::RtrToRts, input)
    }

    pub(super) fn reset(&self, function: &mut Function<'_>) -> Result<()> {
        function.execute(Op::ToReset, self.qpn)
    }

    pub(super) fn destroy(&self, function: &mut Function<'_>) -> Result<()> {
        function.execute(Op::DestroyQp, self.qpn)
    }
}

fn put_fields(input: &mut [u8], fields: Fields, record: u64) {
    put_u32(input, CONTEXT, MIGRATED);
    put_u32(input, CONTEXT + 0x04, fields.pd);
    put_u32(input, CONTEXT + 0x10, fields.user_index);
    put_u32(input, CONTEXT + 0x7c, fields.send_cqn);
    put_u32(input, CONTEXT + 0x9c, fields.recv_cqn);
    put_u64(input, CONTEXT + 0xa0, record);
}
