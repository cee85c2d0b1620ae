//! ceu_parser: requests from the command unit. Requests are executed one at a time, ahead of all pending write-backs.
//!
//! # Spec
//! CtxMgt document, section 3.1 (table 3.1) and section 5.1.

use std::ops::RangeInclusive;

use card::memory::GuestMemory;
use hcr::icm::IcmError;
use protocol::hca::jingzhao::cmd::CmdError;
use protocol::hca::jingzhao::cqc::{self, Cqc, ResizeCq};
use protocol::hca::jingzhao::eqc::Eqc;
use protocol::hca::jingzhao::icm::MapEntry;
use protocol::hca::jingzhao::modify::StoredQpc;
use protocol::ids::{Cqn, Eqn, IcmAddr};

use super::key_qpc_data::KeyQpc;
use super::request_controller::Writer;
use super::{CtxMgt, writectx};

impl CtxMgt {
    /// RD_QP_ALL: executes the QP's pending write-backs and returns its entire context.
    pub fn rd_qp_all<'a>(&mut self, dma: &GuestMemory, index: u32, key: &'a mut KeyQpc) -> &'a StoredQpc {
        self.stats.ceu_parser.reads += 1;
        for writer in Writer::ALL {
            if key.take_dirty(writer) {
                self.write_back(dma, index, key, writer);
            }
        }
        key.context()
    }

    /// WR_QP_ALL: writes a QP's entire context from its key data.
    ///
    /// # Errors
    /// Fails if the context's page is not mapped in ICM or not accessible by DMA.
    pub fn wr_qp_all(&mut self, dma: &GuestMemory, index: u32, key: &mut KeyQpc) -> Result<(), IcmError> {
        // The context includes all dirty values, so nothing is left to write back.
        key.clear_dirty();
        let entry = self.ctxmdata.qpc.entry(index);
        self.wr_all(dma, entry, &writectx::qpc_entry(&key.context().image))
    }

    /// WR_CQ_ALL: writes a CQ's entire context.
    ///
    /// # Errors
    /// Fails if the context's page is not mapped in ICM or not accessible by DMA.
    pub fn wr_cq_all(&mut self, dma: &GuestMemory, cqn: Cqn, cqc: &[u8; Cqc::LEN]) -> Result<(), IcmError> {
        let entry = self.ctxmdata.cqc.entry(self.cq_index(cqn));
        self.wr_all(dma, entry, &cqc[..Cqc::STORED_LEN])
    }

    /// WR_CQ_MODIFY: switches a CQ to another buffer.
    ///
    /// # Errors
    /// Fails if the context's page is not mapped in ICM or not accessible by DMA.
    pub fn wr_cq_modify(&mut self, dma: &GuestMemory, cqn: Cqn, to: &ResizeCq) -> Result<(), IcmError> {
        self.stats.ceu_parser.writes += 1;
        let entry = self.ctxmdata.locate(self.ctxmdata.cqc.entry(self.cq_index(cqn)))?;
        writectx::put(dma, entry, cqc::LOG_SIZE, &[to.log_entries])?;
        writectx::put(dma, entry, cqc::LKEY, &to.lkey.get().to_be_bytes())
    }

    /// WR_CQ_INVALID: zeroes a CQ's context. The CQ becomes invalid even if its page has been unmapped.
    pub fn wr_cq_invalid(&mut self, dma: &GuestMemory, cqn: Cqn) {
        let entry = self.ctxmdata.cqc.entry(self.cq_index(cqn));
        let _ = self.wr_all(dma, entry, &[0; Cqc::STORED_LEN]);
    }

    /// Sets the status of a failed CQ in its context. The CtxMgt document has no message that sets the status, because
    /// the device that it describes does not detect CQ failures.
    pub fn wr_cq_status(&mut self, dma: &GuestMemory, cqn: Cqn, status: u8) {
        if let Ok(entry) = self.ctxmdata.locate(self.ctxmdata.cqc.entry(self.cq_index(cqn))) {
            // The status is the high nibble of the first byte; the low nibble is reserved.
            let _ = writectx::put(dma, entry, 0, &[status << 4]);
        }
    }

    /// WR_EQ_ALL: writes an EQ's entire context.
    ///
    /// # Errors
    /// Fails if the context's page is not mapped in ICM or not accessible by DMA.
    pub fn wr_eq_all(&mut self, dma: &GuestMemory, eqn: Eqn, eqc: &[u8; Eqc::LEN]) -> Result<(), IcmError> {
        let entry = self.ctxmdata.eqc.entry(eqn.get());
        self.wr_all(dma, entry, &eqc[..Eqc::STORED_LEN])
    }

    /// WR_EQ_INVALID: zeroes an EQ's context. The EQ becomes invalid even if its page has been unmapped.
    pub fn wr_eq_invalid(&mut self, dma: &GuestMemory, eqn: Eqn) {
        let entry = self.ctxmdata.eqc.entry(eqn.get());
        let _ = self.wr_all(dma, entry, &[0; Eqc::STORED_LEN]);
    }

    /// MAP_ICM_EN: maps pages of the context tables.
    ///
    /// # Errors
    /// EXCEED_LIM if the page map would exceed its limit on runs of contiguous pages.
    pub fn map_icm_en(&mut self, entries: &[MapEntry]) -> Result<(), CmdError> {
        self.stats.ceu_parser.maps += 1;
        self.ctxmdata.map(entries)
    }

    /// MAP_ICM_DIS: unmaps pages of the context tables, given as ICM page numbers.
    ///
    /// # Errors
    /// EXCEED_LIM if the page map would exceed its limit on runs of contiguous pages.
    pub fn map_icm_dis(&mut self, pages: RangeInclusive<u64>) -> Result<(), CmdError> {
        self.stats.ceu_parser.maps += 1;
        self.ctxmdata.unmap(pages)
    }

    fn wr_all(&mut self, dma: &GuestMemory, entry: IcmAddr, bytes: &[u8]) -> Result<(), IcmError> {
        self.stats.ceu_parser.writes += 1;
        writectx::put(dma, self.ctxmdata.locate(entry)?, 0, bytes)
    }
}
