//! writectx: writes a whole context, or only the fields changed by one unit, to guest memory.
//!
//! # Spec
//! CtxMgt document, section 5.6; JingZhao interface, section 4.3 (J-19).

use card::memory::GuestMemory;
use hcr::icm::IcmError;
use protocol::hca::jingzhao::qpc::{self, QpState, Qpc, write_back as offset};
use protocol::ids::Iova;

use super::ctxmdata::CtxMdata;
use super::request_controller::Writer;

/// Writes the QP state and the PSN that `writer` owns. Other fields in the same words are preserved (J-19).
pub(super) fn write_back(
    ctxmdata: &CtxMdata,
    dma: &GuestMemory,
    index: u32,
    image: &Qpc,
    writer: Writer,
) -> Result<(), IcmError> {
    let entry = ctxmdata.locate(ctxmdata.qpc.entry(index))?;
    let (psn_at, psn) = match writer {
        Writer::RequesterTransControl => (offset::NEXT_SEND_PSN, image.next_send_psn.get().to_be_bytes()),
        Writer::RequesterRecvControl => (offset::LAST_ACKED_PSN, image.unacked_psn.get().to_be_bytes()),
        Writer::ExecutionEngine => (offset::NEXT_RECV_PSN, image.next_recv_word()),
    };
    put(dma, entry, offset::STATE, &shown(image).state_word())?;
    put(dma, entry, psn_at, &psn)
}

pub(super) fn qpc_entry(image: &Qpc) -> [u8; qpc::LEN] {
    shown(image).emit()
}

/// Writes bytes of the context at bus address `entry`. Contexts are aligned to their size, so `|` adds the offset.
pub(super) fn put(dma: &GuestMemory, entry: Iova, offset: usize, bytes: &[u8]) -> Result<(), IcmError> {
    Ok(dma.write(Iova::new(entry.get() | offset as u64), bytes)?)
}

/// Returns the context as it appears in ICM. State 7 (draining) appears as SQD; only QUERY_QP may return 7.
fn shown(image: &Qpc) -> Qpc {
    let draining = image.state() == Some(QpState::Draining);
    let state = if draining { QpState::Sqd.code() } else { image.state };
    Qpc { state, ..*image }
}
