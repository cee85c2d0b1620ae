//! The context manager: who may read and write what of contexts, where contexts are in guest memory, and when what the
//! device changed gets there. Laid out as its document is:
//!
//! | document | here |
//! |---|---|
//! | 2, 3.2: messages of the RDMA engine's units | [`message`] |
//! | 4.2, 5.4 key_qpc_data: what the device holds of contexts | [`key_qpc_data`] |
//! | 5.1 ceu_parser: requests of the command unit | `ceu_parser` |
//! | 5.2 request controller: whose turn it is | [`request_controller`] |
//! | 5.3 ctxmdata: ICM pages | [`ctxmdata`] |
//! | 5.6 writectx: writes to guest memory | `writectx` |
//!
//! A unit of the engine reads by a message, which has the fields its unit may read and no others
//! ([`CtxMgt::read`]). Nobody else gives out key data, so what the document does not grant cannot be written down. What
//! a unit writes changes the key data at once and waits for its turn to be written back to guest memory
//! ([`CtxMgt::observe`], [`CtxMgt::serve`]); the value that gets there is the newest one.
//!
//! ```text
//!   command ---------------------------> key data, guest memory      at once
//!   engine  -- observe: WR_QP_* -------> key data                    at the end of a turn, or before a command reads
//!                       request controller --serve--> guest memory   at the end of a turn, so many
//! ```
//!
//! # Differences
//! - Units exchange typed values, not words. The bits of request headers and of payloads are in
//!   [`protocol::hca::jingzhao::ctxmgt`], for those that compare with RTL: all headers of the command unit and of the
//!   engine, the answers to Doorbell Processing, WQE Parser, Requester Trans Control and Frame Encap, and what RTC writes.
//!   Not there is what the document's text does not have: the payloads of RRC and EE, and in RTC's the PD and key of the EQ
//!   and its vector. Neither is what passes between submodules of the context manager and to the DMA engine (J-51).
//! - What an answer has of a CQ and its EQ is read where the entry is written, see [`message`].
//! - RD_QP_SST and RD_QP_RST have the index in the P_Key table as PKey; DstQPN has 24 bits here, 16 in RD_QP_SST's payload.
//! - There are no channels with a depth: commands and reads are answered at once, see [`request_controller`].
//! - The device keeps the whole entry of a QP, not only its key data, and never reads ICM back: there is no readctx.
//!   QUERY_QP must answer, and MODIFY_QP must merge, with what commands gave and not with what the guest made of it.
//! - Tables have the sizes of INIT_HCA, not of a RAM (J-09).
//! - A write-back changes the state and one PSN, and leaves what shares their words as it is (J-19). MAP_EQ changes a
//!   mask of the device, not the context (J-37).
//! - MPT and MTT belong to VirtToPhys, which is not part of the context manager.
//!
//! # Spec
//! CtxMgt document V3.0; JingZhao interface, sections 4 and 5.

mod ceu_parser;
pub mod ctxmdata;
pub mod key_qpc_data;
pub mod message;
pub mod request_controller;
pub mod stats;
#[cfg(test)]
mod tests;
mod writectx;

use engine::QpSnapshot;
use protocol::hca::jingzhao::init::InitHca;
use protocol::ids::{Cqn, Qpn};

use self::ctxmdata::CtxMdata;
use self::key_qpc_data::{KeyData, KeyQpc};
use self::message::{ReadQp, WrQpEpst, WrQpNpst, WrQpUapst, WriteQp};
use self::request_controller::{Channel, RequestController, Writer};
use self::stats::CtxStats;
use crate::frontend::hcr::verbs::state_of;
use crate::memory::GuestMemory;

/// The context manager of an initialised device.
#[derive(Debug)]
pub struct CtxMgt {
    ctxmdata: CtxMdata,
    controller: RequestController,
    stats: CtxStats,
}

/// A write-back that had its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Whose.
    pub writer: Writer,
    /// QP, by its index.
    pub index: u32,
}

impl CtxMgt {
    /// WR_ICMMAP_EN: tables without pages. Counting goes on from `stats`.
    pub fn new(layout: &InitHca, stats: CtxStats) -> Self {
        Self { ctxmdata: CtxMdata::new(layout), controller: RequestController::default(), stats }
    }

    /// Where contexts are.
    pub fn ctxmdata(&self) -> &CtxMdata {
        &self.ctxmdata
    }

    /// What was counted.
    pub fn stats(&self) -> &CtxStats {
        &self.stats
    }

    /// Table index of a QP.
    pub fn qp_index(&self, qpn: Qpn) -> u32 {
        self.ctxmdata.qpc.index(qpn.get())
    }

    /// Table index of a CQ.
    pub fn cq_index(&self, cqn: Cqn) -> u32 {
        self.ctxmdata.cqc.index(cqn.get())
    }

    /// Answers a unit's request. A QP in RESET has no key data.
    pub fn read<M: ReadQp>(&mut self, key: Option<&KeyQpc>) -> Option<M> {
        let Some(key) = key else {
            self.miss(M::CHANNEL);
            return None;
        };
        Some(self.read_of(key))
    }

    /// Answers a unit's request for a QP that is there.
    pub fn read_of<M: ReadQp>(&mut self, key: &KeyQpc) -> M {
        self.stats.reads(M::CHANNEL).hits += 1;
        key.read()
    }

    /// A unit asked for what is not there: a QP in RESET, or a QP whose CQ is gone.
    pub fn miss(&mut self, channel: Channel) {
        self.stats.reads(channel).misses += 1;
    }

    /// Lets the units write what the engine has changed of a QP. A state that changes without a PSN comes with RTC's:
    /// the document's message for the state alone is reserved.
    pub fn observe(&mut self, index: u32, key: &mut KeyQpc, live: &QpSnapshot) {
        let state = state_of(live);
        let context = key.context();
        if context.image.unacked_psn != live.unacked_psn {
            self.write(index, key, WrQpUapst { state, unacked_psn: live.unacked_psn });
        }
        if key.context().image.recv_psn != live.recv_psn {
            self.write(index, key, WrQpEpst { state, expected_psn: live.recv_psn });
        }
        // Changes nothing if the others have brought the state already.
        self.write(index, key, WrQpNpst { state, next_psn: live.send_psn });
    }

    /// Takes a unit's write into the key data, and queues its write-back unless that waits already.
    fn write<M: WriteQp>(&mut self, index: u32, key: &mut KeyQpc, message: M) {
        if !key.write(message) {
            return;
        }
        self.stats.writer(M::WRITER).writes += 1;
        if key.mark_dirty(M::WRITER) {
            self.controller.post(M::WRITER, index);
        }
    }

    /// Whether no write-back waits.
    pub fn is_idle(&self) -> bool {
        self.controller.is_empty()
    }

    /// Writes back for the unit whose turn it is. `None`: nothing waits. A command that wrote the whole entry, or a QP
    /// that is gone, has made some requests pointless; they are passed over.
    pub fn serve(&mut self, dma: &GuestMemory, keys: &mut impl KeyData) -> Option<Served> {
        loop {
            let (writer, index) = self.controller.select()?;
            if let Some(key) = keys.key(index)
                && key.take_dirty(writer)
            {
                self.write_back(dma, index, key, writer);
                return Some(Served { writer, index });
            }
        }
    }

    fn write_back(&mut self, dma: &GuestMemory, index: u32, key: &KeyQpc, writer: Writer) {
        let written = writectx::write_back(&self.ctxmdata, dma, index, &key.context().image, writer);
        let stats = self.stats.writer(writer);
        match written {
            Ok(()) => stats.write_backs += 1,
            // Spec 5.2: skipped silently.
            Err(_) => stats.unmapped += 1,
        }
    }
}
